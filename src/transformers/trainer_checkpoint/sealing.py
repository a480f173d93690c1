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
"""Sealing a published checkpoint again: digests that were put off, and files that `on_save` callbacks changed.

Until the new head is in place, the old one with its own list stays valid, so a kill here costs nothing that was there.
"""

import contextlib
import dataclasses
import os
import stat
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from ..utils import logging
from . import disk
from .digest import digest_files
from .errors import CheckpointError, ManifestError
from .layout import FILE_LIST_PATTERN, TEMPORARY_SUFFIX, UNLISTED_NAMES
from .manifest import FileEntry, Head, is_safe_name, read_entries, read_head, write_manifest
from .structure import check_structure, leaves, state_inside


logger = logging.get_logger(__name__)


def seal_again(path: str, head: Head, seen: Mapping[str, tuple[int, int, int]], *, durable: bool) -> Head | None:
    """Seal a published checkpoint again if callbacks changed it. Called by the publisher only.

    On disk afterwards: the manifest fits the files again; until the new head is in place the old one is valid.

    Args:
        path (`str`):
            The published checkpoint.
        head ([`Head`]):
            Its head.
        seen (`Mapping[str, tuple[int, int, int]]`):
            `snapshot(path)` of the moment it was published.
        durable (`bool`):
            Flush what changed.

    Returns:
        The new head, or `None` if nothing had changed.

    Raises:
        [`CheckpointError`]: what is there now must not be called good: a file is damaged, or may not be in a checkpoint.
        `OSError`: something could not be read or written. The old head is valid in both cases.
    """
    found = snapshot(path)
    old = read_entries(path, head)
    if found == seen and all(entry.digest for entry in old.values()):
        return None
    changed = [name for name in found if name not in old or not old[name].digest or found[name] != seen.get(name)]
    problems = [f"{name} {reason}" for name in changed if (reason := why_not_in_checkpoint(path, name))]
    problems += check_structure(path)
    if problems:
        raise CheckpointError("; ".join(problems))
    modes = disk.probe_modes(path)
    for name in changed:
        disk.widen(os.path.join(path, name), modes)
    digests = digest_files(path, changed, head.algorithm, sync=durable)
    if durable:
        disk.flush_directories(disk.walk_directories(path))
    entries = {name: old[name] for name in found if name not in digests}
    entries.update({name: FileEntry(size, digest) for name, (size, digest) in digests.items()})
    head = dataclasses.replace(head, sealing=head.sealing + 1, state=state_inside(path))
    return write_manifest(path, head, entries, durable=durable)


def why_not_in_checkpoint(root: str, name: str) -> str | None:
    """Why the file `name` below `root` may not be in a checkpoint, or `None`: what readers refuse is never sealed."""
    if not is_safe_name(name):
        return "has a name that is no plain path on every system; rename it"
    mode = os.lstat(os.path.join(root, name)).st_mode
    if stat.S_ISLNK(mode):
        if leaves(root, name):
            return "is a link that leads out of the checkpoint, which resuming refuses; put a copy there instead"
        mode = os.stat(os.path.join(root, name)).st_mode
    if not stat.S_ISREG(mode):
        return "is not a regular file"
    return None


def snapshot(path: str) -> dict[str, tuple[int, int, int]]:
    """Relative path to (inode, size in bytes, modification time in ns) of every file of the checkpoint at `path`.

    Others may be writing there: a file that goes meanwhile is not there. Raises `OSError` where one cannot be looked at.
    """
    return {
        name: (info.st_ino, info.st_size, info.st_mtime_ns)
        for name, info in disk.walk_files(path, still_written=True)
        if not is_ours(name)
    }


class _Digests:
    """Digests that were put off, of one published checkpoint.

    They are computed in the background. They are written down when nobody is reading the checkpoint, who would find the
    head of one sealing and the list of another: once the callbacks have returned, and not under an upload. Whichever of
    the two threads gets there last does it; neither waits for the other.

    Args:
        path (`str`):
            The checkpoint.
        head ([`Head`]):
            Its head.
        seen (`Mapping[str, tuple[int, int, int]]`):
            `snapshot(path)` of the moment it was published.
        entries (`Mapping[str, FileEntry]`):
            Its list of files.
        busy (`Callable[[], bool]`):
            Whether an upload may be reading it.
    """

    def __init__(
        self,
        path: str,
        head: Head,
        seen: Mapping[str, tuple[int, int, int]],
        entries: Mapping[str, FileEntry],
        busy: Callable[[], bool],
    ):
        self.path = path
        self.head = head
        self._seen = seen
        self._entries = entries
        self._busy = busy
        # Guards the rest.
        self._lock = threading.Lock()
        self._found: dict[str, tuple[int, str]] | None = None
        self._quiet = self._over = False

    def compute(self) -> None:
        """In the background. Never raises."""
        names = [name for name, entry in self._entries.items() if not entry.digest]
        try:
            found = digest_files(self.path, names, self.head.algorithm)
        except OSError as error:
            # A callback removes or rewrites files at the same time; the first seal is valid.
            logger.debug(f"The digests of {self.path} were not finished: {error}")
            return
        with self._lock:
            self._found = found
            if self._quiet:
                self._write()

    def after_callbacks(self) -> None:
        """The callbacks have returned. If they changed something, `LaterSeals.look_again` is to seal it, and not this."""
        with self._lock:
            self._quiet = True
            self._write()

    def end(self, write: bool = True) -> None:
        """What is not written by now never is."""
        with self._lock:
            if write:
                self._write()
            self._over = True

    def _write(self) -> None:
        if self._over or self._found is None or self._busy():
            return
        self._over = True
        try:
            if snapshot(self.path) != self._seen or not _is_in_place(self.path, self.head):
                return
            entries = {**self._entries, **{name: FileEntry(*entry) for name, entry in self._found.items()}}
            head = dataclasses.replace(self.head, sealing=self.head.sealing + 1)
            # Nothing was flushed before either: with flushes no digest is put off.
            write_manifest(self.path, head, entries, durable=False)
        except (OSError, ManifestError) as error:
            logger.debug(f"The digests of {self.path} were not written: {error}")


class LaterSeals:
    """What happens to the manifest of a published checkpoint after the announcement. Used by the publisher only.

    One checkpoint at a time: the next save, and the end of the training, wait until the one before is done.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._running: tuple[_Digests, Future[None]] | None = None
        # The last checkpoint whose callbacks have returned here: path, head, snapshot, and whether to flush.
        self._last: tuple[str, Head, dict[str, tuple[int, int, int]], bool] | None = None
        # Whether the log has it that this one could not be sealed again.
        self._said = False

    def start(
        self,
        path: str,
        head: Head,
        seen: dict[str, tuple[int, int, int]],
        *,
        durable: bool,
        busy: Callable[[], bool] = lambda: False,
    ) -> Callable[[bool], None]:
        """Compute digests that were put off, in the background, and get ready for changes by callbacks.

        Args:
            path (`str`):
                The published checkpoint.
            head ([`Head`]):
                Its head.
            seen (`dict[str, tuple[int, int, int]]`):
                `snapshot(path)` of what was sealed.
            durable (`bool`):
                Flush what changed.
            busy (`Callable[[], bool]`, *optional*):
                Whether somebody reads the checkpoint, so that nothing may be written into it.

        Returns:
            `Callable[[bool], None]`: to be called after the callbacks, if none of them raised: what one left half done
                must not be called good. Seals again what they changed, and never raises: the checkpoint was announced
                already. It is given whether the callbacks of all ranks have returned. If not, what cannot be sealed is
                no news yet; otherwise it is logged.
        """
        # A callback may change the working directory.
        path = os.path.abspath(path)
        self._last, self._said = None, False
        with contextlib.suppress(OSError):
            seen = _as_renamed(seen, snapshot(path))
        # RuntimeError: no thread can be had, the interpreter is on its way out.
        with contextlib.suppress(RuntimeError, OSError, ManifestError):
            entries = read_entries(path, head)
            if any(not entry.digest for entry in entries.values()):
                digests = _Digests(path, head, seen, entries, busy)
                self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="checkpoint-digests")
                self._running = digests, self._pool.submit(digests.compute)
        mine = self._running

        def after_callbacks(all_have_returned: bool) -> None:
            if not os.path.isdir(path):
                logger.warning(f"{path} is not there any more: an `on_save` callback has moved or deleted it.")
                return
            # A callback has saved the same step again.
            if not _is_in_place(path, head):
                return
            self._last = path, head, seen, durable
            if mine is not None:
                mine[0].after_callbacks()
            self.look_again(tell=all_have_returned)

        return after_callbacks

    def look_again(self, tell: bool = True) -> None:
        """Seal again what was changed in the last checkpoint. Never raises.

        Called when the publisher's own callbacks have returned and those of the others were waited for. It is called
        again at the next save and at the end of the training, for what could not be sealed the first time, or was
        written later.

        Args:
            tell (`bool`, *optional*, defaults to `True`):
                Log what cannot be sealed. Without, somebody may be in the middle of a file.
        """
        if self._last is None:
            return
        path, head, seen, durable = self._last
        try:
            found = snapshot(path)
        except OSError:  # what cannot be looked at cannot be sealed either
            return
        if found == seen:
            return
        try:
            self.wait(write=False)
            there = read_head(path)
            if there is None or there.nonce != head.nonce:
                self._last = None
                return
            self._last = path, seal_again(path, there, seen, durable=durable) or there, found, durable
        except (OSError, CheckpointError) as error:
            if tell and not self._said:
                logger.error(
                    f"{path} was changed by an `on_save` callback and could not be sealed again ({error}): what was "
                    "changed will be reported as damaged, and resuming passes the checkpoint over."
                )
                self._said = True

    def close(self) -> None:
        """Wait, and end the thread. Never raises."""
        self.wait()
        self._last = None
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def wait(self, write: bool = True) -> None:
        """Wait for digests that are being computed, and write them down if they are wanted. Never raises."""
        running, self._running = self._running, None
        if running is not None:
            digests, future = running
            if not write:
                digests.end(write=False)
            future.result()
            digests.end()


def _as_renamed(
    seen: dict[str, tuple[int, int, int]], now: Mapping[str, tuple[int, int, int]]
) -> dict[str, tuple[int, int, int]]:
    """`seen` with the inode numbers that the files have now: some network mounts give new ones with a directory's name."""
    return {name: now[name] if name in now and now[name][1:] == was[1:] else was for name, was in seen.items()}


def _is_in_place(path: str, head: Head) -> bool:
    """Whether the checkpoint at `path` is the one that `head` was written for, however often it was sealed since."""
    with contextlib.suppress(OSError, ManifestError):
        there = read_head(path)
        return there is None or there.nonce == head.nonce
    return True


def is_ours(name: str) -> bool:
    """Whether the relative path `name` is a part of the manifest or another file that no digest covers."""
    return name in UNLISTED_NAMES or FILE_LIST_PATTERN.match(name) is not None or name.endswith(TEMPORARY_SUFFIX)
