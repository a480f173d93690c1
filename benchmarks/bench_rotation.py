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
"""How long one rotation takes in a run directory with many checkpoints. One goes, the others stay.

    python benchmarks/bench_rotation.py [--checkpoints 10000] [--rounds 5] [--folder DIR]

Three kinds of directories: empty ones, ones without a manifest, sealed ones. The aim is 200 ms for 10,000 names, on a
local disk whose directory entries are in memory. The first two rotations of a process read the head of each sealed one;
later ones remember what did not change meanwhile. Between two rotations lies a pause longer than the coarsest step of a
file system's times, as between two saves.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

from transformers.trainer_checkpoint import rotation
from transformers.trainer_checkpoint.layout import checkpoint_name
from transformers.trainer_checkpoint.manifest import FileEntry, Head, ListRecord, draw_nonce, write_manifest


def make_empty(path: str, step: int) -> None:
    os.mkdir(path)


def make_without_manifest(path: str, step: int) -> None:
    os.mkdir(path)
    with open(os.path.join(path, "trainer_state.json"), "w", encoding="utf-8") as file:
        json.dump({"global_step": step}, file)


def make_sealed(path: str, step: int) -> None:
    make_without_manifest(path, step)
    size = os.path.getsize(os.path.join(path, "trainer_state.json"))
    head = Head(
        step=step,
        sequence=step,
        nonce=draw_nonce(),
        world_size=1,
        state=("trainer",),
        algorithm="crc32",
        files=ListRecord("", 0, "", 0, 0),
        writer={"transformers": "5.24.0", "host": "bench", "pid": os.getpid()},
    )
    write_manifest(path, head, {"trainer_state.json": FileEntry(size, "00000000")}, durable=False)


KINDS = {"empty": make_empty, "without a manifest": make_without_manifest, "sealed": make_sealed}


def measure(kind: str, count: int, rounds: int, folder: str | None) -> list[float]:
    """Seconds of each round: one more checkpoint than the limit, one rotation, as the Trainer does it."""
    seconds = []
    with tempfile.TemporaryDirectory(dir=folder) as run_dir:
        sweeper, memory = rotation.Sweeper(), rotation.Memory()
        for step in range(1, count + 1):
            KINDS[kind](os.path.join(run_dir, checkpoint_name(step)), step)
        for step in range(count + 1, count + 1 + rounds):
            KINDS[kind](os.path.join(run_dir, checkpoint_name(step)), step)
            start = time.perf_counter()
            outcome = rotation.rotate_run(run_dir, limit=count, own={step}, sweeper=sweeper, memory=memory)
            seconds.append(time.perf_counter() - start)
            time.sleep(rotation.TIME_STEP + 0.1)
            expected = (os.path.join(run_dir, checkpoint_name(step - count)),)
            if outcome.gone != expected or outcome.problems:
                raise SystemExit(f"{kind}: {len(outcome.gone)} checkpoints went, and only {expected[0]} should have")
        sweeper.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=10_000, help="how many stay")
    parser.add_argument("--rounds", type=int, default=7, help="rotations of each kind")
    parser.add_argument("--folder", help="where to make the run directories; default: the system's temporary folder")
    arguments = parser.parse_args()
    for kind in KINDS:
        seconds = measure(kind, arguments.checkpoints, arguments.rounds, arguments.folder)
        print(
            f"{kind:20} {arguments.checkpoints} checkpoints, one rotated: first {seconds[0] * 1000:.0f} ms, second "
            f"{seconds[1] * 1000:.0f} ms, later ones {statistics.median(seconds[2:]) * 1000:.0f} ms (median), at most "
            f"{max(seconds[2:]) * 1000:.0f} ms"
        )


if __name__ == "__main__":
    main()
