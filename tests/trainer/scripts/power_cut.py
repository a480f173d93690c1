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
"""Cut the power of a disk at any moment of a training that saves and rotates, and look at what a mount finds.

    python power_cut.py --fs ext4 --states 200
    python power_cut.py --fs xfs --durability process      # must find losses: shows that the campaign can fail
    python power_cut.py --fs btrfs --states 1 --seed 7 --only 1234     # one state again

A file in a FUSE file system of our own is the backing store of a loop device. It records each write and each flush that
reaches the disk, in order. On the device lies a real file system, in which the real protocol saves, rotates and
announces. A *state* is what a power cut could have left after the first `k` records:

- `all`: every write up to there has reached the disk;
- `flushed`: only what was followed by a flush;
- `some`: what was flushed, and of the rest any subset, at random.

(A disk may reorder what lies between two flushes; a subset of it in order is what a cut then shows.) Each state is
mounted, which makes the file system repair itself, and then every checkpoint that was announced before the cut and that
rotation had not taken out of use by then must be there and verify with digests; the newest one must be what resuming
picks; and the next save must work.

Needs root, FUSE and loop devices. Prints one JSON object.
"""

import argparse
import ctypes
import ctypes.util
import errno
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time

from save_driver import content, read_files, save

from transformers.trainer_checkpoint.discovery import newest_complete_checkpoint
from transformers.trainer_checkpoint.ranks import Alone
from transformers.trainer_checkpoint.rotation import rotate_run
from transformers.trainer_checkpoint.transaction import RunDirectory
from transformers.trainer_checkpoint.verification import verify
from transformers.utils import logging


BLOCK = 4096
# The smallest sizes that the tools make (bytes).
SIZES = {"ext4": 32 << 20, "xfs": 300 << 20, "btrfs": 128 << 20}
MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-J", "size=4"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}
# Commit intervals are shortened so that a file system's own periodic commits fall between our flushes too.
OPTIONS = {"ext4": "commit=1", "xfs": "defaults", "btrfs": "commit=1"}
LIMIT = 2
_CLONE_NEWNS = 0x00020000


class Recorder:
    """The content of the disk before the recording, and every write and flush since. Offsets are in bytes."""

    def __init__(self, size: int):
        self.size = size
        self.base: dict[int, bytes] = {}
        self.now: dict[int, bytes] = {}
        self.log: list[tuple[int, bytes] | None] = []
        self.recording = False
        self.lock = threading.Lock()

    def read(self, size: int, offset: int) -> bytes:
        size = min(size, self.size - offset)
        first, last = offset // BLOCK, (offset + size - 1) // BLOCK
        zero = bytes(BLOCK)
        with self.lock:
            whole = b"".join(self.now.get(number, zero) for number in range(first, last + 1))
        return whole[offset - first * BLOCK :][:size]

    def write(self, data: bytes, offset: int) -> None:
        with self.lock:
            put(self.now, data, offset)
            if self.recording:
                self.log.append((offset, data))

    def flush(self) -> None:
        with self.lock:
            if self.recording:
                self.log.append(None)

    def start(self) -> None:
        with self.lock:
            self.base, self.recording = dict(self.now), True


def put(blocks: dict[int, bytes], data: bytes, offset: int) -> None:
    """Write `data` at `offset` into a disk of whole blocks."""
    at = 0
    while at < len(data):
        number, inside = divmod(offset + at, BLOCK)
        count = min(BLOCK - inside, len(data) - at)
        old = blocks.get(number, bytes(BLOCK))
        blocks[number] = old[:inside] + data[at : at + count] + old[inside + count :]
        at += count


def serve(recorder: Recorder, where: str) -> threading.Thread:
    """Show the recorder as the file `disk` in a FUSE file system at `where`."""
    import mfusepy

    class OneFile(mfusepy.Operations):
        use_ns = True

        def getattr(self, path, fh=None):
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
            if path == "/disk":
                return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": recorder.size}
            raise mfusepy.FuseOSError(errno.ENOENT)

        def readdir(self, path, fh):
            return [".", "..", "disk"]

        def open(self, path, flags):
            return 1

        def read(self, path, size, offset, fh):
            return recorder.read(size, offset)

        def write(self, path, data, offset, fh):
            recorder.write(bytes(data), offset)
            return len(data)

        def fsync(self, path, datasync, fh):
            recorder.flush()
            return 0

        def fallocate(self, path, mode, offset, length, fh):
            raise mfusepy.FuseOSError(errno.EOPNOTSUPP)

        def truncate(self, path, length, fh=None):
            return 0

    # A thread of this process: the recorder's log and the announcements then share one clock, the log's length.
    thread = threading.Thread(
        target=lambda: mfusepy.FUSE(OneFile(), where, foreground=True, nothreads=True, allow_other=False), daemon=True
    )
    thread.start()
    deadline = time.monotonic() + 20
    while not os.path.exists(os.path.join(where, "disk")):
        if time.monotonic() > deadline:
            raise SystemExit("the FUSE file system did not appear")
        time.sleep(0.02)
    return thread


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def workload(out: str, saves: int, durable: bool) -> None:
    """In a child: save, rotate and announce; a line on standard output for each announcement.

    It goes on when the announcement has been written down, with the length that the record had by then: a recorder that is
    late would hold a checkpoint for one that must be there after rotation has rightly taken it away.
    """
    directory = RunDirectory(out, Alone(), durable=durable)
    for number in range(1, saves + 1):
        save(out, 10 * number, content(f"save {number}", 10 * number, shards=1 + number % 2), run=directory)
        print(10 * number, flush=True)
        sys.stdin.readline()
        rotate_run(out, limit=LIMIT, durable=durable)
    directory.close()


class PowerCut:
    def __init__(self, fs: str, durable: bool, saves: int, seed: int):
        self.fs, self.durable, self.saves = fs, durable, saves
        self.random = random.Random(seed)
        self.recorder = Recorder(SIZES[fs])
        # (number of records at the announcement, step)
        self.announced: list[tuple[int, int]] = []

    def record(self, work: str) -> None:
        """Run the workload once on the recorded disk."""
        served, mounted = os.path.join(work, "served"), os.path.join(work, "mounted")
        os.makedirs(served)
        os.makedirs(mounted)
        image = os.path.join(work, "fresh")
        with open(image, "wb") as file:
            file.truncate(self.recorder.size)
        run(*MAKE[self.fs], image)
        with open(image, "rb") as file:
            for number in range(self.recorder.size // BLOCK):
                block = file.read(BLOCK)
                if block.strip(b"\0"):
                    self.recorder.now[number] = block
        os.unlink(image)
        serve(self.recorder, served)
        device = None
        try:
            device = run("losetup", "--find", "--show", os.path.join(served, "disk"))
            run("mount", "-t", self.fs, "-o", OPTIONS[self.fs], device, mounted)
            run("sync", "-f", mounted)
            self.recorder.start()
            command = [sys.executable, __file__, "--fs", self.fs, "--workload", os.path.join(mounted, "out")]
            command += ["--saves", str(self.saves), "--durability", "full" if self.durable else "process"]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for line in child.stdout:
                self.announced.append((len(self.recorder.log), int(line)))
                child.stdin.write("noted\n")
                child.stdin.flush()
            if child.wait(timeout=600) != 0:
                raise SystemExit("the workload failed")
        finally:
            # Recorded too: without flushes of ours, this is when most of it reaches the disk.
            subprocess.run(["umount", mounted], capture_output=True)
            self.recorder.recording = False
            if device is not None:
                subprocess.run(["losetup", "-d", device], capture_output=True)
            subprocess.run(["umount", "-l", served], capture_output=True)

    def points(self, states: int) -> list[tuple[int, str]]:
        """Where to cut: at the end of every run of writes and just after every announcement, the rest at random."""
        log = self.recorder.log
        interesting = [k for k in range(1, len(log) + 1) if log[k - 1] is None or k == len(log)]
        interesting += [k for k, _ in self.announced] + [min(k + 1, len(log)) for k, _ in self.announced]
        wanted = [(k, kind) for k in sorted(set(interesting)) for kind in ("flushed", "all")]
        self.random.shuffle(wanted)
        wanted = wanted[: states // 2]
        while len(wanted) < states:
            wanted.append((self.random.randint(0, len(log)), self.random.choice(["all", "some", "some", "flushed"])))
        return sorted(wanted)

    def state(self, k: int, kind: str) -> dict[int, bytes]:
        """The disk after a power cut."""
        log = self.recorder.log[:k]
        flushed = max((i for i, record in enumerate(log) if record is None), default=-1)
        blocks = dict(self.recorder.base)
        for number, record in enumerate(log):
            if record is None:
                continue
            if number > flushed and (kind == "flushed" or (kind == "some" and self.random.random() < 0.5)):
                continue
            put(blocks, record[1], record[0])
        return blocks

    def check(self, work: str, k: int, kind: str) -> list[str]:
        """Every promise that the state breaks."""
        image, mounted = os.path.join(work, "state"), os.path.join(work, "look")
        os.makedirs(mounted, exist_ok=True)
        with open(image, "wb") as file:
            file.truncate(self.recorder.size)
            for number, block in self.state(k, kind).items():
                file.seek(number * BLOCK)
                file.write(block)
        try:
            run("mount", "-t", self.fs, "-o", "loop", image, mounted)
        except RuntimeError as error:
            return [f"the file system cannot be mounted: {error}"]
        try:
            return self.broken(os.path.join(mounted, "out"), k)
        finally:
            run("umount", mounted)
            os.unlink(image)

    def broken(self, out: str, k: int) -> list[str]:
        wrong = []
        steps = [step for position, step in self.announced if position <= k]
        # Rotation keeps the newest `LIMIT`; the oldest of them may go as soon as the next one is published.
        due = steps[-1:] + (steps[-LIMIT:-1] if k == self.announced[len(steps) - 1][0] else []) if steps else []
        for step in due:
            path = os.path.join(out, f"checkpoint-{step}")
            if not os.path.isdir(path):
                wrong.append(f"checkpoint-{step} was announced and is gone")
                continue
            problems = verify(path, level="full").problems
            if problems:
                wrong.append(f"checkpoint-{step} was announced and is damaged: {problems[0]}")
            elif read_files(path) != content(f"save {step // 10}", step, shards=1 + step // 10 % 2):
                wrong.append(f"checkpoint-{step} was announced and has other content")
        newest = newest_complete_checkpoint(out) if os.path.isdir(out) else None
        if steps and (newest is None or int(newest.rpartition("-")[2]) < steps[-1]):
            wrong.append(f"resuming picks {newest}, and checkpoint-{steps[-1]} was announced")
        if newest is not None and verify(newest, level="full").problems:
            wrong.append(f"resuming picks {newest}, which is damaged")
        try:
            save(out, 990, content("after", 990))
        except Exception as error:
            wrong.append(f"the next save fails: {error}")
        return wrong


def keep_mounts_to_ourselves() -> None:
    """Mount in a namespace of this process: one that somebody else copies from the machine's keeps a disk mounted."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        raise SystemExit(f"a mount namespace cannot be made: {os.strerror(ctypes.get_errno())}")
    run("mount", "--make-rprivate", "/")


def missing_tools(fs: str) -> str | None:
    """What the campaign needs and does not find, or `None`."""
    if os.geteuid() != 0:
        return "root"
    for tool in (MAKE[fs][0], "losetup", "mount"):
        if shutil.which(tool) is None:
            return tool
    for device in ("/dev/fuse", "/dev/loop-control"):
        if not os.path.exists(device):
            return device
    if ctypes.util.find_library("fuse") is None and ctypes.util.find_library("fuse3") is None:
        return "libfuse"
    with open("/proc/filesystems", encoding="utf-8") as file:
        if fs not in file.read().split():
            return f"{fs} in the kernel"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fs", choices=sorted(SIZES), required=True)
    parser.add_argument("--states", type=int, default=200)
    parser.add_argument("--saves", type=int, default=6)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", type=int, help="cut after this number of records only")
    parser.add_argument("--durability", choices=["full", "process"], default="full")
    parser.add_argument("--workload", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.set_verbosity(logging.CRITICAL)
    durable = options.durability == "full"
    if options.workload:
        workload(options.workload, options.saves, durable)
        return
    needed = missing_tools(options.fs)
    if needed is not None:
        print(json.dumps({"missing": needed}))
        return
    keep_mounts_to_ourselves()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 30)
    cut = PowerCut(options.fs, durable, options.saves, seed)
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=base) as work:
        cut.record(work)
        points = [(options.only, "some")] if options.only else cut.points(options.states)
        violations = []
        for k, kind in points:
            violations += [f"seed {seed}, cut after {k} ({kind}): {text}" for text in cut.check(work, k, kind)]
    print(
        json.dumps(
            {
                "fs": options.fs,
                "durability": options.durability,
                "seed": seed,
                "records": len(cut.recorder.log),
                "flushes": sum(record is None for record in cut.recorder.log),
                "announced": cut.announced,
                "states": len(points),
                "violations": violations,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
