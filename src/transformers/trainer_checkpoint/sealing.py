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
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from ..utils import logging
from . import disk
from .digest import digest_files
from .errors import CheckpointError, ManifestError
from .layout import FILE_LIST_PATTERN, UNLISTED_NAMES
from .manifest import FileEntry, Head, is_safe_name, read_entries, write_manifest
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
    """Relative path to (inode, size in bytes, modification time in ns) of every file of the checkpoint at `path`."""
    return {
        name: (info.st_ino, info.st_size, info.st_mtime_ns)
        for name, info in disk.walk_files(path)
        if not is_ours(name)
    }


class LaterSeals:
    """What happens to the manifest of a published checkpoint after the announcement. Used by the publisher only.

    One checkpoint at a time: the next save, and the end of the training, wait until the one before is done.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._running: Future[Head | None] | None = None

    def start(self, path: str, head: Head, *, durable: bool) -> Callable[[], None]:
        """Add digests that were put off, in the background, and get ready for changes by callbacks.

        Returns:
            `Callable[[], None]`: to be called after the callbacks, if none of them raised: what one left half done
                must not be called good. Seals again what they changed, and never raises: the checkpoint was announced
                already. What could not be sealed is logged.
        """
        # A callback may change the working directory.
        path = os.path.abspath(path)
        seen: dict[str, tuple[int, int, int]] = {}
        # RuntimeError: no thread can be had, the interpreter is on its way out.
        with contextlib.suppress(RuntimeError, OSError, ManifestError):
            seen = snapshot(path)
            if any(not entry.digest for entry in read_entries(path, head).values()):
                self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="checkpoint-seal")
                self._running = self._pool.submit(self._add_digests, path, head, seen, durable)

        def after_callbacks() -> None:
            if not os.path.isdir(path):
                logger.warning(f"{path} is not there any more: an `on_save` callback has moved or deleted it.")
                return
            try:
                if snapshot(path) != seen:
                    seal_again(path, self.wait() or head, seen, durable=durable)
            except (OSError, CheckpointError) as error:
                logger.error(
                    f"{path} was changed by an `on_save` callback and could not be sealed again ({error}): what was "
                    "changed will be reported as damaged, and resuming passes the checkpoint over."
                )

        return after_callbacks

    def close(self) -> None:
        """Wait, and end the thread. Never raises."""
        self.wait()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def wait(self) -> Head | None:
        """Wait for digests that are being added. Returns the newer head, if there is one. Never raises."""
        running, self._running = self._running, None
        return None if running is None else running.result()

    @staticmethod
    def _add_digests(path: str, head: Head, seen: Mapping[str, tuple[int, int, int]], durable: bool) -> Head | None:
        try:
            return seal_again(path, head, seen, durable=durable)
        except (OSError, CheckpointError) as error:
            # A callback removes or rewrites files at the same time, or the disk is full; the first seal is valid.
            logger.debug(f"The digests of {path} were not finished: {error}")
            return None


def is_ours(name: str) -> bool:
    """Whether the relative path `name` is a part of the manifest or another file that no digest covers."""
    return name in UNLISTED_NAMES or FILE_LIST_PATTERN.match(name) is not None
