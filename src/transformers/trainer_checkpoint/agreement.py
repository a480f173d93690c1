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
"""How the ranks of a training agree where to stop when somebody asks for a checkpoint: a signal to any rank, or a file.

They have to save at the same place, and the one that was asked cannot wait there for the others: they may be inside a
collective that waits for it. So between two steps, in evaluations and in data loading, every rank goes through the
same sequence of *points*, `(step, how manieth of this step)`, and a thread of each rank agrees with those of the others
while the main threads go on:

1. **ask** (any rank's thread): the first request is set on a status board, where every thread looks for it.
2. **freeze** (every thread): the last point that this rank has passed is fixed. At its next one it waits.
3. **fix the target** (every thread, over the board; rank 0 collects): the highest of the points passed on any rank.
4. **go on** (every rank) through all points up to the target. At the first one behind it all ranks stop: nobody has
   passed that one, and nobody waits before it for somebody who stands still.

No step is entered by one rank and not by another, so that also collectives that a device has yet to run find all their
ranks. A rank that is lost ends the agreement, and no save is started; so does the end of the grace.

Torch-free, and knows nothing of the Trainer.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

from ..utils import logging
from .errors import RankLostError
from .layout import SAVE_REQUEST_NAME, STOP_REQUEST_NAME
from .signal_watch import Interruption, SignalWatch


if TYPE_CHECKING:
    from .board import StatusBoard

logger = logging.get_logger(__name__)
T = TypeVar("T")

# Seconds between two looks at the board, and how much longer a rank makes them, so that rank 0's store keeps up.
POLL, POLL_PER_RANK = 0.2, 2e-4
# Seconds between two looks for a file in the run directory.
FILE_LOOK = 1.0
# Seconds that the main thread has to come out of what it is in once there is nothing to wait for any more; of a short
# grace they are the part below.
COME_OUT, COME_OUT_PART = 5.0, 0.2
# Seconds that a rank waits at the end for the others. Whoever is first ends the launcher's patience with the rest.
LEAVE_TOGETHER = 10.0
# Behind every point.
_END = (sys.maxsize, 0)

Point = tuple[int, int]


@dataclass(frozen=True)
class Request:
    """What was asked for, by whom.

    Args:
        number (`int`):
            How manieth request of this training it is.
        reason (`str`):
            Who asked, for the log.
        ends (`bool`):
            Whether the training ends after the save.
        urgent (`bool`):
            Whether the grace has begun: a signal was sent.
        status (`int`):
            The status with which the process ends.
        file (`str`, *optional*):
            The file that asked, which rank 0 removes.
    """

    number: int
    reason: str
    ends: bool
    urgent: bool
    status: int
    file: str | None = None


class GivenUp(Exception):
    """There is no checkpoint to be had any more. The text says why."""


class Agreement:
    """What the ranks of one training agree on, and the thread that does it.

    Args:
        board ([`StatusBoard`], *optional*):
            A board of its own. `None` for a training of one process.
        signals ([`SignalWatch`]):
            The signals, started already.
        run_dir (`str`, *optional*):
            Where to look for files that ask; only rank 0 has it.
        grace (`float`):
            Seconds from a signal on.
        patience (`float`):
            Seconds for requests that nobody is in a hurry for.
        last_words (`Callable[[], str]`):
            What is saved, for the log. Called from the thread.
    """

    def __init__(
        self,
        board: "StatusBoard | None",
        signals: SignalWatch,
        run_dir: str | None,
        grace: float,
        patience: float,
        last_words: Callable[[], str],
    ):
        self.board = board
        self.signals = signals
        self.grace = grace
        self.patience = patience
        self.rank = 0 if board is None else board.rank
        self.world_size = 1 if board is None else board.world_size
        self.come_out = min(COME_OUT, COME_OUT_PART * grace)
        self.request: Request | None = None
        self.gave_up: str | None = None
        #: Set by the main thread: a save is going on; it is on its way out of the training.
        self.saving = self.leaving = False
        self._run_dir = run_dir
        self._last_words = last_words
        # Guards the next four. The handler of a signal runs in the main thread and never takes it.
        self._turn = threading.Condition()
        self._passed: Point = (-1, 0)
        self._frozen = False
        self._target: Point | None = None
        self._loading_before: Point | None = None
        self._number = 0
        self._urgent_since: float | None = None
        self._gave_up_at = 0.0
        self._next_file_look = 0.0
        self._refused: set[tuple[str, int, int]] = set()
        self._over = False
        self._poll = max(POLL, POLL_PER_RANK * self.world_size)
        self._thread = threading.Thread(target=self._watch, name="checkpoint-preemption", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # ---- For the main thread ----

    def reaches(self, point: Point, synchronize: Callable[[], None]) -> bool:
        """Whether the ranks stop at `point`. Otherwise it is passed. Called by all ranks at the same points.

        Args:
            point (`tuple[int, int]`):
                Behind all those before.
            synchronize (`Callable[[], None]`):
                Waits for the device; called only when there is a request.

        Raises:
            [`GivenUp`]: no agreement will come about.
        """
        with self._turn:
            if not self._frozen:
                self._passed = point
                return False
        # What was started on the device takes part of the grace too, and the ranks are to stand side by side.
        synchronize()
        with self._turn:
            while self._target is None and self.gave_up is None:
                self._turn.wait(self._poll)
            if self.gave_up is not None:
                raise GivenUp(self.gave_up)
            if self._target is not None and point <= self._target:
                self._passed = point
                return False
        return True

    def load_before(self, point: Point, load: Callable[[], T]) -> T | None:
        """What `load` returns; `None` if the ranks have agreed to end at `point`, for which it is interrupted.

        No rank may wait in `load` for another one: some are interrupted, and some do not begin.
        """
        with self._turn:
            if self._ends_before(point):
                return None
            self._loading_before = point
        try:
            return self._load_before(point, load)
        except Interruption:
            return None
        finally:
            self.signals.interruptible = False
            with self._turn:
                self._loading_before = None

    def _load_before(self, point: Point, load: Callable[[], T]) -> T | None:
        try:
            self.signals.interruptible = True
            return load()
        except Exception:
            # What is interrupted may come out as any error. If it is not interrupted, it is one.
            with self._turn:
                if self._ends_before(point):
                    return None
            raise

    def _ends_before(self, point: Point | None) -> bool:
        request = self.request
        if request is None or not request.ends or point is None or self._target is None:
            return False
        return point > self._target

    def may_start(self, seconds: float) -> None:
        """Meet for a save that will take some `seconds`. Called by all ranks, at the target.

        Raises:
            [`GivenUp`]: on every rank, if a rank is lost or the time that is left is too short on one of them.
        """
        left = self._left()
        told = [[left, seconds]]
        if self.board is not None:
            try:
                told = self.board.exchange("start", told[0], self._patience())
            except RankLostError as lost:
                raise GivenUp(str(lost)) from lost
        left, seconds = min(left for left, _ in told), max(seconds for _, seconds in told)
        if left < seconds:
            raise GivenUp(f"{left:.1f} s of the grace are left, and the last save took {seconds:.1f} s")

    def served(self, saved: bool) -> None:
        """What was asked for is done or has failed, and the training goes on. Called by all ranks, at the target.

        On disk afterwards: the file that asked is gone; rank 0 removes it. If nothing was `saved` it stays, and is not
        looked at again until it is made anew.
        """
        if saved:
            self.remove_file()
        else:
            self._refuse()
        if self.board is not None:
            self.board.begin()
        with self._turn:
            self._number += 1
            self._frozen = False
            self._target = self.gave_up = None
            self.request = None
        self.signals.wake()

    def finish(self) -> None:
        """This rank has passed its last point: requests come too late from here on. Called by all ranks."""
        with self._turn:
            self._passed = _END

    @property
    def finished(self) -> bool:
        return self._passed == _END

    def who_is_lost(self, seconds: float) -> str | None:
        """Which rank is lost, and how, if one is. Called by a rank whose training has failed; never raises.

        Args:
            seconds (`float`):
                How long the others are waited for. Those that are alive but elsewhere are not lost.
        """
        with self._turn:
            self._turn.wait_for(lambda: self.gave_up is not None or self._target is not None, seconds)
        if self.gave_up is not None or self.board is None:
            return self.gave_up
        try:
            self.board.exchange("failed", None, seconds)
        except RankLostError as lost:
            return None if lost.late else str(lost)
        return None

    def leave_together(self) -> None:
        """Wait a little until every rank has come to its end. Called by all ranks; never raises."""
        if self.board is not None:
            with contextlib.suppress(RankLostError):
                self.board.exchange("leave", None, LEAVE_TOGETHER)

    def close(self) -> None:
        """End the thread and leave the board. Called by each rank; never raises."""
        self._over = True
        self.signals.wake()
        self._thread.join(timeout=COME_OUT)
        if self.board is not None:
            self.board.close()

    # ---- The thread ----

    def _watch(self) -> None:
        try:
            while not self._over:
                self.signals.wait(self._pause())
                self.signals.look()
                first = self.signals.first
                if first is not None and self._urgent_since is None:
                    self._urgent_since = first[1]
                if self.signals.again:
                    number = first[0] if first is not None else 0
                    self._end_process(f"{name_of(number)} came a second time: stopping at once.", 128 + number)
                if self.request is None:
                    self._look_for_request()
                self._look_at_time()
        except Exception as error:
            logger.exception(
                "The thread that waits for signals has failed: they do not lead to a checkpoint any more."
            )
            self._give_up(f"the thread that agrees with the other ranks has failed ({error})")

    def _pause(self) -> float:
        if self.board is not None or self.request is not None or self.signals.first is not None:
            return self._poll
        return FILE_LOOK

    def _look_for_request(self) -> None:
        # Also a rank that has passed its last point answers: the others may be on their way there.
        mine = None if self.finished else self._own_request()
        request = mine
        if self.board is not None:
            try:
                if mine is not None:
                    self.board.call_out(json.dumps(asdict(mine)))
                word = self.board.called_out()
                request = None if word is None else Request(**json.loads(word))
            except RankLostError as lost:
                # Without a request of its own a rank goes on: what is wrong shows where the store is needed.
                if mine is not None:
                    self._take(mine)
                    self._give_up(str(lost))
                return
        if request is not None and request.number == self._number:
            self._take(request)
            threading.Thread(target=self._agree, name="checkpoint-agreement", daemon=True).start()

    def _own_request(self) -> Request | None:
        if self.signals.first is not None:
            number = self.signals.first[0]
            where = "" if self.world_size == 1 else f" on rank {self.rank}"
            return Request(self._number, f"{name_of(number)}{where}", ends=True, urgent=True, status=128 + number)
        if self._run_dir is None or time.monotonic() < self._next_file_look:
            return None
        self._next_file_look = time.monotonic() + FILE_LOOK
        for name in (STOP_REQUEST_NAME, SAVE_REQUEST_NAME):
            path = os.path.join(self._run_dir, name)
            with contextlib.suppress(OSError):
                found = os.lstat(path)
                if (path, found.st_ino, found.st_mtime_ns) not in self._refused:
                    ends = name == STOP_REQUEST_NAME
                    return Request(self._number, f"the file {path}", ends, urgent=False, status=0, file=path)
        return None

    def _take(self, request: Request) -> None:
        if request.urgent and self._urgent_since is None:
            self._urgent_since = time.monotonic()
        with self._turn:
            self.request = request
            self._frozen = True
        if self.rank == 0:
            what = "a checkpoint and the end of the training" if request.ends else "a checkpoint"
            how = "" if self.board is None else " The ranks agree on a step."
            logger.warning(f"{upper(request.reason)} asks for {what}.{how}")

    def _agree(self) -> None:
        """Fix the target. Runs in a thread of its own, so that the other one goes on looking at time and signals."""
        with self._turn:
            passed = self._passed
        told = [list(passed)]
        if self.board is not None:
            try:
                told = self.board.exchange("passed", list(passed), self._patience())
            except RankLostError as lost:
                self._give_up(str(lost))
                return
            except Exception as error:
                self._give_up(f"the agreement has failed ({type(error).__name__}: {error})")
                return
        with self._turn:
            self._target = max((int(step), int(count)) for step, count in told)
            interrupts = self._ends_before(self._loading_before)
            self._turn.notify_all()
        if interrupts:
            self.signals.interrupt_main()

    def _left(self) -> float:
        since = self._urgent_since
        return self.patience if since is None else since + self.grace - time.monotonic()

    def _patience(self) -> float:
        return max(1.0, self._left())

    def _look_at_time(self) -> None:
        if self.finished or self.leaving or self.request is None or self._urgent_since is None:
            return
        left = self._left()
        if self.gave_up is None and left <= (0 if self.saving else self.come_out):
            doing = "the save has not ended" if self.saving else "the ranks have not come to an agreement and a save"
            self._give_up(f"{doing} within {self.grace:g} s (`jit_checkpoint_grace`)")
        if self.gave_up is None:
            return
        if self.saving and left <= 0 or time.monotonic() - self._gave_up_at > self.come_out:
            self._end_process(f"{upper(self.request.reason)}: nothing was saved, because {self.gave_up}.", self.status)

    def _give_up(self, reason: str) -> None:
        with self._turn:
            if self.gave_up is None:
                self.gave_up = reason
                self._gave_up_at = time.monotonic()
            self._turn.notify_all()

    @property
    def status(self) -> int:
        """The status to end with: that of a signal, also where a file had asked before."""
        if self.signals.first is not None:
            return 128 + self.signals.first[0]
        return 0 if self.request is None else self.request.status

    def remove_file(self) -> None:
        """Remove the file that asked. Called by each rank; rank 0 does it. Never raises."""
        request = self.request
        if request is None or request.file is None or self.rank != 0:
            return
        try:
            os.unlink(request.file)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._refuse()
            logger.warning(f"{request.file} has done its work and could not be removed ({error}): please remove it.")

    def _refuse(self) -> None:
        """Do not take up again the file that asked, as it is now."""
        if self.request is not None and self.request.file is not None:
            with contextlib.suppress(OSError):
                found = os.lstat(self.request.file)
                self._refused.add((self.request.file, found.st_ino, found.st_mtime_ns))

    def _end_process(self, text: str, status: int) -> NoReturn:
        """The main thread cannot be waited for. What is being written was not published and is never taken for good."""
        text = f"{text} {self._last_words()} Ending this process with status {status}."
        logger.error(text)
        # The logger may be set to be silent on this rank; this is the last that will ever be heard of it.
        with contextlib.suppress(Exception):
            print(text, file=sys.stderr, flush=True)
            sys.stdout.flush()
        os._exit(status)


def name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def upper(text: str) -> str:
    return text[:1].upper() + text[1:]
