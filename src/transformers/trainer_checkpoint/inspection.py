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
"""What people and scripts ask about a run directory: what is there, what would be resumed, what is left over.

`list_checkpoints` and `verify_checkpoint` are the public functions, and the commands `list`, `verify`, `explain` and
`clean` (`__main__`, and `transformers checkpoints`) print what this module finds. Only `clean` changes the disk.
"""

import contextlib
import dataclasses
import os
import re
import stat
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from typing import Any

from . import disk, structure
from .discovery import GONE, LOOKS, ORDER, Found, find_checkpoints, in_order, is_gone, scan
from .errors import CheckpointOwnedError
from .layout import (
    MANIFEST_NAME,
    OWNER_NAME,
    TEMPORARY_SUFFIX,
    TRAINER_STATE_NAME,
    is_disk_token,
    is_retired_name,
    owner_generation,
    staging_run_dir,
    step_of,
    trash_dir,
)
from .verification import FULL, NO_MANIFEST, ONLY_SIZES, SIZE, UNREADABLE, VerifyResult, verify


# What a probe of the file system leaves when it is killed (see `disk.probe_modes`, `disk.probe_rename`).
_PROBE = re.compile(rf"^(modes|rename)-[0-9a-f]{{8}}{re.escape(TEMPORARY_SUFFIX)}(-2)?\Z")
_REPLACED = re.compile(r"^checkpoint-\d+\.replaced-[0-9a-f]{16}\Z")

# What becomes of a leftover.
DELETE, PUBLISH, KEEP = "delete", "publish", "keep"


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """One checkpoint of a run directory.

    Args:
        path, name (`str`):
            Where it is.
        step (`int`):
            The step of what is inside.
        sequence (`int`, *optional*):
            Its place among the checkpoints of the run directory; `None` without a manifest.
        saved_at (`str`, *optional*):
            When it was saved, for people: the time in the manifest, or of the Trainer's state. ISO 8601 in UTC.
        size, files (`int`):
            Bytes and number of files.
        state (`tuple[str, ...]`):
            What is inside, of `"model"`, `"optimizer"`, `"scheduler"`, `"scaler"`, `"rng"`, `"trainer"`.
        world_size (`int`, *optional*):
            How many processes saved it, if that is known.
        sealed (`bool`):
            Whether it has a manifest.
        pinned (`bool`):
            Whether it has a `KEEP` file, so that rotation leaves it alone.
        resumable (`bool`):
            Whether training can go on from it, as far as was looked.
        verdict (`str`):
            As in [`VerifyResult`].
        problems, notes (`tuple[str, ...]`):
            What is wrong with it, and what is worth saying besides.
    """

    path: str
    name: str
    step: int
    sequence: int | None
    saved_at: str | None
    size: int
    files: int
    state: tuple[str, ...]
    world_size: int | None
    sealed: bool
    pinned: bool
    resumable: bool
    verdict: str
    problems: tuple[str, ...]
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Leftover:
    """Something in a run directory that is no checkpoint in use.

    Args:
        path (`str`):
            Where it is.
        text (`str`):
            What it is.
        action (`str`):
            What becomes of it: `"delete"` (by `clean`, or by the next training), `"publish"` (by the next training) or
            `"keep"`.
        size (`int`):
            Bytes.
    """

    path: str
    text: str
    action: str
    size: int


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What `resume_from_checkpoint=True` would pick, and why.

    Args:
        run_dir (`str`):
            The run directory.
        chosen (`str`, *optional*):
            The checkpoint that would be resumed from; `None` if there is none.
        notes (`tuple[str, ...]`):
            What is worth saying of it.
        passed_over (`tuple[tuple[str, str], ...]`):
            Path and reason of each newer one, newest first.
        older (`tuple[str, ...]`):
            The paths of older ones, newest first. They were not looked at.
        leftovers (`tuple[Leftover, ...]`):
            What is in staging and in the trash.
        owner (`str`, *optional*):
            Who saves in this run directory at this moment, or may.
    """

    run_dir: str
    chosen: str | None
    notes: tuple[str, ...]
    passed_over: tuple[tuple[str, str], ...]
    older: tuple[str, ...]
    leftovers: tuple[Leftover, ...]
    owner: str | None


# ---- Questions ----


def list_checkpoints(run_dir: str | os.PathLike, *, level: str = SIZE) -> list[CheckpointInfo]:
    """The checkpoints of a run directory, oldest first, whoever wrote them. Changes nothing on disk.

    Args:
        run_dir (`str` or `os.PathLike`):
            The `output_dir` of a training.
        level (`str`, *optional*, defaults to `"size"`):
            How closely each one is looked at: `"size"` compares names and sizes with the manifest, or reads headers
            where there is none; `"full"` reads every byte.

    Raises:
        `OSError`: of the kind that says what is wrong with `run_dir`: not there, not a directory, not readable.
    """
    known: dict[str, tuple[Found, CheckpointInfo]] = {}
    for _ in range(LOOKS):
        infos, moved = [], False
        for found in find_checkpoints(run_dir, check=ORDER):
            seen, info = known.get(found.name, (None, None))
            if info is None or seen != found:
                info = _info(found, level)
            if info is None:
                moved = True  # rotated away: a newer one has come for it
            else:
                known[found.name] = found, info
                infos.append(info)
        if not moved:
            break
    return infos


def verify_checkpoint(
    path: str | os.PathLike,
    *,
    quick: bool = False,
    progress: Callable[[int], None] | None = None,
    show_progress: bool = False,
) -> VerifyResult:
    """Check whether the checkpoint at `path` is what was saved. Changes nothing on disk, loads nothing.

    Args:
        path (`str` or `os.PathLike`):
            A checkpoint directory, of any origin and name.
        quick (`bool`, *optional*, defaults to `False`):
            Compare sizes only, and read no contents.
        progress (`Callable[[int], None]`, *optional*):
            Called with the number of bytes of each piece that was read, from several threads.
        show_progress (`bool`, *optional*, defaults to `False`):
            Show a bar with the expected time if it takes longer than a few seconds.

    Returns:
        `VerifyResult`: the verdict, and every file that is not what was saved.

    Raises:
        `OSError`: of the kind that says what is wrong with `path`: not there, not a directory, not readable.
        `ValueError`: `path` is a run directory.
    """
    # A model and a `trainer_state.json` lie in a run directory too, after `save_model` and `save_state`.
    if not os.path.lexists(os.path.join(path, MANIFEST_NAME)):
        inside = [found.name for found in find_checkpoints(path, check=ORDER)]
        if inside:
            raise ValueError(
                f"{os.fspath(path)} is no checkpoint, but a run directory with {len(inside)} of them; verify one of them, "
                f"for instance {os.path.join(path, inside[-1])}"
            )
    return verify(path, SIZE if quick else FULL, progress=progress, show_progress=show_progress)


def explain(
    run_dir: str | os.PathLike,
    *,
    level: str = FULL,
    progress: Callable[[int], None] | None = None,
    show_progress: bool = False,
) -> Explanation:
    """What `resume_from_checkpoint=True` would pick in `run_dir`, and why not the newer ones. Changes nothing on disk.

    Args:
        run_dir (`str` or `os.PathLike`):
            The `output_dir` of a training.
        level (`str`, *optional*, defaults to `"full"`):
            How candidates are verified; the training argument `resume_verify` says how resuming does it.
        progress (`Callable[[int], None]`, *optional*):
            Called with the number of bytes of each piece that was read, from several threads.
        show_progress (`bool`, *optional*, defaults to `False`):
            Show a bar for each candidate that takes longer than a few seconds.

    Raises:
        `OSError`: of the kind that says what is wrong with `run_dir`: not there, not a directory, not readable.
    """
    run_dir = os.fspath(run_dir)
    known: dict[str, tuple[Found, tuple[str | None, tuple[str, ...]]]] = {}

    def judge(checkpoint: Found) -> tuple[str | None, tuple[str, ...]]:
        """Why it is passed over, or `None`, and the notes. No byte is read twice because another one has gone."""
        seen, judgement = known.get(checkpoint.path, (None, (GONE, ())))
        if seen != checkpoint or judgement[0] == GONE:
            judgement = _judge(checkpoint, level, progress, show_progress)
            known[checkpoint.path] = checkpoint, judgement
        return judgement

    for _ in range(LOOKS):
        explanation, moved = _explain_once(run_dir, judge)
        if not moved:
            break
    return explanation


def find_leftovers(run_dir: str | os.PathLike) -> list[Leftover]:
    """What is in staging and in the trash of `run_dir`, and what else a killed save left. Changes nothing on disk.

    Raises:
        `OSError`: of the kind that says what is wrong with `run_dir`: not there, not a directory, not readable.
    """
    run_dir = os.fspath(run_dir)
    leftovers = []
    with scan(run_dir) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        path = os.path.join(run_dir, name)
        if _PROBE.match(name) or is_disk_token(name):
            leftovers.append(_leftover(path, "left by a look at what the file system can", DELETE))
        elif _REPLACED.match(name):
            leftovers.append(_leftover(path, "stood in the way of a checkpoint; nobody but you may delete it", KEEP))
    leftovers += _in_staging(run_dir) + _in_trash(run_dir)
    # Whoever saves there publishes and deletes meanwhile.
    return [leftover for leftover in leftovers if os.path.lexists(leftover.path)]


def clean(run_dir: str | os.PathLike, *, delete: bool = False) -> tuple[list[Leftover], list[str]]:
    """Delete what killed saves and rotations left in `run_dir`: names of ours only, and nothing that is complete.

    A complete checkpoint in staging stays: the next training publishes it. On disk afterwards, without `delete`: what
    was there. With `delete`: no leftover whose action is `"delete"`, as far as the file system allowed.

    Args:
        run_dir (`str` or `os.PathLike`):
            The `output_dir` of a training.
        delete (`bool`, *optional*, defaults to `False`):
            Really delete. The run directory is claimed while leftovers of saves go, so that no training begins. What
            is in the trash belongs to nobody, and goes after that: it may be large, and a training must not wait.

    Returns:
        `tuple[list[Leftover], list[str]]`: what was found, and what could not be deleted and why.

    Raises:
        [`CheckpointOwnedError`]: somebody who is alive saves in `run_dir`.
        `OSError`: `run_dir` is not there, not a directory, not readable, or, with `delete`, not writable.
    """
    run_dir = os.fspath(run_dir)
    leftovers = find_leftovers(run_dir)
    if not any(leftover.action == DELETE for leftover in leftovers):
        return leftovers, []
    if not delete:
        owner, alive = _owner(run_dir)
        if owner is not None and alive:
            raise CheckpointOwnedError(run_dir, owner)
        return leftovers, []
    problems: list[str] = []
    in_trash = os.path.join(trash_dir(run_dir), "")
    with _claimed(run_dir):
        # Looked at again: only now does nobody else change it.
        leftovers = find_leftovers(run_dir)
        deletable = [leftover.path for leftover in leftovers if leftover.action == DELETE]
        for path in deletable:
            if not path.startswith(in_trash):
                problems += disk.delete(path)
    for path in deletable:
        if path.startswith(in_trash):
            problems += disk.delete(path)
    # A training that has come meanwhile may be about to put something there; and other people keep things in a
    # directory of this name too.
    with contextlib.suppress(CheckpointOwnedError, OSError), _claimed(run_dir):
        os.rmdir(trash_dir(run_dir))
    return leftovers, problems


@contextlib.contextmanager
def _claimed(run_dir: str) -> Generator[None, None, None]:
    from . import owner

    owner.claim(run_dir, durable=False)
    try:
        yield
    finally:
        owner.release(run_dir)


# ---- One checkpoint ----


def _info(found: Found, level: str) -> CheckpointInfo | None:
    """What there is to say of `found`; `None` if it is not there any more."""
    try:
        result = verify(found.path, level)
    except OSError as error:
        # It can be a directory nobody may enter.
        problem = structure.unreadable(found.name, error)
        result = VerifyResult(found.path, UNREADABLE, (problem,), (), None, 0, 0)
    head = result.head
    state, world_size, saved_at = (), None, None
    with contextlib.suppress(OSError):
        if head is not None:
            state, world_size, saved_at = head.state, head.world_size, head.sealed_at or None
        else:
            state, world_size = structure.state_inside(found.path), structure.told_world_size(found.path)
            changed = os.stat(os.path.join(found.path, TRAINER_STATE_NAME)).st_mtime
            saved_at = datetime.fromtimestamp(changed, UTC).isoformat(timespec="seconds")
    if is_gone(found.path):
        return None
    return CheckpointInfo(
        path=found.path,
        name=found.name,
        step=found.step,
        sequence=None if head is None else head.sequence,
        saved_at=saved_at,
        size=result.size,
        files=result.files,
        state=state,
        world_size=world_size,
        sealed=head is not None,
        pinned=found.pinned,
        resumable=result.ok and (head is None or head.resumable),
        verdict=result.verdict,
        problems=tuple(map(str, result.problems)),
        # Said by the level and by the verdict already, for every one of them.
        notes=tuple(note for note in result.notes if note not in (ONLY_SIZES, NO_MANIFEST)),
    )


# ---- What would be resumed ----


def _judge(
    checkpoint: Found, level: str, progress: Callable[[int], None] | None, show_progress: bool
) -> tuple[str | None, tuple[str, ...]]:
    reason, notes = checkpoint.why_not, ()
    if reason is None:
        try:
            result = verify(checkpoint.path, level, progress=progress, show_progress=show_progress)
        except FileNotFoundError:
            return GONE, ()
        reason, notes = "; ".join(map(str, result.problems)) or None, result.notes
    if reason is not None and is_gone(checkpoint.path):
        reason = GONE
    return reason, notes


def _explain_once(
    run_dir: str, judge: Callable[[Found], tuple[str | None, tuple[str, ...]]]
) -> tuple[Explanation, bool]:
    """What one listing shows, without what has gone since; and whether something went."""
    # Staging first: what is published meanwhile is found in both places, and not in neither.
    leftovers = find_leftovers(run_dir)
    staged = _staged(
        run_dir, {os.path.basename(leftover.path) for leftover in leftovers if leftover.action == PUBLISH}
    )
    found = {checkpoint.name: checkpoint for checkpoint in find_checkpoints(run_dir, check=ORDER)} | staged
    passed_over: list[tuple[str, str]] = []
    chosen, notes, moved = None, (), False
    left = in_order(found.values())
    while left and chosen is None:
        checkpoint = left.pop()
        path = os.path.join(run_dir, checkpoint.name)
        reason, told = judge(checkpoint)
        if reason == GONE:
            moved = True
        elif reason is not None:
            passed_over.append((path, reason))
        else:
            chosen, notes = path, told
            if checkpoint.name in staged:
                notes += ("is complete in staging and will be published first",)
    explanation = Explanation(
        run_dir,
        chosen,
        notes,
        tuple(passed_over),
        tuple(os.path.join(run_dir, checkpoint.name) for checkpoint in reversed(left)),
        tuple(leftovers),
        _owner(run_dir)[0] if leftovers or os.path.isdir(staging_run_dir(run_dir)) else None,
    )
    return explanation, moved


# ---- Leftovers ----


def _in_staging(run_dir: str) -> list[Leftover]:
    staging = staging_run_dir(run_dir)
    names = _names_in(staging)
    if not names:
        return []
    from . import owner, publishing

    if not owner.staging_is_ours(run_dir):
        return [
            _leftover(os.path.join(staging, name), "not left by a save of this library", KEEP)
            for name in names
            if step_of(name) is not None
        ]
    leftovers = []
    for name in names:
        path = os.path.join(staging, name)
        if name.endswith(TEMPORARY_SUFFIX):
            leftovers.append(_leftover(path, "a half-written file", DELETE))
        elif step_of(name) is not None and not _is_directory(path):
            leftovers.append(_leftover(path, "not left by a save of this library", KEEP))
        elif step_of(name) is not None:
            target = os.path.join(run_dir, name)
            try:
                reason = publishing.why_not_to_publish(path, target)
            except FileNotFoundError:  # it was published meanwhile, or what had its name was rotated away
                if is_gone(path):
                    continue
                reason = publishing.why_not_to_publish(path, target)
            if reason is None:
                leftovers.append(_leftover(path, "complete: the next training publishes it", PUBLISH))
            else:
                leftovers.append(_leftover(path, f"left by a save that was interrupted ({reason})", DELETE))
    return leftovers


def _in_trash(run_dir: str) -> list[Leftover]:
    trash = trash_dir(run_dir)
    return [
        _leftover(os.path.join(trash, name), "out of use, about to be deleted", DELETE)
        for name in _names_in(trash)
        if is_retired_name(name)
    ]


def _staged(run_dir: str, names: set[str]) -> dict[str, Found]:
    """The complete checkpoints in staging, by the names they will have."""
    if not names:
        return {}
    try:
        listed = find_checkpoints(staging_run_dir(run_dir), check=ORDER)
    except FileNotFoundError:  # published meanwhile
        return {}
    return {found.name: found for found in listed if found.name in names}


def _owner(run_dir: str) -> tuple[str | None, bool | None]:
    """Who claims `run_dir`, and whether that process is alive; `None` for the second if it cannot be known from here."""
    if not _is_claimed(run_dir):
        return None, None
    from . import owner

    record = owner.read_owner(run_dir)
    if record is None:
        if not _is_claimed(run_dir):  # released meanwhile
            return None, None
        return f"a process whose record ({OWNER_NAME}) cannot be read", None
    if record.released:
        return None, False
    alive = record.process.alive()
    return (None if alive is False else str(record)), alive


def _is_claimed(run_dir: str) -> bool:
    return any(owner_generation(name) is not None for name in _names_in(staging_run_dir(run_dir)))


def _names_in(directory: str) -> list[str]:
    """The names in a real directory; nothing for a link, which may lead anywhere, or for what is not there."""
    try:
        return sorted(os.listdir(directory)) if _is_directory(directory) else []
    except (FileNotFoundError, NotADirectoryError):  # its last name was taken out, and it went too
        return []


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _leftover(path: str, text: str, action: str) -> Leftover:
    try:
        size = (
            sum(info.st_size for _, info in disk.walk_files(path)) if _is_directory(path) else os.lstat(path).st_size
        )
    except OSError:
        size = 0
    return Leftover(path, text, action, size)


# ---- For printing ----


def format_time(saved_at: str | None) -> str:
    """A time as people here read it: local, to the minute."""
    try:
        return datetime.fromisoformat(saved_at or "").astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "-"


def printable(text: str) -> str:
    """`text` for a terminal. File names may come from someone else, and a terminal obeys control characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def as_json(value: Any) -> Any:
    """Results of this module as JSON can hold them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, VerifyResult):
            fields["ok"] = value.ok
        return fields
    if isinstance(value, dict):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(inner) for inner in value]
    return value
