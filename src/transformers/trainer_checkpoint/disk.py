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
"""What the protocol does to a disk: flush, rename, swap, retire, modes, and finding out what a file system can.

Each function says what is on disk when it returns and what it promises of a power cut. POSIX promises nothing of a
rename before the directory that holds the name was flushed, and nothing of a file's content before the file was.

The audit events `trainer_checkpoint.flush` and `trainer_checkpoint.swap` are raised before the two operations for
which Python raises none of its own, so that a test can stop a process before each file operation.
"""

import contextlib
import ctypes
import dataclasses
import errno
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator

from .layout import TEMPORARY_SUFFIX, is_retired_name, retired_name, trash_dir


# A file system that answers one of these to fsync of a directory, or to a rename flag, lacks the operation; it did not
# fail at it. EACCES and EPERM are how Windows refuses to open a directory.
LACKING = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY, errno.EBADF})
_DIRECTORY_FLUSH_LACKING = LACKING | ({errno.EACCES, errno.EPERM} if os.name == "nt" else set())
# What a name that was just listed answers when it is gone; ESTALE on NFS, where another client has removed it.
GONE = frozenset({errno.ENOENT, errno.ESTALE})
# A directory rename that answers one of these cannot be done on this mount at all.
RENAME_IMPOSSIBLE = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EPERM})

# A sweep runs on a thread of its own. Without this lock it could remove the trash just before something is renamed into
# it, or delete the files of a checkpoint whose rename is not durable yet.
_trash_lock = threading.Lock()

# How long a directory that another host made may stay hidden here (seconds). NFS clients keep what they know of a
# directory for up to 60 s (`acdirmax`, nfs(5)).
HIDDEN_DIRECTORY_PATIENCE = 65.0

# The slowest disk that other ranks still wait for while something is read through (bytes per second).
SLOWEST_READ = 20e6

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


# ---- Flush ----


def flush_descriptor(descriptor: int, path: str | os.PathLike) -> None:
    """Make the content behind an open descriptor durable. `path` is for the audit event. Raises `OSError`."""
    sys.audit("trainer_checkpoint.flush", os.fspath(path))
    os.fsync(descriptor)


def flush_file(path: str | os.PathLike) -> None:
    """Make the content of the file at `path` durable, whichever process of this machine wrote it."""
    # Windows flushes only through a descriptor that may write.
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        flush_descriptor(descriptor, path)
    finally:
        os.close(descriptor)


def flush_directory(path: str | os.PathLike) -> None:
    """Make the names in the directory at `path` durable. Quiet where the system cannot flush a directory."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError as error:
        if error.errno in _DIRECTORY_FLUSH_LACKING:
            return
        raise
    try:
        flush_descriptor(descriptor, path)
    except OSError as error:
        if error.errno not in _DIRECTORY_FLUSH_LACKING:
            raise
    finally:
        os.close(descriptor)


def make_directories(path: str | os.PathLike, *, durable: bool) -> None:
    """Create `path` and what is missing above it; existing directories are fine, also ones that others just made.

    With `durable`, each directory that was missing is flushed into its parent: without that a power cut can take a new
    run directory away together with everything durable inside it.
    """
    missing = []
    here = os.path.abspath(path)
    while not os.path.isdir(here):
        missing.append(here)
        here = os.path.dirname(here)
    deadline = time.monotonic() + HIDDEN_DIRECTORY_PATIENCE
    while True:
        try:
            os.makedirs(path, exist_ok=True)
            break
        except FileExistsError:
            # The server has it, and this client still remembers that there was nothing.
            if os.path.isdir(path):
                break
            if os.path.lexists(path) or time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    if durable:
        for directory in reversed(missing):
            flush_directory(os.path.dirname(directory))


def write_whole(path: str | os.PathLike, data: bytes, *, durable: bool) -> None:
    """Put a small file in place whole: afterwards `path` holds `data`, or after an error or a kill what it held.

    With `durable` the content is flushed; the name is not (flush the directory when all names are there). Where files
    cannot be renamed at all (object-store mounts) it is written where it belongs, and a kill can leave a part of it.
    """
    temporary = f"{os.fspath(path)}{TEMPORARY_SUFFIX}"
    try:
        _write(temporary, data, durable)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if not isinstance(error, OSError) or error.errno not in RENAME_IMPOSSIBLE:
            raise
        _write(path, data, durable)


def _write(path: str | os.PathLike, data: bytes, durable: bool) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        if durable:
            flush_descriptor(file.fileno(), path)


# ---- Rename and swap ----


class SwapUnsupported(OSError):
    """The system or this file system cannot exchange two names in one call."""


def swap(first: str | os.PathLike, second: str | os.PathLike) -> None:
    """Exchange two existing names in one step, whatever kinds of files they are.

    Afterwards each name holds what the other held; there is no moment at which a name is missing.

    Raises:
        [`SwapUnsupported`]: the system lacks the operation, and nothing has changed.
        `OSError`: it has the operation and that failed.
    """
    if not sys.platform.startswith("linux"):
        raise SwapUnsupported(errno.ENOSYS, "no renameat2 on this platform", os.fspath(first))
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # musl before 1.2.6 and glibc before 2.28 have no such symbol
        raise SwapUnsupported(errno.ENOSYS, "no renameat2 in the C library", os.fspath(first)) from None
    sys.audit("trainer_checkpoint.swap", os.fspath(first), os.fspath(second))
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return
    code = ctypes.get_errno()
    kind = SwapUnsupported if code in LACKING else OSError
    raise kind(code, os.strerror(code), os.fspath(first), None, os.fspath(second))


# ---- Retire ----


def retire(
    run_dir: str | os.PathLike, path: str | os.PathLike, nonce: str, *, durable: bool, name: str | None = None
) -> str:
    """Take `path`, something inside `run_dir`, out of use by renaming it into the run directory's trash.

    On disk afterwards: `_trash/<name>.<nonce>` and no `path`, flushed if `durable`. Nothing is deleted here. Called by
    the publisher only. `name` is the checkpoint's name to use in the trash where that of `path` is no checkpoint name.

    Returns:
        `str`: the path in the trash.

    Raises:
        `OSError`: the rename failed, and `path` is where it was.
    """
    with _trash_lock:
        trash = real_directory(trash_dir(run_dir), durable=durable)
        name = os.path.basename(path) if name is None else name
        target = os.path.join(trash, retired_name(name, nonce))
        while os.path.lexists(target):
            target = os.path.join(trash, retired_name(name, os.urandom(8).hex()))
        os.rename(path, target)
        if durable:
            flush_directory(trash)
            flush_directory(os.path.dirname(path))
    return target


def real_directory(path: str | os.PathLike, *, durable: bool) -> str:
    """`path` as a directory of our own: made if missing, refused if it is a link or a file.

    Raises:
        `NotADirectoryError`: something else has the name. A link could lead out of the run directory, and what is
            swept there would be somebody else's.
    """
    try:
        os.mkdir(path)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise NotADirectoryError(
                errno.ENOTDIR,
                "a directory of this name is needed for checkpoints, and something else has the name; move it away",
                os.fspath(path),
            ) from None
    else:
        if durable:
            flush_directory(os.path.dirname(os.path.abspath(path)))
    return os.fspath(path)


def delete(path: str | os.PathLike) -> list[str]:
    """Delete `path`, a tree, a file or a link (never what a link leads to), as far as that is possible.

    Returns:
        `list[str]`: what could not be deleted and why, one text each; empty if all is gone. Nothing is raised: clean-up
            never stops a run. (NFS keeps `.nfsXXXX` files while somebody has the deleted file open.)
    """
    problems: list[str] = []
    if not os.path.isdir(path) or os.path.islink(path):
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            problems.append(f"{path}: {error.strerror or error}")
        return problems

    def note(function: object, name: str, info: tuple) -> None:
        if not isinstance(info[1], FileNotFoundError):
            problems.append(f"{name}: {getattr(info[1], 'strerror', None) or info[1]}")

    # `onerror` rather than its successor `onexc`, which Python 3.11 does not have.
    shutil.rmtree(path, onerror=note)
    return problems


def drain_trash(run_dir: str | os.PathLike) -> list[str]:
    """Delete what retiring left in the run directory's trash; entries with other names are not ours and stay.

    The trash directory itself goes when it is empty. Called by the publisher only. Returns what could not be deleted.
    """
    trash = trash_dir(run_dir)
    problems: list[str] = []
    if os.path.islink(trash) or not os.path.isdir(trash):
        return problems
    try:
        with _trash_lock:
            names = os.listdir(trash)
    except OSError as error:
        return [f"{trash}: {error.strerror or error}"]
    for name in names:
        if is_retired_name(name):
            problems += delete(os.path.join(trash, name))
    with _trash_lock, contextlib.suppress(OSError):  # others keep things in a directory of this name too
        os.rmdir(trash)
    return problems


# ---- Modes ----


@dataclasses.dataclass(frozen=True)
class Modes:
    """Permission bits that a plain `open` and a plain `mkdir` give in one directory, with umask, ACL and setgid."""

    file: int
    directory: int


def probe_modes(directory: str | os.PathLike) -> Modes:
    """Find out by making one file and one directory in `directory`, which are removed again. Raises `OSError`."""
    name = os.path.join(directory, f"modes-{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")
    with open(name, "xb") as file:
        file_mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    os.unlink(name)
    os.mkdir(name)
    try:
        directory_mode = stat.S_IMODE(os.stat(name).st_mode)
    finally:
        os.rmdir(name)
    return Modes(file_mode, directory_mode)


def widen(path: str | os.PathLike, modes: Modes) -> None:
    """Give the file or directory at `path` at least the bits that `modes` says; bits are only ever added.

    Some writers leave 0600 (safetensors 0.8 writes through a temporary file of that mode). Where bits may not be
    changed (EPERM: not the owner, a mount without chmod) they stay as they are.
    """
    current = os.lstat(path).st_mode
    if stat.S_ISLNK(current):
        return
    wanted = stat.S_IMODE(current) | (modes.directory if stat.S_ISDIR(current) else modes.file)
    if wanted != stat.S_IMODE(current):
        try:
            os.chmod(path, wanted)
        except OSError as error:
            if error.errno not in LACKING | {errno.EPERM}:
                raise


# ---- What a file system can ----


def probe_rename(directory: str | os.PathLike) -> str | None:
    """Why directories in `directory` cannot be renamed, or `None` if they can. Leaves nothing behind.

    Object-store mounts lack the operation. Raises `OSError` where it exists and failed for another reason.
    """
    source = os.path.join(directory, f"rename-{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")
    target = f"{source}{TEMPORARY_SUFFIX}"
    os.mkdir(source)
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno not in RENAME_IMPOSSIBLE:
            raise
        return error.strerror or str(error)
    finally:
        for name in (source, target):
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(name)
    return None


def free_space(path: str | os.PathLike) -> int | None:
    """Bytes that this process may still write at `path`, or `None` where the system does not tell."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


# ---- Walking ----


def walk_files(root: str | os.PathLike, *, still_written: bool = False) -> Iterator[tuple[str, os.stat_result]]:
    """Relative path (with `/`) and `lstat` of everything below `root` that is not a directory. Raises `OSError`.

    What another host probes the directory with may come and go meanwhile. Anything else that goes is an error, unless
    files are `still_written` there: writers make files of passing names (safetensors 0.8 renames one into place).
    """

    def below(directory: str, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
        with os.scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            try:
                if entry.is_dir(follow_symlinks=False):
                    yield from below(entry.path, f"{prefix}{entry.name}/")
                else:
                    yield f"{prefix}{entry.name}", entry.stat(follow_symlinks=False)
            except OSError as error:
                if error.errno not in GONE or not (still_written or _is_probe(entry)):
                    raise

    yield from below(os.fspath(root), "")


def walk_directories(root: str | os.PathLike) -> list[str]:
    """`root` and every directory below it, parents first, without what a host probes the directory with."""
    found = [os.fspath(root)]
    for directory in found:
        with os.scandir(directory) as entries:
            found.extend(
                entry.path for entry in entries if entry.is_dir(follow_symlinks=False) and not _is_probe(entry)
            )
    return found


def remove_empty_directories(root: str | os.PathLike) -> None:
    """Remove every directory below `root` that holds no file, and `root` itself if it holds none. Never raises."""
    with contextlib.suppress(OSError):
        for directory in reversed(walk_directories(root)):
            with contextlib.suppress(OSError):
                os.rmdir(directory)


def _is_probe(entry: os.DirEntry) -> bool:
    return entry.name.endswith(TEMPORARY_SUFFIX)


def flush_directories(directories: Iterable[str]) -> None:
    """Flush several directories, children first."""
    for directory in sorted(directories, key=len, reverse=True):
        flush_directory(directory)


def format_size(size: float) -> str:
    """Bytes as people read them, in powers of ten: `1.62 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        # 999.5 is the first number that three digits round up to 1000.
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.3g} {unit}"
