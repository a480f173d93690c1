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
"""Rotation: which checkpoints go when there are more than `save_total_limit`, and how they go.

A checkpoint is out of use from one rename on, into the run directory's trash (`carry_out`); only then are its files
deleted (`Sweeper`, `sweep_leftovers`). A kill leaves every checkpoint either whole under its name or in the trash.

Planning (`plan_rotation`) only looks. It goes through the checkpoints in the order of `discovery`, newest first:

| what | counts towards the limit | can go |
| --- | --- | --- |
| the newest, and the newest that training can be resumed from; the newest this run saved | yes | no |
| the best one, the one resumed from | yes | no |
| complete ones, until the limit is reached; those this run saved come before all others | yes | no |
| milestones (`save_keep_every_n_steps`) and pinned ones (a file `KEEP` inside) that are older than those | no | no |
| other complete ones | no | yes |
| sealed, but damaged | no | once as many newer complete ones are kept as the limit asks for |
| without a manifest, and damaged or not readable | no | no: nobody knows what that is. Said once |
| an empty directory | after all others | yes, before all others: it holds nothing |
| a link, a name that is not `checkpoint-<digits>`, a target of a link with such a name | no | no |

So milestones and pins come on top of the limit, and one that is among the newest takes no extra room.
"""

import concurrent.futures
import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from ..utils import logging
from . import discovery, disk
from .discovery import Found, in_order, look_closely
from .layout import (
    CHECKPOINT_PREFIX,
    KEEP_NAME,
    MANIFEST_NAME,
    SENTINEL_NAME,
    TRAINER_STATE_NAME,
    checkpoint_name,
    step_of,
    trash_dir,
)
from .manifest import draw_nonce


logger = logging.get_logger(__name__)

# Of the checkpoints kept for their number, so many of the newest are looked into before they count. Those behind them
# count by their names alone: with a limit above this, that saves thousands of looks and can only keep one too few of
# very many.
COUNTED_BY_LOOKING = 64
# How long `Sweeper.close` waits. The interpreter itself still waits for the thread; this is for the message (seconds).
SWEEP_PATIENCE = 600.0

# The coarsest steps in which a file system counts times: FAT's (seconds).
TIME_STEP = 2.0

# First line of the sentinel in a checkpoint that rotation deletes where it lies. What carries it may be deleted for
# good: the decision was taken, and files are missing already.
DELETION_MARK = "Being deleted by checkpoint rotation."


# ---- Plan ----


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a rotation is going to do. Paths are `os.path.join(run_dir, name)`.

    Args:
        remove (`tuple[str, ...]`):
            Empty directories to remove, oldest first.
        retire (`tuple[str, ...]`):
            Checkpoints to take out of use, oldest first.
        keep (`Mapping[str, str]`):
            Path to reason, for those that stay.
        left_alone (`Mapping[str, str]`):
            Path to problem, for directories that neither count nor go.
    """

    remove: tuple[str, ...] = ()
    retire: tuple[str, ...] = ()
    keep: Mapping[str, str] = dataclasses.field(default_factory=dict)
    left_alone: Mapping[str, str] = dataclasses.field(default_factory=dict)


def plan_rotation(
    run_dir: str | os.PathLike,
    *,
    limit: int | None,
    keep_every: int | None = None,
    protected: Mapping[str, str | os.PathLike | None] | None = None,
    own: Collection[int] = (),
    memory: "Memory | None" = None,
) -> Plan:
    """Decide what a rotation of `run_dir` does. Changes nothing on disk. Called by the publisher, after the publish.

    Args:
        run_dir (`str` or `os.PathLike`):
            The run directory.
        limit (`int`, *optional*):
            `save_total_limit`. Nothing goes if it is `None` or not above 0.
        keep_every (`int`, *optional*):
            `save_keep_every_n_steps`: steps divisible by it are kept for ever.
        protected (`Mapping[str, str | os.PathLike | None]`, *optional*):
            Reason to path, for checkpoints that must stay: the best, the one resumed from. Relative to the working
            directory, absolute, or through links. A path that does not exist protects the checkpoint of the same name
            in `run_dir`, because a run directory may have been moved.
        own (`Collection[int]`, *optional*):
            The steps this run saved. They are kept before an older run's checkpoints in the same directory.
        memory ([`Memory`], *optional*):
            What the rotations before found, where the same process rotates again and again.

    Returns:
        `Plan`: what goes and what stays; an empty one if there is no run directory.

    Raises:
        `OSError`: the run directory could not be looked at.
    """
    if limit is None or limit <= 0:
        return Plan()
    try:
        candidates = _candidates(run_dir)
    except FileNotFoundError:
        return Plan()
    if len(candidates) <= limit:
        return Plan()
    return _Planner(run_dir, _list(candidates, memory), own).plan(limit, keep_every, protected or {})


def plan_best_only(run_dir: str | os.PathLike, best: str | os.PathLike, *, keep_every: int | None = None) -> Plan:
    """Decide what goes when only the best checkpoint is wanted. Changes nothing on disk. Called by the publisher.

    Milestones and pinned checkpoints stay too. Nothing goes unless the best one is there and complete.

    Args:
        run_dir (`str` or `os.PathLike`):
            The run directory.
        best (`str` or `os.PathLike`):
            The best checkpoint.
        keep_every (`int`, *optional*):
            `save_keep_every_n_steps`.

    Raises:
        `OSError`: the run directory could not be looked at.
    """
    try:
        candidates = _candidates(run_dir)
    except FileNotFoundError:
        return Plan()
    planner = _Planner(run_dir, _list(candidates), ())
    if not planner.is_whole(best):
        return Plan(keep={entry.path: "the best one is not there, or not complete" for entry in candidates})
    return planner.plan(1, keep_every, {"the best": best}, keep_newest=False)


class _Planner:
    """The planning of one rotation: what is known of each checkpoint, and what was found out on the way.

    Args:
        run_dir (`str` or `os.PathLike`):
            The run directory.
        listing (`_Listing`):
            Its checkpoints.
        own (`Collection[int]`):
            The steps this run saved.
    """

    def __init__(self, run_dir: str | os.PathLike, listing: "_Listing", own: Collection[int]):
        self._real_run_dir = os.path.realpath(run_dir)
        self._damages: dict[str, str | None] = {}
        self._found = [entry for entry in listing.found if entry.name not in listing.links]
        self._leads_to = self._leading_to(entry for entry in listing.found if entry.name in listing.links)
        self._empty = listing.empty - listing.links
        names = {checkpoint_name(step) for step in own}
        # By both: a copy of another step under this name was not saved by this run.
        self._own = {entry.name for entry in self._found if entry.name in names and entry.step in own}

    def plan(
        self,
        limit: int,
        keep_every: int | None,
        protected: Mapping[str, str | os.PathLike | None],
        keep_newest: bool = True,
    ) -> Plan:
        kept, identities = self._protected(protected)
        ranking = self._ranking()
        newest = self._newest(kept) if keep_newest else None
        floor = self._fill(kept, ranking, newest, limit) if keep_newest else 0

        remove: list[str] = []
        retire: list[str] = []
        left_alone: dict[str, str] = {}
        for position, entry in enumerate(ranking):
            if entry.name in kept:
                continue
            reason = self._reason_to_stay(entry, keep_every, identities)
            if reason is not None:
                kept[entry.name] = reason
            elif entry.name in self._empty:
                remove.append(entry.path)
            elif entry.head is not None and position < floor:
                # We sealed it, so it is known what it is; whether it is still whole matters no more.
                retire.append(entry.path)
            elif (problem := self._damage(entry)) is not None:
                left_alone[entry.path] = problem
            else:
                retire.append(entry.path)
        keep = {entry.path: kept[entry.name] for entry in ranking if entry.name in kept}
        return Plan(tuple(remove), tuple(retire), keep, left_alone)

    def _leading_to(self, links: Iterable[Found]) -> dict[str, str]:
        """Name to link, for the checkpoints in the run directory that links with such a name lead to."""
        leads_to = {}
        for link in links:
            folder, name = os.path.split(os.path.realpath(link.path))
            if folder == self._real_run_dir:
                leads_to[name] = link.name
        return leads_to

    def is_whole(self, path: str | os.PathLike) -> bool:
        """Whether `path` is one of the checkpoints found, and complete."""
        kept, _ = self._protected({"": path})
        return any(entry.name in kept and self._damage(entry) is None for entry in self._found)

    def _protected(
        self, protected: Mapping[str, str | os.PathLike | None]
    ) -> tuple[dict[str, str], dict[tuple[int, int], str]]:
        """The protected checkpoints: name to reason, and inode to reason."""
        names = {os.path.normcase(entry.name): entry.name for entry in self._found}
        kept: dict[str, str] = {}
        identities: dict[tuple[int, int], str] = {}
        for reason, path in protected.items():
            if path is None:
                continue
            folder, name = os.path.split(os.path.realpath(path))
            identity = _identity(path)
            there = identity is not None
            if there:
                # Paths that resolve differently can still be one directory: a bind mount, other letter case.
                identities.setdefault(identity, reason)
            same_folder = os.path.normcase(folder) == os.path.normcase(self._real_run_dir)
            if (same_folder or not there) and os.path.normcase(name) in names:
                kept.setdefault(names[os.path.normcase(name)], reason)
        return kept, identities

    def _ranking(self) -> list[Found]:
        """First to go first: empty ones, then those of other runs, then this run's own; each oldest first."""

        def rank(entry: Found) -> int:
            if entry.name in self._empty:
                return 0
            return 2 if entry.name in self._own else 1

        return sorted(self._found, key=rank)

    def _newest(self, kept: dict[str, str]) -> str | None:
        """Add to `kept` what must not go because it is the newest. Returns the name of the newest complete one."""
        if len(self._empty) == len(self._found):
            # All hold nothing: callers that keep something else in mind still expect the last one to stay.
            if self._found:
                kept.setdefault(self._found[-1].name, "the newest")
            return None
        newest_first = [entry for entry in reversed(self._found) if entry.name not in self._empty]
        resumable = [entry for entry in newest_first if entry.head is None or entry.head.resumable]
        own = [entry for entry in newest_first if entry.name in self._own]
        names = []
        for reason, candidates in (
            ("the newest", newest_first),
            ("the newest that training can be resumed from", resumable),
            ("the newest that this run saved", own),
        ):
            name = next((entry.name for entry in candidates if self._damage(entry) is None), None)
            names.append(name)
            if name is not None:
                kept.setdefault(name, reason)
        return names[0]

    def _fill(self, kept: dict[str, str], ranking: list[Found], newest: str | None, limit: int) -> int:
        """Add to `kept` the newest complete ones until `limit` is reached.

        Returns:
            `int`: the position in `ranking` below which all that was asked for is kept.
        """
        # A protected one that holds nothing stays, and takes no room from one that does.
        nothing = self._empty if len(self._empty) < len(self._found) else set()
        protected = [entry for entry in self._found if entry.name in kept and entry.name not in nothing]
        count = sum(1 for entry in protected if self._damage(entry) is None)
        floor = len(ranking)
        looks = COUNTED_BY_LOOKING
        for position in reversed(range(len(ranking))):
            entry = ranking[position]
            if entry.name == newest:
                floor = position
            if count >= limit or entry.name in kept:
                continue
            looks -= 1
            look = looks >= 0 or entry.name in self._empty
            if (self._damage(entry) if look else entry.problem) is None:
                kept[entry.name] = f"one of the {limit} newest"
                count += 1
                floor = position
        return floor if count >= limit else 0

    def _reason_to_stay(
        self, entry: Found, keep_every: int | None, identities: Mapping[tuple[int, int], str]
    ) -> str | None:
        if entry.pinned:
            return f"pinned by its {KEEP_NAME} file"
        if keep_every and entry.step % keep_every == 0:
            return f"a multiple of {keep_every} steps"
        if entry.name in self._leads_to:
            return f"{self._leads_to[entry.name]} leads to it"
        return identities.get(_identity(entry.path)) if identities else None

    def _damage(self, entry: Found) -> str | None:
        if entry.name in self._empty:
            return None
        if entry.name not in self._damages:
            self._damages[entry.name] = look_closely(entry).problem
        return self._damages[entry.name]


@dataclasses.dataclass(frozen=True)
class _Listing:
    """The checkpoints of a run directory, oldest first, and the names of those that hold nothing or are links."""

    found: list[Found]
    empty: set[str]
    links: set[str]


def _candidates(run_dir: str | os.PathLike) -> list[os.DirEntry]:
    with os.scandir(run_dir) as entries:
        return [entry for entry in entries if step_of(entry.name) is not None and _is_directory(entry)]


def _is_directory(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _list(candidates: Iterable[os.DirEntry], memory: "Memory | None" = None) -> _Listing:
    """What `find_checkpoints` finds with `check="order"`."""
    looks = (memory or Memory()).look_at_all(candidates)
    return _Listing(
        found=in_order(look.found for look in looks),
        empty={look.found.name for look in looks if look.is_empty},
        links={look.found.name for look in looks if look.is_link},
    )


@dataclasses.dataclass(frozen=True)
class _Look:
    """What one directory showed, and what to recognise it by.

    Args:
        found (`Found`):
            What `discovery.look` says.
        is_empty, is_link (`bool`):
            There is nothing inside; its name is a link.
        mark (`tuple[int, ...]`, *optional*):
            Device, inode, and both times of the directory (ns).
        since (`float`):
            When this mark was seen first (monotonic, seconds).
        settled (`bool`):
            Whether any later change shows in the mark.
    """

    found: Found
    is_empty: bool
    is_link: bool
    mark: tuple[int, ...] | None
    since: float
    settled: bool


class Memory:
    """What the last rotation of this process found in a run directory of many checkpoints.

    Reading thousands of manifests is what a rotation would spend its time on. A directory's own times change with every
    file that is made, renamed or deleted in it, and nothing that is looked at here is ever written in place. They change
    in steps: what was found counts again only if it was looked at while the times had not moved for longer than a step.
    They are compared with each other, never with a clock. Anything that goes is looked at again before it does.
    """

    def __init__(self) -> None:
        self._looks: dict[str, _Look] = {}

    def look_at_all(self, candidates: Iterable[os.DirEntry]) -> list[_Look]:
        """Look at each of `candidates`, or remember it. What is no longer among them is forgotten."""
        looks = {entry.path: self._look(entry) for entry in candidates}
        self._looks = looks
        return list(looks.values())

    def _look(self, entry: os.DirEntry) -> _Look:
        if entry.is_symlink():
            return _look(entry, is_link=True)
        try:
            info = os.stat(entry.path)
        except OSError:
            return _look(entry)
        mark = (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns)
        before = self._looks.get(entry.path)
        now = since = time.monotonic()
        if before is not None and before.mark == mark:
            if before.settled:
                return before
            since = before.since
        look = _look(entry)
        # What could not be read may be readable the next time, without a change of the directory.
        settled = now - since > TIME_STEP and look.found.problem is None
        return dataclasses.replace(look, mark=mark, since=since, settled=settled)


def _look(entry: os.DirEntry, is_link: bool = False) -> _Look:
    """One listing answers everything where there is no manifest, in half the time that `discovery.look` takes."""
    try:
        names = os.listdir(entry.path)
    except OSError:
        names = [MANIFEST_NAME]  # the next look says what is wrong
    if MANIFEST_NAME in names:
        found = discovery.look(entry.path, entry.name)
    else:
        problem = None if TRAINER_STATE_NAME in names else str(discovery.NO_TRAINER_STATE)
        if SENTINEL_NAME in names:
            problem = str(discovery.INTERRUPTED)
        step = step_of(entry.name) or 0
        found = Found(entry.path, entry.name, step, None, problem, None, KEEP_NAME in names, checked=False)
    return _Look(found, not names, is_link, mark=None, since=0.0, settled=False)


def _identity(path: str | os.PathLike) -> tuple[int, int] | None:
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    # Windows and some FUSE mounts give no inode numbers; two zeros are not the same directory.
    return (info.st_dev, info.st_ino) if info.st_ino else None


# ---- Carry out ----


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a rotation has done.

    Args:
        gone (`tuple[str, ...]`):
            Paths that are out of use: in the trash, or deleted.
        put_off (`tuple[str, ...]`):
            Paths that stay until the next rotation, because the run directory was busy.
        problems (`tuple[str, ...]`):
            What could not be done, one text each with the path. Each was logged once.
    """

    gone: tuple[str, ...] = ()
    put_off: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def carry_out(
    plan: Plan,
    run_dir: str | os.PathLike,
    *,
    durable: bool,
    busy: Callable[[], bool] | None = None,
) -> Outcome:
    """Take out of use what `plan` says. Called by the publisher only. Raises nothing that a disk can cause.

    On disk afterwards: what goes lies in `<run_dir>/_trash/` (flushed if `durable`), still whole; empty directories
    are gone. Where renaming fails, the checkpoint first gets the sentinel, which makes readers pass it over, and is then
    deleted where it lies. Where that fails too it stays, and a warning says so once.

    Args:
        plan (`Plan`):
            What to do.
        run_dir (`str` or `os.PathLike`):
            The run directory it was made for.
        durable (`bool`):
            Flush each step before the next one.
        busy (`Callable[[], bool]`, *optional*):
            Asked before each checkpoint. While it answers `True`, an upload for instance reads the run directory, and
            what is left is put off until the next rotation.
    """
    _say_what_is_left_alone(plan)
    gone: list[str] = []
    problems: list[str] = []
    planned = (*plan.remove, *plan.retire)
    for number, path in enumerate(planned):
        if busy is not None and busy():
            return Outcome(tuple(gone), planned[number:], tuple(problems))
        # A user can pin it, or put something else in its place, while the plan is carried out.
        if os.path.islink(path) or not os.path.isdir(path) or os.path.lexists(os.path.join(path, KEEP_NAME)):
            continue
        problem = _remove_empty(path) if number < len(plan.remove) else _retire(run_dir, path, durable)
        if problem is None:
            gone.append(path)
        else:
            problems.append(problem)
            logger.warning_once(problem)
    return Outcome(tuple(gone), (), tuple(problems))


def _remove_empty(path: str) -> str | None:
    try:
        # Never deletes a file: if one has appeared in the meantime, the directory stays.
        os.rmdir(path)
    except OSError as error:
        return f"The empty directory {path} could not be removed ({error.strerror or error})."
    return None


def _retire(run_dir: str | os.PathLike, path: str, durable: bool) -> str | None:
    """Take one checkpoint out of use. Returns what went wrong, or `None`."""
    step = re.search(r"[0-9]+$", path)
    name = os.path.basename(path) if step is None else checkpoint_name(int(step.group()))
    try:
        disk.retire(run_dir, path, draw_nonce(), durable=durable, name=name)
    except OSError as error:
        if not os.path.lexists(path):
            return f"{path} was taken out of use, but that may not survive a power cut ({error.strerror or error})."
        return _delete_in_place(path, f"it could not be renamed: {error.strerror or error}", durable)
    logger.debug(f"{path} was taken out of use.")
    return None


def _delete_in_place(path: str, why: str, durable: bool) -> str | None:
    """Delete the checkpoint `path` where it lies, behind the sentinel. Returns what went wrong, or `None`.

    On disk afterwards: nothing; or after a kill or an error the directory with the sentinel, which no reader uses and
    `sweep_leftovers` deletes; or, if not even the sentinel could be written, the whole checkpoint.
    """
    sentinel = os.path.join(path, SENTINEL_NAME)
    was_there = os.path.lexists(sentinel)
    try:
        # No renaming here: that is what does not work.
        with open(sentinel, "wb") as file:
            file.write(f"{DELETION_MARK}\n".encode("ascii"))
            file.flush()
            if durable:
                disk.flush_descriptor(file.fileno(), sentinel)
        if durable:
            disk.flush_directory(path)
        names = os.listdir(path)
    except OSError as error:
        if not was_there:
            with contextlib.suppress(OSError):
                os.unlink(sentinel)
        return (
            f"{path} is beyond `save_total_limit` and stays: {why}, and it cannot be deleted either "
            f"({error.strerror or error})."
        )
    problems = [
        problem for name in names if name != SENTINEL_NAME for problem in disk.delete(os.path.join(path, name))
    ]
    # The sentinel goes last: what is left over must not look like a checkpoint.
    problems = problems or disk.delete(path)
    if not problems:
        return None
    return (
        f"{path} is beyond `save_total_limit` and could not be deleted entirely ({why}; {_first(problems)}). It is no "
        "longer used; what is left of it can be deleted by hand."
    )


# ---- Sweep ----


class Sweeper:
    """Deletes what lies in the trash of run directories on one background thread, off the training's critical path.

    The interpreter waits for the thread when it exits, so deleting is finished before the process ends. Only a kill
    leaves something, for `sweep_leftovers` at the next start. Used by the publisher only.
    """

    def __init__(self) -> None:
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._asked: dict[str, concurrent.futures.Future] = {}

    def sweep(self, run_dir: str | os.PathLike) -> None:
        """Have the trash of `run_dir` deleted. Returns at once."""
        run_dir = os.path.abspath(run_dir)
        before = self._asked.get(run_dir)
        if before is not None and not before.running() and not before.done():
            # It has not looked into the trash yet.
            return
        try:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint-sweep")
            self._asked[run_dir] = self._pool.submit(_drain, run_dir)
        except RuntimeError:
            # No thread can be had: the interpreter is on its way out, or the system has none left.
            _drain(run_dir)

    def wait(self, patience: float) -> None:
        """Wait until what was asked for is deleted, at most `patience` seconds."""
        concurrent.futures.wait(self._asked.values(), timeout=patience)

    def close(self, patience: float = SWEEP_PATIENCE) -> bool:
        """Wait until everything asked for is deleted.

        Returns:
            `bool`: whether it is. If not, a warning was logged, and deleting goes on until the process ends.
        """
        pool, self._pool = self._pool, None
        asked, self._asked = self._asked, {}
        if pool is None:
            return True
        pool.shutdown(wait=False)
        waiting = [
            run_dir for run_dir, future in asked.items() if not future.done() and os.path.isdir(trash_dir(run_dir))
        ]
        if waiting:
            logger.info(f"Waiting until old checkpoints are deleted: {', '.join(map(trash_dir, waiting))}")
        _, not_done = concurrent.futures.wait(asked.values(), timeout=patience)
        late = [trash_dir(run_dir) for run_dir, future in asked.items() if future in not_done]
        if late:
            logger.warning(
                f"Deleting old checkpoints takes more than {patience:.0f} s and goes on: {', '.join(late)}. What a kill "
                "leaves there is deleted when the next training starts."
            )
        return not late


def sweep_leftovers(run_dir: str | os.PathLike, sweeper: Sweeper | None = None) -> None:
    """Finish the deletions that an earlier process began. Called by the publisher, after the owner check.

    On disk afterwards: no checkpoint that carries rotation's own mark, and nothing with a name of ours in the trash (in
    the background, if there is a `sweeper`). Everything else in a directory called `_trash` stays. Never raises; what
    cannot be deleted is reported once.
    """
    try:
        with os.scandir(run_dir) as entries:
            paths = [e.path for e in entries if step_of(e.name) is not None and e.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for path in paths:
        if _is_being_deleted(path) and not os.path.lexists(os.path.join(path, KEEP_NAME)):
            problem = _delete_in_place(path, "an earlier process began to delete it there", durable=True)
            if problem is not None:
                logger.warning_once(problem)
    if sweeper is None:
        _drain(run_dir)
    else:
        sweeper.sweep(run_dir)


def _is_being_deleted(path: str) -> bool:
    try:
        with open(os.path.join(path, SENTINEL_NAME), "rb") as file:
            return file.read(len(DELETION_MARK)) == DELETION_MARK.encode("ascii")
    except OSError:
        return False


def _drain(run_dir: str | os.PathLike) -> None:
    problems = disk.drain_trash(run_dir)
    if problems and _is_new(problems[0]):
        logger.warning(
            f"Old checkpoints are out of use and could not be deleted entirely: {_first(problems)}. They are tried "
            "again at the next save; what is left can be deleted by hand."
        )


# ---- All of it ----


def rotate_run(
    run_dir: str | os.PathLike,
    *,
    limit: int | None,
    keep_every: int | None = None,
    protected: Mapping[str, str | os.PathLike | None] | None = None,
    own: Collection[int] = (),
    durable: bool = True,
    busy: Callable[[], bool] | None = None,
    sweeper: Sweeper | None = None,
    memory: Memory | None = None,
) -> Outcome:
    """Plan a rotation and carry it out. Called by the publisher, once the new checkpoint is published. Never raises.

    On disk afterwards: what `plan_rotation` keeps; the rest is in the trash, which the `sweeper` deletes in the
    background, or which is empty where there is none. The arguments are those of `plan_rotation` and `carry_out`.
    """
    try:
        plan = plan_rotation(run_dir, limit=limit, keep_every=keep_every, protected=protected, own=own, memory=memory)
    except OSError as error:
        return _not_looked_at(run_dir, error)
    return _carry_out_and_sweep(plan, run_dir, durable, busy, sweeper)


def clean_up_at_end(
    run_dir: str | os.PathLike,
    best: str | os.PathLike | None,
    *,
    keep_final: bool,
    keep_every: int | None = None,
    durable: bool = True,
    busy: Callable[[], bool] | None = None,
    sweeper: Sweeper | None = None,
) -> Outcome:
    """The rotation at the end of a training. Called by the publisher only. Never raises.

    On disk afterwards: with `keep_final` what was there. Without, the best checkpoint only, besides milestones and
    pinned ones; but everything that was there if the best one is missing or not complete.

    Args:
        run_dir (`str` or `os.PathLike`):
            The run directory.
        best (`str` or `os.PathLike`, *optional*):
            The best checkpoint, if one is known.
        keep_final (`bool`):
            `False` only if the user asked for the best one alone: `load_best_model_at_end=True` together with
            `save_total_limit=1`. A metric that is merely watched is no reason to delete the final state.
        keep_every, durable, busy, sweeper:
            As for `rotate_run`.
    """
    if keep_final or best is None:
        return Outcome()
    try:
        plan = plan_best_only(run_dir, best, keep_every=keep_every)
    except OSError as error:
        return _not_looked_at(run_dir, error)
    return _carry_out_and_sweep(plan, run_dir, durable, busy, sweeper)


def rotate(
    output_dir: str | os.PathLike,
    save_total_limit: int | None = None,
    best_model_checkpoint: str | os.PathLike | None = None,
    use_mtime: bool = False,
    checkpoint_prefix: str = CHECKPOINT_PREFIX,
) -> None:
    """Delete older checkpoints in `output_dir`: the body of `rotate_checkpoints`. One process calls it. Never raises.

    On disk afterwards: the newest complete one, the best, pinned ones, and others up to `save_total_limit`; what went
    is deleted.

    Args:
        output_dir (`str` or `os.PathLike`):
            The directory that holds the checkpoints.
        save_total_limit (`int`, *optional*):
            How many to keep. Nothing is deleted if it is `None` or not above 0.
        best_model_checkpoint (`str` or `os.PathLike`, *optional*):
            The best checkpoint, which stays.
        use_mtime (`bool`, *optional*, defaults to `False`):
            Has no effect: the order is that of `get_last_checkpoint`, and modification times say nothing about it.
        checkpoint_prefix (`str`, *optional*, defaults to `"checkpoint"`):
            Directories called `<prefix>-<digits>` are looked at. With another prefix it is not known what belongs into
            one, so each that holds anything counts as complete, in the order of steps.
    """
    if save_total_limit is None or save_total_limit <= 0:
        return
    protected = {"the best": best_model_checkpoint}
    if checkpoint_prefix == CHECKPOINT_PREFIX:
        rotate_run(output_dir, limit=save_total_limit, protected=protected)
        return
    try:
        listing = _list_by_prefix(output_dir, checkpoint_prefix)
        plan = _Planner(output_dir, listing, ()).plan(save_total_limit, None, protected)
    except FileNotFoundError:
        return
    except OSError as error:
        _not_looked_at(output_dir, error)
        return
    _carry_out_and_sweep(plan, output_dir, True, None, None)


def _list_by_prefix(output_dir: str | os.PathLike, prefix: str) -> _Listing:
    """The directories `<prefix>-<digits>` in `output_dir`, lowest step first."""
    pattern = re.compile(rf"{re.escape(prefix)}-([0-9]+)")
    with os.scandir(output_dir) as entries:
        matches = [(entry, pattern.fullmatch(entry.name)) for entry in entries if _is_directory(entry)]
    found: list[Found] = []
    empty: set[str] = set()
    for entry, match in matches:
        if match is None:
            continue
        names = os.listdir(entry.path)
        if not names:
            empty.add(entry.name)
        problem = str(discovery.INTERRUPTED) if SENTINEL_NAME in names else None
        # Looked at already: nothing is known of what should be inside.
        step = int(match.group(1))
        found.append(Found(entry.path, entry.name, step, None, problem, None, KEEP_NAME in names, checked=True))
    links = {entry.name for entry, _ in matches if entry.is_symlink()}
    return _Listing(sorted(found, key=lambda entry: (entry.step, entry.name)), empty, links)


def _carry_out_and_sweep(
    plan: Plan,
    run_dir: str | os.PathLike,
    durable: bool,
    busy: Callable[[], bool] | None,
    sweeper: Sweeper | None,
) -> Outcome:
    outcome = carry_out(plan, run_dir, durable=durable, busy=busy)
    if sweeper is None:
        _drain(run_dir)
    else:
        sweeper.sweep(run_dir)
    return outcome


# ---- Telling ----

# What was said already. A rotation meets the same obstacle at each save.
_said: set[str] = set()


def _is_new(text: str) -> bool:
    if text in _said:
        return False
    _said.add(text)
    return True


def _say_what_is_left_alone(plan: Plan) -> None:
    new = [path for path, problem in plan.left_alone.items() if _is_new(f"{os.path.realpath(path)}: {problem}")]
    if new:
        texts = (f"{path} ({disk.format_size(_size(path))}): {plan.left_alone[path]}" for path in new)
        logger.warning(
            "`save_total_limit` does not count these and does not delete them, because they are not complete "
            f"checkpoints: {'; '.join(texts)}. Delete them if they are not needed."
        )


def _size(path: str) -> int:
    try:
        return sum(info.st_size for _, info in disk.walk_files(path))
    except OSError:
        return 0


def _first(problems: list[str]) -> str:
    return problems[0] if len(problems) == 1 else f"{problems[0]} and {len(problems) - 1} more"


def _not_looked_at(run_dir: str | os.PathLike, error: OSError) -> Outcome:
    problem = f"Older checkpoints in {os.fspath(run_dir)} could not be looked at ({error.strerror or error})."
    logger.warning_once(problem)
    return Outcome(problems=(problem,))
