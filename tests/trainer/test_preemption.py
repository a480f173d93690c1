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
"""Real signals to trainings of 1, 2 and 4 processes: where they stop, what is on disk then, and how they go on."""

import ctypes
import dataclasses
import functools
import json
import os
import pickle
import random
import select
import signal
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from parameterized import parameterized

from transformers import TrainingArguments
from transformers.testing_utils import CaptureLogger, TestCasePlus, get_torch_dist_unique_port
from transformers.trainer_checkpoint import TrainingPreempted, signal_watch
from transformers.trainer_checkpoint.agreement import Agreement, GivenUp
from transformers.trainer_checkpoint.arguments import jit_signal_numbers
from transformers.trainer_checkpoint.errors import RankLostError
from transformers.trainer_checkpoint.signal_watch import Interruption, OutliveSignals, SignalWatch
from transformers.trainer_checkpoint.verification import verify


SCRIPTS = Path(__file__).parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from preempt_training import Case, write_case  # noqa: E402
from tiny_training import losses, tiny_trainer  # noqa: E402


# Seconds within which everything here has ended or the test fails: far more than it takes on a busy machine, and less
# than NEVER, which nothing waits out.
SECONDS, NEVER = 300, 900.0
# Seconds that the step takes in which a signal comes that is to have its effect at the end of that step.
LONG = 3.0
TERM = 128 + signal.SIGTERM


# ---- Arguments and the Trainer ----


class ArgumentsTest(unittest.TestCase):
    def test_defaults(self):
        args = TrainingArguments(output_dir="out", use_cpu=True, report_to="none")
        self.assertEqual((args.jit_checkpoint_signals, args.jit_checkpoint_grace), ("SIGTERM", 120.0))

    @parameterized.expand(
        [
            ("SIGTERM", (15,)),
            ("usr1,SIGTERM", (10, 15)),
            (["SIGUSR1", "term", "SIGUSR1"], (10, 15)),
        ]
    )
    def test_signals(self, given, numbers):
        self.assertEqual(jit_signal_numbers(given), numbers)

    @parameterized.expand(
        ["SIGKILL", "SIGSEGV", "SIGCHLD", "", "SIGTERM,", "nonsense", [[]], [["SIGTERM", 15]], [None]]
    )
    def test_signals_that_cannot_be_meant(self, given):
        with self.assertRaisesRegex(ValueError, "`jit_checkpoint_signals` is "):
            TrainingArguments(output_dir="out", use_cpu=True, report_to="none", jit_checkpoint_signals=given)

    @parameterized.expand([0, -1.0, float("inf"), float("nan"), True, "30"])
    def test_a_grace_that_cannot_be_meant(self, given):
        with self.assertRaisesRegex(ValueError, f"`jit_checkpoint_grace` is {given!r}; it has to be a number"):
            TrainingArguments(output_dir="out", use_cpu=True, report_to="none", jit_checkpoint_grace=given)


class InTheTrainerTest(TestCasePlus):
    def test_the_callback_is_there_and_does_nothing_on_its_own(self):
        from transformers.trainer_jit_checkpoint import CheckpointManager, JITCheckpointCallback

        before = signal.getsignal(signal.SIGTERM)
        trainer = tiny_trainer(self.get_auto_remove_tmp_dir(), max_steps=1, enable_jit_checkpoint=True)
        self.assertIs(signal.getsignal(signal.SIGTERM), before)
        (callback,) = [c for c in trainer.callback_handler.callbacks if isinstance(c, JITCheckpointCallback)]
        self.assertIs(callback.trainer, trainer)
        self.assertIsInstance(callback.jit_manager, CheckpointManager)
        trainer.train()
        self.assertIs(signal.getsignal(signal.SIGTERM), before)

    def test_handlers_are_put_back_when_the_training_raises(self):
        trainer = tiny_trainer(self.get_auto_remove_tmp_dir(), enable_jit_checkpoint=True)
        trainer.training_step = lambda *args, **kwargs: 1 / 0
        before = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(before[1])
        with self.assertRaises(ZeroDivisionError):
            trainer.train()
        found = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(found[1])
        self.assertEqual(found, before)

    def test_a_handler_that_the_training_installs_stays(self):
        trainer = tiny_trainer(self.get_auto_remove_tmp_dir(), max_steps=1, enable_jit_checkpoint=True)
        step = trainer.training_step

        def training_step(*args, **kwargs):
            signal.signal(signal.SIGTERM, theirs)
            return step(*args, **kwargs)

        def theirs(number, frame):
            pass

        before = signal.getsignal(signal.SIGTERM)
        trainer.training_step = training_step
        try:
            trainer.train()
            self.assertIs(signal.getsignal(signal.SIGTERM), theirs)
        finally:
            signal.signal(signal.SIGTERM, before)

    def test_the_option_changes_nothing_of_a_training(self):
        found = []
        for on in (True, False):
            trainer = tiny_trainer(self.get_auto_remove_tmp_dir(), dropout=0.3, enable_jit_checkpoint=on)
            trainer.train()
            found.append(losses(trainer))
        self.assertEqual(found[0], found[1])

    def test_whoever_catches_the_end_knows_what_is_saved(self):
        out = self.get_auto_remove_tmp_dir()
        trainer = tiny_trainer(out, enable_jit_checkpoint=True, save_strategy="no", max_steps=50)
        step = trainer.training_step

        def training_step(*args, **kwargs):
            if trainer.state.global_step == 2:
                Path(out, "STOP").touch()
            time.sleep(0.1)
            return step(*args, **kwargs)

        trainer.training_step = training_step
        with self.assertRaises(TrainingPreempted) as caught:
            trainer.train()
        preempted = caught.exception
        self.assertEqual((preempted.code, preempted.status), (0, 0))
        self.assertEqual(preempted.checkpoint, os.path.join(out, f"checkpoint-{preempted.step}"))
        self.assertEqual(preempted.reason, f"the file {os.path.join(out, 'STOP')}")
        self.assertEqual(os.listdir(out), [f"checkpoint-{preempted.step}"])
        again = pickle.loads(pickle.dumps(preempted))
        self.assertEqual((again.code, again.step, again.checkpoint), (0, preempted.step, preempted.checkpoint))

    def test_loaders_of_every_kind_are_protected_once(self):
        trainer = tiny_trainer(self.get_auto_remove_tmp_dir(), enable_jit_checkpoint=True, dataloader_num_workers=1)
        for loader in (trainer.get_train_dataloader(), trainer.get_eval_dataloader()):
            self.assertIsInstance(loader.worker_init_fn, OutliveSignals)
            protected = loader.worker_init_fn
            trainer._safe_checkpoints.preemption.protect_workers(loader)
            self.assertIs(loader.worker_init_fn, protected)
        self.assertEqual(pickle.loads(pickle.dumps(OutliveSignals(None, (15,), 3.0))).seconds, 3.0)
        trainer.args.dataloader_num_workers = 0
        self.assertNotIsInstance(trainer.get_train_dataloader().worker_init_fn, OutliveSignals)


# ---- Signals ----


class SignalWatchTest(unittest.TestCase):
    def setUp(self):
        self.before = signal.getsignal(signal.SIGUSR1)
        self.addCleanup(signal.signal, signal.SIGUSR1, self.before)
        self.watch = SignalWatch([signal.SIGUSR1])
        self.addCleanup(self.watch.close)
        self.addCleanup(self.watch.stop)

    def look(self) -> None:
        self.watch.wait(5)
        self.watch.look()

    def test_noticed_once_and_then_again(self):
        self.watch.start()
        self.watch.look()
        self.assertIsNone(self.watch.first)
        os.kill(os.getpid(), signal.SIGUSR1)
        self.look()
        self.assertEqual(self.watch.first[0], signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        self.look()
        self.assertFalse(self.watch.again)  # too soon
        self.watch.first = (signal.SIGUSR1, time.monotonic() - signal_watch.SAME_SIGNAL - 1)
        self.watch.look()
        self.assertFalse(self.watch.again)
        os.kill(os.getpid(), signal.SIGUSR1)
        self.look()
        self.assertTrue(self.watch.again)

    def test_noticed_without_the_wakeup_descriptor(self):
        self.watch.start()
        signal.set_wakeup_fd(-1)
        os.kill(os.getpid(), signal.SIGUSR1)
        self.look()
        self.assertEqual(self.watch.first[0], signal.SIGUSR1)

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a mutex of the C library")
    def test_noticed_while_the_main_thread_is_not_in_the_interpreter(self):
        """It waits for a lock of C, which no signal interrupts, as in a collective: no Python handler runs meanwhile."""
        libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
        locked, handled = threading.Event(), []

        def hold_until_noticed() -> None:
            libc.pthread_mutex_lock(mutex)
            locked.set()
            end = time.monotonic() + 20
            while self.watch.first is None and time.monotonic() < end:
                self.watch.wait(0.1)
                self.watch.look()
            handled.append(self.watch._handled)
            libc.pthread_mutex_unlock(mutex)

        self.watch.start()
        thread = threading.Thread(target=hold_until_noticed)
        thread.start()
        locked.wait()
        killer = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -USR1 {os.getpid()}"])
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_unlock(mutex)
        thread.join()
        killer.wait()
        self.assertEqual(self.watch.first[0], signal.SIGUSR1)
        self.assertEqual(handled, [0])

    def test_its_own_interruption_is_no_signal(self):
        self.watch.start()
        for interruptible in (False, True):
            self.watch.interruptible = interruptible
            interrupter = threading.Timer(0.2, self.watch.interrupt_main)
            interrupter.start()
            if interruptible:
                with self.assertRaises(Interruption):
                    time.sleep(20)
            else:
                time.sleep(0.5)
            interrupter.join()
        self.look()
        self.assertIsNone(self.watch.first)

    def test_the_handler_of_before_is_called_and_put_back(self):
        noted = []

        def theirs(number, frame):
            noted.append(number)
            raise KeyError("theirs")

        signal.signal(signal.SIGUSR1, theirs)
        self.watch.start()
        os.kill(os.getpid(), signal.SIGUSR1)
        self.look()
        self.assertEqual(noted, [signal.SIGUSR1])
        self.assertIsInstance(self.watch.raised, KeyError)
        self.watch.stop()
        self.assertIs(signal.getsignal(signal.SIGUSR1), theirs)

    def test_a_descriptor_of_before_gets_the_signals_that_are_not_ours(self):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        before = signal.set_wakeup_fd(writer)
        self.addCleanup(signal.set_wakeup_fd, before)
        other = signal.signal(signal.SIGUSR2, lambda number, frame: None)
        self.addCleanup(signal.signal, signal.SIGUSR2, other)
        self.watch.start()
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        self.look()
        self.assertEqual(os.read(reader, 10), bytes([signal.SIGUSR2]))
        self.watch.stop()
        self.assertEqual(signal.set_wakeup_fd(writer), writer)

    def test_a_handler_that_cannot_be_put_back_is_left_alone(self):
        with (
            mock.patch.object(signal_watch.signal, "getsignal", return_value=None),
            CaptureLogger(signal_watch.logger) as captured,
        ):
            self.watch.start()
        self.assertIn("SIGUSR1 is not waited for: it has a handler that was not installed from Python", captured.out)
        self.assertIs(signal.getsignal(signal.SIGUSR1), self.before)

    def test_a_forked_child_dies_of_it_as_before_and_its_parent_does_not_notice(self):
        self.watch.start()
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGUSR1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), -signal.SIGUSR1)
        self.watch.wait(0.2)
        self.watch.look()
        self.assertIsNone(self.watch.first)

    def test_a_worker_outlives_it_for_a_while(self):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            OutliveSignals(None, (signal.SIGUSR1,), 1.0)(0)
            os.write(writer, b"ready")
            while True:
                time.sleep(60)
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        self.assertEqual(os.read(reader, 5), b"ready")
        os.kill(child, signal.SIGUSR1)
        time.sleep(0.3)
        self.assertEqual(os.waitpid(child, os.WNOHANG)[0], 0)
        end = time.monotonic() + 30
        while (found := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(found, (child, 0))


# ---- Agreeing ----


class FakeBoards:
    """Boards for ranks that are threads: an exchange waits until every rank is there, or is given up."""

    def __init__(self, world_size: int):
        self.world_size = world_size
        self.turn = threading.Condition()
        self.said: dict[tuple[int, str], dict[int, Any]] = {}
        self.words: dict[int, str] = {}
        self.dead: set[int] = set()

    def board(self, rank: int) -> "FakeBoard":
        return FakeBoard(self, rank)


class FakeBoard:
    def __init__(self, boards: FakeBoards, rank: int):
        self.boards, self.rank, self.world_size, self.round = boards, rank, boards.world_size, 0

    def begin(self) -> None:
        self.round += 1

    def call_out(self, word: str) -> None:
        self.boards.words.setdefault(self.round, word)

    def called_out(self) -> str | None:
        return self.boards.words.get(self.round)

    def exchange(self, topic: str, payload: Any, patience: float | None = None) -> list[Any]:
        boards, key = self.boards, (self.round, topic)
        with boards.turn:
            said = boards.said.setdefault(key, {})
            said[self.rank] = payload
            boards.turn.notify_all()
            boards.turn.wait_for(lambda: len(said) == self.world_size or boards.dead - said.keys(), patience)
            if len(said) < self.world_size:
                raise RankLostError(topic, tuple(boards.dead), "its process has ended")
            return [said[rank] for rank in range(self.world_size)]

    def close(self) -> None:
        pass


class Signals:
    """What an agreement needs of a `SignalWatch`."""

    def __init__(self) -> None:
        self.first: tuple[int, float] | None = None
        self.again = self.interruptible = False
        self.interrupted = threading.Event()

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.01))

    def look(self) -> None:
        pass

    def wake(self) -> None:
        pass

    def interrupt_main(self) -> None:
        self.interrupted.set()

    def send(self) -> None:
        self.first = (signal.SIGTERM, time.monotonic())


class AgreementTest(TestCasePlus):
    def make(self, world_size: int, run_dir: str | None = None, grace: float = 60.0) -> list[Agreement]:
        self.boards = FakeBoards(world_size)
        self.signals = [Signals() for _ in range(world_size)]
        agreements = [
            Agreement(
                self.boards.board(rank) if world_size > 1 else None,
                self.signals[rank],
                run_dir if rank == 0 else None,
                grace,
                30.0,
                lambda: "Nothing.",
            )
            for rank in range(world_size)
        ]
        for agreement in agreements:
            agreement.start()
            self.addCleanup(agreement.close)
        return agreements

    def await_true(self, condition) -> None:
        end = time.monotonic() + 30
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.005)

    @parameterized.expand([(seed,) for seed in range(6)])
    def test_ranks_that_wait_for_each_other_in_every_step_stop_at_the_same_point(self, seed):
        """Each point lies between two collectives; ranks run apart as far as those let them."""
        chance = random.Random(seed)
        world_size = 2 + seed % 3
        agreements = self.make(world_size)
        barrier = threading.Barrier(world_size, timeout=30)
        stopped: dict[int, Any] = {}

        def rank(number: int, pauses: list[float]) -> None:
            try:
                for step, pause in enumerate(pauses):
                    barrier.wait()
                    time.sleep(pause)
                    for count in (0, 1):
                        if agreements[number].reaches((step, count), lambda: None):
                            stopped[number] = (step, count)
                            return
            except threading.BrokenBarrierError:
                stopped[number] = "left alone in a collective"

        threads = [
            threading.Thread(target=rank, args=(number, [chance.random() / 30 for _ in range(2000)]))
            for number in range(world_size)
        ]
        for thread in threads:
            thread.start()
        time.sleep(chance.random() / 3)
        for number in chance.sample(range(world_size), 1 + seed % world_size):
            self.signals[number].send()
            time.sleep(chance.random() / 20)
        for thread in threads:
            thread.join(60)
        self.assertEqual(len(set(stopped.values())), 1, stopped)
        self.assertEqual(len(stopped), world_size)
        self.assertIsInstance(stopped[0], tuple)

    def test_the_rank_that_is_ahead_is_caught_up_with(self):
        first, second = self.make(2)
        for point in ((1, 0), (1, 1), (2, 0)):
            self.assertFalse(first.reaches(point, self.fail))
        self.assertFalse(second.reaches((1, 0), self.fail))
        self.signals[1].send()
        synchronized = []
        self.await_true(lambda: first._target is not None and second._target is not None)
        self.assertEqual([first._target, second._target], [(2, 0), (2, 0)])
        for point in ((1, 1), (2, 0)):
            self.assertFalse(second.reaches(point, lambda: synchronized.append(1)))
        for agreement in (first, second):
            self.assertTrue(agreement.reaches((2, 1), lambda: synchronized.append(1)))
        self.assertEqual(len(synchronized), 4)

    def test_a_rank_that_is_lost_ends_the_waiting(self):
        first, second = self.make(2)
        second.close()
        self.boards.dead.add(1)
        self.signals[0].send()
        self.await_true(lambda: first._frozen)
        with self.assertRaisesRegex(GivenUp, "no word from rank.s. 1 on 'passed': its process has ended"):
            first.reaches((1, 0), lambda: None)

    def test_loading_is_interrupted_only_for_an_end_and_only_before_the_target(self):
        first, second = self.make(2)
        for agreement in (first, second):
            agreement.reaches((3, 0), self.fail)

        def load() -> str:
            self.assertTrue(self.signals[0].interruptible)
            self.signals[0].send()
            self.assertTrue(self.signals[0].interrupted.wait(30))
            raise Interruption

        self.assertIsNone(first.load_before((3, 1), load))
        self.assertFalse(self.signals[0].interruptible)
        self.assertTrue(first.reaches((3, 1), lambda: None))
        self.await_true(lambda: second._target is not None)
        self.assertIsNone(second.load_before((3, 1), self.fail))

    def test_an_error_in_loading_is_one_unless_it_was_interrupted(self):
        (agreement,) = self.make(1)
        with self.assertRaises(ZeroDivisionError):
            agreement.load_before((3, 1), lambda: 1 / 0)
        self.assertEqual(agreement.load_before((3, 1), lambda: "batch"), "batch")

        def load() -> None:
            self.signals[0].send()
            self.assertTrue(self.signals[0].interrupted.wait(30))
            raise OSError("interrupted")

        self.assertIsNone(agreement.load_before((3, 2), load))

    def test_no_save_is_started_for_which_the_time_is_too_short_on_one_rank(self):
        first, second = self.make(2)
        second.grace = 20.0
        self.signals[0].send()
        self.await_true(lambda: first._target is not None and second._target is not None)
        results: dict[int, str] = {}

        def start(agreement: Agreement) -> None:
            try:
                agreement.may_start(25.0 * (agreement.rank == 0))
                results[agreement.rank] = "starts"
            except GivenUp as given_up:
                results[agreement.rank] = str(given_up)

        threads = [threading.Thread(target=start, args=(agreement,)) for agreement in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        self.assertEqual(results[0], results[1])
        self.assertRegex(results[0], r"^[0-9.]+ s of the grace are left, and the last save took 25.0 s$")

    def test_a_file_is_removed_after_the_save_and_asks_once(self):
        out = self.get_auto_remove_tmp_dir()
        (agreement,) = self.make(1, out)
        path = Path(out, "SAVE")
        for number in (0, 1):
            path.touch()
            self.await_true(lambda: agreement.request is not None)
            self.assertEqual((agreement.request.number, agreement.request.ends), (number, False))
            self.assertTrue(agreement.reaches((number + 1, 0), lambda: None))
            self.assertTrue(path.exists())
            agreement.served(saved=True)
            self.assertFalse(path.exists())
            self.assertFalse(agreement.reaches((number + 1, 1), self.fail))

    def test_a_file_whose_save_failed_asks_again_only_when_it_is_made_anew(self):
        out = self.get_auto_remove_tmp_dir()
        (agreement,) = self.make(1, out)
        path = Path(out, "SAVE")
        path.touch()
        self.await_true(lambda: agreement.request is not None)
        agreement.served(saved=False)
        looks = agreement._next_file_look
        self.await_true(lambda: agreement._next_file_look > looks)
        self.assertIsNone(agreement.request)
        self.assertTrue(path.exists())
        os.utime(path, ns=(1, 1))
        self.await_true(lambda: agreement.request is not None)

    def test_stop_comes_before_save(self):
        out = self.get_auto_remove_tmp_dir()
        for name in ("SAVE", "STOP"):
            Path(out, name).touch()
        (agreement,) = self.make(1, out)
        self.await_true(lambda: agreement.request is not None)
        self.assertTrue(agreement.request.ends)
        self.assertEqual(agreement.status, 0)
        self.signals[0].send()
        self.assertEqual(agreement.status, TERM)

    def test_after_the_last_point_nobody_is_stopped(self):
        first, second = self.make(2)
        first.finish()
        self.signals[1].send()
        self.await_true(lambda: second._frozen)
        self.assertFalse(second.reaches((9, 0), lambda: None))
        self.assertFalse(second.reaches((9, 1), lambda: None))


# ---- Trainings ----


class Server:
    """`preempt_training.py --serve`: forks ranks that have everything imported already."""

    def __init__(self) -> None:
        command = [sys.executable, str(SCRIPTS / "preempt_training.py"), "--serve"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        )

    def ask(self, patience: float, **told: Any) -> int | None:
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], patience + SECONDS)
        if not ready:
            raise AssertionError(f"The server does not answer to {told}")
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Run:
    """A case that is running, or has run, in some processes."""

    def __init__(self, server: Server, case: Case, world_size: int = 1):
        self.server, self.case, self.world_size = server, case, world_size
        os.makedirs(case.folder, exist_ok=True)
        path = write_case(case)
        for rank in range(world_size):
            for name in (f"events.{rank}", f"result.{rank}.json"):
                Path(case.folder, name).unlink(missing_ok=True)
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(get_torch_dist_unique_port())}
        env.update(WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size))
        self.pids = []
        for rank in range(world_size):
            env.update(RANK=str(rank), LOCAL_RANK=str(rank))
            log = str(self.log_file(rank))
            self.pids.append(server.ask(5, run=path, log=log, env=env if world_size > 1 else {}))
        self.statuses: list[int | None] = []

    @property
    def out(self) -> str:
        return os.path.join(self.case.folder, "out")

    def log_file(self, rank: int) -> Path:
        return Path(self.case.folder, f"log.{rank}")

    def log(self, rank: int = 0) -> str:
        return self.log_file(rank).read_text(encoding="utf-8")

    def events(self, rank: int = 0) -> list[str]:
        path = Path(self.case.folder, f"events.{rank}")
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def await_event(self, event: str, rank: int = 0, count: int = 1) -> None:
        """Until the rank has begun `event` for the `count`-th time."""
        self.await_true(lambda: self.events(rank).count(event) >= count, f"{count} times {event!r} on rank {rank}")

    def await_true(self, condition, what: str) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            if time.monotonic() > end:
                self.kill()
                logs = "\n".join(self.log(rank)[-2000:] for rank in range(self.world_size))
                raise AssertionError(f"{what}: not seen. {[self.events(r) for r in range(self.world_size)]}\n{logs}")
            time.sleep(0.01)

    def send(self, number: int = signal.SIGTERM, *ranks: int) -> None:
        for rank in ranks or range(self.world_size):
            os.kill(self.pids[rank], number)

    def kill(self) -> None:
        for pid in self.pids:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def join(self, seconds: float = SECONDS) -> "Run":
        """Wait for all ranks; none may be left."""
        end = time.monotonic() + seconds
        for pid in self.pids:
            self.statuses.append(self.server.ask(seconds, wait=pid, seconds=max(1.0, end - time.monotonic())))
        if None in self.statuses:
            self.kill()
            logs = "\n".join(self.log(rank)[-3000:] for rank in range(self.world_size))
            raise AssertionError(f"These have not ended: {self.statuses}\n{logs}")
        return self

    def result(self, rank: int = 0) -> dict[str, Any]:
        path = Path(self.case.folder, f"result.{rank}.json")
        if not path.exists():
            raise AssertionError(f"rank {rank} has left nothing ({self.statuses}):\n{self.log(rank)[-3000:]}")
        return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="class")
def for_class(request, server, tmp_path_factory):
    request.cls.server = server
    request.cls.references = str(tmp_path_factory.mktemp("references"))


@pytest.mark.usefixtures("for_class")
class PreemptionTestCase(TestCasePlus):
    server: Server
    references: str

    def setUp(self):
        super().setUp()
        self.folder = self.get_auto_remove_tmp_dir()
        self.runs: list[Run] = []

    def tearDown(self):
        for run in self.runs:
            if len(run.statuses) < len(run.pids):
                run.kill()
                run.join()
        super().tearDown()

    def start(self, world_size: int = 1, **case: Any) -> Run:
        run = Run(self.server, Case(self.folder, **case), world_size)
        self.runs.append(run)
        return run

    def reference(self, run: Run) -> dict[str, Any]:
        """What the training gives that nobody interrupts."""
        return _reference(self.server, self.references, run.world_size, json.dumps(run.case.arguments, sort_keys=True))

    def assert_directory(self, run: Run, *steps: int) -> None:
        """Nothing but good checkpoints of these steps."""
        self.assertEqual(sorted(os.listdir(run.out)), sorted(f"checkpoint-{step}" for step in steps))
        for step in steps:
            path = os.path.join(run.out, f"checkpoint-{step}")
            self.assertEqual(verify(path, level="full").problems, ())
            self.assertNotIn("checkpoint-is-incomplete.txt", os.listdir(path))

    def assert_preempted(self, run: Run, step: int | None = None, status: int = TERM) -> int:
        """All ranks have ended after the same step, which is saved and said to be. Returns it."""
        self.assertEqual(run.statuses, [status] * run.world_size, run.log())
        results = [run.result(rank) for rank in range(run.world_size)]
        steps = {result["step"] for result in results}
        self.assertEqual(len(steps), 1, results)
        found = steps.pop()
        if step is not None:
            self.assertEqual(found, step)
        checkpoint = os.path.join(run.out, f"checkpoint-{found}")
        for result in results:
            self.assertEqual((result["ended"], result["status"]), ("preempted", status))
            self.assertEqual(result["checkpoint"], checkpoint)
            self.assertEqual(result["threads"], [])
            self.assertTrue(result["put_back"])
        self.assertIn(f"step {found} is saved in {checkpoint}. Ending with status {status}.", run.log())
        self.assertEqual(verify(checkpoint, level="full").problems, ())
        return found

    def assert_goes_on(self, run: Run) -> None:
        """Resumed, it gives the losses and evaluations of the uninterrupted training."""
        case = dataclasses.replace(run.case, resume=True, seconds={}, slow_row=None, handler=None, break_write=False)
        resumed = Run(self.server, case, run.world_size).join()
        self.assertEqual(resumed.statuses, [0] * run.world_size, resumed.log())
        reference = self.reference(run)
        for rank in range(run.world_size):
            self.assertEqual(resumed.result(rank)["losses"], reference["losses"])
            self.assertEqual(resumed.result(rank)["evaluations"], reference["evaluations"])


@functools.cache
def _reference(server: Server, folder: str, world_size: int, arguments: str) -> dict[str, Any]:
    name = f"{world_size}-{abs(hash(arguments))}"
    case = Case(os.path.join(folder, name), arguments={**json.loads(arguments), "enable_jit_checkpoint": False})
    run = Run(server, case, world_size).join()
    assert run.statuses == [0] * world_size, run.log()
    result = run.result()
    assert len(result["losses"]) == 8
    return result


EVALUATE = {"eval_strategy": "steps", "eval_steps": 2}


class OneProcessTest(PreemptionTestCase):
    def test_in_a_step(self):
        # edit: watch-for-preemption
        run = self.start(seconds={"train 2": LONG})
        run.await_event("train 2")
        run.send()
        run.join()
        self.assert_preempted(run, step=3)
        self.assert_directory(run, 3)
        self.assertEqual(run.events()[-3:], ["save 3", "saved 3", "end 3"])
        self.assert_goes_on(run)

    def test_without_the_option_nothing_is_waited_for(self):
        run = self.start(seconds={"train 2": LONG}, arguments={"enable_jit_checkpoint": False})
        run.await_event("train 2")
        run.send()
        self.assertEqual(run.join().statuses, [-signal.SIGTERM])
        self.assertEqual(os.listdir(run.out), [])

    @parameterized.expand([("list", ["SIGUSR1", "SIGTERM"]), ("text", "usr1, term")])
    def test_signals_to_choose(self, _, signals):
        run = self.start(seconds={"train 2": LONG}, arguments={"jit_checkpoint_signals": signals})
        run.await_event("train 2")
        run.send(signal.SIGUSR1)
        run.join()
        self.assert_preempted(run, step=3, status=128 + signal.SIGUSR1)

    def test_during_evaluation(self):
        run = self.start(seconds={"predict 4": 1.0}, arguments=EVALUATE)
        run.await_event("predict 4", count=2)
        run.send()
        run.join()
        self.assert_preempted(run, step=4)
        self.assertLess(run.events().count("predict 4"), 4)
        self.assertNotIn("evaluated 4", run.events())
        self.assert_goes_on(run)

    def test_before_an_evaluation_that_is_due(self):
        run = self.start(seconds={"train 3": LONG}, arguments=EVALUATE)
        run.await_event("train 3")
        run.send()
        run.join()
        self.assert_preempted(run, step=4)
        self.assertNotIn("predict 4", run.events())
        self.assert_goes_on(run)

    def test_evaluation_at_the_end_of_an_epoch(self):
        """12 rows of 2 make an epoch of 6 steps: the request comes in its last one, and the evaluation is after it."""
        arguments = {"eval_strategy": "epoch", "per_device_train_batch_size": 4}
        run = self.start(seconds={"train 5": LONG}, arguments=arguments)
        run.await_event("train 5")
        run.send()
        run.join()
        self.assert_preempted(run, step=6)
        self.assertNotIn("predict 6", run.events())
        self.assert_goes_on(run)

    def test_again_while_an_evaluation_is_made_up_for(self):
        run = self.start(seconds={"predict 4": 1.0}, arguments=EVALUATE)
        run.await_event("predict 4", count=2)
        run.send()
        run.join()
        again = self.start(seconds={"predict 4": 1.0}, arguments=EVALUATE, resume=True)
        again.await_event("predict 4", count=2)
        again.send()
        again.join()
        self.assertEqual(again.statuses, [TERM])
        self.assertNotIn("train 4", again.events())
        self.assertEqual(again.result()["checkpoint"], os.path.join(run.out, "checkpoint-4"))
        self.assertIn("there is nothing to save", again.log())
        self.assert_directory(run, 4)
        self.assert_goes_on(run)

    def test_in_the_evaluation_of_the_last_step(self):
        run = self.start(seconds={"predict 8": 1.0}, arguments=EVALUATE)
        run.await_event("predict 8", count=2)
        run.send()
        run.join()
        self.assert_preempted(run, step=8)
        self.assert_goes_on(run)

    def test_in_data_loading_that_takes_long(self):
        """Nobody can wait for it to end, so the loading has to be left."""
        for row in (1, 9):
            with self.subTest(row=row):
                run = self.start(slow_row=row)
                run.await_event(f"load {row}")
                run.send()
                run.join()
                if row == 1:
                    self.assertEqual(run.statuses, [TERM])
                    self.assertIn("there is nothing to save", run.log())
                    self.assertEqual(os.listdir(run.out), [])
                    continue
                # One batch of 2 is loaded ahead.
                self.assert_preempted(run, step=3)
                self.assert_directory(run, 3)
                self.assert_goes_on(run)

    def test_gradient_accumulation(self):
        run = self.start(seconds={"train 2": 1.0}, arguments={"gradient_accumulation_steps": 3, "max_steps": 8})
        run.await_event("train 2", count=2)
        run.send()
        run.join()
        self.assert_preempted(run, step=3)
        self.assertEqual(run.events().count("train 2"), 3)
        self.assert_goes_on(run)

    def test_a_save_that_is_going_on_counts(self):
        run = self.start(seconds={"save": LONG}, arguments={"save_steps": 3})
        run.await_event("save 3")
        run.send()
        run.join()
        self.assert_preempted(run, step=3)
        self.assertEqual(run.events().count("save 3"), 1)
        self.assert_directory(run, 3)
        self.assert_goes_on(run)

    def test_a_second_signal_stops_at_once(self):
        run = self.start(seconds={"train": NEVER}, same_signal=0.5)
        run.await_event("train 0")
        run.send()
        run.await_true(lambda: "asks for" in run.log(), "the request")
        time.sleep(0.6)
        run.send()
        run.join()
        self.assertEqual(run.statuses, [TERM])
        self.assertIn("SIGTERM came a second time", run.log())
        self.assertEqual(os.listdir(run.out), [])

    def test_a_second_signal_right_after_the_first_is_the_launcher_s(self):
        run = self.start(seconds={"train 2": LONG})
        run.await_event("train 2")
        run.send()
        time.sleep(0.1)
        run.send()
        run.join()
        self.assert_preempted(run, step=3)

    def test_the_grace_ends_a_step_that_takes_too_long(self):
        run = self.start(seconds={"train": NEVER}, arguments={"jit_checkpoint_grace": 2.0})
        run.await_event("train 0")
        run.send()
        run.join()
        self.assertEqual(run.statuses, [TERM])
        self.assertIn("nothing was saved, because the ranks have not come to an agreement", run.log())
        self.assertIn("(`jit_checkpoint_grace`)", run.log())

    def test_the_grace_ends_a_save_that_takes_too_long(self):
        run = self.start(seconds={"save": NEVER, "train 1": 1.0}, arguments={"jit_checkpoint_grace": 10.0})
        run.await_event("train 1")
        run.send()
        run.join()
        self.assertEqual(run.statuses, [TERM])
        self.assertIn("the save has not ended within 10 s", run.log())
        self.assertEqual([name for name in os.listdir(run.out) if name.startswith("checkpoint-")], [])

    def test_no_save_is_started_that_takes_longer_than_what_is_left(self):
        run = self.start(
            seconds={"save": 9.0, "train 2": 1.0}, arguments={"jit_checkpoint_grace": 8.0, "save_steps": 2}
        )
        run.await_event("saved 2")
        run.await_event("train 2")
        run.send()
        run.join()
        self.assertEqual(run.statuses, [TERM])
        self.assertIn("of the grace are left, and the last save took", run.log())
        self.assertNotIn("save 3", run.events())
        self.assert_directory(run, 2)

    def test_the_user_s_handler_is_called_and_put_back(self):
        run = self.start(seconds={"train 2": LONG}, handler="note")
        run.await_event("train 2")
        run.send()
        run.join()
        self.assert_preempted(run, step=3)
        self.assertEqual(run.result()["noted"], [signal.SIGTERM])

    def test_what_the_user_s_handler_raises_comes_after_the_save(self):
        run = self.start(seconds={"train 2": LONG}, handler="exit")
        run.await_event("train 2")
        run.send()
        run.join()
        self.assertEqual(run.statuses, [7])
        self.assertEqual(run.result()["ended"], "SystemExit")
        self.assert_directory(run, 3)

    def test_a_training_that_nobody_interrupts_puts_the_handlers_back(self):
        run = self.start(handler="note").join()
        self.assertEqual(run.statuses, [0])
        result = run.result()
        self.assertEqual((result["ended"], result["put_back"], result["threads"]), ("as usual", True, []))

    def test_when_the_training_is_over_it_is_too_late(self):
        """What was trained is not thrown away."""
        run = self.start(train_end=1.5)
        run.await_event("end 8")
        run.send()
        run.join()
        self.assertEqual(run.statuses, [0])
        self.assertEqual(run.result()["ended"], "as usual")
        self.assertIn("SIGTERM came when the training was over", run.log())

    def test_not_in_the_main_thread(self):
        run = self.start(thread=True).join()
        self.assertEqual(run.statuses, [0])
        self.assertIn("does not run in the main thread", run.log())
        self.assertEqual(run.result()["ended"], "as usual")

    def test_workers_of_the_data_loader_do_not_die_of_it(self):
        arguments = {"dataloader_num_workers": 2}
        run = self.start(seconds={"train 2": LONG}, arguments=arguments)
        run.await_event("train 2")
        os.killpg(run.pids[0], signal.SIGTERM)
        run.join()
        self.assert_preempted(run, step=3)
        self.assertNotIn("DataLoader worker", run.log())
        self.assert_goes_on(run)

    def test_workers_alone_get_the_signal(self):
        """Slurm and others signal every process; here the training itself has none, and goes on."""
        run = self.start(seconds={"train": 0.2}, arguments={"dataloader_num_workers": 2})
        run.await_event("train 1")
        children = Path(f"/proc/{run.pids[0]}/task/{run.pids[0]}/children").read_text(encoding="ascii").split()
        self.assertEqual(len(children), 2)
        for child in children:
            os.kill(int(child), signal.SIGTERM)
        run.join()
        self.assertEqual(run.statuses, [0], run.log())
        self.assertEqual(run.result()["losses"], self.reference(run)["losses"])

    def test_a_file_save_asks_for_a_checkpoint(self):
        run = self.start(seconds={"train": 0.3}, arguments={"max_steps": 20})
        run.await_event("train 2")
        Path(run.out, "SAVE").touch()
        run.await_true(lambda: any(event.startswith("saved") for event in run.events()), "a save")
        run.await_true(lambda: not os.path.exists(os.path.join(run.out, "SAVE")), "the file is removed")
        run.join()
        self.assertEqual(run.statuses, [0])
        saved = [event.split()[1] for event in run.events() if event.startswith("saved")]
        self.assertEqual(len(saved), 2, saved)  # that one, and the last step
        self.assert_directory(run, *map(int, saved))
        self.assertIn("SAVE asked for a checkpoint: it is ", run.log())

    def test_a_file_stop_asks_for_a_checkpoint_and_the_end(self):
        run = self.start(seconds={"train": 0.5})
        run.await_event("train 2")
        Path(run.out, "STOP").touch()
        run.join()
        step = self.assert_preempted(run, status=0)
        self.assert_directory(run, step)
        self.assert_goes_on(run)

    def test_a_signal_after_a_file_save(self):
        run = self.start(seconds={"train": 0.3, "save": LONG}, arguments={"max_steps": 30})
        run.await_event("train 1")
        Path(run.out, "SAVE").touch()
        run.await_true(lambda: any(event.startswith("save ") for event in run.events()), "a save")
        run.send()
        run.join()
        step = self.assert_preempted(run)
        self.assertEqual(run.events().count(f"save {step}"), 1)
        self.assertIn(str(step), {event.split()[1] for event in run.events() if event.startswith("saved")})


@pytest.mark.slow
class TwoProcessesTest(PreemptionTestCase):
    @parameterized.expand([("rank 0", 0), ("rank 1", 1)])
    def test_to_one_rank(self, _, rank):
        run = self.start(2, seconds={"train": 0.3})
        run.await_event("train 2", rank)
        run.send(signal.SIGTERM, rank)
        run.join()
        step = self.assert_preempted(run)
        self.assertIn(step, (3, 4, 5))
        self.assertIn(f"SIGTERM on rank {rank} asks for", run.log())
        self.assert_directory(run, step)
        self.assert_goes_on(run)

    @parameterized.expand([("at once", 0.0), ("0.4 s apart", 0.4), ("3 s apart", 3.0)])
    def test_to_all_ranks(self, _, seconds):
        run = self.start(2, seconds={"train 2": LONG, "train 3": 1.0})
        run.await_event("train 2")
        run.send(signal.SIGTERM, 1)
        time.sleep(seconds)
        try:
            run.send(signal.SIGTERM, 0)
        except ProcessLookupError:
            self.assertGreater(seconds, 1)  # it had ended by then
        run.join()
        # Whoever has ended the training may get a signal on the way out of the process, when it means what it always did.
        self.assertLessEqual({*run.statuses}, {TERM, -signal.SIGTERM})
        self.assertEqual(run.statuses[1], TERM)
        step = run.result(1)["step"]
        self.assertEqual(run.result(0)["step"], step)
        self.assert_directory(run, step)
        self.assert_goes_on(run)

    def test_to_the_process_groups_with_workers(self):
        run = self.start(2, seconds={"train": 0.3}, arguments={"dataloader_num_workers": 1})
        run.await_event("train 2")
        for pid in run.pids:
            os.killpg(pid, signal.SIGTERM)
        run.join()
        step = self.assert_preempted(run)
        self.assert_directory(run, step)
        self.assert_goes_on(run)

    def test_during_evaluation(self):
        run = self.start(2, seconds={"predict 4": 1.0}, arguments={**EVALUATE, "per_device_eval_batch_size": 1})
        run.await_event("predict 4", 1, count=2)
        run.send(signal.SIGTERM, 1)
        run.join()
        self.assert_preempted(run, step=4)
        self.assertNotIn("evaluated 4", run.events())
        self.assert_goes_on(run)

    def test_in_data_loading_that_takes_long(self):
        run = self.start(2, slow_row=9)
        for rank in (0, 1):
            run.await_event("load 9", rank)
        run.send(signal.SIGTERM, 1)
        run.join()
        self.assert_preempted(run, step=3)
        self.assert_goes_on(run)

    def test_in_data_loading_of_one_rank_while_the_other_waits_for_it(self):
        """Rank 0 has its batch and counts the tokens of all ranks: what it has begun is finished."""
        run = self.start(2, slow_row=9, slow_rank=1, slow_seconds=3 * LONG)
        run.await_event("load 9", 1)
        run.await_event("row 10", 0)
        time.sleep(1.0)
        run.send(signal.SIGTERM, 0)
        run.join()
        self.assert_preempted(run, step=4)
        self.assert_goes_on(run)

    def test_during_gradient_accumulation(self):
        run = self.start(2, seconds={"train": 0.3}, arguments={"gradient_accumulation_steps": 3})
        run.await_event("train 2", 1, count=2)
        run.send(signal.SIGTERM, 1)
        run.join()
        step = self.assert_preempted(run)
        for rank in (0, 1):
            self.assertEqual(run.events(rank).count(f"train {step - 1}"), 3)
            self.assertNotIn(f"train {step}", run.events(rank))
        self.assert_goes_on(run)

    def test_during_a_save(self):
        run = self.start(2, seconds={"save": LONG}, arguments={"save_steps": 3})
        run.await_event("save 3", 1)
        run.send(signal.SIGTERM, 1)
        run.join()
        self.assert_preempted(run, step=3)
        self.assertEqual(run.events(1).count("save 3"), 1)
        self.assert_directory(run, 3)
        self.assert_goes_on(run)

    def test_twice(self):
        run = self.start(2, seconds={"train": 5 * LONG}, same_signal=0.5)
        run.await_event("train 0", 1)
        run.send(signal.SIGTERM, 1)
        run.await_true(lambda: "asks for" in run.log(), "the request")
        time.sleep(0.6)
        run.send(signal.SIGTERM, 1)
        run.join()
        self.assertEqual(run.statuses, [TERM, TERM])
        self.assertIn("SIGTERM came a second time", run.log(1))
        self.assertIn("rank(s) 1", run.log(0))
        self.assertEqual([name for name in os.listdir(run.out) if name.startswith("checkpoint-")], [])

    def test_a_rank_is_killed_while_the_other_waits(self):
        """Rank 1 stands still, so that rank 0 waits for its answer; then it dies."""
        run = self.start(2, seconds={"train": 0.3}, arguments={"save_steps": 2})
        run.await_event("saved 2", 0)
        run.await_event("train 2", 1)
        run.send(signal.SIGSTOP, 1)
        run.send(signal.SIGTERM, 0)
        run.await_true(lambda: "asks for" in run.log(), "the request")
        run.send(signal.SIGKILL, 1)
        run.join()
        self.assertEqual(run.statuses, [TERM, -signal.SIGKILL], run.log())
        self.assertIn("nothing was saved, because no word from rank(s) 1", run.log())
        self.assertIn(f"The last checkpoint is {os.path.join(run.out, 'checkpoint-2')}.", run.log())
        self.assert_goes_on(run)

    def test_a_rank_that_stands_still_is_waited_for_within_the_grace(self):
        run = self.start(2, seconds={"train": 0.3}, arguments={"jit_checkpoint_grace": 4.0})
        run.await_event("train 2", 1)
        run.send(signal.SIGSTOP, 1)
        run.send(signal.SIGTERM, 0)
        status = self.server.ask(SECONDS, wait=run.pids[0], seconds=SECONDS)
        run.send(signal.SIGKILL, 1)
        self.assertEqual(status, TERM, run.log())
        self.assertIn("nothing was saved, because", run.log())
        run.pids = run.pids[1:]
        run.join()

    def test_a_save_that_fails_on_one_rank_is_an_error_on_all(self):
        arguments = {"on_save_error": "warn"}
        run = self.start(2, seconds={"train": 0.3}, arguments=arguments, break_write=True)
        run.await_event("train 2", 1)
        run.send(signal.SIGTERM, 0)
        run.join()
        self.assertEqual(run.statuses, [1, 1])
        texts = {run.result(rank)["text"] for rank in (0, 1)}
        self.assertEqual({run.result(rank)["ended"] for rank in (0, 1)}, {"CheckpointSaveError"})
        self.assertEqual(len(texts), 1)
        self.assertIn("No space left on device", texts.pop())
        self.assertEqual(os.listdir(run.out), [])

    def test_files_save_and_stop(self):
        run = self.start(2, seconds={"train": 0.3}, arguments={"max_steps": 100})
        run.await_event("train 2")
        Path(run.out, "SAVE").touch()
        run.await_true(lambda: any(event.startswith("saved") for event in run.events(1)), "a save")
        first = int(next(event.split()[1] for event in run.events(1) if event.startswith("saved")))
        run.await_event(f"train {first + 1}", 1)
        Path(run.out, "STOP").touch()
        run.join()
        last = self.assert_preempted(run, status=0)
        self.assertGreater(last, first)
        self.assert_directory(run, first, last)

    def test_a_file_save_whose_save_fails_is_not_taken_up_again(self):
        arguments = {"on_save_error": "warn", "max_steps": 12}
        run = self.start(2, seconds={"train": 0.3}, arguments=arguments, break_write=True)
        run.await_event("train 1")
        Path(run.out, "SAVE").touch()
        run.join()
        # The last save of a run is always an error; there was one before, and no third.
        self.assertEqual(sum(event.startswith("save ") for event in run.events(1)), 2)
        self.assertIn("Training goes on without it", run.log())
        self.assertEqual(os.listdir(run.out), ["SAVE"])

    def test_without_a_store_the_option_has_no_effect(self):
        run = self.start(2, seconds={"train": 0.5}, no_store=True, arguments={"max_steps": 4, "save_strategy": "no"})
        run.await_event("train 1", 1)
        run.await_event("train 1", 0)
        run.send()
        run.join()
        self.assertEqual(run.statuses, [-signal.SIGTERM] * 2)
        self.assertIn("`enable_jit_checkpoint` has no effect: the 2 processes", run.log())
        self.assertEqual(os.listdir(run.out), [])


@pytest.mark.slow
class FourProcessesTest(PreemptionTestCase):
    def test_to_one_rank(self):
        run = self.start(4, seconds={"train": 0.3})
        run.await_event("train 2", 3)
        run.send(signal.SIGTERM, 3)
        run.join()
        step = self.assert_preempted(run)
        self.assert_directory(run, step)
        self.assert_goes_on(run)

    def test_to_all_one_after_the_other(self):
        run = self.start(4, seconds={"train": 1.5})
        run.await_event("train 1", 3)
        for rank in (2, 0, 3, 1):
            run.send(signal.SIGTERM, rank)
            time.sleep(0.4)
        run.join()
        step = self.assert_preempted(run)
        self.assert_directory(run, step)
        self.assert_goes_on(run)

    def test_a_rank_is_killed(self):
        run = self.start(4, seconds={"train": 0.3})
        run.await_event("train 2", 3)
        run.send(signal.SIGSTOP, 2)
        run.send(signal.SIGTERM, 1)
        run.await_true(lambda: "asks for" in run.log(), "the request")
        run.send(signal.SIGKILL, 2)
        run.join()
        self.assertEqual(run.statuses[2], -signal.SIGKILL)
        self.assertEqual({*run.statuses[:2], run.statuses[3]}, {TERM}, run.log())
        self.assertIn("rank(s) 2", run.log(0))
        self.assertEqual([name for name in os.listdir(run.out) if name.startswith("checkpoint-")], [])


@pytest.mark.slow
class TorchrunTest(PreemptionTestCase):
    """The launcher hands a signal on to its ranks, and sends one itself to those that outlive another."""

    def launch(self, case: Case, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
        command += ["--master_port", str(get_torch_dist_unique_port()), *arguments]
        self.log = open(os.path.join(case.folder, "log"), "w", encoding="utf-8")  # noqa: SIM115
        self.addCleanup(self.log.close)
        process = subprocess.Popen(
            [*command, str(SCRIPTS / "preempt_training.py"), write_case(case)],
            stdout=self.log,
            stderr=self.log,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            start_new_session=True,
        )
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process: subprocess.Popen) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()

    def await_event(self, case: Case, event: str, rank: int, process: subprocess.Popen) -> None:
        path = Path(case.folder, f"events.{rank}")
        end = time.monotonic() + SECONDS
        while not path.exists() or event not in path.read_text(encoding="utf-8").splitlines():
            if time.monotonic() > end or process.poll() is not None:
                raise AssertionError(Path(case.folder, "log").read_text(encoding="utf-8")[-3000:])
            time.sleep(0.02)

    def pid_of(self, case: Case, rank: int, process: subprocess.Popen) -> int:
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split():
            environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in environment:
                return int(child)
        raise AssertionError(f"rank {rank} is not running")

    @parameterized.expand([("torchrun alone", False), ("the whole group", True)])
    def test_signal_to_torchrun(self, _, group):
        case = Case(self.folder, seconds={"train": 0.5})
        process = self.launch(case)
        self.await_event(case, "train 1", 1, process)
        (os.killpg if group else os.kill)(process.pid, signal.SIGTERM)
        process.wait(timeout=SECONDS)
        results = [json.loads(Path(case.folder, f"result.{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
        self.assertEqual([result["ended"] for result in results], ["preempted"] * 2)
        self.assertEqual(results[0]["step"], results[1]["step"])
        out = os.path.join(case.folder, "out")
        self.assertEqual(os.listdir(out), [f"checkpoint-{results[0]['step']}"])
        self.assertEqual(verify(results[0]["checkpoint"], level="full").problems, ())
        self.assert_goes_on(SimpleNamespace(case=case, world_size=2))

    def test_the_status_of_a_process_that_ends_by_itself(self):
        case = Case(self.folder, seconds={"train": 0.5})
        command = [sys.executable, str(SCRIPTS / "preempt_training.py"), write_case(case)]
        process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        Path(case.folder, "log").touch()
        self.await_event(case, "train 1", 0, process)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=SECONDS), TERM)
        self.assertEqual(os.listdir(os.path.join(case.folder, "out")), ["checkpoint-2"])

    def test_a_rank_dies_and_torchrun_ends_the_other(self):
        """No save is started that could not end: torchrun would kill it in the middle."""
        case = Case(self.folder, seconds={"train": 0.5}, arguments={"save_steps": 2})
        process = self.launch(case)
        self.await_event(case, "saved 2", 1, process)
        self.await_event(case, "train 2", 1, process)
        os.kill(self.pid_of(case, 1, process), signal.SIGKILL)
        process.wait(timeout=SECONDS)
        out = os.path.join(case.folder, "out")
        self.assertEqual([name for name in os.listdir(out) if name.startswith("checkpoint-")], ["checkpoint-2"])
        self.assertEqual(verify(os.path.join(out, "checkpoint-2"), level="full").problems, ())
        events = Path(case.folder, "events.0").read_text(encoding="utf-8").splitlines()
        self.assertEqual([event for event in events if event.startswith("save ")], ["save 2"])
        self.assert_goes_on(SimpleNamespace(case=case, world_size=2))


if __name__ == "__main__":
    unittest.main()
