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
"""Resuming on two processes: one launch of `scripts/resume_cases.py` runs all cases, and these are the verdicts."""

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

import pytest
from filelock import FileLock
from parameterized import parameterized

from transformers.testing_utils import get_torch_dist_unique_port


SCRIPTS = Path(__file__).parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from resume_cases import CASES, DAMAGES, FILES, LAST_STEP, PATIENCE, SCHEDULES, STEPS  # noqa: E402


# What resuming does not read: damage to it is no obstacle to a path.
UNREAD = ("training_args.bin",)
LOADERS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler")


def launch(folder: Path) -> None:
    """Go through all cases on two processes. On disk afterwards: what each rank saw."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command += ["--master_port", str(get_torch_dist_unique_port()), str(SCRIPTS / "resume_cases.py")]
    done = subprocess.run(
        [*command, "--folder", str(folder)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        timeout=PATIENCE + 30,
    )
    if done.returncode != 0:
        raise AssertionError(f"The launch ended with {done.returncode}:\n{done.stderr[-5000:]}")


@pytest.fixture(scope="class")
def seen(request, tmp_path_factory):
    """What each rank saw of each case. The workers of a parallel test run share one launch."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "resume-on-two-ranks"
    with FileLock(f"{folder}.lock", timeout=2 * PATIENCE):
        folder.mkdir(exist_ok=True)
        files = [folder / f"rank{rank}.json" for rank in (0, 1)]
        if not all(file.exists() for file in files):
            launch(folder)
    request.cls.seen = [json.loads(file.read_text(encoding="utf-8")) for file in files]


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.usefixtures("seen")
class ResumeOnTwoRanksTest(unittest.TestCase):
    seen: list[dict]

    def both(self, name: str) -> list[dict]:
        return [seen[name] for seen in self.seen]

    def assert_resumed(self, name: str, step: int) -> None:
        """Both ranks went on from `step`, bit for bit as if nothing had happened."""
        reference = self.seen[0][f"reference-{CASES[name].schedule}"]["losses"]
        for rank, seen in enumerate(self.both(name)):
            self.assertNotIn("error", seen, f"rank {rank}: {seen.get('text')}")
            self.assertEqual(seen["first"], step + 1, f"rank {rank}")
            self.assertEqual(seen["losses"], reference, f"rank {rank}")
        self.assertEqual(*(seen["weights"] for seen in self.both(name)))
        self.assertEqual(self.seen[0][name]["left"], [f"checkpoint-{s}" for s in STEPS])

    def assert_same_error(self, name: str, *parts: str) -> None:
        first, second = self.both(name)
        for seen in (first, second):
            self.assertIn("CheckpointResumeError", seen.get("error", []), seen)
            self.assertIn("ValueError", seen["error"])
        self.assertEqual(first["text"], second["text"])
        for part in parts:
            self.assertIn(part, first["text"])

    def heard(self, name: str) -> str:
        """What rank 0 warned of; the other one has nothing to add."""
        self.assertEqual(self.seen[1][name]["heard"], [])
        return "\n".join(self.seen[0][name]["heard"])

    # ---- Bit for bit ----

    @parameterized.expand(SCHEDULES)
    def test_from_the_newest(self, schedule):
        self.assert_resumed(f"newest-{schedule}", 9)
        self.assertEqual(self.heard(f"newest-{schedule}"), "")

    @parameterized.expand(SCHEDULES)
    def test_after_a_fallback_to_the_end_of_an_epoch(self, schedule):
        self.assert_resumed(f"fallback-epoch-end-{schedule}", 6)

    @parameterized.expand(SCHEDULES)
    def test_after_a_fallback_into_an_epoch(self, schedule):
        name = f"fallback-mid-epoch-{schedule}"
        self.assert_resumed(name, 3)
        self.assertEqual(len(self.seen[0][name]["heard"]), 1)
        for part in ("checkpoint-9: optimizer.pt", "checkpoint-6: rng_state_1.pth is missing", "checkpoint-3"):
            self.assertIn(part, self.heard(name))

    def test_schedules_and_dropout_make_a_difference(self):
        linear, constant = (self.seen[0][f"reference-{schedule}"]["losses"] for schedule in SCHEDULES)
        self.assertEqual(linear[:2], constant[:2])
        self.assertNotEqual(linear[-1], constant[-1])

    # ---- Damages ----

    @parameterized.expand([(file, damage) for file in FILES for damage in DAMAGES])
    def test_a_damaged_file(self, file, damage):
        self.assert_resumed(f"true-{file}-{damage}", 6)
        self.assertIn(f"checkpoint-9: {file} ", self.heard(f"true-{file}-{damage}"))
        by_path = f"path-{file}-{damage}"
        if file in UNREAD:
            self.assert_resumed(by_path, 9)
            self.assertIn(file, self.heard(by_path))
        else:
            self.assert_same_error(by_path, "Can't find a valid checkpoint at", "checkpoint-9", file, "checkpoint-6")

    def test_all_damaged(self):
        self.assert_same_error(
            "all-damaged",
            "No valid checkpoint found in output directory",
            "checkpoint-9: model.safetensors",
            "checkpoint-6: rng_state_0.pth",
            "checkpoint-3: trainer_state.json",
        )

    # ---- What the ranks were given ----

    def test_nothing_given(self):
        for seen in self.both("none"):
            self.assertEqual(seen["first"], 1)
            self.assertEqual(seen["heard"], [])

    def test_a_path_that_is_not_there(self):
        self.assert_same_error("not-there", "Can't find a valid checkpoint at", "checkpoint-7", "no such directory")

    def test_different_paths(self):
        self.assert_same_error("different-paths", "rank 0: ", "checkpoint-6", "rank 1: ", "checkpoint-3")

    def test_one_rank_resumes_and_one_does_not(self):
        self.assert_same_error("different-kinds", "rank 0: True", "rank 1: None")

    def test_two_names_of_one_checkpoint(self):
        reference = self.seen[0]["reference-linear"]["losses"]
        for seen in self.both("two-names"):
            self.assertEqual((seen.get("first"), seen.get("losses")), (7, reference), seen.get("text"))

    def test_something_that_is_no_path(self):
        self.assert_same_error("bad-type", "`resume_from_checkpoint` is 5")

    # ---- Loading fails ----

    @parameterized.expand([(loader, rank) for loader in LOADERS for rank in (0, 1)])
    def test_an_unverified_one_that_fails_is_set_aside_by_all(self, loader, rank):
        name = f"unverified-{loader}-fails-on-{rank}"
        self.assert_resumed(name, 6)
        for part in ("checkpoint-9: could not be loaded", f"rank {rank}: {loader}", "no luck"):
            self.assertIn(part, self.heard(name))

    @parameterized.expand([(loader, rank) for loader in LOADERS for rank in (0, 1)])
    def test_a_verified_one_that_fails_is_not_to_blame(self, loader, rank):
        seen = self.both(f"verified-{loader}-fails-on-{rank}")
        self.assertEqual(seen[rank]["error"][0], "OSError")
        self.assertIn("no luck", seen[rank]["text"])
        self.assertEqual(seen[1 - rank]["error"][0], "CheckpointResumeError")
        for part in ("checkpoint-9", f"rank {rank}: {loader}", "no luck", "not the checkpoint"):
            self.assertIn(part, seen[1 - rank]["text"])
            self.assertIn(part, "".join(seen[rank]["notes"]))

    @parameterized.expand([(rank,) for rank in (0, 1)])
    def test_a_random_state_that_fails_raises_everywhere_and_names_the_next(self, rank):
        seen = self.both(f"random-state-fails-on-{rank}")
        self.assertEqual(seen[rank]["error"][0], "OSError")
        self.assertEqual(seen[1 - rank]["error"][0], "CheckpointResumeError")
        for text in (seen[1 - rank]["text"], "".join(seen[rank]["notes"])):
            self.assertIn("checkpoint-9 failed", text)
            self.assertIn("checkpoint-6; to go on from that", text)

    def test_a_path_is_that_one_or_an_error(self):
        seen = self.both("path-fails-to-load")
        self.assertEqual(seen[1]["error"][0], "OSError")
        self.assertEqual(seen[0]["error"][0], "CheckpointResumeError")
        self.assertIn("checkpoint-9 failed", seen[0]["text"])

    def test_two_equal_errors_in_a_row(self):
        seen = self.both("fails-twice")
        self.assertEqual(seen[1]["error"][0], "OSError")
        self.assertIn("checkpoint-6", seen[1]["text"])
        self.assertIn("Two checkpoints in a row", seen[0]["text"])

    def test_an_optimizer_of_another_model(self):
        self.assert_resumed("unverified-optimizer-of-another-model", 6)

    # ---- State that is not there ----

    def test_no_optimizer(self):
        self.assert_resumed("unverified-no-optimizer", 6)
        self.assertIn("no optimizer state", self.heard("unverified-no-optimizer"))

    def test_no_scheduler_by_path(self):
        self.assert_same_error("path-no-scheduler", "no scheduler state", 'resume_verify="off"')

    def test_no_random_state_of_one_rank(self):
        for seen in self.both("unverified-no-random-state"):
            self.assertEqual(seen["first"], 10)
        self.assertIn("no random state for rank(s) 1", self.heard("unverified-no-random-state"))

    # ---- Disks of their own ----

    def test_own_disks(self):
        self.assert_resumed("own-disks", 9)

    def test_the_newest_that_is_good_on_every_disk(self):
        self.assert_resumed("own-disks-one-damaged", 6)
        self.assertIn("(on rank 1, host1)", self.heard("own-disks-one-damaged"))

    def test_the_newest_that_is_there_on_every_disk(self):
        for seen in self.both("own-disks-one-lacks-it"):
            self.assertEqual(seen.get("first"), 7, seen)
        self.assertIn("checkpoint-9: cannot be looked at", self.heard("own-disks-one-lacks-it"))

    def test_a_path_that_is_damaged_on_one_disk(self):
        self.assert_same_error("own-disks-path-damaged-on-one", "optimizer.pt is missing (on rank 1, host1)")

    # ---- What a dead save left ----

    def test_a_sealed_one_is_published(self):
        for name in ("sealed", "sealed-path"):
            self.assert_resumed(name, 9)
            self.assertIn("checkpoint-9: the save that wrote it was interrupted", self.heard(name))

    def test_a_large_one_is_verified_for_longer_than_the_patience(self):
        self.assert_resumed("sealed-and-slow", 9)

    # ---- Disks that nothing can be written to ----

    def test_a_disk_that_nothing_can_be_written_to_can_be_resumed_from(self):
        self.assert_resumed("full-disk", 9)
        self.assert_resumed("full-disk-path", 9)
        for seen in self.both("full-disk-finished"):
            self.assertNotIn("error", seen, seen.get("text"))
            self.assertEqual((seen["first"], seen["step"]), (None, 9))
            self.assertEqual(seen["left"], [f"checkpoint-{step}" for step in STEPS])

    def test_one_of_two_disks_is_full(self):
        self.assert_resumed("own-disks-one-full", 9)

    # ---- The best checkpoint, the end ----

    def test_a_best_checkpoint_that_is_gone(self):
        for seen in self.both("best-is-gone"):
            self.assertEqual((seen.get("step"), seen["best"]), (10, None))
        self.assertIn("/gone/checkpoint-2, is not used", self.heard("best-is-gone"))

    def test_a_best_checkpoint_that_has_moved(self):
        first, second = self.both("best-has-moved")
        self.assertEqual(first["best"], second["best"])
        self.assertTrue(first["best"].endswith(os.path.join("best-has-moved", "checkpoint-3")), first["best"])

    def test_a_best_checkpoint_on_one_disk_only(self):
        for seen in self.both("best-is-on-one-disk"):
            self.assertEqual((seen.get("step"), seen["best"]), (10, None))
        self.assertIn("not there on rank(s) 1", self.heard("best-is-on-one-disk"))

    # ---- Ranks that can meet and not talk ----

    def test_without_a_store(self):
        self.assert_resumed("no-store", 9)
        self.assert_resumed("no-store-fallback", 6)
        self.assertIn("checkpoint-9: model.safetensors", self.heard("no-store-fallback"))

    def test_without_a_store_nothing_good_is_an_error_on_each(self):
        self.assert_same_error("no-store-all-damaged", "checkpoint-9: optimizer.pt", "checkpoint-3: optimizer.pt")
        self.assert_same_error("no-store-path", "checkpoint-9", "optimizer.pt is missing")

    def test_without_a_store_saves_are_in_place_and_whole(self):
        for seen in self.both("no-store-saves"):
            self.assertNotIn("error", seen)
            self.assertEqual(seen["saved"], "good")
            self.assertIn(f"checkpoint-{LAST_STEP}", seen["left"])
            self.assertNotIn("_staging", seen["left"])

    def test_a_finished_run(self):
        for seen in self.both("finished"):
            self.assertEqual((seen["first"], seen["step"]), (None, 9))
        self.assertIn("this run is finished", self.heard("finished"))
