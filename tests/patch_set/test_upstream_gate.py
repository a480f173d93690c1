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
The gate of upstream's own tests, on a made-up checkout: what it runs, what it leaves out, and what it refuses.
"""

from pathlib import Path

import pytest

from edit_file import ROOT
from upstream import read_pins
from upstream_tests import LIST, ChangedTest, GateError, read_changed

from .helpers import run_tool


OURS = "tests/patch_set/test_upstream_gate.py::test_listed_test_is_left_out"

# Like upstream's, the `conftest.py` puts the checkout's own package in front of the installed one.
CONFTEST = """
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parent / "src"))
"""
TESTS = """
import unittest

import transformers
from transformers.trainer_checkpoint.patch_info import patch_info


class Tests(unittest.TestCase):
    def test_patched(self):
        assert patch_info() is not None
        assert "from_the_checkout" not in vars(transformers)

    def test_changed(self):
        raise AssertionError("this one is changed on purpose")
"""


@pytest.fixture
def checkout(tmp_path) -> Path:
    root = tmp_path / "checkout"
    for path, text in {
        "src/transformers/__init__.py": f'from_the_checkout = True\n__version__ = "{read_pins().version}"\n',
        "conftest.py": CONFTEST,
        "tests/__init__.py": "",
        "tests/trainer/__init__.py": "",
        "tests/trainer/test_trainer.py": TESTS,
        "tests/other/test_other.py": "def test():\n    raise AssertionError('not a test of the Trainer')\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return root


def run_gate(checkout: Path, entries: list[ChangedTest], *arguments: str):
    """The command with a list of the test's own."""
    code = (
        "import sys, upstream_tests as gate; from pathlib import Path\n"
        f"entries = [gate.ChangedTest(*entry) for entry in {[(e.test, e.reason, e.ours) for e in entries]!r}]\n"
        "gate.read_changed = lambda: entries\n"
        f"sys.exit(gate.main([{str(checkout)!r}, *{list(arguments)!r}]))\n"
    )
    script = checkout.parent / "gate.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT / 'utils')!r})\n{code}", encoding="utf-8")
    return run_tool(str(script))


CHANGED = ChangedTest("tests/trainer/test_trainer.py::Tests::test_changed", "It promises less.", OURS)


def test_listed_test_is_left_out(checkout):
    result = run_gate(checkout, [CHANGED])
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 tests of upstream, 1 of them changed on purpose" in result.stdout
    assert f"left out: {CHANGED.test}: {CHANGED.reason} (ours: {OURS})" in result.stdout
    assert "1 passed, 1 deselected" in result.stdout
    assert not (checkout / "src" / "transformers" / "trainer.py").exists()


def test_test_that_is_not_listed_fails_the_gate(checkout):
    result = run_gate(checkout, [])
    assert result.returncode == 1
    assert "1 failed, 1 passed" in result.stdout


def test_arguments_for_pytest(checkout):
    result = run_gate(checkout, [], "tests/trainer/test_trainer.py::Tests::test_patched", "-v")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed" in result.stdout and "test_patched PASSED" in result.stdout


def test_listed_test_that_upstream_does_not_have_is_refused(checkout):
    gone = ChangedTest("tests/trainer/test_trainer.py::Tests::test_gone", "It is gone.", OURS)
    result = run_gate(checkout, [gone])
    assert result.returncode == 2
    assert f"lists {gone.test}, which upstream does not have" in result.stderr


@pytest.mark.parametrize("what", ["version", "nothing"])
def test_other_checkouts_are_refused(what, checkout):
    if what == "version":
        (checkout / "src" / "transformers" / "__init__.py").write_text('__version__ = "5.0.0"\n', encoding="utf-8")
        expected = "is at version 5.0.0: check out the tag v5.24.0"
    else:
        (checkout / "tests" / "trainer" / "test_trainer.py").unlink()
        (checkout / "tests" / "trainer" / "__init__.py").unlink()
        (checkout / "tests" / "trainer").rmdir()
        expected = "is not a checkout of transformers"
    result = run_tool("upstream_tests.py", checkout)
    assert result.returncode == 2 and expected in result.stderr


# ---- The list ----


def test_list_of_this_repository():
    for entry in read_changed():
        assert entry.test.startswith("tests/trainer/")


@pytest.mark.parametrize(
    "text, found",
    [
        ('[[change]]\ntest = "a"\n', "found change"),
        ('[[changed]]\ntest = "a"\nreason = "b"\n', "needs exactly"),
        (f'[[changed]]\ntest = "a"\nreason = " "\nours = "{OURS}"\n', "needs exactly"),
        (f'[[changed]]\ntest = "a"\nreason = "b"\nours = "{OURS}"\nmore = "c"\n', "needs exactly"),
        (f'[[changed]]\ntest = "a"\nreason = "b"\nours = "{OURS}"\n' * 2, "listed twice"),
        ('[[changed]]\ntest = "a"\nreason = "b"\nours = "tests/test_none.py::test"\n', "does not exist here"),
        (f'[[changed]]\ntest = "a"\nreason = "b"\nours = "{OURS}_not"\n', "does not exist here"),
    ],
)
def test_mistakes_in_the_list(text, found, tmp_path):
    path = tmp_path / LIST.name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(GateError, match=found):
        read_changed(path)


def test_good_list(tmp_path):
    path = tmp_path / LIST.name
    path.write_text(f'[[changed]]\ntest = "a"\nreason = "b"\nours = "{OURS}"\n', encoding="utf-8")
    assert read_changed(path) == [ChangedTest("a", "b", OURS)]
