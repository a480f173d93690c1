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
"""How long it takes to find the newest complete checkpoint, by kind and by number of checkpoints.

    python benchmarks/bench_discovery.py [--checkpoints 1000] [--rounds 9] [--folder DIR]

The aims: `get_last_checkpoint` under 50 ms among 1,000 checkpoints; a search adds under 50 ms to a start at which
nothing is wrong; `python -m transformers.trainer_checkpoint list` under half a second as a whole process.

The last column is processor time: on a busy machine it tells what the work costs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from transformers.trainer_checkpoint.digest import DEFAULT_ALGORITHM, digest_files
from transformers.trainer_checkpoint.discovery import find_checkpoints, newest_complete_checkpoint
from transformers.trainer_checkpoint.layout import checkpoint_name
from transformers.trainer_checkpoint.manifest import FileEntry, Head, ListRecord, draw_nonce, write_manifest


FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "config.json", "training_args.bin")


def make(path: str, step: int, sealed: bool) -> None:
    os.mkdir(path)
    with open(os.path.join(path, "trainer_state.json"), "w", encoding="utf-8") as file:
        json.dump({"global_step": step}, file)
    if not sealed:
        return
    for name in FILES:
        with open(os.path.join(path, name), "wb") as file:
            file.write(os.urandom(100))
    entries = {name: FileEntry(*found) for name, found in digest_files(path, os.listdir(path)).items()}
    head = Head(
        step=step,
        sequence=step,
        nonce=draw_nonce(),
        world_size=1,
        state=("model", "optimizer", "scheduler", "rng", "trainer"),
        algorithm=DEFAULT_ALGORITHM,
        files=ListRecord("", 0, "", 0, 0),
        writer={"transformers": "5.24.0", "host": "bench", "pid": os.getpid()},
    )
    write_manifest(path, head, entries, durable=False)


def measure(call: Callable[[], object], rounds: int) -> str:
    seconds, busy = [], []
    for _ in range(rounds):
        start, cpu = time.perf_counter(), sum(os.times()[:4])
        call()
        seconds.append(time.perf_counter() - start)
        busy.append(sum(os.times()[:4]) - cpu)
    return f"{min(seconds) * 1e3:9.1f} {statistics.median(seconds) * 1e3:9.1f} {statistics.mean(busy) * 1e3:9.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", help="where to make the directories; a temporary folder by default")
    options = parser.parse_args()
    print(f"{'what':<44} {'number':>7} {'best ms':>9} {'median':>9} {'CPU':>9}")
    for sealed in (True, False):
        kind = "sealed" if sealed else "without a manifest"
        for count in sorted({10, options.checkpoints}):
            with tempfile.TemporaryDirectory(dir=options.folder) as run_dir:
                for step in range(1, count + 1):
                    make(os.path.join(run_dir, checkpoint_name(step)), step, sealed)
                newest = os.path.join(run_dir, checkpoint_name(count))
                if newest_complete_checkpoint(run_dir) != newest:
                    raise SystemExit(f"{newest} should have been found")
                command = [sys.executable, "-m", "transformers.trainer_checkpoint", "list", run_dir]
                for what, call in (
                    ("get_last_checkpoint", lambda: newest_complete_checkpoint(run_dir)),
                    ("find_checkpoints, each looked at", lambda: find_checkpoints(run_dir, check="all")),
                    ("list, a process", lambda: subprocess.run(command, check=True, capture_output=True)),
                ):
                    print(f"{what + ', ' + kind:<44} {count:>7} {measure(call, options.rounds)}", flush=True)


if __name__ == "__main__":
    main()
