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
"""Is what is on disk what was saved? Sizes and digests of a checkpoint's files against its manifest.

Nothing here changes the disk, and nothing is unpickled or loaded. Which differences are damage and which are somebody's
edit is decided in `discovery`.
"""

import contextlib
import dataclasses
import errno
import os
import stat
import threading
import zipfile
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from . import disk
from .digest import CHUNK_SIZE, THREADS, digest_file
from .discovery import (
    GONE,
    LOOKS,
    check_unsealed,
    compare,
    files_below,
    is_gone,
    judge_change,
    manifest_problem,
    note_of_name,
    scan,
)
from .errors import ManifestError
from .layout import MANIFEST_NAME, TEMPORARY_SUFFIX
from .manifest import FileEntry, Head, known_algorithm, read_head
from .structure import Problem, unreadable


# Levels of `verify`.
FULL, SIZE = "full", "size"

# The verdicts. Good: every file is what was saved. Modified: text was edited or files were added after the seal, and what
# training resumes from is unchanged. Unverified: nothing to compare with (no manifest, unknown digests), and nothing
# wrong found. Damaged: something is missing, not what was saved, or was never finished. Unreadable: something could not
# be looked at, which says nothing about what is in it.
GOOD, MODIFIED, UNVERIFIED, DAMAGED, UNREADABLE = "good", "modified", "unverified", "damaged", "unreadable"

# Notes that say how closely was looked.
ONLY_SIZES = "only sizes were compared"
NO_MANIFEST = "has no manifest: only its structure was checked"

# A bar for something that takes a moment is noise (seconds).
PROGRESS_DELAY = 3.0


@dataclasses.dataclass(frozen=True)
class VerifyResult:
    """What `verify` found.

    Args:
        path (`str`):
            The checkpoint.
        verdict (`str`):
            One of `"good"`, `"modified"`, `"unverified"`, `"damaged"`, `"unreadable"`.
        problems (`tuple[Problem, ...]`):
            Every file that speaks against loading, by name; empty unless the verdict is one of the last two.
        notes (`tuple[str, ...]`):
            What is worth saying besides.
        head ([`Head`], *optional*):
            The head of the manifest, if there is one that reads well.
        size, files (`int`):
            Bytes and number of the checkpoint's files.
    """

    path: str
    verdict: str
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    head: Head | None
    size: int
    files: int

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against loading it."""
        return not self.problems


def verify(
    path: str | os.PathLike,
    level: str = FULL,
    *,
    progress: Callable[[int], None] | None = None,
    show_progress: bool = False,
) -> VerifyResult:
    """Check the checkpoint at `path`. Changes nothing on disk; may run on any rank, on several at a time.

    With a manifest every file is compared with it. Without one there is nothing to compare with: the structure is
    checked, and at level `"full"` also the checksums that torch's files carry inside. What is wrong with it counts only
    if its head is still the one that was read: it may be sealed again meanwhile.

    Args:
        path (`str` or `os.PathLike`):
            A checkpoint directory, of any origin and name.
        level (`str`, *optional*, defaults to `"full"`):
            `"full"` reads every byte and compares digests; `"size"` compares sizes.
        progress (`Callable[[int], None]`, *optional*):
            Called with the number of bytes of each piece that was read, from several threads; at most
            `bytes_to_read(path)` in total, unless the checkpoint is sealed again meanwhile and read once more.
        show_progress (`bool`, *optional*, defaults to `False`):
            Show a bar with the expected time if it takes longer than a few seconds.

    Returns:
        `VerifyResult`: the verdict, and every file that speaks for it. A file that cannot be read is a problem and not
            an error.

    Raises:
        `ValueError`: for an unknown level.
        `OSError`: of the kind that says what is wrong with `path`: not there (any more), not a directory, not readable.
        `KeyboardInterrupt`: as it comes; the threads have stopped by then.
    """
    if level not in (FULL, SIZE):
        raise ValueError(f"`level` is {level!r}; it must be {FULL!r} or {SIZE!r}")
    path = os.fspath(path)
    with scan(path):
        pass
    if show_progress and level == FULL:
        with _bar(path, progress) as progress:
            return verify(path, level, progress=progress)
    for _ in range(LOOKS):
        result = _verify_once(path, level, progress)
        if result.ok:
            break
        if is_gone(path):
            raise FileNotFoundError(errno.ENOENT, GONE, path)
        if _head_or_none(path) == result.head:
            break
    return result


def bytes_to_read(path: str | os.PathLike) -> int:
    """How many bytes `verify` reads at level `"full"`, at most. Raises `OSError`."""
    return sum(info.st_size for info in files_below(path).values())


def _verify_once(path: str, level: str, progress: Callable[[int], None] | None) -> VerifyResult:
    try:
        head = read_head(path)
    except ManifestError as error:
        return _result(path, None, [manifest_problem(error, path, MANIFEST_NAME)], [], "")
    except OSError as error:
        return _result(path, None, [unreadable(MANIFEST_NAME, error)], [], "")
    if head is None:
        return _verify_unsealed(path, level, progress)
    return _verify_sealed(path, head, level, progress)


def _head_or_none(path: str) -> Head | None:
    with contextlib.suppress(ManifestError, OSError):
        return read_head(path)
    return None


def _verify_sealed(path: str, head: Head, level: str, progress: Callable[[int], None] | None) -> VerifyResult:
    try:
        comparison = compare(path, head)
    except OSError as error:
        return _result(path, head, [unreadable("", error)], [], "")
    problems = comparison.problems
    known = known_algorithm(head)
    if level == FULL and known:
        skip = {problem.file for problem in problems} | set(comparison.modified)
        entries = {name: entry for name, entry in comparison.entries.items() if name not in skip and entry.digest}
        for name, outcome in _digests(path, entries, head.algorithm, progress):
            if isinstance(outcome, OSError):
                problems.append(unreadable(name, outcome))
            elif outcome != entries[name].digest:
                problem = judge_change(path, name, "is not what was saved: its digest is not the manifest's")
                if problem is None:
                    comparison.modified.append(name)
                else:
                    problems.append(problem)
    notes = [note_of_name(os.path.basename(os.path.abspath(path)), head), *comparison.notes()]
    if not known:
        notes.append(f"the digests are {head.algorithm!r}, which cannot be computed here: only sizes were compared")
    elif level == SIZE:
        notes.append(ONLY_SIZES)
    unfinished = sum(not entry.digest for entry in comparison.entries.values())
    if level == FULL and unfinished:
        notes.append(f"the digests of {unfinished} files were not finished: of those only sizes were compared")
    if not head.resumable:
        notes.append(f"saved without the state of the Trainer ({', '.join(head.state) or 'no state'} only)")
    good = MODIFIED if comparison.modified or comparison.added else GOOD
    return _result(path, head, problems, notes, good if known else UNVERIFIED)


def _verify_unsealed(path: str, level: str, progress: Callable[[int], None] | None) -> VerifyResult:
    try:
        problems = check_unsealed(path)
        if level == FULL:
            known = {problem.file for problem in problems}
            problems += [problem for problem in _check_archives(path, progress) if problem.file not in known]
    except OSError as error:
        problems = [unreadable("", error)]
    return _result(path, None, problems, [NO_MANIFEST], UNVERIFIED)


def _result(path: str, head: Head | None, problems: list[Problem], notes: list[str | None], good: str) -> VerifyResult:
    problems.sort(key=lambda problem: problem.file)
    verdict = good
    if problems:
        verdict = UNREADABLE if all(problem.unreadable for problem in problems) else DAMAGED
    if head is not None:
        size, files = head.files.bytes, head.files.count
    else:
        try:
            sizes = [info.st_size for info in files_below(path).values()]
        except OSError:
            sizes = []
        size, files = sum(sizes), len(sizes)
    return VerifyResult(path, verdict, tuple(problems), tuple(filter(None, notes)), head, size, files)


# ---- Reading everything ----


class _Stopped(Exception):
    """Raised inside a thread that is no longer wanted."""


def _digests(
    root: str, entries: dict[str, FileEntry], algorithm: str, progress: Callable[[int], None] | None
) -> Iterator[tuple[str, str | OSError]]:
    """Name and digest, or what prevented it, of each file, in the order in which they are done.

    Leaving the iteration, by an error or an interrupt, stops the threads within one chunk.
    """
    stop = threading.Event()

    def advance(count: int) -> None:
        if stop.is_set():
            raise _Stopped
        if progress is not None:
            progress(count)

    # The largest first, so that the last thread at work has little left.
    names = sorted(entries, key=lambda name: entries[name].size, reverse=True)
    pool = ThreadPoolExecutor(min(THREADS, len(names)) or 1, thread_name_prefix="checkpoint-verify")
    pending: dict[Future, str] = {}
    try:
        for name in names:
            pending[pool.submit(digest_file, os.path.join(root, name), algorithm, advance)] = name
        while pending:
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                name = pending.pop(future)
                try:
                    yield name, future.result()[1]
                except OSError as error:
                    yield name, error
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _check_archives(root: str, progress: Callable[[int], None] | None) -> list[Problem]:
    """Files of torch's in zip format whose records do not fit the checksums they carry."""
    problems = []
    for name, info in disk.walk_files(root):
        path = os.path.join(root, name)
        if not stat.S_ISREG(info.st_mode) or not name.endswith((".bin", ".pt", ".pth", ".ckpt")):
            continue
        if TEMPORARY_SUFFIX in name or not zipfile.is_zipfile(path):
            continue
        try:
            wrong, total = _wrong_records(path, progress)
        except OSError as error:
            problems.append(unreadable(name, error))
            continue
        # torch can be told to write no checksums; then every record has a made-up one.
        if wrong and len(wrong) < total:
            problems.append(Problem(name, f"is damaged: {wrong[0]} in it does not fit its checksum"))
    return problems


def _wrong_records(path: str, progress: Callable[[int], None] | None) -> tuple[list[str], int]:
    wrong = []
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            for record in records:
                try:
                    with archive.open(record) as file:
                        while chunk := file.read(CHUNK_SIZE):
                            if progress is not None:
                                progress(len(chunk))
                except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError):
                    wrong.append(record.filename)
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError):
        return ["the directory"], 2
    return wrong, len(records)


@contextlib.contextmanager
def _bar(path: str, progress: Callable[[int], None] | None) -> Generator[Callable[[int], None]]:
    """A progress bar that shows itself after a few seconds; passes on to `progress` as well."""
    from tqdm import tqdm

    lock = threading.Lock()
    with tqdm(
        total=bytes_to_read(path),
        unit="B",
        unit_scale=True,
        delay=PROGRESS_DELAY,
        desc=f"Verifying {os.path.basename(os.path.abspath(path))}",
    ) as bar:

        def advance(count: int) -> None:
            with lock:
                bar.update(count)
            if progress is not None:
                progress(count)

        yield advance
