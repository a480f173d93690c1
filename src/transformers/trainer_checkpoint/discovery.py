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
"""Finding the checkpoints of a run directory: which there are, in what order, and which can be trusted.

Readers only: nothing here changes the disk, and nothing reads weights. Clocks and modification times are never looked
at. What a checkpoint's content says of itself is read in `structure` (without a manifest) and compared with the
manifest in `compare`.

**The order.** A sealed checkpoint (one whose manifest reads well) has a sequence number; one without goes by the step in
its name:

1. Sealed ones: by sequence number. Equal numbers come from copies; then the step in the manifest decides, and of two
   copies the one whose name carries that step is the newer.
2. Ones without a manifest: by step among themselves.
3. Between the two: one without a manifest is older than a sealed one that names it in `saw`, and so are all those with
   lower steps (rule 2); otherwise it is newer.

A directory that holds the manifest of another step (`checkpoint-30` copied from `checkpoint-20`) is what its manifest
says: it has the place and the step of its content, and a note.

**What a difference to the manifest means.** A file that is listed and gone is damage. So is one of another size or
digest, unless it is a text file that training does not resume from (`is_text`) and still reads well: people correct a
model card, a tokenizer's settings or the `config.json`, and the checkpoint counts as modified. Whoever changes weights
or state on purpose seals the checkpoint again, or moves its manifest away. A file that was added is a note too (EMA
weights), unless loading would read it in place of what was saved.
"""

import contextlib
import dataclasses
import errno
import json
import logging
import os
import re
import stat
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from . import disk, structure
from .errors import ManifestError, NewerManifestError
from .layout import (
    CHECKPOINT_PREFIX,
    FILE_LIST_PATTERN,
    KEEP_NAME,
    MANIFEST_NAME,
    SENTINEL_NAME,
    TEMPORARY_SUFFIX,
    TRAINER_STATE_NAME,
    UNLISTED_NAMES,
    step_of,
)
from .manifest import FileEntry, Head, read_entries, read_head


logger = logging.getLogger(__name__)

INTERRUPTED = structure.Problem(SENTINEL_NAME, "is there: the save was interrupted")
NO_TRAINER_STATE = structure.Problem(TRAINER_STATE_NAME, "is missing")
GONE = "it is not there any more"
REPLACED = "another one has taken its name"

# A training may save and rotate while somebody looks: so often is looked again before the last look counts.
LOOKS = 5

# Levels of `find_checkpoints`.
ORDER, STAT, ALL = "order", "stat", "all"

# Text files that people edit and training does not resume from. Everything else counts as state.
_TEXT_SUFFIXES = (".md", ".txt", ".jinja", ".py", ".yaml", ".yml")
_TEXT_NAMES = structure.JSON_TEXTS | {"modelcard.json"}
_STATE_FOLDERS = ("global_step", "pytorch_model_fsdp", "optimizer")
_TORCH_WEIGHTS = re.compile(r"^pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?\Z")
# Files that some way of loading looks for by name: one of these that was not saved would be read in place of what was.
_LOADED_BY_NAME = re.compile(
    r"^(model\.safetensors|pytorch_model\.bin|adapter_model\.(safetensors|bin)|pytorch_model_fsdp\.bin"
    r"|.*\.index\.json|optimizer\.(pt|bin)|scheduler\.pt|scaler\.pt|rng_state(_\d+)?\.pth|rank\d+-of-\d+-optimizer\.pt"
    r"|trainer_state\.json|latest)$"
)

_LAST_DIGITS = re.compile(r"[0-9]+\Z")


@dataclasses.dataclass(frozen=True)
class Found:
    """One `checkpoint-<digits>` directory of a run directory.

    Args:
        path (`str`):
            The run directory as it was given, joined with `name`.
        name (`str`):
            The directory's name.
        step (`int`):
            The step of what is inside: the manifest's, or without one the step in the name.
        head (`Head`, *optional*):
            The head of its manifest; `None` if it has no manifest, or one that cannot be used.
        problem (`str`, *optional*):
            `None` if it is complete; else what is wrong, naming the file. Only as good as the look: see `checked`.
        note (`str`, *optional*):
            What is worth saying of a checkpoint that can be loaded nevertheless.
        pinned (`bool`):
            It has a `KEEP` file.
        checked (`bool`):
            Whether its files were looked at. If not, `problem` tells of its head and its name only.
    """

    path: str
    name: str
    step: int
    head: Head | None
    problem: str | None
    note: str | None
    pinned: bool
    checked: bool = True

    @property
    def complete(self) -> bool:
        return self.problem is None

    @property
    def resumable(self) -> bool:
        """Whether the Trainer's state is inside. Only a sealed checkpoint can be complete without (adapter only)."""
        return self.head.resumable if self.head is not None else self.complete

    @property
    def why_not(self) -> str | None:
        """Why no training can go on from it, or `None` if one can."""
        if self.problem is None and not self.resumable:
            inside = ", ".join(self.head.state) if self.head and self.head.state else "no state"
            return f"it was saved without the state of the Trainer ({inside} only); it can be loaded by path"
        return self.problem


# ---- What others call ----


def find_checkpoints(run_dir: str | os.PathLike, *, check: str = STAT) -> list[Found]:
    """The `checkpoint-<digits>` directories in `run_dir`, oldest first, in the order of this module.

    Nothing on disk changes. May run on any rank; what several ranks do with the answer is theirs to agree on. One that
    is rotated away meanwhile is not in the answer: a newer one has come for it, so the directory is listed again.

    Args:
        run_dir (`str` or `os.PathLike`):
            The run directory.
        check (`str`, *optional*, defaults to `"stat"`):
            How closely to look. `"order"`: names and heads. `"stat"`: also the files of the newest ones, by size and
            structure, until one is found that training can resume from. `"all"`: the files of every one.

    Raises:
        `OSError`: of the kind that says what is wrong with `run_dir`: not there, not a directory, not readable.
    """
    if check not in (ORDER, STAT, ALL):
        raise ValueError(f"`check` is {check!r}; it must be {ORDER!r}, {STAT!r} or {ALL!r}")
    return _find(run_dir, CHECKPOINT_PREFIX, check)


def newest_complete_checkpoint(folder: str | os.PathLike) -> str | None:
    """The newest checkpoint in `folder` that training can resume from, or `None`. The body of `get_last_checkpoint`.

    Reads heads, and of the newest candidates sizes and headers; no weights, and no file lists of older ones. Says in one
    warning which newer directories it passed over and why; if there are checkpoints and none will do, that is logged as
    an error, because a script that hands the `None` on starts from zero. Changes nothing on disk. Any rank may call it.

    Raises:
        `OSError`: of the kind that says what is wrong with `folder`: not there, not a directory, not readable.
    """
    found = find_checkpoints(folder, check=STAT)
    passed_over = []
    for checkpoint in reversed(found):
        reason = checkpoint.why_not
        if reason is None:
            if passed_over:
                logger.warning(f"Passing over {_list(passed_over)}. The newest complete one is {checkpoint.path}.")
            elif checkpoint.note:
                logger.warning(f"{checkpoint.path}: {checkpoint.note}.")
            return checkpoint.path
        passed_over.append((checkpoint, reason))
    if passed_over:
        logger.error(
            f"No checkpoint in {os.fspath(folder)} can be resumed from: {_list(passed_over)}. A training that is "
            "started now starts from zero."
        )
    return None


def sorted_checkpoints(
    output_dir: str | os.PathLike,
    checkpoint_prefix: str = CHECKPOINT_PREFIX,
    use_mtime: bool = False,
    best_model_checkpoint: str | None = None,
) -> list[str]:
    """Paths of the checkpoints in `output_dir`, oldest first. The body of `sort_checkpoints`.

    The order is that of this module, for names `<prefix>-<digits>` only. Changes nothing on disk.

    Args:
        output_dir (`str` or `os.PathLike`):
            The run directory. One that does not exist has no checkpoints.
        checkpoint_prefix (`str`, *optional*, defaults to `"checkpoint"`):
            What the names start with.
        use_mtime (`bool`, *optional*, defaults to `False`):
            Accepted and without effect: a modification time says who touched a directory, not what is in it.
        best_model_checkpoint (`str`, *optional*):
            Moved to the place before the last if it is among them and not the last, whichever way its path is written.

    Raises:
        `OSError`: if `output_dir` exists and cannot be read.
    """
    try:
        found = _find(output_dir, checkpoint_prefix, ORDER)
    except (FileNotFoundError, NotADirectoryError):
        return []
    paths = [str(Path(output_dir) / checkpoint.name) for checkpoint in found]
    if best_model_checkpoint is not None and paths:
        best = os.path.realpath(best_model_checkpoint)
        for path in paths[:-1]:
            if os.path.realpath(path) == best:
                paths.remove(path)
                paths.insert(-1, path)
                break
    return paths


def look_closely(checkpoint: Found) -> Found:
    """`checkpoint` with its files looked at: sizes against the manifest, or structure where there is none.

    What is wrong with it counts only if its head is still the one that was read: it may have been sealed again while its
    files were looked at. One of another save, or whose head could not be read before, has another place in the order:
    looking closer never makes it good.
    """
    if checkpoint.checked:
        return checkpoint
    for _ in range(LOOKS):
        closer = _with_files(checkpoint)
        if closer.problem is None:
            break
        if is_gone(checkpoint.path):
            return dataclasses.replace(closer, problem=GONE)
        again = look(checkpoint.path, checkpoint.name)
        if again.head is None or checkpoint.head is None or again.head == checkpoint.head:
            break
        if again.head.nonce != checkpoint.head.nonce:
            return dataclasses.replace(closer, problem=REPLACED)
        checkpoint = again
    return closer


def _with_files(checkpoint: Found) -> Found:
    problem, notes = checkpoint.problem, [checkpoint.note]
    if problem is None:
        problems: list[structure.Problem]
        try:
            if checkpoint.head is not None:
                comparison = compare(checkpoint.path, checkpoint.head)
                problems = comparison.problems
                notes += comparison.notes()
            else:
                problems = check_unsealed(checkpoint.path)
        except OSError as error:
            problems = [structure.unreadable(checkpoint.name, error)]
        problem = "; ".join(_some([str(problem) for problem in problems])) or None
    note = "; ".join(filter(None, notes)) or None
    return dataclasses.replace(checkpoint, problem=problem, note=note, checked=True)


def look_at(path: str | os.PathLike) -> Found:
    """What `find_checkpoints` would say of the one directory at `path`, whatever its name, looked at closely.

    Raises:
        `OSError`: of the kind that says what is wrong with `path`: not there, not a directory, not readable.
    """
    path = os.fspath(path)
    with scan(path):
        pass
    return look_closely(look(path, os.path.basename(os.path.abspath(path))))


# ---- The order ----


def in_order(checkpoints: Iterable[Found], prefix: str = CHECKPOINT_PREFIX) -> list[Found]:
    """`checkpoints` oldest first: a total order that depends on names and heads only. See the top of this module."""
    sealed: list[tuple[Head, Found]] = []
    unsealed: list[Found] = []
    for checkpoint in checkpoints:
        if checkpoint.head is None:
            unsealed.append(checkpoint)
        else:
            sealed.append((checkpoint.head, checkpoint))
    sealed.sort(
        key=lambda pair: (
            pair[0].sequence,
            pair[0].step,
            pair[1].name == f"{prefix}-{pair[0].step}",
            len(pair[1].name),
            pair[1].name,
        )
    )
    unsealed.sort(key=lambda checkpoint: (checkpoint.step, len(checkpoint.name), checkpoint.name))
    first_seen_by: dict[str, int] = {}
    for at, (head, _) in enumerate(sealed):
        for name in head.saw:
            first_seen_by.setdefault(name, at)
    ordered = [checkpoint for _, checkpoint in sealed]
    # From the newest down: one that was seen takes all those of lower steps with it.
    slot = len(ordered)
    slots = []
    for checkpoint in reversed(unsealed):
        slot = min(slot, first_seen_by.get(checkpoint.name, slot))
        slots.append((slot, checkpoint))
    for slot, checkpoint in slots:
        ordered.insert(slot, checkpoint)
    return ordered


# ---- A sealed checkpoint against its manifest ----


@dataclasses.dataclass
class Comparison:
    """How a sealed checkpoint differs from its manifest.

    Args:
        entries (`dict[str, FileEntry]`):
            The files the manifest lists.
        problems (`list[Problem]`):
            What speaks against loading it.
        modified, added (`list[str]`):
            Files that differ and that may.
        part (`str`, *optional*):
            Which part of a checkpoint this is, if it is not a whole one.
    """

    entries: dict[str, FileEntry]
    problems: list[structure.Problem]
    modified: list[str]
    added: list[str]
    part: str | None = None

    def notes(self) -> list[str]:
        notes = []
        if self.modified:
            notes.append(f"modified after the seal: {', '.join(_some(sorted(self.modified)))}")
        if self.added:
            notes.append(f"added after the seal: {', '.join(_some(sorted(self.added)))}")
        if self.part is not None:
            notes.append(self.part)
        return notes


def compare(path: str, head: Head) -> Comparison:
    """Compare the files of a sealed checkpoint with its manifest, by name and size. Reads no digests.

    Raises:
        `OSError`: the checkpoint cannot be looked at. A manifest whose list cannot be used is a problem, not an error.
    """
    there = files_below(path)
    try:
        entries = read_entries(path, head)
    except ManifestError as error:
        return Comparison({}, [manifest_problem(error, path, head.files.name)], [], [])
    except OSError as error:
        return Comparison({}, [structure.unreadable(head.files.name, error)], [], [])
    result = Comparison(entries, [], [], [])
    if SENTINEL_NAME in there:
        result.problems.append(INTERRUPTED)
    for name in (MANIFEST_NAME, head.files.name):
        if name in there and stat.S_ISLNK(there[name].st_mode) and structure.leaves(path, name):
            result.problems.append(structure.Problem(name, structure.REFUSED_LINK))
    for name, entry in entries.items():
        problem = _compare_file(path, name, entry, there.get(name), result.modified)
        if problem is not None:
            result.problems.append(problem)
    for name in sorted(there.keys() - entries.keys()):
        if name in UNLISTED_NAMES or FILE_LIST_PATTERN.match(name) or TEMPORARY_SUFFIX in name:
            continue
        if is_loaded(name) and not _is_shadowed(name, entries):
            result.problems.append(structure.Problem(name, "was put there after the seal, and loading would read it"))
        elif not name.rpartition("/")[2].startswith("."):
            result.added.append(name)
    if head.part is not None:
        ranks = ", ".join(map(str, head.part.ranks))
        result.part = f"part {head.part.index + 1} of {head.part.of}: the share of rank(s) {ranks}"
    return result


def _compare_file(
    path: str, name: str, entry: FileEntry, info: os.stat_result | None, modified: list[str]
) -> structure.Problem | None:
    if info is None:
        # `walk_files` does not enter a linked directory: a file behind one is there, and not inside.
        behind = os.path.lexists(os.path.join(path, name))
        return structure.Problem(name, "is not a file inside the checkpoint" if behind else "is missing")
    if stat.S_ISLNK(info.st_mode):
        if structure.leaves(path, name):
            return structure.Problem(name, structure.REFUSED_LINK)
        try:
            info = os.stat(os.path.join(path, name))
        except OSError as error:
            return structure.Problem(name, f"is a link that leads nowhere ({_reason(error)})")
    if not stat.S_ISREG(info.st_mode):
        return structure.Problem(name, "is not a regular file")
    if info.st_size == entry.size:
        return None
    problem = judge_change(path, name, f"has {info.st_size} bytes, and the manifest says {entry.size}")
    if problem is None:
        modified.append(name)
    return problem


def manifest_problem(error: ManifestError, path: str, name: str) -> structure.Problem:
    """`error` about the file `name` of the manifest. Its text starts with the path of the file."""
    reason = str(error).removeprefix(os.path.join(path, name)).lstrip(": ")
    return structure.Problem(name, reason, unreadable=isinstance(error, NewerManifestError))


def check_unsealed(path: str) -> list[structure.Problem]:
    """Evidence that a directory without a manifest is no complete checkpoint. Raises `OSError`."""
    if _exists(f"{path}/{SENTINEL_NAME}"):
        return [INTERRUPTED]
    if not _exists(f"{path}/{TRAINER_STATE_NAME}"):
        return [NO_TRAINER_STATE]
    return structure.find_damage(path, world_size=structure.told_world_size(path))


def judge_change(path: str, name: str, difference: str) -> structure.Problem | None:
    """The problem with a listed file that differs from the manifest, or `None` if somebody edited it and may have."""
    damaged = structure.Problem(name, difference)
    if not is_text(name):
        return damaged
    try:
        with open(os.path.join(path, name), "rb") as file:
            data = file.read()
        if name.endswith(".json"):
            json.loads(data)
        elif b"\0" in data or not data.decode("utf-8").strip():
            return damaged
    except OSError as error:
        return structure.unreadable(name, error)
    except (ValueError, RecursionError):
        kind = "JSON" if name.endswith(".json") else "text"
        return structure.Problem(name, f"{difference}, and it does not read as {kind}")
    return None


def is_text(name: str) -> bool:
    """Whether a file of a checkpoint is text that people edit and that training does not resume from."""
    folder, _, base = name.rpartition("/")
    if folder.startswith(_STATE_FOLDERS):
        return False
    return base in _TEXT_NAMES or base.endswith(_TEXT_SUFFIXES) or base.endswith("_config.json")


def is_loaded(name: str) -> bool:
    """Whether some way of loading looks for a file of this name."""
    folder, _, base = name.rpartition("/")
    return _LOADED_BY_NAME.match(base) is not None or folder.startswith(_STATE_FOLDERS)


def _is_shadowed(name: str, entries: Collection[str]) -> bool:
    """Whether weights in torch's format, put there after the seal, are never loaded beside what was sealed.

    Loading takes `model.safetensors` first, then a single `pytorch_model.bin`, then shards of safetensors; DeepSpeed
    loads its own folder. Its recovery script leaves such a file, and so do conversions by hand.
    """
    folder, _, base = name.rpartition("/")
    if _TORCH_WEIGHTS.match(base) is None:
        return False
    beside = f"{folder}/" if folder else ""
    return (
        f"{beside}model.safetensors" in entries
        or (base != "pytorch_model.bin" and f"{beside}model.safetensors.index.json" in entries)
        or any(entry.startswith("global_step") for entry in entries)
    )


# ---- Looking ----


def is_gone(path: str | os.PathLike) -> bool:
    """Whether there is no directory at `path` any more. One that cannot be looked at is not gone."""
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def files_below(path: str | os.PathLike) -> dict[str, os.stat_result]:
    """`disk.walk_files`, again if a file goes meanwhile: sealing again deletes the list of the sealing before."""
    for _ in range(LOOKS - 1):
        with contextlib.suppress(FileNotFoundError):
            return dict(disk.walk_files(path))
    return dict(disk.walk_files(path))


def _find(run_dir: str | os.PathLike, prefix: str, check: str) -> list[Found]:
    for _ in range(LOOKS):
        found, moved = _find_once(run_dir, prefix, check)
        if not moved:
            break
    return found


def _find_once(run_dir: str | os.PathLike, prefix: str, check: str) -> tuple[list[Found], bool]:
    """What one listing shows, without what has gone since; and whether something went, or was replaced."""
    listed = [look(entry.path, entry.name) for entry in _directories(run_dir, prefix)]
    found = in_order([one for one in listed if one.problem is None or not is_gone(one.path)], prefix)
    moved = len(found) < len(listed)
    if check == ORDER:
        return found, moved
    for at in range(len(found) - 1, -1, -1):
        closer = look_closely(found[at])
        if closer.problem == GONE:
            del found[at]
            moved = True
            continue
        moved = moved or closer.problem == REPLACED
        found[at] = closer
        if check == STAT and closer.why_not is None:
            break
    return found, moved


def _directories(run_dir: str | os.PathLike, prefix: str) -> list[os.DirEntry]:
    """The entries `<prefix>-<digits>` of `run_dir` that are directories, or links to some."""
    with scan(run_dir) as entries:
        return [entry for entry in entries if _step(entry.name, prefix) is not None and _is_directory(entry)]


def _is_directory(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; what cannot be told apart from a directory is looked at more closely later
        return not entry.is_symlink()


def note_of_name(name: str, head: Head) -> str | None:
    """What to say of a checkpoint whose name carries another step than its manifest."""
    named = step_of(name)
    if named is None or named == head.step:
        return None
    return f"holds the checkpoint of step {head.step} under another name"


def scan(path: str | os.PathLike):
    """`os.scandir(path)`, with errors that say what is expected there."""
    try:
        return os.scandir(os.fspath(path))
    except FileNotFoundError as error:
        url = " (this looks like a URL, and a local path is needed)" if "://" in os.fspath(path) else ""
        raise FileNotFoundError(errno.ENOENT, f"there is no such directory{url}", os.fspath(path)) from error
    except NotADirectoryError as error:
        raise NotADirectoryError(errno.ENOTDIR, "a directory is expected here, not a file", os.fspath(path)) from error


def look(path: str, name: str) -> Found:
    """The directory `name` at `path` as its head and its name show it: what `find_checkpoints` says with `"order"`."""
    head = problem = note = None
    step = step_of(name)
    if step is None:
        digits = _LAST_DIGITS.search(name)
        step = int(digits.group()) if digits else 0
    try:
        head = read_head(path)
    except ManifestError as error:
        problem = manifest_problem(error, path, MANIFEST_NAME)
    except OSError as error:
        problem = structure.unreadable(MANIFEST_NAME, error)
    if head is not None:
        if head.step != step:
            note = note_of_name(name, head)
        step = head.step
    if problem is None and _exists(f"{path}/{SENTINEL_NAME}"):
        problem = INTERRUPTED
    if problem is None and head is None and not _exists(f"{path}/{TRAINER_STATE_NAME}"):
        problem = NO_TRAINER_STATE
    pinned = _exists(f"{path}/{KEEP_NAME}")
    return Found(path, name, step, head, None if problem is None else str(problem), note, pinned, checked=False)


def _exists(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    return True


def _step(name: str, prefix: str) -> int | None:
    if prefix == CHECKPOINT_PREFIX:
        return step_of(name)
    digits = name.removeprefix(f"{prefix}-")
    return int(digits) if digits != name and digits.isascii() and digits.isdecimal() else None


# ---- Texts ----


def _list(passed_over: Sequence[tuple[Found, str]]) -> str:
    return "; ".join(f"{checkpoint.name}: {reason}" for checkpoint, reason in passed_over)


def _some(texts: list[str], most: int = 5) -> list[str]:
    """The first few texts. A checkpoint of thousands of files can lack all of them."""
    return texts if len(texts) <= most else [*texts[:most], f"and {len(texts) - most} more"]


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
