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
"""A disk that is really full: a tmpfs of limited size and a small ext4, at every fill level of a save."""

import errno
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

from parameterized import parameterized

from transformers.testing_utils import TestCasePlus
from transformers.trainer_checkpoint.discovery import newest_complete_checkpoint
from transformers.trainer_checkpoint.errors import CheckpointSaveError
from transformers.trainer_checkpoint.ranks import Alone
from transformers.trainer_checkpoint.transaction import RunDirectory
from transformers.trainer_checkpoint.verification import verify


SCRIPTS = Path(__file__).parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from save_driver import content, read_files, save  # noqa: E402


LARGE = 1 << 20


def large_content(tag: str, step: int) -> dict[str, bytes]:
    """A checkpoint of about 2 MiB."""
    return content(tag, step) | {"extra.bin.txt": tag[:1].encode() * LARGE, "zz_last.txt": tag[-1:].encode() * LARGE}


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)


class DiskFullTest(TestCasePlus):
    def mount(self, kind: str, size: int) -> str:
        """A fresh file system of `size` bytes, unmounted after the test; skips where this may not be done."""
        here = self.get_auto_remove_tmp_dir()
        mounted = os.path.join(here, "disk")
        os.mkdir(mounted)
        try:
            if kind == "tmpfs":
                run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", mounted)
            else:
                image = os.path.join(here, "image")
                with open(image, "wb") as file:
                    file.truncate(size)
                run("mkfs.ext4", "-q", "-m", "0", image)
                run("mount", "-o", "loop", image, mounted)
        except FileNotFoundError as missing:
            self.skipTest(f"{missing.filename} is not installed")
        except subprocess.CalledProcessError as error:
            self.skipTest(f"may not mount a {kind} here: {error.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", mounted], check=False)
        return mounted

    def leave_free(self, mounted: str, size: int) -> str:
        """Fill the disk with a file until no more than `size` bytes are free."""
        filler = os.path.join(mounted, "filler")
        with open(filler, "wb") as file:
            wanted = shutil.disk_usage(mounted).free - size
            while wanted > 0:
                try:
                    file.write(b"\0" * min(wanted, 1 << 16))
                    file.flush()
                    os.fsync(file.fileno())
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    break
                wanted = shutil.disk_usage(mounted).free - size
        return filler

    @parameterized.expand(
        [
            ("tmpfs_full", "tmpfs", True),
            ("tmpfs_process", "tmpfs", False),
            ("ext4_full", "ext4", True),
            ("ext4_process", "ext4", False),
        ]
    )
    def test_every_fill_level(self, _, kind, durable):
        mounted = self.mount(kind, 24 << 20)
        out = os.path.join(mounted, "out")
        directory = RunDirectory(out, Alone(), durable=durable)
        self.addCleanup(directory.close)
        save(out, 10, large_content("old", 10), run=directory)
        failed = succeeded = 0
        # From "nothing fits" in steps of the disk's blocks over "all but the manifest" to "everything".
        for free in [0, 4096, 65536, LARGE // 2, LARGE, 2 * LARGE - 4096, *range(2 * LARGE, 2 * LARGE + 90000, 8192)]:
            filler = self.leave_free(mounted, free)
            try:
                save(out, 20, large_content("new", 20), run=directory)
            except CheckpointSaveError as error:
                failed += 1
                self.assertEqual(error.__cause__.errno, errno.ENOSPC, error)
                self.assertIn("No space left on device", str(error))
                self.assertFalse(os.path.lexists(os.path.join(out, "checkpoint-20")), free)
                self.assertFalse(os.path.lexists(os.path.join(out, "_staging", "checkpoint-20")), free)
            else:
                succeeded += 1
                self.assertEqual(read_files(os.path.join(out, "checkpoint-20")), large_content("new", 20))
                self.assertEqual(verify(os.path.join(out, "checkpoint-20"), level="full").problems, ())
                shutil.rmtree(os.path.join(out, "checkpoint-20"))
            self.assertEqual(newest_complete_checkpoint(out), os.path.join(out, "checkpoint-10"))
            self.assertEqual(read_files(os.path.join(out, "checkpoint-10")), large_content("old", 10))
            os.unlink(filler)
        self.assertGreater(failed, 4)
        self.assertGreater(succeeded, 0)
        save(out, 20, large_content("new", 20), run=directory)
        self.assertEqual(newest_complete_checkpoint(out), os.path.join(out, "checkpoint-20"))


if __name__ == "__main__":
    unittest.main()
