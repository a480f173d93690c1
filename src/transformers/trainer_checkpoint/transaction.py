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
"""One save of one checkpoint: everything or nothing, and the same on every rank.

The commit point is the rename in `publishing.publish`, called from `SaveTransaction._publish`. Before it the checkpoint
does not exist, after it, it exists whole. The steps, in the order in which the methods stand below:

1. **open** (all ranks): the publisher of each disk puts in order what a dead save left, and makes the staging
   directory; the ranks meet.
2. **write** (all ranks): the caller writes into `staging_run_dir`. A rank whose writing fails keeps the error (`keep`)
   and goes on, because the others are inside collectives that wait for it.
3. **written** (all ranks vote): one failure is everybody's.
4. **flush** (one rank per host): contents and digests of every file, then the directories.
5. **flushed** (all ranks vote).
6. **seal** (each publisher): what should be there is looked for by opening it; the manifest is written.
7. **sealed** (all ranks vote), then `barrier`.
8. **publish** (each publisher): the rename.
9. **announce** (all ranks): the outcome.

Nothing here imports torch or knows of the Trainer: a driver of a few lines runs the real protocol on real files.
"""

import contextlib
import dataclasses
import errno
import os
import time
import weakref
from collections.abc import Callable, Generator, Mapping
from typing import Any

from ..utils import logging
from . import disk, owner, publishing
from .digest import DEFAULT_ALGORITHM, digest_files
from .disk_groups import DiskGroups, SetupFindings, find_disk_groups, sweep_disk_tokens, warnings_for
from .errors import CheckpointError, CheckpointOwnedError, CheckpointSaveError, ManifestError, RankLostError
from .held_logs import final_paths
from .layout import (
    SENTINEL_NAME,
    checkpoint_name,
    rank_in,
    staging_run_dir,
    step_of,
)
from .manifest import FileEntry, Head, ListRecord, Part, draw_nonce, now, read_head, write_manifest
from .ranks import Ranks
from .rotation import Sweeper, sweep_leftovers
from .sealing import is_ours, snapshot, why_not_in_checkpoint
from .structure import check_structure, state_inside


logger = logging.get_logger(__name__)

# How long a file that another host wrote may stay invisible here before it counts as missing. NFS clients keep what
# they know of a directory for up to 60 s (`acdirmax`, nfs(5)).
FOREIGN_FILE_PATIENCE = disk.HIDDEN_DIRECTORY_PATIENCE
# How long a save waits for the background to delete what takes the space it needs. Well below `save_patience`, which runs
# on the other ranks meanwhile (seconds).
ROOM_PATIENCE = 60.0
# How long a training waits for another process that saves in its run directory to leave: the one that it replaces may be
# within the grace that a scheduler gives it, which is 30 s mostly, and be writing its last checkpoint (seconds).
OWNER_PATIENCE = 60.0
# How long the ranks wait for one that failed inside a collective of another library. It has to outlast the slowest
# healthy writer, which is unknown; past it the failed process ends itself, and with it the job.
FOREIGN_COLLECTIVE_GRACE = 120.0


# Saves that are open in this process, by run directory: a second one would take the first one's files for leftovers.
_open_saves: "weakref.WeakValueDictionary[str, SaveTransaction]" = weakref.WeakValueDictionary()

# After these the checkpoint is in place, or will be at the next start: "not saved" would be wrong.
_IN_PLACE_OR_WILL_BE = (publishing.NotDurableError, publishing.HalfwayError)


class RunDirectory:
    """What this process knows of one run directory and finds out once: disk groups, ownership, what a rename does.

    Args:
        path (`str`):
            The run directory. Need not exist yet.
        ranks ([`Ranks`]):
            The ranks of this training.
        durable (`bool`, *optional*, defaults to `True`):
            Whether what is saved here has to survive a power cut.
        sweeper ([`Sweeper`], *optional*):
            Deletes what a dead run left in the trash in the background; without one it is deleted at once.
        setup (`Mapping[str, Any]`, *optional*):
            What `warnings_for` has to know of the training besides the disk groups.
    """

    def __init__(
        self,
        path: str,
        ranks: Ranks,
        durable: bool = True,
        sweeper: Sweeper | None = None,
        setup: Mapping[str, Any] | None = None,
    ):
        self.path = os.fspath(path)
        self.absolute = os.path.abspath(path)
        self.ranks = ranks
        self.durable = durable
        self.sweeper = sweeper
        # The steps this run has saved: a run knows its own checkpoints in a directory of an older one.
        self.saved_steps: set[int] = set()
        self.groups: DiskGroups | None = None
        self._setup: dict[str, Any] = dict(setup or {"save_on_each_node": False})
        self._warned_of_setup = False
        self.said_in_place = False
        self._rename_problem: str | None = None
        self._claimed = False
        self._has_waited_for_owner = False

    @property
    def staging(self) -> str:
        return staging_run_dir(self.path)

    def find_groups(self) -> DiskGroups:
        """Which ranks share a disk. Called by all ranks; looked at once, or until every rank has one."""
        # A disk that failed for a moment must not make every later save fail.
        if self.groups is None or self.groups.diskless:
            self.groups = find_disk_groups(self.path, self.ranks)
        return self.groups

    def look_at_setup(self) -> SetupFindings:
        """What is wrong with how ranks and disks go together; warnings only the first time. The same on all ranks."""
        assert self.groups is not None
        findings = warnings_for(self.groups, self.path, **self._setup)
        if self._warned_of_setup:
            findings = dataclasses.replace(findings, warnings=())
        self._warned_of_setup = True
        return findings

    def is_publisher(self) -> bool:
        assert self.groups is not None
        return self.groups.publisher_of(self.ranks.rank) == self.ranks.rank

    def prepare(self, nonce: str, *, in_a_hurry: bool = False) -> dict[str, Any]:
        """Make the run directory ready for a save. Called by the publisher only.

        On disk afterwards: the run directory, with this process's owner record in it, and no leftover of a dead save.
        Another process that saves there is waited for, once, unless this one is `in_a_hurry`.

        Raises:
            [`CheckpointOwnedError`]: somebody else who is alive saves here.
            `OSError`: something could not be made, renamed or looked at.
        """
        disk.make_directories(self.path, durable=self.durable)
        # Not held any more: somebody has removed the staging directory, or taken it over while this process was stopped.
        if not self._claimed or not owner.holds(self.path):
            # One that did not leave the first time is no predecessor, and every save would be held up.
            self._claim(patience=0.0 if in_a_hurry or self._has_waited_for_owner else OWNER_PATIENCE)
            self._rename_problem = disk.probe_rename(self.staging)
            sweep_leftovers(self.path, self.sweeper)
            sweep_disk_tokens(self.path)
        publishing.settle(self.path, nonce=nonce, durable=self.durable, expect=self._ask_for_time)
        newest = newest_head(self.path)
        size = newest.files.bytes if newest is not None else None
        free = disk.free_space(self.path)
        if self.sweeper is not None and size is not None and free is not None and free < size:
            # What is being deleted in the background makes room.
            self.sweeper.wait(ROOM_PATIENCE)
            free = disk.free_space(self.path)
        return {
            "sequence": 1 + (newest.sequence if newest is not None else 0),
            "rename_problem": self._rename_problem,
            "last_size": size,
            "free": free,
        }

    def _claim(self, patience: float) -> None:
        end = time.monotonic() + patience
        while True:
            try:
                owner.claim(self.path, durable=self.durable)
                break
            except CheckpointOwnedError as error:
                if time.monotonic() >= end:
                    raise
                if not self._has_waited_for_owner:
                    logger.warning(
                        f"{error.owner} is saving checkpoints in {self.path}. Waiting for up to {patience:g} s until it "
                        "leaves."
                    )
                    self.ranks.take_time(patience + owner.WATCH)
                self._has_waited_for_owner = True
                time.sleep(1.0)
        self._claimed = True

    def _ask_for_time(self, path: str, size: int) -> None:
        """The leftover at `path`, of `size` bytes, is read through now, for which the other ranks wait."""
        logger.info(
            f"An interrupted save has left {path} ({disk.format_size(size)}). It is verified, and published if it is "
            "whole."
        )
        self.ranks.take_time(size / disk.SLOWEST_READ)

    def close(self) -> None:
        """The training is over: give the run directory up. Called by all ranks; never raises."""
        if self._claimed:
            self._claimed = False
            owner.release(self.absolute)


def newest_head(run_dir: str) -> Head | None:
    """The head with the highest sequence number in `run_dir`; heads that cannot be read do not count."""
    newest = None
    for name in os.listdir(run_dir):
        if step_of(name) is None:
            continue
        try:
            head = read_head(os.path.join(run_dir, name))
        except (ManifestError, OSError):
            continue
        if head is not None and (newest is None or head.sequence > newest.sequence):
            newest = head
    return newest


@dataclasses.dataclass(frozen=True)
class Published:
    """What a save has put in place.

    Args:
        path (`str`):
            The final path.
        step (`int`):
            The step.
        size, files (`int`):
            Bytes and number of files, over all disks.
        seconds (`float`):
            From open to announcement.
        head ([`Head`], *optional*):
            The manifest's head on this rank's disk; `None` on ranks that are no publisher.
        nonce (`str`):
            16 hexadecimal digits drawn for this save, the same on all ranks.
        seen (`dict[str, tuple[int, int, int]]`):
            `snapshot` of what was sealed, from before anybody could find it under the final path.
    """

    path: str
    step: int
    size: int
    files: int
    seconds: float
    head: Head | None
    nonce: str
    seen: dict[str, tuple[int, int, int]]


class _Failed(Exception):
    """Some ranks failed; the same on every rank. Becomes a `CheckpointSaveError` at the end of the transaction."""

    def __init__(self, failures: dict[int, str], outcome_unknown: bool = False, every_rank_reported: bool = True):
        super().__init__(failures)
        self.failures = failures
        self.outcome_unknown = outcome_unknown
        self.every_rank_reported = every_rank_reported


class SaveTransaction:
    """One save of step `step` into `run`. Every method is called by all ranks unless it says otherwise.

    `open`, then the writing, then exactly one of `commit` and `abort`.

    Args:
        run ([`RunDirectory`]):
            Where to.
        step (`int`):
            The step that the directory will be named after.
        in_place (`str`, *optional*):
            Why the files cannot go through staging. They are then written under the final name, behind the sentinel.
        facts (`dict[str, Any]`, *optional*):
            What rank 0 wants all ranks to know about this save; after `open` every rank's `facts` are those of rank 0.
        tell (`Callable[[str], None]`, *optional*):
            Called with a text for people.
    """

    def __init__(
        self,
        run: RunDirectory,
        step: int,
        *,
        in_place: str | None = None,
        facts: Mapping[str, Any] | None = None,
        tell: Callable[[str], None] = logger.warning,
    ):
        self.run = run
        self.ranks = run.ranks
        self.step = step
        self.in_place = in_place
        self.kept: BaseException | None = None
        self.kept_in_collective = False
        self._told_by_another = False
        self._posted = False
        # Set when the meeting before the publish failed here, for it may not have failed elsewhere.
        self._outcome_unknown = False
        self.facts: dict[str, Any] = dict(facts or {})
        # What some rank wants to follow the publish, for instance a rotation; after `commit`, of all ranks together.
        self.wishes: set[str] = set()
        self._cause = ""
        # Set while staging may hold something other than what this save wrote.
        self._leave_staging = False
        self._ended = False
        self._tell = tell
        self._name = checkpoint_name(step)
        self._nonce = draw_nonce()
        self._sequence = 0
        self._started = time.monotonic()
        self._opened_at = now()
        self._accounts: set[str] = set()
        self._target_before: dict[str, tuple[int, int, int]] = {}
        self._sealed: dict[str, tuple[int, int, int]] = {}

    # ---- Where things are ----

    @property
    def final(self) -> str:
        """The final path of the checkpoint."""
        return os.path.join(self.run.path, self._name)

    @property
    def writing_run_dir(self) -> str:
        """The run directory to write into while the transaction is open."""
        return self.run.path if self.in_place else self.run.staging

    @property
    def writing(self) -> str:
        """The directory to write the checkpoint's files into."""
        return os.path.join(self.writing_run_dir, self._name)

    @property
    def _durable(self) -> bool:
        return self.run.durable

    # ---- 1. Open ----

    def open(self) -> None:
        """Get ready to write. On disk afterwards: an empty directory `writing`, or in place, one with the sentinel.

        Raises:
            [`CheckpointSaveError`]: with the cause of each rank that could not get ready.
        """
        try:
            self._open()
        except _Failed as failed:
            self._clean_up()
            raise self._error(failed) from self.kept
        except BaseException:
            self._ended = True
            raise

    def _open(self) -> None:
        self.ranks.begin()
        try:
            self.run.find_groups()
        except RankLostError as lost:
            raise _Failed(dict.fromkeys(lost.ranks, lost.reason), every_rank_reported=False) from lost
        findings = self.run.look_at_setup()
        for text in findings.warnings:
            self._tell(text)
        if findings.errors:
            raise _Failed(dict.fromkeys(self._groups().diskless, " ".join(findings.errors)))
        ready: dict[str, Any] = {"step": self.step, "facts": self.facts}
        with self._kept("preparing the run directory"):
            if self.run.is_publisher():
                self._be_the_only_one()
                hurry = bool(self.facts.get("hurry"))
                ready.update(self.run.prepare(self._nonce, in_a_hurry=hurry), nonce=self._nonce)
        replies = self._vote("open", ready)
        self.facts = replies[0]["facts"]
        strays = {rank: reply["step"] for rank, reply in enumerate(replies) if reply["step"] != replies[0]["step"]}
        if strays:
            raise _Failed(
                {rank: f"it is at step {step}, and rank 0 at {replies[0]['step']}" for rank, step in strays.items()}
            )
        # Ranks that cannot talk hear only themselves, and what a publisher tells matters only to publishers.
        told = [reply for reply in replies if "nonce" in reply]
        if told:
            self._nonce = told[0]["nonce"]
            self._sequence = max(reply["sequence"] for reply in told)
        problem = next((reply["rename_problem"] for reply in told if reply["rename_problem"]), None)
        if problem and not self.in_place:
            self.in_place = f"directories in {self.run.path} cannot be renamed ({problem})"
        self._say_in_place()
        self._warn_of_space(told)
        with self._kept("making the directory to write into"):
            if self.run.is_publisher():
                self._make_writing()
        self._vote("ready", {})
        with self._kept("making the directory to write into"):
            disk.make_directories(self.writing, durable=False)

    def _be_the_only_one(self) -> None:
        other = _open_saves.setdefault(self.run.absolute, self)
        if other is not self and not other._ended:
            self._leave_staging = True
            raise CheckpointOwnedError(self.run.path, "another save in this same process")
        _open_saves[self.run.absolute] = self

    def _say_in_place(self) -> None:
        if self.in_place and not self.run.said_in_place:
            self.run.said_in_place = True
            self._tell(
                f"Checkpoints in {self.run.path} are written in place, behind the file {SENTINEL_NAME}: {self.in_place}. "
                "A kill while saving leaves a directory that resuming passes over; saving a step again replaces the "
                "older checkpoint of that step before the new one is complete."
            )

    def _warn_of_space(self, told: list[dict[str, Any]]) -> None:
        for reply in told:
            free, size = reply["free"], reply["last_size"]
            if self.ranks.rank == 0 and free is not None and size is not None and free < size:
                self._tell(
                    f"There may be too little space for {self.final}: {disk.format_size(free)} are free, and the last "
                    f"checkpoint took {disk.format_size(size)}. Deleting checkpoints that are no longer needed, or a "
                    "lower `save_total_limit`, makes room."
                )

    def _make_writing(self) -> None:
        if self.in_place:
            self._make_writing_in_place()
            return
        disk.real_directory(self.run.staging, durable=self._durable)
        os.mkdir(self.writing)
        if os.path.isdir(self.final) and not os.path.islink(self.final):
            self._target_before = snapshot(self.final)

    def _make_writing_in_place(self) -> None:
        """The sentinel comes first: from here on a reader knows that what is there is not whole."""
        if os.path.lexists(self.final) and (os.path.islink(self.final) or not os.path.isdir(self.final)):
            raise FileExistsError(
                17, "it is in the way of a checkpoint, and is no directory; move it away", self.final
            )
        os.makedirs(self.final, exist_ok=True)
        sentinel = os.path.join(self.final, SENTINEL_NAME)
        disk.write_whole(
            sentinel,
            f"Step {self.step} is being saved here, or was when this ended.\n".encode(),
            durable=self._durable,
        )
        if self._durable:
            disk.flush_directory(self.final)
        # Shards of an older layout would be taken for part of this checkpoint.
        problems = self._empty_final()
        if problems:
            raise OSError(
                errno.EIO, f"what is there from an older save could not be deleted ({problems[0]})", self.final
            )

    def _empty_final(self) -> list[str]:
        """Delete everything under the final name but the sentinel. Returns what could not be deleted."""
        return [
            problem
            for name in os.listdir(self.final)
            if name != SENTINEL_NAME
            for problem in disk.delete(os.path.join(self.final, name))
        ]

    # ---- 2. Write ----

    def keep(
        self,
        what: str,
        error: BaseException,
        *,
        cause: BaseException | None = None,
        in_collective: bool = False,
        told_by_another: bool = False,
    ) -> None:
        """Keep the error of this rank's writer `what` until the vote. The first one is the cause; later ones are noted.

        One rank calls it. Nothing on disk changes. The others can hear of it before the vote, in case that this rank
        does not come to it.

        Args:
            what (`str`):
                The writer.
            error (`BaseException`):
                What it raised.
            cause (`BaseException`, *optional*):
                The error to tell the others of, where `error` only wraps it.
            in_collective (`bool`, *optional*, defaults to `False`):
                The others may be waiting for this rank inside another library's collective.
            told_by_another (`bool`, *optional*, defaults to `False`):
                It is another rank that failed; this one is only named if that one says nothing.
        """
        text = self._final_paths(f"{what}: {describe(cause or error)}")
        if self.kept is None:
            self.kept = error
            self._cause = text
            self._told_by_another = told_by_another
        elif error is not self.kept:
            with contextlib.suppress(Exception):
                self.kept.add_note(f"Afterwards also, in {text}")
        self.kept_in_collective |= in_collective
        if not self._told_by_another and not self._posted:
            self._posted = True
            self.ranks.post_error(self._cause)

    def _final_paths(self, text: str) -> str:
        return text if self.in_place else final_paths(text, self.run.staging, self.run.path)

    def account_for(self, *names: str) -> None:
        """This rank says that it has written `names` (relative paths). What is missing at the seal fails the save."""
        self._accounts.update(names)

    @contextlib.contextmanager
    def _kept(self, what: str) -> Generator[None, None, None]:
        """Keep what the block raises, for the next vote."""
        try:
            yield
        except (Exception, RankLostError) as error:
            self.keep(what, error)

    # ---- 3. to 9. ----

    def commit(self) -> Published | None:
        """Everything this rank had to write is written, or its error is kept. Returns what was published.

        On disk afterwards: the checkpoint under its final name on every disk; or, if any rank failed, nothing of it.
        `None` if no rank wrote anything, which is no error: some overrides save nothing at some steps.

        Raises:
            [`CheckpointSaveError`]: the same on every rank. A single process that failed raises its own error.
        """
        try:
            published = self._commit()
        except _Failed as failed:
            if not failed.outcome_unknown:
                self._clean_up()
            raise self._error(failed) from self.kept
        except BaseException:
            self.abort()
            raise
        finally:
            self._ended = True
        if published is None:
            self._clean_up()
        return published

    def _commit(self) -> Published | None:
        found = []
        with self._kept("looking at what was written"):
            # Other ranks may be writing yet.
            found = self._names(still_written=True)
            self.account_for(*(name for name in found if rank_in(name) == self.ranks.rank))
        replies = self._vote(
            "written",
            {"wrote": bool(found), "accounts": sorted(self._accounts), "wishes": sorted(self.wishes)},
            patience=FOREIGN_COLLECTIVE_GRACE if self.kept_in_collective else None,
        )
        self.wishes.update(wish for reply in replies for wish in reply["wishes"])
        if not any(reply["wrote"] for reply in replies):
            gone = {rank: reply["accounts"] for rank, reply in enumerate(replies) if reply["accounts"]}
            if gone:
                raise _Failed(
                    {
                        rank: f"{', '.join(names)} were written and are not there any more"
                        for rank, names in gone.items()
                    }
                )
            return None

        entries: dict[str, FileEntry] = {}
        with self._kept("flushing"):
            entries = self._flush()
        listed = self._vote("flushed", {"entries": {name: [e.size, e.digest] for name, e in entries.items()}})

        head = None
        with self._kept("sealing"):
            if self.run.is_publisher() and any(replies[rank]["wrote"] for rank in self._group()):
                head = self._seal(listed, {name for rank in self._group() for name in replies[rank]["accounts"]})
        self._vote("sealed", {})
        try:
            self.ranks.barrier()
        except Exception as error:
            # A rank is gone, which the vote will tell. Another one may have come out of the meeting all the same.
            self.keep("meeting before the publish", error, told_by_another=True)
            self._outcome_unknown = True

        with self._kept("publishing"):
            if head is not None and self.kept is None:
                self._publish()
        totals = {} if head is None else {"size": head.files.bytes, "files": head.files.count}
        replies = self._vote("published", totals)
        if not self.ranks.connected:
            replies = replies[:1]
        return Published(
            path=self.final,
            step=self.step,
            size=sum(reply.get("size", 0) for reply in replies),
            files=sum(reply.get("files", 0) for reply in replies),
            seconds=time.monotonic() - self._started,
            head=head,
            nonce=self._nonce,
            seen=self._sealed,
        )

    def _flush(self) -> dict[str, FileEntry]:
        """Make this host's files durable and digest them. One rank per host works; `{}` on the others."""
        groups = self._groups()
        if groups.leader_of_host(self.ranks.rank) != self.ranks.rank:
            return {}
        names = [name for name in self._names() if self._owner_of(name) == self._host()]
        modes = disk.probe_modes(self.writing)
        directories = disk.walk_directories(self.writing)
        for path in [*directories, *(os.path.join(self.writing, name) for name in names)]:
            disk.widen(path, modes)
        for name in names:
            if reason := why_not_in_checkpoint(self.writing, name):
                raise CheckpointError(f"{os.path.join(self.writing, name)} {reason}")
        if self._puts_digests_off():
            return {name: FileEntry(os.path.getsize(os.path.join(self.writing, name)), "") for name in names}
        digests = digest_files(self.writing, names, sync=self._durable)
        if self._durable:
            disk.flush_directories(directories)
        return {name: FileEntry(size, digest) for name, (size, digest) in digests.items()}

    def _puts_digests_off(self) -> bool:
        """Whether digests follow the announcement (`sealing.LaterSeals`).

        Without a flush, saving is as fast as memory, and reading everything back would make it half as long again. Only
        a host that sees all of its disk's ranks can add digests later without asking anybody.
        """
        return not self._durable and len({self._groups().hosts[rank] for rank in self._group()}) == 1

    def _seal(self, listed: list[dict[str, Any]], accounts: set[str]) -> Head:
        """Check that what should be there is there, and write the manifest. Called by the publisher only."""
        entries = {
            name: FileEntry(*entry) for rank in self._group() for name, entry in listed[rank]["entries"].items()
        }
        entries.update(self._take_along(entries))
        missing = sorted(accounts - entries.keys())
        if missing:
            raise FileNotFoundError(errno.ENOENT, "it was written by one of the ranks and is not there", missing[0])
        for name, entry in entries.items():
            self._look_at(name, entry.size)
        # As soon as it is published, the callbacks of other ranks may change it.
        self._sealed = snapshot(self.writing)
        whole = len(self._groups().groups) == 1
        damages = check_structure(self.writing, world_size=self.ranks.world_size if whole else None)
        if damages:
            raise CheckpointError("; ".join(damages))
        head = Head(
            step=self.step,
            sequence=self._sequence,
            nonce=self._nonce,
            world_size=self.ranks.world_size,
            part=None if whole else self._part(),
            state=state_inside(self.writing),
            algorithm=DEFAULT_ALGORITHM,
            files=ListRecord("", 0, "", 0, 0),
            saw=self._without_manifest(),
            opened_at=self._opened_at,
            writer=writer_fields(),
        )
        head = write_manifest(self.writing, head, entries, durable=self._durable)
        return head

    def _take_along(self, entries: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
        """Move what appeared under the final name since the save was opened: a late rank's, an override's files."""
        if self.in_place or os.path.islink(self.final) or not os.path.isdir(self.final):
            return {}
        taken = []
        for name, found in snapshot(self.final).items():
            if found == self._target_before.get(name):
                continue
            source, target = os.path.join(self.final, name), os.path.join(self.writing, name)
            # The last writer wins, as it would without staging.
            if name in entries and found[2] <= os.lstat(target).st_mtime_ns:
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                os.rename(source, target)
            except OSError as error:
                if error.errno not in disk.GONE:
                    raise
                continue  # it had a passing name
            taken.append(name)
        if taken:
            disk.remove_empty_directories(self.final)
            self._tell(f"Took along into {self.final}: {', '.join(taken)}, written there while it was being saved.")
        digests = digest_files(self.writing, taken, sync=self._durable)
        if self._durable and taken:
            disk.flush_directories(disk.walk_directories(self.writing))
        return {name: FileEntry(size, digest) for name, (size, digest) in digests.items()}

    def _look_at(self, name: str, size: int) -> None:
        """Open a file that the list will name. What another host wrote may need a while to show."""
        path = os.path.join(self.writing, name)
        foreign = self._owner_of(name) != self._host()
        deadline = time.monotonic() + FOREIGN_FILE_PATIENCE
        while True:
            try:
                with open(path, "rb") as file:
                    found = os.fstat(file.fileno()).st_size
                if found == size:
                    return
                problem: OSError = OSError(
                    errno.EIO, f"it has {found} bytes here, and {size} where it was written", path
                )
            except FileNotFoundError as error:
                problem = error
            if not foreign or time.monotonic() > deadline:
                raise problem
            time.sleep(0.5)

    def _without_manifest(self) -> tuple[str, ...]:
        names = []
        for name in os.listdir(self.run.path):
            path = os.path.join(self.run.path, name)
            if step_of(name) is not None and name != self._name and os.path.isdir(path):
                with contextlib.suppress(ManifestError, OSError):
                    if read_head(path) is None:
                        names.append(name)
        if not self.in_place and os.path.lexists(self.final):
            names.append(self._name)
        return tuple(sorted(names))

    def _publish(self) -> None:
        """The commit point. Called by the publisher only."""
        if not owner.holds(self.run.path):
            raise CheckpointOwnedError(self.run.path, str(owner.read_owner(self.run.path) or "another process"))
        if self.in_place:
            self._publish_in_place()
            return
        self._leave_staging = True
        try:
            publishing.publish(self.run.path, self.writing, self._name, nonce=self._nonce, durable=self._durable)
        except _IN_PLACE_OR_WILL_BE:
            raise
        except OSError:
            self._leave_staging = False
            raise

    def _publish_in_place(self) -> None:
        os.unlink(os.path.join(self.final, SENTINEL_NAME))
        if self._durable:
            try:
                disk.flush_directory(self.final)
                disk.flush_directory(self.run.path)
            except OSError as error:
                raise publishing.NotDurableError(error.errno, error.strerror, self.final) from error

    # ---- Failing ----

    def abort(self, error: BaseException | None = None) -> None:
        """The save was interrupted on this rank by something that must go on, a keyboard interrupt for instance.

        Called by one rank, outside any meeting; tells the others and removes what this disk's publisher may remove.
        Never raises.
        """
        if self._ended:
            return
        self._ended = True
        cause = "the save was interrupted" if error is None else f"interrupted: {describe(error)}"
        with contextlib.suppress(Exception):
            self.ranks.post_error(cause)
        if self.ranks.alone:
            self._clean_up()

    def _clean_up(self) -> None:
        """Remove what was staged. The older checkpoints are untouched. Never raises."""
        self._ended = True
        with contextlib.suppress(OSError, AssertionError):
            if self.run.groups is not None and self.run.is_publisher():
                problems = self._delete_written()
                if problems:
                    self._tell(f"Could not remove all of the unfinished checkpoint: {'; '.join(problems)}")

    def _delete_written(self) -> list[str]:
        if self._leave_staging:
            return []
        if not self.in_place:
            return disk.delete(self.writing) if os.path.lexists(self.writing) else []
        sentinel = os.path.join(self.final, SENTINEL_NAME)
        if not os.path.exists(sentinel):
            return []
        # The sentinel goes last: until then a kill leaves a directory that says it is not whole.
        return self._empty_final() or disk.delete(self.final)

    def _error(self, failed: _Failed) -> CheckpointSaveError:
        return CheckpointSaveError(
            self.final,
            failed.failures,
            newest_good=self._newest_good(),
            outcome_unknown=failed.outcome_unknown,
            every_rank_reported=failed.every_rank_reported,
        )

    def _newest_good(self) -> str | None:
        from .discovery import find_checkpoints

        with contextlib.suppress(Exception):  # a text for people must not hide the cause
            complete = [found for found in find_checkpoints(self.run.path) if found.complete]
            return complete[-1].path if complete else None
        return None

    # ---- Voting ----

    def _vote(self, topic: str, payload: dict[str, Any], patience: float | None = None) -> list[dict[str, Any]]:
        """Tell everybody how it went here and learn how it went elsewhere. Raises `_Failed` alike on every rank."""
        if self.kept is not None:
            unknown = self._outcome_unknown or isinstance(self.kept, _IN_PLACE_OR_WILL_BE)
            payload = {"error": self._cause, "unknown": unknown, "told": self._told_by_another}
        try:
            replies = self.ranks.exchange(f"save {topic}", payload, patience)
        except RankLostError as lost:
            first = self.ranks.first_error()
            mine = first is None or first[0] == self.ranks.rank
            if self.kept_in_collective and mine and lost.late:
                # The others are still inside the collective that this rank left; nothing can wake them.
                from .board import leave_after_foreign_failure

                leave_after_foreign_failure(self.ranks, self._cause)
            failures = dict.fromkeys(lost.ranks, lost.reason)
            if first is not None:
                failures[first[0]] = first[1]
            elif self.kept is not None and not self._told_by_another:
                failures[self.ranks.rank] = self._cause
            raise _Failed(failures, outcome_unknown=topic == "published", every_rank_reported=False) from lost
        failed = {rank: reply for rank, reply in enumerate(replies) if "error" in reply}
        if failed:
            themselves = {rank: reply for rank, reply in failed.items() if not reply["told"]} or failed
            raise _Failed(
                {rank: reply["error"] for rank, reply in themselves.items()},
                outcome_unknown=any(reply["unknown"] for reply in failed.values()),
            )
        return replies

    # ---- Who is who ----

    def _groups(self) -> DiskGroups:
        assert self.run.groups is not None
        return self.run.groups

    def _group(self) -> tuple[int, ...]:
        return self._groups().group_of(self.ranks.rank)

    def _part(self) -> Part:
        groups = self._groups().groups
        return Part(groups.index(self._group()), len(groups), self._group())

    def _host(self) -> str:
        return self._groups().hosts[self.ranks.rank]

    def _owner_of(self, name: str) -> str:
        """The host whose page cache holds the file: that of the rank in its name, else the publisher's."""
        group, hosts = self._group(), self._groups().hosts
        rank = rank_in(name) if len({hosts[r] for r in group}) > 1 else None
        return hosts[rank if rank is not None and rank in group else group[0]]

    def _names(self, still_written: bool = False) -> list[str]:
        """What lies in `writing`, less our own unlisted names and leftovers of `write_whole`."""
        if self._groups().publisher_of(self.ranks.rank) is None or not os.path.isdir(self.writing):
            return []
        return [name for name, _ in disk.walk_files(self.writing, still_written=still_written) if not is_ours(name)]


def describe(error: BaseException) -> str:
    """An error in one line, for a log and for other ranks. Never raises, also if the error's own text does."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(its text cannot be had)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def writer_fields() -> dict[str, Any]:
    """Who writes, for people who look into a manifest."""
    from .. import __version__
    from .patch_info import patch_set_version

    return {
        "transformers": __version__,
        "patch_set": patch_set_version(),
        "host": os.uname().nodename if hasattr(os, "uname") else "",
        "pid": os.getpid(),
        "run": owner.run_nonce(),
    }
