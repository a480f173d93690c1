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
"""Train, kill and resume at random, for a number of minutes, and look at everything after each time.

    python soak.py --ranks 2 --minutes 10
    python soak.py --ranks 4 --cycles 20 --seed 7      the same choices again

A cycle is a training of all ranks that goes on from what the last one left, and something that happens to it: a rank is
killed at a file operation or at a step, all are killed at once, a file operation fails, or nothing. Trainings save
often and rotate. What must hold after each cycle:

1. the newest complete checkpoint is not older than the last one announced, and every complete one verifies;
2. what rotation keeps is there (the newest ones, and the one resumed from), and not more than one that it had not come
   to;
3. every loss that was logged is that of the training nobody disturbed, bit for bit;
4. after an error in a save every rank has raised the same `CheckpointSaveError`, after one while resuming each rank has
   raised one of its own, and after nothing all have come to the end and left nothing behind.

The first line on standard error is the seed. Prints one JSON object.
"""

import argparse
import contextlib
import errno
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from multiprocessing import connection
from typing import Any

import torch
from rank_campaign import CONTEXT, Operations, serve
from tiny_training import tiny_trainer

from transformers import TrainerCallback
from transformers.trainer_checkpoint.discovery import find_checkpoints, newest_complete_checkpoint
from transformers.trainer_checkpoint.verification import verify
from transformers.utils import logging


STEPS = 20
# File operations of a rank up to which something may happen: some saves with their rotation.
OPERATIONS = 400
# Seconds for a training of some steps, after which it hangs.
GIVE_UP = 600.0
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)


@dataclass
class Cycle:
    """What happens to a training: `kind` to rank `rank`, at its operation or its step `at`."""

    kind: str
    rank: int
    at: int
    error: int | None = None


class Telling(TrainerCallback):
    """Tells the parent what is announced and what is logged, and dies at the start of a step."""

    def __init__(self, pipe: Any, die_at: int | None):
        self.pipe, self.die_at = pipe, die_at

    def on_train_begin(self, args, state, control, **kwargs):
        self.pipe.send(("begins", state.global_step))

    def on_step_begin(self, args, state, control, **kwargs):
        if self.die_at is not None and state.global_step >= self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_save(self, args, state, control, **kwargs):
        self.pipe.send(("saved", state.global_step))

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None and "loss" in logs:
            self.pipe.send(("loss", state.global_step, logs["loss"]))


def rank_main(
    rank: int,
    world_size: int,
    port: int,
    out: str,
    arguments: dict[str, Any],
    cycle: Cycle,
    pipe: Any,
    log: str,
) -> None:
    """One rank of one training, as an elastic agent starts it."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    with open(log, "a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    mine = cycle.rank == rank
    die_at = cycle.at if mine and cycle.kind == "kill at a step" else None
    try:
        trainer = tiny_trainer(out, dropout=0.2, callbacks=[Telling(pipe, die_at)], **arguments)
        if mine and cycle.kind in ("kill", "kill all", "error"):

            def call_for_death() -> None:
                pipe.send(("kill all",))
                signal.pause()

            operations = Operations(out)
            operations.arm(cycle.at, cycle.error, call_for_death if cycle.kind == "kill all" else None)
        newest = newest_complete_checkpoint(out) if os.path.isdir(out) else None
        trainer.train(resume_from_checkpoint=None if newest is None else True)
        pipe.send(("end",))
    except BaseException as error:
        traceback.print_exc()
        with contextlib.suppress(OSError):
            pipe.send(("raised", type(error).__name__, str(error)))
        os._exit(1)
    os._exit(0)


class Soak:
    def __init__(self, root: str, world_size: int, seed: int):
        self.root, self.world_size, self.chance = root, world_size, random.Random(seed)
        self.violations: list[str] = []
        self.done: Counter[str] = Counter()
        self.saved = 0
        self.log = os.path.join(root, "log")
        self.new_run()

    def new_run(self) -> None:
        """An empty run directory and other arguments."""
        self.out = os.path.join(self.root, "out")
        shutil.rmtree(self.out, ignore_errors=True)
        # The last step announced; what lies on the disk; what the running training has resumed from.
        self.announced: int | None = None
        self.kept: set[int] = set()
        self.resumed: int | None = None
        self.limit = self.chance.randint(1, 3)
        self.arguments = {
            "max_steps": STEPS,
            "save_steps": self.chance.randint(1, 4),
            "save_total_limit": self.limit,
            "size": 16 * self.world_size,
        }

    def draw(self) -> Cycle:
        kind = self.chance.choice(["kill", "kill", "kill", "kill all", "kill at a step", "error", "nothing"])
        rank = self.chance.randrange(self.world_size)
        # Ranks that are no publisher do little on the disk.
        most = STEPS if kind == "kill at a step" else OPERATIONS if rank == 0 else OPERATIONS // 8
        error = self.chance.choice(ERRORS)
        return Cycle(kind, rank, self.chance.randint(1, most), error if kind == "error" else None)

    # ---- One training ----

    def train(self, out: str, cycle: Cycle) -> tuple[list[list[tuple]], list[int | None]]:
        """What each rank told, and its exit code; `None` if it had to be stopped after another one died."""
        pipes, processes = [], []
        # An agent serves a new store for each attempt.
        server_pipe, theirs = CONTEXT.Pipe()
        server = CONTEXT.Process(target=serve, args=(theirs,), daemon=True)
        server.start()
        port = server_pipe.recv()
        for rank in range(self.world_size):
            ours, theirs = CONTEXT.Pipe(duplex=False)
            arguments = (rank, self.world_size, port, out, self.arguments, cycle, theirs, self.log)
            process = CONTEXT.Process(target=rank_main, args=arguments, daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        told: list[list[tuple]] = [[] for _ in pipes]
        deadline = time.monotonic() + GIVE_UP
        left = dict(enumerate(pipes))
        stopped: set[int] = set()
        while left and time.monotonic() < deadline:
            ready = connection.wait(list(left.values()), timeout=1.0)
            for rank in [rank for rank, pipe in left.items() if pipe in ready]:
                try:
                    told[rank].append(left[rank].recv())
                except (EOFError, OSError):
                    del left[rank]
            met = any(process.exitcode not in (None, 0, 1) for process in processes)
            if ("kill all",) in told[cycle.rank] or met:
                # The agent stops the others as soon as it sees a dead one.
                stopped |= {rank for rank, process in enumerate(processes) if process.exitcode is None}
                for process in processes:
                    process.kill()
        if left:
            self.violations.append(f"{cycle}: rank(s) {sorted(left)} hang")
        codes: list[int | None] = []
        for rank, process in enumerate(processes):
            process.join(5.0)
            if process.exitcode is None:
                process.kill()
                process.join()
            codes.append(None if rank in stopped else process.exitcode)
        server.kill()
        server.join()
        return told, codes

    def reference(self) -> dict[int, float]:
        """The losses of a training that nobody disturbs."""
        told, codes = self.train(os.path.join(self.root, "reference"), Cycle("nothing", 0, 0))
        if any(codes):
            with open(self.log, encoding="utf-8") as file:
                raise SystemExit(f"the undisturbed training fails: {file.read()[-4000:]}")
        return {entry[1]: entry[2] for entry in told[0] if entry[0] == "loss"}

    def cycle(self, expected: dict[int, float]) -> None:
        cycle = self.draw()
        open(self.log, "w", encoding="utf-8").close()
        told, codes = self.train(self.out, cycle)
        self.done[cycle.kind] += 1
        wrong = self.wrong_start(told[0])
        saved = [entry[1] for entry in told[0] if entry[0] == "saved"]
        for step in saved:
            self.kept, self.announced = self.rotated(step), step
        self.saved += len(saved)
        wrong += self.wrong_disk(cycle, codes) + self.wrong_losses(told[0], expected) + self.wrong_ends(told, codes)
        if wrong:
            with open(self.log, encoding="utf-8") as file:
                print(f"{cycle}\n{wrong}\n{file.read()[-8000:]}", file=sys.stderr)
        number = sum(self.done.values())
        self.violations += [f"cycle {number}, {asdict(cycle)}, {self.arguments}: {text}" for text in wrong]
        if all(code == 0 for code in codes):
            self.new_run()

    # ---- The model ----

    def wrong_start(self, told: list[tuple]) -> list[str]:
        """Where the training began: not before what was there, and later if the start published what was left sealed."""
        begun = next((entry[1] for entry in told if entry[0] == "begins"), None)
        newest = max(self.kept, default=0)
        if begun is None:
            self.resumed = newest or None
            return []
        self.resumed = begun or None
        if begun > newest:
            self.kept = self.kept | {begun}
        return [] if begun >= newest else [f"it was resumed from step {begun}, and there was {newest}"]

    def rotated(self, new: int) -> set[int]:
        """What is kept once `new` is published: the newest, the one resumed from, and others up to the limit."""
        there = self.kept | {new}
        chosen = {max(there)} | ({self.resumed} & there)
        for step in sorted(there, reverse=True):
            if len(chosen) < self.limit:
                chosen.add(step)
        return chosen

    def wrong_disk(self, cycle: Cycle, codes: list[int | None]) -> list[str]:
        wrong = []
        found = find_checkpoints(self.out) if os.path.isdir(self.out) else []
        complete = [entry for entry in found if entry.complete]
        for entry in complete:
            result = verify(entry.path, level="full")
            if result.problems or entry.head is None or entry.head.world_size != self.world_size:
                wrong.append(f"{entry.name} counts as complete: {result.problems or entry.head}")
        wrong += [f"{entry.name} is not complete: {entry.problem}" for entry in found if not entry.complete]
        steps = [entry.step for entry in complete]
        if self.announced is not None and (not steps or steps[-1] < self.announced):
            wrong.append(f"checkpoint-{self.announced} was announced, and there are {steps}")
        # One that was published and not announced any more may have been rotated for already.
        for step in steps:
            if self.announced is None or step > self.announced:
                self.kept = self.rotated(step)
        if not self.kept <= set(steps):
            wrong.append(f"{sorted(self.kept - set(steps))} are gone, and there are {steps}")
        most = max(self.limit, 1 if self.resumed is None else 2)
        if len(steps) > most + 1:
            wrong.append(f"rotation keeps {most}, and there are {steps}")
        self.kept = set(steps)
        ours: tuple[str, ...] = ("_staging", "_trash", "_disk-") if any(code != 0 for code in codes) else ()
        if cycle.kind == "error":
            # What could not be deleted is tried again after the next save, and that may have been the last one.
            ours = (*ours, "_trash")
        names = os.listdir(self.out) if os.path.isdir(self.out) else []
        strange = [name for name in names if not name.startswith(("checkpoint-", *ours))]
        if strange:
            wrong.append(f"left behind: {strange}")
        return wrong

    @staticmethod
    def wrong_losses(told: list[tuple], expected: dict[int, float]) -> list[str]:
        return [
            f"the loss of step {entry[1]} is {entry[2]!r}, not {expected[entry[1]]!r}"
            for entry in told
            if entry[0] == "loss" and entry[2] != expected[entry[1]]
        ]

    @staticmethod
    def wrong_ends(told: list[list[tuple]], codes: list[int | None]) -> list[str]:
        if any(code not in (0, 1) for code in codes):
            return []
        raised = {entry[1:] for entries in told for entry in entries if entry[0] == "raised"}
        if raised and 0 in codes:
            return [f"the ranks end with {codes} and raise {raised}"]
        if len(raised) > 1 and any(kind == "CheckpointSaveError" for kind, _ in raised):
            return [f"the ranks do not raise the same: {raised}"]
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--minutes", type=float, help="start no cycle after so many")
    parser.add_argument("--cycles", type=int, help="that many cycles")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    if options.minutes is None and options.cycles is None:
        parser.error("say --minutes or --cycles")
    logging.set_verbosity_warning()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as root:
        soak = Soak(os.path.realpath(root), options.ranks, seed)
        expected = soak.reference()
        started = time.monotonic()
        while (options.cycles is None or sum(soak.done.values()) < options.cycles) and (
            options.minutes is None or time.monotonic() - started < 60 * options.minutes
        ):
            soak.cycle(expected)
    report = {"ranks": options.ranks, "seed": seed, "cycles": soak.done, "saved": soak.saved}
    print(json.dumps(report | {"violations": soak.violations}, indent=1))


if __name__ == "__main__":
    main()
