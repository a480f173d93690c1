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
"""The owner record: which process saves into a run directory, so that two trainings never save into one.

`_staging/owner.json` is made when a run opens its first save and stays until the training ends. It names the process
(run nonce, host, boot, pid namespace, pid, start time), and a thread touches it every `BEAT_INTERVAL` seconds.

Who owns is decided by one operation: creating a name that must not exist (`O_EXCL`, atomic on NFS too). A dead owner's
record is never replaced, because two claimants that both found it dead would both succeed; the claimant creates the
*next* name instead (`owner.1.json` after `owner.json`), which again only one can. Then it looks once more at all
records: one it has not found dead belongs to somebody who came in between, and the claimant withdraws. Only after that
are the dead records removed. A kill at any moment leaves records of dead processes, which the next claimant takes over.

Whether an owner is alive is never read off a clock. On the same boot and in the same pid namespace the kernel says
whether that process still runs. Otherwise the record is watched: a change of its content or of its time means alive,
none within `WATCH` seconds means dead.
"""

import contextlib
import dataclasses
import json
import os
import random
import socket
import stat
import threading
import time

from ..utils import logging
from . import disk
from .errors import CheckpointOwnedError
from .layout import TEMPORARY_SUFFIX, owner_generation, owner_name, staging_run_dir
from .manifest import draw_nonce, now
from .ranks import boot_id, pid_namespace


logger = logging.get_logger(__name__)

FORMAT = 1
# Seconds between two touches of a record by its owner.
BEAT_INTERVAL = 10.0
# Seconds for which a record of another host is watched: three touches, of which one must be seen.
WATCH = 30.0
# Seconds between two looks at a watched record. Each look opens the file, which is what makes NFS ask the server.
_LOOK_INTERVAL = 0.5
# Rounds of claimants that get into each other's way before one of them gives up.
_ATTEMPTS = 20
# A record takes some 300 bytes and a few more as it ages; what is larger was not written here (bytes).
_MAX_SIZE = 1 << 20

_RUN_NONCE = draw_nonce()


def run_nonce() -> str:
    """16 hexadecimal digits drawn once per process; a forked child has its parent's, and another pid."""
    return _RUN_NONCE


# ---- Processes ----


@dataclasses.dataclass(frozen=True)
class Process:
    """One process of one machine. `boot`, `namespace` and `started` are empty where the system does not tell them."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: str

    def alive(self) -> bool | None:
        """Whether this process still runs; `None` if that cannot be known from here. A zombie does not run."""
        if not self.boot or not self.started or (self.boot, self.namespace) != (boot_id(), pid_namespace()):
            return None
        state = _state_and_start(self.pid)
        return state is not None and state[0] not in "ZX" and state[1] == self.started


def this_process() -> Process:
    pid = os.getpid()
    state = _state_and_start(pid)
    return Process(socket.gethostname(), boot_id(), pid_namespace(), pid, state[1] if state is not None else "")


def _state_and_start(pid: int) -> tuple[str, str] | None:
    """State letter and start time (ticks since boot) of a process of this pid namespace; `None` if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return None
    # The command's name is in parentheses and may hold spaces and parentheses itself.
    fields = data[data.rfind(b")") + 1 :].split()
    return (fields[0].decode(), fields[19].decode()) if len(fields) > 19 else None


# ---- Records ----


@dataclasses.dataclass(frozen=True)
class OwnerRecord:
    """Who saves in a staging run directory.

    Args:
        run (`str`):
            The run nonce of the owner's process.
        process ([`Process`]):
            The owner's process.
        since (`str`):
            When it claimed, for people, ISO 8601 in UTC.
        released (`bool`, *optional*, defaults to `False`):
            The owner is done, and something it wrote is still in staging.
        shared (`bool`, *optional*, defaults to `False`):
            The directory held other things before any owner of ours: what is in it is not ours to sweep.
    """

    run: str
    process: Process
    since: str
    released: bool = False
    shared: bool = False

    def __str__(self) -> str:
        return f"process {self.process.pid} on host {self.process.host} (since {self.since})"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A successful claim: the own record, and that of the dead or departed owner it took over from, if any."""

    record: OwnerRecord
    previous: OwnerRecord | None
    previous_dead: bool


@dataclasses.dataclass(frozen=True)
class _Seen:
    """A record file as it was at one look. `record` is `None` if it is torn, `signature` tells two looks apart."""

    path: str
    data: bytes
    signature: tuple[int, int, int]
    record: OwnerRecord | None


def _encode(record: OwnerRecord) -> bytes:
    return (json.dumps({"format": FORMAT, **dataclasses.asdict(record)}, indent=1) + "\n").encode("ascii")


def _decode(data: bytes) -> OwnerRecord | None:
    try:
        fields = json.loads(data)
        process = fields["process"]
        return OwnerRecord(
            run=str(fields["run"]),
            process=Process(
                host=str(process["host"]),
                boot=str(process["boot"]),
                namespace=str(process["namespace"]),
                pid=int(process["pid"]),
                started=str(process["started"]),
            ),
            since=str(fields["since"]),
            released=fields.get("released") is True,
            shared=fields.get("shared") is True,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _look(path: str) -> _Seen | None:
    """The record file at `path`; `None` if there is none. Opening it first makes NFS forget what it knew of it."""
    try:
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
            data = file.read(_MAX_SIZE)
    except FileNotFoundError:
        return None
    except OSError:  # it cannot be read, like a torn one; whether it changes may be seen all the same
        try:
            info = os.lstat(path)
        except OSError:
            return None
        data = b""
    return _Seen(path, data, (info.st_mtime_ns, info.st_size, info.st_ino), _decode(data))


def _records(staging: str) -> dict[int, _Seen]:
    """Generation to record file of everything in `staging` that has an owner record's name."""
    found = {}
    for name in os.listdir(staging):
        generation = owner_generation(name)
        if generation is not None and (seen := _look(os.path.join(staging, name))) is not None:
            found[generation] = seen
    return found


def read_owner(run_dir: str | os.PathLike) -> OwnerRecord | None:
    """The newest readable owner record of a run directory, dead or alive. Never writes; may run on any rank."""
    try:
        records = _records(staging_run_dir(run_dir))
    except (FileNotFoundError, NotADirectoryError):
        return None
    readable = [seen.record for _, seen in sorted(records.items()) if seen.record is not None]
    return readable[-1] if readable else None


def staging_is_ours(run_dir: str | os.PathLike) -> bool:
    """Whether `_staging` belongs to this library: a real directory with an owner record, ours before anything else.

    What lies in a directory of that name which somebody else made must not be swept.
    """
    staging = staging_run_dir(run_dir)
    try:
        if not stat.S_ISDIR(os.lstat(staging).st_mode):
            return False
        records = _records(staging)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return bool(records) and not any(seen.record is not None and seen.record.shared for seen in records.values())


# ---- Claiming ----


class _Held:
    """A record this process owns, and the thread that touches it."""

    def __init__(self, path: str, claim: Claim):
        self.path = path
        self.claim = claim
        self.pid = os.getpid()
        self._stop = threading.Event()
        # A daemon: it must not keep the interpreter from ending, and its end with the process is what it is there for.
        self._thread = threading.Thread(target=self._beat, name="checkpoint-owner", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        # The thread may be inside an operation on a mount that has stopped answering.
        self._thread.join(timeout=BEAT_INTERVAL)

    def still_there(self) -> bool:
        # Not `_look`: what cannot be read now is not somebody else's for that, and the caller has to say which it was.
        try:
            with open(self.path, "rb") as file:
                return _decode(file.read(_MAX_SIZE)) == self.claim.record
        except FileNotFoundError:
            return False

    def _beat(self) -> None:
        told = False
        while not self._stop.wait(BEAT_INTERVAL):
            try:
                there = self.still_there()
            except OSError:  # it cannot be read at this moment; the next beat looks again
                continue
            if there:
                told = False
                with contextlib.suppress(OSError):
                    _touch(self.path)
            elif not told:
                told = True
                logger.warning(
                    f"The record of this training's ownership, {self.path}, was removed or replaced by somebody else. "
                    "Make sure that no other training saves into this directory."
                )


def _touch(path: str) -> None:
    try:
        os.utime(path)
    except FileNotFoundError:
        raise
    except OSError:
        # Some mounts set no times. A longer file is a change as well, and JSON ignores the space at its end.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, b"\n")
        finally:
            os.close(descriptor)


_held: dict[str, _Held] = {}


def claim(run_dir: str | os.PathLike, *, durable: bool, watch: float = WATCH) -> Claim:
    """Become the one process that saves into `run_dir`. Called by each publisher before the first save of a run.

    On disk afterwards: `_staging` with this process's record, kept alive until `release`, and no dead one's. Claiming
    again what is held does nothing and gives the same answer.

    Args:
        run_dir (`str` or `os.PathLike`):
            The run directory; it exists.
        durable (`bool`):
            Flush the record and the directories it is in.
        watch (`float`, *optional*, defaults to 30.0):
            Seconds for which the record of an owner whose process cannot be looked at is watched for a change.

    Raises:
        [`CheckpointOwnedError`]: another process saves there and is alive, or claims at this moment.
        `NotADirectoryError`: `_staging` is a link or a file.
        `OSError`: the record could not be made.
    """
    run_dir = os.path.abspath(run_dir)
    held = _held.get(run_dir)
    if held is not None and held.pid == os.getpid():
        if held.still_there():
            return held.claim
        held.stop()
    _held.pop(run_dir, None)

    for _ in range(_ATTEMPTS):
        staging = disk.real_directory(staging_run_dir(run_dir), durable=durable)
        taken = _try_to_claim(run_dir, staging, durable, watch)
        if taken is not None:
            _held[run_dir] = _Held(*taken)
            return _held[run_dir].claim
        # Two that withdraw from each other would meet again without a difference between them.
        time.sleep(random.uniform(0.01, 0.2))
    raise CheckpointOwnedError(run_dir, "another process that starts at this moment")


def _try_to_claim(run_dir: str, staging: str, durable: bool, watch: float) -> tuple[str, Claim] | None:
    """One attempt: path and claim, or `None` if somebody else changed the records meanwhile."""
    try:
        before = _records(staging)
        others_there = any(
            owner_generation(name) is None and not name.endswith(TEMPORARY_SUFFIX) for name in os.listdir(staging)
        )
    except FileNotFoundError:  # its owner has released it since it was made
        return None
    shared = any(seen.record is not None and seen.record.shared for seen in before.values())
    shared = shared or (not before and others_there)
    for seen in before.values():
        if not _found_dead(run_dir, seen, watch):
            return None

    record = OwnerRecord(_RUN_NONCE, this_process(), now(), shared=shared)
    path = os.path.join(staging, owner_name(max(before) + 1 if before else 0))
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    except (FileExistsError, FileNotFoundError):
        return None
    try:
        with open(descriptor, "wb") as file:
            file.write(_encode(record))
            file.flush()
            if durable:
                disk.flush_descriptor(file.fileno(), path)
        dead = {seen.path for seen in before.values()}
        now_there = [seen for seen in _records(staging).values() if seen.path != path]
        if any(seen.path not in dead or seen.data.rstrip() != _data_of(before, seen.path) for seen in now_there):
            os.unlink(path)
            return None
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    for seen in now_there:
        # One that cannot be removed is found dead again by the next claimant.
        with contextlib.suppress(OSError):
            os.unlink(seen.path)
    if durable:
        disk.flush_directory(staging)
    previous = before[max(before)].record if before else None
    return path, Claim(record, previous, previous_dead=bool(before))


def _data_of(records: dict[int, _Seen], path: str) -> bytes:
    return next(seen.data for seen in records.values() if seen.path == path).rstrip()


def _found_dead(run_dir: str, seen: _Seen, watch: float) -> bool:
    """Whether the owner that wrote `seen` is gone for good; `False` if the record itself changed hands meanwhile.

    Raises:
        [`CheckpointOwnedError`]: the owner is alive.
    """
    record = seen.record
    if record is not None:
        if record.released or (record.run == _RUN_NONCE and record.process == this_process()):
            return True
        alive = record.process.alive()
        if alive is not None:
            if alive:
                raise CheckpointOwnedError(run_dir, str(record))
            return True
    # A claimant may try again and again.
    logger.warning_once(
        f"{run_dir} was last used by {record or 'a process whose record cannot be read'}, and it cannot be told from "
        f"here whether that still runs. Watching {seen.path} for up to {watch:g} s for a sign of life."
    )
    end = time.monotonic() + watch
    while time.monotonic() < end:
        time.sleep(min(_LOOK_INTERVAL, max(0.0, end - time.monotonic())))
        again = _look(seen.path)
        if again is None or again.data.rstrip() != seen.data.rstrip():
            return False
        if again.signature != seen.signature:
            raise CheckpointOwnedError(run_dir, str(record or "a process whose record cannot be read"))
    return True


def holds(run_dir: str | os.PathLike) -> bool:
    """Whether this process is still the owner of `run_dir`. Looks at the disk; called by the publisher.

    A process that was stopped for longer than a claimant on another host watches may find that it is not. Raises
    `OSError` if the record is there and cannot be read.
    """
    held = _held.get(os.path.abspath(run_dir))
    return held is not None and held.pid == os.getpid() and held.still_there()


def release(run_dir: str | os.PathLike) -> None:
    """Give `run_dir` up at the end of the training. Called by each publisher; quiet if it was not held. Never raises.

    On disk afterwards: no record, and no `_staging` if nothing else is in it. If something of ours is left there the
    record stays and says that its owner is done, so that what is left can be told from other people's files.
    """
    held = _held.pop(os.path.abspath(run_dir), None)
    if held is None or held.pid != os.getpid():
        return
    held.stop()
    try:
        if not held.still_there():
            return
        staging = os.path.dirname(held.path)
        record = held.claim.record
        own = owner_generation(os.path.basename(held.path))
        for generation, seen in _records(staging).items():
            # Found dead when this process claimed, and could not be removed then.
            if own is not None and generation < own:
                with contextlib.suppress(OSError):
                    os.unlink(seen.path)
        if not record.shared and any(owner_generation(name) is None for name in os.listdir(staging)):
            disk.write_whole(held.path, _encode(dataclasses.replace(record, released=True)), durable=False)
            return
        os.unlink(held.path)
        if not record.shared:
            os.rmdir(staging)
    except OSError as error:
        logger.debug(f"{held.path} could not be removed: {error}")
