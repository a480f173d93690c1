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
"""Ranks that are killed or stopped in the middle of a save, and what the others then see and leave behind.

An elastic agent ends the survivors as soon as it misses one, so these are started without: this process imports
everything once and forks the ranks of each case.

    rank_losses.py --folder F [--cases NAME ...]

On disk afterwards: `F/<case>/` with the run directory `out`, `rank<r>.json` of each rank that got to writing it,
`rank<r>.log`, `ended.json`, how each rank ended, and `found.json`, what a reader then found; likewise `F/<case>/again/`
of the run that resumes.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock


sys.path.insert(0, str(Path(__file__).parent))

import torch.distributed as dist  # noqa: E402
from rank_cases import FAILS_AT, Now, describe_error, digest_tree, seen_of  # noqa: E402
from rank_launch import free_port  # noqa: E402
from tiny_training import leave, tiny_trainer  # noqa: E402

from transformers import Trainer  # noqa: E402
from transformers.trainer_checkpoint.board import StatusBoard  # noqa: E402
from transformers.trainer_checkpoint.trainer_glue import TrainerCheckpoints  # noqa: E402
from transformers.trainer_checkpoint.transaction import SaveTransaction  # noqa: E402
from transformers.trainer_checkpoint.verification import verify  # noqa: E402
from transformers.trainer_utils import get_last_checkpoint  # noqa: E402


# Seconds for which the ranks of one case may take before they are killed.
PATIENCE = 90
# Signs of life come and are missed faster than in a real training, so that a stopped rank is noticed in a test.
SILENCE, BEAT = 3.0, 0.5


def quicken(board: type[StatusBoard]) -> None:
    """Make every board of this process beat faster."""
    real = board.__init__

    def init(self: StatusBoard, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **{**kwargs, "silence": SILENCE, "beat_interval": BEAT})

    board.__init__ = init


def _entering(owner: type, name: str, matches: Callable[..., bool] = lambda *args: True) -> Callable:
    """The point at which `owner.name` is called, with arguments for which `matches`."""

    def point(act: Callable[[], None]) -> Any:
        real = getattr(owner, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if Now.step == FAILS_AT and matches(*args):
                act()
            return real(self, *args, **kwargs)

        return mock.patch.object(owner, name, call)

    return point


def _leaving(owner: type, name: str) -> Callable:
    """The point at which `owner.name` has done its work."""

    def point(act: Callable[[], None]) -> Any:
        real = getattr(owner, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = real(self, *args, **kwargs)
            if Now.step == FAILS_AT:
                act()
            return result

        return mock.patch.object(owner, name, call)

    return point


def _vote(topic: str) -> Callable:
    return _entering(SaveTransaction, "_vote", lambda name, *rest: name == topic)


# In the order of the protocol.
POINTS: dict[str, Callable] = {
    "opening": _vote("open"),
    "writing": _entering(Trainer, "_save_rng_state"),
    "before-the-first-vote": _vote("written"),
    "between-the-votes": _vote("flushed"),
    "before-the-barrier": _entering(StatusBoard, "barrier"),
    "before-the-publish": _leaving(StatusBoard, "barrier"),
    "after-the-publish": _vote("published"),
    "after-the-announcement": _entering(TrainerCheckpoints, "_finish"),
}


@dataclass(frozen=True)
class Loss:
    """A rank that is lost.

    Args:
        point (`str`):
            Where, one of `POINTS`.
        rank (`int`):
            Which one.
        number (`int`, *optional*, defaults to SIGKILL):
            The signal that it gets.
        world_size (`int`, *optional*, defaults to 2):
            Of how many.
        agent_store (`bool`, *optional*, defaults to `True`):
            The store belongs to another process, as under torchrun. Otherwise it goes with rank 0.
    """

    point: str
    rank: int
    number: int = signal.SIGKILL
    world_size: int = 2
    agent_store: bool = True

    @property
    def name(self) -> str:
        how = "killed" if self.number == signal.SIGKILL else "stopped"
        store = "" if self.agent_store else "-with-the-store"
        return f"{how}-{self.point}-{self.rank}-of-{self.world_size}{store}"


LOSSES = [
    *(Loss(point, rank) for point in POINTS for rank in (0, 1)),
    *(Loss(point, 0, agent_store=False) for point in ("writing", "before-the-publish")),
    *(Loss(point, rank, signal.SIGSTOP) for point in ("writing", "before-the-barrier") for rank in (0, 1)),
    *(Loss(point, 2, world_size=4) for point in ("writing", "before-the-barrier")),
]


def train(folder: Path, rank: int, loss: Loss | None, resume: bool) -> None:
    """What a rank does: train, and write down how that went."""
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        if loss is not None and rank == loss.rank:

            def lose() -> None:
                os.kill(os.getpid(), loss.number)

            stack.enter_context(POINTS[loss.point](lose))
        trainer = tiny_trainer(str(folder / "out" if not resume else folder.parent / "out"), dropout=0.2)
        trainer.add_callback(Now())
        try:
            trainer.train(resume_from_checkpoint=True if resume else None)
            found = seen_of(trainer)
        except BaseException as error:
            traceback.print_exc()
            found = describe_error(error)
    with open(folder / f"rank{rank}.json", "w", encoding="utf-8") as file:
        json.dump(found, file)


def rank_main(folder: Path, rank: int, world_size: int, port: int, agent_store: bool, work: Callable) -> None:
    """The life of a forked rank. Never returns."""
    code = 1
    try:
        log = os.open(folder / f"rank{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(world_size),
            LOCAL_WORLD_SIZE=str(world_size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TORCHELASTIC_USE_AGENT_STORE=str(agent_store),
        )
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if code:
            os._exit(code)
        # What torch takes down at the end of the interpreter may wait for a rank that is gone.
        if "error" in read(folder, rank):
            os._exit(0)
        leave()


def look(folder: Path) -> None:
    """Write down what a reader finds in the run directory, before anybody puts it in order."""
    out = str(folder / "out")
    names = [name for name in sorted(os.listdir(out)) if name.startswith("checkpoint-")]
    found = {
        "left": names,
        "problems": {name: [str(p) for p in verify(os.path.join(out, name), level="full").problems] for name in names},
        "first": digest_tree(os.path.join(out, "checkpoint-2")),
        "last": os.path.basename(get_last_checkpoint(out) or ""),
    }
    (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


def read(folder: Path, rank: int) -> dict[str, Any]:
    path = folder / f"rank{rank}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def run_ranks(folder: Path, world_size: int, agent_store: bool, work: Callable[[int], None]) -> None:
    """Fork the ranks, wait for them a bounded time, and write down how they ended: a status, or a negative signal."""
    folder.mkdir(parents=True, exist_ok=True)
    port, children = free_port(), {}
    server = (
        dist.TCPStore("127.0.0.1", port, world_size, is_master=True, wait_for_workers=False) if agent_store else None
    )
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            rank_main(folder, rank, world_size, port, agent_store, lambda rank=rank: work(rank))
        children[pid] = rank
    ended: dict[int, int | str] = {}
    deadline = time.monotonic() + PATIENCE
    while children:
        for pid in list(children):
            done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if done and os.WIFSTOPPED(status):
                ended[children.pop(pid)] = "stopped"
                stopped = pid
            elif done:
                ended[children.pop(pid)] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            for pid, rank in children.items():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                ended[rank] = "hung"
            children = {}
        time.sleep(0.02)
    if "stopped" in ended.values():
        os.kill(stopped, signal.SIGKILL)
        os.waitpid(stopped, 0)
    del server
    (folder / "ended.json").write_text(json.dumps(ended), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--cases", nargs="*")
    options = parser.parse_args()
    quicken(StatusBoard)
    for world_size in sorted({loss.world_size for loss in LOSSES}):
        run_ranks(
            options.folder / f"reference-{world_size}",
            world_size,
            True,
            lambda rank, n=world_size: train(options.folder / f"reference-{n}", rank, None, False),
        )
    for loss in LOSSES:
        if options.cases and loss.name not in options.cases:
            continue
        started = time.monotonic()
        folder = options.folder / loss.name
        run_ranks(folder, loss.world_size, loss.agent_store, lambda rank: train(folder, rank, loss, False))
        look(folder)
        middle = time.monotonic()
        run_ranks(folder / "again", loss.world_size, True, lambda rank: train(folder / "again", rank, None, True))
        print(f"{loss.name}: {middle - started:.1f} s, then {time.monotonic() - middle:.1f} s", flush=True)


if __name__ == "__main__":
    main()
