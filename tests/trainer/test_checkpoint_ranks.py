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
"""Saving on 1, 2 and 4 processes: all ranks agree, one publishes, and one rank's failure is everybody's.

Each launch of `scripts/rank_cases.py` goes through many cases, and `scripts/rank_losses.py` through the ranks that are
killed and stopped. The tests are the verdicts on what the ranks saw and on what is on disk.
"""

import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

import pytest
from filelock import FileLock
from parameterized import parameterized, parameterized_class
from safetensors import safe_open

from transformers.testing_utils import TestCasePlus
from transformers.trainer_checkpoint.layout import STAGING_DIR
from transformers.trainer_checkpoint.manifest import read_entries, read_head
from transformers.trainer_checkpoint.verification import verify

from .test_disk_groups import LACKING


SCRIPTS = Path(__file__).parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from rank_cases import EVERYWHERE, RANK_0, RESUMED, SPACE, all_cases, digest_tree, fault_cases  # noqa: E402
from rank_launch import Launch, environment, read_reports, run_bounded, torchrun  # noqa: E402
from rank_losses import LOSSES, POINTS  # noqa: E402


pytestmark = pytest.mark.slow

# Seconds within which a launch with all its failing ranks ends. Patience for a late rank is 600 s and the timeout of a
# collective 1,800 s, so nobody has waited for either.
BOUND = 500
SAVED = ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
WITHOUT_4 = ["checkpoint-2", "checkpoint-6"]


def shared_folder(tmp_path_factory, name: str, make) -> Path:
    """A folder that `make` fills once; the workers of a parallel test run share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(f"{folder}.lock", timeout=3 * BOUND):
        if not (folder / "made").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / "made").touch()
    return folder


def launch_cases(folder: Path, ranks: int) -> Launch:
    launch = torchrun("rank_cases.py", ["--folder", str(folder)], folder, ranks=ranks, patience=BOUND)
    if launch.code != 0:
        raise AssertionError(f"The launch ended with {launch.code}:\n{launch.text[-3000:]}\n{launch.logs[0][-5000:]}")
    return launch


def assert_good(test: unittest.TestCase, path: Path) -> None:
    test.assertEqual(verify(str(path), level="full").problems, (), path)


@pytest.fixture(scope="class")
def cases(request, tmp_path_factory):
    """What each rank saw of each case, as `cls.seen`, and where, as `cls.folder`."""
    ranks = request.cls.ranks
    folder = shared_folder(tmp_path_factory, f"saving-on-{ranks}", lambda folder: launch_cases(folder, ranks))
    request.cls.folder, request.cls.seen = folder, read_reports(folder, ranks)


class RanksTestCase(TestCasePlus):
    ranks: int
    folder: Path
    seen: list[dict]

    def of_all(self, name: str) -> list[dict]:
        return [seen[name] for seen in self.seen]

    def assert_trained_like_reference(self, found: list[dict]) -> None:
        """The same losses as without any incident, and the same weights on every rank."""
        reference = self.seen[0]["reference"]
        for rank, seen in enumerate(found):
            self.assertNotIn("error", seen, f"rank {rank}: {seen.get('text')}")
            self.assertEqual(seen["step"], 6, f"rank {rank}")
            self.assertEqual(seen["weights"], reference["weights"], f"rank {rank}")
        self.assertEqual(found[0]["losses"], reference["losses"])

    def assert_same_error(self, found: list[dict], failed: int, writer: str, cause: str) -> str:
        """Every rank raised the same error, which names the rank that failed and why, and only final paths."""
        for rank, seen in enumerate(found):
            self.assertEqual(seen.get("error", [None])[0], "CheckpointSaveError", f"rank {rank}: {seen}")
            self.assertNotIn("RuntimeError", seen["error"])
            self.assertEqual(seen["text"], found[0]["text"], f"rank {rank}")
            self.assertEqual(seen["failures"].keys(), {str(failed)}, f"rank {rank}")
            self.assertFalse(seen["unknown"])
            self.assertNotIn(STAGING_DIR, " ".join(seen["chain"]))
        text = found[0]["text"]
        self.assertIn(f"rank {failed}: {writer}: ", text)
        self.assertIn(cause, text)
        self.assertIn("The newest good checkpoint is still", text)
        self.assertRegex(text, r"still \S.*checkpoint-2\.$")
        # Where it happened, the error itself is chained.
        self.assertIn(cause, " ".join(found[failed]["chain"][1:]))
        return text


@parameterized_class(("ranks",), [(1,), (2,), (4,)])
@pytest.mark.usefixtures("cases")
class OnePublisherTest(RanksTestCase):
    def test_every_ranks_files_are_in_every_checkpoint(self):
        for name in SAVED:
            path = self.folder / "reference" / name
            assert_good(self, path)
            head = read_head(str(path))
            self.assertEqual(head.world_size, self.ranks)
            random = [f"rng_state_{rank}.pth" for rank in range(self.ranks)] if self.ranks > 1 else ["rng_state.pth"]
            written = {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", *random}
            self.assertLessEqual(written, read_entries(str(path), head).keys())
        self.assertEqual(sorted(os.listdir(self.folder / "reference")), SAVED)

    def test_one_staging_directory_for_all_ranks(self):
        for seen in self.of_all("reference"):
            self.assertEqual(seen["folders"], [STAGING_DIR] * 3)

    def test_only_rank_0_renames_and_only_after_all_have_met(self):
        for rank, seen in enumerate(self.of_all("reference")):
            published = [(at, target) for at, _, target in seen["renamed"] if target in SAVED]
            self.assertEqual([target for _, target in published], SAVED if rank == 0 else [], f"rank {rank}")
        renamed = {target: at for at, _, target in self.seen[0]["reference"]["renamed"]}
        self.assertEqual({f"{STAGING_DIR}/{name}" for name in SAVED}, self.sources())
        for step in (2, 4, 6):
            for rank, seen in enumerate(self.of_all("reference")):
                moments = [(at, what) for at, what, of in seen["moments"] if of == step]
                written = [at for at, what in moments if what == "written"]
                self.assertEqual(len(written), 1, f"rank {rank}")
                self.assertLess(written[0], renamed[f"checkpoint-{step}"], f"rank {rank}")
            if self.ranks > 1:
                # `accelerator.wait_for_everyone()` lies between the last write of all and the rename.
                last = max(
                    at
                    for seen in self.of_all("reference")
                    for at, what, of in seen["moments"]
                    if what == "written" and of == step
                )
                met = [at for at, what, of in self.seen[0]["reference"]["moments"] if what == "met" and of == step]
                self.assertTrue([at for at in met if last < at < renamed[f"checkpoint-{step}"]], f"step {step}")

    def sources(self) -> set[str]:
        return {source for _, source, target in self.seen[0]["reference"]["renamed"] if target in SAVED}

    def test_the_log_of_every_rank_names_final_paths_only(self):
        for rank, seen in enumerate(self.of_all("reference")):
            for name in SAVED:
                path = re.escape(str(self.folder / "reference" / name))
                said = [line for line in seen["heard"] if re.match(rf"INFO Checkpoint saved to {path} \(", line)]
                self.assertEqual(len(said), 1, f"rank {rank}")
            self.assertEqual([line for line in seen["heard"] if STAGING_DIR in line], [], f"rank {rank}")

    def test_all_ranks_have_the_same_weights(self):
        self.assertEqual(len({seen["weights"] for seen in self.of_all("reference")}), 1)


@parameterized_class(("ranks",), [(2,), (4,)])
@pytest.mark.usefixtures("cases")
class SlowAndFailingRanksTest(RanksTestCase):
    def fault_names(self, how: str) -> list[str]:
        names = [name for name in fault_cases(self.ranks) if name.startswith(how)]
        self.assertGreater(len(names), 4)
        return names

    def writer(self, name: str) -> tuple[int, str, str]:
        _, writer, rank = re.fullmatch(r"(raise|warn)-(.*)-(\d+)", name).groups()
        cause = "a callback without a state" if writer == "callback" else SPACE
        return int(rank), {**EVERYWHERE, **RANK_0}[writer], cause

    def test_every_writer_that_fails_is_the_same_error_on_every_rank(self):
        for name in self.fault_names("raise-"):
            with self.subTest(name):
                self.assert_same_error(self.of_all(name), *self.writer(name))

    def test_nothing_is_half_published_and_the_previous_checkpoint_is_untouched(self):
        before = digest_tree(str(self.folder / "reference" / "checkpoint-2"))
        for name in self.fault_names(""):
            with self.subTest(name):
                for seen in self.of_all(name):
                    self.assertEqual([file for file in seen["left"] if file != STAGING_DIR][0], "checkpoint-2")
                    self.assertNotIn("checkpoint-4", seen["left"])
                    # All but what carries a path, a time or a nonce.
                    same = ("model.safetensors", "optimizer.pt", "scheduler.pt", "config.json")
                    self.assertEqual({f: seen["first"][f] for f in same}, {f: before[f] for f in same})
                assert_good(self, self.folder / name / "checkpoint-2")
                self.assertFalse((self.folder / name / STAGING_DIR).exists())

    def test_after_an_error_the_run_resumes_from_the_previous_one_and_the_next_save_works(self):
        names = [name for name in self.fault_names("raise-") if name.split("-")[1] in RESUMED]
        self.assertGreater(len(names), 3)
        for name in names:
            with self.subTest(name):
                self.assert_trained_like_reference([seen["again"] for seen in self.of_all(name)])
                self.assertEqual(sorted(os.listdir(self.folder / name)), SAVED)
                for checkpoint in SAVED:
                    assert_good(self, self.folder / name / checkpoint)

    def test_with_warn_the_training_goes_on_alike_and_the_next_save_works(self):
        for name in self.fault_names("warn-"):
            with self.subTest(name):
                self.assert_trained_like_reference(self.of_all(name))
                self.assertEqual(sorted(os.listdir(self.folder / name)), WITHOUT_4)
                for checkpoint in WITHOUT_4:
                    assert_good(self, self.folder / name / checkpoint)
                rank, writer, cause = self.writer(name)
                said = [line for line in self.seen[0][name]["heard"] if "was not saved" in line]
                self.assertEqual(len(said), 1)
                for part in ("ERROR", f"rank {rank}: {writer}: ", cause, "Training goes on without it"):
                    self.assertIn(part, said[0])

    def test_no_staging_path_reaches_a_log(self):
        for name in self.fault_names(""):
            for rank, seen in enumerate(self.of_all(name)):
                said = [line for line in seen["heard"] if STAGING_DIR in line]
                self.assertEqual(said, [], f"{name}, rank {rank}")

    def test_nothing_is_published_while_a_rank_is_still_writing(self):
        for rank in (0, self.ranks - 1):
            found = self.of_all(f"slow-{rank}")
            self.assert_trained_like_reference(found)
            self.assertEqual(found[rank]["seen"], [[STAGING_DIR, "checkpoint-2"]])
            assert_good(self, self.folder / f"slow-{rank}" / "checkpoint-4")

    def test_a_rank_that_stood_still_raises_what_the_others_raised(self):
        for rank in (0, self.ranks - 1):
            found = self.of_all(f"stands-still-{rank}")
            for seen in found:
                self.assertEqual(seen.get("error", [None])[0], "CheckpointSaveError", seen)
                self.assertEqual(seen["text"], found[0]["text"])
                self.assertRegex(seen["text"], rf"was not saved: rank {rank}: no sign of life for \d+ s")
                self.assertEqual([name for name in seen["left"] if name != STAGING_DIR], ["checkpoint-2"])
            self.assert_trained_like_reference([seen["again"] for seen in found])
            self.assertEqual(sorted(os.listdir(self.folder / f"stands-still-{rank}")), SAVED)

    @parameterized.expand(["loses-its-file", "loses-its-file-after-the-vote"])
    def test_a_ranks_missing_file_fails_the_save(self, case):
        for rank in (0, self.ranks - 1):
            for seen in self.of_all(f"{case}-{rank}"):
                self.assertEqual(seen.get("error", [None])[0], "CheckpointSaveError", seen)
                self.assertEqual(seen["text"], self.seen[0][f"{case}-{rank}"]["text"])
                self.assertIn(f"rng_state_{rank}.pth", seen["text"])
                self.assertEqual([name for name in seen["left"] if name != STAGING_DIR], ["checkpoint-2"])

    def test_old_answers_of_the_file_system_change_nothing(self):
        for rank in (0, self.ranks - 1):
            found = self.of_all(f"old-answers-{rank}")
            self.assert_trained_like_reference(found)
            for name in SAVED:
                path = self.folder / f"old-answers-{rank}" / name
                assert_good(self, path)
                entries = read_entries(str(path), read_head(str(path)))
                self.assertLessEqual({f"rng_state_{r}.pth" for r in range(self.ranks)}, entries.keys())


@pytest.mark.usefixtures("cases")
class OneProcessAfterAnotherTest(RanksTestCase):
    """What one training does to the next one in the same processes."""

    ranks = 2

    def test_an_error_that_is_no_exception(self):
        for rank in (0, 1):
            found = self.of_all(f"raise-no-exception-{rank}")
            self.assert_same_error(found, rank, "_save_rng_state", "NoBackup: nothing that inherits from Exception")
            self.assert_trained_like_reference([seen["again"] for seen in found])

    def test_another_ranks_lack_of_memory_is_not_taken_for_a_batch_that_is_too_large(self):
        for rank in (0, 1):
            found = self.of_all(f"quotes-memory-{rank}")
            self.assert_same_error(found, rank, "_save_rng_state", "CUDA out of memory")
            self.assertEqual([seen["starts"] for seen in found], [1, 1])

    def test_the_last_save_of_a_run_is_never_only_warned_of(self):
        for rank in (0, 1):
            self.assert_same_error(self.of_all(f"last-{rank}"), rank, "_save_rng_state", SPACE)

    def test_nothing_old_goes_before_the_new_one_is_there(self):
        for rank in (0, 1):
            found = self.of_all(f"limit-{rank}")
            self.assert_trained_like_reference(found)
            self.assertEqual(found[0]["between"], [[STAGING_DIR, "checkpoint-2"]])
            self.assertEqual(sorted(os.listdir(self.folder / f"limit-{rank}")), ["checkpoint-6"])

    def test_two_trainings_in_the_same_processes(self):
        for seen in self.of_all("twice"):
            # The first one failed on rank 1, which is no obstacle to the second and the third.
            self.assertEqual(seen["error"][0], "CheckpointSaveError")
            self.assertEqual((seen["step"], seen["third"]), (6, 8))
        for name in [*SAVED, "checkpoint-8"]:
            assert_good(self, self.folder / "twice" / name)

    def test_a_limit_of_one_at_the_end_of_the_training(self):
        for name, left in (("watched", ["checkpoint-2", "checkpoint-6"]), ("best-only", ["checkpoint-2"])):
            found = self.of_all(name)
            for seen in found:
                self.assertNotIn("error", seen)
                self.assertEqual(seen["best"], str(self.folder / name / "checkpoint-2"))
            self.assertEqual(sorted(os.listdir(self.folder / name)), left)
            for checkpoint in left:
                assert_good(self, self.folder / name / checkpoint)

    def test_callbacks_of_all_ranks_change_the_checkpoint(self):
        for durability in ("full", "process"):
            for seen in self.of_all(f"callbacks-{durability}"):
                self.assertNotIn("error", seen)
            for name in SAVED:
                path = self.folder / f"callbacks-{durability}" / name
                assert_good(self, path)
                entries, last = read_entries(path, read_head(path)), self.ranks - 1
                self.assertTrue(
                    {"extra_state.pt", "ema_rank0/optimizer.pt", f"ema_rank{last}/optimizer.pt"} <= set(entries)
                )

    def test_callbacks_of_all_ranks_write_at_once(self):
        for case in ("full", "process", "impatient"):
            for seen in self.of_all(f"at-once-{case}"):
                self.assertNotIn("error", seen)
                self.assertEqual(seen["heard"], [])
            for name in SAVED:
                path = self.folder / f"at-once-{case}" / name
                assert_good(self, path)
                entries = read_entries(path, read_head(path))
                self.assertLessEqual({"adapter_model.safetensors", "extra_state.pt"}, entries.keys())
                with safe_open(path / "model.safetensors", "pt") as weights:
                    self.assertEqual(weights.metadata(), {"format": "pt", "rank": str(self.ranks - 1)})

    def test_callbacks_that_only_rank_0_calls(self):
        self.assert_trained_like_reference(self.of_all("on-one-rank"))
        for name in SAVED:
            path = self.folder / "on-one-rank" / name
            assert_good(self, path)
            self.assertIn("extra_state.pt", read_entries(path, read_head(path)))

    def test_trials_of_a_hyperparameter_search(self):
        run = self.folder / "trials"
        self.assertEqual(sorted(os.listdir(run)), ["run-0", "run-1"])
        self.assertEqual(sorted(os.listdir(run / "run-0")), WITHOUT_4)
        self.assertEqual(sorted(os.listdir(run / "run-1")), SAVED)
        for path in [*(run / "run-0").iterdir(), *(run / "run-1").iterdir()]:
            assert_good(self, path)

    def test_a_batch_that_is_too_large(self):
        for seen in self.of_all("smaller-batch"):
            self.assertNotIn("error", seen)
            self.assertEqual((seen["sizes"], seen["step"]), ([3, 4], 6))
        for name in SAVED:
            assert_good(self, self.folder / "smaller-batch" / name)


# ---- Killed and stopped ranks ----


def launch_losses(folder: Path, part: int) -> None:
    names = [loss.name for loss in LOSSES][part::2]
    command = [sys.executable, str(SCRIPTS / "rank_losses.py"), "--folder", str(folder), "--cases", *names]
    code, text = run_bounded(command, environment(), BOUND)
    if code != 0:
        raise AssertionError(f"The launch ended with {code}:\n{text[-5000:]}")


@pytest.fixture(scope="class")
def losses(request, tmp_path_factory):
    """Where the killed and stopped ranks of `cls.part` were, as `cls.folder`."""
    part = request.cls.part
    make = lambda folder: launch_losses(folder, part)  # noqa: E731
    request.cls.folder = shared_folder(tmp_path_factory, f"lost-ranks-{part}", make)


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


# In two halves, so that two workers share them.
@parameterized_class(("part",), [(0,), (1,)])
@pytest.mark.usefixtures("losses")
class LostRankTest(TestCasePlus):
    part: int
    folder: Path

    def losses(self) -> list:
        return LOSSES[self.part :: 2]

    def test_every_survivor_raises_the_same_error_that_names_the_lost_rank(self):
        for loss in self.losses():
            with self.subTest(loss.name):
                folder = self.folder / loss.name
                ended = read(folder / "ended.json")
                self.assertEqual(ended.pop(str(loss.rank)), "stopped" if loss.number == 19 else -9)
                self.assertEqual(set(ended.values()), {0}, "a survivor hung or crashed")
                found = [read(folder / f"rank{rank}.json") for rank in range(loss.world_size) if rank != loss.rank]
                if loss.point == "after-the-announcement":
                    # The save is done, and the next thing that the ranks do together fails as it always did.
                    continue
                for seen in found:
                    self.assertEqual(seen.get("error", [None])[0], "CheckpointSaveError", seen)
                    self.assertEqual(seen["text"], found[0]["text"])
                    self.assertEqual(list(seen["failures"]), [str(loss.rank)])
                    self.assertIn(f"rank {loss.rank}: ", seen["text"])
                    self.assertNotIn(STAGING_DIR, " ".join(seen["chain"]))

    def test_what_is_unknown_is_not_called_failed(self):
        points = list(POINTS)
        for loss in self.losses():
            if loss.point == "after-the-announcement":
                continue
            with self.subTest(loss.name):
                survivor = next(rank for rank in range(loss.world_size) if rank != loss.rank)
                seen = read(self.folder / loss.name / f"rank{survivor}.json")
                unknown = points.index(loss.point) >= points.index("before-the-barrier")
                self.assertEqual(seen["unknown"], unknown, seen["text"])
                if unknown:
                    self.assertIn("is unknown", seen["text"])
                else:
                    self.assertRegex(seen["text"], r"was not saved: .*still \S*checkpoint-2\.$")

    def test_nothing_is_half_published(self):
        for loss in self.losses():
            with self.subTest(loss.name):
                found = read(self.folder / loss.name / "found.json")
                reference = self.folder / f"reference-{loss.world_size}" / "out" / "checkpoint-2"
                self.assertEqual([problem for of in found["problems"].values() for problem in of], [])
                self.assertIn(found["left"], (["checkpoint-2"], ["checkpoint-2", "checkpoint-4"]))
                self.assertEqual(found["last"], found["left"][-1])
                published = loss.point in ("after-the-publish", "after-the-announcement")
                if published:
                    self.assertEqual(found["last"], "checkpoint-4")
                elif loss.point not in ("before-the-barrier", "before-the-publish"):
                    self.assertEqual(found["last"], "checkpoint-2")
                for file in ("model.safetensors", "optimizer.pt", "rng_state_0.pth", "rng_state_1.pth"):
                    self.assertEqual(found["first"][file], digest_tree(str(reference))[file])

    def test_the_run_resumes_bit_for_bit(self):
        for loss in self.losses():
            with self.subTest(loss.name):
                again = self.folder / loss.name / "again"
                self.assertEqual(set(read(again / "ended.json").values()), {0})
                reference = read(self.folder / f"reference-{loss.world_size}" / "rank0.json")
                for rank in range(loss.world_size):
                    seen = read(again / f"rank{rank}.json")
                    self.assertNotIn("error", seen, seen.get("text"))
                    self.assertEqual((seen["step"], seen["weights"]), (6, reference["weights"]))
                self.assertEqual(read(again / "rank0.json")["losses"], reference["losses"])
                out = self.folder / loss.name / "out"
                self.assertEqual(sorted(os.listdir(out)), SAVED)
                for name in SAVED:
                    assert_good(self, out / name)


class ElasticRestartTest(TestCasePlus):
    def test_a_killed_rank_is_started_again_and_the_training_resumes(self):
        folder = Path(self.get_auto_remove_tmp_dir())
        arguments = ["--folder", str(folder)]
        # torch 2.13 hands the restarted ranks the store of the first attempt, in which gloo finds the addresses of ranks
        # that are gone: most restarts then fail in `init_process_group`, with stock torch alone too.
        own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        launch = torchrun("rank_restart.py", arguments, folder, restarts=1, patience=BOUND, **own_store)
        self.assertEqual(launch.code, 0, launch.text[-3000:] + launch.logs[0][-3000:])
        reports = read_reports(folder, 2)
        for seen in reports:
            self.assertEqual((seen["attempt"], seen["from"]), (1, str(folder / "out" / "checkpoint-2")))
            self.assertEqual(seen["weights"], seen["reference"]["weights"])
        self.assertEqual(reports[0]["losses"], reports[0]["reference"]["losses"])
        for name in SAVED:
            assert_good(self, folder / "out" / name)


# ---- Two nodes ----


@pytest.fixture(scope="class")
def nodes(request, tmp_path_factory):
    """What the ranks on two nodes saw, as `cls.seen`. A node is a network and a mount namespace."""
    folder = tmp_path_factory.mktemp("two-nodes")
    for name in ("shared", "own"):
        (folder / name).mkdir()
    names = [f"rank{os.getpid()}{letter}" for letter in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ends = [["netns", name, "type", "veth"] for name in names]
        ip("link", "add", "up0", *ends[0], "peer", "name", "up1", *ends[1][:2])
        for number, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.214.0.{number + 1}/24", "dev", f"up{number}")
            ip("-n", name, "link", "set", f"up{number}", "up")
            ip("-n", name, "link", "set", "lo", "up")
        # One process waits for both, so that its end is the end of both.
        launch = [sys.executable, str(SCRIPTS / "rank_both_nodes.py"), "--folder", str(folder), *names]
        code, text = run_bounded(launch, environment(), BOUND)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30)
    if code != 0:
        raise AssertionError(f"It ended with {code}:\n{text[-8000:]}")
    request.cls.folder, request.cls.seen = folder, read_reports(folder, 2)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)


@unittest.skipIf(LACKING is not None, f"two nodes need namespaces: {LACKING}")
@pytest.mark.usefixtures("nodes")
class TwoNodesTest(TestCasePlus):
    folder: Path
    seen: list[dict]

    def of_both(self, name: str) -> list[dict]:
        return [seen[name] for seen in self.seen]

    def assert_trained(self, name: str) -> None:
        reference = self.seen[0]["one-disk"]
        for rank, seen in enumerate(self.of_both(name)):
            self.assertNotIn("error", seen, f"rank {rank}: {seen.get('text')}")
            self.assertEqual((seen["step"], seen["weights"]), (6, reference["weights"]), f"rank {rank}")
        self.assertEqual(self.seen[0][name]["losses"], reference["losses"])

    def assert_saved(self, name: str, parts: list, files: list[set[str]], left: list[str] = SAVED) -> None:
        for rank, seen in enumerate(self.of_both(name)):
            self.assertEqual(seen["left"], left, f"rank {rank}")
            for checkpoint, found in seen["checkpoints"].items():
                self.assertEqual(found["problems"], [], checkpoint)
                self.assertEqual(found["part"], parts[rank], checkpoint)
                self.assertLessEqual(files[rank], set(found["files"]), checkpoint)

    def heard(self, name: str) -> str:
        return "\n".join(line for seen in self.of_both(name) for line in seen["heard"])

    def test_one_disk(self):
        both = {"model.safetensors", "optimizer.pt", "trainer_state.json", "rng_state_0.pth", "rng_state_1.pth"}
        self.assert_trained("one-disk")
        self.assert_saved("one-disk", [None, None], [both, both])
        self.assertNotIn("run directory", self.heard("one-disk"))

    def test_one_disk_resumes(self):
        self.assert_trained("one-disk-resumed")
        for seen in self.of_both("one-disk-resumed"):
            self.assertTrue(seen["from"].endswith("checkpoint-4"))

    def test_one_disk_and_each_node_wants_to_save(self):
        """One writer, and a word about the argument."""
        both = {"model.safetensors", "optimizer.pt", "rng_state_0.pth", "rng_state_1.pth"}
        self.assert_trained("one-disk-each-node-saves")
        self.assert_saved("one-disk-each-node-saves", [None, None], [both, both])
        self.assertIn("`save_on_each_node` is set", self.heard("one-disk-each-node-saves"))

    def test_own_disks(self):
        """Said at the first save: the second node's disk holds only what its rank wrote, and cannot be resumed from."""
        self.assert_trained("own-disks")
        whole = {"model.safetensors", "optimizer.pt", "rng_state_0.pth"}
        self.assert_saved("own-disks", [[0, 2, [0]], [1, 2, [1]]], [whole, {"rng_state_1.pth"}])
        self.assertNotIn("model.safetensors", self.seen[1]["own-disks"]["checkpoints"]["checkpoint-6"]["files"])
        self.assertIn("do not share the run directory", self.heard("own-disks"))
        self.assertEqual(self.heard("own-disks").count("do not share the run directory"), 1)

    def test_own_disks_do_not_resume_and_all_ranks_say_the_same(self):
        first, second = self.of_both("own-disks-resumed")
        for seen in (first, second):
            self.assertEqual(seen.get("error", [None])[0], "CheckpointResumeError", seen)
        self.assertEqual(first["text"], second["text"])

    def test_own_disks_and_each_node_saves(self):
        self.assert_trained("own-disks-each-node-saves")
        common = {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"}
        files = [common | {"rng_state_0.pth"}, common | {"rng_state_1.pth"}]
        self.assert_saved("own-disks-each-node-saves", [[0, 2, [0]], [1, 2, [1]]], files)
        self.assertNotIn("do not share", self.heard("own-disks-each-node-saves"))

    def test_own_disks_resume_from_the_newest_that_is_on_both(self):
        name = "own-disks-resumed-from-the-newest-on-both"
        self.assert_trained(name)
        for seen in self.of_both(name):
            self.assertTrue(seen["from"].endswith("checkpoint-4"), seen["from"])

    def test_a_rank_that_fails_on_one_disk_leaves_nothing_on_either(self):
        for failing in (0, 1):
            name = f"own-disks-failing-{failing}"
            self.assert_trained(name)
            self.assert_saved(name, [[0, 2, [0]], [1, 2, [1]]], [set(), set()], WITHOUT_4)


def test_every_writer_and_every_point_has_its_case():
    """A case that nobody runs proves nothing."""
    names = all_cases(2)
    for writer in EVERYWHERE:
        for how in ("raise", "warn"):
            assert {f"{how}-{writer}-0", f"{how}-{writer}-1"} <= names.keys()
    for writer in RANK_0:
        assert {f"raise-{writer}-0", f"warn-{writer}-0"} <= names.keys()
    killed = {(loss.point, loss.rank) for loss in LOSSES if loss.number == 9 and loss.world_size == 2}
    assert killed == {(point, rank) for point in POINTS for rank in (0, 1)}
