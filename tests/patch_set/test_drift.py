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
The drift report: one case per verdict, and the pinned release against itself.
"""

from pathlib import Path

import pytest

from drift import table, verdict
from edit_file import read_edits
from upstream import pinned_release, read_pins

from .helpers import make_edit, run_tool


REVIEWED = "def save(run_dir):\n    write(run_dir)\n    rotate(run_dir)\n"

# What a release has in the file's place, and what is said about it.
RELEASES = {
    "clean": (
        "# moved about\n\n" + REVIEWED.replace("(run_dir)\n    rotate", "(\n        run_dir\n    )\n    rotate"),
        "",
    ),
    "context changed": (REVIEWED.replace("write(", "check()\n    write("), "line 4"),
    "anchor lost": (REVIEWED.replace("rotate", "clean_up"), "0 matches in the definition on line 1"),
    "ambiguous": (REVIEWED + "    rotate(run_dir)\n", "2 matches, lines 3 and 4"),
    "file moved": (None, "`save` is in src/transformers/saving.py"),
    "upstream has it": (REVIEWED.replace("rotate(", "rotate_after_publish("), "upstream has the change"),
}


def tree_with(directory: Path, text: str | None) -> Path:
    package = directory / "tree" / "transformers"
    package.mkdir(parents=True)
    (package / "other.py").write_text("def save_more():\n    pass\n", encoding="utf-8")
    name = "saving.py" if text is None else "module.py"
    (package / name).write_text(REVIEWED if text is None else text, encoding="utf-8")
    return directory / "tree"


@pytest.fixture
def edit(tmp_path):
    keys = {"op": "replace_callee", "in": "save", "at": {"call": "rotate"}, "code": "rotate_after_publish"}
    tree = tree_with(tmp_path / "reviewed", REVIEWED)
    shown = run_tool("apply_edits.py", tree, "--edits", make_edit(tmp_path, **keys).origin.parents[2], "--fingerprint")
    fingerprint = shown.stdout.split()[1]
    return make_edit(tmp_path, **keys, fingerprint=fingerprint)


@pytest.mark.parametrize("expected", RELEASES)
def test_verdicts(expected, edit, tmp_path):
    text, note = RELEASES[expected]
    result, found = verdict(tree_with(tmp_path, text), edit, {})
    assert result == expected
    assert note in found and bool(note) == bool(found)


def test_definition_that_is_gone_altogether(edit, tmp_path):
    tree = tree_with(tmp_path, None)
    (tree / "transformers" / "saving.py").unlink()
    assert verdict(tree, edit, {}) == ("file moved", "`save` is nowhere")


def test_table(edit, tmp_path):
    releases = [(name, tree_with(tmp_path / name.replace(" ", "-"), text)) for name, (text, _) in RELEASES.items()]
    text, notes = table(releases, {edit.target: [edit]})
    head, _, row, totals = text.split("\n")
    assert head == f"| edit | {' | '.join(RELEASES)} |"
    assert row == f"| `an-edit` | {' | '.join(RELEASES)} |"
    assert totals == f"| in all | {' | '.join(f'1 {name}' for name in RELEASES)} |"
    assert len(notes) == len(RELEASES) - 1 and all(": an-edit: " in note for note in notes)


def test_the_pinned_release_is_clean():
    version = read_pins().version
    text, notes = table([(version, pinned_release().root)], read_edits())
    count = sum(len(edits) for edits in read_edits().values())
    assert not notes and text.endswith(f"| in all | {count} clean |")


def test_command(tmp_path):
    (tmp_path / "transformers").mkdir()
    result = run_tool("drift.py", tmp_path)
    assert result.returncode == 0, result.stderr
    assert "| file moved |" in result.stdout and "| clean |" not in result.stdout
