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
"""The status board: what ranks learn from each other, and what they raise when one is slow, dead, stopped or cut off.

Each rank is a process (`scripts/board_ranks.py`). Most need no process group, only its store, so that a test can kill
one without an elastic agent killing the others; what needs a process group is launched with torchrun.
"""

import json
import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

import pytest
import torch.distributed as dist
from parameterized import parameterized

from transformers.testing_utils import TestCasePlus
from transformers.trainer_checkpoint import board as board_module
from transformers.trainer_checkpoint.board import FOREIGN_FAILURE_EXIT_CODE, StatusBoard
from transformers.trainer_checkpoint.ranks import format_ranks


SCRIPTS = Path(__file__).parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from board_ranks import GIVE_UP, World, free_port, serve  # noqa: E402


class BoardTestCase(TestCasePlus):
    def world(self, case: str, world_size: int, **options) -> World:
        world = World(store_in_rank_0=options.pop("store_in_rank_0", False))
        self.addCleanup(world.end)
        return world.start(case, world_size, **options)

    def assert_all_lost(self, answers: dict, ranks: tuple[int, ...], reason: str):
        """Every rank raised the same `RankLostError`."""
        for rank, told in answers.items():
            self.assertIsInstance(told, dict, f"rank {rank} got an answer")
            self.assertEqual((told["raised"], told["ranks"]), ("RankLostError", ranks))
            self.assertRegex(told["reason"], reason)
            self.assertEqual(told["text"], next(iter(answers.values()))["text"])


class AgreementTest(BoardTestCase):
    @parameterized.expand([(1,), (2,), (4,)])
    def test_all_ranks_get_all_answers_in_order(self, world_size):
        world = self.world("several_rounds", world_size)
        expected = [
            [[{"rank": rank, "round": number} for rank in range(world_size)], [None] * world_size, f"step {number}"]
            for number in range(3)
        ]
        self.assertEqual(world.all_told(), dict.fromkeys(range(world_size), expected))

    def test_boards_of_one_process_do_not_hear_each_other(self):
        world = self.world("several_boards", 3)
        expected = [[[rank, number] for rank in range(3)] for number in range(3)] + [["again"] * 3]
        self.assertEqual(world.all_told(), dict.fromkeys(range(3), expected))
        for rank in range(3):
            world.tell(rank)
        world.all_told()

    def test_what_dead_processes_left_in_the_store_is_not_taken_for_an_answer(self):
        # An elastic agent keeps its store when it replaces the workers, here without a prefix per attempt, and the
        # new world is smaller.
        world = self.world("waits_for_one", 3, late=1, how="sleep")
        world.all_told()
        world.end()
        self.assertGreater(world.store.num_keys(), 3)
        world.start("several_rounds", 2, rounds=1)
        answers = world.all_told()
        self.assertEqual(answers[0][0][0], [{"rank": 0, "round": 0}, {"rank": 1, "round": 0}])
        self.assertEqual(answers[0], answers[1])

    def test_a_stale_offer_with_the_same_ranks_is_not_accepted(self):
        # Rank 0 of an earlier life answered these words; rank 1 must wait for an answer to its own.
        world = World()
        self.addCleanup(world.end)
        stale = board_module._encode([f"{board_module._PREFIX}/stale", ["0" * 16, "1" * 16]])
        world.store.set(f"{board_module._PREFIX}/offer", stale)
        world.store.set(f"{board_module._PREFIX}/hello.1", board_module._encode(["1" * 16, "stale", None]))
        world.start("several_rounds", 2, rounds=1)
        self.assertEqual(world.told(0), world.told(1))
        self.assertEqual([key for key in world.store.list_keys() if "stale" in key], [])

    def test_keys_do_not_pile_up(self):
        # 60 rounds of 4 ranks set more than a thousand keys.
        world = self.world("count_keys", 4, rounds=60)
        counts = world.told(0)
        self.assertEqual(counts[1], counts[0])
        self.assertLess(counts[1], 40)
        world.all_told(but=(0,))
        for rank in range(4):
            self.assertEqual(world.exit_code(rank), 0)
        self.assertEqual(world.store.list_keys(), [f"{board_module._PREFIX}/offer"])

    def test_what_is_deleted_late_is_not_the_word_of_the_next_board(self):
        world = self.world("one_board_after_the_other", 2, deleting=0.5)
        self.assertEqual(world.all_told(), {0: [0, 1], 1: [0, 1]})

    def test_what_both_ranks_forget_at_once_holds_nobody_up(self):
        world = self.world("all_forget", 2, late=1.0)
        self.assertEqual(world.all_told(), {0: [0, 1], 1: [0, 1]})

    def test_an_answer_larger_than_the_store_takes(self):
        size = 20 << 20
        world = self.world("big_answers", 2, size=size)
        self.assertEqual(world.all_told(), {0: [0, size], 1: [0, size]})
        self.assertEqual(world.told(0), 1)

    def test_over_a_file_store(self):
        path = os.path.join(self.get_auto_remove_tmp_dir(), "store")
        world = self.world("file_store", 2, path=path)
        self.assertEqual(world.told(0), world.told(1))

    def test_a_signal_handler_runs_while_a_rank_waits(self):
        world = self.world("signal_while_waiting", 2)
        self.assertEqual([world.told(0), world.told(1)], ["ready", "ready"])
        world.wait_until_waiting(1, "written")
        world.signal(1, signal.SIGUSR1)
        self.assertEqual(world.told(1), "handled")
        world.tell(0)  # only now may rank 0 join
        self.assertEqual(world.all_told(), {0: [[0, 1], [1]], 1: [[0, 1], [1]]})

    def test_an_interrupt_comes_out_and_the_others_learn_that_the_rank_has_left(self):
        world = self.world("interrupted", 2)
        world.all_told()
        world.wait_until_waiting(1, "written")
        world.signal(1, signal.SIGUSR1)
        self.assertEqual(world.told(1), "interrupted")
        world.tell(0)
        self.assert_all_lost({0: world.told(0)}, (1,), "^it has left$")

    def test_a_forked_child_is_not_a_rank(self):
        world = self.world("child_of_a_rank", 2)
        for told in world.all_told().values():
            self.assertIn("a forked child of a rank is not a rank", told[0])
            self.assertEqual(told[1], [0, 1])

    def test_misuse_is_an_error(self):
        world = self.world("misuse", 2)
        for rank, told in world.all_told().items():
            self.assertEqual([told[0]["raised"], told[1]["raised"]], ["TypeError", "ValueError"])
            self.assertIn("'written' was already used", told[1]["text"])
            self.assertEqual((told[2]["raised"], told[2]["ranks"]), ("RankLostError", (rank,)))
            self.assertEqual(told[3:], [None, None])  # telling an error never raises

    def test_beats_must_fit_into_the_silence(self):
        with self.assertRaisesRegex(ValueError, "`beat_interval` is 5 s and `silence` 6 s"):
            StatusBoard(serve(), 0, 1, lambda: None, silence=6.0, beat_interval=5.0)

    def test_ranks_as_people_write_them(self):
        self.assertEqual(format_ranks([7, 0, 1, 2, 9, 8]), "0-2, 7-9")
        self.assertEqual(format_ranks([3]), "3")


class LostRankTest(BoardTestCase):
    @parameterized.expand([(rank, far) for rank in (0, 1, 2) for far in (False, True)])
    def test_killed(self, rank, far):
        world = self.world("waits_for_one", 3, late=rank, how="die", far=far)
        world.all_told()
        world.tell(rank)
        answers = {other: told[0] for other, told in world.all_told(but=(rank,)).items()}
        reason = (
            r"^no sign of life for \d+ s$" if far else rf"^its process \(pid {world.processes[rank].pid}\) has ended$"
        )
        if far and rank == 0:  # each of the others counts by itself
            answers = {other: told | {"text": ""} for other, told in answers.items()}
        self.assert_all_lost(answers, (rank,), reason)
        self.assertEqual(world.exit_code(rank), -signal.SIGKILL)

    def test_stopped_and_told_so_when_it_goes_on(self):
        world = self.world("waits_for_one", 3, late=1, how="stop")
        world.all_told()
        world.tell(1)
        answers = {rank: told[0] for rank, told in world.all_told(but=(1,)).items()}
        self.assert_all_lost(answers, (1,), r"^no sign of life for \d+ s$")
        world.signal(1, signal.SIGCONT)
        self.assert_all_lost({0: answers[0], 1: world.told(1)[0]}, (1,), "no sign of life")

    def test_slow_is_waited_for_and_named(self):
        # Patience, not silence, is what a slow rank has; the log names it while rank 0 waits.
        constants = {"FIRST_LATE_LOG": 0.5, "LATE_LOG_INTERVAL": 1.0}
        world = self.world("waits_for_one", 4, late=2, how="sleep", far=True, constants=constants)
        world.all_told()
        self.assertFalse(world.pipes[0].poll(6.0), "rank 0 did not wait for a rank that is alive")
        world.tell(2)
        answers = world.all_told()
        self.assertEqual([told[0] for told in answers.values()], [[0, 1, 2, 3]] * 4)
        lines = [line for line in answers[0][1].splitlines() if line]
        self.assertGreaterEqual(len(lines), 2)
        for line in lines:
            self.assertRegex(
                line, r"^Waiting for rank\(s\) 2 \(alive, last heard \d+ s ago\) to finish 'written', for \d+ s"
            )
        self.assertEqual([told[1] for rank, told in answers.items() if rank != 0], [""] * 3)

    def test_without_heartbeats_a_slow_rank_would_count_as_lost(self):
        world = self.world("waits_for_one", 2, late=1, how="sleep", far=True, beats=False)
        world.all_told()
        self.assert_all_lost({0: world.told(0)[0]}, (1,), "no sign of life")

    def test_patience_ends_and_the_late_rank_learns_it_too(self):
        world = self.world("waits_for_one", 3, late=2, how="sleep", patience=2.0)
        world.all_told()
        answers = {rank: told[0] for rank, told in world.all_told(but=(2,)).items()}
        world.tell(2)
        answers[2] = world.told(2)[0]
        self.assert_all_lost(answers, (2,), r"^alive \(last heard \d+ s ago\), but late: not there after 2 s$")

    @parameterized.expand([(0,), (1,)])
    def test_a_rank_that_has_asked_for_time_is_waited_for(self, late):
        constants = {"_SLACK": 0.5}
        world = self.world("waits_for_one", 3, late=late, how="sleep", patience=1.0, takes=30.0, constants=constants)
        world.all_told()
        self.assertFalse(world.pipes[2].poll(4.0), "rank 2 did not wait")
        world.tell(late)
        answers = world.all_told()
        self.assertEqual([told[0] for told in answers.values()], [[0, 1, 2]] * 3)

    def test_times_that_are_asked_for_add_up(self):
        world = self.world("takes_time", 3)
        self.assertEqual(world.all_told(), dict.fromkeys(range(3), [0, 1, 2]))

    def test_one_with_less_patience_gives_up_for_itself_only(self):
        world = self.world("has_less_patience", 3)
        told = world.all_told()
        self.assertEqual((told[1]["raised"], told[1]["ranks"]), ("RankLostError", (0,)))
        self.assertEqual((told[0], told[2]), ([0, 1, 2], [0, 1, 2]))

    def test_rank_0_is_late(self):
        world = self.world("waits_for_one", 2, late=0, how="sleep", patience=1.0, constants={"_SLACK": 1.0})
        world.all_told()
        self.assert_all_lost({1: world.told(1)[0]}, (0,), "^it has not answered within 1 s, though it is alive$")

    def test_rank_left_its_board(self):
        world = self.world("waits_for_one", 3, late=1, how="leave", far=True)
        world.all_told()
        world.tell(1)
        self.assert_all_lost({rank: t[0] for rank, t in world.all_told(but=(1,)).items()}, (1,), "^it has left$")

    def test_killed_with_the_store(self):
        world = self.world("waits_for_one", 3, late=0, how="die", store_in_rank_0=True)
        world.all_told()
        world.tell(0)
        for told in world.all_told(but=(0,)).values():
            self.assertEqual((told[0]["raised"], told[0]["ranks"]), ("RankLostError", (0,)))
            self.assertRegex(told[0]["reason"], "the connection to the process group's store is lost")

    def test_stopped_with_the_store(self):
        # Nothing breaks the connection: the store just does not answer any more.
        world = self.world("waits_for_one", 2, late=0, how="stop", store_in_rank_0=True, far=True)
        world.all_told()
        world.tell(0)
        self.assert_all_lost({1: world.told(1)[0]}, (0,), "^the process group's store has not answered for 4 s$")

    @parameterized.expand([(0,), (1,)])
    def test_stopped_for_a_while_it_hears_the_verdict_and_takes_part_in_the_next_round(self, rank):
        """A machine that stands still, is moved or was suspended. It must not go on as if nobody had given it up."""
        # Longer than this test waits: what was decided is to be found at once.
        world = self.world("waits_for_one", 3, late=rank, how="stop", again=True, patience=3 * GIVE_UP)
        world.all_told()
        world.tell(rank)
        answers = {other: told[0] for other, told in world.all_told(but=(rank,)).items()}
        world.signal(rank, signal.SIGCONT)
        answers[rank] = world.told(rank)[0]
        self.assert_all_lost(answers, (rank,), r"^no sign of life for \d+ s$")
        for other in range(3):
            world.tell(other)
        for word in ("again", "and again"):
            self.assertEqual(world.all_told(), dict.fromkeys(range(3), [[other, word] for other in range(3)]))
        world.all_told()
        self.assertEqual(world.store.list_keys(), [f"{board_module._PREFIX}/offer"])

    def test_a_rank_that_never_comes(self):
        board = None
        with self.assertRaises(board_module.RankLostError) as caught:
            board = StatusBoard(serve(), 0, 3, lambda: None, patience=1.0, silence=2.0, beat_interval=0.2)
        self.assertIsNone(board)
        self.assertEqual((caught.exception.ranks, caught.exception.topic), ((1, 2), "board"))
        self.assertIn("not seen at all", str(caught.exception))

    @parameterized.expand([("stays", 60.0, [0, 1]), ("would_not", 0.0, None)])
    def test_rank_0_stays_until_its_last_word_is_read(self, _, linger, expected):
        # Rank 0 has the store, and its program ends right after the vote. The second case shows what the wait is for.
        world = self.world("last_word", 2, linger=linger, store_in_rank_0=True)
        self.assertEqual(world.told(0), "written")
        told = world.told(1)
        if expected is not None:
            self.assertEqual(told, expected)
        else:
            self.assertEqual((told["raised"], told["ranks"]), ("RankLostError", (0,)))


class FirstErrorTest(BoardTestCase):
    def test_the_first_of_a_round(self):
        world = self.world("two_errors", 3)
        for told in world.all_told().values():
            self.assertIsNone(told[0])
            self.assertEqual(told[1][0], 1)
            self.assertTrue(told[1][1].startswith("disk full x"))
            self.assertLess(len(told[1][1]), 5000)
            self.assertIsNone(told[2])

    def test_it_outlives_the_store(self):
        world = self.world("error_outlives_store", 2, store_in_rank_0=True)
        self.assertEqual(world.all_told(), {0: "posted", 1: "open"})
        # Rank 1 hears of the error with one of its next heartbeats. Its own thread asks, so there is no event to
        # wait for: several beats are.
        self.assertFalse(world.pipes[1].poll(3.0))
        world.tell(0)
        self.assertEqual(world.exit_code(0), -signal.SIGKILL)
        world.tell(1)
        lost, first = world.told(1)
        self.assertEqual(lost["ranks"], (0,))
        self.assertEqual(first, (0, "no space left on device"))

    def test_leaving_others_behind(self):
        out = self.get_auto_remove_tmp_dir()
        world = self.world("leaves_others_behind", 2, out=out, stderr=True)
        self.assertEqual(world.told(0), "inside")
        self.assertEqual(world.exit_code(1), FOREIGN_FAILURE_EXIT_CODE)
        world.tell(0)
        cause = "writing shard 1: OSError: [Errno 28] No space left on device"
        self.assertEqual(world.told(0), (1, cause))
        text = Path(out, "stderr-1").read_text(encoding="utf-8")
        self.assertIn(f"they did not come out: {cause}", text)
        self.assertIn(f"with status {FOREIGN_FAILURE_EXIT_CODE}", text)


class ProcessGroupTest(BoardTestCase):
    @parameterized.expand([(1,), (2,), (4,)])
    def test_under_torchrun(self, world_size):
        out = self.get_auto_remove_tmp_dir()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world_size}"]
        script = str(SCRIPTS / "board_ranks.py")
        done = subprocess.run(
            [*command, script, "of_process_group", out, str(free_port())],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        for rank in range(world_size):
            told = json.loads(Path(out, f"rank-{rank}.json").read_text(encoding="utf-8"))
            self.assertTrue(told["without"])
            for life in range(3):
                self.assertEqual(told[f"first {life}"], [[other, life] for other in range(world_size)])
                self.assertEqual(told[f"second {life}"], [[other, life, "second"] for other in range(world_size)])
                self.assertEqual(told[f"hosts {life}"], 1)
                self.assertEqual(told[f"usable {life}"], [True, True])
                self.assertEqual(told[f"usable after {life}"], [False, False])
                self.assertEqual(told[f"lost {life}"]["reason"], "the process group was taken down")
        # Boards that outlive their group leave it alone: torch would write a page for each try.
        self.assertNotIn("Broken pipe", done.stderr)

    def test_no_board_without_a_store_that_can_be_cloned(self):
        class OwnStore(dist.Store):
            pass

        for store in (None, OwnStore()):
            with (
                mock.patch.object(dist, "is_initialized", return_value=True),
                mock.patch.object(dist.distributed_c10d, "_get_default_store", return_value=store),
            ):
                self.assertIsNone(StatusBoard.of_process_group(lambda: None))

    def test_an_unreachable_store_is_a_lost_rank(self):
        store = mock.Mock()
        store.clone.side_effect = dist.DistNetworkError("Connection refused\nand a page of frames")
        with (
            mock.patch.object(dist, "is_initialized", return_value=True),
            mock.patch.object(dist.distributed_c10d, "_get_default_store", return_value=store),
            self.assertRaises(board_module.RankLostError) as caught,
        ):
            StatusBoard.of_process_group(lambda: None)
        self.assertEqual(caught.exception.ranks, (0,))
        self.assertIn("(Connection refused)", str(caught.exception))


@pytest.mark.slow
class BenchmarkTest(unittest.TestCase):
    def test_the_benchmark_runs(self):
        script = Path(__file__).parents[2] / "benchmarks" / "bench_status_board.py"
        done = subprocess.run(
            [sys.executable, str(script), "--ranks", "2", "16", "--votes", "2"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.split() for line in done.stdout.splitlines()[1:]]
        self.assertEqual([row[0] for row in rows], ["2", "16"])
