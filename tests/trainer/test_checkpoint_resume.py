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
"""Resuming in one process: real trainings of a tiny model, interrupted and damaged."""

import contextlib
import json
import logging as python_logging
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from parameterized import parameterized
from safetensors.torch import load_file, save_file

from transformers import Trainer, TrainerCallback
from transformers.testing_utils import TestCasePlus
from transformers.trainer_checkpoint import resume
from transformers.trainer_checkpoint.errors import CheckpointOwnedError, CheckpointResumeError
from transformers.trainer_checkpoint.manifest import read_head


SCRIPTS = Path(__file__).parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from resume_cases import (  # noqa: E402
    DAMAGES,
    FILE_LIST,
    LAST_STEP,
    MANIFEST,
    RUN,
    SCHEDULES,
    STEPS,
    interrupt,
    is_json,
    remove_manifests,
)
from tiny_training import Tokens, losses, tiny_model, tiny_trainer  # noqa: E402


FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
    "training_args.bin",
    FILE_LIST,
    MANIFEST,
)
# Text that people correct: it counts as damaged only if it does not read well any more.
TEXT = ("config.json", "generation_config.json")
# What resuming does not read: damage to it is no obstacle to a path.
UNREAD = (*TEXT, "training_args.bin")


class Steps(TrainerCallback):
    """The steps that were trained, and the weights before the first of them."""

    def __init__(self):
        self.trained: list[int] = []
        self.events: list[str] = []
        self.weights: list[dict] = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.events.append("begin")
        self.weights.append({name: weight.clone() for name, weight in model.state_dict().items()})

    def on_step_end(self, args, state, control, **kwargs):
        self.trained.append(state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        self.events.append("end")


class Heard(python_logging.Handler):
    def __init__(self):
        super().__init__(python_logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@contextlib.contextmanager
def hearing():
    """The warnings and errors of the library."""
    handler, logger = Heard(), python_logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        yield handler.texts
    finally:
        logger.removeHandler(handler)


def tree(path: str) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in Path(path).rglob("*") if file.is_file()}


class ResumeTestCase(TestCasePlus):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.source = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.source, ignore_errors=True)
        cls.reference = {}
        for schedule in SCHEDULES:
            run_dir = os.path.join(cls.source, schedule)
            trainer = tiny_trainer(run_dir, **RUN, lr_scheduler_type=schedule)
            trainer.train()
            cls.reference[schedule] = losses(trainer)
            interrupt(run_dir)

    def setUp(self):
        super().setUp()
        self.out = os.path.join(self.get_auto_remove_tmp_dir(), "out")

    def a_run(self, schedule: str = "linear", manifests: bool = True) -> str:
        """A run directory with the checkpoints 3, 6 and 9 of a run of 10 steps."""
        shutil.copytree(os.path.join(self.source, schedule), self.out)
        if not manifests:
            remove_manifests(self.out)
        return self.out

    def path(self, *names: str) -> str:
        return os.path.join(self.out, *names)

    def damage(self, step: int, file: str, damage: str) -> None:
        DAMAGES[damage](self.path(f"checkpoint-{step}", file))

    def a_trainer(self, cls: type[Trainer] = Trainer, **arguments) -> Trainer:
        self.steps = Steps()
        arguments = {**RUN, "save_strategy": "no", **arguments}
        return tiny_trainer(self.out, cls=cls, callbacks=[self.steps], **arguments)

    def resume(self, request=True, **arguments) -> Trainer:
        trainer = self.a_trainer(**arguments)
        with hearing() as self.heard:
            trainer.train(resume_from_checkpoint=request)
        return trainer

    def assert_resumed(self, step: int, request=True, schedule: str = "linear", **arguments) -> str:
        """Resuming goes on from `step`, bit for bit. Returns the warnings."""
        trainer = self.resume(request, lr_scheduler_type=schedule, **arguments)
        self.assertEqual(self.steps.trained, list(range(step + 1, LAST_STEP + 1)))
        self.assertEqual(losses(trainer), self.reference[schedule])
        return "\n".join(self.heard)

    def assert_refused(self, request=True, *parts: str, **arguments) -> str:
        """Resuming raises, and names all of `parts`; nothing was trained, and nothing changed on disk."""
        before = tree(self.out) if os.path.isdir(self.out) else None
        with self.assertRaises(CheckpointResumeError) as caught:
            self.resume(request, **arguments)
        self.assertIsInstance(caught.exception, ValueError)
        self.assertEqual(self.steps.events, [])
        for part in parts:
            self.assertIn(part, str(caught.exception))
        self.assertEqual(tree(self.out) if os.path.isdir(self.out) else None, before)
        return str(caught.exception)


class BitExactTest(ResumeTestCase):
    @parameterized.expand([(step, schedule) for step in STEPS for schedule in SCHEDULES])
    def test_resuming(self, step, schedule):
        self.a_run(schedule)
        warnings = self.assert_resumed(step, self.path(f"checkpoint-{step}"), schedule)
        self.assertEqual(warnings, "")

    @parameterized.expand(SCHEDULES)
    def test_after_a_fallback(self, schedule):
        self.a_run(schedule)
        self.damage(9, "optimizer.pt", "flipped")
        self.damage(6, "model.safetensors", "truncated")
        warnings = self.assert_resumed(3, True, schedule)
        self.assertEqual(len(self.heard), 1)
        for part in ("checkpoint-9: optimizer.pt", "checkpoint-6: model.safetensors", self.path("checkpoint-3")):
            self.assertIn(part, warnings)

    @parameterized.expand(
        [
            ("path_like", lambda path: Path(path)),
            ("relative", lambda path: os.path.relpath(path)),
            ("slash", lambda path: path + os.sep),
            ("dots", lambda path: os.path.join(path, "..", "checkpoint-6")),
        ]
    )
    def test_a_path_in_any_form(self, _, form):
        self.a_run()
        self.assert_resumed(6, form(self.path("checkpoint-6")))

    def test_a_checkpoint_of_another_run_directory(self):
        self.a_run()
        elsewhere = os.path.join(self.get_auto_remove_tmp_dir(), "elsewhere")
        os.rename(self.out, elsewhere)
        before = tree(elsewhere)
        self.assert_resumed(6, os.path.join(elsewhere, "checkpoint-6"))
        self.assertEqual(tree(elsewhere), before)

    def test_training_goes_on_saving(self):
        self.a_run()
        self.damage(9, "model.safetensors", "empty")
        self.assert_resumed(6, save_strategy="steps")
        self.assertEqual(
            sorted(name for name in os.listdir(self.out) if name.startswith("checkpoint")),
            ["checkpoint-10", "checkpoint-3", "checkpoint-6", "checkpoint-9"],
        )
        self.assertEqual(read_head(self.path("checkpoint-9")).step, 9)
        self.assert_resumed(9, self.path("checkpoint-9"))


class DamageTest(ResumeTestCase):
    def is_fine(self, file: str) -> bool:
        """Whether a damage to `file` is none: a text that still reads well, or no manifest at all."""
        path = self.path("checkpoint-9", file)
        return (file in TEXT and os.path.exists(path) and is_json(path)) or (
            file == MANIFEST and not os.path.exists(path)
        )

    @parameterized.expand([(file, damage) for file in FILES for damage in DAMAGES])
    def test_true_passes_it_over(self, file, damage):
        # edit: choose-checkpoint
        self.a_run()
        self.damage(9, file, damage)
        if self.is_fine(file):
            self.assert_resumed(9)
        else:
            self.assertIn(f"checkpoint-9: {file} ", self.assert_resumed(6))

    @parameterized.expand([(file, damage) for file in FILES for damage in DAMAGES])
    def test_a_path_is_refused(self, file, damage):
        self.a_run()
        self.damage(9, file, damage)
        path = self.path("checkpoint-9")
        # The Trainer looks into the configuration if there is one.
        read = file not in UNREAD or (file == "config.json" and damage != "missing")
        if self.is_fine(file) or not read:
            warnings = self.assert_resumed(9, path)
            self.assertTrue(file == MANIFEST or file in warnings, warnings)
        else:
            self.assert_refused(path, "Can't find a valid checkpoint at", path, file, self.path("checkpoint-6"))

    def test_all_damaged(self):
        self.a_run()
        self.damage(9, "model.safetensors", "flipped")
        self.damage(6, "optimizer.pt", "missing")
        self.damage(3, "trainer_state.json", "truncated")
        self.assert_refused(
            True,
            "No valid checkpoint found in output directory",
            self.out,
            "checkpoint-9: model.safetensors",
            "checkpoint-6: optimizer.pt",
            "checkpoint-3: trainer_state.json",
            "transformers checkpoints explain",
        )

    def test_only_something_unread_is_gone_from_the_only_one(self):
        self.a_run()
        for step in (3, 6):
            shutil.rmtree(self.path(f"checkpoint-{step}"))
        self.damage(9, "config.json", "missing")
        text = self.assert_refused(True, "checkpoint-9: config.json is missing")
        self.assertIn(f"{self.path('checkpoint-9')} is nothing that resuming reads", text)
        self.assert_resumed(9, self.path("checkpoint-9"))

    # Nothing to compare with: what contradicts itself is found, a flipped bit in a weight is not.
    @parameterized.expand(
        [
            (file, damage)
            for file in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
            for damage in ("missing", "empty", "truncated")
            if (file, damage) != ("rng_state.pth", "missing")
        ]
        + [("optimizer.pt", "flipped"), ("rng_state.pth", "flipped"), ("scheduler.pt", "zeroed")]
    )
    def test_without_manifests(self, file, damage):
        self.a_run(manifests=False)
        self.damage(9, file, damage)
        self.assertIn("checkpoint-9: ", self.assert_resumed(6))
        with self.assertRaises(ValueError) as caught:
            self.resume(self.path("checkpoint-9"))
        self.assertIn("Can't find a valid checkpoint at", str(caught.exception))
        self.assertEqual(self.steps.events, [])

    def test_an_interrupted_save_of_another_version(self):
        self.a_run(manifests=False)
        Path(self.path("checkpoint-9", "checkpoint-is-incomplete.txt")).touch()
        self.assertIn("checkpoint-is-incomplete.txt", self.assert_resumed(6))

    def test_level_size_compares_sizes_only(self):
        self.a_run()
        self.damage(9, "optimizer.pt", "truncated")
        self.damage(6, "generation_config.json", "missing")
        self.assert_resumed(3, resume_verify="size")
        shutil.rmtree(self.out)
        self.a_run()
        with open(self.path("checkpoint-9", "model.safetensors"), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))
        self.resume(resume_verify="size")
        self.assertEqual(self.steps.trained, [10])

    def test_level_off_takes_it_as_it_is(self):
        self.a_run()
        self.damage(9, "optimizer.pt", "missing")
        self.resume(resume_verify="off")
        self.assertEqual(self.steps.trained, [10])
        self.assertIn("no optimizer state", "\n".join(self.heard))
        self.damage(9, "trainer_state.json", "truncated")
        self.assertIn("trainer_state.json", self.assert_resumed(6, resume_verify="off"))

    def test_nothing_is_unpickled_before_it_is_verified(self):
        self.a_run()
        self.damage(9, "optimizer.pt", "flipped")
        with mock.patch("torch.load", side_effect=AssertionError("loaded")) as load:
            self.assert_refused(self.path("checkpoint-9"), "optimizer.pt")
        load.assert_not_called()


class BadRequestTest(ResumeTestCase):
    def test_an_empty_directory(self):
        os.makedirs(self.out)
        self.assert_refused(True, "No valid checkpoint found in output directory", self.out, "no directory")

    def test_a_directory_that_is_not_there(self):
        trainer = self.a_trainer()
        os.rmdir(self.out)
        with self.assertRaisesRegex(CheckpointResumeError, "No valid checkpoint found in output dir.*does not exist"):
            trainer.train(resume_from_checkpoint=True)
        self.assertFalse(os.path.exists(self.out))

    def test_a_path_that_is_not_there(self):
        self.a_run()
        self.assert_refused(self.path("checkpoint-7"), "Can't find a valid checkpoint at", self.path("checkpoint-7"))

    def test_a_name_of_the_hub(self):
        self.a_run()
        self.assert_refused("someone/some-model", "someone/some-model", "no such directory", "snapshot_download")

    def test_an_address(self):
        self.a_run()
        self.assert_refused("s3://bucket/checkpoint-9", "s3://bucket/checkpoint-9", "address")

    @parameterized.expand(["True", "true", "False", "None"])
    def test_a_word_in_quotes(self, word):
        self.a_run()
        self.assert_refused(word, word, "without quotes")

    def test_a_file(self):
        self.a_run()
        path = self.path("checkpoint-9", "model.safetensors")
        self.assert_refused(path, path, "it is a file")

    def test_a_dangling_link(self):
        self.a_run()
        os.symlink("nowhere", self.path("link"))
        self.assert_refused(self.path("link"), "link to nothing")

    def test_the_run_directory_itself(self):
        self.a_run()
        self.assert_refused(self.out, "no checkpoint but holds some", "checkpoint-9")

    @parameterized.expand([("number", 9), ("empty", ""), ("bytes", b"checkpoint-9"), ("list", ["checkpoint-9"])])
    def test_something_else(self, _, request):
        self.a_run()
        self.assert_refused(request, "`resume_from_checkpoint` is", repr(request))

    def test_false_starts_from_zero(self):
        self.a_run()
        self.resume(False)
        self.assertEqual(self.steps.trained, list(range(1, LAST_STEP + 1)))

    def test_the_error_can_be_pickled(self):
        error = CheckpointResumeError("No valid checkpoint")
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(again), str(again)), (CheckpointResumeError, "No valid checkpoint"))


class WithoutResumingTest(ResumeTestCase):
    def test_good_checkpoints_there(self):
        self.a_run()
        self.damage(9, "optimizer.pt", "empty")
        self.resume(None)
        self.assertEqual(self.heard, [])
        self.assertEqual(self.steps.trained[0], 1)

    def test_nothing_there(self):
        self.resume(None)
        self.assertEqual(self.heard, [])

    def test_only_rejected_ones_there(self):
        self.a_run()
        for step in STEPS:
            self.damage(step, "optimizer.pt", "empty")
        self.resume(None)
        self.assertEqual(self.steps.trained[0], 1)
        self.assertEqual(len(self.heard), 1)
        for part in ("starts from zero", self.out, "checkpoint-9: optimizer.pt"):
            self.assertIn(part, self.heard[0])


def failing_with(error: BaseException) -> type[Trainer]:
    """A Trainer that cannot load the newest checkpoint's optimizer."""

    class Failing(Trainer):
        def _load_optimizer_and_scheduler(self, checkpoint):
            if checkpoint.endswith("-9"):
                raise error
            super()._load_optimizer_and_scheduler(checkpoint)

    return Failing


class LoadingFailsTest(ResumeTestCase):
    def write(self, step: int, file: str, content) -> None:
        torch.save(content, self.path(f"checkpoint-{step}", file))

    def test_a_verified_one_is_not_to_blame(self):
        self.a_run()
        trainer = self.a_trainer()
        trainer.model.model.embed_tokens = torch.nn.Embedding(33, 16)
        with self.assertRaisesRegex(RuntimeError, "size mismatch") as caught:
            trainer.train(resume_from_checkpoint=True)
        self.assertNotIsInstance(caught.exception, CheckpointResumeError)
        self.assertEqual(self.steps.events, [])

    def test_an_error_goes_up_unchanged(self):
        """Also where an older checkpoint would load."""
        self.a_run()
        error = OSError(5, "no luck")
        with self.assertRaises(OSError) as caught:
            self.resume(cls=failing_with(error))
        self.assertIs(caught.exception, error)
        self.assertEqual((self.steps.events, self.heard), ([], []))

    def test_an_unverified_one_is_set_aside(self):
        # edit: after-loading
        self.a_run(manifests=False)
        self.write(9, "optimizer.pt", {"state": {}, "param_groups": []})
        warnings = self.assert_resumed(6)
        self.assertIn("checkpoint-9: could not be loaded", warnings)
        self.assertIn("parameter groups", warnings)
        self.assertEqual(self.steps.events, ["begin", "end"])

    def test_weights_that_were_loaded_in_part_are_replaced(self):
        self.a_run(manifests=False)
        file = self.path("checkpoint-9", "model.safetensors")
        weights = {name: weight + 1 for name, weight in load_file(file).items()}
        weights["model.norm.weight"] = torch.ones(7)
        save_file(weights, file)
        self.assertIn("could not be loaded", self.assert_resumed(6))

    def test_weights_that_would_stay_are_refused(self):
        self.a_run(manifests=False)
        shutil.rmtree(self.path("checkpoint-3"))
        file = self.path("checkpoint-9", "model.safetensors")
        weights = load_file(file)
        save_file({**weights, "model.norm.weight": torch.ones(7)}, file)
        file = self.path("checkpoint-6", "model.safetensors")
        weights = load_file(file)
        del weights["lm_head.weight"]
        save_file(weights, file)
        with self.assertRaisesRegex(CheckpointResumeError, "lm_head.weight"):
            self.resume()
        self.assertEqual(self.steps.events, [])
        # By itself that checkpoint loads, as it always did.
        self.resume(self.path("checkpoint-6"))
        self.assertEqual(self.steps.trained[0], 7)

    def test_two_equal_errors_in_a_row(self):
        self.a_run(manifests=False)
        for step in (9, 6):
            self.write(step, "optimizer.pt", {"state": {}, "param_groups": []})
        with self.assertRaisesRegex(ValueError, "parameter groups") as caught:
            self.resume()
        self.assertIn("Two checkpoints in a row", "".join(caught.exception.__notes__))
        self.assertEqual(self.steps.events, [])

    def test_two_different_errors_in_a_row(self):
        self.a_run(manifests=False)
        self.write(9, "optimizer.pt", {"state": {}, "param_groups": []})
        self.write(6, "scheduler.pt", [1])
        warnings = self.assert_resumed(3)
        self.assertIn("checkpoint-9: could not be loaded", warnings)
        self.assertIn("checkpoint-6: could not be loaded", warnings)

    def test_none_is_left(self):
        self.a_run(manifests=False)
        for step in (3, 6):
            shutil.rmtree(self.path(f"checkpoint-{step}"))
        self.write(9, "optimizer.pt", {"state": {}, "param_groups": []})
        with self.assertRaises(CheckpointResumeError) as caught:
            self.resume()
        self.assertIn("checkpoint-9: could not be loaded", str(caught.exception))
        self.assertIn("parameter groups", str(caught.exception.__cause__))

    def test_a_path_is_that_one_or_an_error(self):
        self.a_run(manifests=False)
        self.write(9, "optimizer.pt", {"state": {}, "param_groups": []})
        with self.assertRaisesRegex(ValueError, "parameter groups"):
            self.resume(self.path("checkpoint-9"))
        self.assertEqual(self.steps.events, [])

    def test_the_random_state_is_loaded_later(self):
        self.a_run(manifests=False)
        self.write(9, "rng_state.pth", {"python": random.getstate(), "numpy": np.random.get_state()})
        with self.assertRaises(KeyError) as caught:
            self.resume()
        self.assertIn(self.path("checkpoint-6"), "".join(caught.exception.__notes__))
        self.assertIn(self.path("checkpoint-6"), "\n".join(self.heard))
        self.assertEqual(self.steps.trained, [])

    def test_an_override_sees_the_error_of_super(self):
        self.a_run(manifests=False)
        self.write(9, "optimizer.pt", {"state": {}, "param_groups": []})
        seen = []

        class Forgiving(Trainer):
            def _load_optimizer_and_scheduler(self, checkpoint):
                try:
                    super()._load_optimizer_and_scheduler(checkpoint)
                except ValueError as error:
                    seen.append(error)

        self.resume(cls=Forgiving)
        self.assertEqual(len(seen), 1)
        self.assertEqual(self.steps.trained, [10])

    def test_a_keyboard_interrupt_is_not_kept(self):
        self.a_run(manifests=False)
        with self.assertRaises(KeyboardInterrupt):
            self.resume(cls=failing_with(KeyboardInterrupt()))
        self.assertEqual(self.heard, [])

    def test_too_little_memory_is_nobodys_fault(self):
        self.a_run(manifests=False)
        with self.assertRaises(MemoryError) as caught:
            self.resume(cls=failing_with(MemoryError()))
        self.assertIn("checkpoint-9 failed", "".join(caught.exception.__notes__))
        self.assertNotIn("Passed over", "\n".join(self.heard))

    def test_the_batch_size_finder_starts_from_the_checkpoint_again(self):
        self.a_run()
        steps = []

        class ShortOfMemory(Trainer):
            def training_step(self, *args, **kwargs):
                steps.append(self.state.global_step)
                if len(steps) == 2:
                    raise RuntimeError("CUDA out of memory.")
                return super().training_step(*args, **kwargs)

        path = self.path("checkpoint-6")
        self.resume(path, cls=ShortOfMemory, auto_find_batch_size=True)
        self.assertEqual(steps[:3], [6, 7, 6])
        saved = load_file(os.path.join(path, "model.safetensors"))
        self.assertEqual(len(self.steps.weights), 2)
        for weights in self.steps.weights:
            for name, weight in saved.items():
                self.assertTrue(torch.equal(weights[name], weight), name)

    def test_too_little_memory_for_the_weights_never_trains_without_them(self):
        self.a_run()
        fail = [True]

        class ShortOfMemory(Trainer):
            def _load_optimizer_and_scheduler(self, checkpoint):
                if fail.pop() if fail else False:
                    raise RuntimeError("CUDA out of memory.")
                super()._load_optimizer_and_scheduler(checkpoint)

        self.resume(cls=ShortOfMemory, auto_find_batch_size=True)
        saved = load_file(self.path("checkpoint-9", "model.safetensors"))
        for name, weight in saved.items():
            self.assertTrue(torch.equal(self.steps.weights[0][name], weight), name)
        self.assertEqual(self.steps.trained[0], 10)

    def test_loaders_raise_as_ever_outside_of_a_training(self):
        self.a_run(manifests=False)
        trainer = self.a_trainer()
        with self.assertRaises(ValueError):
            trainer._load_from_checkpoint(self.out)


class MissingStateTest(ResumeTestCase):
    @parameterized.expand([("optimizer",), ("scheduler",)])
    def test_is_passed_over(self, state):
        self.a_run(manifests=False)
        self.damage(9, f"{state}.pt", "missing")
        self.assertIn(f"no {state} state", self.assert_resumed(6))

    @parameterized.expand([("optimizer",), ("scheduler",)])
    def test_is_an_error_by_path_with_a_way_out(self, state):
        self.a_run(manifests=False)
        self.damage(9, f"{state}.pt", "missing")
        path = self.path("checkpoint-9")
        self.assert_refused(path, path, f"no {state} state", self.path("checkpoint-6"), 'resume_verify="off"')
        self.resume(path, resume_verify="off")
        self.assertIn("start afresh", "\n".join(self.heard))
        self.assertEqual(self.steps.trained, [10])

    def test_save_only_model_of_a_stock_checkpoint_is_a_warning(self):
        self.a_run(manifests=False)
        for file in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            self.damage(9, file, "missing")
        self.resume(save_only_model=True)
        self.assertEqual(self.steps.trained, [10])
        self.assertIn("no optimizer and no scheduler state", "\n".join(self.heard))

    @parameterized.expand([("true",), ("path",)])
    def test_save_only_model_in_the_manifest_is_a_warning(self, request):
        trainer = tiny_trainer(self.out, **{**RUN, "max_steps": 9}, save_only_model=True)
        trainer.train()
        self.resume(True if request == "true" else self.path("checkpoint-9"))
        self.assertEqual(self.steps.trained, [10])
        self.assertIn("no optimizer and no scheduler state", "\n".join(self.heard))
        saved = load_file(self.path("checkpoint-9", "model.safetensors"))
        for name, weight in saved.items():
            self.assertTrue(torch.equal(self.steps.weights[0][name], weight), name)

    def test_a_loader_of_its_own_knows_better(self):
        self.a_run(manifests=False)
        for step in STEPS:
            os.rename(self.path(f"checkpoint-{step}", "optimizer.pt"), self.path(f"checkpoint-{step}", "mine.pt"))

        class Own(Trainer):
            def _load_optimizer_and_scheduler(self, checkpoint):
                self.optimizer.load_state_dict(torch.load(os.path.join(checkpoint, "mine.pt"), weights_only=True))
                self.lr_scheduler.load_state_dict(
                    torch.load(os.path.join(checkpoint, "scheduler.pt"), weights_only=True)
                )

        self.assertEqual(self.assert_resumed(9, cls=Own), "")

    def test_no_random_state(self):
        self.a_run(manifests=False)
        self.damage(9, "rng_state.pth", "missing")
        self.resume()
        self.assertEqual(self.steps.trained, [10])
        self.assertIn("no random state", "\n".join(self.heard))

    def test_no_scaler_state(self):
        self.a_run()
        trainer = self.a_trainer()
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", enabled=False)
        with hearing() as heard:
            trainer.train(resume_from_checkpoint=True)
        self.assertIn("no gradient scaler state", "\n".join(heard))

    def test_other_number_of_processes(self):
        self.a_run(manifests=False)
        folder = self.path("checkpoint-9")
        for rank in range(4):
            shutil.copy(os.path.join(folder, "rng_state.pth"), os.path.join(folder, f"rng_state_{rank}.pth"))
        self.damage(9, "rng_state.pth", "missing")
        self.resume()
        self.assertEqual(len(self.heard), 1)
        for part in (folder, "saved by 4 process(es)", "has 1", "Exact are", "Not exact are"):
            self.assertIn(part, self.heard[0])

    def test_only_the_model(self):
        self.a_run()
        self.damage(9, "trainer_state.json", "missing")
        for file in (MANIFEST, FILE_LIST):
            self.damage(9, file, "missing")
        self.assertIn("trainer_state.json is missing", self.assert_resumed(6))
        self.assert_refused(self.path("checkpoint-9"), "trainer_state.json is missing")

    def test_a_state_of_another_version(self):
        self.a_run(manifests=False)
        file = self.path("checkpoint-9", "trainer_state.json")
        state = json.loads(Path(file).read_text(encoding="utf-8"))
        Path(file).write_text(json.dumps({**state, "of_the_future": 1}), encoding="utf-8")
        self.assertIn("of_the_future", self.assert_resumed(6))


class FinishedRunTest(ResumeTestCase):
    @parameterized.expand([("mid_epoch", 9), ("end_of_epoch", 6)])
    def test_stops_at_once(self, _, step):
        # edit: stop-a-finished-run
        self.a_run()
        trainer = self.a_trainer(max_steps=step)
        with hearing() as heard:
            output = trainer.train(resume_from_checkpoint=self.path(f"checkpoint-{step}"))
        self.assertEqual(output.global_step, step)
        self.assertEqual((self.steps.trained, self.steps.events), ([], ["begin", "end"]))
        self.assertIn("this run is finished", "\n".join(heard))
        saved = load_file(self.path(f"checkpoint-{step}", "model.safetensors"))
        for name, weight in trainer.model.state_dict().items():
            self.assertTrue(torch.equal(saved[name], weight), name)

    def test_is_continued_if_more_steps_are_asked_for(self):
        self.a_run()
        self.resume(max_steps=11)
        self.assertEqual(self.steps.trained, [10, 11])

    def test_by_epochs(self):
        self.a_run()
        self.resume(self.path("checkpoint-6"), max_steps=-1, num_train_epochs=1)
        self.assertEqual(self.steps.trained, [])


class BestCheckpointTest(ResumeTestCase):
    def a_run_with_best(self) -> str:
        """3 is the best one. Returns its path."""
        trainer = tiny_trainer(
            self.out,
            **{**RUN, "max_steps": 9},
            eval_strategy="steps",
            eval_steps=3,
            metric_for_best_model="loss",
            greater_is_better=True,
        )
        trainer.train()
        best = trainer.state.best_model_checkpoint
        self.assertIsNotNone(best)
        return os.path.basename(best)

    def test_moved_with_the_run(self):
        # edit: resolve-best-checkpoint
        best = self.a_run_with_best()
        moved = os.path.join(self.get_auto_remove_tmp_dir(), "moved")
        os.rename(self.out, moved)
        self.out = moved
        trainer = self.resume(self.path("checkpoint-9"))
        self.assertEqual(trainer.state.best_model_checkpoint, self.path(best))
        self.assertEqual(self.heard, [])

    def test_deleted(self):
        best = self.a_run_with_best()
        self.assertNotEqual(best, "checkpoint-9")
        shutil.rmtree(self.path(best))
        trainer = self.resume(load_best_model_at_end=False)
        self.assertIsNone(trainer.state.best_model_checkpoint)
        self.assertEqual(self.steps.trained, [10])
        self.assertIn(f"{best}, is not used", "\n".join(self.heard))

    def test_damaged(self):
        best = self.a_run_with_best()
        os.truncate(self.path(best, "model.safetensors"), 100)
        trainer = self.resume()
        self.assertIsNone(trainer.state.best_model_checkpoint)
        self.assertIn("model.safetensors", "\n".join(self.heard))


class LeftoversTest(ResumeTestCase):
    """What a save that died left, when the next training resumes."""

    def start(self, code: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", f"from transformers.trainer_checkpoint import owner\n{code}", self.out],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "claimed\n")
        return process

    def claim(self) -> subprocess.Popen:
        return self.start("import sys; owner.claim(sys.argv[1], durable=False); print('claimed', flush=True); input()")

    def a_run_killed_before_the_publish(self) -> None:
        """9 is sealed, and not published."""
        self.a_run()
        owner_of_it = self.claim()
        os.rename(self.path("checkpoint-9"), self.path("_staging", "checkpoint-9"))
        owner_of_it.kill()
        owner_of_it.wait(timeout=60)

    @parameterized.expand([("true",), ("path",)])
    def test_a_sealed_one_is_published(self, request):
        self.a_run_killed_before_the_publish()
        self.assert_resumed(9, True if request == "true" else self.path("checkpoint-9"))
        self.assertEqual(sorted(os.listdir(self.out)), ["checkpoint-3", "checkpoint-6", "checkpoint-9"])
        self.assertIn("Published", self.heard[0])

    def test_a_sealed_one_that_is_damaged_is_not(self):
        self.a_run_killed_before_the_publish()
        os.truncate(self.path("_staging", "checkpoint-9", "optimizer.pt"), 100)
        self.assertIn("optimizer.pt", self.assert_resumed(6))
        self.assertFalse(os.path.exists(self.path("checkpoint-9")))

    def test_one_without_a_manifest_is_not(self):
        self.a_run_killed_before_the_publish()
        os.unlink(self.path("_staging", "checkpoint-9", MANIFEST))
        self.assert_resumed(6)
        self.assertFalse(os.path.exists(self.path("checkpoint-9")))
        self.assertFalse(os.path.exists(self.path("_staging", "checkpoint-9")))

    def test_nothing_is_published_for_a_checkpoint_elsewhere(self):
        self.a_run_killed_before_the_publish()
        elsewhere = os.path.join(self.get_auto_remove_tmp_dir(), "checkpoint-6")
        shutil.copytree(self.path("checkpoint-6"), elsewhere)
        self.assert_resumed(6, elsewhere)
        self.assertTrue(os.path.isdir(self.path("_staging", "checkpoint-9")))

    @mock.patch("transformers.trainer_checkpoint.transaction.OWNER_PATIENCE", 0.0)
    def test_an_owner_that_is_alive(self):
        self.a_run()
        self.claim()
        with self.assertRaises(CheckpointOwnedError):
            self.resume()
        self.assertEqual(self.steps.events, [])
        self.assertEqual(sorted(os.listdir(self.out))[1:], ["checkpoint-3", "checkpoint-6", "checkpoint-9"])

    def test_a_run_directory_that_cannot_be_put_in_order(self):
        self.a_run()
        Path(self.path("_staging")).write_text("somebody else's", encoding="utf-8")
        self.assertIn("could not be put in order", self.assert_resumed(9))
        self.assertEqual(Path(self.path("_staging")).read_text(encoding="utf-8"), "somebody else's")


class HelpersTest(unittest.TestCase):
    def test_waiting_ends(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "there")
            self.assertFalse(resume.wait_until_visible(file, patience=0))
            Path(file).touch()
            self.assertTrue(resume.wait_until_visible(file, patience=0))

    @parameterized.expand(
        [
            ((), None),
            (("rng_state.pth",), 1),
            (("rng_state_0.pth", "rng_state_1.pth"), 2),
            (("rng_state_0.pth",), 2),
            (("rng_state_7.pth",), 8),
        ]
    )
    def test_world_size_of_a_checkpoint_without_a_manifest(self, names, world_size):
        self.assertEqual(resume._world_size(names), world_size)

    @parameterized.expand(
        [
            ("model.safetensors", True),
            ("adapter/adapter_config.json", True),
            ("adapter_config.json", True),
            ("something_unknown.dat", True),
            ("", True),
            ("config.json", True),
            ("tokenizer.json", False),
            ("README.md", False),
            ("training_args.bin", False),
        ]
    )
    def test_what_resuming_reads(self, name, is_read):
        self.assertEqual(resume._is_read(name, "is damaged"), is_read)

    def test_a_configuration_is_read_if_there_is_one(self):
        self.assertFalse(resume._is_read("config.json", "is missing"))

    @parameterized.expand(
        [
            ("sharded by version 1", True, {}, [], True),
            ("empty entries", True, {"weight": {}}, [], True),
            ("restored", True, {"weight": {"step": 1}}, [], False),
            ("never inside", True, {}, ["optimizer"], False),
            ("no FSDP", False, {}, [], False),
        ]
    )
    def test_an_optimizer_that_stayed_empty(self, _, fsdp, state, lacks, is_empty):
        trainer = mock.Mock(is_fsdp_enabled=fsdp, is_deepspeed_enabled=False)
        trainer.optimizer.state = state
        of_one = mock.Mock(trainer=trainer, leaders=[0], hosts=["host/1"])
        of_one.ranks.exchange.side_effect = lambda topic, payload, patience=None: [payload]
        report = resume._Report(of_one, [resume._Look(lacks=lacks)], None)
        loading = resume.Loading(of_one, "out/checkpoint-9", report, None)
        with hearing() as heard:
            loading.settle()
        self.assertEqual(["starts afresh" in text for text in heard], [True] if is_empty else [])

    @parameterized.expand([("another", 1, CheckpointResumeError), ("its own", 0, OSError)])
    def test_the_first_error_is_the_cause(self, _, first, kind):
        """A rank that came out of a broken collective says whose failure broke it."""
        trainer = mock.Mock(is_fsdp_enabled=True, is_deepspeed_enabled=False)
        of_two = mock.Mock(trainer=trainer, leaders=[0], hosts=["host/1", "host/1"])
        of_two.ranks.configure_mock(rank=0, world_size=2, alone=False)
        of_two.ranks.exchange.side_effect = lambda topic, payload, patience=None: [payload, {"error": "disk"}]
        of_two.ranks.first_error.return_value = (first, "the disk is gone")
        of_two.broadcast.return_value = None
        loading = resume.Loading(of_two, "out/checkpoint-9", resume._Report(of_two, [resume._Look()] * 2, None), None)
        with loading.keep("_load_from_checkpoint"):
            raise OSError("connection closed")
        with self.assertRaises(kind) as caught:
            loading.settle()
        if first == 1:
            self.assertIn("rank 1 failed first (the disk is gone)", str(caught.exception))
            self.assertIn("connection closed", str(caught.exception.__cause__))

    def test_a_message_names_a_few_problems_only(self):
        look = resume._Look(problems=[[f"file-{n}", "is missing"] for n in range(100)])
        of_two = mock.Mock(leaders=[0], hosts=["host/1"])
        text = resume._Report(of_two, [look], None).text()
        self.assertIn("file-0 is missing", text)
        self.assertIn("and 95 more", text)
        self.assertLess(len(text), 200)


class OtherTrainersTest(ResumeTestCase):
    def test_a_trainer_without_a_call_of_init(self):
        """`_init_training_state` outside of `train`, as some libraries call it."""
        trainer = self.a_trainer()
        trainer.state.best_model_checkpoint = self.path("gone")
        resume.resolve_best_checkpoint(trainer._safe_checkpoints)
        self.assertIsNone(trainer.state.best_model_checkpoint)

    def test_two_trainings_with_one_trainer(self):
        self.a_run()
        trainer = self.a_trainer()
        trainer.train(resume_from_checkpoint=self.path("checkpoint-9"))
        trainer.train(resume_from_checkpoint=self.path("checkpoint-6"))
        self.assertEqual(self.steps.trained, [10, 7, 8, 9, 10])
        self.assertEqual(losses(trainer), self.reference["linear"])
        self.assertIsNone(trainer._safe_checkpoints.loading)

    def test_a_model_init(self):
        def trainer_with_model_init() -> Trainer:
            args = self.a_trainer(save_strategy="steps").args
            return Trainer(
                args=args,
                model_init=lambda: tiny_model(RUN["dropout"]),
                train_dataset=Tokens(24),
                callbacks=[self.steps],
            )

        first = trainer_with_model_init()
        first.train()
        interrupt(self.out)
        self.damage(9, "optimizer.pt", "flipped")
        again = trainer_with_model_init()
        again.train(resume_from_checkpoint=True)
        self.assertEqual(self.steps.trained, [7, 8, 9, 10])
        self.assertEqual(losses(again), losses(first))
