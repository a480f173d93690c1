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
The documentation agrees with the code, and each check of it finds a mistake where there is one.
"""

import importlib.util
import io
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

import docs_check
import readme_map
import toctree
from docs_check import (
    PAGES,
    README,
    TESTING,
    USERS_PAGE,
    Page,
    added_arguments,
    as_template,
    check_all,
    check_commands,
    check_links,
    check_messages,
    check_options,
    check_paths,
    check_references,
    check_samples,
    check_tests_of_rows,
    check_toctree,
    templates,
)
from edit_file import ROOT

from .helpers import SECONDS, run_tool


DEMO = ROOT / "examples" / "demo"


def page(folder: Path, text: str, name: str = "page.md") -> Page:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return Page(path)


# ---- As it is ----


def test_documentation_agrees_with_the_code():
    assert check_all(samples=False) == []


def test_nothing_is_left_unchecked_for_want_of_a_table():
    """A renamed column would take a table out of its check."""
    users, protocol = Page(USERS_PAGE), Page(PAGES / "trainer_checkpoint_protocol.md")
    rows = {header[0]: len(rows) for header, rows in users.tables()}
    assert rows["argument"] == len(added_arguments()) and rows["command"] == 4
    messages = sum(len(rows) for header, rows in users.tables() if header[0] in docs_check.MESSAGES)
    assert messages > 40
    assert [len(rows) for header, rows in protocol.tables() if header[-1] == docs_check.TEST_COLUMN] >= [10]
    assert len([sample for sample in users.samples if sample.language == "py"]) >= 4
    assert any(header[0] == "training argument" for header, _ in Page(README).tables())


@pytest.mark.slow
@pytest.mark.parametrize("path", [USERS_PAGE, README, TESTING], ids=lambda path: path.name)
def test_samples_run(path):
    assert check_samples(Page(path)) == []


# ---- Every check can fail ----


@pytest.mark.parametrize(
    "text, problem",
    [
        ("[x](missing.md)", "leads nowhere"),
        ("![a picture [of] it](missing.svg)", "leads nowhere"),
        ("[x](page.md#nowhere)\n\n# Somewhere", "no heading for #nowhere"),
        ("[x](#nowhere)", "no heading for #nowhere"),
        ("[x](http://example.com)", "not https"),
    ],
)
def test_links(tmp_path, text, problem):
    (found,) = check_links(page(tmp_path, text))
    assert problem in found and "page.md:1" in found


def test_good_links(tmp_path):
    text = "[a](page.md) [b](page.md#one-heading) [c](#one-heading) [d](https://example.com)\n\n## One `heading`!\n"
    assert check_links(page(tmp_path, text)) == []
    assert check_links(page(tmp_path, "```text\n[x](missing.md)\n```\n")) == []


def test_references(tmp_path):
    text = (
        "[`Trainer`] [`~trainer_checkpoint.CheckpointSaveError`]\n[[autodoc]] trainer_checkpoint.inspection.explain\n"
    )
    assert check_references(page(tmp_path, text)) == []
    found = check_references(page(tmp_path, "[`Trainor`]\n[[autodoc]] trainer_checkpoint.inspection.explained\n"))
    assert [problem.split(" (")[0].split("has no ")[1] for problem in found] == [
        "Trainor", "trainer_checkpoint.inspection.explained",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "code, problem",
    [
        ("tests/trainer/test_missing.py", "there is no tests/trainer/test_missing.py"),
        ("tests/patch_set/test_docs.py::test_missing", "has no test_missing"),
        ("tests/patch_set/test_docs.py::Missing::test_paths", "has no Missing::test_paths"),
        ("tests/patch_set/test_docs.py::page", "has no page"),
        ("utils/missing/*.py", "there is no"),
    ],
)
def test_paths(tmp_path, code, problem):
    (found,) = check_paths(page(tmp_path, f"see `{code}`"))
    assert problem in found


def test_good_paths(tmp_path):
    text = "`tests/patch_set/test_docs.py::test_good_paths`, `utils/*.py`, `out/checkpoint-30`, `src/transformers`"
    assert check_paths(page(tmp_path, text)) == []


OPTIONS = "| argument | default | what |\n|---|---|---|\n"


@pytest.mark.parametrize(
    "text, problem",
    [
        ('| `durability` | `"full"` | x |', "no training argument durability"),
        ('| `save_durability` | `"process"` | x |', "default of save_durability is 'full'"),
        ("| `save_durability` | full | x |", "default of save_durability is 'full'"),
    ],
)
def test_options_table(tmp_path, text, problem):
    (found,) = check_options(page(tmp_path, OPTIONS + text), complete=False)
    assert problem in found


def test_options_in_the_text(tmp_path):
    good = '`resume_verify="off"`, `save_total_limit`, `resume_from_checkpoint=True`, `save_model`, `on_save`'
    assert check_options(page(tmp_path, good), complete=False) == []
    (found,) = check_options(page(tmp_path, 'pass `resume_check="off"`'), complete=False)
    assert "no option resume_check" in found


def test_options_have_to_be_complete(tmp_path):
    rows = [f"| `{name}` | `{docs_check.training_arguments()[name]!r}` | x |" for name in added_arguments()]
    assert check_options(page(tmp_path, OPTIONS + "\n".join(rows)), complete=True) == []
    (found,) = check_options(page(tmp_path, OPTIONS + "\n".join(rows[1:])), complete=True)
    assert f"{added_arguments()[0]} is not in the table" in found
    (found,) = check_options(page(tmp_path, OPTIONS + "\n".join([*rows, "| `seed` | `42` | x |"])), complete=True)
    assert "seed is not ours" in found


def test_templates(tmp_path):
    code = 'def f(a, b):\n    raise ValueError(f"{a} is " "no" f" {b!r}{a}: {a:.1f} s")\nTEXT = "a plain " "text"\n'
    (tmp_path / "module.py").write_text(code, encoding="utf-8")
    known = templates(tmp_path)
    assert "\0 is no \0: \0 s" in known and "a plain text" in known
    assert as_template("<path> is no <thing>: <number> s") == "is no \0: \0 s"


@pytest.mark.parametrize(
    "message, problem",
    [
        ("`Checkpoint saved to <path> (<size> in <number> files, <time> seconds)`", "nothing in the code says"),
        ("`Checkpoint saved to out/checkpoint-20`", "nothing in the code says"),
        ("Checkpoint saved", "does not begin with a message"),
    ],
)
def test_messages(tmp_path, message, problem):
    (found,) = check_messages(page(tmp_path, f"| message | meaning |\n|---|---|\n| {message} | x |\n"), templates())
    assert problem in found


def test_good_messages(tmp_path):
    text = (
        "| message | meaning |\n|---|---|\n| `Checkpoint saved to <path> (<size> in <number> files, <time> s)` | x |\n"
    )
    assert check_messages(page(tmp_path, text), templates()) == []


@pytest.mark.parametrize("cell", ["", "`tests/patch_set/test_docs.py`", "test_rows", "`elsewhere.py::test_rows`"])
def test_rows_without_a_test(tmp_path, cell):
    (found,) = check_tests_of_rows(page(tmp_path, f"| killed | on disk | test |\n|---|---|---|\n| x | y | {cell} |\n"))
    assert "names no test" in found


@pytest.mark.parametrize(
    "text, problem",
    [
        ("`transformers checkpoints repair out`", "no command repair"),
        ("`make everything`", "make has no target everything"),
        ("```bash\npython -m transformers.trainer_checkpoint verify out --fast\n```", "verify has no option --fast"),
        ("| command | x |\n|---|---|\n| `repair DIR` | x |", "no command repair"),
        ("| command | x |\n|---|---|\n| `clean DIR` | with `--force` |", "clean has no option --force"),
    ],
)
def test_commands(tmp_path, text, problem):
    (found,) = check_commands(page(tmp_path, text))
    assert problem in found


@pytest.mark.parametrize(
    "text, problem",
    [
        ("```py\nx = 1\n```\n\n```py\nassert x == 2, 'a wrong claim'\n```", "a wrong claim"),
        ("```bash\ntransformers checkpoints list missing\n```", "a sample fails"),
        ("```bash\ncurl https://example.com\n```", "is not run here"),
        ("```pyton\nx = 1\n```", "the sample is pyton"),
    ],
)
def test_samples(tmp_path, text, problem):
    (found,) = check_samples(page(tmp_path, text))
    assert problem in found


def test_a_sample_that_fails_is_told_with_its_line(tmp_path):
    (found,) = check_samples(page(tmp_path, "# Title\n\n```py\nx = 1\nraise ValueError(x)\n```\n"))
    assert 'page.md", line 5' in found


def test_samples_of_a_page_share_a_process_and_a_directory(tmp_path):
    text = "```py\nimport os\nos.mkdir('out')\n```\n```py\nassert os.listdir() == ['out']\n```\n"
    assert check_samples(page(tmp_path, f"{text}```bash\ntransformers checkpoints list out\n```\n")) == []


# ---- README's constraint ----


def newer_release(folder: Path) -> Path:
    """An index with a wheel of a release that does not exist yet: its metadata is all that pip looks at."""
    folder.mkdir()
    info = "transformers-5.99.0.dist-info"
    with zipfile.ZipFile(folder / "transformers-5.99.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: transformers\nVersion: 5.99.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return folder


def test_the_constraint_keeps_pip_from_replacing_the_build(tmp_path):
    line = re.search(r'^echo "(.*)" > constraints.txt$', README.read_text(encoding="utf-8"), flags=re.MULTILINE)[1]
    (tmp_path / "constraints.txt").write_text(f"{line}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--disable-pip-version-check"]
    command += ["--find-links", str(newer_release(tmp_path / "index"))]

    def pip(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)

    free = pip("transformers>=5.25")
    assert free.returncode == 0 and "Would install transformers-5.99.0" in free.stdout, free.stderr
    held = pip("-c", "constraints.txt", "transformers>=5.25")
    assert held.returncode == 1 and "conflict" in held.stderr.lower()
    kept = pip("--no-deps", "-c", "constraints.txt", "transformers>=5")
    assert kept.returncode == 0 and "Would install" not in kept.stdout, kept.stderr


# ---- The table of contents ----

TABLE = """- title: Training
  sections:
  - title: Trainer API
    sections:
    - local: trainer
      title: Trainer
    - local: hpo_train
      title: Search
- title: Other
"""


def test_entries_go_behind_the_trainer():
    text = toctree.with_entries(TABLE)
    lines = text.splitlines()
    at = lines.index("      title: Trainer")
    assert lines[at + 1] == "    - local: trainer_checkpoints" and lines[at + 2].startswith("      title: ")
    assert [line for line in lines if line in TABLE.splitlines()] == TABLE.splitlines()
    ours = ["trainer_checkpoints", "trainer_checkpoint_protocol", "trainer_checkpoint_proof"]
    assert toctree.pages(text) == ["trainer", *ours, "hpo_train"]
    assert toctree.with_entries(text) == text


def test_entries_at_the_end_of_a_file_without_a_last_newline():
    text = toctree.with_entries("- local: trainer\n  title: Trainer")
    assert text.startswith("- local: trainer\n  title: Trainer\n- local: trainer_checkpoints\n")


@pytest.mark.parametrize(
    "text, problem",
    [
        (TABLE.replace("local: trainer\n", "local: training\n"), "0 times"),
        (TABLE + TABLE, "2 times"),
        (TABLE.replace("hpo_train", "trainer_checkpoints"), "trainer_checkpoints already"),
    ],
)
def test_a_table_that_cannot_take_them(text, problem):
    with pytest.raises(toctree.ToctreeError, match=problem):
        toctree.with_entries(text)


def test_the_command_for_the_table(tmp_path):
    result = run_tool("toctree.py", str(tmp_path))
    assert result.returncode == 1 and "root of an upstream checkout" in result.stderr
    table = tmp_path / toctree.TABLE
    table.parent.mkdir(parents=True)
    table.write_text(TABLE, encoding="utf-8")
    assert run_tool("toctree.py", str(tmp_path)).returncode == 0
    assert table.read_text(encoding="utf-8") == toctree.with_entries(TABLE)


def test_a_page_without_an_entry_is_found(tmp_path, monkeypatch):
    fragment = tmp_path / "toctree.yml"
    fragment.write_text("- local: trainer_checkpoints\n  title: x\n- local: gone\n  title: y\n", encoding="utf-8")
    monkeypatch.setattr(toctree, "entries", lambda: fragment.read_text(encoding="utf-8").splitlines())
    found = check_toctree()
    assert any("trainer_checkpoint_protocol is missing" in problem for problem in found)
    assert any("there is no page gone" in problem for problem in found)


# ---- The map ----


def repository(folder: Path, **files: str) -> Path:
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True, timeout=60)
    for name, text in files.items():
        (folder / "utils").mkdir(exist_ok=True)
        (folder / "utils" / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def test_the_phrase_of_a_file_is_the_first_sentence_of_its_docstring(tmp_path):
    root = repository(tmp_path, one='"""\nReads `a.toml`:\nall | of it. And more.\n\nMuch more.\n"""\n', empty="")
    text = readme_map.repository_map(root)
    assert "| [`one.py`](utils/one.py) | Reads `a.toml`: all \\| of it |" in text
    assert "empty.py" not in text


def test_a_file_that_does_not_say_what_it_is_for(tmp_path):
    with pytest.raises(readme_map.MapError, match=r"utils/one\.py is not on README's map"):
        readme_map.repository_map(repository(tmp_path, one="x = 1\n"))


def test_a_stale_map_is_found(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"a\n{readme_map.BEGIN}\nold\n{readme_map.END}\nb\n", encoding="utf-8")
    stale = run_tool("readme_map.py", "--check", "--readme", str(readme))
    assert stale.returncode == 1 and "not current" in stale.stderr
    assert run_tool("readme_map.py", "--readme", str(readme)).returncode == 0
    assert run_tool("readme_map.py", "--check", "--readme", str(readme)).returncode == 0
    assert readme.read_text(encoding="utf-8").endswith(f"{readme_map.END}\nb\n")
    readme.write_text("no markers", encoding="utf-8")
    assert "needs one line" in run_tool("readme_map.py", "--readme", str(readme)).stderr


# ---- The demo ----


def load_demo():
    spec = importlib.util.spec_from_file_location("demo", DEMO / "demo.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module
    spec.loader.exec_module(module)
    return module


def test_a_claim_of_the_demo_that_does_not_hold_ends_it():
    demo = load_demo()
    shown = io.StringIO()
    told = demo.Demo(Console(file=shown, highlight=False))
    told.check(True, "this holds")
    with pytest.raises(demo.ClaimError):
        told.check(False, "this does not")
    assert shown.getvalue() == "yes  this holds\nNO   this does not\n"


@pytest.mark.slow
def test_the_demo_fails_if_a_training_does(tmp_path):
    result = subprocess.run(
        [sys.executable, str(DEMO / "demo.py"), "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=SECONDS,
        # The training that nobody is to disturb is killed too.
        env={**os.environ, "KILL_IN_SAVE_OF_STEP": "8"},
    )
    assert result.returncode == 1 and result.stdout.count("yes  ") == 0, result.stdout + result.stderr
    assert "NO   it finished" in result.stdout and f"logs are in {tmp_path}" in result.stdout
    assert "SIGKILL" in (tmp_path / "whole.log").read_text(encoding="utf-8")


def test_what_the_demo_shows_of_a_log():
    demo = load_demo()
    shown = io.StringIO()
    lines = [
        "step  1  loss 5.500000\n",
        "{'loss': 5.5}\n",
        "step  2  loss 4.500000\n",
        "[transformers] Saving checkpoint to out/checkpoint-2\n",
        "[rank0]: FileNotFoundError: it is gone\n",
        "[rank1]: FileNotFoundError: it is gone\n",
        "[rank1]: RuntimeError: [pair.cc] Connection closed by peer\n",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n",
    ]
    text = demo.Demo(Console(file=shown, highlight=False))._show(lines, demo.SHOWN)
    assert text == "".join(lines)
    assert shown.getvalue().splitlines() == [
        "  steps 1 to 2: loss 5.500000 ... 4.500000",
        "  Saving checkpoint to out/checkpoint-2",
        "  FileNotFoundError: it is gone",
    ]


@pytest.mark.slow
def test_the_demo_shows_what_it_claims(tmp_path):
    image = tmp_path / "demo.svg"
    result = subprocess.run(
        ["bash", str(DEMO / "run.sh"), "--folder", str(tmp_path / "demo"), "--record", str(image)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=5 * SECONDS,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "NO  " not in result.stdout and result.stdout.count("yes  ") == 8
    assert "resumes from patched/checkpoint-8" in result.stdout
    svg = image.read_text(encoding="utf-8")
    assert "<svg" in svg and "@font-face" not in svg and "http" not in svg.replace("http://www.w3.org", "")


def test_the_picture_loads_nothing_and_shows_this_release():
    svg = (ROOT / "docs" / "images" / "demo.svg").read_text(encoding="utf-8")
    assert "@font-face" not in svg and str(ROOT) not in svg
    for shown in ("checkpoint-16", "SIGKILL", "digit", docs_check.read_pins().version):
        assert shown in svg
