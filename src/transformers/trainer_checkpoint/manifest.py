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
"""The manifest: the commit record inside a checkpoint.

Two files. The *head* (`checkpoint-manifest.json`) is small, can be read alone and is written last: a directory whose
head reads well is *sealed*. The *list* (`checkpoint-files.<n>.json`) holds relative path, size and digest of every
other file; the head carries the list's own name, size and digest. The head ends in a digest of itself, so a torn or
flipped head is told from a good one.

Nothing here knows of ranks, and nothing here decides whether a checkpoint is good: see `discovery`.

The fields of the head:

| field | meaning |
| --- | --- |
| `format` | 1. A reader refuses a larger number and says so |
| `step`, `sequence` | the step saved; the number that orders the checkpoints of a run directory |
| `nonce` | 16 hexadecimal digits drawn for this save |
| `world_size` | number of ranks that saved |
| `part` | `null` for a whole checkpoint, or `{"index", "of", "ranks"}`: one disk's share of one |
| `state` | what is inside, e.g. `["model", "optimizer", "rng", "scheduler", "trainer"]` |
| `algorithm` | which digest the list uses |
| `files` | `{"name", "size", "digest", "count", "bytes"}` of the list, the last two totals over the listed files |
| `saw` | the names of checkpoints without a manifest that were there at the first sealing: those are older |
| `sealing` | 1, and one more each time the same directory is sealed again |
| `opened_at`, `sealed_at` | for people, ISO 8601 in UTC. Never compared |
| `writer` | `{"transformers", "patch_set", "host", "pid", "run"}` |
"""

import dataclasses
import json
import os
import re
import stat
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from . import disk
from .digest import ALGORITHMS, DEFAULT_ALGORITHM, digest_bytes
from .errors import ManifestError, NewerManifestError
from .layout import FILE_LIST_PATTERN, MANIFEST_NAME, file_list_name


FORMAT = 1
# A head or a list larger than this was not written by us (bytes). A list entry takes about 100 bytes.
MAX_HEAD_SIZE = 8 << 20
MAX_LIST_SIZE = 256 << 20

# Around the head's digest of itself, which is the last thing in the file.
_CHECK_BEFORE = b',\n "check": "'
_CHECK_AFTER = b'"\n}\n'
# A pipe by the name of a manifest must not block whoever opens it.
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_NONCE = re.compile(r"^[0-9a-f]{16}\Z")


@dataclasses.dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint: size in bytes and digest in hexadecimal, `""` while that is still being computed."""

    size: int
    digest: str


@dataclasses.dataclass(frozen=True)
class Part:
    """One disk's share of a checkpoint whose ranks do not share a disk."""

    index: int
    of: int
    ranks: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ListRecord:
    """What the head says of the list of files. `count` and `bytes` are totals over the files listed."""

    name: str
    size: int
    digest: str
    count: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Head:
    """The head of a manifest; the fields are described at the top of the module."""

    step: int
    sequence: int
    nonce: str
    world_size: int
    state: tuple[str, ...]
    algorithm: str
    files: ListRecord
    part: Part | None = None
    saw: tuple[str, ...] = ()
    sealing: int = 1
    opened_at: str = ""
    sealed_at: str = ""
    writer: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    format: int = FORMAT

    @property
    def resumable(self) -> bool:
        """Whether the Trainer's own state is inside, without which no training can go on from it."""
        return "trainer" in self.state


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def draw_nonce() -> str:
    return os.urandom(8).hex()


def write_manifest(
    checkpoint: str | os.PathLike, head: Head, entries: Mapping[str, FileEntry], *, durable: bool
) -> Head:
    """Seal `checkpoint`: write the list of files, then the head. Called by the publisher only.

    On disk afterwards: both files, flushed if `durable`, and no list of an earlier sealing. A kill before the head is
    in place leaves the directory as it was: unsealed, or sealed by the earlier head and its own list.

    Args:
        checkpoint (`str` or `os.PathLike`):
            The directory to seal.
        head (`Head`):
            Everything but `files` and `sealed_at`, which are filled in here.
        entries (`Mapping[str, FileEntry]`):
            Relative path (with `/`) to size and digest of every file the checkpoint consists of.
        durable (`bool`):
            Flush both files and the directory.

    Returns:
        `Head`: what was written.

    Raises:
        `OSError`: if a write or a flush fails. The directory is then not sealed by this head.
    """
    listing = {"format": FORMAT, "files": {name: [e.size, e.digest] for name, e in sorted(entries.items())}}
    list_data = json.dumps(listing, indent=0, ensure_ascii=True).encode("ascii")
    record = ListRecord(
        name=file_list_name(head.sealing),
        size=len(list_data),
        digest=digest_bytes(list_data, head.algorithm),
        count=len(entries),
        bytes=sum(entry.size for entry in entries.values()),
    )
    head = dataclasses.replace(head, files=record, sealed_at=now())
    disk.write_whole(os.path.join(checkpoint, record.name), list_data, durable=durable)
    disk.write_whole(os.path.join(checkpoint, MANIFEST_NAME), encode_head(head), durable=durable)
    if durable:
        disk.flush_directory(checkpoint)
    for name in os.listdir(checkpoint):
        if FILE_LIST_PATTERN.match(name) and name != record.name:
            os.unlink(os.path.join(checkpoint, name))
    return head


def encode_head(head: Head) -> bytes:
    body = json.dumps(dataclasses.asdict(head), indent=1, ensure_ascii=True).removesuffix("\n}").encode("ascii")
    return body + _CHECK_BEFORE + _check(body) + _CHECK_AFTER


def _check(body: bytes) -> bytes:
    """Digest over every byte before it. crc32 everywhere: it needs no package, and the head is small."""
    return b"%08x" % zlib.crc32(body)


def read_head(checkpoint: str | os.PathLike) -> Head | None:
    """The head of `checkpoint`, or `None` if the directory has none. Reads one small file. May run on any rank.

    Raises:
        `ManifestError`: there is a head and it cannot be used: empty, torn, altered, not ours, from a newer version.
        `OSError`: it cannot be looked at, which says nothing about whether it is good.
    """
    path = os.path.join(checkpoint, MANIFEST_NAME)
    try:
        data = _read_bounded(path, MAX_HEAD_SIZE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not data:
        raise ManifestError(f"{path} is empty")
    return decode_head(data, path)


def decode_head(data: bytes, path: str) -> Head:
    """Parse and check the bytes of a head; `path` is for the messages. Raises `ManifestError`."""
    fields = _parse_object(data, path)
    version = fields.get("format")
    if type(version) is not int or version < 1:
        raise ManifestError(f"{path} has no format number; it is not a checkpoint manifest")
    if version > FORMAT:
        raise NewerManifestError(
            f"{path} has format {version}, and this version reads formats up to {FORMAT}. The checkpoint was written "
            "by a newer version: update, or move the manifest away to use the checkpoint without verification"
        )
    body, found, end = data.rpartition(_CHECK_BEFORE)
    intact = found and end == _check(body) + _CHECK_AFTER
    if not intact:
        raise ManifestError(f"{path} was altered or damaged: its own digest does not fit")
    return _head_from(fields, path)


def _head_from(fields: Mapping[str, Any], path: str) -> Head:
    def bad(name: str) -> ManifestError:
        return ManifestError(f"{path}: field {name!r} is {fields.get(name)!r}, which is not what it should be")

    for name, least in (("step", 0), ("sequence", 1), ("world_size", 1), ("sealing", 1)):
        value = fields.get(name)
        if type(value) is not int or value < least:
            raise bad(name)
    nonce = fields.get("nonce")
    if type(nonce) is not str or not _NONCE.match(nonce):
        raise bad("nonce")
    for name in ("state", "saw"):
        if not _is_list_of(fields.get(name), str):
            raise bad(name)
    for name in ("algorithm", "opened_at", "sealed_at"):
        if not isinstance(fields.get(name), str):
            raise bad(name)
    if not isinstance(fields.get("writer"), dict):
        raise bad("writer")
    record = fields.get("files")
    if (
        not isinstance(record, dict)
        or not isinstance(record.get("name"), str)
        or not FILE_LIST_PATTERN.match(record["name"])
        or not isinstance(record.get("digest"), str)
        or not _is_count(record.get("size"))
        or not _is_count(record.get("count"))
        or not _is_count(record.get("bytes"))
    ):
        raise bad("files")
    part = fields.get("part")
    if part is not None and (
        not isinstance(part, dict)
        or not _is_count(part.get("index"))
        or not _is_count(part.get("of"))
        or not part["index"] < part["of"]
        or not _is_list_of(part.get("ranks"), int)
    ):
        raise bad("part")
    return Head(
        step=fields["step"],
        sequence=fields["sequence"],
        nonce=fields["nonce"],
        world_size=fields["world_size"],
        state=tuple(fields["state"]),
        algorithm=fields["algorithm"],
        files=ListRecord(record["name"], record["size"], record["digest"], record["count"], record["bytes"]),
        part=None if part is None else Part(part["index"], part["of"], tuple(part["ranks"])),
        saw=tuple(fields["saw"]),
        sealing=fields["sealing"],
        opened_at=fields["opened_at"],
        sealed_at=fields["sealed_at"],
        writer=fields["writer"],
        format=fields["format"],
    )


def read_entries(checkpoint: str | os.PathLike, head: Head) -> dict[str, FileEntry]:
    """The list of files that `head` names. Relative path (with `/`) to size and digest.

    Raises:
        `ManifestError`: the list is missing, damaged, or holds a path that leaves the checkpoint.
        `OSError`: it cannot be looked at.
    """
    path = os.path.join(checkpoint, head.files.name)
    try:
        data = _read_bounded(path, MAX_LIST_SIZE)
    except FileNotFoundError as error:
        raise ManifestError(f"{path} is missing, the list of files that the manifest names") from error
    if len(data) != head.files.size:
        raise ManifestError(f"{path} has {len(data)} bytes, and the manifest says {head.files.size}")
    if head.algorithm in ALGORITHMS and digest_bytes(data, head.algorithm) != head.files.digest:
        raise ManifestError(f"{path} was altered or damaged: its digest is not the one in the manifest")
    listing = _parse_object(data, path).get("files")
    if not isinstance(listing, dict):
        raise ManifestError(f"{path} has no list of files in it")
    entries = {}
    for name, entry in listing.items():
        if not is_safe_name(name):
            raise ManifestError(
                f"{path} lists {name!r}, which is not a plain path inside the checkpoint. A manifest this library "
                "wrote holds no such path: do not use a checkpoint from a source you do not trust"
            )
        if not isinstance(entry, list) or len(entry) != 2 or not _is_count(entry[0]) or not isinstance(entry[1], str):
            raise ManifestError(f"{path}: the entry of {name!r} is {entry!r}, not [size, digest]")
        entries[name] = FileEntry(entry[0], entry[1])
    return entries


def is_safe_name(name: str) -> bool:
    """Whether `name` is a relative path that stays inside its directory, on every operating system."""
    if not name or "\\" in name or "\0" in name or name.startswith("/") or re.match(r"^[A-Za-z]:", name):
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def known_algorithm(head: Head) -> bool:
    """Whether the digests of this manifest can be computed here."""
    return head.algorithm in ALGORITHMS


def _read_bounded(path: str, limit: int) -> bytes:
    descriptor = os.open(path, _READ_FLAGS)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise ManifestError(f"{path} is not a regular file")
        if info.st_size > limit:
            raise ManifestError(f"{path} is larger than {limit} bytes; it is not a file this library wrote")
        data = b""
        while len(data) < info.st_size and (chunk := os.read(descriptor, info.st_size - len(data))):
            data += chunk
        return data
    finally:
        os.close(descriptor)


def _parse_object(data: bytes, path: str) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path} is not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise ManifestError(f"{path} holds a {type(fields).__name__}, not an object")
    return fields


# What comes out of JSON has exactly the types of JSON, and `True` is no number. A run directory can have thousands of
# heads, and all of them are read.
def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_list_of(value: Any, kind: type) -> bool:
    return type(value) is list and {*map(type, value)} <= {kind}


__all__ = [
    "DEFAULT_ALGORITHM",
    "FORMAT",
    "FileEntry",
    "Head",
    "ListRecord",
    "Part",
    "decode_head",
    "draw_nonce",
    "encode_head",
    "is_safe_name",
    "known_algorithm",
    "now",
    "read_entries",
    "read_head",
    "write_manifest",
]
