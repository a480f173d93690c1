# Copyright 2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""
The linked tree: a patched `transformers` for daily work, ready in a second or two.

`build/dev/transformers` is made of links into the unpacked release and into `src`, and of the generated files. It is
then put on the path of an interpreter, in front of its other packages, with metadata of its own. A change in one of
our modules shows at once; a change in an edit needs this step again, and the test run says so.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from assemble import SOURCES, check_no_clash, generated_files, metadata_text, our_files, write_if_changed
from edit_file import ROOT, EditError, read_edits
from upstream import Release, UpstreamError, pinned_release, read_pins


DEV = ROOT / "build" / "dev"
# `site` reads these files in the order of their names, and ours has to come first.
PATH_FILE = "0_transformers_staged.pth"
INSTALLER = "link"


def plan_links(release: Release, generated: dict[str, bytes]) -> dict[str, Path]:
    """
    What each path of the tree links to. A directory in which every file is from one place is one link, so that new
    modules in `trainer_checkpoint` need no new link.
    """
    origins: dict[str, Path] = dict.fromkeys(release.package_files(), release.root)
    origins.update(dict.fromkeys(our_files(), SOURCES))
    upstream = {parent for path in release.package_files() for parent in Path(path).parents}
    touched = {parent for path in [*generated, *our_files()] for parent in Path(path).parents}
    mixed = upstream & touched
    links: dict[str, Path] = {}
    for path, origin in origins.items():
        if path in generated:
            continue
        at = Path(path)
        for parent in reversed(at.parents):
            if parent not in mixed:
                at = parent
                break
        links[at.as_posix()] = origin / at
    return links


def build_tree(release: Release, tree: Path = DEV) -> None:
    """
    Bring the linked tree up to date.

    Args:
        release (`Release`):
            The verified release.
        tree (`Path`, *optional*, defaults to `build/dev`):
            The directory that gets `transformers`. Only what changed is touched; what no longer belongs is removed.

    Raises:
        `EditError`: before anything is written, when an edit does not fit or a module of ours clashes.
    """
    check_no_clash(release)
    generated = generated_files(release, read_edits())
    links = plan_links(release, generated)
    expected = {*links, *generated}
    directories = {parent.as_posix() for path in expected for parent in Path(path).parents} - {"."}
    for directory, names, files in os.walk(tree / "transformers"):
        for name in [*names, *files]:
            path = Path(directory) / name
            relative = path.relative_to(tree).as_posix()
            known = relative in (links if path.is_symlink() else directories if path.is_dir() else generated)
            if known or name == "__pycache__":
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
                names.remove(name)
            else:
                path.unlink()
    for path, target in links.items():
        link = tree / path
        if link.is_symlink():
            if os.readlink(link) == str(target):
                continue
            link.unlink()
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    for path, content in generated.items():
        write_if_changed(tree / path, content)


def purelib(python: str) -> Path:
    """Where an interpreter's own packages are."""
    code = "import json, sys, sysconfig; print(json.dumps([sysconfig.get_path('purelib'), sys.prefix != sys.base_prefix]))"
    output = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    path, virtual = json.loads(output)
    if not virtual:
        raise SystemExit(f"{python} is not in a virtual environment: linking would change the system's packages")
    return Path(path)


def link_into(python: str, release: Release, tree: Path = DEV) -> None:
    """
    Make an interpreter in a virtual environment see the linked tree as its `transformers`.

    Args:
        python (`str`):
            The interpreter.
        release (`Release`):
            The verified release.
        tree (`Path`, *optional*, defaults to `build/dev`):
            What [`build_tree`] made. The environment gets a path file and a `.dist-info` that pip knows how to remove.

    Raises:
        `SystemExit`: when the interpreter belongs to no virtual environment, or has another `transformers` installed.
    """
    site = purelib(python)
    pins = read_pins()
    dist_info = site / f"transformers-{pins.full_version}.dist-info"
    if (site / "transformers").exists():
        raise SystemExit(
            f"{site / 'transformers'} is in front of the linked one.\n"
            f"Remove it first: {python} -m pip uninstall --yes transformers"
        )
    for other in site.glob("transformers-*.dist-info"):
        if other != dist_info:
            if (other / "INSTALLER").read_text(encoding="utf-8").strip() != INSTALLER:
                raise SystemExit(f"{other} describes another transformers: {python} -m pip uninstall transformers")
            shutil.rmtree(other)
    entry_points = (release.dist_info / "entry_points.txt").read_text(encoding="utf-8")
    files = {
        site / PATH_FILE: f"{tree}\n",
        dist_info / "METADATA": metadata_text(release),
        dist_info / "INSTALLER": f"{INSTALLER}\n",
        dist_info / "entry_points.txt": entry_points,
        dist_info / "direct_url.json": json.dumps({"url": ROOT.as_uri(), "dir_info": {"editable": True}}),
    }
    record = [f"{path.relative_to(site).as_posix()},,\n" for path in files]
    files[dist_info / "RECORD"] = "".join([*record, f"{dist_info.name}/RECORD,,\n"])
    for path, content in files.items():
        write_if_changed(path, content.encode("utf-8"))


def confirm(python: str, tree: Path = DEV) -> None:
    """Ask the interpreter which `transformers` it would import."""
    code = (
        "import importlib.metadata as m, importlib.util as u; "
        "print(m.version('transformers')); print(u.find_spec('transformers').origin)"
    )
    result = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, cwd=tree.parent)
    version, _, origin = result.stdout.strip().partition("\n")
    if result.returncode or version != read_pins().full_version or not Path(origin).is_relative_to(tree):
        raise SystemExit(
            f"{python} does not see the linked transformers in {tree}, but {version or 'none'} in {origin or '-'}.\n"
            f"{result.stderr.strip()}\nRemove what is in front of it (PYTHONPATH, another path file), then: make link"
        )
    print(f"{python}: transformers {version} in {tree}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the linked tree and put it on an interpreter's path.")
    parser.add_argument("--python", action="append", default=[], metavar="X", help="an interpreter; may be repeated")
    parser.add_argument("--tree", type=Path, default=DEV, help="where the linked tree is made; default: build/dev")
    options = parser.parse_args(arguments)
    tree = options.tree.resolve()
    try:
        release = pinned_release()
        build_tree(release, tree)
    except (EditError, UpstreamError) as error:
        print(error, file=sys.stderr)
        return 1
    for python in map(os.path.abspath, options.python):
        link_into(python, release, tree)
        confirm(python, tree)
    return 0


if __name__ == "__main__":
    sys.exit(main())
