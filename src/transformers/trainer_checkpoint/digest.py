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
    sync: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[int, str]:
    """Size in bytes and digest (hexadecimal) of the file at `path`.

    Args:
        path (`str` or `os.PathLike`):
            A regular file.
        algorithm (`str`, *optional*, defaults to the best one installed):
            A key of `ALGORITHMS`.
        sync (`bool`, *optional*, defaults to `False`):
            Also flush the file to the disk, whoever wrote it. The flush comes first: what is hashed is then in the
            page cache *and* on the disk, and a write error of the device is raised here.
        progress (`Callable[[int], None]`, *optional*):
            Called with the number of bytes of each chunk.

    Raises:
        `OSError`: if the file cannot be read, or not be flushed.
    """
    digest = ALGORITHMS[algorithm]()
    size = 0
    buffer = memoryview(bytearray(CHUNK_SIZE))
    with open(path, "rb", buffering=0) as file:
        if sync:
            # Imported late: `disk` needs nothing of this module, and readers need nothing of `disk`.
            from .disk import flush_descriptor

            flush_descriptor(file.fileno(), path)
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
            if progress is not None:
                progress(count)
    return size, digest.hexdigest()


def digest_files(
    root: str | os.PathLike,
    names: Iterable[str],
    algorithm: str = DEFAULT_ALGORITHM,
    sync: bool = False,
    progress: Callable[[int], None] | None = None,
) -> dict[str, tuple[int, str]]:
    """`digest_file` of several files at a time; relative name to (size, digest). The first error is raised."""
    names = list(names)
    if not names:
        return {}
    with ThreadPoolExecutor(min(THREADS, len(names)), thread_name_prefix="checkpoint-digest") as pool:
        results = pool.map(lambda name: digest_file(os.path.join(root, name), algorithm, sync, progress), names)
        return dict(zip(names, results, strict=True))
