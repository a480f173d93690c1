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
"""The owner record: one training per run directory, also after kills, between hosts, and when two start at once."""

import contextlib
import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import unittest
from unittest import mock

from parameterized import parameterized

from transformers.testing_utils import CaptureLogger, TestCasePlus
from transformers.trainer_checkpoint import owner
from transformers.trainer_checkpoint.errors import CheckpointOwnedError
from transformers.trainer_checkpoint.layout import owner_generation, owner_name


# Starts with one line on stdin, claims the directory, says how that went, and waits to be killed or to be told to go.
CLAIMANT = textwrap.dedent(
    """
    import sys, time
    from transformers.trainer_checkpoint import owner
    from transformers.trainer_checkpoint.errors import CheckpointOwnedError

    run_dir, hold = sys.argv[1], sys.argv[2] == "hold"
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            owner.claim(run_dir, durable=True)
            print("won", flush=True)
        except CheckpointOwnedError as error:
            print(f"refused: {error}", flush=True)
        if not hold:
            owner.release(run_dir)
            print("released", flush=True)
    """
)
ELSEWHERE = owner.Process("node-7", "another-boot", "4026531836", 4321, "99")


class OwnerTestCase(TestCasePlus):
    def setUp(self):
        super().setUp()
        self.out = self.get_auto_remove_tmp_dir()
        self.staging = os.path.join(self.out, "_staging")
        self.addCleanup(owner.release, self.out)

    def write(self, record: "owner.OwnerRecord | bytes", generation: int = 0) -> str:
        os.makedirs(self.staging, exist_ok=True)
        path = os.path.join(self.staging, owner_name(generation))
        with open(path, "wb") as file:
            file.write(record if isinstance(record, bytes) else owner._encode(record))
        return path

    def of(self, process: owner.Process, **fields) -> owner.OwnerRecord:
        return owner.OwnerRecord("f" * 16, process, "2026-01-01T00:00:00.000+00:00", **fields)

    def start(self, hold: bool = True) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", CLAIMANT, self.out, "hold" if hold else "release"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self.end, process)
        return process

    def end(self, process: subprocess.Popen):
        process.kill()
        process.wait(60)
        process.stdin.close()
        process.stdout.close()

    def ask(self, process: subprocess.Popen) -> str:
        """One claim by `process`, which has said that it is ready."""
        process.stdin.write("claim\n")
        process.stdin.flush()
        return process.stdout.readline().rstrip()

    def names(self) -> list[str]:
        return sorted(os.listdir(self.staging))


class ClaimTest(OwnerTestCase):
    def test_claim_and_release(self):
        claim = owner.claim(self.out, durable=True)
        self.assertEqual(self.names(), ["owner.json"])
        self.assertEqual(owner.read_owner(self.out), claim.record)
        self.assertEqual((claim.record.run, claim.record.process.pid), (owner.run_nonce(), os.getpid()))
        self.assertEqual((claim.previous, claim.previous_dead), (None, False))
        self.assertTrue(owner.holds(self.out) and owner.staging_is_ours(self.out))
        # A second claim of the same process, by another name of the directory, changes nothing.
        self.assertIs(owner.claim(os.path.join(self.out, "."), durable=True), claim)
        owner.release(self.out)
        self.assertEqual(os.listdir(self.out), [])
        self.assertFalse(owner.holds(self.out) or owner.staging_is_ours(self.out))
        self.assertIsNone(owner.read_owner(self.out))
        owner.release(self.out)

    def test_a_record_that_cannot_be_read_is_not_called_somebody_elses(self):
        owner.claim(self.out, durable=True)
        self.addCleanup(owner.release, self.out)
        unreadable = OSError(errno.EIO, "Input/output error", os.path.join(self.staging, "owner.json"))
        with mock.patch("builtins.open", side_effect=unreadable), self.assertRaises(OSError) as raised:
            owner.holds(self.out)
        self.assertEqual(raised.exception.errno, errno.EIO)
        self.assertTrue(owner.holds(self.out))

    def test_this_process_is_alive_and_a_finished_one_is_not(self):
        me = owner.this_process()
        self.assertTrue(me.alive())
        # The pid is in use, by a process that started at another time.
        self.assertFalse(dataclasses.replace(me, started="1").alive())
        self.assertIsNone(dataclasses.replace(me, boot="another").alive())
        self.assertIsNone(dataclasses.replace(me, namespace="another").alive())
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        state = owner._state_and_start(child.pid)
        process = dataclasses.replace(me, pid=child.pid, started=state[1])
        self.assertTrue(process.alive())
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        self.assertEqual(owner._state_and_start(child.pid)[0], "Z")
        self.assertFalse(process.alive())
        child.wait()
        self.assertFalse(process.alive())

    def test_leftovers_keep_a_record_that_says_its_owner_is_done(self):
        owner.claim(self.out, durable=False)
        os.mkdir(os.path.join(self.staging, "checkpoint-20"))
        owner.release(self.out)
        self.assertEqual(self.names(), ["checkpoint-20", "owner.json"])
        self.assertTrue(owner.read_owner(self.out).released)
        self.assertTrue(owner.staging_is_ours(self.out))
        claim = owner.claim(self.out, durable=False)
        self.assertTrue(claim.previous.released and claim.previous_dead)
        self.assertEqual(self.names(), ["checkpoint-20", "owner.1.json"])
        os.rmdir(os.path.join(self.staging, "checkpoint-20"))
        owner.release(self.out)
        self.assertEqual(os.listdir(self.out), [])

    def test_a_dead_record_that_could_not_be_removed_at_first_goes_in_the_end(self):
        self.write(self.of(dataclasses.replace(owner.this_process(), started="1")))
        with mock.patch("os.unlink", side_effect=OSError(errno.EROFS, "Read-only file system")):
            owner.claim(self.out, durable=False)
        self.assertEqual(self.names(), ["owner.1.json", "owner.json"])
        owner.release(self.out)
        self.assertEqual(os.listdir(self.out), [])

    def test_a_directory_of_that_name_that_is_not_ours(self):
        os.mkdir(self.staging)
        with open(os.path.join(self.staging, "notes.txt"), "w", encoding="utf-8"):
            pass
        self.assertFalse(owner.staging_is_ours(self.out))
        claim = owner.claim(self.out, durable=False)
        self.assertTrue(claim.record.shared)
        self.assertFalse(owner.staging_is_ours(self.out), "owning it for a while does not make its content ours")
        owner.release(self.out)
        self.assertEqual(self.names(), ["notes.txt"])

    def test_a_shared_directory_stays_shared_when_its_owner_dies(self):
        self.write(self.of(dataclasses.replace(owner.this_process(), started="1"), shared=True))
        self.assertTrue(owner.claim(self.out, durable=False).record.shared)

    @parameterized.expand([("link",), ("file",)])
    def test_something_that_is_no_directory(self, kind):
        if kind == "link":
            os.symlink(self.get_auto_remove_tmp_dir(), self.staging)
        else:
            with open(self.staging, "w", encoding="utf-8"):
                pass
        self.assertFalse(owner.staging_is_ours(self.out))
        with self.assertRaisesRegex(NotADirectoryError, "move it away"):
            owner.claim(self.out, durable=False)

    def test_an_empty_directory_is_what_a_kill_before_the_record_leaves(self):
        os.mkdir(self.staging)
        self.assertFalse(owner.claim(self.out, durable=False).record.shared)

    def test_names(self):
        self.assertEqual([owner_name(n) for n in (0, 1, 12)], ["owner.json", "owner.1.json", "owner.12.json"])
        names = ["owner.json", "owner.1.json", "owner.12.json"]
        self.assertEqual([owner_generation(name) for name in names], [0, 1, 12])
        for name in ("owner.0.json", "owner.01.json", "owner.-1.json", "owner.json.tmp-checkpoint", "owner.x.json"):
            self.assertIsNone(owner_generation(name), name)


class OtherOwnerTest(OwnerTestCase):
    def test_alive_on_this_machine(self):
        other = self.start()
        other.stdout.readline()
        self.assertEqual(self.ask(other), "won")
        with self.assertRaises(CheckpointOwnedError) as caught:
            owner.claim(self.out, durable=False)
        text = str(caught.exception)
        record = owner.read_owner(self.out)
        self.assertIn(f"process {other.pid} on host {record.process.host} (since {record.since})", text)
        self.assertEqual(record.process.pid, other.pid)
        self.assertFalse(owner.holds(self.out))
        # Refused, it has left nothing behind that would refuse others.
        self.assertEqual(self.names(), ["owner.json"])

    def test_killed_on_this_machine(self):
        other = self.start()
        other.stdout.readline()
        self.assertEqual(self.ask(other), "won")
        other.send_signal(signal.SIGKILL)
        other.wait(60)
        with CaptureLogger(owner.logger) as logs:
            claim = owner.claim(self.out, durable=True)
        self.assertEqual(logs.out, "", "nothing to wait for: the kernel knows")
        self.assertEqual((claim.previous.process.pid, claim.previous_dead), (other.pid, True))
        self.assertEqual(self.names(), ["owner.1.json"])

    def test_a_child_of_the_owner_is_another_process(self):
        owner.claim(self.out, durable=False)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                owner.claim(self.out, durable=False)
                os.write(writing, b"won")
            except CheckpointOwnedError as error:
                os.write(writing, str(error).encode())
            owner.release(self.out)
            os._exit(0)
        os.waitpid(pid, 0)
        self.assertIn(f"process {os.getpid()} ", os.read(reading, 4096).decode())
        self.assertTrue(owner.holds(self.out))

    def test_silent_on_another_host(self):
        self.write(self.of(ELSEWHERE))
        with CaptureLogger(owner.logger) as logs:
            claim = owner.claim(self.out, durable=False, watch=0.6)
        self.assertRegex(
            logs.out, r"last used by process 4321 on host node-7 .* Watching .*owner\.json for up to 0\.6 s"
        )
        self.assertEqual((claim.previous.process, claim.previous_dead), (ELSEWHERE, True))
        self.assertEqual(self.names(), ["owner.1.json"])

    @parameterized.expand([("time",), ("length",)])
    def test_touched_on_another_host(self, how):
        path = self.write(self.of(ELSEWHERE))
        # Clocks are not compared: the time it is set to has passed long ago.
        os.utime(path, ns=(0, 10**9))
        touches = iter(range(2, 1000))
        stop = threading.Event()

        def beat():
            while not stop.wait(0.1):
                if how == "time":
                    os.utime(path, ns=(0, next(touches) * 10**9))
                else:
                    with mock.patch("os.utime", side_effect=PermissionError(1, "no times here")):
                        owner._touch(path)

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            with self.assertRaisesRegex(CheckpointOwnedError, "process 4321 on host node-7"):
                owner.claim(self.out, durable=False, watch=60.0)
        finally:
            stop.set()
            thread.join()

    def test_watching_ends_when_the_owner_releases(self):
        path = self.write(self.of(ELSEWHERE))
        timer = threading.Timer(0.8, os.unlink, args=(path,))
        timer.start()
        self.addCleanup(timer.join)
        claim = owner.claim(self.out, durable=False, watch=60.0)
        self.assertIsNone(claim.previous)
        self.assertEqual(self.names(), ["owner.json"])

    @parameterized.expand(
        [
            ("empty", b""),
            ("torn", b'{"format": 1, "run": "ffff'),
            ("not_an_object", b"[1, 2]"),
            ("wrong_fields", b'{"run": "f", "process": 3, "since": ""}'),
            ("binary", bytes(range(256))),
            ("deep", b"[" * 100_000),
        ]
    )
    def test_unreadable_is_dead_if_it_stays_so(self, _, data):
        self.write(data)
        self.assertTrue(owner.staging_is_ours(self.out))
        claim = owner.claim(self.out, durable=False, watch=0.6)
        self.assertEqual((claim.previous, claim.previous_dead), (None, True))
        self.assertEqual(self.names(), ["owner.1.json"])

    def test_unreadable_that_is_being_written_is_looked_at_again(self):
        # The name exists a moment before its content does.
        path = self.write(b"")

        def complete():
            with open(path, "wb") as file:
                file.write(owner._encode(self.of(owner.this_process())))

        timer = threading.Timer(0.3, complete)
        timer.start()
        self.addCleanup(timer.join)
        with self.assertRaisesRegex(CheckpointOwnedError, f"process {os.getpid()} on host"):
            owner.claim(self.out, durable=False, watch=60.0)

    def test_a_directory_in_the_place_of_a_record(self):
        os.makedirs(os.path.join(self.staging, "owner.json"))
        self.assertTrue(owner.claim(self.out, durable=False, watch=0.1).previous_dead)
        self.assertEqual(self.names(), ["owner.1.json", "owner.json"])
        self.assertTrue(owner.holds(self.out))


class RaceTest(OwnerTestCase):
    @parameterized.expand([("free",), ("dead",), ("two_dead",)])
    def test_of_several_claimants_one_wins(self, before):
        if before == "dead":
            self.write(self.of(dataclasses.replace(owner.this_process(), started="1")))
        elif before == "two_dead":
            self.write(self.of(dataclasses.replace(owner.this_process(), started="1")))
            self.write(self.of(dataclasses.replace(owner.this_process(), started="2")), generation=1)
        claimants = [self.start() for _ in range(4)]
        for process in claimants:
            self.assertEqual(process.stdout.readline(), "ready\n")
        for process in claimants:
            process.stdin.write("claim\n")
        for process in claimants:
            process.stdin.flush()
        answers = [process.stdout.readline().rstrip() for process in claimants]
        winners = [process for process, answer in zip(claimants, answers, strict=True) if answer == "won"]
        self.assertEqual(len(winners), 1, answers)
        self.assertEqual(owner.read_owner(self.out).process.pid, winners[0].pid)
        self.assertEqual(len(self.names()), 1)

    def test_never_two_at_once_over_many_takeovers(self):
        # Every winner "dies" inside: it leaves its record, and the others have to take over from it at the same time.
        alive: set[int] = set()
        inside: list[int] = []
        crowds, wins = [], []
        local = threading.local()

        def found_dead(run_dir, seen, watch):
            if seen.record is None:  # created, and its content is not there yet
                return False
            if seen.record.process.pid in alive:
                raise CheckpointOwnedError(run_dir, str(seen.record))
            return True

        def live_and_die(number: int):
            for attempt in range(60):
                pid = 1000 * number + attempt
                local.process = owner.Process("host", "boot", "namespace", pid, "1")
                alive.add(pid)
                with contextlib.suppress(CheckpointOwnedError):
                    if owner._try_to_claim(self.out, self.staging, False, 0.0) is not None:
                        inside.append(pid)
                        crowds.append(len(inside))
                        wins.append(pid)
                        inside.remove(pid)
                alive.discard(pid)

        os.mkdir(self.staging)
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        self.addCleanup(sys.setswitchinterval, before)
        with (
            mock.patch.object(owner, "_found_dead", found_dead),
            mock.patch.object(owner, "this_process", lambda: local.process),
        ):
            threads = [threading.Thread(target=live_and_die, args=(number,)) for number in range(1, 5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(set(crowds), {1})
        self.assertGreater(len(wins), 4)

    def test_a_claimant_that_slept_between_looking_and_creating_withdraws(self):
        # It saw an empty directory. Meanwhile somebody took it over from a dead owner under the next name, so that
        # creating the first name succeeds: only the second look tells.
        os.mkdir(self.staging)
        real = os.open
        newcomer = self.of(owner.this_process())

        def open_late(path, *args, **kwargs):
            if str(path).endswith("owner.json"):
                self.write(newcomer, generation=1)
            return real(path, *args, **kwargs)

        with mock.patch("os.open", open_late), self.assertRaisesRegex(CheckpointOwnedError, str(os.getpid())):
            owner.claim(self.out, durable=False)
        self.assertEqual(self.names(), ["owner.1.json"])
        self.assertEqual(owner.read_owner(self.out), newcomer)

    def test_killed_while_taking_over(self):
        # A record of the dead owner and one of its dead successor.
        dead = dataclasses.replace(owner.this_process(), started="1")
        self.write(self.of(dead))
        self.write(self.of(dead), generation=1)
        claim = owner.claim(self.out, durable=False)
        self.assertTrue(claim.previous_dead)
        self.assertEqual(self.names(), ["owner.2.json"])

    def test_the_directory_is_released_while_it_is_claimed(self):
        real = owner._records
        calls = []

        def vanishing(staging):
            if not calls:
                os.rmdir(staging)
            calls.append(staging)
            return real(staging)

        with mock.patch.object(owner, "_records", vanishing):
            owner.claim(self.out, durable=False)
        self.assertEqual(self.names(), ["owner.json"])
        self.assertGreater(len(calls), 1)

    def test_claimants_that_always_meet_give_up(self):
        with (
            mock.patch.object(owner, "_try_to_claim", return_value=None),
            mock.patch.object(owner, "_ATTEMPTS", 3),
            self.assertRaisesRegex(CheckpointOwnedError, "another process that starts at this moment"),
        ):
            owner.claim(self.out, durable=False)

    def test_a_failed_claim_leaves_no_record(self):
        with (
            mock.patch.object(owner.disk, "flush_descriptor", side_effect=OSError(28, "No space left on device")),
            self.assertRaisesRegex(OSError, "No space left"),
        ):
            owner.claim(self.out, durable=True)
        self.assertEqual(self.names(), [])
        self.assertFalse(owner.holds(self.out))


class HeartbeatTest(OwnerTestCase):
    def setUp(self):
        super().setUp()
        patch = mock.patch.object(owner, "BEAT_INTERVAL", 0.05)
        patch.start()
        self.addCleanup(patch.stop)

    def until(self, condition, what: str):
        end = time.monotonic() + 30.0
        while not condition():
            if time.monotonic() > end:
                self.fail(f"{what} did not happen")
            time.sleep(0.02)

    def test_touches_the_record_while_it_is_held(self):
        owner.claim(self.out, durable=False)
        path = os.path.join(self.staging, "owner.json")
        os.utime(path, ns=(0, 0))
        self.until(lambda: os.stat(path).st_mtime_ns > 0, "a touch")
        thread = owner._held[os.path.abspath(self.out)]._thread
        owner.release(self.out)
        self.assertFalse(thread.is_alive())

    def test_survives_a_directory_that_vanishes(self):
        owner.claim(self.out, durable=False)
        held = owner._held[os.path.abspath(self.out)]
        record = held.claim.record
        with CaptureLogger(owner.logger) as logs:
            os.unlink(os.path.join(self.staging, "owner.json"))
            os.rmdir(self.staging)
            self.until(lambda: "was removed or replaced" in logs.io.getvalue(), "a warning")
            time.sleep(0.3)  # several beats more
        self.assertEqual(logs.out.count("was removed or replaced"), 1)
        self.assertTrue(held._thread.is_alive())
        self.assertFalse(owner.holds(self.out))
        self.assertFalse(os.path.exists(self.staging), "a heartbeat makes nothing")
        # A new claim makes it again.
        self.assertEqual(owner.claim(self.out, durable=False).record.run, record.run)
        self.assertTrue(owner.holds(self.out))

    def test_does_not_keep_a_successor_alive(self):
        # A process that was stopped for long, and lost the directory to one on another host.
        owner.claim(self.out, durable=False)
        path = self.write(self.of(ELSEWHERE))
        os.utime(path, ns=(0, 0))
        with CaptureLogger(owner.logger) as logs:
            self.until(lambda: "was removed or replaced" in logs.io.getvalue(), "a warning")
        self.assertEqual(os.stat(path).st_mtime_ns, 0)
        self.assertFalse(owner.holds(self.out))
        owner.release(self.out)
        self.assertEqual(owner.read_owner(self.out).process, ELSEWHERE)

    def test_where_no_times_can_be_set_the_record_grows(self):
        with mock.patch("os.utime", side_effect=PermissionError(1, "not permitted")):
            claim = owner.claim(self.out, durable=False)
            path = os.path.join(self.staging, "owner.json")
            size = len(owner._encode(claim.record))
            self.until(lambda: os.stat(path).st_size > size, "growth")
        self.assertEqual(owner.read_owner(self.out), claim.record)
        self.assertTrue(owner.holds(self.out))

    def test_does_not_keep_the_interpreter(self):
        code = "import sys; from transformers.trainer_checkpoint import owner; owner.claim(sys.argv[1], durable=False)"
        subprocess.run([sys.executable, "-c", code, self.out], check=True, timeout=120)
        claim = owner.claim(self.out, durable=False)
        self.assertTrue(claim.previous_dead)


class RecordTest(unittest.TestCase):
    def test_round_trip(self):
        record = owner.OwnerRecord("a" * 16, ELSEWHERE, "2026", released=True, shared=True)
        self.assertEqual(owner._decode(owner._encode(record)), record)
        self.assertEqual(owner._decode(owner._encode(record) + b"\n\n\n"), record)
        self.assertEqual(json.loads(owner._encode(record))["format"], owner.FORMAT)

    def test_a_process_name_with_parentheses_and_spaces(self):
        line = b"17 (a) S (b) R 1 " + b" ".join(b"%d" % number for number in range(5, 60))
        with mock.patch("builtins.open", mock.mock_open(read_data=line)):
            state, started = owner._state_and_start(17)
        self.assertEqual((state, started), ("R", "22"))
