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
The repository holds only its own text: the detector finds a copy, and finds none here.
"""

import pytest

from copied_text import RUN, find_copies, our_texts, telling_lines, their_texts
from upstream import released_tree

from .helpers import run_tool


THEIRS = """
import os

def rotate(folder, limit):
    # the oldest first
    names = sorted(find(folder))

    while len(names) > limit:
        name = names.pop(0)
        remove(os.path.join(folder, name))
    return names
"""


def test_nothing_here_is_upstreams_text():
    texts = our_texts()
    assert {"setup.py", "README.md", "utils/copied_text.py"} <= set(texts)
    copies = find_copies(texts, their_texts(released_tree()))
    assert not copies, "\n".join(map(str, copies))


@pytest.mark.parametrize(
    "ours",
    [
        # As it is; indented, with other blank lines and trivial lines in between; inside other text.
        THEIRS,
        THEIRS.replace("\n", "\n\n    "),
        THEIRS.replace("    while", "    pass\n    while"),
        '"""\n' + THEIRS + '"""\nand = 1\n',
    ],
)
def test_a_copy_is_found(ours):
    copies = find_copies({"a.py": ours, "b.py": "x = 1\n"}, [("other.py", "y = 2\n"), ("theirs.py", THEIRS)])
    assert copies and {copy.ours for copy in copies} == {"a.py"}
    assert "theirs.py:4" in str(copies[0])


def test_one_line_less_than_a_run_is_no_copy():
    lines = [line for _, line in telling_lines(THEIRS)]
    assert len(lines) > RUN
    assert find_copies({"a.py": "\n".join(lines[:RUN])}, [("theirs.py", THEIRS)])
    assert not find_copies({"a.py": "\n".join(lines[: RUN - 1])}, [("theirs.py", THEIRS)])
    changed = [*lines[: RUN - 1], "something(else_)", *lines[RUN:]]
    assert not find_copies({"a.py": "\n".join(changed)}, [("theirs.py", THEIRS)])


def test_licences_imports_and_brackets_are_not_counted():
    text = "# Copyright 2026 The Team.\nimport os\nfrom a import b\n)\n],\n    else:\n        return None\n\n"
    assert not list(telling_lines(text))


def test_a_file_of_the_release_is_found(tmp_path):
    """The whole chain, on a function out of the release's own source."""
    path = "transformers/trainer_utils.py"
    lines = (released_tree() / path).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("def sort_checkpoints"))
    theirs = list(their_texts(released_tree()))
    copies = find_copies({"ours.py": "\n".join(lines[start : start + 30])}, theirs)
    assert any(copy.theirs == path for copy in copies)


def test_command():
    result = run_tool("copied_text.py")
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
