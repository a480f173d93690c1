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
"""What a save costs, side by side with the release below the patch set.

    python benchmarks/bench_save.py [--size 1.6e9] [--pairs 7] [--directory DIR]

Two trainings of the same model stand ready in two processes, one with the stock library, one with the patched one. They
save in turn, stock first and patched first in turn, and the ratio of each pair is taken: the machine's own ups and downs
hit both. Three comparisons:

- `process`: `save_durability="process"` against stock as it is. Neither waits for a disk, and where the kernel holds up
  whoever writes faster than the disk, chance decides which of the two that is: so this is saved in memory, unless
  `--directory` says where;
- `full`: `save_durability="full"` against stock followed by a flush of the same files and directories;
- `seal to announce`: the time from the last digest to the announcement for two sizes, which should not differ. With
  `process` the digests follow in the background; how long they take is in the column after it.

The counts at the end come from one save under strace: bytes written, flushes, and system calls that touch the disk.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


ROOT = Path(__file__).resolve().parents[1]

CHILD = r"""
import contextlib, json, os, resource, shutil, sys, time
sys.path.insert(0, os.environ["BENCHED_PACKAGE"])
import torch
from transformers import Trainer, TrainingArguments
import transformers

out, size, durability, patched = sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4] == "patched"
assert hasattr(Trainer, "_safe_checkpoints") == patched, transformers.__file__

class Model(torch.nn.Module):
    # float32 weights and two float32 moments: 12 bytes for each parameter.
    def __init__(self):
        super().__init__()
        rows = int(size / 12 / 1024 / 8)
        self.layers = torch.nn.ParameterList(torch.randn(rows, 1024) for _ in range(8))
    def forward(self, x):
        return {"loss": sum(layer[0].sum() for layer in self.layers)}

extra = {"save_durability": durability} if patched else {}
args = TrainingArguments(out, use_cpu=True, report_to="none", disable_tqdm=True, max_steps=1, save_strategy="no", **extra)
model = Model()
trainer = Trainer(model=model, args=args, train_dataset=[{"x": torch.zeros(1)}] * 8)
trainer.train()
if patched:
    from transformers.trainer_checkpoint import transaction
    original = transaction.SaveTransaction._seal
    def seal(self, *args, **kwargs):
        global sealing
        sealing = time.perf_counter()
        return original(self, *args, **kwargs)
    transaction.SaveTransaction._seal = seal

def flush(path):
    for parent, _, names in os.walk(path):
        for name in [*names, "."]:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

# As in the middle of a training: what goes on in the background is not waited for.
training = trainer._safe_checkpoints.training() if patched else contextlib.nullcontext()
training.__enter__()
print("ready", flush=True)
step = 0
for line in sys.stdin:
    step += 1
    trainer.state.global_step = step
    os.sync()
    path = os.path.join(out, f"checkpoint-{step}")
    began = time.perf_counter()
    trainer._save_checkpoint(trainer.model, trial=None)
    if not patched and durability == "full":
        flush(path)
        flush(out)
    took = time.perf_counter() - began
    tail = time.perf_counter() - sealing if patched else 0.0
    if patched:  # digests that were put off; the other training must not pay for them
        trainer._safe_checkpoints._later_seals.wait()
    later = time.perf_counter() - began - took
    shutil.rmtree(path)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": took, "tail": tail, "later": later, "peak_kib": peak}), flush=True)
training.__exit__(None, None, None)
"""


class Saver:
    """One ready training in a process of its own."""

    def __init__(self, package: Path, kind: str, size: float, durability: str, directory: str, prefix: tuple = ()):
        self.out = tempfile.mkdtemp(prefix=f"{kind}-", dir=directory)
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", CHILD, self.out, str(size), durability, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "BENCHED_PACKAGE": str(package), "OMP_NUM_THREADS": "1"},
        )
        for line in self.process.stdout:  # the training's own lines come first
            if line == "ready\n":
                return
        raise SystemExit(f"the {kind} training did not start")

    def save(self) -> dict:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)
        shutil.rmtree(self.out, ignore_errors=True)


def packages() -> dict[str, Path]:
    """Where the two libraries lie: the unpacked release, and the linked tree of `make link`."""
    sys.path.insert(0, str(ROOT / "utils"))
    from upstream import pinned_release

    return {"stock": Path(pinned_release().root), "patched": ROOT / "build" / "dev"}


def interval(values: list[float]) -> tuple[float, float]:
    """A distribution-free interval of the median: for 7 values it covers it with 98 % (order statistics)."""
    ordered = sorted(values)
    cut = max(0, int(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5))
    return ordered[cut], ordered[-1 - cut]


def compare(size: float, durability: str, pairs: int, directory: str) -> dict:
    found = packages()
    savers = {kind: Saver(found[kind], kind, size, durability, directory) for kind in found}
    for saver in savers.values():  # not counted
        saver.save()
    rows: dict[str, list[dict]] = {"stock": [], "patched": []}
    for pair in range(pairs):
        for kind in ("stock", "patched") if pair % 2 == 0 else ("patched", "stock"):
            rows[kind].append(savers[kind].save())
    for saver in savers.values():
        saver.close()
    ratios = [p["seconds"] / s["seconds"] for s, p in zip(rows["stock"], rows["patched"], strict=True)]
    low, high = interval(ratios)
    return {
        "durability": durability,
        "size": size,
        "pairs": pairs,
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "stock_seconds": statistics.median(r["seconds"] for r in rows["stock"]),
        "patched_seconds": statistics.median(r["seconds"] for r in rows["patched"]),
        "seal_to_announce_seconds": statistics.median(r["tail"] for r in rows["patched"]),
        "digests_afterwards_seconds": statistics.median(r["later"] for r in rows["patched"]),
        "peak_difference_mib": (rows["patched"][-1]["peak_kib"] - rows["stock"][-1]["peak_kib"]) / 1024,
    }


def counts(size: float, durability: str, directory: str) -> dict:
    """Exact counts of one save: the difference between strace's totals of two saves and of one."""
    if shutil.which("strace") is None:
        return {"missing": "strace"}
    totals: dict[str, list[dict]] = {}
    for kind, package in packages().items():
        for saves in (1, 2):
            with tempfile.NamedTemporaryFile(dir=directory) as log:
                calls = (
                    "write,pwrite64,writev,fsync,fdatasync,rename,renameat2,openat,mkdir,unlink,unlinkat,rmdir,chmod"
                )
                prefix = ("strace", "-f", "-qq", "-y", "-o", log.name, "-e", f"trace={calls}")
                saver = Saver(package, kind, size, durability, directory, prefix)
                out = os.path.realpath(saver.out)
                for _ in range(saves):
                    saver.save()
                saver.close()
                totals.setdefault(kind, []).append(_read_trace(log.name, out))
    return {
        kind: {key: second.get(key, 0) - first.get(key, 0) for key in second}
        for kind, (first, second) in totals.items()
    }


def _read_trace(path: str, out: str) -> dict:
    found: dict[str, int] = {"bytes_written": 0}
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            match = re.search(r"\b(\w+)\((.*)= (-?\d+)", line)
            # A call that another thread interrupts is on two lines; its arguments are on the first.
            name = match.group(1) if match else None
            if match is None or out not in match.group(2):
                continue
            found[name] = found.get(name, 0) + 1
            if name in ("write", "pwrite64", "writev"):
                found["bytes_written"] += int(match.group(3))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=1.6e9, help="bytes of model and optimizer state together")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--directory", help="where to save; on the disk that is meant")
    parser.add_argument("--json", help="also write the figures there")
    options = parser.parse_args()
    memory = options.directory or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        rows = [compare(size, "process", options.pairs, directory) for size in (options.size, options.size / 8)]
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        rows += [compare(size, "full", options.pairs, directory) for size in (options.size, options.size / 8)]
        counted = {durability: counts(5e7, durability, directory) for durability in ("process", "full")}
    print(
        f"{'durability':12}{'size':>10}{'stock':>10}{'patched':>10}{'ratio':>8}  interval      seal..announce    digests later  peak"
    )
    for row in rows:
        print(
            f"{row['durability']:12}{row['size'] / 1e9:>8.2f}GB{row['stock_seconds']:>9.2f}s{row['patched_seconds']:>9.2f}s"
            f"{row['ratio']:>8.3f}  {row['low']:.3f}-{row['high']:.3f}  {row['seal_to_announce_seconds'] * 1e3:>10.1f} ms"
            f"  {row['digests_afterwards_seconds'] * 1e3:>12.1f} ms  {row['peak_difference_mib']:+.0f} MiB"
        )
    print("\nOne save of 0.05 GB, under its run directory:")
    for durability, kinds in counted.items():
        for kind, found in kinds.items():
            print(f"{durability:8} {kind:8} {found}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows, "counts": counted}, file, indent=1)


if __name__ == "__main__":
    main()
