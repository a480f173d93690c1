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
"""Every file of a checkpoint, damaged in every way: `verify` names it, and nobody resumes from it."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

import torch
from parameterized import parameterized
from safetensors.torch import save_file

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, trainer_checkpoint
from transformers.testing_utils import TestCasePlus
from transformers.trainer_checkpoint import digest, inspection, verification
from transformers.trainer_checkpoint.discovery import find_checkpoints, is_text
from transformers.trainer_checkpoint.disk import walk_files
from transformers.trainer_checkpoint.layout import FILE_LIST_PATTERN, MANIFEST_NAME, SENTINEL_NAME, UNLISTED_NAMES
from transformers.trainer_checkpoint.manifest import encode_head, read_entries, read_head
from transformers.trainer_checkpoint.verification import (
    DAMAGED,
    GOOD,
    MODIFIED,
    UNREADABLE,
    UNVERIFIED,
    bytes_to_read,
    verify,
)
from transformers.trainer_utils import get_last_checkpoint

from .checkpoint_layouts import DAMAGES, LAYOUTS, copy, make, make_sealed, make_stock, seal, write_json, write_text
from .test_checkpoint_discovery import meanwhile, rotate, seal_again


def listed_files(path: Path) -> list[str]:
    return [name for name, _ in walk_files(path) if name not in UNLISTED_NAMES and not FILE_LIST_PATTERN.match(name)]


def is_left_as_it_was(before: bytes, file: Path) -> bool:
    return file.exists() and file.read_bytes() == before


class DamageTableTest(TestCasePlus):
    def check(self, whole: Path, name: str, damage: str) -> None:
        path = copy(whole, whole.parent.parent / "damaged" / "checkpoint-20")
        before = (path / name).read_bytes()
        DAMAGES[damage](path / name)
        result = verify(path)
        newest = get_last_checkpoint(path.parent)
        if is_left_as_it_was(before, path / name):  # zeros over zeros, nothing from nothing
            self.assertEqual(result.verdict, GOOD)
        elif is_text(name) and result.verdict == MODIFIED:
            # Only what still reads may pass for an edit, and it is said.
            self.assertIn(damage, ("bit flipped", "truncated"))
            self.assertIn(name, " ".join(result.notes))
        else:
            self.assertEqual(result.verdict, DAMAGED)
            self.assertEqual([problem.file for problem in result.problems], [name])
            if damage in ("missing", "empty", "truncated"):
                self.assertIsNone(newest)
        shutil.rmtree(path)

    @parameterized.expand(LAYOUTS)
    def test_every_file(self, layout):
        whole = make(Path(self.get_auto_remove_tmp_dir()) / "whole" / "checkpoint-20", 20, layout)
        seal(whole, 1)
        self.assertEqual(verify(whole).verdict, GOOD)
        for name in listed_files(whole):
            for damage in DAMAGES:
                with self.subTest(file=name, damage=damage):
                    self.check(whole, name, damage)

    def test_text_is_what_may_be_edited_and_no_more(self):
        texts = {name for layout in LAYOUTS for name in self.names_of(layout) if is_text(name)}
        self.assertEqual(
            {os.path.basename(name) for name in texts},
            {"README.md", "config.json", "adapter_config.json", "zero_to_fp32.py"},
        )

    def names_of(self, layout: str) -> list[str]:
        return listed_files(make(Path(self.get_auto_remove_tmp_dir()) / "checkpoint-20", 20, layout))


class RealTrainingTest(TestCasePlus):
    """A checkpoint that the Trainer itself has just saved."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.out = Path(folder.name)
        model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=32, n_positions=8))
        data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 8
        args = TrainingArguments(
            str(cls.out), max_steps=2, save_steps=1, per_device_train_batch_size=2, report_to=[], use_cpu=True
        )
        Trainer(model, args, train_dataset=data).train()

    def stock(self) -> Path:
        """The same checkpoint as the Trainer leaves it without this package."""
        path = copy(self.out / "checkpoint-2", Path(self.get_auto_remove_tmp_dir()) / "checkpoint-2")
        for name in os.listdir(path):
            if name == MANIFEST_NAME or FILE_LIST_PATTERN.match(name):
                (path / name).unlink()
        return path

    def test_it_is_good(self):
        for step in (1, 2):
            result = verify(self.out / f"checkpoint-{step}")
            self.assertEqual((result.verdict, result.problems, result.notes), (GOOD, (), ()))
            self.assertEqual(result.head.state, ("model", "optimizer", "scheduler", "rng", "trainer"))
        self.assertEqual(get_last_checkpoint(self.out), str(self.out / "checkpoint-2"))

    def test_every_byte_counts(self):
        whole = self.out / "checkpoint-2"
        for name in listed_files(whole):
            for damage in DAMAGES:
                with self.subTest(file=name, damage=damage):
                    path = copy(whole, Path(self.get_auto_remove_tmp_dir()) / "checkpoint-2")
                    DAMAGES[damage](path / name)
                    result = verify(path)
                    self.assertIn(result.verdict, (DAMAGED, MODIFIED) if is_text(name) else (DAMAGED,))
                    self.assertIn(name, " ".join([*map(str, result.problems), *result.notes]))

    def test_without_manifest_it_is_complete_and_not_verified(self):
        path = self.stock()
        result = verify(path)
        self.assertEqual((result.verdict, result.problems), (UNVERIFIED, ()))
        self.assertEqual(get_last_checkpoint(path.parent), str(path))

    @parameterized.expand(["empty", "truncated", "all zero"])
    def test_without_manifest_torn_files_disqualify(self, damage):
        for name in listed_files(self.stock()):
            with self.subTest(name):
                path = self.stock()
                DAMAGES[damage](path / name)
                self.assertEqual(verify(path).verdict, DAMAGED)
                self.assertIsNone(get_last_checkpoint(path.parent))

    def test_weights_in_several_files(self):
        path = self.stock()
        (path / "model.safetensors").unlink()
        GPT2LMHeadModel(GPT2Config(n_layer=4, n_head=1, n_embd=32)).save_pretrained(path, max_shard_size="1MB")
        shards = sorted(path.glob("model-*-of-*.safetensors"))
        self.assertGreater(len(shards), 1)
        self.assertEqual(verify(path).problems, ())
        shards[1].unlink()
        self.assertEqual(
            [str(problem) for problem in verify(path).problems],
            [f"model.safetensors.index.json names {shards[1].name}, which is missing"],
        )


class VerifyTest(TestCasePlus):
    def setUp(self):
        super().setUp()
        self.out = Path(self.get_auto_remove_tmp_dir())
        self.path = make_sealed(self.out, 20, 1)

    def problems(self, level: str = "full") -> list[str]:
        return [str(problem) for problem in verify(self.path, level).problems]

    def test_the_result(self):
        result = verify(self.path)
        entries = read_entries(self.path, read_head(self.path))
        self.assertEqual((result.path, result.verdict, result.ok), (str(self.path), GOOD, True))
        self.assertEqual(result.size, sum(entry.size for entry in entries.values()))
        self.assertEqual(result.files, len(entries))
        self.assertEqual(result.head, read_head(self.path))

    def test_sizes_only(self):
        DAMAGES["bit flipped"](self.path / "model.safetensors")
        result = verify(self.path, "size")
        self.assertEqual((result.verdict, result.notes), (GOOD, ("only sizes were compared",)))
        self.assertEqual(verify(self.path).verdict, DAMAGED)
        with mock.patch.object(verification, "digest_file", side_effect=AssertionError("reads contents")):
            verify(self.path, "size")

    def test_an_unknown_level(self):
        with self.assertRaisesRegex(ValueError, "'quick'"):
            verify(self.path, "quick")

    def test_several_at_once_are_all_named(self):
        for number in range(200):
            (self.path / f"{number:03}.bin").write_bytes(b"x" * number)
        seal(self.path, 1)
        for number in range(1, 200):
            DAMAGES["bit flipped"](self.path / f"{number:03}.bin")
        DAMAGES["missing"](self.path / "model.safetensors")
        self.assertEqual(
            [problem.file for problem in verify(self.path).problems],
            [*(f"{number:03}.bin" for number in range(1, 200)), "model.safetensors"],
        )

    def test_all_checkpoints_damaged(self):
        make_sealed(self.out, 30, 2)
        for step in (20, 30):
            DAMAGES["truncated"](self.out / f"checkpoint-{step}" / "model.safetensors")
        with self.assertLogs("transformers.trainer_checkpoint.discovery", "ERROR"):
            self.assertIsNone(get_last_checkpoint(self.out))

    def test_digests_of_an_unknown_kind(self):
        seal(self.path, 1, algorithm="xxh3_128")
        with mock.patch.dict(digest.ALGORITHMS):
            digest.ALGORITHMS.pop("xxh3_128", None)
            result = verify(self.path)
        self.assertEqual(result.verdict, UNVERIFIED)
        self.assertIn("'xxh3_128', which cannot be computed here", result.notes[0])

    def test_digests_of_an_unknown_kind_still_compare_sizes(self):
        DAMAGES["truncated"](self.path / "model.safetensors")
        with mock.patch.dict(digest.ALGORITHMS, clear=False):
            for name in set(digest.ALGORITHMS) - {"crc32"}:
                del digest.ALGORITHMS[name]
            self.assertEqual(verify(self.path).verdict, DAMAGED)

    def test_a_manifest_of_a_newer_version_is_no_verdict(self):
        (self.path / MANIFEST_NAME).write_bytes(b'{"format": 2}')
        result = verify(self.path)
        self.assertEqual(result.verdict, UNREADABLE)
        self.assertIn("newer version: update", result.problems[0].reason)

    @parameterized.expand(["../out.bin", "/etc/passwd", "a/../../b", "C:\\x", "a\\b", ""])
    def test_a_manifest_that_leads_outside_is_refused(self, name):
        from dataclasses import replace

        from transformers.trainer_checkpoint.digest import digest_bytes

        head = read_head(self.path)
        listing = self.path / head.files.name
        text = listing.read_text(encoding="utf-8").replace('"config.json"', f'"{name}"'.replace("\\", "\\\\"))
        write_text(listing, text)
        data = text.encode("utf-8")
        record = replace(head.files, size=len(data), digest=digest_bytes(data, head.algorithm))
        (self.path / MANIFEST_NAME).write_bytes(encode_head(replace(head, files=record)))
        result = verify(self.path)
        self.assertEqual(result.verdict, DAMAGED)
        self.assertIn("not a plain path inside the checkpoint", result.problems[0].reason)

    @parameterized.expand(
        [("cannot be read", PermissionError(13, "Permission denied")), ("input", OSError(5, "Input/output error"))]
    )
    def test_a_file_that_cannot_be_read_is_no_damage(self, _, error):
        real = verification.digest_file

        def refuse(path, *args):
            if path.endswith("model.safetensors"):
                raise error
            return real(path, *args)

        with mock.patch.object(verification, "digest_file", refuse):
            result = verify(self.path)
        self.assertEqual(result.verdict, UNREADABLE)
        self.assertEqual(str(result.problems[0]), f"model.safetensors cannot be read ({error.strerror})")
        DAMAGES["missing"](self.path / "config.json")
        with mock.patch.object(verification, "digest_file", refuse):
            self.assertEqual(verify(self.path).verdict, DAMAGED)

    def test_an_interrupted_save(self):
        write_text(self.path / SENTINEL_NAME, "")
        self.assertEqual(self.problems(), [f"{SENTINEL_NAME} is there: the save was interrupted"])

    def test_only_a_model(self):
        (self.path / "trainer_state.json").unlink()
        seal(self.path, 1)
        result = verify(self.path)
        self.assertEqual(result.verdict, GOOD)
        self.assertIn("saved without the state of the Trainer (model only)", result.notes)

    def test_a_copy_under_another_name(self):
        result = verify(copy(self.path, self.out / "checkpoint-30"))
        self.assertEqual(result.notes, ("holds the checkpoint of step 20 under another name",))
        self.assertEqual(verify(copy(self.path, self.out / "backup")).notes, ())

    def test_edited_text_of_the_same_size(self):
        text = (self.path / "config.json").read_text(encoding="utf-8")
        write_text(self.path / "config.json", text.replace("gpt2", "gpt3"))
        result = verify(self.path)
        self.assertEqual((result.verdict, result.notes), (MODIFIED, ("modified after the seal: config.json",)))

    def test_resealed_after_a_change(self):
        save_file({"a": torch.zeros(3)}, self.path / "model.safetensors")
        self.assertEqual(verify(self.path).verdict, DAMAGED)
        seal(self.path, 1)
        self.assertEqual(verify(self.path).verdict, GOOD)

    def test_bad_directories(self):
        with self.assertRaisesRegex(FileNotFoundError, "no such directory"):
            verify(self.out / "nowhere")
        with self.assertRaisesRegex(NotADirectoryError, "a directory is expected"):
            verify(self.path / "config.json")

    def test_an_empty_directory(self):
        (self.out / "empty").mkdir()
        result = verify(self.out / "empty")
        self.assertEqual((result.verdict, str(result.problems[0])), (DAMAGED, "trainer_state.json is missing"))

    def test_progress_counts_every_byte(self):
        counts = []
        verify(self.path, progress=counts.append)
        result = verify(self.path)
        self.assertEqual(sum(counts), result.size)
        self.assertLessEqual(sum(counts), bytes_to_read(self.path))

    def test_a_bar_is_shown_only_when_it_takes_long(self):
        with mock.patch("sys.stderr") as stderr:
            verify(self.path, show_progress=True)
        self.assertEqual([call.args[0] for call in stderr.write.call_args_list if call.args[0].strip()], [])
        with mock.patch.object(verification, "PROGRESS_DELAY", 0.0), mock.patch("sys.stderr") as stderr:
            verify(self.path, show_progress=True)
        self.assertIn("Verifying checkpoint-20", "".join(call.args[0] for call in stderr.write.call_args_list))

    def test_an_error_elsewhere_stops_the_threads(self):
        for number in range(50):
            (self.path / f"{number}.bin").write_bytes(b"x" * 10_000)
        seal(self.path, 1)

        def stop(count: int) -> None:
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            verify(self.path, progress=stop)
        self.assertEqual([t.name for t in threading.enumerate() if t.name.startswith("checkpoint-verify")], [])

    def test_an_interrupt_ends_it_at_once(self):
        with open(self.path / "large.bin", "wb") as file:
            file.truncate(1 << 30)
        head = seal(make_sealed(self.out / "small", 20, 1), 1)
        from transformers.trainer_checkpoint.manifest import FileEntry, write_manifest

        # A digest of zeros need not be computed: it is never compared.
        entries = {**read_entries(self.path, read_head(self.path)), "large.bin": FileEntry(1 << 30, "0")}
        write_manifest(self.path, head, entries, durable=False)
        script = (
            "import itertools, os, signal, sys\n"
            "from transformers.trainer_checkpoint.verification import verify\n"
            "told, calls = [], itertools.count(1)\n"
            "def progress(count):\n"
            "    told.append(count)\n"
            "    if next(calls) == 20: os.kill(os.getpid(), signal.SIGINT)\n"
            "try:\n"
            "    verify(sys.argv[1], progress=progress)\n"
            "except KeyboardInterrupt:\n"
            "    print('interrupted', sum(told) < 1 << 30)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, self.path], capture_output=True, encoding="utf-8", timeout=120
        )
        self.assertEqual((done.stdout, done.returncode), ("interrupted True\n", 0), done.stderr)

    def test_nothing_is_changed(self):
        before = [(name, info.st_size, info.st_mtime_ns) for name, info in walk_files(self.out)]
        verify(self.path)
        self.assertEqual([(name, info.st_size, info.st_mtime_ns) for name, info in walk_files(self.out)], before)


class WhileATrainingSavesTest(TestCasePlus):
    def setUp(self):
        super().setUp()
        self.out = Path(self.get_auto_remove_tmp_dir())

    def test_sealed_again(self):
        path = make_sealed(self.out, 20, 1)
        with meanwhile(verification, "compare", lambda: seal_again(path)):
            result = verify(path)
        self.assertEqual((result.verdict, result.problems, result.head), (GOOD, (), read_head(path)))

    def test_changed_and_sealed_again_while_it_is_read(self):
        path = make_sealed(self.out, 20, 1)

        def change():
            write_json(path / "trainer_state.json", {"global_step": 20, "epoch": 1.0})
            seal_again(path)

        with meanwhile(verification, "_digests", change):
            self.assertEqual(verify(path).problems, ())

    def test_damage_is_read_once(self):
        DAMAGES["bit flipped"](make_sealed(self.out, 20, 1) / "model.safetensors")
        with mock.patch.object(verification, "_digests", wraps=verification._digests) as digests:
            self.assertEqual(verify(self.out / "checkpoint-20").verdict, DAMAGED)
        digests.assert_called_once()

    @parameterized.expand([("sealed", make_sealed, "compare"), ("stock", make_stock, "check_unsealed")])
    def test_rotated_away(self, kind, make_one, look):
        path = make_one(self.out, 20, *([1] if kind == "sealed" else []))
        with meanwhile(verification, look, lambda: rotate(self.out, 20)), self.assertRaises(FileNotFoundError):
            verify(path)

    @parameterized.expand([("sealed", make_sealed), ("stock", make_stock)])
    def test_a_list_while_one_is_rotated_away(self, kind, make_one):
        make_one(self.out, 20, *([1] if kind == "sealed" else []))
        with meanwhile(inspection, "verify", lambda: rotate(self.out, 20, 30)):
            listed = trainer_checkpoint.list_checkpoints(self.out)
        self.assertEqual([(one.name, one.verdict) for one in listed], [("checkpoint-30", GOOD)])

    def test_a_list_looks_at_the_others_once(self):
        for step in (10, 20, 30):
            make_sealed(self.out, step, step)
        with mock.patch.object(inspection, "verify", wraps=inspection.verify) as look:
            with meanwhile(inspection, "verify", lambda: rotate(self.out, 10, 40, sequence=40)):
                listed = trainer_checkpoint.list_checkpoints(self.out)
        self.assertEqual([one.name for one in listed], ["checkpoint-20", "checkpoint-30", "checkpoint-40"])
        self.assertEqual(look.call_count, 4)


class PublicFunctionsTest(TestCasePlus):
    def test_they_are_exported_lazily(self):
        script = (
            "import sys, transformers\n"
            "import transformers.trainer_checkpoint as package\n"
            "before = set(sys.modules)\n"
            "package.list_checkpoints, package.verify_checkpoint\n"
            "print('torch' in sys.modules, any(name.endswith('.inspection') for name in before))\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", timeout=120)
        self.assertEqual(done.stdout, "False False\n", done.stderr)

    def test_every_name_is_there(self):
        package = trainer_checkpoint
        for name in package.__all__:
            self.assertIn(name, dir(package))
            self.assertEqual(getattr(package, name).__name__, name)
        with self.assertRaisesRegex(AttributeError, "no attribute 'nothing'"):
            package.nothing

    def test_list_checkpoints(self):
        out = Path(self.get_auto_remove_tmp_dir())
        make(out / "checkpoint-5", 5, "two ranks")
        make_sealed(out, 20, 1, saw=("checkpoint-5",))
        make_sealed(out, 30, 2)
        write_text(out / "checkpoint-20" / "KEEP", "")
        DAMAGES["missing"](out / "checkpoint-30" / "model.safetensors")
        stock, pinned, damaged = trainer_checkpoint.list_checkpoints(out)
        self.assertEqual((stock.name, stock.step, stock.sequence, stock.sealed), ("checkpoint-5", 5, None, False))
        self.assertEqual((stock.verdict, stock.resumable, stock.world_size), (UNVERIFIED, True, 2))
        self.assertEqual(stock.state, ("model", "optimizer", "scheduler", "rng", "trainer"))
        self.assertEqual(stock.files, len(list(walk_files(out / "checkpoint-5"))))
        self.assertRegex(stock.saved_at, r"^\d{4}-\d\d-\d\dT.*\+00:00$")
        self.assertEqual((pinned.sequence, pinned.pinned, pinned.verdict), (1, True, GOOD))
        self.assertEqual(pinned.saved_at, read_head(out / "checkpoint-20").sealed_at)
        self.assertEqual((damaged.verdict, damaged.resumable), (DAMAGED, False))
        self.assertEqual(damaged.problems, ("model.safetensors is missing",))
        self.assertEqual([one.name for one in find_checkpoints(out)], [stock.name, pinned.name, damaged.name])

    def test_verify_checkpoint(self):
        out = Path(self.get_auto_remove_tmp_dir())
        path = make_sealed(out, 20, 1)
        DAMAGES["bit flipped"](path / "model.safetensors")
        self.assertTrue(trainer_checkpoint.verify_checkpoint(path, quick=True).ok)
        self.assertFalse(trainer_checkpoint.verify_checkpoint(path).ok)
        with self.assertRaisesRegex(ValueError, "a run directory with 1 of them.*checkpoint-20"):
            trainer_checkpoint.verify_checkpoint(out)
        # `trainer.save_model()` and `trainer.save_state()` write into the run directory itself.
        make(out, 20)
        with self.assertRaisesRegex(ValueError, "a run directory with 1 of them.*checkpoint-20"):
            trainer_checkpoint.verify_checkpoint(out)


if __name__ == "__main__":
    unittest.main()
