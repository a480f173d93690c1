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
"""Trainings on two nodes with one process each, on a disk that both see and on disks of their own. Under torchrun:

    rank_nodes.py --folder F --shared S --own O

`S` is one directory for both nodes, `O` another one on each. On disk afterwards: `F/rank<r>.json`, what this rank saw.
"""

import argparse
import contextlib
import faulthandler
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any


sys.path.insert(0, str(Path(__file__).parent))

import torch.distributed as dist  # noqa: E402
from rank_cases import PATIENCE, WARN, Failing, Fault, Now, describe_error, heard, seen_of  # noqa: E402
from tiny_training import leave, tiny_trainer  # noqa: E402

from transformers import Trainer  # noqa: E402
from transformers.trainer_checkpoint.manifest import read_head  # noqa: E402
from transformers.trainer_checkpoint.verification import verify  # noqa: E402
from transformers.trainer_utils import get_last_checkpoint  # noqa: E402


def look(out: str) -> dict[str, Any]:
    """What this node finds in a run directory."""
    dist.barrier()
    found: dict[str, Any] = {"left": sorted(os.listdir(out)), "checkpoints": {}}
    for name in found["left"]:
        path = os.path.join(out, name)
        if name.startswith("checkpoint-"):
            head = read_head(path)
            found["checkpoints"][name] = {
                "files": sorted(os.listdir(path)),
                "problems": [str(problem) for problem in verify(path, level="full").problems],
                "part": None if head.part is None else [head.part.index, head.part.of, list(head.part.ranks)],
            }
    found["last"] = os.path.basename(get_last_checkpoint(out) or "")
    dist.barrier()
    return found


def train(out: str, cls: type[Trainer] = Trainer, resume: bool | None = None, **arguments: Any) -> dict[str, Any]:
    fault = arguments.pop("fault", None)
    trainer = tiny_trainer(out, cls=cls, dropout=0.2, callbacks=[Now()], **arguments)
    if fault is not None:
        trainer.fault = fault
    with heard() as lines:
        try:
            trainer.train(resume_from_checkpoint=resume)
            found = {**seen_of(trainer), "from": trainer._safe_checkpoints.resumed_from}
        except BaseException as error:
            found = describe_error(error)
    found["heard"] = [line for line in lines if line.startswith(("WARNING", "ERROR"))]
    found.update(look(out))
    return found


def remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("folder", "shared", "own"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    rank = int(os.environ["RANK"])
    found: dict[str, Any] = {}

    def run(name: str, disk: Path, out: str, **arguments: Any) -> None:
        started = time.monotonic()
        found[name] = train(str(disk / out), **arguments)
        print(f"{name}: {time.monotonic() - started:.1f} s", flush=True)

    shared, own = options.shared, options.own
    each = {"save_on_each_node": True}
    run("one-disk", shared, "one")
    if rank == 0:
        remove(str(shared / "one" / "checkpoint-6"))
    dist.barrier()
    run("one-disk-resumed", shared, "one", resume=True)
    run("one-disk-each-node-saves", shared, "each", **each)
    run("own-disks", own, "plain")
    run("own-disks-resumed", own, "plain", resume=True)
    run("own-disks-each-node-saves", own, "each", **each)
    # The newest is gone on the second node only, so the one before is the newest that is good on both.
    if rank == 1:
        remove(str(own / "each" / "checkpoint-6"))
    dist.barrier()
    run("own-disks-resumed-from-the-newest-on-both", own, "each", resume=True, **each)
    for failing in (0, 1):
        fault = Fault("_save_rng_state", failing)
        run(f"own-disks-failing-{failing}", own, f"failing-{failing}", cls=Failing, fault=fault, **each, **WARN)
    with open(options.folder / f"rank{rank}.json", "w", encoding="utf-8") as file:
        json.dump(found, file)
    leave()


if __name__ == "__main__":
    main()
