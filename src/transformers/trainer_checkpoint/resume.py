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
"""Resuming: which checkpoint a training goes on from, and that all ranks load it whole or raise.

Nothing here commits anything: the one thing that may change on disk is that a dead save is put in order first
(`publishing.settle`), by the publisher of each disk and only in the run directory itself.

The parts, in the order in which a training comes past them. All are called by all ranks:

1. `choose_checkpoint`, before anything is loaded. `True` looks from the newest checkpoint to the oldest, a path is
   that one or an error. What was found is exchanged, so that every rank resumes from the same step or raises.
2. `keep_load_error`, around each loader: a rank whose loading fails stays in step with the others.
3. `after_loading`, before the first step: all ranks tell how loading went.
4. `load_random_state`, in the first epoch: the last thing to be loaded, with a vote of its own.

| what is wrong | `True` | a path |
| --- | --- | --- |
| a file is damaged or gone that loading reads | passed over, with the reason | an error that names the file |
| a file is gone that loading does not read | passed over for a whole one | a warning |
| no optimizer or scheduler state, and the run saves it | passed over | an error |
| none, and the manifest says it never was inside, or `save_only_model=True` | a warning | a warning |
| no random state, no gradient scaler state, another number of processes | a warning | a warning |
| loading fails before the first step, digests verified | the error, unchanged | the error, unchanged |
| loading fails before the first step, otherwise | set aside, the next older one is tried | the error, unchanged |
| loading the random state fails in the first epoch | the error, with the next older path | the same |

`resume_verify="off"` looks at no file but `trainer_state.json`, and what is missing is then a warning at most.
"""

import contextlib
import dataclasses
import inspect
import os
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ..utils import is_sagemaker_mp_enabled, logging
from . import disk
from .discovery import Found, find_checkpoints, is_text, look_at, look_closely
from .disk_groups import DiskGroups
from .errors import CheckpointOwnedError, CheckpointResumeError, ManifestError, RankLostError
from .layout import TRAINER_STATE_NAME, checkpoint_name, rank_in, step_of
from .manifest import Head, draw_nonce, known_algorithm, read_head
from .ranks import Ranks
from .structure import state_inside
from .transaction import FOREIGN_COLLECTIVE_GRACE, FOREIGN_FILE_PATIENCE, describe
from .verification import bytes_to_read, verify


if TYPE_CHECKING:
    from ..trainer import Trainer
    from ..trainer_callback import TrainerState
    from .trainer_glue import TrainerCheckpoints


logger = logging.get_logger(__name__)

# How many problems of one checkpoint a message names.
MOST_PROBLEMS = 5

# These are never kept: whoever sent them wants the process to stop.
_STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)

_RNG = re.compile(r"^rng_state_(\d+)\.pth$")
_XLA_OPTIMIZER = re.compile(r"^rank\d+-of-(\d+)-optimizer\.pt$")
# Text that resuming does read, and a file beside it that it does not.
_READ_TEXT = ("adapter_config.json",)
_UNREAD = ("training_args.bin",)


# ---- Choosing ----


def choose_checkpoint(checkpoints: "TrainerCheckpoints", request: Any, trial: Any) -> str | None:
    """The checkpoint to resume from, verified, or `None` for a training from the start. Called by all ranks.

    On disk afterwards: with `True`, or a path inside the run directory, no leftover of a dead save; a sealed one is
    published. Otherwise nothing changes.

    Args:
        checkpoints (`TrainerCheckpoints`):
            The Trainer's checkpoints.
        request (`bool`, `str` or `os.PathLike`, *optional*):
            What the user gave as `resume_from_checkpoint`.
        trial (`optuna.Trial` or `dict[str, Any]`, *optional*):
            The trial of a hyperparameter search.

    Raises:
        [`CheckpointResumeError`]: the same on every rank; it is a `ValueError`.
        [`CheckpointOwnedError`]: another process that is alive saves into the run directory. The same on every rank.
    """
    checkpoints.loading = None
    checkpoints.resumed_from = None
    chosen = _Resume(checkpoints, trial).choose(request)
    if chosen is None:
        return None
    checkpoints.loading = chosen
    checkpoints.resumed_from = chosen.path
    return chosen.path


class _Resume:
    """One choice. Every method is called by all ranks unless it says otherwise."""

    def __init__(self, checkpoints: "TrainerCheckpoints", trial: Any):
        self.checkpoints = checkpoints
        self.trainer: Trainer = checkpoints.trainer
        self.ranks: Ranks = checkpoints.ranks()
        self.run_dir = os.fspath(self.trainer._get_output_dir(trial))
        self.level: str = self.trainer.args.resume_verify
        self.first = self.ranks.rank == 0
        # Ranks that cannot talk each decide alone what rank 0 decides for the others.
        self.decides = self.first or not self.ranks.connected
        self.hosts: list[str] = []
        # The lowest rank of each host on each disk looks at the files.
        self.leaders: list[int] = []
        self.groups: DiskGroups | None = None

    def choose(self, request: Any) -> "Loading | None":
        self.ranks.begin()
        requests = self.exchange("request", {**_describe_request(request), "host": self.ranks.host})
        self.hosts = [reply["host"] for reply in requests]
        self.leaders = _first_of_each([(reply["host"], reply["real"]) for reply in requests])
        self._compare(requests)
        if requests[0]["kind"] == "none":
            if self.first:
                _warn_of_rejected(self.run_dir)
            return None
        if requests[0]["kind"] == "newest":
            search = _Search(self)
            search.prepare()
            return Loading(self, *search.next(), search)
        return self._given(os.fspath(request))

    # ---- Talking ----

    def exchange(self, topic: str, payload: dict[str, Any], patience: float | None = None) -> list[dict[str, Any]]:
        try:
            return self.ranks.exchange(f"resume {topic}", payload, patience)
        except RankLostError as lost:
            self._lost(lost)

    def broadcast(self, topic: str, payload: Any = None) -> Any:
        try:
            return self.ranks.broadcast(f"resume {topic}", payload)
        except RankLostError as lost:
            self._lost(lost)

    def _lost(self, lost: RankLostError) -> NoReturn:
        first = self.ranks.first_error()
        cause = f"; rank {first[0]} failed: {first[1]}" if first is not None else ""
        raise CheckpointResumeError(f"No checkpoint was resumed from: {lost}{cause}.") from lost

    # ---- What was asked for ----

    def _compare(self, requests: Sequence[dict[str, Any]]) -> None:
        for reply in requests:
            if reply["kind"] == "other":
                raise CheckpointResumeError(
                    f"`resume_from_checkpoint` is {reply['given']}. It has to be `True`, the path of a checkpoint, or "
                    "`None`."
                )
        first = requests[0]
        for reply in requests[1:]:
            same = reply["kind"] == first["kind"]
            if same and first["kind"] == "path" and reply["real"] != first["real"]:
                # On another host one disk may be mounted elsewhere, and links may lead elsewhere.
                same = reply["host"] != first["host"] and reply["given"] == first["given"]
            if not same:
                told = "; ".join(f"rank {rank}: {_shown(reply)}" for rank, reply in enumerate(requests[:8]))
                raise CheckpointResumeError(
                    f"The ranks were given different things to resume from: {told}. Every process has to call "
                    "`train` with the same `resume_from_checkpoint`, in the same working directory."
                )

    def _given(self, path: str) -> "Loading":
        """The checkpoint at `path`, or an error."""
        here = os.path.realpath(self.run_dir) == os.path.dirname(os.path.realpath(path))
        seen = self.exchange("place", {"problem": _why_no_checkpoint(path), "here": here})
        if all(reply["here"] for reply in seen):
            # A dead save may have left exactly this one, sealed.
            self.put_in_order()
            if self.broadcast("place on rank 0", _why_no_checkpoint(path) if self.decides else None) is None:
                self.wait_for(path)
            seen = self.exchange("place again", {"problem": _why_no_checkpoint(path)})
        problems = {reply["problem"]: rank for rank, reply in reversed(list(enumerate(seen))) if reply["problem"]}
        if problems:
            whole = len(problems) == 1 and all(reply["problem"] for reply in seen)
            told = (problem if whole else f"rank {rank}: {problem}" for problem, rank in problems.items())
            raise CheckpointResumeError(f"Can't find a valid checkpoint at {path}: {'; '.join(told)}.")

        size = self.broadcast("size", _size(path) if self.decides else None)
        report = self.examine(path, size, "given")
        if report.needed:
            beside = self.broadcast("beside", _newest_beside(path) if self.decides else None)
            raise CheckpointResumeError(
                f"Can't find a valid checkpoint at {path}: {report.text()}. {_way_out(report, beside)}"
            )
        if report.problems and self.first:
            logger.warning(f"{path}: {report.text()}. Resuming does not read that, and goes on.")
        self.announce(path, report)
        return Loading(self, path, report, None)

    def put_in_order(self) -> None:
        """Publish or remove what a dead save left in the run directory. The publisher of each disk does it."""
        run = self.checkpoints.run_directory(self.run_dir)
        try:
            groups = run.find_groups()
        except RankLostError as lost:
            self._lost(lost)
        reply: dict[str, Any] = {}
        if run.is_publisher():
            try:
                run.prepare(draw_nonce())
            except CheckpointOwnedError as error:
                reply["owned"] = [error.run_dir, error.owner]
            except OSError as error:
                # Resuming itself needs no write; a save that does will say so.
                logger.warning(
                    f"{self.run_dir} could not be put in order ({describe(error)}). A checkpoint that an interrupted "
                    "save left there to be published is not used."
                )
        for told in self.exchange("in order", reply):
            if "owned" in told:
                raise CheckpointOwnedError(*told["owned"])
        self.groups = groups
        # A rank that cannot write there counts as one without a disk, and may still be able to read.
        self.leaders = _first_of_each([(host, groups.group_of(rank)) for rank, host in enumerate(self.hosts)])

    def wait_for(self, path: str) -> None:
        """On another host what rank 0's host has just published may be invisible for a while."""
        groups = self.groups  # found when the run directory is put in order
        foreign = self.hosts[self.ranks.rank] != self.hosts[0]
        if groups is not None and foreign and 0 in groups.group_of(self.ranks.rank):
            wait_until_visible(os.path.join(path, TRAINER_STATE_NAME))

    # ---- Looking ----

    def examine(self, path: str, size: int, topic: str) -> "_Report":
        """What speaks for and against the checkpoint at `path`, on all disks. The same answer on every rank.

        Args:
            path (`str`):
                The checkpoint, as this rank names it.
            size (`int`):
                Its size in bytes as rank 0 sees it: how long the others wait for a verification depends on it.
            topic (`str`):
                Not used before.
        """
        try:
            looks = self.ranks.rank in self.leaders or not self.ranks.connected
            reply = self._look(path) if looks else _Look()
        except OSError as error:
            reply = _Look(problems=[["", f"cannot be looked at ({error.strerror or error})"]])
        else:
            reply.parse_state(path)
        patience = max(self.trainer.args.save_patience, size / disk.SLOWEST_READ)
        replies = [_Look(**told) for told in self.exchange(topic, dataclasses.asdict(reply), patience)]
        return _Report(self, replies, reply.state)

    def _look(self, path: str) -> "_Look":
        """The files, as the leader of a host sees them. One rank calls it. Raises `OSError`."""
        look = _Look()
        head: Head | None = None
        if self.level == "off":
            with contextlib.suppress(ManifestError, OSError):
                head = read_head(path)
        else:
            show = self.first and not self.trainer.args.disable_tqdm
            result = verify(path, level=self.level, show_progress=show)
            head = result.head
            look.problems = [[problem.file, problem.reason] for problem in result.problems]
            look.notes = list(result.notes)
            look.verified = self.level == "full" and head is not None and known_algorithm(head)
            look.size, look.files = result.size, result.files
        names = os.listdir(path)
        inside = set(state_inside(path))
        if head is not None:
            look.nonce, look.world_size = head.nonce, head.world_size
            if head.part is not None:
                look.part = [head.part.index, head.part.of]
                look.sharded = any(rank_in(name) is not None and not _RNG.match(name) for name in _below(path))
        else:
            look.world_size = _world_size(names)
        look.random_states = sorted(int(match.group(1)) for name in names if (match := _RNG.match(name)))
        look.lacks = self._lacking(inside, names)
        look.on_purpose = head is not None or self.trainer.args.save_only_model or self.level == "off"
        return look

    def _lacking(self, inside: set[str], names: Sequence[str]) -> list[str]:
        """Which state this training would load and the checkpoint does not have."""
        trainer = self.trainer
        lacks = []
        # A subclass with a loader of its own knows better what it looks for.
        loader = getattr(type(trainer), "_load_optimizer_and_scheduler", None)
        if getattr(loader, "__module__", "") == "transformers.trainer" and not trainer.is_deepspeed_enabled:
            lacks = [state for state in ("optimizer", "scheduler") if state not in inside]
            parts = {int(match.group(1)) for name in names if (match := _XLA_OPTIMIZER.match(name))}
            if parts and trainer.args.world_size not in parts and "optimizer" not in lacks:
                lacks.append("optimizer")
        if getattr(trainer.accelerator, "scaler", None) is not None and "scaler" not in inside:
            lacks.append("scaler")
        return lacks

    # ---- Chosen ----

    def announce(self, path: str, report: "_Report") -> None:
        """Say which checkpoint it is, and what will not be exact."""
        if self.first:
            for text in report.warnings(self.trainer):
                logger.warning(f"{path}: {text}")
            logger.info(f"Resuming from {path} ({report.summary(self.level)})")


@dataclasses.dataclass
class _Look:
    """What one rank sees of a checkpoint: JSON fields only, for the other ranks.

    Args:
        problems (`list[list[str]]`):
            [file, reason] of what speaks against it.
        lacks (`list[str]`):
            State that this training would load and that is not inside.
        on_purpose (`bool`):
            What is lacking never was inside, or is not wanted.
    """

    problems: list[list[str]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    nonce: str | None = None
    step: int | None = None
    world_size: int | None = None
    part: list[int] | None = None
    sharded: bool = False
    verified: bool = False
    size: int = 0
    files: int = 0
    random_states: list[int] = dataclasses.field(default_factory=list)
    lacks: list[str] = dataclasses.field(default_factory=list)
    on_purpose: bool = True

    def __post_init__(self) -> None:
        # Not a field: it stays on this rank.
        self.state: TrainerState | None = None

    def parse_state(self, path: str) -> None:
        """Read the Trainer's own state the way the Trainer is going to."""
        # Imported late: the callbacks need this package.
        from ..trainer_callback import TrainerState

        file = os.path.join(path, TRAINER_STATE_NAME)
        try:
            state = TrainerState.load_from_json(file)
            if not isinstance(state.global_step, int) or state.global_step < 0:
                raise ValueError(f"its step is {state.global_step!r}")
            self.state, self.step = state, state.global_step
        except FileNotFoundError:
            self._add(
                TRAINER_STATE_NAME,
                "is missing, the state of the Trainer, without which no training can go on (a model or an adapter "
                "that was saved alone can be loaded into a new training)",
            )
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            self._add(TRAINER_STATE_NAME, f"cannot be used ({describe(error)})")

    def _add(self, file: str, reason: str) -> None:
        if all(known != file for known, _ in self.problems):
            self.problems.append([file, reason])


class _Report:
    """What all ranks together see of a checkpoint. Made from the same replies on every rank."""

    def __init__(self, resume: _Resume, looks: list[_Look], state: "TrainerState | None"):
        self.state = state
        self.looks = [looks[rank] for rank in resume.leaders]
        self.main = looks[0]
        self.problems: list[tuple[str, str]] = []
        seen: dict[tuple[str, str], list[int]] = {}
        in_files = {file for look in self.looks for file, _ in look.problems}
        for rank, look in enumerate(looks):
            for file, reason in look.problems:
                if rank not in resume.leaders and file in in_files:
                    continue
                seen.setdefault((file, reason), []).append(rank)
        for (file, reason), who in seen.items():
            everywhere = set(resume.leaders) <= set(who)
            place = "" if everywhere else f" (on rank {who[0]}, {resume.hosts[who[0]].partition('/')[0]})"
            self.problems.append((file, f"{reason}{place}"))
        self._compare(looks, resume)

    def _compare(self, looks: list[_Look], resume: _Resume) -> None:
        if self.problems:
            return
        for rank, look in enumerate(looks):
            if look.step != self.main.step:
                self.problems.append(
                    ("", f"it is at step {self.main.step} on rank 0 and at step {look.step} on rank {rank}")
                )
                return
        for rank in resume.leaders:
            if looks[rank].nonce != self.main.nonce:
                self.problems.append(("", f"rank 0 and rank {rank} see different saves of this step"))
                return
        parts = {look.part[0] for look in self.looks if look.part is not None}
        of = next((look.part[1] for look in self.looks if look.part is not None), 0)
        if len(parts) < of and any(look.sharded for look in self.looks):
            self.problems.append(
                (
                    "",
                    f"it was saved onto {of} disks, each with the shards of its own processes, and those of "
                    f"{of - len(parts)} are on no disk of this training",
                )
            )

    @property
    def complaints(self) -> list[str]:
        """State that is not inside although this training saves it."""
        return (
            [] if self.main.on_purpose else [state for state in self.main.lacks if state in ("optimizer", "scheduler")]
        )

    @property
    def needed(self) -> bool:
        """Whether what is wrong keeps it from being resumed from."""
        return bool(self.complaints) or any(_is_read(file, reason) for file, reason in self.problems)

    @property
    def verified(self) -> bool:
        return all(look.verified for look in self.looks)

    def text(self) -> str:
        """What is wrong."""
        texts = [f"{file} {reason}".strip() for file, reason in self.problems]
        if self.complaints:
            texts.append(f"it has no {' and no '.join(self.complaints)} state, which this training saves")
        more = len(texts) - MOST_PROBLEMS
        return "; ".join(texts if more <= 0 else [*texts[:MOST_PROBLEMS], f"and {more} more"])

    def summary(self, level: str) -> str:
        what = {"full": "digests verified", "size": "sizes verified", "off": "not verified"}[level]
        if level == "full" and not self.verified:
            what = "no manifest to verify it with"
        return f"step {self.main.step}, {what}" + (f", {disk.format_size(self.main.size)}" if self.main.size else "")

    def warnings(self, trainer: "Trainer") -> Iterator[str]:
        """What a training that resumes from it has to expect."""
        main, world_size = self.main, trainer.args.world_size
        # What every checkpoint of its kind has a note on is not worth a warning.
        yield from (f"{note}." for note in main.notes if note.startswith(("modified", "added", "holds")))
        lost = [state for state in main.lacks if state in ("optimizer", "scheduler")]
        if lost:
            yield (
                f"there is no {' and no '.join(lost)} state inside. Optimizer and scheduler start afresh, so the "
                "training does not go on exactly: the learning rate schedule and the moments begin at zero."
            )
        if "scaler" in main.lacks:
            yield "there is no gradient scaler state inside. The scaler starts with its initial scale."
        if main.world_size is not None and main.world_size != world_size:
            yield _other_world_size(trainer, main.world_size, world_size)
        elif world_size > 1:
            there = {rank for look in self.looks for rank in look.random_states}
            gone = [str(rank) for rank in range(world_size) if rank not in there]
            if gone:
                yield (
                    f"there is no random state for rank(s) {', '.join(gone)} inside. Dropout and other random choices "
                    "of these ranks differ from those of the uninterrupted training."
                )
        elif main.world_size is None:
            yield (
                "there is no random state inside. Dropout and other random choices differ from those of the "
                "uninterrupted training."
            )


class _Search:
    """The walk from the newest checkpoint of a run directory to the oldest. Rank 0 proposes, all ranks agree."""

    def __init__(self, resume: _Resume):
        self.resume = resume
        self.passed_over: list[tuple[str, str]] = []
        # Names of those that can be resumed from by path, though `True` does not.
        self.by_path: list[str] = []
        self._proposals = 0
        # Rank 0's: what is left, newest last.
        self._left: list[Found] = []

    def prepare(self) -> None:
        """Look at the run directory, and put it in order. Raises [`CheckpointResumeError`] if there is none."""
        run_dir = self.resume.run_dir
        there = self.resume.exchange("run directory", {"there": os.path.isdir(run_dir)})
        if not any(reply["there"] for reply in there):
            found = "it is a file" if os.path.isfile(run_dir) else "it does not exist"
            raise CheckpointResumeError(f"No valid checkpoint found in output directory ({run_dir}): {found}.")
        self.resume.put_in_order()
        problem = None
        if self.resume.decides:
            try:
                self._left = find_checkpoints(run_dir, check="order")
            except OSError as error:
                problem = f"it cannot be looked at ({error.strerror or error})"
        problem = self.resume.broadcast("listed", problem)
        if problem is not None:
            raise CheckpointResumeError(f"No valid checkpoint found in output directory ({run_dir}): {problem}.")

    def next(self) -> "tuple[str, _Report]":
        """The newest one that is left and good on every disk, and what was found. Called by all ranks.

        Raises:
            [`CheckpointResumeError`]: none is left; says what was found.
        """
        resume = self.resume
        while True:
            self._proposals += 1
            number = self._proposals
            proposal = resume.broadcast(f"candidate {number}", self._propose() if resume.decides else None)
            self.passed_over += [tuple(pair) for pair in proposal["passed_over"]]
            name = proposal["name"]
            if name is None:
                raise CheckpointResumeError(self._nothing())
            path = os.path.join(resume.run_dir, name)
            resume.wait_for(path)
            report = resume.examine(path, proposal["size"], f"examined {number}")
            if not report.problems and not report.complaints:
                if self.passed_over and resume.first:
                    logger.warning(f"Passed over {self._list()}. Resuming from {path}.")
                self.passed_over = []
                resume.announce(path, report)
                return path, report
            if not report.needed:
                self.by_path.append(path)
            self.passed_over.append((name, report.text()))

    def set_aside(self, path: str, reason: str) -> None:
        """Loading the checkpoint that `next` gave failed."""
        self.passed_over.append((os.path.basename(path), f"could not be loaded: {reason}"))

    def peek(self) -> str | None:
        """The next older one that may be good. Rank 0 only."""
        return next((found.path for found in reversed(self._left) if look_closely(found).why_not is None), None)

    def _propose(self) -> dict[str, Any]:
        passed_over = []
        while self._left:
            found = self._left.pop()
            if found.why_not is None:
                return {"name": found.name, "size": _size(found.path), "passed_over": passed_over}
            passed_over.append([found.name, found.why_not])
        return {"name": None, "size": 0, "passed_over": passed_over}

    def _list(self) -> str:
        return "; ".join(f"{name}: {reason}" for name, reason in self.passed_over)

    def _nothing(self) -> str:
        text = f"No valid checkpoint found in output directory ({self.resume.run_dir})"
        if not self.passed_over:
            return (
                f"{text}: there is no directory `checkpoint-<step>` in it. For a new training, leave "
                "`resume_from_checkpoint` out."
            )
        text = f"{text}. Passed over {self._list()}."
        if self.by_path:
            return (
                f"{text} What is wrong with {self.by_path[0]} is nothing that resuming reads: give its path to use it."
            )
        return (
            f"{text} `transformers checkpoints explain {self.resume.run_dir}` tells more; one of them can be given by "
            'path, and with `resume_verify="off"` it is taken as it is.'
        )


# ---- Loading ----


class _SetAside(Exception):
    """The checkpoint that was being loaded is set aside, and another one is chosen. Never leaves this package."""


class Loading:
    """The checkpoint that a training resumes from, until everything in it is loaded.

    Args:
        resume (`_Resume`):
            How it was chosen.
        path (`str`):
            The checkpoint, as this rank names it.
        report (`_Report`):
            What was found.
        search (`_Search`, *optional*):
            The walk that gave it; `None` for a path that the user gave.
    """

    def __init__(self, resume: _Resume, path: str, report: _Report, search: _Search | None):
        self.resume = resume
        self.trainer = resume.trainer
        self.ranks = resume.ranks
        self._search = search
        self._votes = 0
        self._entered = 0
        self._in_loop = False
        self._depth = 0
        self._last_failures: dict[str, str] | None = None
        self._is_another = False
        # Whether weights of a checkpoint that failed to load may be in the model.
        self._weights_are_mixed = False
        self._point_at(path, report)

    def _point_at(self, path: str, report: _Report) -> None:
        self.path = path
        self.verified = report.verified
        self._lacks = report.main.lacks
        self.batch_size = report.state.train_batch_size if report.state is not None else None
        # Loading is going on: an error of a loader is kept, and `settle` is still to come.
        self.open = True
        self.random_state_pending = False
        self._kept: BaseException | None = None
        self._cause = ""

    # ---- Keeping errors ----

    @property
    def _keeps(self) -> bool:
        """In one process nobody has to be kept in step; the error is kept only if another checkpoint may be tried."""
        return self.open and (not self.ranks.alone or self._may_try_another)

    @property
    def _may_try_another(self) -> bool:
        return self._search is not None and self.ranks.connected and not self.verified and not self._loads_into_wrapped

    @property
    def _loads_into_wrapped(self) -> bool:
        """DeepSpeed, FSDP and SageMaker wrap the model before they load: it cannot be prepared a second time."""
        return bool(self.trainer.is_deepspeed_enabled or self.trainer.is_fsdp_enabled or is_sagemaker_mp_enabled())

    @contextlib.contextmanager
    def keep(self, what: str) -> Generator[None, None, None]:
        """A loader. Only the outermost one keeps its error: an override sees that of `super()` as it always did."""
        self._depth += 1
        try:
            yield
        except _STOPS:
            raise
        except BaseException as error:  # torch's CheckpointException is no Exception
            if self._depth > 1 or not self._keeps:
                raise
            if what == "_load_from_checkpoint":
                self._weights_are_mixed = True
            self._keep(what, error)
        finally:
            self._depth -= 1

    def _keep(self, what: str, error: BaseException) -> None:
        if self._kept is None:
            self._kept, self._cause = error, f"{what}: {describe(error)}"
            if self._loads_into_wrapped:
                # These load in collectives of their own, in which the others may be waiting for this rank.
                self.ranks.post_error(self._cause)
        elif error is not self._kept:
            with contextlib.suppress(Exception):
                self._kept.add_note(f"Afterwards also, in {what}: {describe(error)}")

    def check_no_remains(self, missing_keys: Sequence[str]) -> None:
        """Weights are in the model. Refuse them if parts of a checkpoint that failed to load are still among them."""
        if not self._weights_are_mixed:
            return
        ignored = set(getattr(self.trainer.model, "_keys_to_ignore_on_save", None) or ())
        remains = [key for key in missing_keys if key not in ignored]
        if remains:
            raise CheckpointResumeError(
                f"{self.path} holds no {remains[0]} ({len(remains)} such weights in all), and a checkpoint that "
                "failed to load before may have left its own there. Give the path of the checkpoint to resume from."
            )
        self._weights_are_mixed = False

    # ---- The loop around the loop ----

    def run(self, loop: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """`_inner_training_loop`, entered again with another checkpoint when one is set aside."""
        call = inspect.signature(loop).bind(self.trainer, *args, **kwargs)
        if self._in_loop or call.arguments.get("resume_from_checkpoint") is None:
            return loop(self.trainer, *args, **kwargs)
        self._in_loop = True
        try:
            while True:
                self._enter(call.arguments)
                try:
                    return loop(*call.args, **call.kwargs)
                except _SetAside:
                    continue
                except BaseException as error:
                    if self.open:
                        # The others are on their way to the vote, and learn there why it does not come about.
                        self.ranks.post_error(describe(error))
                    raise
        finally:
            self._in_loop = False

    def _enter(self, arguments: dict[str, Any]) -> None:
        self._entered += 1
        if self._entered == 1:
            return
        # Also after the batch-size finder: what the steps before the lack of memory did to the weights has to go.
        self.open, self.random_state_pending = True, False
        self._kept, self._cause = None, ""
        arguments["resume_from_checkpoint"] = self.path
        if self._is_another and self.trainer.args.auto_find_batch_size and self.batch_size is not None:
            arguments["batch_size"] = self.batch_size
        self._is_another = False
        if not self._loads_into_wrapped:
            self.trainer._load_from_checkpoint(self.path)

    # ---- Votes ----

    def settle(self) -> None:
        """Everything that is loaded before the first step is loaded on this rank, or its error is kept.

        Raises:
            `_SetAside`: on every rank; the checkpoint to go on with is another one now.
            [`CheckpointResumeError`]: some other rank failed.
            `BaseException`: this rank failed: its own error.
        """
        if not self.open:
            return
        error = self._kept
        failures, facts = self._vote("loaded", error)
        self.open, self._kept = False, None
        if not failures:
            self.random_state_pending = True
            if self.resume.first and self._optimizer_stayed_empty():
                logger.warning(
                    f"{self.path} holds optimizer state, and after loading the optimizer has none: it starts afresh. "
                    "With version 1 of FSDP, state that was saved in shards is not restored; version 2 restores it."
                )
            return
        text = _join(failures, self.ranks.world_size)
        first = self.ranks.first_error()
        if error is not None and first is not None and first[0] != self.ranks.rank:
            # Here a collective was broken off, which is what became of another rank's failure.
            text = f"rank {first[0]} failed first ({first[1]}); {text}"
            self._raise(None, text, [], facts["older"], error)
        nameless = {rank: cause.replace(self.path, "") for rank, cause in failures.items()}
        if self._may_try_another and not facts["memory"] and nameless != self._last_failures:
            self._last_failures = nameless
            self._try_another(text, error)
        hints = []
        if nameless == self._last_failures:
            hints.append(
                "Two checkpoints in a row failed in the same way, so it is not the checkpoint that is to blame."
            )
        elif self.verified:
            hints.append("Its files are what was saved, so it is not the checkpoint that is to blame.")
        self._raise(error, text, hints, facts["older"])

    def _optimizer_stayed_empty(self) -> bool:
        """Whether the optimizer has no state, where loading can leave it without and say nothing."""
        trainer = self.trainer
        if not trainer.is_fsdp_enabled or "optimizer" in self._lacks:
            return False
        state = getattr(trainer.optimizer, "state", None)
        return state is not None and not any(state.values())

    def _try_another(self, text: str, error: BaseException | None) -> NoReturn:
        assert self._search is not None
        self._search.set_aside(self.path, text)
        try:
            path, report = self._search.next()
        except CheckpointResumeError as nothing:
            raise nothing from error
        self._point_at(path, report)
        self._is_another = True
        self.resume.checkpoints.resumed_from = self.path
        raise _SetAside

    def load_random_state(self, load: Callable[[], Any]) -> None:
        """Load the random state, in the first epoch, and vote. Raises as `settle` does, but never `_SetAside`."""
        self.random_state_pending = False
        error: BaseException | None = None
        try:
            load()
        except _STOPS:
            raise
        except BaseException as caught:
            error = caught
        failures, facts = self._vote("random state", error)
        if failures:
            self._raise(error, _join(failures, self.ranks.world_size), [], facts["older"])

    def _vote(self, topic: str, error: BaseException | None) -> tuple[dict[str, str], dict[str, Any]]:
        """Rank to cause, of those that failed; and what rank 0 knows. The same on every rank."""
        self._votes += 1
        reply: dict[str, Any] = {}
        if error is not None:
            reply = {"error": self._cause or describe(error), "memory": _is_about_memory(error)}
        patience = FOREIGN_COLLECTIVE_GRACE if error is not None and self._loads_into_wrapped else None
        try:
            replies = self.ranks.exchange(f"resume {topic} {self._votes}", reply, patience)
        except RankLostError as lost:
            if error is not None and self._loads_into_wrapped:
                # The others are still inside the collective that this rank left; nothing can wake them.
                from .board import leave_after_foreign_failure

                leave_after_foreign_failure(self.ranks, self._cause)
            if error is not None:
                error.add_note(f"While {self.path} was being loaded. {lost}")
                raise error from lost
            self.resume._lost(lost)
        failures = {str(rank): told["error"] for rank, told in enumerate(replies) if "error" in told}
        facts = {"memory": any(told.get("memory") for told in replies), "older": None}
        if failures:
            facts["older"] = self.resume.broadcast(
                f"older {self._votes}", self._older() if self.resume.decides else None
            )
        return failures, facts

    def _older(self) -> str | None:
        with contextlib.suppress(OSError):
            return self._search.peek() if self._search is not None else _newest_beside(self.path)
        return None

    def _raise(
        self,
        error: BaseException | None,
        text: str,
        hints: list[str],
        older: str | None,
        because: BaseException | None = None,
    ) -> NoReturn:
        if older is not None:
            hints = [*hints, f"The next older checkpoint is {older}; to go on from that, give its path."]
        told = f"Loading {self.path} failed: {text}. {' '.join(hints)}".strip()
        if self.resume.first:
            logger.error(told)
        if error is None:
            raise CheckpointResumeError(told) from because
        error.add_note(told)
        raise error


def after_loading(checkpoints: "TrainerCheckpoints", path: str | None) -> None:
    """Everything that is loaded before the first step is loaded. Called by all ranks.

    Args:
        checkpoints (`TrainerCheckpoints`):
            The Trainer's checkpoints.
        path (`str`, *optional*):
            The checkpoint; nothing happens without one.

    Raises:
        [`CheckpointResumeError`]: on a rank that loaded well while another one failed.
        `BaseException`: on a rank that failed, its own error.
    """
    if path is not None and checkpoints.loading is not None:
        checkpoints.loading.settle()


# ---- What the resumed state says ----


def where_to_start(
    checkpoints: "TrainerCheckpoints", epochs_trained: int, steps_trained_in_current_epoch: int, num_train_epochs: int
) -> tuple[int, int]:
    """Epoch and batch at which the training goes on: behind the last epoch if the resumed run is finished.

    Called by all ranks, which have all loaded the same state. Without it, a run that ended inside an epoch would train
    one more step before it notices.
    """
    trainer = checkpoints.trainer
    state = trainer.state
    if checkpoints.loading is None or state.global_step < state.max_steps:
        return epochs_trained, steps_trained_in_current_epoch
    if trainer.is_world_process_zero():
        logger.warning(
            f"{checkpoints.loading.path} is at step {state.global_step} of {state.max_steps}: this run is finished, "
            "and nothing more is trained. To train on, raise `num_train_epochs` or `max_steps`."
        )
    return num_train_epochs, 0


def resolve_best_checkpoint(checkpoints: "TrainerCheckpoints") -> None:
    """Make the resumed state name the best checkpoint where it is now, or none. Called by all ranks.

    The recorded path is from another time and perhaps another machine: what counts is its step. It is looked for
    beside the checkpoint that was resumed from, in the run directory, and at the recorded path, in this order. Rank 0
    decides; if it is not there on every rank, no rank uses it. Never raises for a checkpoint that is gone or damaged.

    Raises:
        [`CheckpointResumeError`]: a rank was lost.
    """
    trainer, ranks = checkpoints.trainer, checkpoints.ranks()
    recorded = trainer.state.best_model_checkpoint
    loading = checkpoints.loading
    if loading is None:
        # A loop that was entered without `train`: nothing was agreed upon, so nobody else can be asked.
        if recorded is not None and not os.path.isdir(recorded):
            logger.warning(f"The best checkpoint {recorded} is gone. The training goes on without it.")
            trainer.state.best_model_checkpoint = None
        return
    resume = loading.resume
    loading._votes += 1
    number = loading._votes
    found, reason = _find_best(loading, recorded) if resume.decides else (None, "")
    found, reason = resume.broadcast(f"best {number}", [found, reason])
    if found is not None:
        missing = [
            str(rank)
            for rank, reply in enumerate(resume.exchange(f"best seen {number}", {"there": os.path.isdir(found)}))
            if not reply["there"]
        ]
        if missing:
            found, reason = None, f"it is not there on rank(s) {', '.join(missing)}"
    if found is None and reason and ranks.rank == 0:
        logger.warning(
            f"The best checkpoint so far, {recorded}, is not used: {reason}. The training goes on, and the next "
            "better one counts."
        )
    trainer.state.best_model_checkpoint = found


def _find_best(loading: "Loading", recorded: str | None) -> tuple[str | None, str]:
    """Where the best checkpoint is, or why it is nowhere; both empty if none was recorded. Rank 0 only."""
    if recorded is None:
        return None, ""
    state = loading.trainer.state
    step = state.best_global_step or step_of(os.path.basename(os.path.normpath(recorded)))
    places = [recorded]
    if step is not None:
        name = checkpoint_name(step)
        resumed = os.path.normpath(loading.path)
        places = [os.path.join(os.path.dirname(resumed), name), os.path.join(loading.resume.run_dir, name), recorded]
    reason = f"there is no such directory, nor {places[0]}" if places[0] != recorded else "there is no such directory"
    for place in places:
        if not os.path.isdir(place):
            continue
        try:
            problem = look_at(place).problem
        except OSError as error:
            problem = f"it cannot be looked at ({error.strerror or error})"
        if problem is None:
            return place, ""
        reason = f"{place}: {problem}"
    return None, reason


# ---- Small helpers ----


def _first_of_each(places: list[Any]) -> list[int]:
    """The lowest rank at each place."""
    return [rank for rank, place in enumerate(places) if places.index(place) == rank]


def wait_until_visible(path: str, patience: float = FOREIGN_FILE_PATIENCE) -> bool:
    """Open `path` again and again until it is there; whether it is. Opening asks the server, listing may not."""
    end = time.monotonic() + patience
    while True:
        try:
            with open(path, "rb"):
                return True
        except FileNotFoundError:
            if time.monotonic() > end:
                return False
        except OSError:
            return True
        time.sleep(0.5)


def _describe_request(request: Any) -> dict[str, str]:
    if request is None or request is False:
        return {"kind": "none", "given": "None", "real": ""}
    if request is True:
        return {"kind": "newest", "given": "True", "real": ""}
    if isinstance(request, (str, os.PathLike)):
        path = os.fspath(request)
        if isinstance(path, str) and path:
            return {"kind": "path", "given": os.path.normpath(path), "real": os.path.realpath(path)}
    return {"kind": "other", "given": repr(request), "real": ""}


def _shown(request: dict[str, str]) -> str:
    return (
        request["given"]
        if request["kind"] != "path" or request["given"] == request["real"]
        else (f"{request['given']} ({request['real']})")
    )


def _why_no_checkpoint(path: str) -> str | None:
    """Why there can be no checkpoint at `path`, or `None` if there is a directory."""
    if os.path.isdir(path):
        try:
            names = os.listdir(path)
        except OSError as error:
            return f"it cannot be read ({error.strerror or error})"
        inside = sorted(step for name in names if (step := step_of(name)) is not None)
        if inside and TRAINER_STATE_NAME not in names:
            return (
                f"it is no checkpoint but holds some, the last being {checkpoint_name(inside[-1])}; give the path of "
                "one of them, or `True` with this as `output_dir`"
            )
        return None
    if os.path.lexists(path):
        return "it is a file, and a checkpoint is a directory" if os.path.isfile(path) else "it is a link to nothing"
    if path.lower() in ("true", "false", "none"):
        return f"it is taken for a path, because it is a text; use the value {path.capitalize()} without quotes"
    if "://" in path:
        return "it is an address, and a directory of this machine is needed; download it first"
    if not os.path.isabs(path) and re.fullmatch(r"[\w.-]+/[\w.-]+", path):
        return (
            f"there is no such directory in {os.getcwd()}. If it is a repository of the Hub, download it with "
            "`huggingface_hub.snapshot_download` and give the path that it returns"
        )
    where = "" if os.path.isabs(path) else f" in {os.getcwd()}"
    return f"there is no such directory{where}"


def _is_read(file: str, reason: str) -> bool:
    """Whether loading reads a file of this name, as far as is known; what is not known counts."""
    base = file.rpartition("/")[2]
    if base == "config.json":
        # Only its version is compared, and it need not be there.
        return not reason.startswith("is missing")
    return base in _READ_TEXT or not (is_text(file) or base in _UNREAD)


def _way_out(report: _Report, beside: str | None) -> str:
    ways = [f"Resume from {beside} instead, which is complete"] if beside is not None else []
    ways.append("restore the files from a copy" if report.problems else "find the missing state")
    text = ", or ".join(ways)
    return f'{text[0].upper()}{text[1:]}. To take this checkpoint as it is, pass `resume_verify="off"`: ' + (
        "the optimizer then starts afresh."
        if report.complaints and not report.problems
        else "what is damaged is then loaded, if it can be."
    )


def _newest_beside(path: str) -> str | None:
    """The newest checkpoint in the same directory that can be resumed from and is not `path`; an older one first."""
    folder = os.path.dirname(os.path.normpath(path)) or "."
    try:
        found = find_checkpoints(folder, check="order")
    except OSError:
        return None
    here = os.path.realpath(path)
    names = [os.path.realpath(checkpoint.path) for checkpoint in found]
    at = names.index(here) if here in names else len(found)
    for checkpoint in [*reversed(found[:at]), *reversed(found[at + 1 :])]:
        if look_closely(checkpoint).why_not is None:
            return checkpoint.path
    return None


def _warn_of_rejected(run_dir: str) -> None:
    """Say so if a training from the start begins beside checkpoints none of which can be used. Never raises."""
    try:
        found = find_checkpoints(run_dir, check="stat")
    except OSError:
        return
    if found and all(checkpoint.why_not is not None for checkpoint in found):
        told = "; ".join(f"{checkpoint.name}: {checkpoint.why_not}" for checkpoint in found[-MOST_PROBLEMS:])
        logger.warning(
            f"This training starts from zero, in a directory whose checkpoints cannot be resumed from. {run_dir} "
            f"holds {told}. If it should have gone on from one of them, stop it now."
        )


def _world_size(names: Sequence[str]) -> int | None:
    """How many processes saved a checkpoint without a manifest, as far as its random states tell."""
    ranks = [int(match.group(1)) for name in names if (match := _RNG.match(name))]
    if ranks:
        # A single process gives its file no number, so a lone 0 is what is left of at least two.
        return max(max(ranks) + 1, 2)
    return 1 if "rng_state.pth" in names else None


def _other_world_size(trainer: "Trainer", saved: int, now: int) -> str:
    text = (
        f"it was saved by {saved} process(es), and this training has {now}. Exact are the weights, the optimizer, the "
        "scheduler and the step. Not exact are the random states (dropout differs), and the order of the data: a step "
        "takes another number of samples, so some are skipped and some seen again."
    )
    if trainer.is_deepspeed_enabled:
        text += (
            " ZeRO's optimizer state belongs to a number of processes: DeepSpeed refuses to load it for another one, "
            "unless it was converted to a universal checkpoint."
        )
    elif trainer.is_fsdp_enabled:
        text += " FSDP's sharded state is distributed anew."
    return text


def _below(path: str) -> list[str]:
    return [name for name, _ in disk.walk_files(path)]


def _size(path: str) -> int:
    with contextlib.suppress(OSError):
        return bytes_to_read(path)
    return 0


def _join(failures: dict[str, str], world_size: int) -> str:
    causes = set(failures.values())
    if len(causes) == 1 and len(failures) == world_size:
        return causes.pop()
    return "; ".join(f"rank {rank}: {cause}" for rank, cause in failures.items())


def _is_about_memory(error: BaseException) -> bool:
    """Whether too little memory is to blame, as the batch-size finder sees it: no checkpoint would fare better."""
    from accelerate.utils.memory import should_reduce_batch_size

    return isinstance(error, MemoryError) or (isinstance(error, Exception) and should_reduce_batch_size(error))
