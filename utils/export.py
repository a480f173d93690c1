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
The way upstream: writes our modules, edits, tests and pages into an upstream git checkout as a short commit series.

Nothing of the build machinery goes along, and the edited files carry no notices there: the history says who changed
them. The package that results is the one in our wheel, apart from those notices and the wheel's data file.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from apply_edits import apply_edits, upstream_bytes
from assemble import SOURCES, our_files
from edit_file import ROOT, EditError, read_edits
from toctree import TABLE, ToctreeError, with_entries
from upstream import read_pins


BRANCH = "staged-checkpoints"

# What of our tests and pages belongs to upstream. `tests/patch_set` checks this repository.
TESTS = "tests/trainer"
DOCS = "docs/source/en"


class ExportError(Exception):
    """The checkout cannot take the series. The text says what is wrong with it and what to do."""


def git(checkout: Path, *arguments: str) -> str:
    """Run git in the checkout; its output, or an [`ExportError`] with what it complained about."""
    result = subprocess.run(["git", *arguments], cwd=checkout, capture_output=True, text=True, timeout=300)
    if result.returncode:
        raise ExportError(
            f"git {arguments[0]} failed in {checkout}:\n{result.stderr.strip() or result.stdout.strip()}"
        )
    return result.stdout


def check_checkout(checkout: Path, version: str | None) -> None:
    """
    Refuse a directory that the series cannot go into.

    Args:
        checkout (`Path`):
            The root of an upstream checkout.
        version (`str`, *optional*):
            The version that it has to be a checkout of. `None` takes any: the edits are checked all the same.

    Raises:
        `ExportError`: when it is no checkout, has changes that are not committed, or is of another version.
    """
    init = checkout / "src" / "transformers" / "__init__.py"
    if not init.is_file() or not (checkout / ".git").exists():
        raise ExportError(f"{checkout} is not the root of a git checkout of transformers: {init} or .git is not there")
    if changes := git(checkout, "status", "--porcelain").splitlines():
        raise ExportError(f"{checkout} has {len(changes)} changes that are not committed, first {changes[0]!r}")
    found = re.search(r'^__version__ = "(.*)"', init.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if version is not None and (found is None or found[1] != version):
        raise ExportError(
            f"{checkout} is at version {found[1] if found else '(none found)'}, and the edits are reviewed for "
            f"{version}.\nCheck out the tag v{version}, or pass --any-version to have every edit checked on it."
        )
    if git(checkout, "branch", "--list", BRANCH).strip():
        raise ExportError(f"{checkout} has a branch {BRANCH} already: git branch -D {BRANCH}")


def copy_below(directory: str, checkout: Path) -> list[str]:
    """Copy the files of one of our directories to the same place in the checkout."""
    copied = []
    for path in sorted((ROOT / directory).rglob("*")):
        relative = path.relative_to(ROOT)
        if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in relative.parts):
            (checkout / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, checkout / relative)
            copied.append(relative.as_posix())
    return copied


def export(checkout: Path, version: str | None = None) -> list[str]:
    """
    Commit the series on a new branch of an upstream checkout.

    Args:
        checkout (`Path`):
            The root of an upstream checkout without changes.
        version (`str`, *optional*):
            The version that the checkout has to be of.

    Returns:
        `list[str]`: The subjects of the commits. The checkout is on the branch `staged-checkpoints` afterwards.

    Raises:
        `ExportError`: for a checkout that cannot take the series.
        `EditError`: for an edit that does not fit.
        `ToctreeError`: for a table of contents that cannot take our pages. Nothing was written in any of these cases.
    """
    check_checkout(checkout, version)
    edits = read_edits()
    edited = {
        target: apply_edits(target, upstream_bytes(checkout / "src", target, own), own, notice=False)
        for target, own in edits.items()
    }
    modules = {f"src/{path}": (SOURCES / path).read_bytes() for path in our_files()}
    for path in modules:
        if (checkout / path).exists():
            raise ExportError(f"{checkout / path} exists already, and it is a module of ours")

    # Only a part of a checkout, as in tests, comes without the table of contents.
    table = checkout / TABLE
    contents_table = with_entries(table.read_text(encoding="utf-8")) if table.is_file() else None

    git(checkout, "switch", "--quiet", "--create", BRANCH)
    subjects = []

    def write(contents: dict[str, bytes]) -> list[str]:
        for path, content in contents.items():
            (checkout / path).parent.mkdir(parents=True, exist_ok=True)
            (checkout / path).write_bytes(content)
        return list(contents)

    def commit(subject: str, body: str, paths: list[str]) -> None:
        if paths:
            # Upstream's ignore rules are for what tools leave behind; all of these are meant.
            git(checkout, "add", "--force", "--", *paths)
            git(checkout, "commit", "--quiet", "--message", f"{subject}\n\n{body}")
            subjects.append(subject)

    commit(
        "Trainer: add a transaction around checkpoints",
        "New modules only; nothing calls them yet. A checkpoint is written in a staging directory, made durable,\n"
        "agreed on by all ranks and published by one rename.",
        write(modules),
    )
    reasons = "\n".join(f"- {edit.id}: {edit.why}" for own in edits.values() for edit in own)
    commit("Trainer: save, find, rotate and resume checkpoints through the transaction", reasons, write(edited))
    commit(
        "Trainer: test the transaction around checkpoints",
        "Run with: pytest tests/trainer",
        copy_below(TESTS, checkout),
    )
    pages = copy_below(DOCS, checkout)
    if contents_table is not None:
        pages += write({TABLE: contents_table.encode("utf-8")})
    commit("Trainer: document the transaction around checkpoints", "The user's pages and the protocol.", pages)
    return subjects


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the patch set into an upstream checkout as commits.")
    parser.add_argument("checkout", type=Path, help="root of an upstream git checkout without changes")
    parser.add_argument("--any-version", action="store_true", help="take another version than the pinned one")
    options = parser.parse_args(arguments)
    checkout = options.checkout.resolve()
    try:
        subjects = export(checkout, None if options.any_version else read_pins().version)
    except (EditError, ExportError, ToctreeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{checkout}: branch {BRANCH}")
    for subject in subjects:
        print(f"  {subject}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
