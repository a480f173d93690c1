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
"""Cases of saving on several processes that share one launch. Under torchrun:

    rank_cases.py --folder F [--cases NAME ...]

trains once for reference and then goes through the cases with a fresh Trainer and a run directory `F/<case>` for each.
Runs save at steps 2, 4 and 6; what goes wrong goes wrong at step 4. On disk afterwards: `F/rank<r>.json`, what this
rank saw of each case.
"""

import argparse
import contextlib
import faulthandler
import hashlib
import json
import logging as python_logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock


sys.path.insert(0, str(Path(__file__).parent))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from save_driver import torch_like  # noqa: E402
from tiny_training import leave, losses, tiny_trainer  # noqa: E402

from transformers import Trainer, TrainerCallback, TrainerState  # noqa: E402
from transformers.trainer_callback import CallbackHandler, ExportableState  # noqa: E402
from transformers.trainer_checkpoint import disk, publishing, trainer_glue, transaction  # noqa: E402
from transformers.trainer_checkpoint.rotation import Sweeper  # noqa: E402
from transformers.trainer_checkpoint.transaction import RunDirectory, SaveTransaction  # noqa: E402
from transformers.trainer_utils import HPSearchBackend  # noqa: E402
from transformers.utils import logging  # noqa: E402


# Seconds after which a launch that hangs shows where and ends itself.
PATIENCE = 480
FAILS_AT = 4
SPACE = "No space left on device"


# ---- What a rank sees ----


def digest_tree(path: str) -> dict[str, str]:
    """Relative path to digest of every file below `path`."""
    found = {}
    for parent, _, names in os.walk(path):
        for name in names:
            file = os.path.join(parent, name)
            with open(file, "rb") as stream:
                found[os.path.relpath(file, path)] = hashlib.sha256(stream.read()).hexdigest()
    return found


def weights(trainer: Trainer) -> str:
    digest = hashlib.sha256()
    for _, value in sorted(trainer.accelerator.unwrap_model(trainer.model).state_dict().items()):
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def describe_error(error: BaseException) -> dict[str, Any]:
    chain, link = [], error
    while link is not None and len(chain) < 8:
        chain.append(f"{type(link).__name__}: {link}")
        link = link.__cause__ or link.__context__
    return {
        "error": [kind.__name__ for kind in type(error).__mro__],
        "text": str(error),
        "chain": chain,
        "failures": {str(rank): cause for rank, cause in getattr(error, "failures", {}).items()},
        "unknown": getattr(error, "outcome_unknown", None),
    }


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """What the library logs on this rank, at any level."""
    lines: list[str] = []
    handler = python_logging.Handler()
    handler.emit = lambda record: lines.append(f"{record.levelname} {record.getMessage()}")
    logger = logging.get_logger("transformers")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


class Watch:
    """What this process renames below a run directory, through the audit hook, and other moments of a save."""

    def __init__(self) -> None:
        self.root: str | None = None
        # Moments by the clock that all processes of the machine share.
        self.renamed: list[tuple[float, str, str]] = []
        self.moments: list[tuple[float, str, int]] = []
        sys.addaudithook(self._hook)

    def note(self, what: str, step: int) -> None:
        self.moments.append((time.monotonic(), what, step))

    def _hook(self, event: str, args: tuple) -> None:
        if self.root is not None and event == "os.rename" and str(args[0]).startswith(self.root):
            self.renamed.append((time.monotonic(), *(os.path.relpath(path, self.root) for path in args[:2])))


# ---- Ways to fail ----


class Failing(Trainer):
    """Fails at step 4 in `self.fault.writer`, on `self.fault.rank`."""

    fault: "Fault"

    def _fail_in(self, writer: str) -> None:
        fault = self.fault
        if fault.writer == writer and fault.rank == self.args.process_index and self.state.global_step == FAILS_AT:
            raise fault.error()

    def _save_checkpoint(self, model, trial):
        self._fail_in("before super")
        super()._save_checkpoint(model, trial)
        self._fail_in("after super")

    def _save(self, output_dir=None, state_dict=None):
        self._fail_in("_save")
        super()._save(output_dir, state_dict)

    def _save_optimizer_and_scheduler(self, output_dir):
        self._fail_in("_save_optimizer_and_scheduler")
        super()._save_optimizer_and_scheduler(output_dir)

    def _save_scaler(self, output_dir):
        self._fail_in("_save_scaler")
        super()._save_scaler(output_dir)

    def _save_rng_state(self, output_dir):
        self._fail_in("_save_rng_state")
        super()._save_rng_state(output_dir)


class NoBackup(BaseException):
    """An error that is no `Exception`, as torch's own is."""


class FailingCallback(TrainerCallback, ExportableState):
    """Cannot tell its state at step 4."""

    def __init__(self):
        self.now = False

    def on_step_end(self, args, state, control, **kwargs):
        self.now = state.global_step == FAILS_AT

    def state(self):
        if self.now:
            raise KeyError("a callback without a state")
        return {"args": {}, "attributes": {}}


def space() -> OSError:
    return OSError(28, SPACE)


@dataclass
class Fault:
    """Where a save goes wrong.

    Args:
        writer (`str`):
            Name of a writer, a point in the protocol, or a file that `torch.save` refuses.
        rank (`int`):
            On which rank.
        error (`Callable[[], BaseException]`, *optional*):
            What is raised.
    """

    writer: str
    rank: int
    error: Callable[[], BaseException] = space

    def patches(self, rank: int) -> list[Any]:
        if rank != self.rank:
            return []
        if self.writer.endswith((".pt", ".pth", ".bin")):
            return [mock.patch.object(torch, "save", _refusing(torch.save, self))]
        if self.writer == "trainer state":
            return [mock.patch.object(TrainerState, "save_to_json", self._at_step(TrainerState.save_to_json))]
        if self.writer == "path":
            return [mock.patch.object(disk, "make_directories", self._for_step(disk.make_directories))]
        points = {
            "open": (RunDirectory, "prepare"),
            "look": (SaveTransaction, "_names"),
            "flush": (SaveTransaction, "_flush"),
            "seal": (transaction, "write_manifest"),
            "publish": (publishing, "publish"),
        }
        if self.writer not in points:
            return []
        where, name = points[self.writer]
        return [mock.patch.object(where, name, self._at_step(getattr(where, name)))]

    def _for_step(self, real: Callable) -> Callable:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if os.path.basename(path) == f"checkpoint-{FAILS_AT}":
                raise self.error()
            return real(path, *args, **kwargs)

        return call

    def _at_step(self, real: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            if Now.step == FAILS_AT:
                raise self.error()
            return real(*args, **kwargs)

        return call


def _refusing(real: Callable, fault: Fault) -> Callable:
    def save(value: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        if os.path.basename(str(path)) == fault.writer and Now.step == FAILS_AT:
            raise OSError(28, SPACE, str(path))
        return real(value, path, *args, **kwargs)

    return save


class Now(TrainerCallback):
    """The step that the training is at, for patches that know of no Trainer."""

    step = 0

    def on_step_begin(self, args, state, control, **kwargs):
        Now.step = state.global_step + 1


# ---- Cases ----


@dataclass
class Case:
    """One thing to go through on all ranks.

    Args:
        run (`Callable[[Context], dict]`):
            Does it. Gives what this rank saw.
        ranks (`tuple[int, ...]`, *optional*):
            The world sizes it is meant for; all without.
        fault (`Fault`, *optional*):
            What goes wrong.
        arguments (`dict[str, Any]`, *optional*):
            Training arguments.
    """

    run: Callable[["Context"], dict[str, Any]]
    ranks: tuple[int, ...] = ()
    fault: Fault | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class Context:
    """Where a case runs."""

    out: str
    rank: int
    world_size: int
    case: Case
    watch: Watch

    def trainer(self, out: str | None = None, cls: type[Trainer] = Trainer, **arguments: Any) -> Trainer:
        callbacks = [Now(), *arguments.pop("callbacks", [])]
        defaults = {"log_level": "info", "log_level_replica": "info"}
        merged = {**defaults, **self.case.arguments, **arguments}
        return tiny_trainer(out or self.out, cls=cls, dropout=0.2, callbacks=callbacks, **merged)


def seen_of(trainer: Trainer) -> dict[str, Any]:
    return {"losses": losses(trainer), "weights": weights(trainer), "step": trainer.state.global_step}


def run_reference(context: Context) -> dict[str, Any]:
    watch, folders = context.watch, []

    class Noting(Trainer):
        def _save_checkpoint(self, model, trial):
            super()._save_checkpoint(model, trial)
            folders.append(os.path.relpath(self._get_output_dir(trial), context.out))
            watch.note("written", self.state.global_step)

    def wait_for_everyone(self: Accelerator) -> None:
        real(self)
        watch.note("met", Now.step)

    real = Accelerator.wait_for_everyone
    watch.root = context.out
    with heard() as lines, mock.patch.object(Accelerator, "wait_for_everyone", wait_for_everyone):
        trainer = context.trainer(cls=Noting)
        trainer.train()
    watch.root = None
    found = {"renamed": watch.renamed, "moments": watch.moments, "heard": lines, "folders": folders}
    return {**seen_of(trainer), **found, "flos": trainer.state.total_flos}


def run_fault(context: Context) -> dict[str, Any]:
    """Fail at step 4. With `on_save_error="raise"` the run is then resumed, for one writer of each kind."""
    fault = context.case.fault
    found: dict[str, Any] = {}
    callbacks = [FailingCallback()] if fault.writer == "callback" else []
    trainer = context.trainer(cls=Failing, callbacks=callbacks)
    trainer.fault = fault
    with contextlib.ExitStack() as stack, heard() as lines:
        for patch in fault.patches(context.rank):
            stack.enter_context(patch)
        try:
            trainer.train()
            found.update(seen_of(trainer))
        except BaseException as error:
            found.update(describe_error(error))
    found["heard"] = [line for line in lines if not line.startswith("DEBUG")]
    dist.barrier()
    found["left"] = sorted(os.listdir(context.out))
    found["first"] = digest_tree(os.path.join(context.out, "checkpoint-2"))
    dist.barrier()
    if "error" in found and fault.writer in RESUMED:
        again = context.trainer()
        again.train(resume_from_checkpoint=True)
        found["again"] = seen_of(again)
    return found


def run_slow(context: Context) -> dict[str, Any]:
    """One rank takes its time. Gives what it sees at the end of it."""
    seen: list[list[str]] = []
    slow = context.case.fault

    class Slow(Trainer):
        def _save_rng_state(self, output_dir):
            super()._save_rng_state(output_dir)
            if self.args.process_index == slow.rank and self.state.global_step == FAILS_AT:
                time.sleep(2.5)
                seen.append(sorted(os.listdir(context.out)))

    trainer = context.trainer(cls=Slow)
    trainer.train()
    return {**seen_of(trainer), "seen": seen}


def run_standing_still(context: Context) -> dict[str, Any]:
    """One rank is stopped in the middle of its writing, until the others have taken it for lost."""
    stopped = context.case.fault.rank

    class Stopped(Trainer):
        def _save_checkpoint(self, model, trial):
            if self.state.global_step == FAILS_AT:
                board = self._safe_checkpoints.ranks()
                board._silence = board._client.silence = 5.0
                board._interval = board._client.beat_interval = 0.25
            super()._save_checkpoint(model, trial)

        def _save_rng_state(self, output_dir):
            super()._save_rng_state(output_dir)
            if self.args.process_index == stopped and self.state.global_step == FAILS_AT:
                subprocess.Popen(["sh", "-c", f"sleep 13; kill -CONT {os.getpid()}"])
                os.kill(os.getpid(), signal.SIGSTOP)

    trainer = context.trainer(cls=Stopped)
    try:
        trainer.train()
        found: dict[str, Any] = seen_of(trainer)
    except Exception as error:
        found = describe_error(error)
    dist.barrier()
    found["left"] = sorted(os.listdir(context.out))
    dist.barrier()
    again = context.trainer()
    again.train(resume_from_checkpoint=True)
    return {**found, "again": seen_of(again)}


def run_losing(context: Context) -> dict[str, Any]:
    """A rank's own file disappears: after its writer, or after the first vote (`fault.writer`)."""
    fault = context.case.fault
    found: dict[str, Any] = {}

    def lose(directory: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, f"rng_state_{fault.rank}.pth"))

    class Losing(Trainer):
        def _save_checkpoint(self, model, trial):
            super()._save_checkpoint(model, trial)
            if fault.writer == "after the writer" and self.state.global_step == FAILS_AT:
                if self.args.process_index == fault.rank:
                    lose(os.path.join(self._get_output_dir(trial), f"checkpoint-{FAILS_AT}"))

    real = SaveTransaction._flush

    def flush(self: SaveTransaction) -> Any:
        if self.step == FAILS_AT and self.ranks.rank == 0:
            lose(self.writing)
        return real(self)

    patch = mock.patch.object(SaveTransaction, "_flush", flush)
    with patch if fault.writer == "after the vote" else contextlib.nullcontext():
        try:
            context.trainer(cls=Losing).train()
        except BaseException as error:
            found.update(describe_error(error))
    dist.barrier()
    found["left"] = sorted(os.listdir(context.out))
    return found


def run_twice(context: Context) -> dict[str, Any]:
    """Two trainings in one process, with a failed save in the first."""
    first = context.trainer(cls=Failing)
    first.fault = Fault("_save_rng_state", 1)
    found: dict[str, Any] = {}
    try:
        first.train()
    except BaseException as error:
        found = describe_error(error)
    second = context.trainer()
    second.train()
    third = context.trainer(max_steps=8)
    third.train(resume_from_checkpoint=True)
    return {**found, **seen_of(second), "third": third.state.global_step, "left": sorted(os.listdir(context.out))}


def run_watched(context: Context) -> dict[str, Any]:
    """A limit of one, and a metric that is best at step 2, on rank 0's word."""

    class Watching(Trainer):
        def evaluate(self, *args, **kwargs):
            metrics = {"eval_loss": float(self.state.global_step)}
            self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
            return metrics

    trainer = context.trainer(cls=Watching)
    trainer.train()
    return {**seen_of(trainer), "best": trainer.state.best_model_checkpoint, "left": sorted(os.listdir(context.out))}


def run_callbacks(context: Context) -> dict[str, Any]:
    """Every rank adds files to each checkpoint, one after the other, as a recipe that asks for no rank does."""

    class Adding(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            time.sleep(0.3 * context.rank)
            path = Path(args.output_dir, f"checkpoint-{state.global_step}")
            own = path / f"ema_rank{context.rank}"
            own.mkdir()
            torch.save({"rank": context.rank}, own / "optimizer.pt")
            torch.save({"rank": context.rank}, path / "extra_state.pt")

    trainer = context.trainer(callbacks=[Adding()])
    trainer.train()
    return seen_of(trainer)


def run_callbacks_at_once(context: Context) -> dict[str, Any]:
    """Every rank writes into each checkpoint at the same time, as a recipe that asks for no rank does.

    The last rank begins while the publisher is still at what follows the publish, with a file that is in the manifest,
    and is the last to be done. What it writes is not whole for a while, and goes through files of passing names.
    """
    last = context.world_size - 1

    class Writing(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            path = Path(args.output_dir, f"checkpoint-{state.global_step}")
            save_file({"adapter": torch.zeros(100_000)}, path / "adapter_model.safetensors")
            if context.rank != last:
                return
            weights = load_file(path / "model.safetensors")
            save_file(weights, path / "model.safetensors", metadata={"format": "pt", "rank": str(last)})
            data = torch_like("written last")
            with open(path / "extra_state.pt", "wb") as file:
                file.write(data[: len(data) // 2])
                file.flush()
                end = time.monotonic() + 1.5
                while time.monotonic() < end:
                    save_file({"adapter": torch.zeros(100_000)}, path / "adapter_model.safetensors")
                file.write(data[len(data) // 2 :])

    def sweep(sweeper: Sweeper, run_dir: str) -> None:
        time.sleep(0.5)
        real(sweeper, run_dir)

    real = Sweeper.sweep
    impatient = context.case.fault is not None
    patience = 0.1 if impatient else trainer_glue.CALLBACKS_PATIENCE
    with (
        heard() as lines,
        mock.patch.object(Sweeper, "sweep", sweep),
        mock.patch.object(trainer_glue, "CALLBACKS_PATIENCE", patience),
    ):
        trainer = context.trainer(callbacks=[Writing()])
        trainer.train()
    return {**seen_of(trainer), "heard": [line for line in lines if line.startswith(("WARNING", "ERROR"))]}


def run_callbacks_on_one_rank(context: Context) -> dict[str, Any]:
    """A Trainer that has `on_save` called on rank 0 only."""

    class Adding(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            torch.save({}, Path(args.output_dir, f"checkpoint-{state.global_step}", "extra_state.pt"))

    class OnRank0(CallbackHandler):
        def on_save(self, args, state, control):
            control.should_save = False
            return super().on_save(args, state, control) if context.rank == 0 else control

    with mock.patch.object(trainer_glue, "CALLBACKS_PATIENCE", 0.5):
        trainer = context.trainer(callbacks=[Adding()])
        trainer.callback_handler.__class__ = OnRank0
        trainer.train()
    return seen_of(trainer)


def run_trials(context: Context) -> dict[str, Any]:
    """Two trials of a hyperparameter search, one of them with a failed save that is only warned of."""
    trainer = context.trainer(cls=Failing)
    trainer.hp_search_backend, trainer.hp_name = HPSearchBackend.OPTUNA, None
    trainer.hp_space = lambda trial: trial.params
    trainer.model_init = None
    found = {}
    # What reads a trial's parameters wants an object of the search library.
    mock.patch("transformers.integrations.hp_params", lambda trial: trial.params).start()
    for number in (0, 1):
        trainer.fault = Fault("_save_rng_state" if number == 0 else "nothing", 1)
        trainer.train(trial=SimpleNamespace(number=number, params={"learning_rate": 0.01 * (number + 1)}))
        found[f"run-{number}"] = sorted(os.listdir(os.path.join(context.out, f"run-{number}")))
    return {**found, "left": sorted(os.listdir(context.out))}


def run_smaller_batch(context: Context) -> dict[str, Any]:
    """Out of memory on every rank in the third step, so that the Trainer starts again with a smaller batch."""
    sizes: list[int] = []

    class Hungry(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            sizes.append(len(inputs["input_ids"]))
            if sizes[-1] == 4 and self.state.global_step == 3:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return super().training_step(model, inputs, num_items_in_batch)

    trainer = context.trainer(cls=Hungry)
    trainer.train()
    return {**seen_of(trainer), "sizes": sorted(set(sizes)), "left": sorted(os.listdir(context.out))}


def run_quoting_memory(context: Context) -> dict[str, Any]:
    """A writer runs out of memory on one rank. No rank may take that for a batch that is too large."""
    starts: list[int] = []

    class Counting(Failing):
        def _inner_training_loop(self, *args, **kwargs):
            starts.append(1)
            return super()._inner_training_loop(*args, **kwargs)

    trainer = context.trainer(cls=Counting)
    trainer.fault = context.case.fault
    try:
        trainer.train()
    except BaseException as error:
        return {**describe_error(error), "starts": len(starts)}
    return {"starts": len(starts)}


def run_old_answers(context: Context) -> dict[str, Any]:
    """One rank's file system answers as it did when the run began: what other ranks have made since is not there.

    As on a network mount, a directory that this rank tried to make itself is known from then on, and what opens a file
    goes to the server.
    """
    tried: set[str] = set()
    real_mkdir, real_stat, real_listdir = os.mkdir, os.stat, os.listdir
    real = {name: getattr(os.path, name) for name in ("exists", "isdir", "isfile", "lexists")}

    def hidden(path: Any) -> bool:
        if not isinstance(path, (str, os.PathLike)) or not os.path.abspath(path).startswith(context.out + os.sep):
            return False
        path = os.path.abspath(path)
        if context.rank == 0:
            return os.path.basename(path).startswith("rng_state_") and not path.endswith("_0.pth")
        return path not in tried and os.path.basename(path) != f"rng_state_{context.rank}.pth"

    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        tried.add(os.path.abspath(path))
        real_mkdir(path, *args, **kwargs)

    def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if hidden(path):
            raise FileNotFoundError(2, "No such file or directory", path)
        return real_stat(path, *args, **kwargs)

    def listdir(path: Any = ".") -> list[str]:
        return [name for name in real_listdir(path) if not hidden(os.path.join(path, name))]

    patches = [mock.patch("os.mkdir", mkdir), mock.patch("os.stat", stat), mock.patch("os.listdir", listdir)]
    patches += [
        mock.patch(f"os.path.{name}", lambda path, ask=ask: not hidden(path) and ask(path))
        for name, ask in real.items()
    ]
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        for patch in patches if context.case.fault.rank == context.rank else ():
            stack.enter_context(patch)
        trainer = context.trainer()
        try:
            trainer.train()
            found = seen_of(trainer)
        except BaseException as error:
            found = describe_error(error)
    dist.barrier()
    return {**found, "left": sorted(os.listdir(context.out))}


def run_last(context: Context) -> dict[str, Any]:
    """The last save of a run fails, and `on_save_error="warn"` does not cover that."""
    trainer = context.trainer(cls=Failing, max_steps=FAILS_AT)
    trainer.fault = context.case.fault
    try:
        trainer.train()
    except BaseException as error:
        return describe_error(error)
    return seen_of(trainer)


def run_limit(context: Context) -> dict[str, Any]:
    """A limit of one checkpoint, and the save after the first fails: that one is not deleted."""
    trainer = context.trainer(cls=Failing, save_total_limit=1)
    trainer.fault = context.case.fault
    left: list[list[str]] = []

    class Looking(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == FAILS_AT + 1 and args.process_index == 0:
                left.append(sorted(os.listdir(context.out)))

    trainer.add_callback(Looking())
    trainer.train()
    return {**seen_of(trainer), "left": sorted(os.listdir(context.out)), "between": left}


# Writers that work on every rank, and those that only rank 0 has: with the part of its name that the error shows.
EVERYWHERE = {
    "before super": "saving",
    "after super": "saving",
    "_save": "_save",
    "_save_optimizer_and_scheduler": "_save_optimizer_and_scheduler",
    "_save_scaler": "_save_scaler",
    "_save_rng_state": "_save_rng_state",
    "path": "making the directory to write into",
    "look": "looking at what was written",
    "flush": "flushing",
}
RANK_0 = {
    "training_args.bin": "_save",
    "optimizer.pt": "_save_optimizer_and_scheduler",
    "scheduler.pt": "_save_optimizer_and_scheduler",
    "trainer state": "trainer state",
    "callback": "saving",
    "open": "preparing the run directory",
    "seal": "sealing",
    "publish": "publishing",
}
# After a failure in these the run is resumed in the same processes.
RESUMED = ("before super", "_save_rng_state", "open", "publish")
WARN = {"on_save_error": "warn"}


def fault_cases(world_size: int) -> dict[str, Case]:
    """Every writer on each rank in turn, raised and warned of; with four processes on the first and the last."""
    cases = {}
    last = world_size - 1
    for writer in [*EVERYWHERE, *RANK_0]:
        ranks = (0,) if writer in RANK_0 else tuple(sorted({0, last}))
        if world_size > 2 and writer not in ("before super", "_save_rng_state", "optimizer.pt", "publish"):
            continue
        for rank in ranks:
            cases[f"raise-{writer}-{rank}"] = Case(run_fault, fault=Fault(writer, rank))
            cases[f"warn-{writer}-{rank}"] = Case(run_fault, fault=Fault(writer, rank), arguments=WARN)
    return cases


def all_cases(world_size: int) -> dict[str, Case]:
    last = world_size - 1
    cases = {"reference": Case(run_reference)}
    if world_size == 1:
        return cases
    cases.update(fault_cases(world_size))
    for rank in (0, last):
        cases[f"slow-{rank}"] = Case(run_slow, fault=Fault("slow", rank))
        cases[f"stands-still-{rank}"] = Case(run_standing_still, fault=Fault("stopped", rank))
        cases[f"loses-its-file-{rank}"] = Case(run_losing, fault=Fault("after the writer", rank))
        cases[f"loses-its-file-after-the-vote-{rank}"] = Case(run_losing, fault=Fault("after the vote", rank))
        cases[f"old-answers-{rank}"] = Case(run_old_answers, fault=Fault("old", rank))
    if world_size > 2:
        return cases
    for rank in (0, last):
        fault = Fault("_save_rng_state", rank, lambda: NoBackup("nothing that inherits from Exception"))
        cases[f"raise-no-exception-{rank}"] = Case(run_fault, fault=fault)
        memory = Fault("_save_rng_state", rank, lambda: RuntimeError("CUDA out of memory. Tried to allocate 1 GiB"))
        cases[f"quotes-memory-{rank}"] = Case(
            run_quoting_memory, fault=memory, arguments={"auto_find_batch_size": True}
        )
        cases[f"last-{rank}"] = Case(run_last, fault=Fault("_save_rng_state", rank), arguments=WARN)
        cases[f"limit-{rank}"] = Case(run_limit, fault=Fault("_save_rng_state", rank), arguments=WARN)
    cases["twice"] = Case(run_twice)
    cases["at-once-impatient"] = Case(run_callbacks_at_once, fault=Fault("waits no time", 0))
    cases["on-one-rank"] = Case(run_callbacks_on_one_rank)
    for durability in ("full", "process"):
        # What the end seals shows best where nothing else is saved after it.
        cases[f"callbacks-{durability}"] = Case(run_callbacks, arguments={"save_durability": durability})
        cases[f"at-once-{durability}"] = Case(run_callbacks_at_once, arguments={"save_durability": durability})
    watched = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss", "save_total_limit": 1}
    cases["watched"] = Case(run_watched, arguments=watched)
    cases["best-only"] = Case(run_watched, arguments=watched | {"load_best_model_at_end": True})
    cases["trials"] = Case(run_trials, arguments=WARN)
    cases["smaller-batch"] = Case(run_smaller_batch, arguments={"auto_find_batch_size": True})
    return cases


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--cases", nargs="*")
    options = parser.parse_args()
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    watch = Watch()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    found = {}
    for name, case in all_cases(world_size).items():
        if options.cases and name not in options.cases:
            continue
        out = str(options.folder / name)
        started = time.monotonic()
        found[name] = case.run(Context(out, rank, world_size, case, watch))
        if world_size > 1:
            dist.barrier()
        print(f"{name}: {time.monotonic() - started:.2f} s", flush=True)
    with open(options.folder / f"rank{rank}.json", "w", encoding="utf-8") as file:
        json.dump(found, file)
    leave()


if __name__ == "__main__":
    main()
