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
"""`transformers checkpoints` and `python -m transformers.trainer_checkpoint`: texts, JSON, exit codes, and what is deleted."""

import contextlib
import io
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

from click.testing import CliRunner
from parameterized import parameterized

from transformers.cli.checkpoints import app
from transformers.cli.transformers import app as library_app
from transformers.testing_utils import TestCasePlus
from transformers.trainer_checkpoint import disk, inspection, owner
from transformers.trainer_checkpoint.__main__ import main
from transformers.trainer_checkpoint.inspection import format_time, printable
from transformers.trainer_checkpoint.layout import MANIFEST_NAME
from transformers.trainer_utils import get_last_checkpoint

from .checkpoint_layouts import DAMAGES, copy, make, make_sealed, make_stock, write_text
from .test_checkpoint_discovery import meanwhile, rotate


MODULE = [sys.executable, "-m", "transformers.trainer_checkpoint"]
# `transformers checkpoints`, as a process of its own too.
LIBRARY = [sys.executable, "-c", "from transformers.cli.transformers import app; app()", "checkpoints"]


def run_module(*arguments: object) -> subprocess.CompletedProcess:
    """The plain command line, as a process of its own."""
    command = [*MODULE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)


def run_plain(*arguments: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(map(str, arguments)))
    return code, out.getvalue(), err.getvalue()


def run_rich(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)), prog_name="transformers checkpoints")
    return result.exit_code, result.stdout, result.stderr


BOTH = [("plain", run_plain), ("rich", run_rich)]


class CliTestCase(TestCasePlus):
    def setUp(self):
        super().setUp()
        self.out = Path(self.get_auto_remove_tmp_dir())
        # Wide enough that no cell of a table is folded.
        self.enterContext(mock.patch.dict(os.environ, {"COLUMNS": "200"}))

    def a_run(self) -> None:
        make(self.out / "checkpoint-5", 5)
        make_sealed(self.out, 20, 1, saw=("checkpoint-5",))
        make_sealed(self.out, 30, 2)
        DAMAGES["missing"](self.out / "checkpoint-30" / "model.safetensors")
        write_text(self.out / "checkpoint-20" / "KEEP", "")


class ListTest(CliTestCase):
    @parameterized.expand(BOTH)
    def test_a_table(self, _, run):
        self.a_run()
        code, out, err = run("list", self.out)
        self.assertEqual((code, err), (0, ""))
        lines = [line for line in out.splitlines() if "checkpoint-" in line]
        for line, parts in zip(
            lines,
            [
                ("checkpoint-5 ", "unverified", "model optimizer scheduler rng trainer"),
                ("checkpoint-20 ", "good, pinned", "model trainer"),
                ("checkpoint-30 ", "damaged"),
                ("checkpoint-30: model.safetensors is missing",),
            ],
            strict=True,
        ):
            for part in parts:
                self.assertIn(part, line)
        # What would be resumed from is marked.
        self.assertRegex(lines[1].strip(" │"), r"^(>|➜)")

    @parameterized.expand(BOTH)
    def test_json(self, _, run):
        self.a_run()
        code, out, _ = run("list", self.out, "--json")
        self.assertEqual(code, 0)
        stock, pinned, damaged = json.loads(out)
        self.assertEqual((stock["step"], stock["sequence"], stock["verdict"]), (5, None, "unverified"))
        self.assertEqual((pinned["step"], pinned["sequence"], pinned["pinned"]), (20, 1, True))
        self.assertEqual(damaged["problems"], ["model.safetensors is missing"])

    @parameterized.expand(BOTH)
    def test_full(self, _, run):
        DAMAGES["bit flipped"](make_sealed(self.out, 20, 1) / "model.safetensors")
        quick = run("list", self.out)[1]
        self.assertIn("good", quick)
        self.assertIn("Sizes were compared, and no contents", quick)
        self.assertIn("model.safetensors is not what was saved", run("list", self.out, "--full")[1])

    @parameterized.expand(BOTH)
    def test_nothing_there(self, _, run):
        code, out, _ = run("list", self.out)
        self.assertEqual((code, out), (0, f"No checkpoints in {self.out}.\n"))
        self.assertEqual(json.loads(run("list", self.out, "--json")[1]), [])

    @parameterized.expand(BOTH)
    def test_a_checkpoint_instead_of_a_run(self, _, run):
        self.a_run()
        for command in ("list", "explain"):
            self.assertIn("It looks like a checkpoint itself", run(command, self.out / "checkpoint-20")[1])

    @parameterized.expand([(200,), (80,), (60,), (40,)])
    def test_a_narrow_terminal(self, columns):
        self.a_run()
        with mock.patch.dict(os.environ, {"COLUMNS": str(columns)}):
            code, out, _ = run_rich("list", self.out)
        self.assertEqual(code, 0)
        table = [line for line in out.splitlines() if set(line) & set("│┃━─")]
        self.assertLessEqual(max(map(len, table)), columns)
        for name, verdict in ((5, "unverified"), (20, "good, pinned"), (30, "damaged")):
            self.assertRegex("\n".join(table), rf"checkpoint-{name} .*{verdict} ")

    def test_where_there_is_room_for_nothing(self):
        self.a_run()
        for columns in range(1, 30):
            with mock.patch.dict(os.environ, {"COLUMNS": str(columns)}):
                self.assertEqual(run_rich("list", self.out)[0], 0)

    @parameterized.expand(BOTH)
    def test_names_cannot_write_to_the_terminal(self, _, run):
        path = make_sealed(self.out, 20, 1)
        write_text(path / "\x1b[31m[bold]x", "")
        _, out, _ = run("list", self.out)
        self.assertIn("added after the seal: \\x1b[31m[bold]x", out)
        self.assertNotIn("\x1b[31m", out)


class VerifyTest(CliTestCase):
    def setUp(self):
        super().setUp()
        self.path = make_sealed(self.out, 20, 1)

    @parameterized.expand(BOTH)
    def test_good(self, _, run):
        code, out, _ = run("verify", self.path)
        self.assertEqual(code, 0)
        self.assertTrue(out.startswith(f"{self.path}: good ("), out)

    @parameterized.expand(BOTH)
    def test_every_damaged_file_is_named(self, _, run):
        DAMAGES["bit flipped"](self.path / "model.safetensors")
        DAMAGES["missing"](self.path / "trainer_state.json")
        code, out, _ = run("verify", self.path)
        self.assertEqual(code, 1)
        self.assertTrue(out.startswith(f"{self.path}: damaged ("), out)
        self.assertIn("\n  model.safetensors is not what was saved", out)
        self.assertIn("\n  trainer_state.json is missing", out)
        code, out, _ = run("verify", self.path, "--json")
        self.assertEqual(code, 1)
        self.assertEqual(
            [problem["file"] for problem in json.loads(out)["problems"]], ["model.safetensors", "trainer_state.json"]
        )

    @parameterized.expand(BOTH)
    def test_quick(self, _, run):
        DAMAGES["bit flipped"](self.path / "model.safetensors")
        code, out, _ = run("verify", self.path, "--quick")
        self.assertEqual(code, 0)
        self.assertIn("note: only sizes were compared", out)

    @parameterized.expand(BOTH)
    def test_edited(self, _, run):
        write_text(self.path / "config.json", "{}")
        code, out, _ = run("verify", self.path)
        self.assertEqual(code, 0)
        self.assertIn("note: modified after the seal: config.json", out)

    @parameterized.expand(BOTH)
    def test_without_a_manifest(self, _, run):
        code, out, _ = run("verify", make(self.out / "stock"))
        self.assertEqual(code, 0)
        self.assertIn(": unverified (", out)
        self.assertIn("has no manifest", out)

    @parameterized.expand(BOTH)
    def test_what_cannot_be_looked_at(self, _, run):
        (self.path / MANIFEST_NAME).write_bytes(b'{"format": 7}')
        self.assertEqual(run("verify", self.path)[0], 2)

    @parameterized.expand(BOTH)
    def test_a_run_instead_of_a_checkpoint(self, _, run):
        code, _, err = run("verify", self.out)
        self.assertEqual(code, 2)
        self.assertIn("is no checkpoint, but a run directory with 1 of them", err)

    @parameterized.expand(BOTH)
    def test_an_interrupt(self, _, run):
        with mock.patch.object(inspection, "verify_checkpoint", side_effect=KeyboardInterrupt):
            code, out, err = run("verify", self.path)
        self.assertEqual((code, out, err), (130, "", "Interrupted.\n"))


class BadInputTest(CliTestCase):
    @parameterized.expand(
        [
            (f"{name} {command}", run, command)
            for name, run in BOTH
            for command in ("list", "verify", "explain", "clean")
        ]
    )
    def test_each_command(self, _, run, command):
        write_text(self.out / "file", "")
        for path, text in (("nowhere", "there is no such directory"), ("file", "a directory is expected here")):
            code, out, err = run(command, self.out / path)
            self.assertEqual((code, out), (2, ""))
            self.assertIn(f"{self.out / path}: {text}", err)
            self.assertNotIn("Traceback", err)
        with mock.patch("os.scandir", side_effect=PermissionError(13, "Permission denied", str(self.out))):
            code, _, err = run(command, self.out)
        self.assertEqual((code, err), (2, f"{self.out}: Permission denied\n"))

    def test_wrong_usage(self):
        for arguments in (["list"], ["nothing"], ["verify", "a", "b"], ["list", "--no-such-option", "x"]):
            self.assertEqual(run_module(*arguments).returncode, 2)


class ExplainTest(CliTestCase):
    @parameterized.expand(BOTH)
    def test_what_and_why(self, _, run):
        self.a_run()
        code, out, _ = run("explain", self.out)
        self.assertEqual(code, 0)
        self.assertEqual(
            out.splitlines(),
            [
                f"`resume_from_checkpoint=True` resumes from {self.out}/checkpoint-20",
                "Passed over, newest first:",
                "  checkpoint-30: model.safetensors is missing",
                "Older, not looked at: checkpoint-5",
            ],
        )
        self.assertEqual(get_last_checkpoint(self.out), f"{self.out}/checkpoint-20")

    @parameterized.expand(BOTH)
    def test_it_reads_every_byte_unless_told(self, _, run):
        make_sealed(self.out, 20, 1)
        DAMAGES["bit flipped"](make_sealed(self.out, 30, 2) / "model.safetensors")
        for option, step in ((), 20), (("--quick",), 30):
            explained = json.loads(run("explain", self.out, "--json", *option)[1])
            self.assertEqual(explained["chosen"], f"{self.out}/checkpoint-{step}")

    @parameterized.expand(BOTH)
    def test_nothing_to_resume_from(self, _, run):
        self.assertEqual(run("explain", self.out)[:2], (1, f"No checkpoints in {self.out}.\n"))
        DAMAGES["empty"](make_stock(self.out, 20) / "model.safetensors")
        code, out, _ = run("explain", self.out)
        self.assertEqual(code, 1)
        self.assertIn(f"No checkpoint in {self.out} can be resumed from.", out)
        self.assertIn("checkpoint-20: model.safetensors is empty", out)

    def test_a_complete_one_in_staging_will_be_published_first(self):
        make_sealed(self.out, 20, 1)
        self.stage(30, 2)
        explanation = inspection.explain(self.out)
        self.assertEqual(explanation.chosen, f"{self.out}/checkpoint-30")
        self.assertIn("will be published first", explanation.notes[-1])
        self.assertEqual([leftover.action for leftover in explanation.leftovers], ["publish"])

    def test_what_else_is_in_staging_will_not(self):
        make_sealed(self.out, 20, 2)
        self.stage(20, 1)
        DAMAGES["missing"](self.stage(30, 3) / "model.safetensors")
        make_stock(self.out / "_staging", 40)
        explanation = inspection.explain(self.out)
        self.assertEqual(explanation.chosen, f"{self.out}/checkpoint-20")
        self.assertEqual([leftover.action for leftover in explanation.leftovers], ["delete"] * 3)

    def test_somebody_elses_staging(self):
        make_sealed(self.out, 20, 1)
        make_sealed(self.out / "_staging", 30, 2)
        explanation = inspection.explain(self.out)
        self.assertEqual(explanation.chosen, f"{self.out}/checkpoint-20")
        self.assertEqual([leftover.action for leftover in explanation.leftovers], ["keep"])

    def test_who_saves_there(self):
        make_sealed(self.out, 20, 1)
        owner.claim(self.out, durable=False)
        self.addCleanup(owner.release, self.out)
        self.assertIn(f"process {os.getpid()} on host", inspection.explain(self.out).owner)

    def test_while_the_only_one_is_rotated_away(self):
        for name in ("find_leftovers", "verify"):
            out = Path(self.get_auto_remove_tmp_dir())
            make_sealed(out, 20, 1)
            with meanwhile(inspection, name, lambda: rotate(out, 20, 30)):
                explanation = inspection.explain(out)
            self.assertEqual((explanation.chosen, explanation.passed_over), (f"{out}/checkpoint-30", ()))

    @parameterized.expand(
        [("find_checkpoints", False), ("find_checkpoints", True), ("verify", False), ("_owner", False)]
    )
    def test_while_the_staged_one_is_published(self, name, after):
        make_sealed(self.out, 20, 1)
        staged = self.stage(30, 2)

        def publish():
            os.rename(staged, self.out / "checkpoint-30")
            (self.out / "_staging" / "owner.json").unlink()
            (self.out / "_staging").rmdir()
            rotate(self.out, 20)

        with meanwhile(inspection, name, publish, after=after):
            self.assertEqual(inspection.explain(self.out).chosen, f"{self.out}/checkpoint-30")

    def test_while_a_staged_one_is_judged(self):
        from transformers.trainer_checkpoint import publishing

        make_sealed(self.out, 20, 1)
        staged = self.stage(30, 2)
        publish = lambda: os.rename(staged, self.out / "checkpoint-30")  # noqa: E731
        with meanwhile(publishing, "read_head", publish, after=True):
            explanation = inspection.explain(self.out)
        self.assertEqual((explanation.chosen, explanation.leftovers), (f"{self.out}/checkpoint-30", ()))

    def test_what_is_damaged_is_read_once(self):
        for step in (10, 20):
            make_sealed(self.out, step, step)
        DAMAGES["bit flipped"](make_sealed(self.out, 30, 30) / "model.safetensors")
        looked_at = []
        real = inspection.verify

        def look(path, *args, **kwargs):
            looked_at.append(os.path.basename(path))
            if looked_at == ["checkpoint-30", "checkpoint-20"]:
                rotate(self.out, 20)
            return real(path, *args, **kwargs)

        with mock.patch.object(inspection, "verify", look):
            self.assertEqual(inspection.explain(self.out).chosen, f"{self.out}/checkpoint-10")
        self.assertEqual(looked_at, ["checkpoint-30", "checkpoint-20", "checkpoint-10"])

    def stage(self, step: int, sequence: int) -> Path:
        """What a save that was killed leaves: a staging directory of ours and its dead owner's record."""
        return stage(self.out, step, sequence)


def stage(out: Path, step: int, sequence: int) -> Path:
    if not (out / "_staging" / "owner.json").exists():
        script = "import os, sys; from transformers.trainer_checkpoint import owner; "
        script += "owner.claim(sys.argv[1], durable=False); os._exit(0)"
        subprocess.run([sys.executable, "-c", script, str(out)], check=True, timeout=120)
    return make_sealed(out / "_staging", step, sequence)


class CleanTest(CliTestCase):
    def setUp(self):
        super().setUp()
        make_sealed(self.out, 10, 1)
        stage(self.out, 20, 2)
        make_stock(self.out / "_staging", 30)
        copy(self.out / "checkpoint-10", self.out / "_trash" / f"checkpoint-5.{'0a' * 8}")
        copy(self.out / "checkpoint-10", self.out / "_trash" / "mine")
        (self.out / f"rename-{'0a' * 4}.tmp-checkpoint").mkdir()
        write_text(self.out / f"_disk-{'0a' * 8}", "")
        write_text(self.out / f"checkpoint-7.replaced-{'0a' * 8}", "mine too")
        write_text(self.out / "modes-notes.txt", "and mine")
        self.deletable = {
            "_staging/checkpoint-30",
            f"_trash/checkpoint-5.{'0a' * 8}",
            f"rename-{'0a' * 4}.tmp-checkpoint",
            f"_disk-{'0a' * 8}",
        }
        self.kept = {
            "checkpoint-10",
            "_staging/checkpoint-20",
            "_trash/mine",
            f"checkpoint-7.replaced-{'0a' * 8}",
            "modes-notes.txt",
        }

    def there(self) -> set[str]:
        return {name for name in self.deletable | self.kept if os.path.lexists(self.out / name)}

    @parameterized.expand(BOTH)
    def test_shows_only(self, _, run):
        code, out, _ = run("clean", self.out)
        self.assertEqual(code, 0)
        self.assertIn("Would delete ", out)
        for name in self.deletable:
            self.assertIn(f"\n  {name} (", out)
        self.assertIn("Nothing was changed. Say --yes to delete it.", out)
        self.assertIn("complete: the next training publishes it", out)
        self.assertEqual(self.there(), self.deletable | self.kept)

    @parameterized.expand(
        [(f"{name} {option}", run, option) for name, run in BOTH for option in ("--yes", "--delete")]
    )
    def test_deletes_what_is_ours_and_not_complete(self, _, run, option):
        code, out, err = run("clean", self.out, option)
        self.assertEqual((code, err), (0, ""))
        self.assertIn("Deleted ", out)
        self.assertEqual(self.there(), self.kept)
        self.assertIn("Nothing to delete", run("clean", self.out, option)[1])
        self.assertEqual(inspection.explain(self.out).chosen, f"{self.out}/checkpoint-20")

    @parameterized.expand(BOTH)
    def test_json(self, _, run):
        code, out, _ = run("clean", self.out, "--json")
        result = json.loads(out)
        self.assertEqual((code, result["deleted"], result["problems"]), (0, False, []))
        deletable = {
            os.path.relpath(one["path"], self.out) for one in result["leftovers"] if one["action"] == "delete"
        }
        self.assertEqual(deletable, self.deletable)

    @parameterized.expand([(f"{name} {option}", run, option) for name, run in BOTH for option in ("", "--yes")])
    def test_refuses_while_somebody_saves(self, _, run, option):
        script = "import sys; from transformers.trainer_checkpoint import owner; "
        script += "owner.claim(sys.argv[1], durable=False); print('claimed', flush=True); sys.stdin.read()"
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(self.out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self.assertEqual(process.stdout.readline(), "claimed\n")
            code, _, err = run("clean", self.out, *filter(None, [option]))
        finally:
            process.communicate(timeout=120)
        self.assertEqual(code, 2)
        self.assertIn(f"process {process.pid} on host", err)
        self.assertEqual(self.there(), self.deletable | self.kept)

    @parameterized.expand(BOTH)
    def test_what_cannot_be_deleted_is_reported(self, _, run):
        with mock.patch.object(inspection.disk, "delete", lambda path: [f"{path}: Device or resource busy"]):
            code, _, err = run("clean", self.out, "--yes")
        self.assertEqual(code, 1)
        self.assertEqual(err.count("Could not be deleted: "), len(self.deletable))
        self.assertEqual(self.there(), self.deletable | self.kept)

    def test_a_training_may_save_while_a_large_trash_is_deleted(self):
        def delete(path: str) -> list[str]:
            if "_trash" in str(path) and not saved:
                saved.append(subprocess.run(command, timeout=120, check=True))
            return real(path)

        saved: list = []
        script = "import sys; sys.path.insert(0, sys.argv[1]); from save_driver import *; from unittest import mock\n"
        script += "with mock.patch('transformers.trainer_checkpoint.transaction.OWNER_PATIENCE', 0.0):\n"
        script += "    save(sys.argv[2], 40, content('a', 40))"
        command = [sys.executable, "-c", script, str(Path(__file__).parent / "scripts"), str(self.out)]
        real = inspection.disk.delete
        with mock.patch.object(inspection.disk, "delete", delete):
            leftovers, problems = inspection.clean(self.out, delete=True)
        self.assertEqual((len(saved), problems), (1, []))
        self.assertEqual(inspection.explain(self.out).chosen, f"{self.out}/checkpoint-40")

    @parameterized.expand(["_staging", "_trash"])
    def test_what_goes_while_it_is_listed(self, name):
        away = lambda: os.rename(self.out / name, self.out / "away")  # noqa: E731
        path, looked = str(self.out / name), inspection._is_directory

        def look(directory):
            there = looked(directory)
            if there and str(directory) == path:
                away()
            return there

        with mock.patch.object(inspection, "_is_directory", look):
            leftovers, problems = inspection.clean(self.out)
        self.assertNotIn(name, {Path(leftover.path).parent.name for leftover in leftovers})
        self.assertEqual(problems, [])

    def test_what_is_deleted_meanwhile_is_not_reported(self):
        with meanwhile(inspection, "_in_trash", lambda: (self.out / f"_disk-{'0a' * 8}").unlink()):
            leftovers = inspection.find_leftovers(self.out)
        self.assertNotIn(f"_disk-{'0a' * 8}", {Path(leftover.path).name for leftover in leftovers})

    def test_a_trash_that_is_a_link_is_not_entered(self):
        (self.out / "_trash").rename(self.out / "elsewhere")
        os.symlink(self.out / "elsewhere", self.out / "_trash")
        self.assertEqual(run_plain("clean", self.out, "--yes")[0], 0)
        self.assertTrue((self.out / "elsewhere" / f"checkpoint-5.{'0a' * 8}").exists())


class ModuleTest(CliTestCase):
    """`python -m transformers.trainer_checkpoint` as a process of its own."""

    # edit: quick-start
    def test_list_imports_neither_torch_nor_the_library(self):
        self.a_run()
        command = [sys.executable, "-X", "importtime", *MODULE[1:], "list", str(self.out)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("good, pinned", done.stdout)
        imported = {
            line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")
        }
        self.assertIn("transformers.trainer_checkpoint.inspection", imported)
        for name in ("torch", "numpy", "huggingface_hub", "transformers.utils", "typer", "rich"):
            self.assertNotIn(name, imported)

    def test_exit_codes_and_streams(self):
        self.a_run()
        for arguments, code in (
            (("list", self.out), 0),
            (("verify", self.out / "checkpoint-20"), 0),
            (("verify", self.out / "checkpoint-30"), 1),
            (("verify", self.out / "nowhere"), 2),
            (("explain", self.out), 0),
            (("clean", self.out), 0),
            (("info",), 0),
            ((), 0),
            (("--help",), 0),
        ):
            done = run_module(*arguments)
            self.assertEqual(done.returncode, code, done)
            self.assertEqual(bool(done.stderr), code == 2)

    def test_options_of_the_interpreter_do_not_matter(self):
        make_sealed(self.out, 20, 1)
        for options in (["-X", "utf8", "-m"], ["-W", "error", "-m"], ["-I", "-m"]):
            command = [sys.executable, *options, "transformers.trainer_checkpoint", "list", str(self.out)]
            done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)
            self.assertIn("good", done.stdout, done.stderr)

    def test_another_module_is_not_mistaken_for_it(self):
        write_text(self.out / "other.py", "import sys, transformers; print('other', sys.argv[1:])\n")
        command = [sys.executable, "-m", "other", "-m", "transformers.trainer_checkpoint", "list", "x"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.out), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, env=environment)
        self.assertEqual(done.stdout, "other ['-m', 'transformers.trainer_checkpoint', 'list', 'x']\n", done.stderr)

    def test_the_package_is_an_attribute_of_the_library_all_the_same(self):
        script = "import transformers.trainer_checkpoint; print(transformers.trainer_checkpoint.__name__)"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", timeout=120)
        self.assertEqual(done.stdout, "transformers.trainer_checkpoint\n", done.stderr)

    @parameterized.expand([("plain", MODULE), ("rich", LIBRARY)])
    def test_a_reader_that_goes_away(self, _, command):
        for step in range(1, 400):
            path = self.out / f"checkpoint-{step}"
            path.mkdir()
            write_text(path / "trainer_state.json", "{")
        process = subprocess.Popen([*command, "list", str(self.out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(10)
        process.stdout.close()
        error = process.stderr.read()
        process.stderr.close()
        self.assertEqual((process.wait(120), error), (0, b""))

    @parameterized.expand([("plain", MODULE), ("rich", LIBRARY)])
    def test_what_the_encoding_lacks_is_escaped(self, _, command):
        out = self.out / "läuft"
        path = make_sealed(out, 20, 1)
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        for arguments in (("list", out), ("verify", path), ("explain", out), ("clean", out)):
            done = subprocess.run(
                [*command, *map(str, arguments)], capture_output=True, encoding="ascii", timeout=120, env=environment
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""), done)
            if arguments[0] != "list" or command is LIBRARY:
                self.assertIn("l\\xe4uft", done.stdout)


class LibraryCommandTest(CliTestCase):
    # edit: import-checkpoints-command, checkpoints-command
    def test_it_is_a_command_of_the_library(self):
        self.a_run()
        result = CliRunner().invoke(library_app, ["checkpoints", "explain", str(self.out)], prog_name="transformers")
        self.assertEqual(result.exit_code, 0, result.output)
        self.assertIn(f"resumes from {self.out}/checkpoint-20", result.output)
        self.assertIn("checkpoints", CliRunner().invoke(library_app, ["--help"]).output)

    def test_both_print_the_same(self):
        self.a_run()
        for command in (["verify", self.out / "checkpoint-30"], ["explain", self.out], ["clean", self.out]):
            self.assertEqual(run_plain(*command), run_rich(*command))

    def test_help(self):
        for command in ("list", "verify", "explain", "clean"):
            code, out, _ = run_rich(command, "--help")
            self.assertEqual(code, 0)
            self.assertIn("--json", out)


class FormatTest(unittest.TestCase):
    @parameterized.expand(
        [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1 kB"),
            (1624, "1.62 kB"),
            (999_400, "999 kB"),
            (999_600, "1 MB"),
            (12_345_678, "12.3 MB"),
            (123_456_789, "123 MB"),
            (1_620_000_000, "1.62 GB"),
            (99_960_000_000, "100 GB"),
            (5 * 10**15, "5000 TB"),
        ]
    )
    def test_sizes(self, size, text):
        self.assertEqual(disk.format_size(size), text)

    def test_times(self):
        self.assertRegex(format_time("2026-11-30T09:13:36.000+00:00"), r"^2026-(11-30|12-01|11-29) \d\d:\d\d$")
        for wrong in (None, "", "yesterday", "9999-99-99"):
            self.assertEqual(format_time(wrong), "-")

    def test_control_characters(self):
        self.assertEqual(printable("a\x1b[0m\n\tä€"), "a\\x1b[0m\\n\\tä€")


if __name__ == "__main__":
    unittest.main()
