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
The export: a small upstream checkout made of the released files takes the series, and what comes out is the wheel.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from apply_edits import NOTICE
from assemble import DATA_FILE, our_files
from edit_file import ROOT, EditError, read_edits
from export import BRANCH, ExportError, export
from toctree import TABLE, pages
from upstream import pinned_release, read_pins

from .helpers import SECONDS, run_tool


RELEASE = pinned_release()
EDITS = read_edits()
VERSION = read_pins().version
CONTENTS = """\
- sections:
  - local: index
    title: Start here
  - local: trainer
    title: Training
  title: Made up
"""


def git(checkout: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=checkout, capture_output=True, text=True, check=True, timeout=SECONDS
    ).stdout


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A git checkout with the released files of the package's top level and of its command line."""
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "A Developer")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "developer@example.com")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    root = tmp_path / "checkout"
    for path in RELEASE.package_files():
        parts = path.split("/")
        if len(parts) == 2 or (len(parts) == 3 and parts[1] in ("cli", "utils")):
            (root / "src" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(RELEASE.root / path, root / "src" / path)
    (root / ".gitignore").write_text("*.md\n", encoding="utf-8")
    (root / TABLE).parent.mkdir(parents=True)
    (root / TABLE).write_text(CONTENTS, encoding="utf-8")
    shutil.copy(ROOT / "pyproject.toml", root)
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Release")
    return root


def test_exported_package_equals_the_wheel(checkout, wheel):
    export(checkout, VERSION)
    before = set(git(checkout, "ls-tree", "-r", "--name-only", "main").split())
    after = set(git(checkout, "ls-tree", "-r", "--name-only", BRANCH).split())
    package = {path.removeprefix("src/") for path in after if path.startswith("src/")}
    shared = {path for path in package if f"src/{path}" in before}
    assert package - shared == set(our_files())
    notice = (NOTICE + "\n").encode("utf-8")
    for path in sorted(package):
        ours = (wheel / path).read_bytes()
        assert ours.count(notice) == (f"src/{path}" in EDITS), path
        assert (checkout / "src" / path).read_bytes() == ours.replace(notice, b""), path
    # The rest of the wheel is upstream's, and its data file.
    for path in wheel.joinpath("transformers").rglob("*"):
        name = path.relative_to(wheel).as_posix()
        if path.is_file() and name not in package and name != DATA_FILE:
            assert path.read_bytes() == (RELEASE.root / name).read_bytes(), name


def test_series_of_commits(checkout):
    subjects = export(checkout, VERSION)
    log = git(checkout, "log", "--reverse", "--format=%s", f"main..{BRANCH}").splitlines()
    assert log == subjects and 2 <= len(subjects) <= 4
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "branch", "--show-current").strip() == BRANCH
    files = [set(git(checkout, "show", "--format=", "--name-only", commit).split()) for commit in
             git(checkout, "log", "--reverse", "--format=%H", f"main..{BRANCH}").split()]  # fmt: skip
    assert files[0] == {f"src/{path}" for path in our_files()}
    assert files[1] == set(EDITS)
    message = git(checkout, "log", "-1", "--format=%B", f"{BRANCH}~{len(subjects) - 2}")
    assert all(edit.id in message and edit.why in message for own in EDITS.values() for edit in own)
    for changed in files[2:]:
        assert all(path.startswith(("tests/trainer/", "docs/source/en/")) for path in changed)


def test_nothing_of_the_build_goes_along(checkout):
    export(checkout, VERSION)
    added = set(git(checkout, "diff", "--name-only", "--diff-filter=A", "main", BRANCH).split())
    assert added and all(path.startswith(("src/", "tests/trainer/", "docs/source/en/")) for path in added)
    assert not any(path.endswith(("_patch_set.json", ".toml", ".pyc")) or "__pycache__" in path for path in added)
    modified = set(git(checkout, "diff", "--name-only", "--diff-filter=MD", "main", BRANCH).split())
    assert modified == {*EDITS, TABLE}


def test_the_table_of_contents_takes_our_pages(checkout):
    export(checkout, VERSION)
    table = (checkout / TABLE).read_text(encoding="utf-8")
    added = [page for page in pages(table) if page not in pages(CONTENTS)]
    assert added and all((checkout / "docs" / "source" / "en" / f"{page}.md").is_file() for page in added)
    assert [line for line in table.splitlines() if line in CONTENTS.splitlines()] == CONTENTS.splitlines()


def test_ruff_accepts_what_is_exported(checkout):
    export(checkout, VERSION)
    touched = [path for path in git(checkout, "diff", "--name-only", "main", BRANCH).split() if path.endswith(".py")]
    for arguments in (["check"], ["format", "--check"]):
        result = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, "--no-cache", *touched],
            cwd=checkout,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert result.returncode == 0, result.stdout + result.stderr


def test_command(checkout):
    result = run_tool("export.py", checkout)
    assert result.returncode == 0, result.stderr
    assert BRANCH in result.stdout and "transaction" in result.stdout
    result = run_tool("export.py", checkout)
    assert result.returncode == 1 and f"has a branch {BRANCH} already" in result.stderr


@pytest.mark.parametrize("what", ["no checkout", "changes", "version", "module"])
def test_checkouts_that_are_refused(what, checkout, tmp_path):
    if what == "no checkout":
        checkout = tmp_path / "elsewhere"
        checkout.mkdir()
        expected = "is not the root of a git checkout of transformers"
    elif what == "changes":
        (checkout / "src" / "transformers" / "new.py").write_text("x = 1\n", encoding="utf-8")
        expected = "1 changes that are not committed"
    else:
        if what == "version":
            init = checkout / "src" / "transformers" / "__init__.py"
            init.write_text(init.read_text(encoding="utf-8").replace(VERSION, "9.9.9"), encoding="utf-8")
            expected = "at version 9.9.9, and the edits are reviewed for 5.24.0"
        else:
            (checkout / "src" / "transformers" / "trainer_checkpoint").mkdir()
            (checkout / "src" / our_files()[0]).write_text("x = 1\n", encoding="utf-8")
            expected = "exists already, and it is a module of ours"
        git(checkout, "add", "--all")
        git(checkout, "commit", "--quiet", "--message", what)
    with pytest.raises(ExportError, match=expected):
        export(checkout, VERSION)
    if what != "no checkout":
        assert git(checkout, "branch", "--list").split() == ["*", "main"]


def test_edit_that_does_not_fit_writes_nothing(checkout):
    callback = checkout / "src" / "transformers" / "trainer_callback.py"
    text = callback.read_text(encoding="utf-8")
    callback.write_text(text.replace('self.call_event("on_save"', 'self.raise_event("on_save"'), encoding="utf-8")
    git(checkout, "commit", "--quiet", "--all", "--message", "Upstream moves on")
    with pytest.raises(EditError, match="on-save-after-publish"):
        export(checkout, None)
    assert git(checkout, "branch", "--list").split() == ["*", "main"]
    assert git(checkout, "status", "--porcelain") == ""
