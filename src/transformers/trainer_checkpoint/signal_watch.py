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
"""How a process notices the signals that announce its end, without dying of them.

A Python handler runs only once the main thread is back in the interpreter, and a thread inside a collective is not, for
as long as that lasts. So the handler is backed by the wakeup descriptor: the C-level handler writes the signal's number
there at once, and a thread of this package reads it. Whichever of the two sees more signals is right.

Torch-free, and knows nothing of checkpoints.
"""

import contextlib
import os
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from ..utils import logging


logger = logging.get_logger(__name__)

# Seconds after the first signal in which a further one is taken for the same one. A launcher that is in the process
# group that was signalled hands on to its children what they have already got.
SAME_SIGNAL = 5.0

_current: "weakref.ref[SignalWatch] | None" = None


class Interruption(BaseException):
    """Raised in the main thread by `SignalWatch.interrupt_main`. No `Exception`: nobody is to take it for an error."""


class SignalWatch:
    """Notices signals in this process between `start` and `stop`.

    Handlers that were there before are called too. What one of them raises is kept in `raised`, because it would end
    the training in the middle of a step.

    Args:
        numbers (`Iterable[int]`):
            The signals.
    """

    def __init__(self, numbers: Iterable[int]):
        self.numbers = tuple(numbers)
        #: The first signal and when it came, by `time.monotonic`. Set by `look`.
        self.first: tuple[int, float] | None = None
        #: A further signal has come, so late that it is a second one. Set by `look`.
        self.again = False
        #: What a handler from before has raised.
        self.raised: BaseException | None = None
        #: Whether `interrupt_main` has an effect. Set by the main thread alone.
        self.interruptible = False
        self._pid = os.getpid()
        self._handler = self._on_signal
        self._previous: dict[int, Any] = {}
        self._previous_fd = -1
        self._on = False
        self._ears, self._mouth = socket.socketpair()
        self._ears.setblocking(False)
        self._mouth.setblocking(False)
        # Seen by the wakeup descriptor, seen by the handler, sent by this object itself; and the last number.
        self._heard = self._handled = self._sent = 0
        self._counted = 0
        self._poking = False
        self._last = 0

    # ---- For the main thread ----

    def start(self) -> None:
        """Install the handlers. Only the main thread can; in another one nothing is noticed, and the log says so."""
        if threading.current_thread() is not threading.main_thread():
            logger.warning(
                f"{_names(self.numbers)} cannot be waited for: the training does not run in the main thread, and Python "
                "runs signal handlers only there."
            )
            return
        _forget_in_children(self)
        self._on = True
        for number in self.numbers:
            previous = signal.getsignal(number)
            if previous is None:
                logger.warning(
                    f"{_names([number])} is not waited for: it has a handler that was not installed from Python, and "
                    "that could not be put back."
                )
                continue
            self._previous[number] = previous
            signal.signal(number, self._handler)
        self._previous_fd = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)

    def stop(self) -> None:
        """Put back what was there before, unless somebody has put something else there since."""
        if not self._on:
            return
        self._on = False
        for number, previous in self._previous.items():
            if signal.getsignal(number) is self._handler:
                signal.signal(number, previous)
        found = signal.set_wakeup_fd(-1)
        put_back = self._previous_fd if found == self._mouth.fileno() else found
        with contextlib.suppress(ValueError, OSError):  # its owner may have closed it meanwhile
            signal.set_wakeup_fd(put_back)

    def close(self) -> None:
        """Free what is left. After `stop`, when no thread is in `wait` any more."""
        self._ears.close()
        self._mouth.close()

    # ---- For the thread that watches ----

    def wait(self, seconds: float) -> None:
        """Wait until there is something to look at, at most `seconds`."""
        try:
            ready, _, _ = select.select([self._ears], [], [], seconds)
            data = self._ears.recv(4096) if ready else b""
        except (OSError, ValueError):  # closed
            return
        for number in data:
            if number in self._previous:
                self._last = number
                self._heard += 1
        others = bytes(number for number in data if number and number not in self._previous)
        if others and self._previous_fd >= 0:
            with contextlib.suppress(OSError):
                os.write(self._previous_fd, others)

    def wake(self) -> None:
        """Have `wait` return. Any thread, and signal handlers."""
        with contextlib.suppress(OSError):
            self._mouth.send(b"\0")

    def look(self) -> None:
        """Bring `first` and `again` up to date."""
        seen = max(self._heard, self._handled) - self._sent
        now = time.monotonic()
        if seen > 0 and self.first is None:
            self.first = (self._last, now)
        elif seen > self._counted and self.first is not None and now - self.first[1] > SAME_SIGNAL:
            self.again = True
        self._counted = seen

    def interrupt_main(self) -> None:
        """Raise `Interruption` in the main thread, out of whatever it waits for, if it is `interruptible` then."""
        number = next((n for n in self._previous if signal.getsignal(n) is self._handler), None)
        if number is None or not hasattr(signal, "pthread_kill"):
            return
        self._sent += 1
        self._poking = True
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, number)

    # ---- The handler ----

    def _on_signal(self, number: int, frame: Any) -> None:
        # In a forked child, and where somebody put this handler back after `stop`, everything is as before.
        if os.getpid() != self._pid or not self._on:
            _act_as(self._previous.get(number, signal.SIG_DFL), number, frame)
            return
        if self._poking:
            self._poking = False
            self._handled += 1
            if self.interruptible:
                raise Interruption
            return
        self._last = number
        self._handled += 1
        self.wake()
        previous = self._previous.get(number)
        if callable(previous) and previous is not signal.default_int_handler:
            try:
                previous(number, frame)
            except BaseException as error:
                self.raised = self.raised or error


def _act_as(previous: Any, number: int, frame: Any) -> None:
    if callable(previous):
        previous(number, frame)
    elif previous != signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _names(numbers: Iterable[int]) -> str:
    return ", ".join(signal.Signals(number).name for number in numbers)


def _forget_in_children(watch: SignalWatch) -> None:
    """A forked child inherits the wakeup descriptor: a signal of its own must not be taken for one of its parent's."""
    global _current
    if _current is None and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)
    _current = weakref.ref(watch)


def _in_child() -> None:
    watch = _current() if _current is not None else None
    if watch is not None and watch._on:
        with contextlib.suppress(ValueError, OSError):
            signal.set_wakeup_fd(-1)


# ---- Workers of a data loader ----


class OutliveSignals:
    """A worker initialisation after which a data loader's worker does not die of the signals its training waits for.

    The main process still needs its batches to come to the end of a step. The worker ends when the loader tells it to,
    when its parent is gone, or at the latest `seconds` after the signal.

    Args:
        init (`Callable[[int], None]`, *optional*):
            The initialisation to go on with.
        numbers (`tuple[int, ...]`):
            The signals.
        seconds (`float`):
            How long a worker may live on.
    """

    def __init__(self, init: Callable[[int], None] | None, numbers: tuple[int, ...], seconds: float):
        self.init = init
        self.numbers = numbers
        self.seconds = seconds

    def __call__(self, worker_id: int) -> None:
        reader, writer = os.pipe()
        threading.Thread(target=self._end, args=(reader,), name="end-after-signal", daemon=True).start()
        parent = os.getppid()

        def outlive(number: int, frame: Any) -> None:
            if os.getppid() != parent:
                os._exit(0)
            os.write(writer, b"\0")

        # Not before: a worker of torch installs a handler of its own when it starts, which ends it.
        for number in self.numbers:
            signal.signal(number, outlive)
        if self.init is not None:
            self.init(worker_id)

    def _end(self, reader: int) -> None:
        os.read(reader, 1)
        time.sleep(self.seconds)
        os._exit(0)
