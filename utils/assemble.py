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
The patched package: what the wheel, the linked tree and the export have in common.

It is upstream's released files, our modules from `src/transformers`, the edited files with their notices, and one data
file, `transformers/_patch_set.json`, from which a running build tells what it is.
"""

import email.message
import email.parser
import hashlib
import json
import os
import re
import shutil
from pathlib import Path

from apply_edits import edited_files
from edit_file import EDITS_DIR, ROOT, Edit, EditError, read_edits
from upstream import PINS, Pins, Release, read_pins


SOURCES = ROOT / "src"
DATA_FILE = "transformers/_patch_set.json"


def edits_digest(edits_dir: Path = EDITS_DIR) -> str:
    """A digest of everything that decides how the edited files look: the pins, the edits and the engine."""
    digest = hashlib.sha256()
    engine = [Path(__file__).with_name(name) for name in ("edit_file.py", "landmarks.py", "apply_edits.py")]
    for path in [PINS, *sorted(edits_dir.rglob("*.toml")), *engine]:
        digest.update(path.name.encode("utf-8") + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def patch_set_data(edits: dict[str, list[Edit]], pins: Pins, edited: dict[str, bytes]) -> bytes:
    """The content of `transformers/_patch_set.json`. It depends on the repository only, not on when or where."""
    data = {
        "patch_set": pins.patch_set,
        "version": pins.full_version,
        "upstream": pins.version,
        "upstream_record_sha256": pins.record_sha256,
        "edits_digest": edits_digest(),
        "files": {path: hashlib.sha256(content).hexdigest() for path, content in edited.items()},
        "edits": [
            {"id": edit.id, "file": edit.target, "in": edit.scope, "why": edit.why, "fingerprint": edit.fingerprint}
            for file_edits in edits.values()
            for edit in file_edits
        ],
    }
    return (json.dumps(data, indent=1) + "\n").encode("utf-8")


def our_files(sources: Path = SOURCES) -> list[str]:
    """Our modules, relative to `src`: `"transformers/trainer_checkpoint/layout.py"` and so on."""
    paths = (path.relative_to(sources) for path in sources.rglob("*") if path.is_file())
    return sorted(
        path.as_posix()
        for path in paths
        if not any(part == "__pycache__" or part.startswith(".") for part in path.parts)
        and path.as_posix() != DATA_FILE
    )


def generated_files(release: Release, edits: dict[str, list[Edit]]) -> dict[str, bytes]:
    """Every file of the package that neither upstream nor our `src` has as it is, by path below the package's parent."""
    edited = {target.removeprefix("src/"): text for target, text in edited_files(release.root, edits).items()}
    return {**edited, DATA_FILE: patch_set_data(edits, read_pins(), edited)}


def check_no_clash(release: Release) -> None:
    """Raise an [`EditError`] for a module of ours at a path where upstream has a file: that needs an edit."""
    for path in our_files():
        if path in release.rows:
            raise EditError(
                f"src/{path}",
                "(none)",
                "overlap",
                "our modules only at paths that upstream does not have",
                f"the same path in transformers {release.version}",
                f"move the module, or write edits/src/{path}.toml",
            )


def assemble(release: Release, destination: Path) -> None:
    """
    Write the whole patched package as real files, for the wheel.

    Args:
        release (`Release`):
            The verified release.
        destination (`Path`):
            The directory that gets `transformers`. Files of an earlier build there are replaced.

    Raises:
        `EditError`: before anything is written, when an edit does not fit or a module of ours clashes.
    """
    check_no_clash(release)
    generated = generated_files(release, read_edits())
    package = destination / "transformers"
    if package.exists():
        shutil.rmtree(package)
    for path in release.package_files():
        target = destination / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(release.root / path, target)
    for path in our_files():
        target = destination / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(SOURCES / path, target)
    for path, content in generated.items():
        (destination / path).write_bytes(content)


# ---- Metadata ----


def read_metadata(release: Release) -> email.message.Message:
    """Upstream's METADATA."""
    return email.parser.HeaderParser().parsestr((release.dist_info / "METADATA").read_text(encoding="utf-8"))


def split_requirements(metadata: email.message.Message) -> tuple[list[str], dict[str, list[str]]]:
    """
    Upstream's requirements as setuptools wants them: those of everyone, and those of each extra with the rest of
    their markers.
    """
    always: list[str] = []
    extras: dict[str, list[str]] = {name: [] for name in metadata.get_all("Provides-Extra", [])}
    for line in metadata.get_all("Requires-Dist", []):
        requirement, _, marker = (part.strip() for part in line.partition(";"))
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
        if extra is None:
            always.append(line)
            continue
        rest = re.sub(r"\s+and\s*$|^\s*and\s+", "", marker.replace(extra[0], "").strip()).strip()
        if rest.startswith("(") and rest.endswith(")"):
            rest = rest[1:-1]
        extras[extra[1]].append(f"{requirement}; {rest}" if rest else requirement)
    return always, extras


def metadata_text(release: Release) -> str:
    """METADATA of the linked tree: upstream's, with our version and our requirements. The wheel's is setuptools'."""
    pins = read_pins()
    lines = (release.dist_info / "METADATA").read_text(encoding="utf-8").split("\n")
    end = lines.index("")
    head = [f"Version: {pins.full_version}" if line.startswith("Version:") else line for line in lines[:end]]
    head += [f"Requires-Dist: {requirement}" for requirement in pins.requires]
    return "\n".join(head) + "\n"


def write_if_changed(path: Path, content: bytes) -> bool:
    """Write a file unless it has this content already, so that its time says when it really changed."""
    if path.is_file() and not path.is_symlink() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)
    return True
