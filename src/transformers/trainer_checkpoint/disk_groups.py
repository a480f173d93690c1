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
"""Which ranks share a disk: found out by looking, once per run directory.

Nothing is guessed from `LOCAL_RANK`, from `save_on_each_node` or from path names. The lowest rank of each host writes a
token, a file with a fresh random name, into the run directory. When all are written every host opens the others' tokens
by name: one that opens is on the same disk. A name that nobody has asked for before is in no cache that says it is
missing, and a directory that one has just written into oneself is looked up afresh; where a network mount may answer
from a cache all the same, a token that is missing is looked for again until the cache must have been renewed.
Listings, `exists` and `stat` are not used: on another node they may be a minute old.

On disk afterwards: the run directory, and no token.
"""

import contextlib
import dataclasses
import os
import re
import time

from ..utils import logging
from . import disk
from .layout import disk_token_name, is_disk_token
from .manifest import draw_nonce
from .ranks import Ranks, format_ranks


logger = logging.get_logger(__name__)

# Seconds for which a foreign token is looked for on a mount that may cache: NFS keeps what it knows of a directory for
# up to 60 s (acdirmax), and so do the usual mounts of object stores.
CACHE_TIME = 65.0
# Seconds between two looks.
_LOOK_INTERVAL = 0.5
# File systems of one kernel: what one process wrote, the next one sees at once, in other containers as well. Several
# machines cannot have one of these mounted together, so a token that does not open at once is on another disk.
LOCAL_FILE_SYSTEMS = frozenset(
    {"bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs"}
    | {"vfat", "xfs", "zfs"}
)


@dataclasses.dataclass(frozen=True)
class DiskGroups:
    """Which ranks see the same run directory.

    Args:
        groups (`tuple[tuple[int, ...], ...]`):
            The ranks of each disk, in ascending order; disks in order of their lowest rank.
        hosts (`tuple[str, ...]`):
            The host of each rank.
        diskless (`dict[int, str]`, *optional*):
            Ranks that could not write into their run directory, and why.
    """

    groups: tuple[tuple[int, ...], ...]
    hosts: tuple[str, ...]
    diskless: dict[int, str] = dataclasses.field(default_factory=dict)

    @property
    def publishers(self) -> tuple[int, ...]:
        """The one rank of each disk that seals, renames and deletes there."""
        return tuple(group[0] for group in self.groups)

    def group_of(self, rank: int) -> tuple[int, ...]:
        """All ranks on the disk of `rank`; empty for a rank without a disk."""
        return next((group for group in self.groups if rank in group), ())

    def publisher_of(self, rank: int) -> int | None:
        """The publisher of the disk of `rank`; `None` for a rank without a disk."""
        return next(iter(self.group_of(rank)), None)

    def leader_of_host(self, rank: int) -> int | None:
        """The lowest rank on the same host and disk as `rank`; `None` for a rank without a disk."""
        return next((other for other in self.group_of(rank) if self.hosts[other] == self.hosts[rank]), None)

    def should_save(self, rank: int, *, save_on_each_node: bool) -> bool:
        """Whether `rank` writes what is written once: model, optimizer, Trainer state.

        With `save_on_each_node` that is one rank per disk, not one per node: nodes that share a disk would write the
        same names at the same time.
        """
        return self.publisher_of(rank) == rank and (save_on_each_node or rank == 0)


# ---- Finding out ----


def find_disk_groups(run_dir: str | os.PathLike, ranks: Ranks, cache_time: float = CACHE_TIME) -> DiskGroups:
    """Find out which ranks see the same run directory. Called by all ranks, once per run directory.

    On disk afterwards: the run directory, on every disk, and nothing in it that was not there before. A training of
    one process, and one whose ranks cannot talk, touch nothing: there is one group then.

    Args:
        run_dir (`str` or `os.PathLike`):
            The run directory as this rank names it.
        ranks ([`Ranks`]):
            The ranks of this training.
        cache_time (`float`, *optional*, defaults to 65.0):
            Seconds for which a network mount may answer from its cache. Waited for only if a host on such a mount
            does not see another one's token, which is then said in the log.

    Raises:
        [`RankLostError`]: a rank did not take part. Whatever the disks answer is no error: a rank that cannot write is
            one without a disk.
    """
    if ranks.alone or not ranks.connected:
        return DiskGroups((tuple(range(ranks.world_size)),), (ranks.host,) * ranks.world_size)
    hosts = tuple(ranks.exchange("disk hosts", ranks.host))
    leader = hosts.index(ranks.host)
    token = _Token(run_dir)
    try:
        if ranks.rank == leader:
            token.write()
        written = ranks.exchange("disk tokens of hosts", token.told())
        # Ranks of one host mostly look at one directory; one whose token of the host is not there looks at another.
        with_leader = ranks.rank == leader or (written[leader]["name"] and _opens(run_dir, written[leader]["name"]))
        if not with_leader:
            token.write()
        written = ranks.exchange("disk tokens", {**token.told(), "with": leader if with_leader else ranks.rank})

        names = {rank: told["name"] for rank, told in enumerate(written) if told["name"]}
        wanted = {rank: name for rank, name in names.items() if rank != ranks.rank} if token.name else {}
        seen = _look_for(run_dir, wanted)
        edges = _edges(ranks.exchange("disks seen", sorted(seen)))
        if token.name and len(_joined(names, edges)) > 1 and may_cache(run_dir):
            seen |= _look_again(run_dir, ranks, {rank: wanted[rank] for rank in wanted.keys() - seen}, cache_time)
        edges += _edges(ranks.exchange("disks seen in the end", sorted(seen)))
    finally:
        token.remove()
    ranks.exchange("disk tokens removed", None)

    units = {rank: told["with"] for rank, told in enumerate(written)}
    diskless = {
        rank: written[unit]["problem"] or "unknown" for rank, unit in units.items() if not written[unit]["name"]
    }
    groups = [
        tuple(rank for rank, unit in units.items() if unit in joined and rank not in diskless)
        for joined in _joined(names, edges)
    ]
    return DiskGroups(tuple(sorted(groups)), hosts, diskless)


class _Token:
    """This rank's token, if it writes one. A problem is kept, not raised: the other ranks wait for an answer."""

    def __init__(self, run_dir: str | os.PathLike):
        self.run_dir = run_dir
        self.name: str | None = None
        self.problem: str | None = None

    def write(self) -> None:
        name = disk_token_name(draw_nonce())
        try:
            # A directory that another node made a moment ago may be there and not be seen.
            with contextlib.suppress(FileExistsError):
                disk.make_directories(self.run_dir, durable=True)
            with open(os.path.join(self.run_dir, name), "xb") as file:
                # A full or read-only disk may let a name be made and refuse what goes into it.
                file.write(name.encode("ascii"))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self.problem = f"{os.path.abspath(self.run_dir)}: {error.strerror or error}"
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.run_dir, name))
        else:
            self.name = name

    def told(self) -> dict[str, str | None]:
        return {"name": self.name, "problem": self.problem}

    def remove(self) -> None:
        if self.name is not None:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.run_dir, self.name))


def _opens(run_dir: str | os.PathLike, name: str) -> bool:
    try:
        with open(os.path.join(run_dir, name), "rb"):
            return True
    except OSError:
        return False


def _look_for(run_dir: str | os.PathLike, names: dict[int, str]) -> set[int]:
    return {rank for rank, name in names.items() if _opens(run_dir, name)}


def _look_again(run_dir: str | os.PathLike, ranks: Ranks, names: dict[int, str], cache_time: float) -> set[int]:
    """Until all are there or the caches must have been renewed. One token more is reason to look for all the others."""
    if names and cache_time > 0:
        logger.warning(
            f"Rank {ranks.rank} does not see the other nodes' files in {os.path.abspath(run_dir)}. Looking for up to "
            f"{cache_time:g} s, in case this is a shared disk that answers from a cache."
        )
    found: set[int] = set()
    end = time.monotonic() + cache_time
    while len(found) < len(names) and time.monotonic() < end:
        time.sleep(min(_LOOK_INTERVAL, max(0.0, end - time.monotonic())))
        found |= _look_for(run_dir, {rank: name for rank, name in names.items() if rank not in found})
    return found


def _edges(seen: list[list[int]]) -> list[tuple[int, int]]:
    return [(rank, other) for rank, others in enumerate(seen) for other in others]


def _joined(names: dict[int, str], edges: list[tuple[int, int]]) -> list[set[int]]:
    """The writers of tokens, put together where one of two has seen the other: to open a fresh name once is proof."""
    groups = [{rank} for rank in names]
    for one, other in edges:
        first = next(group for group in groups if one in group)
        second = next(group for group in groups if other in group)
        if first is not second:
            first |= second
            groups.remove(second)
    return groups


def may_cache(run_dir: str | os.PathLike) -> bool:
    """Whether the file system of `run_dir` may answer from a cache that other machines' changes do not reach."""
    path = os.path.realpath(run_dir)
    best, kind = "", None
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                before, _, after = line.partition(" - ")
                # Spaces and the like in a path are written as octal numbers.
                point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split()[4])
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                # Of two mounts on one point the later one is seen.
                if inside and len(point) >= len(best):
                    best, kind = point, after.split()[0]
    except (OSError, IndexError):
        return True
    return kind not in LOCAL_FILE_SYSTEMS


def sweep_disk_tokens(run_dir: str | os.PathLike) -> None:
    """Remove tokens that killed processes left in `run_dir`. Called by the publisher, after it became the owner.

    Whoever looks for disks there at the same time is another training, which the owner record is about to refuse.
    Never raises.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(run_dir):
            if is_disk_token(name):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(run_dir, name))


# ---- What follows for saving and resuming ----


@dataclasses.dataclass(frozen=True)
class SetupFindings:
    """What is wrong with a set-up: `errors` make every save pointless, `warnings` are to be said at the first one."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def warnings_for(
    groups: DiskGroups,
    run_dir: str | os.PathLike,
    *,
    save_on_each_node: bool,
    sharded: str | None = None,
    node_local_storage: bool = False,
) -> SetupFindings:
    """Set-ups that cannot resume, or in which nodes would overwrite each other. Looks at nothing; the same on all ranks.

    Args:
        groups ([`DiskGroups`]):
            Which ranks share a disk.
        run_dir (`str` or `os.PathLike`):
            The run directory, for the texts.
        save_on_each_node (`bool`):
            The training argument of that name.
        sharded (`str`, *optional*):
            `"fsdp"` if FSDP saves sharded state, `"fsdp full"` if it gathers it on rank 0, `"deepspeed"` if DeepSpeed's
            engine writes the checkpoint.
        node_local_storage (`bool`, *optional*, defaults to `False`):
            DeepSpeed's option `checkpoint.use_node_local_storage`.
    """
    errors, warnings = [], []
    if groups.diskless:
        reasons = "; ".join(
            f"rank(s) {format_ranks(rank for rank in groups.diskless if groups.diskless[rank] == reason)}: {reason}"
            for reason in dict.fromkeys(groups.diskless.values())
        )
        errors.append(
            f"Not every rank can write into the run directory {run_dir} ({reasons}). Each rank saves its own random "
            "state, so there would never be a whole checkpoint. Make the directory writable for all of them, or set "
            "`output_dir` to one that is."
        )
    if save_on_each_node:
        for group in groups.groups:
            if len({groups.hosts[rank] for rank in group}) > 1:
                warnings.append(
                    f"`save_on_each_node` is set, and rank(s) {format_ranks(group)} of several nodes share one run "
                    f"directory, {run_dir}. Their nodes would overwrite each other's files: only rank {group[0]} "
                    "writes what is common to all. Unset `save_on_each_node`."
                )
    split = sorted({host for host in groups.hosts if len(_groups_on(groups, host)) > 1})
    if split:
        warnings.append(
            f"Ranks on one node ({', '.join(host.partition('/')[0] for host in split)}) do not have the same run "
            f"directory: {_described(groups)}. `output_dir` should be the same on all ranks."
        )
    if len(groups.groups) > 1:
        warnings += _of_separate_disks(groups, run_dir, save_on_each_node, sharded, node_local_storage)
    return SetupFindings(tuple(errors), tuple(warnings))


def _of_separate_disks(
    groups: DiskGroups, run_dir: str | os.PathLike, save_on_each_node: bool, sharded: str | None, node_local: bool
) -> list[str]:
    apart = f"The ranks do not share the run directory {run_dir}: {_described(groups)}."
    others = f"rank(s) {format_ranks(rank for group in groups.groups if 0 not in group for rank in group)}"
    if not save_on_each_node:
        return [
            f"{apart} Without `save_on_each_node`, model, optimizer and Trainer state are written to the disk of rank 0 "
            f"only, so {others} cannot resume from these checkpoints until somebody copies the files together. Use a "
            "directory that all nodes share, or set `save_on_each_node=True`."
        ]
    if sharded == "fsdp":
        return [
            f"{apart} FSDP's sharded checkpoints have their index (`.metadata`) on the disk of rank 0 only and each "
            f"rank's shards on its own, so {others} cannot resume from them until somebody copies the files together. "
            "Use a directory that all nodes share."
        ]
    if sharded == "fsdp full":
        return [
            f"{apart} FSDP's full state dicts are written to the disk of rank 0 only, so {others} cannot resume from "
            "these checkpoints until somebody copies the files together. Use a directory that all nodes share."
        ]
    if sharded == "deepspeed" and not node_local:
        return [
            f"{apart} DeepSpeed writes its model states and the name of the latest checkpoint to the disk of rank 0 "
            f"only, so {others} cannot resume from these checkpoints until somebody copies the files together. Use a "
            'directory that all nodes share, or set `"checkpoint": {"use_node_local_storage": true}` in its '
            "configuration."
        ]
    return []


def _groups_on(groups: DiskGroups, host: str) -> set[tuple[int, ...]]:
    return {groups.group_of(rank) for rank, name in enumerate(groups.hosts) if name == host} - {()}


def _described(groups: DiskGroups) -> str:
    return "; ".join(
        f"rank(s) {format_ranks(group)} on "
        + ", ".join(dict.fromkeys(groups.hosts[rank].partition("/")[0] for rank in group))
        for group in groups.groups
    )
