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
"""Ways to damage a checkpoint, and cases of resuming in a training of several processes.

As a module it gives the damages to the tests of one process. As a script, under torchrun, it trains once per schedule
and then goes through all of `CASES` with a fresh Trainer for each, so that hundreds of cases need one launch:

    resume_cases.py --folder F

On disk afterwards: `F/rank<r>.json`, what this rank saw of each case: the step resumed from, the losses, or the error.
"""

import argparse
import faulthandler
import json
import logging as python_logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock


sys.path.insert(0, str(Path(__file__).parent))

from tiny_training import leave, losses, tiny_trainer  # noqa: E402


# A run of 10 steps with 6 to an epoch that was stopped after its third checkpoint: 3 is in the middle of an epoch, 6
# at the end of one.
STEPS, LAST_STEP = (3, 6, 9), 10
RUN = {"max_steps": LAST_STEP, "save_steps": 3, "dropout": 0.3, "logging_steps": 1}
SCHEDULES = ("linear", "constant")
# Seconds after which a launch that hangs ends itself. It takes one minute on two idle cores.
PATIENCE = 1200
MANIFEST, FILE_LIST = "checkpoint-manifest.json", "checkpoint-files.1.json"


# ---- Damages ----


def _missing(path: str) -> None:
    os.unlink(path)


def _empty(path: str) -> None:
    os.truncate(path, 0)


def _truncated(path: str) -> None:
    os.truncate(path, os.path.getsize(path) * 2 // 3)


def _flipped(path: str) -> None:
    """One bit, in the middle of the file: in a weight, a moment, or a character."""
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x10]))


def _zeroed(path: str) -> None:
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.seek(size // 3)
        file.write(bytes(max(1, size // 3)))


DAMAGES: dict[str, Callable[[str], None]] = {
    "missing": _missing,
    "empty": _empty,
    "truncated": _truncated,
    "flipped": _flipped,
    "zeroed": _zeroed,
}


def remove_manifests(run_dir: str) -> None:
    """Make the checkpoints look like those of another version."""
    for name in os.listdir(run_dir):
        for file in (MANIFEST, FILE_LIST):
            os.unlink(os.path.join(run_dir, name, file))


def is_json(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            json.loads(file.read())
    except ValueError:
        return False
    return True


def interrupt(run_dir: str) -> None:
    """Make the finished run one that was stopped after the last of `STEPS`."""
    shutil.rmtree(os.path.join(run_dir, f"checkpoint-{LAST_STEP}"))


# ---- Cases for several processes ----


@dataclass
class Case:
    """One way to resume.

    Args:
        name (`str`):
            Unique.
        request (`Any`):
            `True`, or a path in the run directory. A function of the rank and the run directory for anything else.
        prepare (`Callable[[str], None]`, *optional*):
            Does something to the run directory, on rank 0.
        schedule (`str`, *optional*, defaults to `"linear"`):
            Which of the runs to go on with.
        manifests (`bool`, *optional*, defaults to `True`):
            Leave the manifests where they are.
        own_disk (`bool`, *optional*, defaults to `False`):
            Each rank gets a copy of the run directory, which `prepare` is then called for, with the rank.
        arguments (`dict[str, Any]`, *optional*):
            Training arguments.
        patches (`Callable[[int], list]`, *optional*):
            Patches to be active on a rank.
    """

    name: str
    request: Any = True
    prepare: Callable[..., None] | None = None
    schedule: str = "linear"
    manifests: bool = True
    own_disk: bool = False
    arguments: dict[str, Any] | None = None
    patches: Callable[[int], list] | None = None


def _damage(name: str, damage: str, step: int = 9) -> Callable[..., None]:
    def prepare(run_dir: str) -> None:
        DAMAGES[damage](os.path.join(run_dir, f"checkpoint-{step}", name))

    return prepare


def _all(*prepares: Callable[[str], None]) -> Callable[[str], None]:
    def prepare(run_dir: str) -> None:
        for one in prepares:
            one(run_dir)

    return prepare


# Without the two texts, whose cases are in the table of one process.
FILES = (
    "model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state_0.pth",
    "rng_state_1.pth",
    "trainer_state.json",
    "training_args.bin",
    FILE_LIST,
)


def _write_torch(name: str, step: int, content: Any) -> Callable[[str], None]:
    def prepare(run_dir: str) -> None:
        import torch

        torch.save(content, os.path.join(run_dir, f"checkpoint-{step}", name))

    return prepare


def _failing_loader(name: str, on_rank: int, steps: tuple[int, ...] = (9,), text: str = "no luck") -> Callable:
    """Patches that make a loader of the Trainer fail on one rank for the checkpoints of some steps."""

    def patches(rank: int) -> list:
        from transformers import Trainer
        from transformers.trainer_checkpoint import trainer_glue

        whole = getattr(Trainer, name).__wrapped__

        def load(self, path, *args, **kwargs):
            if rank == on_rank and int(str(path).rpartition("-")[2]) in steps:
                raise OSError(5, text, str(path))
            return whole(self, path, *args, **kwargs)

        load.__module__, load.__name__ = "transformers.trainer", name
        wrapped = trainer_glue._WRAPPERS[name](load)
        wrapped._checkpoint_wrapped = True
        return [mock.patch.object(Trainer, name, wrapped)]

    return patches


def _host_of_its_own(rank: int) -> list:
    """What a rank on another machine would say of itself."""
    return [mock.patch("transformers.trainer_checkpoint.board.host_name", lambda: f"host{rank}/1")]


def _no_store(rank: int) -> list:
    """As on XLA, or with SageMaker's model parallelism: the ranks can meet and not talk."""
    from transformers.trainer_checkpoint.board import StatusBoard

    return [mock.patch.object(StatusBoard, "of_process_group", lambda **kwargs: None)]


def _nothing_can_be_written(*ranks: int) -> Callable[[int], list]:
    """The disk is full, or read-only, or over a quota: reading goes on."""
    from transformers.trainer_checkpoint import disk_groups

    def write(token: Any) -> None:
        token.problem = "No space left on device"

    return lambda rank: [mock.patch.object(disk_groups._Token, "write", write)] if rank in ranks else []


def _killed_before_the_publish(run_dir: str, rank: int = 0) -> None:
    """Have 9 be sealed and not published."""
    from transformers.trainer_checkpoint import owner

    pid = os.fork()
    if pid == 0:
        owner.claim(run_dir, durable=False)
        os.rename(os.path.join(run_dir, "checkpoint-9"), os.path.join(run_dir, "_staging", "checkpoint-9"))
        os._exit(0)
    os.waitpid(pid, 0)


def _reads_slowly(rank: int) -> list:
    """Rank 1 takes twelve seconds to verify what was left in staging, as if its disk were as slow as is waited for."""
    from transformers.trainer_checkpoint import disk, verification

    def verify(path: str, *args: Any, **kwargs: Any) -> Any:
        if rank == 1 and "_staging" in path:
            time.sleep(12.0)
        return real(path, *args, **kwargs)

    real = verification.verify
    return [mock.patch.object(verification, "verify", verify), mock.patch.object(disk, "SLOWEST_READ", 1e3)]


def _only_on(rank: int, change: Callable[[str], None]) -> Callable[[str, int], None]:
    def prepare(run_dir: str, on: int) -> None:
        if on == rank:
            change(run_dir)

    return prepare


def _link_and_name(rank: int, run_dir: str) -> str:
    """The same checkpoint, by two names."""
    if rank == 0:
        return os.path.join(run_dir, "checkpoint-6")
    link = os.path.join(run_dir, "link-to-it")
    if not os.path.islink(link):
        os.symlink("checkpoint-6", link)
    return link


def _no_file(name: str, *steps: int) -> Callable[[str], None]:
    return _all(*(_damage(name, "missing", step) for step in steps))


def _record_best(step: int, path: str) -> Callable[[str], None]:
    """Have the state of the newest checkpoint record a best one; without manifests, so that nobody minds."""

    def prepare(run_dir: str) -> None:
        file = os.path.join(run_dir, "checkpoint-9", "trainer_state.json")
        with open(file, encoding="utf-8") as opened:
            state = json.load(opened)
        state.update(best_global_step=step, best_model_checkpoint=path, best_metric=1.0)
        with open(file, "w", encoding="utf-8") as opened:
            json.dump(state, opened)

    return prepare


def _cases() -> Iterator[Case]:
    for schedule in SCHEDULES:
        yield Case(f"newest-{schedule}", schedule=schedule)
        yield Case(
            f"fallback-epoch-end-{schedule}", prepare=_damage("model.safetensors", "flipped"), schedule=schedule
        )
        yield Case(
            f"fallback-mid-epoch-{schedule}",
            prepare=_all(_damage("optimizer.pt", "truncated"), _damage("rng_state_1.pth", "missing", 6)),
            schedule=schedule,
        )
    for file in FILES:
        for damage in DAMAGES:
            yield Case(f"true-{file}-{damage}", prepare=_damage(file, damage))
            yield Case(f"path-{file}-{damage}", request="checkpoint-9", prepare=_damage(file, damage))
    yield Case(
        "all-damaged",
        prepare=_all(
            _damage("model.safetensors", "empty"),
            _damage("rng_state_0.pth", "missing", 6),
            _damage("trainer_state.json", "truncated", 3),
        ),
    )
    yield Case("none", request=None)
    yield Case("not-there", request="checkpoint-7")
    yield Case(
        "different-paths", request=lambda rank, run_dir: os.path.join(run_dir, f"checkpoint-{3 if rank else 6}")
    )
    yield Case("different-kinds", request=lambda rank, run_dir: None if rank else True)
    yield Case("two-names", request=_link_and_name)
    yield Case("bad-type", request=lambda rank, run_dir: 5)

    # Without manifests: what cannot be loaded is set aside by all, whichever rank it failed on.
    for rank in (0, 1):
        for loader in ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler"):
            patches = _failing_loader(loader, rank)
            yield Case(f"unverified-{loader}-fails-on-{rank}", manifests=False, patches=patches)
            yield Case(f"verified-{loader}-fails-on-{rank}", patches=patches)
        patches = _failing_loader("_load_rng_state", rank)
        yield Case(f"random-state-fails-on-{rank}", manifests=False, patches=patches)
    yield Case(
        "path-fails-to-load",
        request="checkpoint-9",
        manifests=False,
        patches=_failing_loader("_load_optimizer_and_scheduler", 1),
    )
    yield Case(
        "fails-twice", manifests=False, patches=_failing_loader("_load_optimizer_and_scheduler", 1, steps=(9, 6))
    )
    yield Case(
        "unverified-optimizer-of-another-model",
        manifests=False,
        prepare=_write_torch("optimizer.pt", 9, {"state": {}, "param_groups": []}),
    )
    yield Case("unverified-no-optimizer", manifests=False, prepare=_no_file("optimizer.pt", 9))
    yield Case("unverified-no-random-state", manifests=False, prepare=_no_file("rng_state_1.pth", 9))
    yield Case("path-no-scheduler", request="checkpoint-9", manifests=False, prepare=_no_file("scheduler.pt", 9))

    # Each rank with a disk of its own.
    yield Case("own-disks", own_disk=True)
    yield Case("own-disks-one-damaged", own_disk=True, prepare=_only_on(1, _damage("model.safetensors", "flipped")))
    yield Case(
        "own-disks-one-lacks-it",
        own_disk=True,
        prepare=_only_on(1, lambda run_dir: shutil.rmtree(os.path.join(run_dir, "checkpoint-9"))),
    )
    yield Case(
        "own-disks-path-damaged-on-one",
        own_disk=True,
        request="checkpoint-9",
        prepare=_only_on(1, _damage("optimizer.pt", "missing")),
    )
    yield Case("sealed", prepare=_killed_before_the_publish)
    yield Case("sealed-path", request="checkpoint-9", prepare=_killed_before_the_publish)
    yield Case(
        "sealed-and-slow",
        own_disk=True,
        prepare=_killed_before_the_publish,
        patches=_reads_slowly,
        arguments={"save_patience": 5.0},
    )
    yield Case("best-is-gone", manifests=False, prepare=_record_best(2, "/gone/checkpoint-2"))
    yield Case("best-has-moved", manifests=False, prepare=_record_best(3, "/gone/checkpoint-3"))
    yield Case(
        "best-is-on-one-disk",
        manifests=False,
        own_disk=True,
        prepare=lambda run_dir, rank: (
            _record_best(3, "/gone/checkpoint-3")(run_dir),
            rank == 1 and shutil.rmtree(os.path.join(run_dir, "checkpoint-3")),
        ),
    )
    yield Case("finished", arguments={"max_steps": 9})

    yield Case("full-disk", patches=_nothing_can_be_written(0, 1))
    yield Case("full-disk-path", request="checkpoint-9", patches=_nothing_can_be_written(0, 1))
    limit = {"load_best_model_at_end": True, "save_total_limit": 1, "metric_for_best_model": "loss", "max_steps": 9}
    limit |= {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 3}
    yield Case("full-disk-finished", arguments=limit, patches=_nothing_can_be_written(0, 1))
    yield Case("own-disks-one-full", own_disk=True, patches=_nothing_can_be_written(1))

    # Each rank decides alone, and all look at one disk.
    yield Case("no-store", patches=_no_store)
    yield Case("no-store-fallback", prepare=_damage("model.safetensors", "flipped"), patches=_no_store)
    yield Case(
        "no-store-all-damaged",
        prepare=_all(*(_damage("optimizer.pt", "empty", step) for step in STEPS)),
        patches=_no_store,
    )
    yield Case("no-store-path", request="checkpoint-9", prepare=_damage("optimizer.pt", "missing"), patches=_no_store)
    saving = {"save_strategy": "steps", "save_steps": LAST_STEP}
    yield Case("no-store-saves", arguments=saving, patches=_no_store)


CASES: dict[str, Case] = {case.name: case for case in _cases()}


# ---- The script ----


class _Heard(python_logging.Handler):
    def __init__(self) -> None:
        super().__init__(python_logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: python_logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def run_case(case: Case, folder: str, rank: int) -> dict[str, Any]:
    """Resume as the case says. Called by all ranks, which meet before and after; what this rank saw."""
    import torch
    import torch.distributed as dist

    from transformers.trainer_checkpoint import verify_checkpoint

    run_dir = os.path.join(folder, "case", case.name + (f"-{rank}" if case.own_disk else ""))
    if rank == 0 or case.own_disk:
        shutil.copytree(os.path.join(folder, case.schedule), run_dir)
        if not case.manifests:
            remove_manifests(run_dir)
        if case.prepare is not None:
            case.prepare(run_dir, rank) if case.own_disk else case.prepare(run_dir)
    dist.barrier()
    request = case.request
    request = request(rank, run_dir) if callable(request) else request
    if isinstance(request, str):
        request = os.path.join(run_dir, request)
    heard, seen = _Heard(), {}
    logger = python_logging.getLogger("transformers")
    logger.addHandler(heard)
    torch.manual_seed(99 + rank)
    before = os.getcwd()
    try:
        patches = (case.patches(rank) if case.patches else []) + (_host_of_its_own(rank) if case.own_disk else [])
        for patch in patches:
            patch.start()
        if case.own_disk:
            # What two machines with a disk each look like: one relative name for both.
            os.chdir(run_dir)
            request = os.path.relpath(request) if isinstance(request, str) else request
        output_dir = "." if case.own_disk else run_dir
        arguments = {**RUN, "lr_scheduler_type": case.schedule, "save_strategy": "no", **(case.arguments or {})}
        trainer = tiny_trainer(output_dir, size=48, **arguments)
        first = []
        trainer.log = lambda logs, *args, whole=trainer.log, **kwargs: (
            first.append(trainer.state.global_step) if "loss" in logs else None,
            whole(logs, *args, **kwargs),
        )[1]
        trainer.train(resume_from_checkpoint=request)
        seen["losses"] = losses(trainer)
        seen["first"] = first[0] if first else None
        seen["best"] = trainer.state.best_model_checkpoint
        seen["step"] = trainer.state.global_step
        seen["weights"] = float(sum(p.detach().double().abs().sum() for p in trainer.model.parameters()))
    except BaseException as error:
        seen["error"] = [cls.__name__ for cls in type(error).__mro__]
        seen["text"] = str(error)
        seen["notes"] = getattr(error, "__notes__", [])
    finally:
        mock.patch.stopall()
        os.chdir(before)
        logger.removeHandler(heard)
    seen["heard"] = heard.texts
    dist.barrier()
    seen["left"] = sorted(os.listdir(run_dir)) if os.path.isdir(run_dir) else []
    newest = os.path.join(run_dir, f"checkpoint-{LAST_STEP}")
    seen["saved"] = verify_checkpoint(newest).verdict if os.path.isdir(newest) else None
    dist.barrier()
    if rank == 0 or case.own_disk:
        shutil.rmtree(run_dir)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    # torchrun's processes outlive whoever started it: nothing that hangs may stay.
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    seen: dict[str, Any] = {}
    rank = int(os.environ["RANK"])
    for schedule in SCHEDULES:
        run_dir = os.path.join(options.folder, schedule)
        trainer = tiny_trainer(run_dir, size=48, **RUN, lr_scheduler_type=schedule)
        trainer.train()
        seen[f"reference-{schedule}"] = {"losses": losses(trainer)}
        if rank == 0:
            interrupt(run_dir)
    for case in CASES.values():
        if options.only in case.name:
            seen[case.name] = run_case(case, options.folder, rank)
    with open(os.path.join(options.folder, f"rank{rank}.json"), "w", encoding="utf-8") as file:
        json.dump(seen, file)
    leave()


if __name__ == "__main__":
    main()
