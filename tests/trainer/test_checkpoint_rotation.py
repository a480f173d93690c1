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
"""Rotation on real directories: what goes, what stays, and what a kill or a failing disk leaves."""

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from parameterized import parameterized

from transformers.testing_utils import CaptureLogger, TestCasePlus
from transformers.trainer_checkpoint import discovery, disk, rotation
from transformers.trainer_checkpoint.discovery import find_checkpoints, look_at, newest_complete_checkpoint
from transformers.trainer_checkpoint.layout import KEEP_NAME, MANIFEST_NAME, SENTINEL_NAME, step_of
from transformers.trainer_checkpoint.manifest import read_head
from transformers.trainer_checkpoint.rotation import (
    Plan,
    Sweeper,
    carry_out,
    clean_up_at_end,
    plan_rotation,
    rotate,
    rotate_run,
    sweep_leftovers,
)
from transformers.trainer_utils import rotate_checkpoints
from transformers.utils import logging


SCRIPTS = Path(__file__).parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from file_operations import FileOperations  # noqa: E402
from save_driver import content, read_files, save, write_files  # noqa: E402


# How long a forked child may take before it counts as hanging (seconds).
CHILD_PATIENCE = 120.0


def steps_in(run_dir: str) -> list[int]:
    """The steps of everything in `run_dir` that has the name of a checkpoint, in numerical order."""
    return sorted(step for step in map(step_of, os.listdir(run_dir)) if step is not None)


def in_child(action: Callable[[], object], root: str, at: int | None = None) -> tuple[int, list[str]]:
    """Run `action` in a fork, killed at its file operation number `at` below `root`, if there is one.

    Returns:
        `tuple[int, list[str]]`: the status of `os.waitpid`, and the operations that were seen if it got to its end.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as report:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                operations = FileOperations(root, at)
                action()
                operations.active = False
                json.dump(operations.seen, report)
                report.flush()
                status = 0
            finally:
                os._exit(status)
        status = wait_for(child)
        report.seek(0)
        text = report.read()
        return status, json.loads(text) if text else []


def wait_for(child: int) -> int:
    deadline = time.monotonic() + CHILD_PATIENCE
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError(f"the child did not end within {CHILD_PATIENCE} s")
        time.sleep(0.002)


class RotationTestCase(TestCasePlus):
    def setUp(self):
        super().setUp()
        self.out = self.get_auto_remove_tmp_dir()
        rotation._said.clear()

    def path(self, *names: str | int) -> str:
        """A path in the run directory; a number stands for the checkpoint of that step."""
        return os.path.join(self.out, *(f"checkpoint-{name}" if isinstance(name, int) else name for name in names))

    def seal(self, *steps: int) -> None:
        """Save these steps with the real protocol, one after the other."""
        for step in steps:
            save(self.out, step, content(f"sealed {step}", step), durable=False)

    def stock(self, *steps: int) -> None:
        """Write these steps as a version without manifests does."""
        for step in steps:
            write_files(self.path(step), content(f"stock {step}", step))

    def damage(self, *steps: int) -> None:
        for step in steps:
            os.truncate(self.path(step, "model.safetensors"), 10)

    def touch(self, path: str, content: str = "") -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)

    def rotate(self, limit: int, **kwargs) -> rotation.Outcome:
        return rotate_run(self.out, limit=limit, durable=False, **kwargs)

    def assert_steps(self, *steps: int) -> None:
        self.assertEqual(steps_in(self.out), sorted(steps))

    def assert_whole(self, *steps: int) -> None:
        for step in steps:
            self.assertIsNone(look_at(self.path(step)).problem, step)

    def captured(self) -> CaptureLogger:
        return CaptureLogger(logging.get_logger("transformers.trainer_checkpoint.rotation"))


class WhatGoesTest(RotationTestCase):
    def test_the_function_that_scripts_call(self):
        self.seal(10, 20, 30, 40)
        os.utime(self.path(10), (2e9, 2e9))
        rotate_checkpoints(self.out, save_total_limit=2, best_model_checkpoint=self.path(20), use_mtime=True)
        self.assertEqual(sorted(os.listdir(self.out)), ["checkpoint-20", "checkpoint-40"])
        write_files(self.path("epoch-1"), {"a": b"a"})
        write_files(self.path("epoch-2"), {"a": b"a"})
        rotate_checkpoints(output_dir=self.out, save_total_limit=1, checkpoint_prefix="epoch")
        self.assertEqual(sorted(os.listdir(self.out)), ["checkpoint-20", "checkpoint-40", "epoch-2"])

    @parameterized.expand([("sealed",), ("stock",)])
    def test_the_newest_stay_and_nothing_is_left_of_the_others(self, kind):
        (self.seal if kind == "sealed" else self.stock)(10, 20, 30, 40)
        outcome = self.rotate(2)
        self.assertEqual(outcome.gone, (self.path(10), self.path(20)))
        self.assertEqual(sorted(os.listdir(self.out)), ["checkpoint-30", "checkpoint-40"])
        self.assert_whole(30, 40)

    @parameterized.expand([(None,), (0,), (-1,)])
    def test_without_a_limit_nothing_goes(self, limit):
        self.seal(10, 20)
        rotate(self.out, limit)
        self.assertEqual(rotate_run(self.out, limit=limit), rotation.Outcome())
        self.assert_steps(10, 20)

    def test_planning_changes_nothing(self):
        self.seal(10, 20, 30)
        self.stock(40)
        os.mkdir(self.path(5))
        before = sorted(str(path) for path in Path(self.out).rglob("*"))
        plan = plan_rotation(self.out, limit=1)
        self.assertEqual(sorted(str(path) for path in Path(self.out).rglob("*")), before)
        self.assertEqual(plan.remove, (self.path(5),))
        self.assertEqual(plan.retire, (self.path(10), self.path(20), self.path(30)))
        self.assertEqual(plan.keep, {self.path(40): "the newest"})

    @parameterized.expand([("reversed",), ("equal",), ("old one touched",)])
    def test_modification_times_do_not_matter(self, how):
        self.seal(10, 20, 30)
        self.stock(40, 50)
        for age, step in enumerate((10, 20, 30, 40, 50)):
            seconds = {"reversed": 2e9 - age, "equal": 1e9, "old one touched": 1e9 + age}[how]
            os.utime(self.path(step), (seconds, seconds))
        if how == "old one touched":
            os.utime(self.path(10), (2e9, 2e9))
        rotate(self.out, 2, use_mtime=True)
        self.assert_steps(40, 50)

    def test_a_restored_copy_of_an_old_one_goes_first(self):
        self.seal(10, 20)
        backup = os.path.join(self.get_auto_remove_tmp_dir(), "copy")
        shutil.copytree(self.path(10), backup)
        self.seal(30)
        self.rotate(2)
        shutil.copytree(backup, self.path(10), copy_function=shutil.copy)
        self.seal(40)
        self.rotate(3)
        self.assert_steps(20, 30, 40)

    def test_a_lower_step_that_was_saved_later_is_the_newer_one(self):
        self.seal(500, 600, 100)
        self.rotate(1)
        self.assert_steps(100)

    def test_a_new_run_in_a_directory_with_higher_steps_keeps_its_own(self):
        for make in (self.stock, self.seal):
            with self.subTest(make.__name__):
                make(600, 700)
                for step in (100, 200, 300):
                    self.seal(step)
                    self.rotate(2, own=range(100, step + 1, 100))
                    self.assertIn(step, steps_in(self.out))
                self.assert_steps(200, 300)

    def test_own_ones_come_before_those_that_somebody_copied_in(self):
        self.seal(1, 2, 3, 4, 5, 6, 700)
        copies = self.get_auto_remove_tmp_dir()
        shutil.move(self.path(700), copies)
        self.rotate(1)
        shutil.rmtree(self.path(6))
        self.seal(100, 200)
        shutil.move(os.path.join(copies, "checkpoint-700"), self.path(700))
        self.seal(300)
        shutil.rmtree(self.path(300))
        # 700 is now the newest by the order that readers use, and not of this run.
        self.assertEqual(newest_complete_checkpoint(self.out), self.path(700))
        self.rotate(2, own=[100, 200])
        self.assert_steps(200, 700)
        self.rotate(1, own=[100, 200])
        self.assert_steps(200, 700)

    def test_a_copy_under_the_name_of_an_own_step_is_not_an_own_one(self):
        self.seal(10, 20, 30)
        shutil.copytree(self.path(10), self.path(15))
        self.rotate(2, own=[15, 20, 30])
        self.assert_steps(20, 30)

    def test_names_that_only_look_like_checkpoints_are_not_touched(self):
        names = ["checkpoint-final-keep", "checkpoint-100-merged", "checkpoint-10.bak", "checkpoint-", "xcheckpoint-1"]
        names += ["checkpoint-١٠", "checkpoint-1_0", "checkpoint- 5", "checkpoint--5", "Checkpoint-5"]
        for name in names:
            write_files(self.path(name), content("mine", 10))
        self.touch(self.path("checkpoint-7"), "a file")
        self.stock(10, 20)
        rotate(self.out, 1)
        self.assertEqual(sorted(os.listdir(self.out)), sorted([*names, "checkpoint-7", "checkpoint-20"]))

    def test_a_run_directory_that_is_missing_or_a_file_stops_nothing(self):
        self.assertEqual(rotate_run(self.path("missing"), limit=1), rotation.Outcome())
        rotate(self.path("missing"), 1)
        rotate(self.path("missing"), 1, checkpoint_prefix="epoch")
        self.touch(self.path("file"))
        with self.captured() as log:
            outcome = rotate_run(self.path("file"), limit=1)
            rotate(self.path("file"), 1, checkpoint_prefix="epoch")
        self.assertEqual(len(outcome.problems), 1)
        self.assertIn(self.path("file"), log.out)

    def test_the_listing_says_what_discovery_says(self):
        self.stock(10, 20, 30)
        self.seal(40, 50, 15)
        self.stock(60, 70)
        os.mkdir(self.path(80))
        os.unlink(self.path(10, "trainer_state.json"))
        self.touch(self.path(20, KEEP_NAME))
        self.touch(self.path(30, SENTINEL_NAME))
        self.touch(self.path(70, MANIFEST_NAME), "{ torn")
        shutil.copytree(self.path(40), self.path(41))
        os.symlink(self.path(50), self.path(51))
        self.touch(self.path(50, KEEP_NAME))
        listing = rotation._list(rotation._candidates(self.out))
        self.assertEqual(listing.found, find_checkpoints(self.out, check="order"))
        self.assertEqual((listing.empty, listing.links), ({"checkpoint-80"}, {"checkpoint-51"}))

    def test_only_the_newest_are_looked_into(self):
        self.stock(*range(1, 81))
        with mock.patch.object(rotation, "look_closely", wraps=rotation.look_closely) as look:
            plan = plan_rotation(self.out, limit=79)
        self.assertEqual(plan.retire, (self.path(1),))
        self.assertLessEqual(look.call_count, rotation.COUNTED_BY_LOOKING + 2)


class WhatStaysTest(RotationTestCase):
    def best_paths(self) -> dict[str, str]:
        parent = os.path.join(self.get_auto_remove_tmp_dir(), "link")
        os.symlink(self.out, parent)
        direct = os.path.join(os.path.dirname(parent), "best")
        os.symlink(self.path(10), direct)
        return {
            "absolute": self.path(10),
            "relative": os.path.relpath(self.path(10)),
            "with dots": os.path.join(self.out, "..", os.path.basename(self.out), "checkpoint-10", "."),
            "trailing slash": self.path(10) + os.sep,
            "through a linked parent": os.path.join(parent, "checkpoint-10"),
            "through a link": direct,
            "of another machine": "/elsewhere/run/checkpoint-10",
        }

    @parameterized.expand(
        [
            ("absolute",),
            ("relative",),
            ("with dots",),
            ("trailing slash",),
            ("through a linked parent",),
            ("through a link",),
            ("of another machine",),
        ]
    )
    def test_the_best_stays_however_its_path_is_written(self, how):
        self.seal(10, 20, 30, 40)
        rotate(self.out, 2, self.best_paths()[how])
        self.assert_steps(10, 40)

    @parameterized.expand([("relative",), ("linked",)])
    def test_the_run_directory_may_be_written_in_any_way_too(self, how):
        self.seal(10, 20, 30, 40)
        run_dir = os.path.relpath(self.out)
        if how == "linked":
            run_dir = os.path.join(self.get_auto_remove_tmp_dir(), "run")
            os.symlink(self.out, run_dir)
        rotate(run_dir, 2, self.path(10))
        self.assert_steps(10, 40)

    def test_the_best_of_another_run_protects_nothing_here(self):
        self.seal(10, 20)
        other = self.get_auto_remove_tmp_dir()
        write_files(os.path.join(other, "checkpoint-10"), content("other", 10))
        rotate(self.out, 1, os.path.join(other, "checkpoint-10"))
        self.assert_steps(20)

    def test_a_best_that_was_deleted_by_hand_stops_nothing(self):
        self.seal(20, 30, 40)
        rotate(self.out, 2, self.path(10))
        self.assert_steps(30, 40)

    def test_a_limit_of_one_keeps_the_best_and_the_newest(self):
        self.seal(10, 20, 30)
        rotate(self.out, 1, self.path(10))
        self.assert_steps(10, 30)

    def test_a_damaged_best_stays_and_does_not_count(self):
        self.seal(10, 20, 30, 40)
        self.damage(10)
        rotate(self.out, 2, self.path(10))
        self.assert_steps(10, 30, 40)

    def test_the_one_resumed_from_stays(self):
        self.seal(10, 20, 30, 40)
        self.rotate(2, protected={"the best": None, "resumed from": self.path(20)})
        self.assert_steps(20, 40)

    def test_a_pin_stays_on_top_of_the_limit(self):
        self.seal(10, 20, 30, 40)
        self.touch(self.path(10, KEEP_NAME))
        self.rotate(2)
        self.assert_steps(10, 30, 40)
        self.assert_whole(10)
        os.unlink(self.path(10, KEEP_NAME))
        self.rotate(2)
        self.assert_steps(30, 40)

    def test_a_pin_among_the_newest_takes_no_extra_room(self):
        self.seal(10, 20, 30)
        self.touch(self.path(30, KEEP_NAME))
        self.rotate(2)
        self.assert_steps(20, 30)

    def test_a_pin_that_comes_while_the_plan_is_carried_out_counts(self):
        self.seal(10, 20, 30)
        plan = plan_rotation(self.out, limit=1)
        self.touch(self.path(20, KEEP_NAME))
        self.assertEqual(carry_out(plan, self.out, durable=False).gone, (self.path(10),))
        self.assert_steps(20, 30)

    def test_milestones_stay_for_ever(self):
        for step in range(50, 451, 50):
            self.seal(step)
            self.rotate(2, keep_every=200)
        self.assert_steps(200, 400, 450)
        self.seal(500, 550)
        self.rotate(2, keep_every=200)
        self.assert_steps(200, 400, 500, 550)

    def test_reasons_are_given(self):
        self.seal(10, 20, 30, 40, 50, 60)
        self.touch(self.path(30, KEEP_NAME))
        protected = {"the best": self.path(20), "resumed from": self.path(20)}
        plan = plan_rotation(self.out, limit=3, keep_every=40, protected=protected)
        self.assertEqual(
            plan.keep,
            {
                self.path(20): "the best",
                self.path(30): f"pinned by its {KEEP_NAME} file",
                self.path(40): "a multiple of 40 steps",
                self.path(50): "one of the 3 newest",
                self.path(60): "the newest",
            },
        )
        self.assertEqual(plan.retire, (self.path(10),))

    def test_the_newest_that_can_be_resumed_from_stays_beside_adapters(self):
        self.seal(10, 20)
        for step in (30, 40):
            save(self.out, step, {"adapter_model.safetensors": content("a", 1)["model.safetensors"]}, durable=False)
        if read_head(self.path(40)).resumable:
            self.fail("the test needs checkpoints without the Trainer's state")
        self.rotate(1)
        self.assert_steps(20, 40)

    def test_a_bind_mount_of_the_best_is_still_the_best(self):
        self.seal(10, 20, 30)
        elsewhere = self.get_auto_remove_tmp_dir()
        with _bind_mount(self.path(10), elsewhere) as mounted:
            if not mounted:
                self.skipTest("this process may not mount")
            self.assertNotEqual(os.path.realpath(elsewhere), os.path.realpath(self.path(10)))
            rotate(self.out, 1, elsewhere)
        self.assert_steps(10, 30)


@contextlib.contextmanager
def _bind_mount(source: str, target: str):
    done = subprocess.run(["mount", "--bind", source, target], capture_output=True, timeout=60).returncode == 0
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", target], check=True, timeout=60)


class IncompleteTest(RotationTestCase):
    def test_only_complete_ones_count(self):
        self.seal(10, 20, 30)
        self.damage(30)
        self.assertEqual(self.rotate(2).gone, ())
        self.assert_steps(10, 20, 30)

    def test_a_damaged_newest_never_costs_the_good_one(self):
        for make in (self.stock, self.seal):
            with self.subTest(make.__name__):
                make(10, 20)
                self.damage(20)
                self.rotate(1)
                self.assert_steps(10, 20)
                self.assertEqual(newest_complete_checkpoint(self.out), self.path(10))
                shutil.rmtree(self.path(10))
                shutil.rmtree(self.path(20))

    def test_a_sealed_one_that_is_damaged_goes_once_enough_newer_ones_are_there(self):
        self.seal(10, 20, 30)
        self.damage(20)
        self.rotate(2)
        self.assert_steps(10, 20, 30)
        self.seal(40)
        self.rotate(2)
        self.assert_steps(30, 40)

    def test_a_damaged_one_without_a_manifest_is_left_alone_and_told_of_once(self):
        self.stock(10, 20, 30, 40)
        os.unlink(self.path(10, "trainer_state.json"))
        self.damage(20)
        with self.captured() as log:
            self.rotate(1)
            self.seal(50)
            self.rotate(1)
        self.assert_steps(10, 20, 50)
        warnings = [line for line in log.out.splitlines() if "does not delete" in line]
        self.assertEqual(len(warnings), 1, log.out)
        self.assertIn(f"{self.path(10)} (", warnings[0])
        self.assertIn("trainer_state.json is missing", warnings[0])
        self.assertIn("model.safetensors", warnings[0])

    def test_what_cannot_be_read_is_left_alone(self):
        self.seal(10, 20, 30)
        self.touch(self.path(10, MANIFEST_NAME), "{ torn")
        plan = plan_rotation(self.out, limit=1)
        self.assertEqual(plan.retire, (self.path(20),))
        self.assertIn(MANIFEST_NAME, plan.left_alone[self.path(10)])
        self.rotate(1)
        self.assert_steps(10, 30)

    def test_one_behind_a_sentinel_does_not_count(self):
        self.stock(10, 20, 30)
        self.touch(self.path(30, SENTINEL_NAME), "being saved")
        self.rotate(1)
        self.assert_steps(20, 30)

    def test_if_all_are_damaged_all_stay(self):
        self.seal(10, 20)
        self.stock(30, 40)
        self.damage(10, 20, 30, 40)
        self.rotate(1)
        self.assert_steps(10, 20, 30, 40)


class MemoryTest(RotationTestCase):
    """What a rotation remembers of the one before must never hide what has changed since."""

    def setUp(self):
        super().setUp()
        self.memory = rotation.Memory()
        self.now = 1000.0
        self.step_of_times = 1
        real_stat = os.stat

        def coarse(path, *args, **kwargs):
            info = real_stat(path, *args, **kwargs)
            if not str(path).startswith(self.out):
                return info
            # As a file system does that counts in steps of two seconds, all within one of them.
            times = mock.Mock(wraps=info, st_mtime_ns=self.step_of_times, st_ctime_ns=self.step_of_times)
            times.st_dev, times.st_ino, times.st_mode = info.st_dev, info.st_ino, info.st_mode
            return times

        self.enterContext(mock.patch.object(rotation.time, "monotonic", lambda: self.now))
        self.coarse = mock.patch.object(rotation.os, "stat", coarse)

    def plan(self, later: float = 0.0) -> Plan:
        self.now += later
        return plan_rotation(self.out, limit=1, memory=self.memory)

    def settle(self) -> None:
        for _ in range(3):
            self.plan(later=10.0)

    @parameterized.expand(
        [
            ("pinned", lambda path: Path(path, KEEP_NAME).touch()),
            ("of an older format", lambda path: os.unlink(os.path.join(path, MANIFEST_NAME))),
            ("empty", lambda path: [os.unlink(os.path.join(path, name)) for name in os.listdir(path)]),
            ("made anew", lambda path: (shutil.rmtree(path), os.mkdir(path))),
        ]
    )
    def test_a_change_is_seen(self, _, change):
        self.seal(10, 20, 30)
        self.settle()
        before = self.plan()
        self.assertEqual(before.retire, (self.path(10), self.path(20)))
        change(self.path(20))
        plan = self.plan(later=10.0)
        self.assertNotEqual(plan, before)
        self.assertEqual(plan, plan_rotation(self.out, limit=1))

    def test_a_new_one_and_one_that_is_gone(self):
        self.seal(10, 20)
        self.settle()
        self.seal(30)
        self.assertEqual(self.plan().retire, (self.path(10), self.path(20)))
        shutil.rmtree(self.path(10))
        self.assertEqual(self.plan().retire, (self.path(20),))

    def test_another_checkpoint_in_its_place(self):
        self.seal(10, 20)
        self.settle()
        os.rename(self.path(20), self.path("aside"))
        os.rename(self.path(10), self.path(20))
        os.rename(self.path("aside"), self.path(10))
        self.assertEqual(self.plan().retire, (self.path(20),))

    def test_nothing_is_remembered_within_one_step_of_the_times(self):
        self.seal(10, 20)
        with self.coarse:
            for later in (0.0, 0.5, 1.0):
                self.plan(later)
            Path(self.path(10), KEEP_NAME).touch()
            self.assertEqual(self.plan().retire, ())

    def test_what_is_settled_is_not_read_again(self):
        self.seal(10, 20)
        with self.coarse:
            self.settle()
            with mock.patch.object(rotation.discovery, "look", side_effect=AssertionError("read again")):
                self.assertEqual(self.plan().retire, (self.path(10),))
                self.step_of_times += 1
                with self.assertRaisesRegex(AssertionError, "read again"):
                    self.plan()


class EmptyDirectoryTest(RotationTestCase):
    """What holds nothing may go first; directories like that are all that some callers of `rotate_checkpoints` have."""

    def empty(self, *steps: int) -> None:
        for step in steps:
            os.makedirs(self.path(step), exist_ok=True)

    @parameterized.expand(
        [
            ("two newest", 2, None, [20, 25]),
            ("best and newest", 2, 5, [5, 25]),
            ("best is newest", 1, 25, [25]),
            ("best over the limit", 1, 5, [5, 25]),
            ("best of two", 3, 10, [10, 20, 25]),
            ("none over the limit", 5, None, [5, 10, 15, 20, 25]),
        ]
    )
    def test_empty_ones_alone_are_rotated_by_step(self, _, limit, best, expected):
        self.empty(20, 5, 25, 10, 15)
        rotate(self.out, limit, None if best is None else self.path(best), use_mtime=True)
        self.assert_steps(*expected)

    def test_empty_ones_go_before_any_that_holds_something(self):
        self.seal(10, 20)
        self.empty(5, 30, 40)
        self.rotate(3)
        self.assert_steps(10, 20, 40)
        self.rotate(2)
        self.assert_steps(10, 20)

    def test_an_empty_best_takes_no_room_from_one_that_holds_something(self):
        self.seal(10, 20, 30)
        self.empty(5)
        self.rotate(2, protected={"the best": self.path(5)})
        self.assert_steps(5, 20, 30)

    def test_more_empty_ones_than_are_looked_into(self):
        self.empty(*range(1, 131))
        self.rotate(129)
        self.assert_steps(*range(2, 131))

    def test_one_that_is_filled_in_the_meantime_stays(self):
        self.empty(10)
        self.seal(20)
        plan = plan_rotation(self.out, limit=1)
        self.assertEqual(plan.remove, (self.path(10),))
        self.touch(self.path(10, "model.safetensors"), "somebody saves here")
        with self.captured() as log:
            outcome = carry_out(plan, self.out, durable=False)
        self.assertEqual(outcome.gone, ())
        self.assertIn(self.path(10), log.out)
        self.assertEqual(os.listdir(self.path(10)), ["model.safetensors"])

    def test_one_that_holds_only_a_pin_is_not_empty(self):
        self.empty(10)
        self.touch(self.path(10, KEEP_NAME))
        self.seal(20)
        self.rotate(1)
        self.assert_steps(10, 20)


class OtherPrefixTest(RotationTestCase):
    def make(self, *names: str) -> None:
        for name in names:
            write_files(self.path(name), {"weights.bin": b"anything"})

    def test_each_that_holds_something_counts_in_the_order_of_steps(self):
        self.make("epoch-9", "epoch-10", "epoch-11", "epoch-final", "epoch-1-merged", "my-epoch-1")
        os.mkdir(self.path("epoch-12"))
        self.stock(1)
        rotate(self.out, 2, self.path("epoch-9"), checkpoint_prefix="epoch")
        self.assertEqual(
            sorted(os.listdir(self.out)),
            ["checkpoint-1", "epoch-1-merged", "epoch-11", "epoch-9", "epoch-final", "my-epoch-1"],
        )

    def test_pins_and_sentinels_mean_the_same(self):
        self.make("epoch-1", "epoch-2", "epoch-3", "epoch-4")
        self.touch(self.path("epoch-1", KEEP_NAME))
        self.touch(self.path("epoch-4", SENTINEL_NAME))
        rotate(self.out, 1, checkpoint_prefix="epoch")
        self.assertEqual(sorted(os.listdir(self.out)), ["epoch-1", "epoch-3", "epoch-4"])

    def test_a_prefix_is_no_pattern(self):
        self.make("a.b-1", "a.b-2", "axb-1")
        rotate(self.out, 1, checkpoint_prefix="a.b")
        self.assertEqual(sorted(os.listdir(self.out)), ["a.b-2", "axb-1"])


class LinkTest(RotationTestCase):
    def test_a_link_is_neither_counted_nor_followed(self):
        elsewhere = self.get_auto_remove_tmp_dir()
        write_files(elsewhere, content("elsewhere", 10))
        before = read_files(elsewhere)
        os.symlink(elsewhere, self.path(10))
        self.seal(20, 30, 40)
        self.rotate(2)
        self.assert_steps(10, 30, 40)
        self.assertTrue(os.path.islink(self.path(10)))
        self.assertEqual(read_files(elsewhere), before)

    def test_what_a_link_leads_to_stays(self):
        self.seal(10, 20, 30)
        os.symlink("checkpoint-10", self.path(99))
        plan = plan_rotation(self.out, limit=1)
        self.assertEqual(plan.keep[self.path(10)], "checkpoint-99 leads to it")
        self.rotate(1)
        self.assert_steps(10, 30, 99)

    def test_a_directory_that_becomes_a_link_is_not_followed(self):
        self.seal(10, 20)
        plan = plan_rotation(self.out, limit=1)
        elsewhere = os.path.join(self.get_auto_remove_tmp_dir(), "moved")
        shutil.move(self.path(10), elsewhere)
        os.symlink(elsewhere, self.path(10))
        self.assertEqual(carry_out(plan, self.out, durable=False).gone, ())
        self.assert_whole(10)

    def test_a_broken_link_stops_nothing(self):
        self.seal(20, 30)
        os.symlink(self.path("nowhere"), self.path(10))
        os.symlink(self.path(11), self.path(11))
        self.assertEqual(self.rotate(1).problems, ())
        self.assertEqual(sorted(os.listdir(self.out)), ["checkpoint-10", "checkpoint-11", "checkpoint-30"])

    def test_links_inside_a_checkpoint_are_deleted_and_not_followed(self):
        precious = os.path.join(self.get_auto_remove_tmp_dir(), "precious")
        write_files(precious, {"data": b"precious"})
        self.seal(10, 20)
        os.symlink(precious, self.path(10, "data"))
        self.rotate(1)
        self.assert_steps(20)
        self.assertEqual(read_files(precious), {"data": b"precious"})


class TrashTest(RotationTestCase):
    def test_a_users_own_trash_is_left_as_it_is(self):
        mine = {"checkpoint-10/weights": b"mine", "notes.txt": b"mine", "checkpoint-10.backup/a": b"mine"}
        write_files(self.path("_trash"), mine)
        self.seal(10, 20)
        self.rotate(1)
        sweep_leftovers(self.out)
        self.assertEqual(read_files(self.path("_trash")), mine)
        self.assert_steps(20)

    @parameterized.expand([("link",), ("file",)])
    def test_where_the_name_is_taken_the_sentinel_comes_first(self, how):
        elsewhere = self.get_auto_remove_tmp_dir()
        precious = {"checkpoint-5.0123456789abcdef/a": b"precious"}
        write_files(elsewhere, precious)
        if how == "link":
            os.symlink(elsewhere, self.path("_trash"))
        else:
            self.touch(self.path("_trash"), "mine")
        self.seal(10, 20)
        order = []
        with mock.patch.object(disk, "delete", side_effect=lambda path: _seen_before_delete(order, path)):
            outcome = self.rotate(1)
        self.assertEqual(outcome.gone, (self.path(10),))
        self.assertTrue(all(order), order)
        self.assert_steps(20)
        self.assertEqual(read_files(elsewhere), precious)
        sweep_leftovers(self.out)
        self.assertEqual(read_files(elsewhere), precious)

    def test_leftovers_are_swept_and_only_those(self):
        self.seal(10, 20, 30)
        carry_out(plan_rotation(self.out, limit=1), self.out, durable=False)
        self.assertEqual(len(os.listdir(self.path("_trash"))), 2)
        sweep_leftovers(self.out)
        self.assertEqual(os.listdir(self.out), ["checkpoint-30"])
        sweep_leftovers(self.out)
        sweep_leftovers(self.path("missing"))
        self.assert_whole(30)

    def test_a_deletion_that_was_begun_in_place_is_finished_at_the_start(self):
        self.stock(10, 20, 30, 40)
        for step in (10, 20, 40):
            self.touch(self.path(step, SENTINEL_NAME), f"{rotation.DELETION_MARK}\n")
        self.touch(self.path(30, SENTINEL_NAME), "Step 30 is being saved here.\n")
        self.touch(self.path(40, KEEP_NAME))
        os.unlink(self.path(20, "optimizer.pt"))
        sweep_leftovers(self.out)
        self.assert_steps(30, 40)

    def test_what_cannot_be_deleted_is_reported_once_with_where_it_lies(self):
        self.seal(10, 20)

        def refuse(path, *args, **kwargs):
            raise OSError(errno.EBUSY, "Device or resource busy", path)

        with self.captured() as log, mock.patch.object(os, "unlink", refuse):
            self.rotate(1)
            self.rotate(1)
            sweep_leftovers(self.out)
        self.assert_steps(20)
        trash = os.listdir(self.path("_trash"))
        self.assertEqual(len(trash), 1)
        self.assertEqual(log.out.count("could not be deleted entirely"), 1, log.out)
        self.assertIn(self.path("_trash", trash[0]), log.out)
        self.assertIn("Device or resource busy", log.out)
        sweep_leftovers(self.out)
        self.assertEqual(os.listdir(self.out), ["checkpoint-20"])


def _seen_before_delete(order: list[bool], path: str) -> list[str]:
    """Notes whether the sentinel is beside what is deleted, and deletes it."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    order.append(os.path.exists(os.path.join(folder, SENTINEL_NAME)))
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.remove(path)
    return []


class FailingDiskTest(RotationTestCase):
    @parameterized.expand([(step, number) for step in (10, 20, 30) for number in (1, 2, 3)])
    def test_a_head_that_cannot_be_read_for_a_moment_costs_no_newer_checkpoint(self, step, number):
        """Without its head a checkpoint has another place in the order, which it must not keep once it is readable."""
        self.seal(10, 20, 30)
        real, reads = discovery.read_head, []

        def read_head(path):
            if os.path.basename(path) == f"checkpoint-{step}":
                reads.append(path)
                if len(reads) <= number:
                    raise OSError(5, "Input/output error", path)
            return real(path)

        with mock.patch.object(discovery, "read_head", read_head):
            self.rotate(1)
        self.assertIn(30, steps_in(self.out))
        self.assertEqual(newest_complete_checkpoint(self.out), self.path(30))

    @parameterized.expand([(name,) for name in ("ENOSYS", "EPERM", "EXDEV", "EOPNOTSUPP", "EACCES", "EIO", "ENOSPC")])
    def test_where_renaming_fails_the_checkpoint_is_deleted_in_place(self, name):
        self.seal(10, 20)
        self.stock(30)
        with mock.patch.object(os, "rename", side_effect=OSError(getattr(errno, name), name)):
            outcome = self.rotate(1)
        self.assertEqual((outcome.gone, outcome.problems), ((self.path(10), self.path(20)), ()))
        self.assert_steps(30)

    def test_if_not_even_the_sentinel_can_be_written_the_checkpoint_stays_whole(self):
        self.seal(10, 20)
        real_open = open

        def read_only(path, mode="r", *args, **kwargs):
            if "w" in mode or "x" in mode:
                raise OSError(errno.EROFS, "Read-only file system", path)
            return real_open(path, mode, *args, **kwargs)

        with (
            self.captured() as log,
            mock.patch.object(os, "rename", side_effect=OSError(errno.EROFS, "Read-only file system")),
            mock.patch("builtins.open", read_only),
        ):
            first = self.rotate(1)
            self.rotate(1)
        self.assertEqual(len(first.problems), 1)
        self.assertEqual(log.out.count(f"{self.path(10)} is beyond"), 1, log.out)
        self.assertIn("Read-only file system", log.out)
        self.assert_whole(10, 20)

    def test_a_deletion_in_place_that_fails_leaves_the_sentinel(self):
        self.stock(10, 20)

        def refuse(path, *args, **kwargs):
            if os.path.basename(path) == "optimizer.pt":
                raise OSError(errno.EBUSY, "Device or resource busy", path)
            return real_unlink(path, *args, **kwargs)

        real_unlink = os.unlink
        with (
            self.captured() as log,
            mock.patch.object(os, "rename", side_effect=OSError(errno.EPERM, "Operation not permitted")),
            mock.patch.object(os, "unlink", refuse),
        ):
            outcome = self.rotate(1)
        self.assertEqual((outcome.gone, len(outcome.problems)), ((), 1))
        self.assertEqual(sorted(os.listdir(self.path(10))), [SENTINEL_NAME, "optimizer.pt"])
        self.assertIn(self.path(10, "optimizer.pt"), log.out)
        self.assertEqual(newest_complete_checkpoint(self.out), self.path(20))
        sweep_leftovers(self.out)
        self.assert_steps(20)

    def test_a_flush_that_fails_after_the_rename_is_reported_and_raises_nothing(self):
        self.seal(10, 20)

        def fail_after_the_rename(path):
            if not os.path.exists(self.path(10)):
                raise OSError(errno.EIO, "Input/output error", path)

        with mock.patch.object(disk, "flush_directory", fail_after_the_rename):
            outcome = rotate_run(self.out, limit=1, durable=True)
        self.assertEqual(len(outcome.problems), 1)
        self.assertIn("power cut", outcome.problems[0])
        self.assert_steps(20)

    def test_where_nothing_can_be_flushed_the_checkpoint_stays_usable(self):
        self.stock(10, 20)
        with mock.patch.object(disk, "flush_directory", side_effect=OSError(errno.EIO, "Input/output error")):
            outcome = rotate_run(self.out, limit=1, durable=True)
        self.assertEqual((outcome.gone, len(outcome.problems)), ((), 1))
        self.assert_whole(10, 20)

    def test_an_immutable_checkpoint_is_reported_and_stays_whole(self):
        self.seal(10, 20)
        with _immutable(self.path(10)) as immutable:
            if not immutable:
                self.skipTest("this file system has no immutable directories, or this process may not make one")
            with self.captured() as log:
                outcome = self.rotate(1)
                self.rotate(1)
            self.assertEqual(len(outcome.problems), 1)
            self.assertEqual(log.out.count(f"{self.path(10)} is beyond"), 1, log.out)
            self.assert_whole(10, 20)
        self.rotate(1)
        self.assert_steps(20)

    def test_an_immutable_file_lies_in_the_trash_and_is_reported(self):
        self.seal(10, 20)
        inode = os.stat(self.path(10, "optimizer.pt")).st_ino
        with _immutable(self.path(10, "optimizer.pt")) as immutable:
            if not immutable:
                self.skipTest("this file system has no immutable files, or this process may not make one")
            with self.captured() as log:
                self.rotate(1)
            self.assert_steps(20)
            (left,) = Path(self.path("_trash")).rglob("optimizer.pt")
            self.assertEqual(left.stat().st_ino, inode)
            self.assertIn(str(left), log.out)
            subprocess.run(["chattr", "-i", str(left)], check=True, timeout=60)
        sweep_leftovers(self.out)
        self.assertEqual(os.listdir(self.out), ["checkpoint-20"])

    @unittest.skipUnless(hasattr(os, "geteuid") and os.geteuid() == 0, "another user can only be had as root")
    def test_a_run_directory_of_another_user_is_left_as_it_is(self):
        self.seal(10, 20)
        os.chmod(self.out, 0o755)

        def rotate_as_nobody():
            os.setuid(65534)
            outcome = self.rotate(1)
            assert len(outcome.problems) == 1 and self.path(10) in outcome.problems[0], outcome

        if not _reachable(self.out):
            self.skipTest("other users cannot reach the temporary folder")
        self.assertEqual(in_child(rotate_as_nobody, self.out)[0], 0)
        self.assert_whole(10, 20)

    def test_an_open_file_stops_nothing(self):
        self.seal(10, 20)
        with open(self.path(10, "model.safetensors"), "rb") as file:
            self.assertEqual(self.rotate(1).problems, ())
            self.assertEqual(file.read(), content("sealed 10", 10)["model.safetensors"])
        self.assert_steps(20)


@contextlib.contextmanager
def _immutable(path: str):
    done = (
        shutil.which("chattr") is not None
        and subprocess.run(["chattr", "+i", path], capture_output=True, timeout=60).returncode == 0
    )
    try:
        yield done
    finally:
        if done:
            subprocess.run(["chattr", "-i", path], capture_output=True, timeout=60)


def _reachable(path: str) -> bool:
    return all(os.stat(parent).st_mode & 0o005 == 0o005 for parent in Path(path).resolve().parents)


class BusyTest(RotationTestCase):
    def test_under_an_upload_everything_is_put_off(self):
        self.seal(10, 20, 30)
        uploading = threading.Event()
        uploading.set()
        outcome = self.rotate(1, busy=uploading.is_set)
        self.assertEqual((outcome.gone, outcome.put_off), ((), (self.path(10), self.path(20))))
        self.assert_whole(10, 20, 30)
        uploading.clear()
        self.assertEqual(self.rotate(1, busy=uploading.is_set).put_off, ())
        self.assert_steps(30)

    def test_an_upload_that_starts_in_between_stops_the_rest(self):
        self.seal(10, 20, 30)
        answers = iter([False, True])
        outcome = self.rotate(1, busy=lambda: next(answers))
        self.assertEqual((outcome.gone, outcome.put_off), ((self.path(10),), (self.path(20),)))
        self.assert_steps(20, 30)


class EndOfTrainingTest(RotationTestCase):
    def test_the_final_state_survives_a_metric_that_is_only_watched(self):
        self.seal(10, 20, 30)
        rotate(self.out, 1, self.path(10))
        clean_up_at_end(self.out, self.path(10), keep_final=True)
        self.assert_steps(10, 30)

    def test_the_best_only_if_that_was_asked_for(self):
        self.seal(10, 20, 30)
        self.stock(40)
        os.mkdir(self.path(50))
        clean_up_at_end(self.out, self.path(20), keep_final=False)
        self.assertEqual(sorted(os.listdir(self.out)), ["checkpoint-20"])

    def test_pins_and_milestones_survive_the_end(self):
        self.seal(10, 20, 30, 40)
        self.touch(self.path(40, KEEP_NAME))
        clean_up_at_end(self.out, self.path(20), keep_final=False, keep_every=30)
        self.assert_steps(20, 30, 40)

    @parameterized.expand([("missing",), ("damaged",), ("unknown",)])
    def test_without_a_good_best_nothing_goes(self, how):
        self.seal(20, 30)
        best = self.path(20)
        if how == "missing":
            best = self.path(10)
        elif how == "damaged":
            self.damage(20)
        clean_up_at_end(self.out, None if how == "unknown" else best, keep_final=False)
        self.assert_steps(20, 30)

    def test_it_raises_nothing(self):
        self.touch(self.path("file"))
        self.assertEqual(len(clean_up_at_end(self.path("file"), self.path(1), keep_final=False).problems), 1)
        self.assertEqual(clean_up_at_end(self.path("none"), self.path(1), keep_final=False).gone, ())


class SweeperTest(RotationTestCase):
    def test_deleting_is_not_on_the_way_of_the_training(self):
        self.seal(10, 20, 30, 40)
        aside = os.path.join(self.get_auto_remove_tmp_dir(), "checkpoint-40")
        shutil.move(self.path(40), aside)
        may_delete = threading.Event()
        real_delete = disk.delete

        def delete_later(path):
            may_delete.wait(60)
            return real_delete(path)

        sweeper = Sweeper()
        with mock.patch.object(disk, "delete", delete_later):
            self.rotate(2, sweeper=sweeper)
            # Nothing is deleted yet, and the training has its thread back: it publishes and rotates again.
            self.assertEqual(len(os.listdir(self.path("_trash"))), 1)
            self.assert_steps(20, 30)
            shutil.move(aside, self.path(40))
            self.rotate(2, sweeper=sweeper)
            self.assert_steps(30, 40)
            self.assertEqual(len(os.listdir(self.path("_trash"))), 2)
            may_delete.set()
            self.assertTrue(sweeper.close(60))
        self.assertEqual(sorted(os.listdir(self.out)), ["checkpoint-30", "checkpoint-40"])

    def test_it_can_be_closed_twice_and_used_again(self):
        self.seal(10, 20)
        sweeper = Sweeper()
        self.assertTrue(sweeper.close(60))
        self.rotate(1, sweeper=sweeper)
        self.assertTrue(sweeper.close(60))
        self.seal(30)
        self.rotate(1, sweeper=sweeper)
        self.assertTrue(sweeper.close(60))
        self.assertEqual(os.listdir(self.out), ["checkpoint-30"])

    def test_closing_says_if_it_takes_too_long(self):
        self.seal(10, 20)
        may_delete = threading.Event()
        sweeper = Sweeper()
        with mock.patch.object(disk, "drain_trash", lambda run_dir: [] if may_delete.wait(60) else ["never"]):
            self.rotate(1, sweeper=sweeper)
            with self.captured() as log:
                self.assertFalse(sweeper.close(0.01))
            self.assertIn(self.path("_trash"), log.out)
            may_delete.set()

    def test_without_a_thread_it_deletes_at_once(self):
        self.seal(10, 20)
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            self.rotate(1, sweeper=Sweeper())
        self.assertEqual(os.listdir(self.out), ["checkpoint-20"])

    @parameterized.expand(
        [("returns", ""), ("raises", "raise ValueError('the training failed')"), ("exits", "exit(3)")]
    )
    def test_the_process_ends_only_after_everything_is_deleted(self, _, ending):
        self.seal(10, 20)
        script = f"""
            import time
            from transformers.trainer_checkpoint import disk, rotation

            real_delete = disk.delete

            def slowly(path):
                time.sleep(0.5)
                return real_delete(path)

            disk.delete = slowly
            sweeper = rotation.Sweeper()
            rotation.rotate_run({self.out!r}, limit=1, sweeper=sweeper)
            assert rotation.os.listdir({self.path("_trash")!r})
            {ending}
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, timeout=300)
        self.assertEqual(done.returncode, {"": 0, "exit(3)": 3}.get(ending, 1), done.stderr.decode())
        self.assertEqual(os.listdir(self.out), ["checkpoint-20"])

    def test_a_retirement_and_a_sweep_do_not_get_into_each_others_way(self):
        """Each sweep removes the empty trash, and each retirement needs it."""
        sweeper = Sweeper()
        self.seal(1)
        for step in range(2, 60):
            os.makedirs(self.path(step))
            write_files(self.path(step), content("quick", step))
            outcome = self.rotate(1, sweeper=sweeper)
            self.assertEqual((outcome.gone, outcome.problems), ((self.path(step - 1),), ()))
        self.assertTrue(sweeper.close(60))
        self.assertEqual(os.listdir(self.out), ["checkpoint-59"])


class SeveralProcessesTest(RotationTestCase):
    def test_rotations_at_the_same_time_leave_what_one_would_leave(self):
        """Only the publisher rotates, but a script may call `rotate_checkpoints` on every rank."""
        self.seal(*range(10, 90, 10))
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    rotate(self.out, 2, self.path(30))
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        self.assertEqual([wait_for(child) for child in children], [0, 0, 0, 0])
        rotate(self.out, 2, self.path(30))
        self.assertEqual(sorted(os.listdir(self.out)), ["checkpoint-30", "checkpoint-80"])
        self.assert_whole(30, 80)

    def test_two_disks_are_rotated_alike(self):
        disks = (self.out, self.get_auto_remove_tmp_dir())
        for step in range(10, 60, 10):
            for run_dir in disks:
                save(run_dir, step, content("part", step), durable=False)
                best = os.path.join(run_dir, "checkpoint-20")
                rotate_run(run_dir, limit=2, keep_every=30, protected={"the best": best}, own=range(10, step + 1, 10))
        self.assertEqual([steps_in(run_dir) for run_dir in disks], [[20, 30, 50]] * 2)


@pytest.mark.slow
class KillTest(RotationTestCase):
    """The process is killed at every file operation. Everything is whole, or gone."""

    def build(self) -> None:
        self.stock(10, 20)
        self.seal(30, 40, 50)
        self.damage(20)
        os.mkdir(self.path(5))
        self.touch(self.path(30, KEEP_NAME))
        self.before = {step: read_files(self.path(step)) for step in (10, 20, 30, 40, 50)}
        self.pristine = os.path.join(self.get_auto_remove_tmp_dir(), "pristine")
        shutil.copytree(self.out, self.pristine)

    def rebuild(self) -> None:
        shutil.rmtree(self.out)
        shutil.copytree(self.pristine, self.out)

    def assert_nothing_torn(self, announced: int, stays: tuple[int, ...], at: int) -> None:
        self.assertEqual(newest_complete_checkpoint(self.out), self.path(announced), at)
        self.assertLessEqual(set(stays), set(steps_in(self.out)), at)
        for found in find_checkpoints(self.out, check="all"):
            # Whatever a reader takes for complete is what was saved, file by file.
            if found.complete or found.step in stays:
                self.assertEqual(read_files(found.path), self.before[found.step], (at, found.step))

    def campaign(
        self, rotation_action: Callable[[], object], stays: tuple[int, ...], announced: int = 50
    ) -> list[str]:
        """Kill at each operation; then look, restart, and look again."""
        self.build()
        status, operations = in_child(rotation_action, self.out)
        self.assertEqual(status, 0)
        self.assertEqual(sorted(os.listdir(self.out)), sorted(f"checkpoint-{step}" for step in stays))
        self.assertGreater(len(operations), 10)
        for at in range(1, len(operations) + 1):
            self.rebuild()
            status, _ = in_child(rotation_action, self.out, at)
            self.assertEqual(os.WTERMSIG(status), signal.SIGKILL, (at, operations[at - 1]))
            self.assert_nothing_torn(announced, stays, at)
            sweep_leftovers(self.out)
            self.assert_nothing_torn(announced, stays, at)
            self.assertFalse(os.path.exists(self.path("_trash")), at)
            rotation_action()
            self.assertEqual(sorted(os.listdir(self.out)), sorted(f"checkpoint-{step}" for step in stays), at)
        return operations

    def test_at_every_operation_of_a_rotation(self):
        operations = self.campaign(lambda: rotate_run(self.out, limit=1, durable=True), (20, 30, 50))
        kinds = {operation.split()[0] for operation in operations}
        self.assertLessEqual({"os.rename", "os.rmdir", "os.remove", "trainer_checkpoint.flush"}, kinds)
        renames = [at for at, operation in enumerate(operations) if operation.startswith("os.rename")]
        removals = [at for at, operation in enumerate(operations) if operation.startswith("os.remove")]
        self.assertLess(max(renames), min(removals))

    def test_at_every_operation_with_a_sweeper(self):
        def rotate_and_sweep():
            sweeper = Sweeper()
            rotate_run(self.out, limit=1, durable=True, sweeper=sweeper)
            assert sweeper.close(60)

        self.campaign(rotate_and_sweep, (20, 30, 50))

    def test_at_every_operation_where_nothing_can_be_renamed(self):
        def rotate_in_place():
            with mock.patch.object(os, "rename", side_effect=OSError(errno.ENOSYS, "Function not implemented")):
                rotate_run(self.out, limit=1, durable=True)

        operations = self.campaign(rotate_in_place, (20, 30, 50))
        self.assertFalse(any(operation.startswith("os.rename") for operation in operations))

    def test_at_every_operation_of_the_end_of_training(self):
        def best_only():
            clean_up_at_end(self.out, self.path(40), keep_final=False)

        self.build()
        status, operations = in_child(best_only, self.out)
        self.assertEqual(status, 0)
        self.assert_steps(20, 30, 40)
        for at in range(1, len(operations) + 1):
            self.rebuild()
            in_child(best_only, self.out, at)
            for found in find_checkpoints(self.out, check="all"):
                if found.complete:
                    self.assertEqual(read_files(found.path), self.before[found.step], (at, found.step))
            self.assert_whole(40)

    def test_at_every_operation_of_a_sweep(self):
        self.build()
        plan = plan_rotation(self.out, limit=1)
        carry_out(plan, self.out, durable=True)
        shutil.rmtree(self.pristine)
        shutil.copytree(self.out, self.pristine)
        _, operations = in_child(lambda: sweep_leftovers(self.out), self.out)
        self.assertGreater(len(operations), 10)
        for at in range(1, len(operations) + 1):
            self.rebuild()
            status, _ = in_child(lambda: sweep_leftovers(self.out), self.out, at)
            self.assertEqual(os.WTERMSIG(status), signal.SIGKILL)
            self.assert_nothing_torn(50, (20, 30, 50), at)
            sweep_leftovers(self.out)
            self.assertFalse(os.path.exists(self.path("_trash")))


class GuardsCanFailTest(RotationTestCase):
    """Each guard taken out: what it guards against happens."""

    def test_ordering_by_modification_time_deletes_the_newest(self):
        self.seal(10, 20)
        os.utime(self.path(10), (2e9, 2e9))

        def by_time(found):
            return sorted(found, key=lambda entry: os.path.getmtime(entry.path))

        with mock.patch.object(rotation, "in_order", by_time):
            self.rotate(1)
        self.assertNotEqual(newest_complete_checkpoint(self.out), self.path(20))

    def test_counting_without_looking_leaves_nothing_to_resume_from(self):
        self.seal(10, 20)
        self.damage(20)
        unseen = lambda found: dataclasses.replace(found, problem=None, checked=True)  # noqa: E731
        with mock.patch.object(rotation, "look_closely", unseen):
            self.rotate(1)
        self.assertIsNone(newest_complete_checkpoint(self.out))

    def test_comparing_paths_as_they_are_written_deletes_the_best(self):
        self.seal(10, 20, 30)
        with (
            mock.patch.object(os.path, "realpath", lambda path, **kwargs: os.fspath(path)),
            mock.patch.object(rotation, "_identity", lambda path: (0, hash(os.fspath(path)))),
        ):
            rotate(self.out, 2, os.path.relpath(self.path(10)))
        self.assert_steps(20, 30)

    def test_deleting_without_retiring_leaves_torn_checkpoints(self):
        self.stock(10, 20)
        whole = read_files(self.path(10))

        def delete_at_once(run_dir, path, *args, **kwargs):
            disk.delete(path)

        def rotate_unguarded():
            with mock.patch.object(disk, "retire", delete_at_once):
                self.rotate(1)

        _, operations = in_child(rotate_unguarded, self.out)
        self.stock(10)
        torn = 0
        for at in range(1, len(operations) + 1):
            in_child(rotate_unguarded, self.out, at)
            if os.path.isdir(self.path(10)):
                torn += read_files(self.path(10)) != whole
                shutil.rmtree(self.path(10))
            self.stock(10)
        self.assertGreater(torn, 0)

    def test_following_links_deletes_what_is_elsewhere(self):
        elsewhere = self.get_auto_remove_tmp_dir()
        write_files(elsewhere, content("elsewhere", 10))
        os.symlink(elsewhere, self.path(10))
        self.seal(20)
        with (
            mock.patch.object(os.path, "islink", lambda path: False),
            mock.patch.object(os, "rename", side_effect=OSError(errno.EPERM, "Operation not permitted")),
        ):
            carry_out(Plan(retire=(self.path(10),)), self.out, durable=False)
        self.assertEqual(os.listdir(elsewhere), [SENTINEL_NAME])
