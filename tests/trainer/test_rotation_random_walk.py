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
"""A random walk over everything that happens to a run directory: saves, rotations, crashes, restarts, users' hands.

Whatever the order, after each step the disk is looked at: nothing is torn, nothing that must stay is gone.
"""

import dataclasses
import os
import shutil
import tempfile
import unittest
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RULE_MARKER,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from transformers.trainer_checkpoint import disk, rotation
from transformers.trainer_checkpoint.discovery import (
    find_checkpoints,
    in_order,
    look_at,
    newest_complete_checkpoint,
)
from transformers.trainer_checkpoint.layout import KEEP_NAME
from transformers.trainer_checkpoint.rotation import clean_up_at_end, rotate, rotate_run, sweep_leftovers

from .test_checkpoint_rotation import content, in_child, read_files, save, steps_in, write_files


# More operations than any rotation in the walk has, so that some crashes come too late and some at the very end.
MOST_OPERATIONS = 70
STRANGERS = ("checkpoint-final-keep", "checkpoint-100-merged", "checkpoint-5.bak", "_trash/mine", "notes")

WALK = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    # A failing walk is short enough to read, and making it shorter takes minutes.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


class RunDirectoryWalk(RuleBasedStateMachine):
    @initialize(limit=st.integers(1, 3), keep_every=st.sampled_from([None, 40]))
    def start(self, limit: int, keep_every: int | None) -> None:
        self.folder = tempfile.mkdtemp()
        self.out = os.path.join(self.folder, "run")
        self.backup = os.path.join(self.folder, "backup")
        os.mkdir(self.out)
        os.mkdir(self.backup)
        for name in STRANGERS:
            write_files(self.path(name), {"weights": b"mine"})
        self.limit, self.keep_every = limit, keep_every
        self.step, self.count = 0, 0
        self.own: set[int] = set()
        self.best: int | None = None
        # Step to files, for each checkpoint that is whole as far as this walk knows.
        self.whole: dict[int, dict[str, bytes]] = {}

    def teardown(self) -> None:
        shutil.rmtree(getattr(self, "folder", ""), ignore_errors=True)

    def path(self, name: str | int) -> str:
        return os.path.join(self.out, name if isinstance(name, str) else f"checkpoint-{name}")

    def some(self, data) -> int:
        return data.draw(st.sampled_from(steps_in(self.out)), label="step")

    def there(self) -> bool:
        return bool(steps_in(self.out))

    def rotate(self) -> None:
        best = None if self.best is None else self.path(self.best)
        protected = {"the best": best}
        rotate_run(
            self.out,
            limit=self.limit,
            keep_every=self.keep_every,
            protected=protected,
            own=self.own,
            durable=False,
        )

    def guarded(self, action) -> set[int]:
        """Let rotation do something, and check that it has hurt nothing. Returns the complete ones from before."""
        newest = newest_complete_checkpoint(self.out)
        before = {found.step for found in find_checkpoints(self.out, check="all") if found.complete}
        stay = {step for step in self.whole if os.path.exists(os.path.join(self.path(step), KEEP_NAME))}
        stay |= {self.best} & set(self.whole)
        if self.keep_every:
            stay |= {step for step in self.whole if step % self.keep_every == 0}
        action()
        # Which one is the newest can change when one goes that was in between; the newest from before may not go.
        assert newest is None or look_at(newest).complete, (newest, steps_in(self.out))
        assert (newest_complete_checkpoint(self.out) is None) == (newest is None), (newest, steps_in(self.out))
        assert stay <= set(steps_in(self.out)), (stay, steps_in(self.out))
        for step in list(self.whole):
            if not os.path.isdir(self.path(step)) or look_at(self.path(step)).problem is not None:
                del self.whole[step]
        assert stay <= set(self.whole), (stay, self.whole)
        return before

    # ---- What the library does ----

    def save_one(self) -> None:
        self.step += 10
        self.count += 1
        files = content(f"save {self.count}", self.step)
        save(self.out, self.step, files, durable=False)
        self.own.add(self.step)
        self.whole[self.step] = files
        assert newest_complete_checkpoint(self.out) == self.path(self.step)

    @rule()
    def save_and_rotate(self) -> None:
        self.save_one()
        before = self.guarded(self.rotate)
        assert newest_complete_checkpoint(self.out) == self.path(self.step), steps_in(self.out)
        after = {found.step for found in find_checkpoints(self.out, check="all") if found.complete}
        assert len(after) >= min(self.limit, len(before)), (before, after)
        extra = {step for step in after if os.path.exists(os.path.join(self.path(step), KEEP_NAME))}
        extra |= {step for step in after if self.keep_every and step % self.keep_every == 0}
        extra |= {self.best, self.step}
        assert len(after - extra) <= self.limit, (after, extra)
        # What was retired is deleted; the user's own entry is seen to by `strangers_are_left_alone`.
        assert not any(disk.is_retired_name(name) for name in os.listdir(self.path("_trash")))

    @rule(at=st.integers(1, MOST_OPERATIONS))
    def save_and_crash_in_the_rotation(self, at: int) -> None:
        self.save_one()
        self.guarded(lambda: in_child(self.rotate, self.out, at))
        assert newest_complete_checkpoint(self.out) == self.path(self.step), steps_in(self.out)

    @rule(at=st.integers(1, MOST_OPERATIONS), again=st.booleans())
    def restart(self, at: int, again: bool) -> None:
        """The leftovers are swept, perhaps with a crash in it; the next run goes on, or starts from step 0."""
        self.guarded(lambda: in_child(lambda: sweep_leftovers(self.out), self.out, at))
        self.guarded(lambda: sweep_leftovers(self.out))
        self.own = set()
        newest = newest_complete_checkpoint(self.out)
        self.step = 0 if again or newest is None else int(newest.rpartition("-")[2])

    @rule(limit=st.integers(1, 4))
    def call_rotate_checkpoints(self, limit: int) -> None:
        """A script with another limit, that knows neither the milestones nor what this run saved."""
        keep_every, self.keep_every = self.keep_every, None
        best = None if self.best is None else os.path.relpath(self.path(self.best))
        self.guarded(lambda: rotate(self.out, limit, best, use_mtime=True))
        self.keep_every = keep_every

    @precondition(lambda self: self.best in self.whole)
    @rule(at=st.integers(1, MOST_OPERATIONS))
    def end_of_training(self, at: int) -> None:
        """Only the best is wanted, and the process is killed while the rest goes."""
        best, files = self.best, read_files(self.path(self.best))
        in_child(
            lambda: clean_up_at_end(self.out, self.path(best), keep_final=False, keep_every=self.keep_every),
            self.out,
            at,
        )
        assert read_files(self.path(best)) == files
        assert newest_complete_checkpoint(self.out) is not None
        for step in list(self.whole):
            if not os.path.isdir(self.path(step)) or look_at(self.path(step)).problem is not None:
                del self.whole[step]

    # ---- What others do ----

    @precondition(there)
    @rule(data=st.data(), seconds=st.sampled_from([0, 1, 2**31]))
    def touch(self, data, seconds: int) -> None:
        os.utime(self.path(self.some(data)), (seconds, seconds))

    @precondition(there)
    @rule(data=st.data())
    def pin_or_unpin(self, data) -> None:
        keep = os.path.join(self.path(self.some(data)), KEEP_NAME)
        if os.path.exists(keep):
            os.unlink(keep)
        else:
            write_files(os.path.dirname(keep), {KEEP_NAME: b""})

    @precondition(there)
    @rule(data=st.data())
    def damage(self, data) -> None:
        step = self.some(data)
        weights = os.path.join(self.path(step), "model.safetensors")
        if os.path.exists(weights):
            os.truncate(weights, 5)
        self.whole.pop(step, None)

    @precondition(there)
    @rule(data=st.data())
    def back_up(self, data) -> None:
        step = self.some(data)
        target = os.path.join(self.backup, f"checkpoint-{step}")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.path(step), target, copy_function=shutil.copy)

    @precondition(lambda self: os.listdir(self.backup))
    @rule(data=st.data())
    def restore(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(os.listdir(self.backup))), label="backup")
        if os.path.exists(self.path(name)):
            return
        shutil.copytree(os.path.join(self.backup, name), self.path(name), copy_function=shutil.copy)
        if look_at(self.path(name)).complete:
            self.whole[int(name.rpartition("-")[2])] = read_files(self.path(name))

    @rule(step=st.integers(1, 90), complete=st.booleans())
    def another_version_saves(self, step: int, complete: bool) -> None:
        if os.path.exists(self.path(step)):
            return
        files = content(f"stock {step}", step)
        if not complete:
            del files["trainer_state.json"]
        write_files(self.path(step), files)
        if complete:
            self.whole[step] = files

    @rule(step=st.integers(1, 90))
    def make_an_empty_directory(self, step: int) -> None:
        if not os.path.exists(self.path(step)):
            os.mkdir(self.path(step))

    @precondition(there)
    @rule(data=st.data())
    def choose_the_best(self, data) -> None:
        self.best = self.some(data)

    # ---- What holds at every moment ----

    @invariant()
    def nothing_is_torn(self) -> None:
        for step, files in getattr(self, "whole", {}).items():
            found = {name: data for name, data in read_files(self.path(step)).items() if name != KEEP_NAME}
            assert found == {name: data for name, data in files.items() if name != KEEP_NAME}, step

    @invariant()
    def strangers_are_left_alone(self) -> None:
        for name in STRANGERS if hasattr(self, "out") else ():
            assert read_files(self.path(name)) == {"weights": b"mine"}, name


@pytest.mark.slow
class RandomWalkTest(unittest.TestCase):
    def test_no_walk_hurts_a_checkpoint(self):
        run_state_machine_as_test(RunDirectoryWalk, settings=WALK)


def walk_of(*rules: str) -> type[RunDirectoryWalk]:
    """The walk with these rules alone: with all of them it would take long to come across a single fault."""
    every = [name for name, member in vars(RunDirectoryWalk).items() if hasattr(member, RULE_MARKER)]
    return type("NarrowWalk", (RunDirectoryWalk,), {name: None for name in every if name not in rules})


@pytest.mark.slow
class WalkCanFailTest(unittest.TestCase):
    """Each guard taken out: the walk finds what it guards against."""

    def assert_fails(self, *rules: str) -> None:
        with self.assertRaises((AssertionError, FileNotFoundError)):
            run_state_machine_as_test(walk_of(*rules), settings=WALK)

    def test_order_by_modification_time(self):
        def by_time(found):
            return sorted(found, key=lambda entry: os.path.getmtime(entry.path))

        with mock.patch.object(rotation, "in_order", by_time):
            self.assert_fails("save_and_rotate", "touch", "call_rotate_checkpoints")

    def test_counting_without_looking(self):
        def unseen(found):
            return dataclasses.replace(found, problem=None, checked=True)

        with mock.patch.object(rotation, "look_closely", unseen):
            self.assert_fails("save_and_rotate", "damage", "call_rotate_checkpoints")

    def test_deleting_without_retiring(self):
        def delete_at_once(run_dir, path, *args, **kwargs):
            disk.delete(path)

        with mock.patch.object(disk, "retire", delete_at_once):
            self.assert_fails("save_and_rotate", "save_and_crash_in_the_rotation", "another_version_saves")

    def test_forgetting_the_best(self):
        with mock.patch.object(rotation._Planner, "_protected", lambda self, protected: ({}, {})):
            self.assert_fails("save_and_rotate", "choose_the_best")

    def test_forgetting_pins(self):
        def unpinned(found):
            return in_order(dataclasses.replace(entry, pinned=False) for entry in found)

        with (
            mock.patch.object(rotation, "KEEP_NAME", "no-such-name"),
            mock.patch.object(rotation, "in_order", unpinned),
        ):
            self.assert_fails("save_and_rotate", "pin_or_unpin")

    def test_forgetting_milestones(self):
        def without(self, entry, keep_every, identities):
            return reason_to_stay(self, entry, None, identities)

        reason_to_stay = rotation._Planner._reason_to_stay
        with mock.patch.object(rotation._Planner, "_reason_to_stay", without):
            self.assert_fails("save_and_rotate")

    def test_sweeping_names_that_are_not_ours(self):
        with mock.patch.object(disk, "is_retired_name", lambda name: True):
            self.assert_fails("save_and_rotate")
