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
"""What the protocol asks of the ranks of a training, and the answer of a training that is one process.

`Ranks` is the whole interface between the protocol and the distributed world. A training of several processes
implements it over the process group's store (`board.StatusBoard`); one process needs no store, and nothing of
`torch.distributed` is touched.

Every method is called by all ranks, in the same order and with the same topic, unless it says otherwise. No method is a
collective of the device backend: a rank that fails inside one of those can still be heard here.
"""

import abc
import os
import socket
from collections.abc import Callable, Iterable
from typing import Any


class Ranks(abc.ABC):
    """The ranks of one training. `rank` and `world_size` are the global ones; `host` names this rank's machine."""

    rank: int
    world_size: int
    host: str

    #: Whether the ranks can tell each other anything but "I am here". Without that, errors cannot be shared.
    connected = True

    @property
    def alone(self) -> bool:
        return self.world_size == 1

    def usable(self) -> bool:
        """Whether this object still reaches the others; a process group may have been taken down and set up again."""
        return True

    @abc.abstractmethod
    def begin(self) -> None:
        """Start a new round of topics (one save, one resume). Called by all ranks; forgets the round before last."""

    @abc.abstractmethod
    def exchange(self, topic: str, payload: Any, patience: float | None = None) -> list[Any]:
        """Tell all ranks `payload` and learn what each told: a list with one entry per rank, in order of rank.

        Args:
            topic (`str`):
                Not used before in this round.
            payload (`Any`):
                Anything JSON can hold. Objects come back as objects: tuples as lists, integer keys as strings.
            patience (`float`, *optional*):
                Seconds to wait for a rank that does not report, where the default is not meant.

        Raises:
            [`RankLostError`]: on every rank that is left, if a rank did not report in time, or is known to be dead.
        """

    @abc.abstractmethod
    def broadcast(self, topic: str, payload: Any = None) -> Any:
        """What rank 0 gave as `payload`, on every rank. Raises [`RankLostError`] if rank 0 is not heard of."""

    @abc.abstractmethod
    def post_error(self, cause: str) -> None:
        """Tell the others at once, outside any exchange, that this rank failed. One rank calls it; never raises."""

    @abc.abstractmethod
    def first_error(self) -> tuple[int, str] | None:
        """The rank and cause of the first `post_error` of this round, if there was one. Any rank, any time."""

    def arrive(self, place: str) -> None:
        """Tell the others that this rank has come to `place`, without waiting for them. Never raises."""

    def all_arrived(self, place: str, patience: float) -> bool:
        """Whether all ranks have come to `place` in this round, waited for up to `patience` seconds. Never raises.

        One rank calls it.
        """
        return self.alone

    def take_time(self, seconds: float) -> None:
        """Have the others wait for this long, where their patience is shorter. One rank calls it; never raises.

        Called before something that takes long and has to be done before this rank reports. It holds for this round.
        """

    def close(self) -> None:
        """The training is over: leave. Each rank calls it when it is done; an exchange after it is an error."""

    @abc.abstractmethod
    def barrier(self) -> None:
        """Wait for everyone: `accelerator.wait_for_everyone()`, the meeting point before anything is published."""


class Alone(Ranks):
    """A training of one process: every exchange is a plain function call."""

    def __init__(self) -> None:
        self.rank = 0
        self.world_size = 1
        self.host = host_name()

    def begin(self) -> None:
        pass

    def exchange(self, topic: str, payload: Any, patience: float | None = None) -> list[Any]:
        return [payload]

    def broadcast(self, topic: str, payload: Any = None) -> Any:
        return payload

    def post_error(self, cause: str) -> None:
        pass

    def first_error(self) -> tuple[int, str] | None:
        return None

    def barrier(self) -> None:
        pass


class Unconnected(Ranks):
    """Several processes without a store to talk over (XLA, SageMaker's model parallelism): they can only meet.

    Every exchange is a meeting, after which a rank assumes that the others had to tell what it has itself.

    Args:
        rank, world_size (`int`):
            This process among all.
        barrier (`Callable[[], None]`):
            Waits for everyone.
    """

    connected = False

    def __init__(self, rank: int, world_size: int, barrier: Callable[[], None]):
        self.rank = rank
        self.world_size = world_size
        self.host = host_name()
        self._barrier = barrier

    def begin(self) -> None:
        pass

    def exchange(self, topic: str, payload: Any, patience: float | None = None) -> list[Any]:
        self._barrier()
        return [payload] * self.world_size

    def broadcast(self, topic: str, payload: Any = None) -> Any:
        self._barrier()
        return payload

    def post_error(self, cause: str) -> None:
        pass

    def first_error(self) -> tuple[int, str] | None:
        return None

    def barrier(self) -> None:
        self._barrier()


def format_ranks(ranks: Iterable[int]) -> str:
    """Ranks as people write them: `0-3, 8`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def host_name() -> str:
    """Name of this machine as a process sees it: two containers on one machine are two hosts.

    The boot's id tells machines of one name apart, the namespaces tell containers, which may see different disks.
    """
    return "/".join([socket.gethostname(), boot_id()[:8] or "-", pid_namespace(), _namespace("mnt")])


def boot_id() -> str:
    """What this machine drew when it was started, or `""` where the system has no such thing."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Which set of pids this process lives among; `"-"` where the system does not tell."""
    return _namespace("pid")


def _namespace(kind: str) -> str:
    try:
        return str(os.stat(f"/proc/self/ns/{kind}").st_ino)
    except OSError:
        return "-"
