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
"""How long the ranks of a large training take to agree: one vote, from the moment all ranks enter it.

    python benchmarks/bench_status_board.py [--ranks 2 4 64 1024] [--processes 2] [--votes 5]

Every simulated rank is a real `StatusBoard` with a connection of its own to one real TCP store, and looks as often as it
would in a training; rank 0 runs alone in the process that also serves the store. What is pooled is only who waits for
the connections of the other ranks: on a cluster each rank has a core and a thread for that, and a thousand such threads
on a few cores would measure the scheduler. All ranks share the cores of this machine, so what is printed here is an
upper bound. A vote lasts until the last rank has everybody's answer. The aim is less than a second for 1,024 ranks.

torch looks up the name of each machine that connects. Where that is slow (a name server that cannot be reached), so is
making the boards: `unshare --net sh -c "ip link set lo up; python ..."` has no name server to wait for.

`--check SECONDS` ends with an error if the median vote of the largest world takes longer.
"""

import argparse
import heapq
import itertools
import multiprocessing
import queue
import statistics
import sys
import threading
import time

import torch.distributed as dist

from transformers.trainer_checkpoint import board as board_module
from transformers.trainer_checkpoint.board import StatusBoard


# Seconds from the announcement of a vote to its start: time to wake up in (all ranks are to enter it together).
LEAD = 1.0


class Pool:
    """One thread that does what the threads of many connections would do, in the order in which it falls due."""

    def __init__(self):
        self.queue: queue.SimpleQueue = queue.SimpleQueue()
        self._due: list = []
        self._order = itertools.count()
        threading.Thread(target=self._run, daemon=True).start()

    def _push(self, when: float, what: object) -> None:
        heapq.heappush(self._due, (when, next(self._order), what))

    def _run(self) -> None:
        while True:
            try:
                if self._due:
                    what = self.queue.get(timeout=max(0.0, self._due[0][0] - time.monotonic()))
                else:
                    what = self.queue.get()
                self._push(0.0, what)
                continue
            except queue.Empty:
                what = heapq.heappop(self._due)[2]
            client, call = what
            if call is None:
                client._beat()
                self._push(time.monotonic() + client.beat_interval, what)
            elif not call.given_up:
                client._do(call)
                if not call.done.is_set():
                    self._push(call.next_look, what)


class PooledClient(board_module._Client):
    """A connection without a thread of its own."""

    pool: Pool

    def _start(self) -> None:
        self._queue = self
        self.pool.queue.put((self, None))

    def put(self, call: object) -> None:
        if call is not None:
            self.pool.queue.put((self, call))

    def stop(self) -> None:
        self.lost = self.lost or "the board is closed"
        self.beat_key = None


class PooledBoard(StatusBoard):
    _client_class = PooledClient


def connect(port: int) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)


def vote(board: StatusBoard, name: str, start: float) -> float:
    """Enter one vote at `start`; returns when it was over. `time.monotonic` is one clock for all processes here."""
    payload = {"wrote": board.rank == 0, "accounts": []}
    time.sleep(max(0.0, start - time.monotonic()))
    answers = board.exchange(name, payload)
    end = time.monotonic()
    if [answer["wrote"] for answer in answers] != [True] + [False] * (board.world_size - 1):
        raise SystemExit(f"rank {board.rank} got a wrong answer")
    return end


def simulate(port: int, ranks: range, world_size: int, votes: int, starts, ends) -> None:
    """One process of simulated ranks. `starts` brings when each vote begins, `ends` takes when its last rank was done."""
    over = [[0.0] * len(ranks) for _ in range(votes)]
    announced = [threading.Event() for _ in range(votes)]
    begin = [0.0] * votes
    done = threading.Barrier(len(ranks) + 1)
    PooledClient.pool = Pool()

    def one_rank(index: int, store: dist.TCPStore) -> None:
        board = PooledBoard(store, ranks[index], world_size, barrier=lambda: None)
        board.exchange("all here", None)
        for number in range(votes):
            board.begin()
            announced[number].wait()
            over[number][index] = vote(board, "vote", begin[number])
        done.wait()
        board.close()

    # A thousand threads of eight megabytes of stack each would not fit everywhere.
    threading.stack_size(512 << 10)
    threads = [threading.Thread(target=one_rank, args=(index, connect(port))) for index in range(len(ranks))]
    for thread in threads:
        thread.start()
    for number in range(votes):
        begin[number] = starts.get()
        announced[number].set()
    done.wait()
    ends.put([max(times) for times in over])
    for thread in threads:
        thread.join()


def measure(world_size: int, processes: int, votes: int) -> tuple[float, list[float]]:
    """Seconds that starting the ranks and making their boards took, and seconds of each vote."""
    context = multiprocessing.get_context("spawn")
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = min(processes, world_size - 1)
    edges = [1 + (world_size - 1) * index // processes for index in range(processes + 1)]
    starts = [context.SimpleQueue() for _ in range(processes)]
    ends = context.SimpleQueue()
    children = [
        context.Process(
            target=simulate,
            args=(server.port, range(edges[i], edges[i + 1]), world_size, votes, starts[i], ends),
            daemon=True,
        )
        for i in range(processes)
    ]
    began = time.monotonic()
    for child in children:
        child.start()
    board = StatusBoard(server.clone(), 0, world_size, barrier=lambda: None)
    making = time.monotonic() - began

    # The others have their boards a little later than rank 0.
    board.exchange("all here", None)
    entered, over = [], []
    for _ in range(votes):
        board.begin()
        start = time.monotonic() + LEAD
        for announcement in starts:
            announcement.put(start)
        entered.append(start)
        over.append(vote(board, "vote", start))
    for times in [ends.get() for _ in children]:
        over = [max(pair) for pair in zip(over, times, strict=True)]
    board.close()
    for child in children:
        child.join(60)
        if child.exitcode != 0:
            raise SystemExit(f"a process of simulated ranks ended with {child.exitcode}")
    return making, [end - start for start, end in zip(entered, over, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 64, 1024], help="world sizes")
    parser.add_argument("--processes", type=int, default=2, help="processes that the ranks other than 0 share")
    parser.add_argument("--votes", type=int, default=5, help="votes per world size")
    parser.add_argument("--check", type=float, help="fail if the median vote of the largest world takes longer (s)")
    args = parser.parse_args()
    if min(args.ranks) < 2:
        parser.error("--ranks: a vote needs two ranks at least")

    print(f"{'ranks':>6}  {'median vote':>12}  {'slowest':>9}  {'per rank':>10}  {'start, boards made':>18}")
    median = 0.0
    for world_size in sorted(args.ranks):
        making, seconds = measure(world_size, args.processes, args.votes)
        median = statistics.median(seconds)
        print(
            f"{world_size:>6}  {median * 1e3:>9.1f} ms  {max(seconds) * 1e3:>6.1f} ms  "
            f"{median / world_size * 1e6:>7.1f} us  {making:>16.2f} s",
            flush=True,
        )
    if args.check is not None and median > args.check:
        sys.exit(f"the median vote took {median:.3f} s, and {args.check:g} s are allowed")


if __name__ == "__main__":
    main()
