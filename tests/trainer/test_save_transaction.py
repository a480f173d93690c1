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
"""One process: the transaction, the publish, and what they leave on disk. No training; see `scripts/save_driver.py`."""

import contextlib
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from parameterized import parameterized
from safetensors.numpy import save_file

from transformers.testing_utils import CaptureLogger, TestCasePlus
from transformers.trainer_checkpoint import disk, owner, publishing, rotation, transaction
from transformers.trainer_checkpoint.discovery import newest_complete_checkpoint
from transformers.trainer_checkpoint.errors import CheckpointError, CheckpointOwnedError, CheckpointSaveError
from transformers.trainer_checkpoint.layout import KEEP_NAME, SENTINEL_NAME, retired_name
from transformers.trainer_checkpoint.manifest import read_entries, read_head
from transformers.trainer_checkpoint.ranks import Alone
from transformers.trainer_checkpoint.rotation import Sweeper
from transformers.trainer_checkpoint.sealing import LaterSeals, seal_again, snapshot
from transformers.trainer_checkpoint.transaction import RunDirectory, SaveTransaction
from transformers.trainer_checkpoint.verification import verify
from transformers.utils import logging


SCRIPTS = Path(__file__).parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from save_driver import content, read_files, save, write_files  # noqa: E402


class SaveTestCase(TestCasePlus):
    def setUp(self):
        super().setUp()
        self.out = self.get_auto_remove_tmp_dir()

    def path(self, *names: str) -> str:
        return os.path.join(self.out, *names)

    def open_transaction(self, step: int = 20, **kwargs) -> SaveTransaction:
        run = RunDirectory(self.out, Alone())
        self.addCleanup(run.close)
        opened = SaveTransaction(run, step, **kwargs)
        opened.open()
        return opened


class TransactionTest(SaveTestCase):
    def test_a_published_checkpoint_is_whole_and_sealed(self):
        files = content("a", 20)
        published = save(self.out, 20, files)
        self.assertEqual(published.path, self.path("checkpoint-20"))
        self.assertEqual(read_files(published.path), files)
        self.assertEqual(verify(published.path, level="full").problems, ())
        self.assertEqual(published.size, sum(map(len, files.values())))
        self.assertEqual(published.files, len(files))
        head = read_head(published.path)
        self.assertEqual((head.step, head.sequence, head.world_size, head.part), (20, 1, 1, None))
        self.assertEqual(set(head.state), {"model", "optimizer", "scheduler", "rng", "trainer"})
        self.assertEqual(sorted(os.listdir(self.out)), ["checkpoint-20"])

    def test_the_sequence_number_grows_and_not_the_step(self):
        for step in (20, 10, 10):
            save(self.out, step, content("a", step))
        self.assertEqual(read_head(self.path("checkpoint-20")).sequence, 1)
        self.assertEqual(read_head(self.path("checkpoint-10")).sequence, 3)

    def test_nothing_is_there_under_the_final_name_before_the_commit(self):
        opened = self.open_transaction()
        write_files(opened.writing, content("a", 20))
        self.assertEqual(opened.writing, self.path("_staging", "checkpoint-20"))
        self.assertFalse(os.path.lexists(self.path("checkpoint-20")))
        self.assertIsNone(newest_complete_checkpoint(self.out))
        opened.commit()
        self.assertEqual(newest_complete_checkpoint(self.out), self.path("checkpoint-20"))

    def test_a_kept_error_fails_the_save_and_leaves_the_older_checkpoint(self):
        save(self.out, 10, content("a", 10))
        opened = self.open_transaction()
        write_files(opened.writing, content("b", 20))
        opened.keep("optimizer", OSError(28, "No space left on device"))
        opened.keep("scheduler", ValueError("second"))
        with self.assertRaises(CheckpointSaveError) as caught:
            opened.commit()
        self.assertIn("optimizer: OSError: [Errno 28] No space left on device", str(caught.exception))
        self.assertIn(f"newest good checkpoint is still {self.path('checkpoint-10')}", str(caught.exception))
        self.assertEqual(caught.exception.__cause__.__notes__, ["Afterwards also, in scheduler: ValueError: second"])
        self.assertFalse(os.path.exists(self.path("checkpoint-20")))
        self.assertFalse(os.path.exists(self.path("_staging", "checkpoint-20")))
        save(self.out, 20, content("c", 20))
        self.assertEqual(read_files(self.path("checkpoint-20")), content("c", 20))

    def test_nothing_written_is_nothing_to_publish(self):
        self.assertIsNone(save(self.out, 20, {}))
        self.assertEqual(os.listdir(self.out), [])

    def test_an_interrupted_save_leaves_nothing(self):
        opened = self.open_transaction()
        write_files(opened.writing, content("a", 20))
        opened.abort(KeyboardInterrupt())
        self.assertFalse(os.path.exists(opened.writing))
        self.assertIsNone(newest_complete_checkpoint(self.out))

    def test_a_keyboard_interrupt_in_the_publish_loses_nothing(self):
        save(self.out, 20, content("old", 20))

        def interrupted(*args, **kwargs):
            disk.swap(*args)
            raise KeyboardInterrupt

        opened = self.open_transaction()
        write_files(opened.writing, content("new", 20))
        with mock.patch.object(publishing, "_replace", lambda run, staged, target, *_: interrupted(staged, target)):
            with self.assertRaises(KeyboardInterrupt):
                opened.commit()
        self.assertEqual(read_files(self.path("checkpoint-20")), content("new", 20))
        opened.run.close()
        save(self.out, 30, content("next", 30))
        self.assertEqual(read_files(self.path("checkpoint-20")), content("new", 20))

    def test_an_accounted_file_that_is_missing_fails_the_save(self):
        opened = self.open_transaction()
        write_files(opened.writing, content("a", 20))
        opened.account_for("rng_state_1.pth")
        with self.assertRaisesRegex(CheckpointSaveError, "rng_state_1.pth"):
            opened.commit()
        self.assertFalse(os.path.exists(self.path("checkpoint-20")))

    def test_a_damaged_file_is_never_published(self):
        files = content("a", 20)
        files["model.safetensors"] = files["model.safetensors"][:-8]
        with self.assertRaisesRegex(CheckpointSaveError, "model.safetensors"):
            save(self.out, 20, files)
        self.assertFalse(os.path.exists(self.path("checkpoint-20")))

    def test_files_under_the_final_name_since_the_open_are_taken_along(self):
        write_files(self.path("checkpoint-20"), content("stale", 20, shards=2))
        opened = self.open_transaction()
        write_files(opened.writing, content("a", 20))
        late = {"projector/extra.bin": b"written by an override", "config.json": b'{"by": "an override"}'}
        write_files(opened.final, late | {"trainer_state.json": b"{}"})
        # As if the Trainer had written its own after that.
        os.utime(os.path.join(opened.final, "trainer_state.json"), ns=(1, 1))
        opened.commit()
        expected = content("a", 20) | late
        self.assertEqual(read_files(self.path("checkpoint-20")), expected)
        self.assertEqual(verify(self.path("checkpoint-20"), level="full").problems, ())

    def test_nothing_is_left_beside_the_checkpoint_of_what_is_taken_along(self):
        opened = self.open_transaction()
        write_files(opened.writing, content("a", 20))
        write_files(opened.final, {"ema/deep/extra.bin": b"written by an override"})
        opened.commit()
        self.assertEqual(sorted(os.listdir(self.out)), ["_staging", "checkpoint-20"])
        self.assertIn("ema/deep/extra.bin", read_files(self.path("checkpoint-20")))

    def test_what_is_still_being_deleted_makes_room_for_the_next_one(self):
        save(self.out, 10, content("a", 10))
        trash = Path(self.path("_trash"))
        write_files(str(trash / retired_name("checkpoint-5", "0123456789abcdef")), content("old", 5))
        drain, free = rotation._drain, []

        def slowly(run_dir):
            time.sleep(0.5)
            drain(run_dir)

        def free_space(path):
            free.append(0 if trash.exists() and os.listdir(trash) else 1 << 40)
            return free[-1]

        sweeper = Sweeper()
        run = RunDirectory(self.out, Alone(), sweeper=sweeper)
        with (
            mock.patch.object(rotation, "_drain", slowly),
            mock.patch.object(disk, "free_space", free_space),
            CaptureLogger(logging.get_logger("transformers.trainer_checkpoint.transaction")) as log,
        ):
            save(self.out, 20, content("b", 20), run=run)
        self.assertEqual(free, [0, 1 << 40])
        self.assertNotIn("too little space", log.out)
        sweeper.close()
        run.close()

    def test_what_was_written_and_is_gone_fails_the_save(self):
        opened = self.open_transaction()
        write_files(opened.writing, content("a", 20))
        opened.account_for("rng_state.pth", "optimizer.pt")
        shutil.rmtree(self.path("_staging"))
        with self.assertRaisesRegex(CheckpointSaveError, "optimizer.pt, rng_state.pth were written and are not there"):
            opened.commit()

    def test_a_second_save_in_one_process_is_refused(self):
        first = self.open_transaction()
        write_files(first.writing, content("a", 20))
        with self.assertRaisesRegex(CheckpointSaveError, "another save in this same process"):
            self.open_transaction()
        first.commit()
        self.assertEqual(read_files(self.path("checkpoint-20")), content("a", 20))
        self.open_transaction(step=30)

    @parameterized.expand(
        [
            ("back\\slash.txt", "no plain path"),
            ("C:drive.txt", "no plain path"),
            ("out.txt", "leads out"),
            ("pipe", "not a regular"),
        ]
    )
    def test_what_readers_refuse_is_not_sealed(self, name, reason):
        opened = self.open_transaction()
        write_files(opened.writing, content("a", 20))
        path = os.path.join(opened.writing, name)
        if name == "pipe":
            os.mkfifo(path)
        elif name == "out.txt":
            os.symlink("/etc/hostname", path)
        else:
            Path(path).write_text("x", encoding="utf-8")
        with self.assertRaisesRegex(CheckpointSaveError, reason):
            opened.commit()
        self.assertFalse(os.path.exists(self.path("checkpoint-20")))

    def test_an_error_whose_text_cannot_be_had(self):
        class Odd(Exception):
            def __str__(self):
                raise ValueError("no text")

        opened = self.open_transaction()
        opened.keep("optimizer", Odd())
        with self.assertRaisesRegex(CheckpointSaveError, "optimizer: Odd"):
            opened.commit()
        self.assertFalse(os.path.exists(opened.writing))

    def test_no_space_is_said_before_it_is_missed(self):
        save(self.out, 10, content("a", 10))
        said = []
        with mock.patch.object(disk, "free_space", lambda path: 100):
            self.open_transaction(tell=said.append)
        self.assertEqual(len(said), 1)
        self.assertRegex(
            said[0], r"too little space for .*checkpoint-20: 100 B are free, and the last checkpoint took"
        )
        said.clear()
        self.open_transaction(step=30, tell=said.append)
        self.assertEqual(said, [])


class TargetTest(SaveTestCase):
    """What has the name already, with the swap and without it."""

    def swap_or_not(self, swap: bool):
        def refuse(first, second):
            raise disk.SwapUnsupported(38, "not here", first)

        return mock.patch.object(disk, "swap", disk.swap if swap else refuse)

    @parameterized.expand([("swap", True), ("no_swap", False)])
    def test_an_older_run_with_another_shard_layout(self, _, swap):
        write_files(self.path("checkpoint-20"), content("stock", 20, shards=3))
        with self.swap_or_not(swap):
            save(self.out, 20, content("new", 20))
        self.assertEqual(read_files(self.path("checkpoint-20")), content("new", 20))
        self.assertEqual(read_head(self.path("checkpoint-20")).saw, ("checkpoint-20",))

    @parameterized.expand([("swap", True), ("no_swap", False)])
    def test_the_same_step_twice(self, _, swap):
        with self.swap_or_not(swap):
            save(self.out, 20, content("old", 20, shards=2))
            save(self.out, 20, content("new", 20))
        self.assertEqual(read_files(self.path("checkpoint-20")), content("new", 20))
        self.assertEqual([n for n in os.listdir(self.out) if not n.startswith("_")], ["checkpoint-20"])

    @parameterized.expand([("swap", True), ("no_swap", False)])
    def test_a_plain_file_is_kept(self, _, swap):
        Path(self.path("checkpoint-20")).write_text("notes", encoding="utf-8")
        with self.swap_or_not(swap):
            save(self.out, 20, content("new", 20))
        self.assertEqual(read_files(self.path("checkpoint-20")), content("new", 20))
        (kept,) = [name for name in os.listdir(self.out) if name.startswith("checkpoint-20.replaced-")]
        self.assertEqual(Path(self.path(kept)).read_text(encoding="utf-8"), "notes")

    @parameterized.expand([("swap", True), ("no_swap", False)])
    def test_a_symlink_is_kept_and_never_followed(self, _, swap):
        write_files(self.path("elsewhere"), content("linked", 20))
        os.symlink("elsewhere", self.path("checkpoint-20"))
        with self.swap_or_not(swap):
            save(self.out, 20, content("new", 20))
        self.assertFalse(os.path.islink(self.path("checkpoint-20")))
        self.assertEqual(read_files(self.path("checkpoint-20")), content("new", 20))
        self.assertEqual(read_files(self.path("elsewhere")), content("linked", 20))
        (kept,) = [name for name in os.listdir(self.out) if name.startswith("checkpoint-20.replaced-")]
        self.assertEqual(os.readlink(self.path(kept)), "elsewhere")

    @parameterized.expand([("swap", True), ("no_swap", False)])
    def test_an_empty_directory(self, _, swap):
        os.mkdir(self.path("checkpoint-20"))
        with self.swap_or_not(swap):
            save(self.out, 20, content("new", 20))
        self.assertEqual(read_files(self.path("checkpoint-20")), content("new", 20))
        self.assertEqual([n for n in os.listdir(self.out) if n.startswith("checkpoint-20.")], [])

    @parameterized.expand([("swap", True), ("no_swap", False)])
    def test_a_directory_that_is_no_checkpoint_is_kept(self, _, swap):
        write_files(self.path("checkpoint-20"), {"plots/loss.svg": b"<svg/>"})
        with self.swap_or_not(swap):
            save(self.out, 20, content("new", 20))
        (kept,) = [name for name in os.listdir(self.out) if name.startswith("checkpoint-20.replaced-")]
        self.assertEqual(read_files(self.path(kept)), {"plots/loss.svg": b"<svg/>"})

    def test_a_pinned_checkpoint_is_kept(self):
        save(self.out, 20, content("old", 20))
        Path(self.path("checkpoint-20", KEEP_NAME)).touch()
        save(self.out, 20, content("new", 20))
        self.assertEqual(read_files(self.path("checkpoint-20")), content("new", 20))
        (kept,) = [name for name in os.listdir(self.out) if name.startswith("checkpoint-20.replaced-")]
        self.assertEqual(read_files(self.path(kept)), content("old", 20) | {KEEP_NAME: b""})

    def test_a_checkpoint_that_cannot_be_read_is_kept(self):
        save(self.out, 20, content("old", 20))
        Path(self.path("checkpoint-20", "checkpoint-manifest.json")).write_text("{torn", encoding="utf-8")
        save(self.out, 20, content("new", 20))
        (kept,) = [name for name in os.listdir(self.out) if name.startswith("checkpoint-20.replaced-")]
        self.assertEqual(json.loads(read_files(self.path(kept))["config.json"]), {"tag": "old"})

    def test_a_lone_file_of_a_late_rank(self):
        write_files(self.path("checkpoint-20"), {"rng_state_1.pth": b"late"})
        save(self.out, 20, content("new", 20))
        self.assertEqual(read_files(self.path("checkpoint-20")), content("new", 20))

    def test_a_staging_directory_of_somebody_else(self):
        write_files(self.path("_staging", "checkpoint-20"), {"mine.txt": b"keep me"})
        write_files(self.path("_staging"), {"also.txt": b"mine"})
        save(self.out, 20, content("new", 20))
        self.assertEqual(read_files(self.path("checkpoint-20")), content("new", 20))
        self.assertEqual(read_files(self.path("_staging")), {"also.txt": b"mine"})
        (kept,) = [name for name in os.listdir(self.out) if name.startswith("checkpoint-20.replaced-")]
        self.assertEqual(read_files(self.path(kept)), {"mine.txt": b"keep me"})

    @parameterized.expand(["_staging", "_trash"])
    def test_our_directories_are_never_followed_through_a_link(self, name):
        save(self.out, 20, content("old", 20))
        outside = self.get_auto_remove_tmp_dir()
        os.symlink(outside, self.path(name))
        if name == "_staging":
            with self.assertRaisesRegex((CheckpointSaveError, OSError), "_staging"):
                save(self.out, 20, content("new", 20))
            self.assertEqual(read_files(self.path("checkpoint-20")), content("old", 20))
        else:
            save(self.out, 20, content("new", 20))
            self.assertEqual(read_files(self.path("checkpoint-20")), content("new", 20))
        self.assertEqual(os.listdir(outside), [])


class InPlaceTest(SaveTestCase):
    def test_the_sentinel_is_there_first_and_gone_last(self):
        opened = self.open_transaction(in_place="asked for")
        self.assertEqual(os.listdir(self.path("checkpoint-20")), [SENTINEL_NAME])
        write_files(opened.writing, content("a", 20))
        self.assertIsNone(newest_complete_checkpoint(self.out))
        published = opened.commit()
        self.assertEqual(published.path, self.path("checkpoint-20"))
        self.assertEqual(read_files(published.path), content("a", 20))
        self.assertEqual(verify(published.path, level="full").problems, ())

    def test_shards_of_an_older_layout_do_not_stay(self):
        write_files(self.path("checkpoint-20"), content("old", 20, shards=3))
        save(self.out, 20, content("a", 20), in_place="asked for")
        self.assertEqual(read_files(self.path("checkpoint-20")), content("a", 20))

    def test_a_failed_save_leaves_no_debris(self):
        opened = self.open_transaction(in_place="asked for")
        write_files(opened.writing, content("a", 20))
        opened.keep("optimizer", OSError(28, "No space left on device"))
        with self.assertRaises(CheckpointSaveError):
            opened.commit()
        self.assertFalse(os.path.exists(self.path("checkpoint-20")))

    @parameterized.expand([("ENOSYS", 38), ("EOPNOTSUPP", 95), ("EXDEV", 18), ("EPERM", 1)])
    def test_a_mount_without_rename_is_found_out_before_the_first_save(self, _, code):
        def rename(source, target, **kwargs):
            raise OSError(code, os.strerror(code), source)

        said = []
        with mock.patch.object(os, "rename", rename), mock.patch.object(os, "replace", rename):
            opened = self.open_transaction(tell=said.append)
            self.assertEqual(opened.writing, self.path("checkpoint-20"))
            self.assertIn("cannot be renamed", opened.in_place)
            self.assertRegex(" ".join(said), f"{self.out} are written in place, behind the file {SENTINEL_NAME}")
            write_files(opened.writing, content("a", 20))
            opened.commit()
        self.assertEqual(verify(self.path("checkpoint-20"), level="full").problems, ())
        self.assertEqual(newest_complete_checkpoint(self.out), self.path("checkpoint-20"))

    @parameterized.expand([("EINVAL", 22), ("ENOSYS", 38), ("EBADF", 9)])
    def test_a_system_that_cannot_flush_directories(self, _, code):
        real = os.fsync

        def fsync(descriptor):
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(code, os.strerror(code))
            real(descriptor)

        with mock.patch.object(os, "fsync", fsync):
            save(self.out, 20, content("a", 20))
        self.assertEqual(verify(self.path("checkpoint-20"), level="full").problems, ())

    def test_an_error_in_flushing_a_directory_is_an_error(self):
        real = os.fsync

        def fsync(descriptor):
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(5, os.strerror(5))
            real(descriptor)

        with mock.patch.object(os, "fsync", fsync), self.assertRaisesRegex((CheckpointSaveError, OSError), "Errno 5"):
            save(self.out, 20, content("a", 20))
        self.assertFalse(os.path.exists(self.path("checkpoint-20")))


@contextlib.contextmanager
def passing(name: str, make: Callable[[Path], None], times: int | None = None) -> Iterator[None]:
    """`name` is in every directory while that is listed, and not a moment later; the first `times` listings only."""
    real, listings = os.scandir, 0

    @contextlib.contextmanager
    def listed(path):
        path = Path(path, name)
        make(path)
        with real(path.parent) as entries:
            found = list(entries)
        path.rmdir() if path.is_dir() else path.unlink()
        yield iter(found)

    def scandir(path):
        nonlocal listings
        if not isinstance(path, (str, os.PathLike)) or os.path.basename(path) == name:
            return real(path)
        listings += 1
        return real(path) if times is not None and listings > times else listed(path)

    with mock.patch.object(os, "scandir", scandir):
        yield


class WalkTest(SaveTestCase):
    """Every host that shares the disk probes the directory that all of them walk, and other ranks may be writing."""

    def setUp(self):
        super().setUp()
        write_files(self.out, {"a/weights": b"1", "b": b"2"})

    @parameterized.expand([("file", Path.touch), ("directory", Path.mkdir)])
    def test_a_probe_of_another_host_that_is_gone_a_moment_later(self, _, make):
        with passing("modes-0123abcd.tmp-checkpoint", make):
            self.assertEqual([name for name, _ in disk.walk_files(self.out)], ["a/weights", "b"])
            self.assertEqual(disk.walk_directories(self.out), [self.out, self.path("a")])

    @parameterized.expand([("file", Path.touch), ("directory", Path.mkdir)])
    def test_a_passing_name_of_another_rank_that_is_writing_yet(self, _, make):
        with passing(".tmpl05iq3", make):
            self.assertEqual([name for name, _ in disk.walk_files(self.out, still_written=True)], ["a/weights", "b"])
            self.assertEqual(set(snapshot(self.out)), {"a/weights", "b"})
            with self.assertRaises(FileNotFoundError):
                list(disk.walk_files(self.out))

    def test_a_rank_that_is_done_does_not_mind_what_the_others_are_writing(self):
        opened = self.open_transaction()
        write_files(opened.writing, content("a", 20))
        with passing(".tmpl05iq3", Path.touch, times=1):
            opened.commit()
        self.assertEqual(read_files(self.path("checkpoint-20")), content("a", 20))
        self.assertEqual(verify(self.path("checkpoint-20"), level="full").problems, ())

    def test_when_all_are_done_what_goes_is_an_error(self):
        opened = self.open_transaction()
        write_files(opened.writing, content("a", 20))
        with passing(".tmpl05iq3", Path.touch), self.assertRaisesRegex(CheckpointSaveError, "flushing.*tmpl05iq3"):
            opened.commit()
        self.assertFalse(os.path.lexists(self.path("checkpoint-20")))

    def test_anything_else_that_is_gone_is_an_error(self):
        with self.assertRaises(FileNotFoundError):
            for name, _ in disk.walk_files(self.out):
                if name == "a/weights":
                    os.unlink(self.path("b"))


class ModesTest(SaveTestCase):
    @parameterized.expand([(0o022,), (0o002,), (0o027,), (0o077,)])
    def test_every_file_gets_what_a_plain_open_gives(self, umask):
        before = os.umask(umask)
        try:
            out = self.path("run")
            opened = SaveTransaction(RunDirectory(out, Alone()), 20)
            opened.open()
            write_files(opened.writing, content("a", 20))
            import numpy as np

            save_file({"w": np.zeros(4, np.float32)}, os.path.join(opened.writing, "model.safetensors"))
            os.mkdir(os.path.join(opened.writing, "private"), 0o700)
            write_files(os.path.join(opened.writing, "private"), {"x.bin": b"x"})
            script = os.path.join(opened.writing, "zero_to_fp32.py")
            write_files(opened.writing, {"zero_to_fp32.py": b"#!/usr/bin/env python"})
            os.chmod(script, 0o755)
            opened.commit()
            opened.run.close()
        finally:
            os.umask(before)
        checkpoint = os.path.join(out, "checkpoint-20")
        for parent, _, names in os.walk(checkpoint):
            self.assertEqual(stat.S_IMODE(os.stat(parent).st_mode), 0o777 & ~umask, parent)
            for name in names:
                mode = stat.S_IMODE(os.stat(os.path.join(parent, name)).st_mode)
                expected = 0o755 | (0o666 & ~umask) if name == "zero_to_fp32.py" else 0o666 & ~umask
                self.assertEqual(mode, expected, name)

    def test_setgid_and_group_of_the_run_directory_go_on(self):
        run_dir = self.path("run")
        os.mkdir(run_dir)
        os.chown(run_dir, -1, 12345)
        os.chmod(run_dir, 0o2775)
        save(run_dir, 20, content("a", 20))
        info = os.stat(os.path.join(run_dir, "checkpoint-20"))
        self.assertEqual(info.st_gid, 12345)
        self.assertTrue(info.st_mode & stat.S_ISGID)
        self.assertEqual(os.stat(os.path.join(run_dir, "checkpoint-20", "config.json")).st_gid, 12345)

    def test_a_default_acl_counts(self):
        run_dir = self.path("run")
        os.mkdir(run_dir)
        # What `setfacl -d -m u::rwx,g::rwx,o::rwx` stores: version 2, then (tag, bits, no id) for user, group, others.
        entries = b"".join(struct.pack("<HHI", tag, 7, 0xFFFFFFFF) for tag in (0x01, 0x04, 0x20))
        try:
            os.setxattr(run_dir, "system.posix_acl_default", struct.pack("<I", 2) + entries)
        except OSError as error:
            self.skipTest(f"the file system of {run_dir} has no access control lists ({error.strerror})")
        before = os.umask(0o077)
        try:
            opened = SaveTransaction(RunDirectory(run_dir, Alone()), 20)
            opened.open()
            write_files(opened.writing, content("a", 20))
            os.chmod(os.path.join(opened.writing, "optimizer.pt"), 0o600)
            opened.commit()
            opened.run.close()
        finally:
            os.umask(before)
        mode = stat.S_IMODE(os.stat(os.path.join(run_dir, "checkpoint-20", "optimizer.pt")).st_mode)
        self.assertEqual(mode, 0o666)

    def test_a_mount_that_refuses_chmod(self):
        def refuse(path, mode, **kwargs):
            raise PermissionError(1, "Operation not permitted", path)

        with mock.patch.object(os, "chmod", refuse):
            opened = self.open_transaction()
            write_files(opened.writing, content("a", 20))
            opened.commit()
        self.assertEqual(verify(self.path("checkpoint-20"), level="full").problems, ())


class SealAgainTest(SaveTestCase):
    def published(self):
        published = save(self.out, 20, content("a", 20))
        return published, snapshot(published.path)

    def test_what_did_not_change_is_not_sealed_again(self):
        published, seen = self.published()
        self.assertIsNone(seal_again(published.path, published.head, seen, durable=True))
        self.assertEqual(read_head(published.path), published.head)

    def test_removed_rewritten_and_added_files(self):
        published, seen = self.published()
        os.unlink(os.path.join(published.path, "model.safetensors"))
        write_files(published.path, {"config.json": b'{"rewritten": true}', "adapter/notes.txt": b"added"})
        head = seal_again(published.path, published.head, seen, durable=True)
        self.assertEqual(head.sealing, 2)
        self.assertEqual(head.sequence, published.head.sequence)
        self.assertNotIn("model", head.state)
        self.assertEqual(verify(published.path, level="full").problems, ())
        entries = read_entries(published.path, read_head(published.path))
        self.assertEqual(set(entries), (set(content("a", 20)) - {"model.safetensors"}) | {"adapter/notes.txt"})
        lists = [name for name in os.listdir(published.path) if name.startswith("checkpoint-files.")]
        self.assertEqual(lists, ["checkpoint-files.2.json"])

    def test_digests_that_were_put_off_come_after_the_announcement(self):
        published = save(self.out, 20, content("a", 20), durable=False)
        self.assertTrue(all(not e.digest for e in read_entries(published.path, published.head).values()))
        before = verify(published.path, level="full")
        self.assertEqual((before.verdict, before.problems), ("good", ()))
        self.assertIn("the digests of 6 files were not finished", " ".join(before.notes))
        later = LaterSeals()
        later.start(published.path, published.head, published.seen, durable=False)
        later.wait()
        self.assertEqual(read_head(published.path).sealing, 2)
        after = verify(published.path, level="full")
        self.assertEqual((after.verdict, after.problems, after.notes), ("good", (), ()))
        with open(os.path.join(published.path, "optimizer.pt"), "r+b") as file:
            file.seek(60)
            file.write(b"\xff")
        self.assertEqual([p.file for p in verify(published.path, level="full").problems], ["optimizer.pt"])

    def test_nobody_reads_a_checkpoint_while_digests_are_written_into_it(self):
        """A callback that copies it, and an upload, would get the head of one sealing and the list of another."""
        published = save(self.out, 20, content("a", 20), durable=False)
        before = read_files(published.path)
        uploading, later = [True], LaterSeals()
        after_callbacks = later.start(
            published.path, published.head, published.seen, durable=False, busy=lambda: uploading[0]
        )
        _, future = later._running
        future.result()
        self.assertEqual(
            sorted(os.listdir(published.path)),
            sorted({*before, "checkpoint-files.1.json", "checkpoint-manifest.json"}),
        )
        after_callbacks(True)
        self.assertEqual(read_head(published.path).sealing, 1)
        uploading[0] = False
        later.wait()
        self.assertEqual(read_head(published.path).sealing, 2)
        self.assertEqual(verify(published.path, level="full").notes, ())

    def test_under_an_upload_that_outlasts_the_next_save_the_first_seal_stays(self):
        published = save(self.out, 20, content("a", 20), durable=False)
        later = LaterSeals()
        later.start(published.path, published.head, published.seen, durable=False, busy=lambda: True)(True)
        later.wait()
        self.assertEqual(read_head(published.path).sealing, 1)
        self.assertEqual(verify(published.path, level="full").verdict, "good")

    def test_after_callbacks_that_raised_nothing_that_changed_is_called_good(self):
        published = save(self.out, 20, content("a", 20), durable=False)
        later = LaterSeals()
        later.start(published.path, published.head, published.seen, durable=False)
        with open(os.path.join(published.path, "optimizer.pt"), "ab") as file:
            file.write(b"half of something")
        later.close()
        self.assertEqual(read_head(published.path).sealing, 1)
        self.assertEqual([p.file for p in verify(published.path, level="full").problems], ["optimizer.pt"])

    @parameterized.expand([(True,), (False,)])
    def test_what_another_rank_changes_later_is_sealed_when_all_have_come_further(self, durable):
        published = save(self.out, 20, content("a", 20), durable=durable)
        later = LaterSeals()
        later.start(published.path, published.head, published.seen, durable=durable)(False)
        write_files(published.path, {"ema_rank1/optimizer.pt": content("a", 20)["optimizer.pt"]})
        self.assertEqual(len(verify(published.path, level="full").problems), 1)
        later.wait()
        later.look_again()
        self.assertEqual(verify(published.path, level="full").problems, ())
        write_files(published.path, {"notes.txt": b"and again"})
        later.look_again()
        self.assertIn("notes.txt", read_entries(published.path, read_head(published.path)))
        os.truncate(os.path.join(published.path, "optimizer.pt"), 20)
        later.look_again()
        self.assertEqual([p.file for p in verify(published.path, level="full").problems], ["optimizer.pt"])

    @parameterized.expand([("all_are_done", True, 1), ("some_are_not", False, 0)])
    def test_what_is_half_written_at_the_first_look_is_sealed_at_the_next(self, _, all_have_returned, told):
        published = save(self.out, 20, content("a", 20))
        later = LaterSeals()
        after_callbacks = later.start(published.path, published.head, published.seen, durable=True)
        whole = content("a", 20)["optimizer.pt"]
        write_files(published.path, {"ema/optimizer.pt": whole[:40]})
        with CaptureLogger(logging.get_logger("transformers.trainer_checkpoint.sealing")) as log:
            after_callbacks(all_have_returned)
            self.assertEqual([p.file for p in verify(published.path).problems], ["ema/optimizer.pt"])
            later.look_again(tell=all_have_returned)
            write_files(published.path, {"ema/optimizer.pt": whole})
            later.look_again()
        self.assertEqual(log.out.count("could not be sealed again (ema/optimizer.pt"), told)
        self.assertEqual(verify(published.path, level="full").problems, ())

    def test_inode_numbers_that_change_with_a_directorys_name_are_no_change(self):
        published = save(self.out, 20, content("a", 20), durable=False)
        seen = {name: (inode + 1, *rest) for name, (inode, *rest) in published.seen.items()}
        later = LaterSeals()
        later.start(published.path, published.head, seen, durable=False)(True)
        later.wait()
        self.assertTrue(
            all(entry.digest for entry in read_entries(published.path, read_head(published.path)).values())
        )
        self.assertEqual(read_head(published.path).sealing, 2)

    def test_what_another_rank_changes_before_the_publisher_is_done_is_seen(self):
        published = save(self.out, 20, content("a", 20))
        write_files(published.path, {"scheduler.pt": content("another", 20)["scheduler.pt"]})
        later = LaterSeals()
        later.start(published.path, published.head, published.seen, durable=True)(True)
        self.assertEqual(verify(published.path, level="full").problems, ())

    def test_a_callback_that_saves_the_step_again(self):
        published = save(self.out, 20, content("a", 20))
        later = LaterSeals()
        after_callbacks = later.start(published.path, published.head, published.seen, durable=True)
        save(self.out, 20, content("b", 20, shards=2))
        with CaptureLogger(logging.get_logger("transformers.trainer_checkpoint.sealing")) as log:
            after_callbacks(True)
        self.assertEqual(log.out, "")
        self.assertEqual(read_files(published.path), content("b", 20, shards=2))
        self.assertEqual(verify(published.path, level="full").problems, ())

    @parameterized.expand([(True,), (False,)])
    def test_callbacks_change_files_while_digests_are_added(self, durable):
        published = save(self.out, 20, content("a", 20), durable=durable)
        later = LaterSeals()
        after_callbacks = later.start(published.path, published.head, published.seen, durable=durable)
        os.unlink(os.path.join(published.path, "model.safetensors"))
        write_files(published.path, {"adapter_model.bin": content("a", 20)["optimizer.pt"]})
        after_callbacks(True)
        result = verify(published.path, level="full")
        self.assertEqual((result.verdict, result.problems, result.notes), ("good", (), ()))
        self.assertIn("adapter_model.bin", read_entries(published.path, read_head(published.path)))

    def test_a_file_that_a_callback_left_half_written_is_not_called_good(self):
        published, seen = self.published()
        os.truncate(os.path.join(published.path, "model.safetensors"), 20)
        with self.assertRaisesRegex(CheckpointError, "model.safetensors"):
            seal_again(published.path, published.head, seen, durable=True)
        (problem,) = verify(published.path, level="full").problems
        self.assertEqual(problem.file, "model.safetensors")

    def test_torch_weights_beside_sealed_ones_are_a_note(self):
        published, _ = self.published()
        write_files(published.path, {"pytorch_model.bin": content("a", 20)["optimizer.pt"]})
        result = verify(published.path, level="full")
        self.assertEqual((result.verdict, result.problems), ("modified", ()))
        self.assertEqual(newest_complete_checkpoint(self.out), published.path)

    def test_a_pin_is_no_change_of_the_content(self):
        published, seen = self.published()
        Path(published.path, KEEP_NAME).touch()
        self.assertIsNone(seal_again(published.path, published.head, seen, durable=True))
        self.assertNotIn(KEEP_NAME, read_entries(published.path, read_head(published.path)))


class OwnerTest(SaveTestCase):
    def start_owner(self) -> subprocess.Popen:
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); from save_driver import *\n"
            "run = RunDirectory(sys.argv[2], Alone()); save(sys.argv[2], 10, content('other', 10), run=run)\n"
            "print('saved', flush=True); sys.stdin.read(); run.close()"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(SCRIPTS), self.out],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "saved\n")
        return process

    def test_an_owner_that_leaves_is_waited_for(self):
        """The training that this one replaces writes its last checkpoint within the grace that it was given."""
        other = self.start_owner()
        leave = threading.Timer(5.0, other.stdin.close)
        leave.start()
        self.addCleanup(leave.join)
        with CaptureLogger(logging.get_logger("transformers.trainer_checkpoint.transaction")) as log:
            save(self.out, 20, content("mine", 20))
        self.assertRegex(log.out, rf"process {other.pid} on host .* is saving .*{self.out}. Waiting for up to 60 s")
        self.assertEqual(read_files(self.path("checkpoint-20")), content("mine", 20))
        self.assertEqual(read_head(self.path("checkpoint-20")).sequence, 2)

    @mock.patch.object(transaction, "OWNER_PATIENCE", 2.0)
    def test_an_owner_that_stays_is_waited_for_once(self):
        self.start_owner()
        run = RunDirectory(self.out, Alone())
        self.addCleanup(run.close)
        with CaptureLogger(logging.get_logger("transformers.trainer_checkpoint.transaction")) as log:
            for step in (20, 30):
                with self.assertRaises(CheckpointSaveError):
                    save(self.out, step, content("mine", step), run=run)
        self.assertEqual(log.out.count("Waiting for up to 2 s until it leaves"), 1)

    def test_in_a_hurry_an_owner_is_not_waited_for(self):
        self.start_owner()
        run = RunDirectory(self.out, Alone())
        self.addCleanup(run.close)
        with CaptureLogger(logging.get_logger("transformers.trainer_checkpoint.transaction")) as log:
            with self.assertRaises(CheckpointSaveError):
                SaveTransaction(run, 20, facts={"hurry": True}).open()
        self.assertEqual(log.out, "")

    @mock.patch.object(transaction, "OWNER_PATIENCE", 1.0)
    def test_a_second_training_in_the_same_directory_is_refused(self):
        other = self.start_owner()
        with self.assertRaisesRegex(CheckpointSaveError, f"process {other.pid} ") as caught:
            save(self.out, 20, content("mine", 20))
        self.assertIsInstance(caught.exception.__cause__, CheckpointOwnedError)
        self.assertEqual(read_files(self.path("checkpoint-10")), content("other", 10))
        self.assertFalse(os.path.exists(self.path("checkpoint-20")))

    def test_a_dead_owner_is_no_obstacle(self):
        other = self.start_owner()
        other.kill()
        other.wait(timeout=30)
        save(self.out, 20, content("mine", 20))
        self.assertEqual(read_files(self.path("checkpoint-20")), content("mine", 20))
        self.assertFalse(os.path.exists(self.path("_staging")))

    def test_a_staging_directory_that_was_removed_between_two_saves(self):
        run = RunDirectory(self.out, Alone())
        self.addCleanup(run.close)
        save(self.out, 10, content("a", 10), run=run)
        shutil.rmtree(self.path("_staging"))
        save(self.out, 20, content("b", 20), run=run)
        self.assertEqual(read_files(self.path("checkpoint-20")), content("b", 20))

    def test_nothing_is_published_by_a_process_that_lost_the_directory(self):
        opened = self.open_transaction()
        write_files(opened.writing, content("a", 20))
        with mock.patch.object(owner, "holds", lambda path: False):
            with self.assertRaisesRegex(CheckpointSaveError, "in use"):
                opened.commit()
        self.assertFalse(os.path.exists(self.path("checkpoint-20")))

    def test_a_directory_that_the_mount_hides_for_a_while(self):
        real, calls = os.makedirs, []

        def makedirs(path, *args, **kwargs):
            calls.append(path)
            if len(calls) < 3:
                raise FileExistsError(17, "File exists", path)
            real(path, *args, **kwargs)

        with mock.patch.object(os, "makedirs", makedirs):
            disk.make_directories(self.path("run"), durable=True)
        self.assertTrue(os.path.isdir(self.path("run")))
        Path(self.path("file")).touch()
        with self.assertRaises(FileExistsError):
            disk.make_directories(self.path("file"), durable=True)

    def test_an_owner_that_ended_leaves_no_record(self):
        save(self.out, 20, content("mine", 20))
        self.assertFalse(os.path.exists(self.path("_staging")))
        self.assertIsNone(owner.read_owner(self.out))


if __name__ == "__main__":
    unittest.main()
