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
"""One process: what a real training, its callbacks, its subclasses and its logs see of the transaction."""

import copy
import gc
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from parameterized import parameterized

from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.testing_utils import CaptureLogger, LoggingLevel, TestCasePlus
from transformers.trainer_checkpoint.discovery import newest_complete_checkpoint
from transformers.trainer_checkpoint.layout import SENTINEL_NAME
from transformers.trainer_checkpoint.manifest import read_head
from transformers.trainer_checkpoint.verification import verify
from transformers.trainer_utils import HPSearchBackend, get_last_checkpoint, rotate_checkpoints
from transformers.utils import logging


SCRIPTS = Path(__file__).parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from tiny_training import tiny_trainer  # noqa: E402


def checkpoints(out: str) -> list[str]:
    return sorted(name for name in os.listdir(out) if name.startswith("checkpoint-"))


class FailingWrite:
    """`torch.save` that fails for one file name, at the given calls."""

    def __init__(self, name: str, at: tuple[int, ...] = (1,), error: BaseException | None = None):
        self.name, self.at, self.calls = name, at, 0
        self.error = error
        self.real = torch.save

    def __call__(self, value, path, *args, **kwargs):
        if os.path.basename(str(path)) == self.name:
            self.calls += 1
            if self.calls in self.at:
                raise self.error or OSError(28, "No space left on device", str(path))
        return self.real(value, path, *args, **kwargs)


class SeenBySave(TrainerCallback):
    """Notes what a callback sees at `on_save`."""

    def __init__(self):
        self.seen = []

    def on_save(self, args, state, control, **kwargs):
        path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        names = sorted(os.listdir(path)) if os.path.isdir(path) else None
        self.seen.append((state.global_step, names, state.best_model_checkpoint))


def _is_link(descriptor: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{descriptor}")


class TrainerTestCase(TestCasePlus):
    def setUp(self):
        super().setUp()
        self.out = self.get_auto_remove_tmp_dir()

    def path(self, *names: str) -> str:
        return os.path.join(self.out, *names)

    def assert_good(self, *names: str) -> None:
        for name in names:
            self.assertEqual(verify(self.path(name), level="full").problems, (), name)
        self.assertFalse(os.path.exists(self.path("_staging")))


class TrainingTest(TrainerTestCase):
    def test_a_training_leaves_sealed_checkpoints(self):
        # edit: import-transactional-checkpoints, trainer-is-transactional, write-into-staging
        tiny_trainer(self.out).train()
        self.assertEqual(checkpoints(self.out), ["checkpoint-2", "checkpoint-4", "checkpoint-6"])
        self.assert_good("checkpoint-2", "checkpoint-4", "checkpoint-6")
        self.assertEqual([read_head(self.path(n)).sequence for n in checkpoints(self.out)], [1, 2, 3])
        self.assertEqual(
            set(read_head(self.path("checkpoint-6")).state), {"model", "optimizer", "scheduler", "rng", "trainer"}
        )

    def test_every_writer_leaves_the_mode_of_a_plain_open(self):
        before = os.umask(0o022)
        try:
            tiny_trainer(self.out, max_steps=2).train()
        finally:
            os.umask(before)
        for name in os.listdir(self.path("checkpoint-2")):
            mode = stat.S_IMODE(os.stat(self.path("checkpoint-2", name)).st_mode)
            self.assertEqual(mode, 0o644, name)

    def test_save_only_model_is_sealed_and_not_resumable(self):
        tiny_trainer(self.out, max_steps=2, save_only_model=True).train()
        self.assert_good("checkpoint-2")
        self.assertEqual(set(read_head(self.path("checkpoint-2")).state), {"model", "trainer"})

    def test_a_single_process_touches_nothing_of_torch_distributed(self):
        with mock.patch.object(torch.distributed, "barrier", side_effect=AssertionError("a barrier")):
            trainer = tiny_trainer(self.out, max_steps=2)
            trainer.train()
        self.assertTrue(trainer._safe_checkpoints.ranks().alone)
        self.assert_good("checkpoint-2")

    def test_two_trainings_in_one_process(self):
        tiny_trainer(self.out).train()
        tiny_trainer(self.out).train()
        self.assert_good("checkpoint-2", "checkpoint-4", "checkpoint-6")
        self.assertEqual([read_head(self.path(n)).sequence for n in checkpoints(self.out)], [4, 5, 6])
        self.assertEqual(get_last_checkpoint(self.out), self.path("checkpoint-6"))

    def test_the_last_step_is_saved_again_at_the_end_of_the_epoch(self):
        tiny_trainer(self.out, max_steps=-1, num_train_epochs=1, save_steps=3).train()
        self.assertEqual(checkpoints(self.out), ["checkpoint-3", "checkpoint-6"])
        self.assert_good("checkpoint-3", "checkpoint-6")


class FinalPathsTest(TrainerTestCase):
    def test_log_lines(self):
        # edit: write-into-staging
        logger = logging.get_logger("transformers")
        with LoggingLevel(logging.INFO), CaptureLogger(logger) as captured:
            tiny_trainer(self.out, max_steps=2).train()
        self.assertNotIn("_staging", captured.out)
        lines = captured.out.splitlines()
        first = next(i for i, line in enumerate(lines) if self.path("checkpoint-2") in line)
        self.assertEqual(lines[first], f"Saving checkpoint to {self.path('checkpoint-2')}")
        self.assertIn(f"Saving model checkpoint to {self.path('checkpoint-2')}", lines)
        last = [line for line in lines if self.path("checkpoint-2") in line][-1]
        self.assertRegex(
            last, rf"^Checkpoint saved to {re.escape(self.path('checkpoint-2'))} \([\d.]+ kB in \d+ files, [\d.]+ s\)$"
        )

    def test_callbacks_see_the_final_path_and_a_sealed_directory(self):
        # edit: on-save-after-publish
        callback = SeenBySave()
        tiny_trainer(self.out, max_steps=4, callbacks=[callback]).train()
        self.assertEqual([step for step, _, _ in callback.seen], [2, 4])
        for _, names, _ in callback.seen:
            self.assertIn("checkpoint-manifest.json", names)
            self.assertIn("trainer_state.json", names)

    def test_the_best_path_is_the_final_one(self):
        # edit: record-best-checkpoint
        callback = SeenBySave()
        trainer = tiny_trainer(
            self.out,
            max_steps=4,
            eval_strategy="steps",
            eval_steps=2,
            metric_for_best_model="loss",
            greater_is_better=False,
            load_best_model_at_end=True,
            callbacks=[callback],
        )
        trainer.train()
        best = self.path("checkpoint-4")
        self.assertEqual(trainer.state.best_model_checkpoint, best)
        self.assertEqual([best_path for _, _, best_path in callback.seen], [self.path("checkpoint-2"), best])
        state = json.loads(Path(best, "trainer_state.json").read_text(encoding="utf-8"))
        self.assertEqual(state["best_model_checkpoint"], best)

    def test_a_best_checkpoint_that_is_gone_is_not_recorded(self):
        trainer = tiny_trainer(self.out, max_steps=2)
        trainer.train()
        trainer.state.best_global_step = 1
        trainer._save_checkpoint(trainer.model, trial=None)
        self.assertIsNone(trainer.state.best_model_checkpoint)

    def test_the_push_comes_after_the_publish(self):
        # edit: push-after-publish
        uploads = []

        def upload_folder(**kwargs):
            folder = kwargs["folder_path"]
            uploads.append((folder, kwargs.get("path_in_repo"), sorted(os.listdir(folder))))
            return SimpleNamespace(is_done=lambda: True, done=lambda: True, result=lambda: None)

        api = SimpleNamespace(
            upload_folder=upload_folder, create_repo=lambda *a, **k: SimpleNamespace(repo_id="somebody/tiny")
        )
        with mock.patch("transformers.trainer.hf_api", lambda: api):
            tiny_trainer(self.out, max_steps=2, push_to_hub=True, hub_strategy="all_checkpoints").train()
        (model, checkpoint) = uploads
        self.assertEqual(model[0], self.out)
        self.assertNotIn("_staging", [n for n in model[2] if n != "_staging"])
        self.assertEqual(checkpoint[:2], (self.path("checkpoint-2"), "checkpoint-2"))
        self.assertIn("checkpoint-manifest.json", checkpoint[2])

    def test_the_directory_of_a_trial(self):
        trainer = tiny_trainer(self.out, max_steps=2)
        trainer.train()
        trainer.hp_search_backend, trainer.hp_name = HPSearchBackend.OPTUNA, None
        trial = SimpleNamespace(number=3)
        trainer._save_checkpoint(trainer.model, trial)
        self.assertEqual(os.listdir(self.path("run-3")), ["checkpoint-2"])
        self.assert_good(os.path.join("run-3", "checkpoint-2"))
        self.assertEqual(trainer._get_output_dir(trial), self.path("run-3"))

    @parameterized.expand(["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"])
    def test_the_error_names_the_final_path(self, name):
        with mock.patch.object(torch, "save", FailingWrite(name)):
            with self.assertRaises(OSError) as caught:
                tiny_trainer(self.out, max_steps=2).train()
        text = str(caught.exception) + " ".join(caught.exception.__notes__)
        self.assertNotIn("_staging", text)
        self.assertIn(self.path("checkpoint-2", name), text)
        self.assertEqual(caught.exception.errno, 28)
        self.assertEqual(checkpoints(self.out), [])


class SubclassTest(TrainerTestCase):
    def test_what_is_written_before_and_after_super_is_inside(self):
        class Writing(Trainer):
            def _save_checkpoint(self, model, trial):
                path = os.path.join(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
                os.makedirs(path, exist_ok=True)
                Path(path, "before.txt").write_text(path, encoding="utf-8")
                super()._save_checkpoint(model, trial)
                Path(path, "after.txt").write_text("after", encoding="utf-8")

        tiny_trainer(self.out, cls=Writing, max_steps=2).train()
        self.assert_good("checkpoint-2")
        self.assertEqual(Path(self.path("checkpoint-2", "after.txt")).read_text(encoding="utf-8"), "after")
        self.assertIn("_staging", Path(self.path("checkpoint-2", "before.txt")).read_text(encoding="utf-8"))

    def test_attributes_and_files_of_its_own(self):
        """Neither an attribute that sounds like ours nor a file that holds nothing is any of our business."""

        class Keeping(Trainer):
            def __init__(self, *args, **kwargs):
                self._checkpoints = []
                super().__init__(*args, **kwargs)

            def _save_checkpoint(self, model, trial):
                path = os.path.join(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
                os.makedirs(path, exist_ok=True)
                Path(path, "notes.json").touch()
                super()._save_checkpoint(model, trial)
                self._checkpoints.append(self.state.global_step)

        trainer = tiny_trainer(self.out, cls=Keeping, max_steps=2)
        trainer.train()
        self.assertEqual(trainer._checkpoints, [2])
        self.assert_good("checkpoint-2")
        self.assertEqual(os.path.getsize(self.path("checkpoint-2", "notes.json")), 0)

    def test_an_override_in_a_mix_in_beside_the_trainer(self):
        class MixIn:
            def _save_checkpoint(self, model, trial):
                super()._save_checkpoint(model, trial)
                raise ValueError("after everything was written")

        class Mixed(MixIn, Trainer):
            pass

        with self.assertRaisesRegex(ValueError, "after everything"):
            tiny_trainer(self.out, cls=Mixed, max_steps=2).train()
        self.assertEqual(checkpoints(self.out), [])

    def test_an_override_that_saves_nothing(self):
        class Sparing(Trainer):
            def _save_checkpoint(self, model, trial):
                if self.state.global_step == 4:
                    super()._save_checkpoint(model, trial)

        callback = SeenBySave()
        tiny_trainer(self.out, cls=Sparing, callbacks=[callback]).train()
        self.assertEqual(checkpoints(self.out), ["checkpoint-4"])
        self.assertEqual([step for step, _, _ in callback.seen], [2, 4, 6])

    def test_an_override_that_saves_only_a_projector(self):
        class Projector(Trainer):
            def _save_checkpoint(self, model, trial):
                path = os.path.join(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
                os.makedirs(path, exist_ok=True)
                torch.save({"w": torch.zeros(2)}, os.path.join(path, "mm_projector.bin"))

        tiny_trainer(self.out, cls=Projector, max_steps=2).train()
        self.assert_good("checkpoint-2")
        head = read_head(self.path("checkpoint-2"))
        self.assertFalse(head.resumable)

    def test_an_overridden_output_dir_is_saved_in_place(self):
        class Elsewhere(Trainer):
            def _get_output_dir(self, trial):
                return os.path.join(self.args.output_dir, "mine")

        tiny_trainer(self.out, cls=Elsewhere, max_steps=2).train()
        self.assertEqual(os.listdir(self.out), ["mine"])
        self.assert_good(os.path.join("mine", "checkpoint-2"))
        self.assertFalse(os.path.exists(self.path("mine", "checkpoint-2", SENTINEL_NAME)))

    def test_a_direct_call(self):
        trainer = tiny_trainer(self.out, max_steps=2, save_strategy="no")
        trainer.train()
        trainer._save_checkpoint(trainer.model, trial=None)
        self.assert_good("checkpoint-2")

    def test_the_signature_and_the_name_of_the_methods_stay(self):
        import inspect

        self.assertEqual(list(inspect.signature(Trainer._save_checkpoint).parameters), ["self", "model", "trial"])
        self.assertEqual(Trainer._save_checkpoint.__name__, "_save_checkpoint")

    def test_the_redirection_ends_with_the_save(self):
        class Asking(Trainer):
            def _save_checkpoint(self, model, trial):
                super()._save_checkpoint(model, trial)
                asked.append(self._get_output_dir(trial))

        asked = []
        trainer = tiny_trainer(self.out, cls=Asking, max_steps=2)
        trainer.train()
        self.assertEqual(asked, [self.path("_staging")])
        self.assertEqual(trainer._get_output_dir(None), self.out)

    def test_a_callback_that_rewrites_the_checkpoint(self):
        # edit: on-save-after-publish
        class Adapter(TrainerCallback):
            """The recipe of many adapter trainings: drop the full weights, save the small ones."""

            def on_save(self, args, state, control, **kwargs):
                path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
                os.unlink(os.path.join(path, "model.safetensors"))
                os.makedirs(os.path.join(path, "adapter"))
                torch.save({"a": torch.ones(1)}, os.path.join(path, "adapter", "adapter_model.bin"))

        tiny_trainer(self.out, max_steps=2, callbacks=[Adapter()]).train()
        self.assert_good("checkpoint-2")
        self.assertEqual(read_head(self.path("checkpoint-2")).sealing, 2)


class CallbackTest(TrainerTestCase):
    """What `on_save` callbacks do to the checkpoint that was just announced."""

    def train_with(self, change, **arguments) -> None:
        class Changing(TrainerCallback):
            def on_save(self, args, state, control, **kwargs):
                change(os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))

        tiny_trainer(self.out, max_steps=4, callbacks=[Changing()], **arguments).train()

    @parameterized.expand(["full", "process"])
    def test_moved_away_or_deleted(self, durability):
        self.train_with(lambda path: os.rename(path, path + "-uploaded"), save_durability=durability)
        self.assertEqual(checkpoints(self.out), ["checkpoint-2-uploaded", "checkpoint-4-uploaded"])
        self.train_with(shutil.rmtree, save_durability=durability)
        self.assertEqual(checkpoints(self.out), ["checkpoint-2-uploaded", "checkpoint-4-uploaded"])

    def test_replaced_by_a_file(self):
        def replace(path: str) -> None:
            shutil.rmtree(path)
            Path(path).touch()

        self.train_with(replace)
        self.assertTrue(os.path.isfile(self.path("checkpoint-4")))

    def test_half_written_and_failed(self):
        def cut(path: str) -> None:
            if path.endswith("-4"):
                os.truncate(os.path.join(path, "model.safetensors"), 500)
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.train_with(cut)
        self.assertEqual(get_last_checkpoint(self.out), self.path("checkpoint-2"))

    def test_an_error_of_a_callback_is_its_own(self):
        def fail(path: str) -> None:
            shutil.rmtree(path)
            raise ValueError("of the callback")

        with self.assertRaisesRegex(ValueError, "of the callback"):
            self.train_with(fail)

    def test_a_link_out_of_the_checkpoint_is_said(self):
        logger = logging.get_logger("transformers.trainer_checkpoint.sealing")
        with CaptureLogger(logger) as captured:
            self.train_with(lambda path: os.symlink("/etc/hostname", os.path.join(path, "host.txt")))
        self.assertIn("host.txt is a link that leads out of the checkpoint", captured.out)


class CopiedTrainerTest(TrainerTestCase):
    @parameterized.expand([("copy", copy.copy), ("deepcopy", copy.deepcopy)])
    def test_a_copy_saves_in_transactions_of_its_own(self, _, make):
        trainer = tiny_trainer(self.out, max_steps=2, save_durability="process")
        trainer.train()
        other = make(trainer)
        other.state = copy.deepcopy(trainer.state)
        other.state.global_step = 3
        other._save_checkpoint(other.model, trial=None)
        self.assert_good("checkpoint-2", "checkpoint-3")
        self.assertIsNotNone(read_head(self.path("checkpoint-3")))


class FailingTest(TrainerTestCase):
    def test_a_failed_write_keeps_no_space(self):
        class Writing:
            real = torch.save

            def __call__(self, value, path, *args, **kwargs):
                if os.path.basename(str(path)) == "optimizer.pt":
                    file = open(path, "wb")  # noqa: SIM115
                    file.write(b"0" * 10000)
                    raise OSError(28, "No space left on device", str(path))
                return Writing.real(value, path, *args, **kwargs)

        trainer = tiny_trainer(self.out, max_steps=2, on_save_error="warn", save_strategy="no")
        trainer.train()
        trainer.state.max_steps, trainer.control.should_training_stop = 9, False
        gc.disable()
        try:
            with mock.patch.object(torch, "save", Writing()):
                trainer._save_checkpoint(trainer.model, trial=None)
            open_files = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)]
        finally:
            gc.enable()
        self.assertEqual([path for path in open_files if path.startswith(self.out) and "optimizer" in path], [])

    def test_the_state_is_put_back_and_the_next_save_works(self):
        trainer = tiny_trainer(self.out, max_steps=2)
        trainer.train()
        before = (trainer.state.best_model_checkpoint, trainer.state.total_flos, trainer.current_flos)
        trainer.state.global_step = 3
        trainer.state.best_global_step = 3
        trainer.current_flos = 12.0
        with mock.patch.object(torch, "save", FailingWrite("optimizer.pt")), self.assertRaises(OSError):
            trainer._save_checkpoint(trainer.model, trial=None)
        self.assertEqual((trainer.state.best_model_checkpoint, trainer.state.total_flos), before[:2])
        self.assertEqual(trainer.current_flos, 12.0)
        self.assertEqual(checkpoints(self.out), ["checkpoint-2"])
        trainer._save_checkpoint(trainer.model, trial=None)
        self.assert_good("checkpoint-2", "checkpoint-3")

    def test_warn_goes_on_without_that_checkpoint(self):
        callback = SeenBySave()
        logger = logging.get_logger("transformers.trainer_checkpoint.trainer_glue")
        with (
            mock.patch.object(torch, "save", FailingWrite("optimizer.pt", at=(2,))),
            CaptureLogger(logger) as captured,
        ):
            trainer = tiny_trainer(self.out, on_save_error="warn", callbacks=[callback])
            trainer.train()
        self.assertEqual(checkpoints(self.out), ["checkpoint-2", "checkpoint-6"])
        self.assertEqual([step for step, _, _ in callback.seen], [2, 6])
        self.assertIn(f"Checkpoint {self.path('checkpoint-4')} was not saved: rank 0: ", captured.out)
        self.assertIn("No space left on device", captured.out)
        self.assertIn(f"The newest good checkpoint is still {self.path('checkpoint-2')}.", captured.out)
        self.assertNotIn("_staging", captured.out)
        self.assertEqual(trainer.state.global_step, 6)

    def test_warn_goes_on_when_a_save_cannot_be_opened(self):
        from transformers.trainer_checkpoint.transaction import RunDirectory

        prepare, calls = RunDirectory.prepare, []

        def fail_once(directory, nonce, **options):
            calls.append(nonce)
            if len(calls) == 2:
                raise OSError(5, "Input/output error", directory.path)
            return prepare(directory, nonce, **options)

        with mock.patch.object(RunDirectory, "prepare", fail_once):
            trainer = tiny_trainer(self.out, on_save_error="warn")
            trainer.train()
        self.assertEqual(trainer.state.global_step, 6)
        self.assertEqual(checkpoints(self.out), ["checkpoint-2", "checkpoint-6"])

    def test_warn_does_not_cover_the_last_save(self):
        with mock.patch.object(torch, "save", FailingWrite("optimizer.pt", at=(3,))), self.assertRaises(OSError):
            tiny_trainer(self.out, on_save_error="warn").train()
        self.assertEqual(checkpoints(self.out), ["checkpoint-2", "checkpoint-4"])

    def test_an_error_that_is_no_exception(self):
        class CheckpointLikeError(BaseException):
            pass

        with mock.patch.object(torch, "save", FailingWrite("optimizer.pt", error=CheckpointLikeError("from DCP"))):
            with self.assertRaisesRegex(CheckpointLikeError, "from DCP"):
                tiny_trainer(self.out, max_steps=2).train()
        self.assertEqual(checkpoints(self.out), [])

    @parameterized.expand([("keyboard", KeyboardInterrupt()), ("exit", SystemExit(3))])
    def test_an_interruption_goes_through(self, _, stop):
        with mock.patch.object(torch, "save", FailingWrite("scheduler.pt", error=stop)):
            with self.assertRaises(type(stop)):
                tiny_trainer(self.out, max_steps=2).train()
        self.assertEqual(checkpoints(self.out), [])
        self.assertFalse(os.path.exists(self.path("_staging", "checkpoint-2")))
        tiny_trainer(self.out, max_steps=2).train()
        self.assert_good("checkpoint-2")

    def test_the_trainer_state_cannot_be_written(self):
        # edit: keep-trainer-state-error
        from transformers import TrainerState

        with mock.patch.object(TrainerState, "save_to_json", side_effect=OSError(5, "Input/output error")):
            with self.assertRaises(OSError):
                tiny_trainer(self.out, max_steps=2).train()
        self.assertEqual(checkpoints(self.out), [])

    def test_rotation_waits_for_the_publish(self):
        # edit: rotate-after-publish
        with mock.patch.object(torch, "save", FailingWrite("rng_state.pth", at=(2,))), self.assertRaises(OSError):
            tiny_trainer(self.out, save_total_limit=1).train()
        self.assertEqual(checkpoints(self.out), ["checkpoint-2"])
        tiny_trainer(self.out, save_total_limit=1).train()
        self.assertEqual(checkpoints(self.out), ["checkpoint-6"])


class EndOfTrainingTest(TrainerTestCase):
    ARGUMENTS = {
        "max_steps": 6,
        "save_total_limit": 1,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "metric_for_best_model": "loss",
        # The loss falls: the first checkpoint is the best one.
        "greater_is_better": True,
    }

    def test_a_limit_of_one_with_a_metric_keeps_the_final_state(self):
        # edit: clean-up-at-end
        trainer = tiny_trainer(self.out, **self.ARGUMENTS)
        trainer.train()
        self.assertIn("checkpoint-6", checkpoints(self.out))
        self.assertIn(os.path.basename(trainer.state.best_model_checkpoint), checkpoints(self.out))
        self.assert_good(*checkpoints(self.out))

    def test_the_best_one_alone_where_both_arguments_ask_for_it(self):
        # edit: clean-up-at-end
        trainer = tiny_trainer(self.out, load_best_model_at_end=True, **self.ARGUMENTS)
        trainer.train()
        self.assertEqual(checkpoints(self.out), [os.path.basename(trainer.state.best_model_checkpoint)])
        self.assert_good(*checkpoints(self.out))

    def test_rotating_by_hand(self):
        # edit: rotate-checkpoints
        tiny_trainer(self.out).train()
        rotate_checkpoints(self.out, save_total_limit=2, use_mtime=True)
        self.assertEqual(checkpoints(self.out), ["checkpoint-4", "checkpoint-6"])


class ArgumentsTest(TrainerTestCase):
    @parameterized.expand(["s3://bucket/run", "gs://bucket/run", "hdfs://host/run", "file:///tmp/run"])
    def test_addresses_are_refused(self, address):
        # edit: check-checkpoint-arguments
        with self.assertRaisesRegex(ValueError, f"output_dir.*{re.escape(address)}.*address"):
            TrainingArguments(output_dir=address)

    @parameterized.expand(
        [
            ("save_durability", "most"),
            ("on_save_error", "ignore"),
            ("resume_verify", True),
            ("save_patience", 0),
            ("save_patience", "ten"),
            ("save_patience", None),
            ("save_patience", float("inf")),
            ("save_keep_every_n_steps", 0),
        ]
    )
    def test_what_cannot_be_meant_is_refused(self, name, value):
        # edit: check-checkpoint-arguments, checkpoint-arguments
        with self.assertRaisesRegex(ValueError, f"`{name}` is {value!r}"):
            TrainingArguments(output_dir=self.out, **{name: value})


class KilledTrainingTest(TrainerTestCase):
    """A sample of kill points through whole trainings; all of them are in `test_campaigns.py`."""

    def train(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
        command = [sys.executable, str(SCRIPTS / "tiny_training.py"), "--output_dir", self.out, "--use_cpu", "True"]
        command += "--max_steps 6 --save_steps 2 --logging_steps 1 --per_device_train_batch_size 4".split()
        command += "--learning_rate 1e-2 --report_to none --disable_tqdm True --seed 3 --dropout 0.1".split()
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300)
        if check:
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return done

    @pytest.mark.slow
    def test_killed_in_a_save_and_resumed(self):
        elsewhere = self.get_auto_remove_tmp_dir()
        count, whole, resumed = (os.path.join(elsewhere, name) for name in ("count", "whole", "resumed"))
        self.train("--count", count, "--losses", whole)
        operations = json.loads(Path(count).read_text(encoding="utf-8"))
        second = [i for i, text in enumerate(operations, 1) if "checkpoint-4" in text]
        expected = json.loads(Path(whole).read_text(encoding="utf-8"))
        for at in (second[2], second[len(second) // 2], second[-4], second[-1]):
            for name in os.listdir(self.out):
                subprocess.run(["rm", "-rf", self.path(name)], check=True)
            killed = self.train("--kill", str(at), check=False)
            self.assertEqual(killed.returncode, -signal.SIGKILL, killed.stderr[-3000:])
            newest = newest_complete_checkpoint(self.out)
            self.assertIn(newest, (self.path("checkpoint-2"), self.path("checkpoint-4")), operations[at - 1])
            self.assert_complete(newest)
            self.train("--resume_from_checkpoint", "True", "--losses", resumed)
            self.assertEqual(json.loads(Path(resumed).read_text(encoding="utf-8")), expected, operations[at - 1])
            self.assert_good("checkpoint-2", "checkpoint-4", "checkpoint-6")

    def assert_complete(self, path: str) -> None:
        self.assertEqual(verify(path, level="full").problems, ())


if __name__ == "__main__":
    unittest.main()
