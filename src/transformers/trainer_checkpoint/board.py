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
"""The status board: how the ranks of a training tell each other how a save went, over the process group's store.

No collective of the device backend is used: those cannot be entered by a rank that failed in another one, have a
timeout that hides the cause, and hold back signals. A rank sets a key of its own; rank 0 looks until all are there and
sets one key with everybody's answers, which the others look for. Nobody ever blocks inside the store.

Each process has one thread with a connection of its own. It does everything this process asks of the store, one thing
after the other, and between them counts up this rank's heartbeat. The thread that saves waits for it a bounded time, so
a store whose machine has vanished (no packet says so) is noticed, and Python's signal handlers run. All keys are under a
nonce that the ranks agree on when a board is made: a store may have been used by an earlier board, an earlier training
in the same processes, or by processes that an elastic agent has since replaced.

What an exchange comes to is decided once, for all ranks: by rank 0's answer, or by the first rank that gives up waiting
for it, whichever the store has first. A rank 0 that stood still for a while finds that it was given up, and does not go
on alone.

What tells slow from dead:

| seen | taken for |
| --- | --- |
| the heartbeat goes on | slow: waited for until the patience ends |
| the heartbeat stands still for `SILENCE` seconds | lost (killed, stopped, its machine gone) |
| same machine, and the process is gone or a zombie | lost at once |
| it has left its board | lost at once |
| the store's connection breaks, or it does not answer for `SILENCE` seconds | the store's process is lost: rank 0's, or the elastic agent on its machine |

Only changes count, seen by the clock of the one who looks: clocks of two machines are never compared.
"""

import atexit
import contextlib
import json
import math
import os
import queue
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, NoReturn, TypeVar

from ..utils import logging
from .errors import RankLostError
from .manifest import draw_nonce
from .owner import Process, this_process
from .ranks import Ranks, format_ranks, host_name


logger = logging.get_logger(__name__)
T = TypeVar("T")
# `torch.distributed.Store`, of which torch's own type stubs leave out much and get some wrong.
Store = Any

# Seconds to wait for a rank that is alive.
PATIENCE = 600.0
# Seconds without a heartbeat, or without an answer of the store, after which a rank counts as lost: six missed beats.
SILENCE = 30.0
# Seconds between two heartbeats of a rank, and between two looks at those of the others.
BEAT_INTERVAL = 5.0
# Seconds after which rank 0 logs whom it waits for, and then between two such lines.
FIRST_LATE_LOG = 30.0
LATE_LOG_INTERVAL = 60.0
# Seconds for which rank 0 stays after its last word until all have read it: the store may end with its process.
LINGER = 5.0
# Seconds between two looks at a key, growing from the first to the second. The terms per rank keep a large world from
# asking the store more often than it answers, some 100,000 times a second.
_FIRST_LOOK, _FIRST_LOOK_PER_RANK = 0.001, 5e-5
_LAST_LOOK, _LAST_LOOK_PER_RANK = 0.05, 1e-4
# The store refuses values above 8 MiB and closes the connection (bytes). A value is compressed above the second number.
_PART_SIZE = 4 << 20
_COMPRESS_ABOVE = 4096
# Characters of a cause that are passed on outside an exchange.
_LONGEST_CAUSE = 4000
# Seconds beyond rank 0's patience for which the others wait for its verdict, so that it is the one they all get.
_SLACK = 5.0

# Status with which a process ends that left others inside another library's collective (EX_IOERR of sysexits).
FOREIGN_FAILURE_EXIT_CODE = 74

_PREFIX = "transformers-checkpoints"
_GONE = b"gone"

_open_boards: "weakref.WeakSet[StatusBoard]" = weakref.WeakSet()


@atexit.register
def _close_boards() -> None:
    for board in list(_open_boards):
        board.close()


class _StoreLost(Exception):
    """The store does not answer any more. The text says how that shows."""


# ---- The connection ----


class _Client:
    """The thread that owns the connection to the store, and the heartbeat it keeps up.

    Args:
        store (`Store`):
            A connection that nobody else uses.
        silence (`float`):
            Seconds after which the store counts as lost if it does not answer.
        beat_interval (`float`):
            Seconds between two heartbeats.
    """

    def __init__(self, store: Store, silence: float, beat_interval: float):
        self.silence = silence
        self.beat_interval = beat_interval
        self.lost: str | None = None
        # What the heartbeat says and looks for; set once the ranks have agreed on a nonce.
        self.beat_key: str | None = None
        self.topic = ""
        self.error_key: str | None = None
        self.error: bytes | None = None
        self.rank: int | None = None
        # Whether the process group that the store belongs to still stands.
        self.stands: Callable[[], bool] = lambda: True
        self._beats = 0
        self._store = store
        # Since when the thread has been inside one operation of the store, if it is.
        self._busy_since: float | None = None
        self._pid = os.getpid()
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="checkpoint-board", daemon=True)
        self._thread.start()

    # ---- For the thread that saves ----

    def call(self, operation: Callable[[Store], T]) -> T:
        """What `operation` returns for the store. Raises `_StoreLost` after at most `silence` seconds."""
        call = self._hand_over(_Call(operation))
        if not call.done.wait(self.silence):
            self._lose(self._no_answer())
        return self._result(call)

    def wait_for(self, look: Callable[[Store], T | None], watch: Callable[[], None], first: float, last: float) -> T:
        """What `look` returns when that is not `None` any more.

        Args:
            look (`Callable[[Store], T]`):
                Tried again and again. Does not block.
            watch (`Callable[[], None]`):
                Called now and then in between; what it raises ends the waiting.
            first, last (`float`):
                Seconds between two looks, growing from the first to the second.

        Raises:
            `_StoreLost`: the store is gone, or has not answered for `silence` seconds.
        """
        call = self._hand_over(_Call(look, first, last))
        try:
            while not call.done.wait(min(1.0, self.beat_interval / 2)):
                if self.lost is not None:
                    raise _StoreLost(self.lost)
                since = self._busy_since
                if since is not None and time.monotonic() - since > self.silence:
                    self._lose(self._no_answer())
                watch()
        except BaseException:
            call.given_up = True
            raise
        return self._result(call)

    def post(self, operation: Callable[[Store], object]) -> None:
        """Have `operation` done some time soon; nobody waits, and an error is not of interest."""
        self._queue.put(_Call(operation))

    def stop(self) -> None:
        """End the thread after what was asked of it. Bounded: the store may not answer."""
        if os.getpid() == self._pid:
            self._queue.put(None)
            self.lost = self.lost or "the board is closed"
            # A thread inside the store when the interpreter ends takes the process down with it.
            self._thread.join(timeout=2.0)

    def _hand_over(self, call: "_Call") -> "_Call":
        if os.getpid() != self._pid:
            raise _StoreLost("a forked child of a rank is not a rank")
        self._look_at_group()
        if self.lost is not None:
            raise _StoreLost(self.lost)
        self._queue.put(call)
        return call

    def _look_at_group(self) -> None:
        # Its store may have gone with it, and torch writes a page to stderr for each try.
        if self.lost is None and not self.stands():
            self.lost = "the process group was taken down"
            self.beat_key = None

    def _result(self, call: "_Call") -> Any:
        if isinstance(call.error, RuntimeError):  # every error of torch's stores is one
            self._lose(_broken(call.error), call.error)
        if call.error is not None:
            raise call.error
        return call.result

    def _lose(self, how: str, error: Exception | None = None) -> NoReturn:
        self.lost = self.lost or how
        raise _StoreLost(self.lost) from error

    def _no_answer(self) -> str:
        return f"the process group's store has not answered for {self.silence:g} s"

    # ---- The thread itself ----

    def _run(self) -> None:
        waiting: _Call | None = None
        next_beat = time.monotonic() + self.beat_interval
        while True:
            next_time = next_beat if waiting is None else min(next_beat, waiting.next_look)
            with contextlib.suppress(queue.Empty):
                call = self._queue.get(timeout=max(0.0, next_time - time.monotonic()))
                if call is None:
                    return
                if call.first is None:
                    self._do(call)
                else:
                    waiting = call
            if waiting is not None and (waiting.given_up or waiting.next_look <= time.monotonic()):
                if not waiting.given_up:
                    self._do(waiting)
                if waiting.given_up or waiting.done.is_set():
                    waiting = None
            if time.monotonic() >= next_beat:
                self._beat()
                next_beat = time.monotonic() + self.beat_interval

    def _do(self, call: "_Call") -> None:
        self._busy_since = time.monotonic()
        call.run(self._store)
        self._busy_since = None

    def _beat(self) -> None:
        self._look_at_group()
        own = self.beat_key  # taken away by another thread when this rank leaves
        if own is None:
            return
        self._busy_since = time.monotonic()
        try:
            self._beats += 1
            self._store.set(own, f"{self._beats} {self.topic}")
            # Kept here because a rank that ends may take the store with it.
            key = self.error_key
            if self.error is None and key is not None and self._store.check([key]):
                self.error = self._store.get(key)
                self._say_who_failed(self.error)
        except RuntimeError as error:
            # Told to whoever calls next. No further beats: torch writes a page to stderr for each.
            self.lost = self.lost or _broken(error)
            self.beat_key = None
        self._busy_since = None

    def _say_who_failed(self, error: bytes) -> None:
        # This rank may be inside a collective that it will not come out of, and then this is all its log says.
        rank, cause = _decode(error)
        if rank != self.rank:
            logger.error(f"Rank {rank} has failed while a checkpoint is being saved or loaded: {cause}")


class _Call:
    """Something to be done by the connection's thread, once or until it gives something, and how it went."""

    def __init__(self, operation: Callable[[Store], Any], first: float | None = None, last: float = 0.0):
        self.operation = operation
        self.first = first
        self.done = threading.Event()
        self.given_up = False
        self.result: Any = None
        self.error: Exception | None = None
        self.next_look = 0.0
        self._delay, self._last = first or 0.0, last

    def run(self, store: Store) -> None:
        try:
            self.result = self.operation(store)
        except Exception as error:
            self.error = error
        if self.first is None or self.result is not None or self.error is not None:
            self.done.set()
        else:
            self.next_look = time.monotonic() + self._delay
            self._delay = min(self._delay * 1.5, self._last)


def _broken(error: BaseException) -> str:
    return f"the connection to the process group's store is lost ({_first_line(error)})"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:200] or type(error).__name__


# ---- Values ----


def _encode(payload: Any) -> bytes:
    data = json.dumps(payload, separators=(",", ":")).encode("ascii")
    return b"Z" + zlib.compress(data, 1) if len(data) > _COMPRESS_ABOVE else b"J" + data


def _decode(data: bytes) -> Any:
    return json.loads(zlib.decompress(data[1:]) if data[:1] == b"Z" else data[1:])


def _set(store: Store, key: str, data: bytes) -> None:
    """Set a value of any size. What is too long for one goes into parts first: who sees the key finds them all."""
    store.set(key, _in_parts(store, key, data) if len(data) > _PART_SIZE else data)


def _decide(store: Store, key: str, payload: Any) -> Any:
    """Set the value unless another rank has set one before. Returns the one that counts."""
    data = _encode(payload)
    # This operation of the store takes text only, and sends it there and back.
    text = (data if data[:1] == b"J" else _in_parts(store, key, data)).decode("ascii")
    return _decode(_whole(store, key, store.compare_set(key, "", text)))


def _in_parts(store: Store, key: str, data: bytes) -> bytes:
    """Set the parts of a value. Returns what the key itself is to hold."""
    parts = range(0, len(data), _PART_SIZE)
    for number, start in enumerate(parts):
        store.set(f"{key}.part{number}", data[start : start + _PART_SIZE])
    return b"P" + str(len(parts)).encode("ascii")


def _whole(store: Store, key: str, data: bytes) -> bytes:
    return b"".join(store.get(f"{key}.part{number}") for number in range(_parts(data))) or data


def _parts(data: bytes) -> int:
    return int(data[1:]) if data[:1] == b"P" else 0


def _delete(store: Store, keys: Iterable[str]) -> None:
    """Delete values that `_set` has set. Two ranks may delete one at the same time, so nothing may be read here.

    Reading what another rank has just deleted blocks for as long as the store's timeout (`Store.get`: 300 s).
    """
    for key in keys:
        number = 0
        while store.check([f"{key}.part{number}"]):
            store.delete_key(f"{key}.part{number}")
            number += 1
        store.delete_key(key)


def _runs(values: list[Any]) -> list[list[Any]]:
    """[count, value] of each run of equal values: a thousand ranks mostly say the same."""
    return [[len(list(run)), value] for value, run in groupby(values)]


def _find(key: str) -> Callable[[Store], tuple[Any] | None]:
    """A look for one key: its value in a tuple, or `None` if it is not there."""
    return lambda store: (_decode(_whole(store, key, store.get(key))),) if store.check([key]) else None


# ---- The board ----


class StatusBoard(Ranks):
    """The ranks of a training of several processes. All ranks make one, at the same point of the program.

    Args:
        store (`Store`):
            A connection to a store that all ranks reach; this board is its only user (`store.clone()`).
        rank, world_size (`int`):
            This process among all.
        barrier (`Callable[[], None]`):
            Waits for everyone, for instance `accelerator.wait_for_everyone`.
        patience (`float`, *optional*, defaults to 600.0):
            Seconds to wait for a rank that is alive. The timeout of the process group has no say in it.
        silence (`float`, *optional*, defaults to 30.0):
            Seconds without a sign of life after which a rank counts as lost.
        beat_interval (`float`, *optional*, defaults to 5.0):
            Seconds between two signs of life. Several must fit into `silence`.
        host (`str`, *optional*):
            What this machine is called, where `host_name()` is not meant.

    Raises:
        [`RankLostError`]: not all ranks made one within the patience.
    """

    _client_class = _Client

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        barrier: Callable[[], None],
        patience: float = PATIENCE,
        silence: float = SILENCE,
        beat_interval: float = BEAT_INTERVAL,
        host: str | None = None,
    ):
        if beat_interval * 2 > silence:
            raise ValueError(
                f"`beat_interval` is {beat_interval:g} s and `silence` {silence:g} s: at least two beats must fit in, or a "
                "live rank is taken for lost"
            )
        self.rank = rank
        self.world_size = world_size
        self.host = host or host_name()
        self.patience = patience
        self.hosts: tuple[str, ...] = ()
        self._barrier = barrier
        self._silence = silence
        self._interval = beat_interval
        self._first_look = max(_FIRST_LOOK, _FIRST_LOOK_PER_RANK * world_size)
        self._last_look = max(_LAST_LOOK, _LAST_LOOK_PER_RANK * world_size)
        self._round = 0
        self._topics: set[str] = set()
        self._meetings = 0
        # The keys this rank has set for others, by round, and the last round that all ranks were in.
        self._kept: dict[int, list[str]] = {}
        self._settled = -1
        self._lost: set[int] = set()
        # The ranks of this machine, whose processes can be looked at.
        self._near: dict[int, Process] = {}
        self._closed = False
        # While all ranks connect the store is busy with that, for long where looking up their names takes long.
        self._client = self._client_class(store, max(silence, patience), beat_interval)
        self._client.rank = rank
        self._finalizer = weakref.finalize(self, self._client.stop)
        self._finalizer.atexit = False
        _open_boards.add(self)
        try:
            self._near = self._meet()
        except BaseException:
            self._closed = True
            self._client.stop()
            raise
        self._client.silence = silence

    @classmethod
    def of_process_group(
        cls, barrier: Callable[[], None], patience: float = PATIENCE, beat_interval: float = BEAT_INTERVAL
    ) -> "StatusBoard | None":
        """The board of the default process group. Called by all ranks, at the same point of the program.

        Args:
            barrier (`Callable[[], None]`):
                Waits for everyone.
            patience (`float`, *optional*, defaults to 600.0):
                Seconds to wait for a rank that is alive.
            beat_interval (`float`, *optional*, defaults to 5.0):
                Seconds between two signs of life.

        Returns:
            `StatusBoard`, *optional*: `None` if there is no process group, or one without a store of torch's own.

        Raises:
            [`RankLostError`]: not all ranks called it within the patience, or the store cannot be reached.
        """
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            return None
        store: Store = dist.distributed_c10d._get_default_store()
        if store is None:
            return None
        try:
            client = store.clone()
        except dist.DistError as error:
            raise RankLostError("board", (0,), f"its store cannot be reached ({_first_line(error)})") from error
        except (NotImplementedError, RuntimeError):  # a store somebody wrote in Python, without this method
            return None
        board = cls(client, dist.get_rank(), dist.get_world_size(), barrier, patience, beat_interval=beat_interval)
        # Not the store: whoever holds it keeps its port taken when the process group is taken down.
        group = weakref.ref(dist.group.WORLD)
        board._client.stands = lambda: _stands(group)
        return board

    def usable(self) -> bool:
        """Whether the process group this board was made for still stands. The same on all ranks."""
        return not self._closed and self._client.stands()

    # ---- Rounds and topics ----

    def begin(self) -> None:
        self._round += 1
        self._topics.clear()
        self._client.topic = ""
        self._client.error = None
        self._client.error_key = self._key("error")
        # A round is over for a rank when it has reported in a later one.
        for number in [number for number in self._kept if number < self._settled]:
            keys = self._kept.pop(number)
            self._client.post(lambda store, keys=keys: _delete(store, keys))

    def exchange(self, topic: str, payload: Any, patience: float | None = None) -> list[Any]:
        patience = self.patience if patience is None else patience
        key = self._enter(topic)
        data = _encode(payload)
        with self._or_rank_lost(topic):
            self._client.call(lambda store: _set(store, f"{key}.{self.rank}", data))
            if self.rank == 0:
                answer = self._say(key, self._collect(topic, key, patience))
            else:
                answer = self._hear(key, _WatchForFirst(self, topic, patience))
                own = f"{key}.{self.rank}"
                if "lost" in answer:  # rank 0 may not have read this rank's word yet
                    self._keep(own)
                else:
                    self._client.post(lambda store: _delete(store, [own]))
        self._look_whether_lost(topic, answer)
        self._settled = self._round
        self._lost.clear()
        return [value for count, value in answer["values"] for value in [value] * count]

    def broadcast(self, topic: str, payload: Any = None) -> Any:
        key = self._enter(topic)
        with self._or_rank_lost(topic):
            if self.rank == 0:
                answer = self._say(key, {"value": payload})
            else:
                answer = self._hear(key, _WatchForFirst(self, topic, self.patience))
        self._look_whether_lost(topic, answer)
        return answer["value"]

    def barrier(self) -> None:
        """Wait for everyone in the process group's own barrier, which is watched from here.

        Called by all ranks. A rank that vanishes on its way there would hold the others up for the length of the
        collective timeout.

        Raises:
            [`RankLostError`]: a rank did not get there, and the barrier is given up.
        """
        self._meetings += 1
        key = self._key(f"meeting{self._meetings}")
        meeting = _Meeting(self._barrier)
        found = _find(key)
        watch = (
            _WatchForAll(self, "barrier", [f"{key}.{rank}" for rank in range(self.world_size)], self.patience)
            if self.rank == 0
            else _WatchForFirst(self, "barrier", self.patience)
        )
        with self._or_rank_lost("barrier"):
            try:
                while not meeting.done.wait(min(1.0, self._interval / 2)):
                    watch()
                    lost = None if self.rank == 0 else self._client.call(found)
                    if lost is not None:
                        raise RankLostError("barrier", tuple(lost[0]["lost"]), lost[0]["reason"])
            except RankLostError as lost:
                if self.rank == 0:
                    self._say(key, {"lost": list(lost.ranks), "reason": lost.reason})
                raise
        if meeting.error is not None:
            raise meeting.error
        own = f"{key}.{self.rank}"
        self._keep(own)
        self._client.post(lambda store: store.set(own, b"J1"))

    def post_error(self, cause: str) -> None:
        # Not compressed: this one operation of the store takes text only.
        value = "J" + json.dumps([self.rank, cause[:_LONGEST_CAUSE]])
        key = self._key("error")
        self._keep(key)
        try:
            self._client.call(lambda store: store.compare_set(key, "", value))
        except Exception as error:
            logger.warning(f"The other ranks could not be told of this rank's error ({error}): {cause}")

    def arrive(self, place: str) -> None:
        key = f"{self._key(f'at/{place}')}.{self.rank}"
        self._keep(key)
        self._client.post(lambda store: store.set(key, _encode(True)))

    def all_arrived(self, place: str, patience: float) -> bool:
        keys = [f"{self._key(f'at/{place}')}.{rank}" for rank in range(self.world_size)]
        end = time.monotonic() + patience

        def watch() -> None:
            if time.monotonic() >= end:
                raise TimeoutError

        try:
            self._wait(lambda store: (True,) if store.check(keys) else None, watch)
        except (TimeoutError, _StoreLost):
            return False
        return True

    def take_time(self, seconds: float) -> None:
        key = self._key("time")
        self._keep(key)
        with contextlib.suppress(Exception):
            # Added up: one rank may take time twice, and two ranks at once.
            self._client.call(lambda store: store.add(key, math.ceil(seconds)))

    def call_out(self, word: str) -> None:
        """Say `word` to all ranks, outside any exchange; the first one of a round counts. One rank calls it.

        Raises:
            [`RankLostError`]: the store cannot be reached.
        """
        key = self._key("word")
        self._keep(key)
        with self._or_rank_lost("word"):
            self._client.call(lambda store: store.compare_set(key, "", "J" + json.dumps(word)))

    def called_out(self) -> str | None:
        """The word of the first `call_out` of this round, if there was one. Any rank, any time; does not wait for it.

        Raises:
            [`RankLostError`]: the store cannot be reached.
        """
        with self._or_rank_lost("word"):
            found = self._client.call(_find(self._key("word")))
        return None if found is None else found[0]

    def first_error(self) -> tuple[int, str] | None:
        key = self._key("error")
        found = None
        with contextlib.suppress(_StoreLost):
            found = self._client.call(lambda store: store.get(key) if store.check([key]) else None)
        found = found or self._client.error
        if not found:
            return None
        rank, cause = _decode(found)
        return rank, cause

    def close(self) -> None:
        """Leave the board. Called by each rank; rank 0 stays until the others have read its last word, 5 s at most.

        Closing removes this board's keys from the store. Never raises.
        """
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(_StoreLost):
            if self.rank == 0:
                self._leave_last()
            else:
                self._client.call(self._leave)
        self._client.stop()

    # ---- Inside ----

    def _time_taken(self) -> float:
        """Seconds that some rank has asked for in this round; read when a patience ends."""
        key = self._key("time")
        return self._client.call(lambda store: store.add(key, 0) if store.check([key]) else 0)

    def _keep(self, *keys: str) -> None:
        """Have `keys` of this round deleted when it is over for all ranks."""
        self._kept.setdefault(self._round, []).extend(keys)

    def _key(self, name: str) -> str:
        return f"{self._namespace}/{self._round}/{name}"

    def _enter(self, topic: str) -> str:
        if self._closed:
            raise RankLostError(topic, (self.rank,), "this rank has left the board")
        if topic in self._topics:
            raise ValueError(f"topic {topic!r} was already used in this round: its answers would be those of before")
        self._topics.add(topic)
        self._client.topic = key = self._key(f"topic/{topic}")
        return key

    @contextlib.contextmanager
    def _or_rank_lost(self, topic: str):
        try:
            yield
        except _StoreLost as error:
            raise RankLostError(topic, (0,), str(error)) from error

    def _say(self, key: str, answer: dict[str, Any]) -> dict[str, Any]:
        """Rank 0: the answer that all others are going to read. Returns it, or the verdict of one that gave up before."""
        self._kept.setdefault(self._round, [self._key("error")]).append(key)
        return self._client.call(lambda store: _decide(store, key, answer))

    def _hear(self, key: str, watch: "_WatchForFirst") -> dict[str, Any]:
        """The others: rank 0's answer, or the verdict that rank 0 is lost."""
        try:
            return self._wait(_find(key), watch)
        except RankLostError as lost:
            # That it is late is no verdict for all: they may have more patience.
            if lost.late:
                raise
            self._keep(key)
            verdict = _verdict(lost)
            with contextlib.suppress(_StoreLost):
                return self._client.call(lambda store: _decide(store, key, verdict))
            raise

    def _look_whether_lost(self, topic: str, answer: dict[str, Any]) -> None:
        self._client.topic = ""
        if "lost" in answer:
            self._lost.update(answer["lost"])
            raise RankLostError(topic, tuple(answer["lost"]), answer["reason"], answer["late"])

    def _wait(self, look: Callable[[Store], tuple[T] | None], watch: Callable[[], None]) -> T:
        """Look until there is something; `watch` raises when it is time to give up."""
        return self._client.wait_for(look, watch, self._first_look, self._last_look)[0]

    def _collect(self, topic: str, key: str, patience: float) -> dict[str, Any]:
        """Rank 0: everybody's answer, or who is lost and why."""
        keys = [f"{key}.{rank}" for rank in range(self.world_size)]

        def look(store: Store) -> tuple[list[Any]] | None:
            if not store.check(keys):
                # Somebody has given this rank up while it stood still: what the others have to say does not matter.
                return ([],) if store.check([key]) else None
            return ([_decode(_whole(store, k, data)) for k, data in zip(keys, store.multi_get(keys), strict=True)],)

        try:
            values = self._wait(look, _WatchForAll(self, topic, keys, patience))
        except RankLostError as lost:
            # Those who come too late are not going to take their words back.
            self._keep(*keys)
            return _verdict(lost)
        self._client.post(lambda store: _delete(store, keys[:1]))
        return {"values": _runs(values)}

    # ---- Meeting and leaving ----

    def _meet(self) -> dict[int, Process]:
        """Agree on the nonce. A store may hold what earlier processes left in it, so nothing found counts by itself.

        Each rank sets a fresh word. Rank 0 draws the nonce and sets it with all the words it has seen, again whenever
        one changes. A rank takes the nonce that comes with its own word and sets its first heartbeat under it. When
        all heartbeats are there, rank 0 takes the words away and says so.
        """
        hello, offer = f"{_PREFIX}/hello", f"{_PREFIX}/offer"
        word, me = draw_nonce(), this_process()
        data = _encode([word, self.host, [me.host, me.boot, me.namespace, me.pid, me.started]])
        hellos = [f"{hello}.{rank}" for rank in range(self.world_size)]
        with self._or_rank_lost("board"):
            self._client.call(lambda store: _set(store, hellos[self.rank], data))
            if self.rank == 0:
                told = self._offer(hellos, offer)
            else:
                self._accept(word, offer)
                answer = self._hear(f"{self._namespace}/all", _WatchForFirst(self, "board", self.patience))
                self._look_whether_lost("board", answer)
                told = answer["value"]
        self._round = 0
        self._client.error_key = self._key("error")
        self.hosts = tuple(host for _, host, _ in told)
        processes = [Process(*process) for _, _, process in told]
        return {rank: p for rank, p in enumerate(processes) if (p.boot, p.namespace) == (me.boot, me.namespace)}

    def _offer(self, hellos: list[str], offer: str) -> list[Any]:
        self._namespace = f"{_PREFIX}/{draw_nonce()}"
        beats = self._beat_keys()
        self._client.call(lambda store: store.set(beats[0], "0 "))
        self._client.beat_key = beats[0]
        offered: list[bytes] = []

        def look(store: Store) -> tuple[list[bytes]] | None:
            nonlocal offered
            if not store.check(hellos):
                return None
            words = store.multi_get(hellos)
            if words != offered:
                _set(store, offer, _encode([self._namespace, [_decode(word)[0] for word in words]]))
                offered = words
            return (words,) if store.check(beats) else None

        words = self._wait(look, _WatchForAll(self, "board", beats, self.patience, listen=False))
        told = [_decode(word) for word in words]
        # Before any rank can go on: the next board's words have the same names.
        self._client.call(lambda store: [store.delete_key(hello) for hello in hellos])
        answer = self._say(f"{self._namespace}/all", {"value": told})
        self._look_whether_lost("board", answer)
        return told

    def _accept(self, word: str, offer: str) -> None:
        def look(store: Store) -> tuple[str] | None:
            if not store.check([offer]):
                return None
            namespace, words = _decode(_whole(store, offer, store.get(offer)))
            return (namespace,) if self.rank < len(words) and words[self.rank] == word else None

        self._namespace = self._wait(look, _WatchForFirst(self, "board", self.patience, listen=False))
        self._client.beat_key = self._beat_keys()[self.rank]
        self._client.call(lambda store: store.set(self._client.beat_key, "0 "))

    def _beat_keys(self) -> list[str]:
        return [f"{self._namespace}/beat.{rank}" for rank in range(self.world_size)]

    def _leave(self, store: Store) -> None:
        # The key stays: rank 0 asks for all of them at once, and would block on one that is not there.
        key, self._client.beat_key = self._client.beat_key, None
        _delete(store, [kept for keys in self._kept.values() for kept in keys if "/at/" in kept])
        store.set(key, _GONE)
        store.add(f"{self._namespace}/left", 1)

    def _leave_last(self) -> None:
        left = f"{self._namespace}/left"
        lost = self._lost - {0}
        others = self.world_size - 1 - len(lost)
        end = time.monotonic() + LINGER
        delay = self._first_look
        while (gone := self._client.call(lambda store: store.add(left, 0))) < others and time.monotonic() < end:
            time.sleep(delay)
            delay = min(delay * 1.5, self._last_look)
        self._client.beat_key = None
        # One that is lost may only stand still, and is to find the verdict when it goes on.
        if gone >= others and not lost:
            keys = [key for keys in self._kept.values() for key in keys]
            self._client.call(lambda store: _delete(store, [*keys, *self._beat_keys(), left]))
        else:
            self._client.call(lambda store: store.set(self._beat_keys()[0], _GONE))


def _verdict(lost: RankLostError) -> dict[str, Any]:
    """An answer that says who is lost, from which every rank raises `lost` again."""
    return {"lost": list(lost.ranks), "reason": lost.reason, "late": lost.late}


def _stands(group: "weakref.ref") -> bool:
    import torch.distributed as dist

    return group() is not None and dist.is_initialized() and group() is dist.group.WORLD


# ---- Waiting ----


class _Meeting:
    """A barrier of the process group, waited for in a thread of its own. It ends with the process if it never does."""

    def __init__(self, barrier: Callable[[], None]):
        self.done = threading.Event()
        self.error: BaseException | None = None
        self._barrier = barrier
        threading.Thread(target=self._run, name="checkpoint-barrier", daemon=True).start()

    def _run(self) -> None:
        try:
            self._barrier()
        except BaseException as error:
            self.error = error
        self.done.set()


class _WatchForAll:
    """Rank 0, waiting for all: when a rank is lost, and what the log says meanwhile. `keys` are what they will set."""

    def __init__(self, board: StatusBoard, topic: str, keys: list[str], patience: float, listen: bool = True):
        self.board, self.topic, self.keys, self.patience, self.listen = board, topic, keys, patience, listen
        self.start = now = time.monotonic()
        self.end = now + patience
        self.next_look = now + board._interval
        self.next_log = now + FIRST_LATE_LOG
        self.heard = dict.fromkeys(range(board.world_size), now)
        self.beats: list[bytes] = []

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self.next_look and now < self.end:
            return
        self.next_look = now + self.board._interval
        gone = self._listen(now) if self.listen else {}
        missing = self._missing(gone)
        if missing:
            raise RankLostError(self.topic, tuple(missing), "; ".join(sorted({gone[rank] for rank in missing})))
        if now < self.end and now < self.next_log:
            return
        missing = self._missing(self.heard)
        if missing and now >= self.end and self.listen:
            self.end = max(self.end, self.start + self.board._time_taken())
        if missing and now >= self.end:
            alive = f"alive ({self._last_heard(missing, now)}), but late" if self.listen else "not seen at all"
            raise RankLostError(
                self.topic, tuple(missing), f"{alive}: not there after {self.patience:g} s", late=self.listen
            )
        self.next_log = now + LATE_LOG_INTERVAL
        if missing:
            seen = f"alive, {self._last_heard(missing, now)}" if self.listen else "not seen yet"
            logger.warning(
                f"Waiting for rank(s) {format_ranks(missing)} ({seen}) to finish {self.topic!r}, for "
                f"{now - self.start:.0f} s now. They have {self.end - now:.0f} s left."
            )

    def _missing(self, ranks: Iterable[int]) -> list[int]:
        ranks = list(ranks)
        return self.board._client.call(lambda store: [rank for rank in ranks if not store.check([self.keys[rank]])])

    def _last_heard(self, ranks: list[int], now: float) -> str:
        return f"last heard {max(now - self.heard[rank] for rank in ranks):.0f} s ago"

    def _listen(self, now: float) -> dict[int, str]:
        """Look at all heartbeats. Returns the ranks that show no life, and how."""
        names = self.board._beat_keys()
        beats = self.board._client.call(lambda store: store.multi_get(names))
        gone = {}
        for rank, beat in enumerate(beats):
            if self.beats and beat != self.beats[rank]:
                self.heard[rank] = now
            gone.update(_why_gone(self.board, rank, beat, now - self.heard[rank]))
        self.beats = beats
        return gone


class _WatchForFirst:
    """Any other rank, waiting for rank 0: when that is lost."""

    def __init__(self, board: StatusBoard, topic: str, patience: float, listen: bool = True):
        self.board, self.topic, self.patience, self.listen = board, topic, patience, listen
        self.heard = self.since = now = time.monotonic()
        self.end = self._end_of(patience)
        self.next_look = now + board._interval
        self.beat: bytes | None = None
        self.there = False

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self.next_look and now < self.end:
            return
        self.next_look = now + self.board._interval
        if self.listen:
            self._listen(now)
        if now >= self.end and self.listen:
            self.end = max(self.end, self._end_of(self.board._time_taken()))
        if now >= self.end:
            raise RankLostError(
                self.topic, (0,), f"it has not answered within {self.patience:g} s, though it is alive", late=True
            )

    def _listen(self, now: float) -> None:
        key = self.board._beat_keys()[0]
        beat = self.board._client.call(lambda store: store.get(key) if store.check([key]) else _GONE)
        if beat != self.beat:
            self.heard = now
        self.beat = beat
        for reason in _why_gone(self.board, 0, beat, now - self.heard).values():
            raise RankLostError(self.topic, (0,), reason)
        # Rank 0 may have come late itself; the others then have its patience from that moment on.
        if not self.there and beat.decode("utf-8").partition(" ")[2] == self.board._client.topic:
            self.there = True
            self.since = now
            self.end = self._end_of(self.patience)

    def _end_of(self, patience: float) -> float:
        """When rank 0, with that much patience, must have answered: its verdict is the one that they all get."""
        return self.since + patience + _SLACK + 2 * self.board._interval


def _why_gone(board: StatusBoard, rank: int, beat: bytes, silent: float) -> dict[int, str]:
    if rank == board.rank:
        return {}
    if beat == _GONE:
        return {rank: "it has left"}
    if rank in board._near and board._near[rank].alive() is False:
        return {rank: f"its process (pid {board._near[rank].pid}) has ended"}
    if silent >= board._silence:
        return {rank: f"no sign of life for {silent:.0f} s"}
    return {}


# ---- Leaving others behind ----


def leave_after_foreign_failure(ranks: Ranks, cause: str, grace: float = 0.0) -> NoReturn:
    """End this process, whose failure left others waiting inside a collective of another library. Never returns.

    Nothing can wake them: once the connection to this process breaks they come out with an error, and find the cause
    with `first_error`. Called by the rank that failed, when the vote it came to was not joined by the others for longer
    than a healthy writer takes. Nothing was published, and what is staged is left to the next start.

    Args:
        ranks ([`Ranks`]):
            The ranks of this training; they are told the cause at once.
        cause (`str`):
            The true cause, for the log and for them.
        grace (`float`, *optional*, defaults to 0.0):
            Seconds to wait after telling them, where no vote was waited for.
    """
    ranks.post_error(cause)
    time.sleep(grace)
    text = (
        f"Rank {ranks.rank} failed while the other ranks were waiting for it inside a collective, and they did not come "
        f"out: {cause}. Ending this process with status {FOREIGN_FAILURE_EXIT_CODE}, which is the only way to free them."
    )
    logger.error(text)
    # The logger may be set to be silent on this rank; this is the last that will ever be heard of it.
    with contextlib.suppress(Exception):
        print(text, file=sys.stderr, flush=True)
        sys.stdout.flush()
    os._exit(FOREIGN_FAILURE_EXIT_CODE)
