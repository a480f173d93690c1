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
"""Kill, or fail, each rank of a save in turn at each of its file operations. Two ranks or more, one process each.

    python rank_campaign.py kill                    SIGKILL
    python rank_campaign.py error --errors EIO      the operation fails
    python rank_campaign.py trainings --points 6    whole trainings under torchrun, killed and resumed

The ranks run the real protocol over a real store, without a training. What must hold, besides the rules of
`save_campaign.py`:

1. whoever is left raises one and the same error, which names the rank that was met, and nobody hangs;
2. after an error the same processes save the next step into the same run directory;
3. (trainings) the resumed training has the losses of one that was not disturbed, bit for bit.

Prints one JSON object.
"""

import argparse
import contextlib
import errno
import json
import multiprocessing
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import save_campaign
import torch.distributed as dist
from file_operations import FileOperations
from save_campaign import SCENARIOS, Campaign, Scenario, next_run
from save_driver import content, read_files, save

from transformers.trainer_checkpoint.board import StatusBoard
from transformers.trainer_checkpoint.discovery import newest_complete_checkpoint
from transformers.trainer_checkpoint.errors import CheckpointSaveError
from transformers.trainer_checkpoint.layout import SENTINEL_NAME, STAGING_DIR
from transformers.trainer_checkpoint.transaction import RunDirectory
from transformers.trainer_checkpoint.verification import verify
from transformers.utils import logging


# Seconds: the board's constants, made small, with room for a busy machine between the first two.
BEAT, SILENCE, PATIENCE = 0.2, 15.0, 40.0
# Seconds without an answer after which a rank counts as hanging. Above all that the protocol may take.
GIVE_UP = 120.0
# The scenarios that are worth a run per rank.
NAMES = ("first", "older", "not_durable", "same_step", "same_step_without_swap", "sealed_leftover", "in_place")
TRAINING = Path(__file__).with_name("tiny_training.py")
CONTEXT = multiprocessing.get_context("fork")


def of_rank(tag: str, step: int, rank: int, each: bool = False) -> dict[str, bytes]:
    """What one rank writes of a checkpoint: rank 0, or `each`, what is there once per disk, and its own random state."""
    whole = content(tag, step)
    state = whole.pop("rng_state.pth")
    return (whole if rank == 0 or each else {}) | {f"rng_state_{rank}.pth": state}


def of_all(tag: str, step: int, world_size: int) -> dict[str, bytes]:
    return {name: data for rank in range(world_size) for name, data in of_rank(tag, step, rank).items()}


# ---- One rank ----


class Operations(FileOperations):
    """The file operations of a process that makes several saves; armed for one of them at a time.

    Instead of a kill or an error there can be an action, which the operation then follows.
    """

    action: Callable[[], None] | None = None

    def arm(self, at: int | None, error: int | None, action: Callable[[], None] | None = None) -> None:
        self.seen, self.error, self.active, self.action = [], error, True, action
        self.at, self.action_at = (None, at) if action is not None else (at, None)

    def _hook(self, event: str, args: tuple) -> None:
        before = len(self.seen)
        super()._hook(event, args)
        if self.action is not None and before < len(self.seen) == self.action_at:
            self.action()


def meeting(store: dist.Store, world_size: int) -> Callable[[], None]:
    """A barrier that, like the real ones, knows nothing of dead ranks."""
    count = 0

    def barrier() -> None:
        nonlocal count
        count += 1
        store.add(f"meeting{count}", 1)
        while store.add(f"meeting{count}", 0) < world_size:
            time.sleep(0.002)

    return barrier


def rank_main(
    rank: int,
    world_size: int,
    port: int,
    prefix: str,
    pipe: Connection,
    host: str = "127.0.0.1",
    silence: float = SILENCE,
    actions: dict[str, Callable[[], None]] | None = None,
) -> None:
    """Make a board, then one save after the other as the pipe says, until it says `None`."""
    store = dist.PrefixStore(prefix, dist.TCPStore(host, port, is_master=False, wait_for_workers=False))
    barrier = meeting(store.clone(), world_size)
    board = StatusBoard(store.clone(), rank, world_size, barrier, PATIENCE, silence=silence, beat_interval=BEAT)
    operations: Operations | None = None
    run: RunDirectory | None = None
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        if operations is None:
            operations = Operations(order["root"])
        mine = order["rank"] == rank
        action = (actions or {}).get(order["action"]) if mine else None
        operations.arm(order["at"] if mine else None, order["error"], action)
        run = run or RunDirectory(order["run_dir"], board, durable=order["durable"])
        files = of_rank(order["tag"], order["step"], rank, order["each"])
        answer: dict[str, Any] = {"announced": False}
        with mock.patch.object(
            save_campaign.disk, "swap", save_campaign.disk.swap if order["swap"] else save_campaign.no_swap
        ):
            try:
                save(order["run_dir"], order["step"], files, run=run, in_place=order["in_place"])
                answer = {"announced": True}
            except CheckpointSaveError as error:
                answer |= {"raised": type(error).__name__, "text": str(error), "ranks": sorted(error.failures)}
                answer["unknown"] = error.outcome_unknown
            except Exception as error:
                answer |= {"raised": type(error).__name__, "text": str(error), "ranks": []}
        if order["last"]:
            run.close()
            run = None
        operations.active = False
        pipe.send(answer | {"operations": len(operations.seen)})
    board.close()
    os._exit(0)


def serve(pipe: Connection) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    pipe.recv()


# ---- All of them ----


class Hanging(Exception):
    pass


class World:
    """The ranks of one training. The store is served by a process of its own, as an elastic agent does it."""

    serial = 0

    def __init__(self, world_size: int, port: int):
        World.serial += 1
        self.pipes, self.processes = [], []
        for rank in range(world_size):
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(
                target=rank_main, args=(rank, world_size, port, str(World.serial), theirs), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        for rank in range(len(self.pipes)):
            if self.answer(rank) != "ready":
                raise SystemExit(f"rank {rank} has not started")

    def answer(self, rank: int) -> Any:
        """What a rank says next; `None` if it has died."""
        if not self.pipes[rank].poll(GIVE_UP):
            raise Hanging(f"rank {rank} has said nothing for {GIVE_UP:g} s")
        try:
            return self.pipes[rank].recv()
        except (EOFError, ConnectionResetError):
            return None

    def save(self, order: dict[str, Any]) -> list[dict[str, Any] | None]:
        for pipe in self.pipes:
            pipe.send(order)
        return [self.answer(rank) for rank in range(len(self.pipes))]

    def end(self) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(10.0)
            process.kill()
            process.join()


def denials(answers: list[dict[str, Any]], run_dir: str, new: dict[str, bytes]) -> list[str]:
    """Nobody says "not saved" of a checkpoint that is there."""
    path = os.path.join(run_dir, "checkpoint-20")
    if not os.path.isdir(path) or read_files(path) != new or os.path.exists(os.path.join(path, SENTINEL_NAME)):
        return []
    denied = [answer for answer in answers if not answer["announced"] and not answer.get("unknown")]
    return [f"it is published, and a rank says: {answer['text']}" for answer in denied]


class RankCampaign(Campaign):
    def __init__(self, root: str, world_size: int):
        super().__init__(root)
        self.world_size = world_size
        self.new = of_all("newer", 20, world_size)
        self.slowest = 0.0
        ours, theirs = CONTEXT.Pipe()
        self.server = CONTEXT.Process(target=serve, args=(theirs,), daemon=True)
        self.server.start()
        self.port = ours.recv()
        self.kept: World | None = None

    def world(self) -> World:
        return World(self.world_size, self.port)

    def order(self, scenario: Scenario, run_dir: str, **more: Any) -> dict[str, Any]:
        how = {"durable": scenario.durable, "in_place": scenario.in_place, "swap": scenario.swap}
        what = {"tag": "newer", "step": 20, "rank": None, "at": None, "error": None, "action": None}
        what |= {"last": True, "each": False}
        return {"root": self.root, "run_dir": run_dir} | how | what | more

    def look(self, scenario: Scenario, run_dir: str, announced: bool) -> list[str]:
        with mock.patch.object(save_campaign, "NEW", self.new):
            return save_campaign.look(scenario, run_dir, announced)

    def count_per_rank(self, scenario: Scenario, error: int | None) -> list[int]:
        world = self.world()
        run_dir = self.fresh(scenario)
        answers = world.save(self.order(scenario, run_dir, error=error))
        world.end()
        if not all(answer and answer["announced"] for answer in answers):
            raise SystemExit(f"the undisturbed save fails: {answers}")
        return [answer["operations"] for answer in answers]

    # ---- Kills ----

    def kill_rank(self, name: str, rank: int, at: int) -> None:
        scenario = SCENARIOS[name]
        run_dir = self.fresh(scenario)
        world = self.world()
        wrong = []
        announced = False
        try:
            started = time.monotonic()
            answers = world.save(self.order(scenario, run_dir, rank=rank, at=at))
            self.slowest = max(self.slowest, time.monotonic() - started)
            left = [answer for answer in answers if answer is not None]
            announced = any(answer["announced"] for answer in left)
            wrong += self.disagreements(left, rank) + denials(left, run_dir, self.new)
        except Hanging as hanging:
            wrong.append(str(hanging))
        world.end()
        wrong += self.look(scenario, run_dir, announced) + next_run(run_dir)
        self.violations += [f"{name}, rank {rank} killed at operation {at}: {text}" for text in wrong]

    @staticmethod
    def disagreements(answers: list[dict[str, Any]], rank: int) -> list[str]:
        """Whether those that are left say the same, and name the one that was met."""
        told = {(answer["announced"], answer.get("raised"), answer.get("text")) for answer in answers}
        if len(told) > 1:
            return [f"the ranks disagree: {told}"]
        raised = next((answer for answer in answers if not answer["announced"]), None)
        if raised is None:
            return []
        if raised["raised"] != "CheckpointSaveError":
            return [f"what is raised is {raised['raised']}: {raised['text']}"]
        return [] if raised["ranks"] == [rank] else [f"rank {rank} was met, and the error names {raised['ranks']}"]

    # ---- Errors ----

    def fail_rank(self, name: str, rank: int, at: int, error: int) -> None:
        scenario = SCENARIOS[name]
        run_dir = self.fresh(scenario)
        world = self.kept = self.kept or self.world()
        wrong = []
        try:
            started = time.monotonic()
            answers = world.save(self.order(scenario, run_dir, rank=rank, at=at, error=error, last=False))
            self.slowest = max(self.slowest, time.monotonic() - started)
            announced = all(answer and answer["announced"] for answer in answers)
            wrong += self.disagreements(answers, rank)
            if not announced and os.strerror(error) not in answers[0].get("text", ""):
                wrong.append(f"the error does not name its cause: {answers[0]}")
            wrong += self.look(scenario, run_dir, announced)
            answers = world.save(self.order(scenario, run_dir, tag="the next", step=30))
            if not all(answer and answer["announced"] for answer in answers):
                wrong.append(f"the next save of the same processes fails: {answers}")
            wrong += self.look_at_next(run_dir)
        except Hanging as hanging:
            wrong.append(str(hanging))
            world.end()
            self.kept = None
        self.violations += [
            f"{name}, {errno.errorcode[error]} on rank {rank} at operation {at}: {text}" for text in wrong
        ]

    def look_at_next(self, run_dir: str) -> list[str]:
        newest = newest_complete_checkpoint(run_dir)
        wrong = []
        if newest is None or read_files(newest) != of_all("the next", 30, self.world_size):
            wrong.append(f"the next save is not picked, {newest} is")
        if os.path.exists(os.path.join(run_dir, STAGING_DIR)):
            wrong.append(f"staging is left behind: {os.listdir(os.path.join(run_dir, STAGING_DIR))}")
        return wrong

    def close(self) -> None:
        if self.kept is not None:
            self.kept.end()
        self.server.kill()
        self.server.join()


def protocol(options: argparse.Namespace, root: str) -> dict[str, Any]:
    """The kinds `kill` and `error`."""
    campaign = RankCampaign(root, options.ranks)
    errors = [getattr(errno, name) for name in options.errors]
    points: Counter[str] = Counter()
    turn = 0
    for name in options.only:
        scenario = SCENARIOS[name]
        campaign.template(scenario)
        counts = campaign.count_per_rank(scenario, errors[0] if options.kind == "error" else None)
        for rank, count in enumerate(counts):
            for at in [options.at] if options.at else range(1, count + 1):
                for error in errors if options.kind == "error" else [None]:
                    turn += 1
                    if (options.rank not in (None, rank)) or not (options.at or turn % options.stride == 0):
                        continue
                    points[f"{name}, rank {rank}"] += 1
                    if error is None:
                        campaign.kill_rank(name, rank, at)
                    else:
                        campaign.fail_rank(name, rank, at, error)
    campaign.close()
    return {"points": points, "slowest_answer": round(campaign.slowest, 1), "violations": campaign.violations}


# ---- Whole trainings ----


class Trainings:
    """A training of 6 steps that saves every second one and keeps two, killed on one rank and resumed."""

    def __init__(self, root: str, world_size: int):
        self.root, self.world_size = root, world_size
        self.losses = os.path.join(root, "losses")

    def run(self, out: str, *arguments: str) -> tuple[int, list[int]]:
        """Exit code, and the steps that were announced."""
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc_per_node={self.world_size}",
        ]
        command += [str(TRAINING), "--output_dir", out, "--use_cpu", "True", "--max_steps", "6", "--save_steps", "2"]
        command += ["--save_total_limit", "2", "--logging_steps", "1", "--per_device_train_batch_size", "4"]
        command += ["--report_to", "none", "--disable_tqdm", "True", "--log_level", "info", "--dropout", "0.2"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=600)
        announced = re.findall(r"Checkpoint saved to \S*checkpoint-(\d+)", done.stdout + done.stderr)
        if done.returncode != 0 and "--kill" not in arguments:
            raise SystemExit(f"a training that was not disturbed fails: {done.stderr[-4000:]}")
        return done.returncode, [int(step) for step in announced]

    def undisturbed(self, rank: int) -> tuple[list[Any], int]:
        """The losses, and the number of file operations of a rank."""
        out, count = os.path.join(self.root, "out"), os.path.join(self.root, "count")
        shutil.rmtree(out, ignore_errors=True)
        self.run(out, "--losses", self.losses, "--count", count, "--kill_rank", str(rank))
        with open(count, encoding="utf-8") as file:
            return self.read_losses(), len(json.load(file))

    def read_losses(self) -> list[Any]:
        with open(self.losses, encoding="utf-8") as file:
            return json.load(file)

    def killed(self, rank: int, at: int, expected: list[Any]) -> list[str]:
        out = os.path.join(self.root, "out")
        shutil.rmtree(out, ignore_errors=True)
        code, announced = self.run(out, "--kill", str(at), "--kill_rank", str(rank))
        wrong = [] if code != 0 else ["the training was not killed"]
        newest = newest_complete_checkpoint(out) if os.path.isdir(out) else None
        step = int(newest.rpartition("-")[2]) if newest is not None else 0
        if announced and step < max(announced):
            wrong.append(f"checkpoint-{max(announced)} was announced and {newest} is picked")
        if newest is not None and verify(newest, level="full").problems:
            wrong.append(f"{newest} is picked and has {verify(newest, level='full').problems}")
        self.run(out, "--losses", self.losses, *(["--resume_from_checkpoint", "True"] if newest is not None else []))
        if self.read_losses() != expected:
            wrong.append(f"resumed from {newest}, the losses are {self.read_losses()}, not {expected}")
        left = [name for name in os.listdir(out) if name.startswith("_")]
        if left:
            wrong.append(f"left behind: {left}")
        return [f"rank {rank} killed at operation {at}: {text}" for text in wrong]


def trainings(options: argparse.Namespace, root: str) -> dict[str, Any]:
    """The kind `trainings`."""
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 30)
    chance = random.Random(seed)
    campaign = Trainings(root, options.ranks)
    ranks = [options.rank if options.rank is not None else number % options.ranks for number in range(options.points)]
    undisturbed = {rank: campaign.undisturbed(rank) for rank in sorted(set(ranks))}
    points: Counter[str] = Counter()
    violations = []
    if len({json.dumps(losses) for losses, _ in undisturbed.values()}) > 1:
        raise SystemExit("two trainings that were not disturbed have other losses")
    for rank in ranks:
        losses, count = undisturbed[rank]
        at = options.at or chance.randint(1, count)
        violations += [f"seed {seed}, {text}" for text in campaign.killed(rank, at, losses)]
        points[f"trainings, rank {rank}"] += 1
    return {"seed": seed, "points": points, "violations": violations}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["kill", "error", "trainings"])
    parser.add_argument("--ranks", type=int, default=2, help="how many processes")
    parser.add_argument("--only", nargs="*", choices=NAMES, default=list(NAMES), help="these scenarios")
    parser.add_argument("--rank", type=int, help="meet this rank only")
    parser.add_argument("--at", type=int, help="one operation")
    parser.add_argument("--stride", type=int, default=1, help="every n-th point only")
    parser.add_argument("--errors", nargs="*", default=["ENOSPC", "EIO", "EACCES", "EROFS"], help="names of errnos")
    parser.add_argument("--points", type=int, default=4, help="how many trainings to kill")
    parser.add_argument("--seed", type=int, default=None, help="of the choice of trainings' points")
    options = parser.parse_args()
    logging.set_verbosity(logging.CRITICAL)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as root:
        root = os.path.realpath(root)
        report = trainings(options, root) if options.kind == "trainings" else protocol(options, root)
    print(json.dumps({"kind": options.kind, "ranks": options.ranks} | report, indent=1))


if __name__ == "__main__":
    main()
