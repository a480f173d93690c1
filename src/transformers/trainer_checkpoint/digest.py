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
"""Digests of checkpoint files: xxh3-128 through `xxhash`, zlib's crc32 where that is missing.

A digest tells a damaged file from an undamaged one. It is no protection against somebody who wants to forge a
checkpoint: xxh3 is not a cryptographic hash.
"""

import os
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol


try:
    import xxhash
except ImportError:  # the wheel requires it; a checkpoint can still be read and written without
    xxhash = None

# One read. Large enough that the system calls do not count, small enough that the bytes are hashed while they are in
# the second-level cache (bytes).
CHUNK_SIZE = 1 << 20
# Files hashed at the same time. Reading the page cache and xxhash both leave the interpreter lock; more threads than
# this only help on disks faster than memory.
THREADS = min(8, os.cpu_count() or 1)


class _Hash(Protocol):
    def update(self, data: memoryview, /) -> object: ...

    def hexdigest(self) -> str: ...


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: memoryview, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


ALGORITHMS: dict[str, Callable[[], _Hash]] = {"crc32": _Crc32}
if xxhash is not None:
    ALGORITHMS["xxh3_128"] = xxhash.xxh3_128

DEFAULT_ALGORITHM = "xxh3_128" if xxhash is not None else "crc32"


def digest_bytes(data: bytes, algorithm: str = DEFAULT_ALGORITHM) -> str:
    digest = ALGORITHMS[algorithm]()
    digest.update(memoryview(data))
    return digest.hexdigest()


def digest_file(
    path: str | os.PathLike,
    algorithm: str = DEFAULT_ALGORITHM,
    progress: Callable[[int], None] | None = None,
) -> tuple[int, str]:
    """Size in bytes and digest (hexadecimal) of the file at `path`.

    Args:
        path (`str` or `os.PathLike`):
            A regular file.
        algorithm (`str`, *optional*, defaults to the best one installed):
            A key of `ALGORITHMS`.
        progress (`Callable[[int], None]`, *optional*):
            Called with the number of bytes of each chunk.

    Raises:
        `OSError`: if the file cannot be read.
    """
    digest = ALGORITHMS[algorithm]()
    size = 0
    buffer = memoryview(bytearray(CHUNK_SIZE))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
            if progress is not None:
                progress(count)
    return size, digest.hexdigest()


def digest_files(
    root: str | os.PathLike, names: Iterable[str], algorithm: str = DEFAULT_ALGORITHM, sync: bool = False
) -> dict[str, tuple[int, str]]:
    """`digest_file` of several files at a time; relative name to (size, digest).

    Args:
        root (`str` or `os.PathLike`):
            The directory that holds the files.
        names (`Iterable[str]`):
            Their paths in it, with `/`.
        algorithm (`str`, *optional*, defaults to the best one installed):
            A key of `ALGORITHMS`.
        sync (`bool`, *optional*, defaults to `False`):
            Also flush the files to the disk, whoever wrote them. The two go on side by side: one waits for the disk, the
            other for the processor, and what is hashed is still in the page cache.

    Raises:
        `OSError`: if a file cannot be read or flushed: the first such error, once nothing is going on any more.
    """
    names = list(names)
    if not names:
        return {}
    paths = [os.path.join(root, name) for name in names]
    workers = min(THREADS, len(names))
    with (
        ThreadPoolExecutor(workers, thread_name_prefix="checkpoint-flush") as flushing,
        ThreadPoolExecutor(workers, thread_name_prefix="checkpoint-digest") as hashing,
    ):
        flushed = [flushing.submit(_flush_file, path) for path in paths if sync]
        digests = [hashing.submit(digest_file, path, algorithm) for path in paths]
        for future in flushed:
            future.result()
        return {name: future.result() for name, future in zip(names, digests, strict=True)}


def _flush_file(path: str) -> None:
    # Imported late: `disk` needs nothing of this module, and readers need nothing of `disk`.
    from .disk import flush_file

    flush_file(path)
