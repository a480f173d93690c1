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
"""Ranks of a status board, one process each, and what they do in a test. Run by `World`; see `test_status_board.py`."""

import atexit
import contextlib
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist

from transformers.testing_utils import CaptureLogger
from transformers.trainer_checkpoint import board as board_module
from transformers.trainer_checkpoint.board import StatusBoard, leave_after_foreign_failure
from transformers.trainer_checkpoint.disk_groups import find_disk_groups


# Seconds: the protocol's constants, made small. Between beat and silence there is room for a busy machine.
SILENCE, BEAT = 4.0, 0.25
PATIENCE = 60.0
# Seconds after which a test gives its ranks up.
GIVE_UP = 120.0

# Forked from a process that has imported everything and started nothing: an import for each rank would take minutes.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch.distributed", "transformers.trainer_checkpoint.board", "transformers.testing_utils"]
)


class Lost(Exception):
    """What a rank raised: the name of the class, the text, and the attributes that `RankLostError` has."""


def outcome_of(function, *args, **kwargs) -> Any:
    """What `function` returns, or what it raises as a dictionary."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        told = {"raised": type(error).__name__, "text": str(error)}
        return told | {"ranks": tuple(getattr(error, "ranks", ())), "reason": getattr(error, "reason", "")}


class World:
    """Processes that each run one case on one rank, with a store in this process unless rank 0 has it."""

    def __init__(self, store_in_rank_0: bool = False):
        self.store = None if store_in_rank_0 else serve()
        self.port = self.store.port if self.store is not None else free_port()
        self.processes: list = []
        self.pipes: list = []

    def start(self, case: str, world_size: int, **options: Any) -> "World":
        self.processes, self.pipes = [], []
        options["store_in_rank_0"] = self.store is None
        for rank in range(world_size):
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(
                target=run_rank, args=(case, rank, world_size, self.port, theirs, options), daemon=True
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)
        return self

    def told(self, rank: int) -> Any:
        """The next thing that the case says on `rank`. Raises what went wrong there."""
        if not self.pipes[rank].poll(GIVE_UP):
            raise TimeoutError(f"rank {rank} has said nothing for {GIVE_UP:g} s")
        try:
            kind, value = self.pipes[rank].recv()
        except EOFError:
            raise Lost(f"rank {rank} has ended without a word") from None
        if kind == "error":
            raise Lost(f"rank {rank}: {value}")
        return value

    def tell(self, rank: int, value: Any = None) -> None:
        self.pipes[rank].send(value)

    def all_told(self, but: tuple[int, ...] = ()) -> dict[int, Any]:
        return {rank: self.told(rank) for rank in range(len(self.pipes)) if rank not in but}

    def exit_code(self, rank: int) -> int | None:
        self.processes[rank].join(GIVE_UP)
        return self.processes[rank].exitcode

    def wait_until_waiting(self, rank: int, topic: str) -> None:
        """Until `rank` has set its word for `topic`: it is inside the exchange then."""
        end = time.monotonic() + GIVE_UP
        while not any(key.endswith(f"/topic/{topic}.{rank}") for key in self.store.list_keys()):
            if time.monotonic() > end:
                raise TimeoutError(f"rank {rank} has not come to {topic!r}")
            time.sleep(0.05)

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.processes[rank].pid, number)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(GIVE_UP)


def serve() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def run_rank(case: str, rank: int, world_size: int, port: int, pipe, options: dict[str, Any]) -> None:
    serves = options.pop("store_in_rank_0") and rank == 0
    for name, value in options.pop("constants", {}).items():
        setattr(board_module, name, value)
    me = Me(rank, world_size, pipe)
    if options.pop("stderr", None):
        sys.stderr = open(me.options_path(options), "w", encoding="utf-8")
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=serves, wait_for_workers=False)
        me.store = store
        CASES[case](me, **options)
    except BaseException as error:
        with contextlib.suppress(OSError):
            pipe.send(("error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
        raise


class Me:
    """One rank, as its case sees it."""

    def __init__(self, rank: int, world_size: int, pipe):
        self.rank, self.world_size, self.pipe = rank, world_size, pipe
        self.store: Any = None

    def board(self, **kwargs: Any) -> StatusBoard:
        far = kwargs.pop("far", False)
        kwargs = {"patience": PATIENCE, "silence": SILENCE, "beat_interval": BEAT} | kwargs
        board = StatusBoard(self.store.clone(), self.rank, self.world_size, barrier=lambda: None, **kwargs)
        if far:  # as if on machines of their own: nobody can look at another's process
            board._near = {}
        return board

    def say(self, value: Any = None) -> None:
        self.pipe.send(("said", value))

    def hear(self) -> Any:
        if not self.pipe.poll(GIVE_UP):
            raise TimeoutError("the test has said nothing")
        return self.pipe.recv()

    def options_path(self, options: dict[str, Any]) -> str:
        return os.path.join(options["out"], f"stderr-{self.rank}")


# ---- Cases ----


def several_rounds(me: Me, rounds: int = 3) -> None:
    board = me.board()
    answers = []
    for number in range(rounds):
        board.begin()
        first = board.exchange("written", {"rank": me.rank, "round": number})
        second = board.exchange("sealed", None)
        answers.append([first, second, board.broadcast("published", f"step {number}" if me.rank == 0 else None)])
    board.close()
    me.say(answers)


def several_boards(me: Me, boards: int = 3) -> None:
    """`train()` again and again in one process, without anybody closing a board in between."""
    kept, answers = [], []
    for number in range(boards):
        kept.append(me.board())
        kept[-1].begin()
        answers.append(kept[-1].exchange("written", [me.rank, number]))
    # The first one is still good, too.
    kept[0].begin()
    answers.append(kept[0].exchange("written", "again"))
    me.say(answers)
    me.hear()
    for board in kept:
        board.close()
    me.say()


def count_keys(me: Me, rounds: int) -> None:
    """How many keys are in the store at the end of some rounds and after the board was closed."""
    board = me.board()
    counts = []
    for number in range(rounds):
        board.begin()
        for topic in ("written", "flushed", "sealed"):
            board.exchange(topic, number)
        board.broadcast("published", number)
        board.post_error("not to be kept either")
        if number in (5, rounds - 1):
            board._client.call(lambda store: None)  # the deletions that nobody waits for are done
            board.exchange("all deleted", None)
            counts.append(me.store.num_keys())
            board.exchange("all counted", None)
    board.close()
    me.say(counts)


def big_answers(me: Me, size: int) -> None:
    board = me.board()
    board.begin()
    answers = board.exchange("files", os.urandom(size // 2).hex() if me.rank == 1 else None)
    me.say([len(answer or "") for answer in answers])
    board.close()
    me.say(me.store.num_keys())


def waits_for_one(
    me: Me,
    late: int,
    how: str,
    far: bool = False,
    patience: float = PATIENCE,
    beats: bool = True,
    again: bool = False,
    takes: float = 0.0,
):
    """All ranks vote but `late`, which does something else first. `again`: the next round, and the last one.

    `takes`: the seconds that `late` asks the others for.
    """
    board = me.board(far=far)
    if me.rank == late and not beats:
        board._client.beat_key = None
    board.begin()
    board.exchange("open", None)
    # Not before: the ranks do not start at the same moment.
    board.patience = patience
    if takes and me.rank == late:
        board.take_time(takes)
    me.say("open")
    with CaptureLogger(board_module.logger) as logs:
        if me.rank == late:
            me.hear()  # not before all others have had their answer to "open"
            {"die": die, "stop": stop, "leave": board.close, "sleep": lambda: None}[how]()
            if how == "leave":
                return
        outcome = outcome_of(board.exchange, "written", me.rank)
    me.say([outcome, logs.out])
    me.hear()
    if again:
        for word in ("again", "and again"):
            board.begin()
            me.say(outcome_of(board.exchange, "written", [me.rank, word]))
        board.close()
        me.say()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def signal_while_waiting(me: Me) -> None:
    """Rank 1 waits in a vote; rank 0 joins only after rank 1's signal handler has run."""
    board = me.board()
    board.begin()
    if me.rank == 1:
        signal.signal(signal.SIGUSR1, lambda *_: me.say("handled"))
        ran = []
        threading.Thread(target=lambda: ran.append(1), daemon=True).start()
        me.say("ready")
        me.say([board.exchange("written", 1), ran])
    else:
        me.say("ready")
        me.hear()
        me.say([board.exchange("written", 0), [1]])
    board.close()


def interrupted(me: Me) -> None:
    """A `KeyboardInterrupt` on rank 1 comes out of a vote that waits; closing tells rank 0 that it is gone."""
    board = me.board(far=True)
    board.begin()
    if me.rank == 1:
        signal.signal(signal.SIGUSR1, signal.default_int_handler)
        me.say("ready")
        try:
            board.exchange("written", 1)
        except KeyboardInterrupt:
            me.say("interrupted")
        board.close()
        return
    me.say("ready")
    me.hear()
    board.exchange("written", 0)
    me.say(outcome_of(board.exchange, "sealed", 0))


def two_errors(me: Me) -> None:
    board = me.board()
    board.begin()
    told = [board.first_error()]
    board.exchange("open", None)
    if me.rank == 1:
        board.post_error("disk full " + "x" * 10_000)
        board.post_error("a later one")
    board.exchange("written", None)
    if me.rank == 2:
        board.post_error("the connection was closed by a peer")
    board.exchange("sealed", None)
    told.append(board.first_error())
    board.begin()
    told.append(board.first_error())
    board.exchange("written", None)
    board.close()
    me.say(told)


def error_outlives_store(me: Me) -> None:
    """Rank 0 has the store, says what went wrong and is gone; the others ask afterwards."""
    board = me.board()
    board.begin()
    board.exchange("open", None)
    if me.rank == 0:
        board.post_error("no space left on device")
        me.say("posted")
        me.hear()
        die()
    me.say("open")
    me.hear()
    me.say([outcome_of(board.exchange, "written", None), board.first_error()])


def leaves_others_behind(me: Me, out: str) -> None:
    """Rank 1 failed inside a collective that rank 0 does not come out of."""
    board = me.board()
    board.begin()
    board.exchange("open", None)
    if me.rank == 1:
        board_module.logger.setLevel("CRITICAL")  # as the Trainer does on ranks that are not to be heard
        leave_after_foreign_failure(board, "writing shard 1: OSError: [Errno 28] No space left on device", grace=0.1)
    me.say("inside")
    me.hear()
    me.say(board.first_error())


def last_word(me: Me, linger: float) -> None:
    """Rank 0 serves the store and ends right after its vote; rank 1 looks late."""
    board_module.LINGER = linger
    board = me.board()
    board.begin()
    board.exchange("open", None)
    if me.rank == 1:
        board._first_look = board._last_look = 2.0
        me.say(outcome_of(board.exchange, "written", 1))
        return
    # Rank 1's word is waited for, so the next look of rank 1 comes after the answer.
    board._first_look = board._last_look = 0.01
    board.exchange("written", 0)
    me.say("written")
    atexit._run_exitfuncs()  # the processes of `multiprocessing` end without


def child_of_a_rank(me: Me) -> None:
    board = me.board()
    board.begin()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, outcome_of(board.exchange, "written", None)["text"].encode())
        os._exit(0)
    os.waitpid(pid, 0)
    me.say([os.read(reading, 4096).decode(), board.exchange("written", me.rank)])
    board.close()


def takes_time(me: Me) -> None:
    """Ranks 1 and 2 ask for time, one after the other, and rank 1 needs more than rank 2 has asked for."""
    board_module._SLACK = 0.5
    board = me.board()
    board.begin()
    board.exchange("open", None)
    board.patience = 1.0
    if me.rank == 1:
        board.take_time(20.0)
    board.exchange("asked", None)
    if me.rank == 2:
        board.take_time(1.0)
    if me.rank == 1:
        time.sleep(6.0)
    me.say(outcome_of(board.exchange, "written", me.rank))
    board.close()


def has_less_patience(me: Me) -> None:
    """Rank 1 waits for rank 0 for a shorter time than the others do."""
    board_module._SLACK = 0.5
    board = me.board()
    board.begin()
    board.exchange("open", None)
    if me.rank == 0:
        time.sleep(6.0)
    me.say(outcome_of(board.exchange, "written", me.rank, patience=1.0 if me.rank == 1 else PATIENCE))
    time.sleep(2.0)  # nobody leaves before all have heard
    board.close()


class FarAway:
    """A store as a rank far away sees it: what it says is there may be gone when its answer arrives.

    `late` is how many seconds the next answer takes that says so, and `deleting` how many each deletion takes.
    """

    def __init__(self, store: Any, deleting: float = 0.0):
        self.store, self.late, self.deleting = store, 0.0, deleting

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def clone(self) -> "FarAway":
        # One connection for all would keep them in order.
        return FarAway(self.store.clone(), self.deleting) if self.deleting else self

    def check(self, keys: list[str]) -> bool:
        there = self.store.check(keys)
        if there and self.late:
            seconds, self.late = self.late, 0.0
            time.sleep(seconds)
        return there

    def delete_key(self, key: str) -> bool:
        time.sleep(self.deleting)
        return self.store.delete_key(key)


def one_board_after_the_other(me: Me, deleting: float) -> None:
    """The words with which the ranks met are deleted slowly, and rank 0 comes late to the next meeting."""
    me.store = FarAway(me.store, deleting)
    boards = [me.board(patience=20.0)]
    if me.rank == 0:
        time.sleep(2 * deleting)
    boards.append(me.board(patience=20.0))
    boards[1].begin()
    me.say(outcome_of(boards[1].exchange, "written", me.rank))
    for board in boards:
        board.close()


def all_forget(me: Me, late: float) -> None:
    """Both ranks failed, and both forget it: the word goes just after rank 1 has looked whether it is there."""
    me.store = FarAway(me.store)
    board = me.board(beat_interval=SILENCE / 2)  # heartbeats ask as well
    board.begin()
    board.post_error("no space left on device")
    board.exchange("written", None)
    board.begin()
    board.exchange("written", None)
    board._client.call(lambda store: None)  # the deletions that nobody waits for are done
    if me.rank == 1:
        me.store.late = late
    else:
        time.sleep(late / 2)
    board.begin()
    me.say(outcome_of(board.exchange, "written", me.rank))
    board.close()


def misuse(me: Me) -> None:
    board = me.board()
    board.begin()
    told = [outcome_of(board.exchange, "set", {1, 2})]
    board.exchange("written", None)
    told.append(outcome_of(board.exchange, "written", None))
    board.close()
    board.close()
    told.append(outcome_of(board.exchange, "late", None))
    told.append(outcome_of(board.post_error, "nobody hears"))
    told.append(board.first_error())
    me.say(told)


def file_store(me: Me, path: str) -> None:
    me.store = dist.FileStore(path, me.world_size)
    several_rounds(me)


def look_for_disks(
    me: Me, run_dirs: list[str], hosts: list[str], stale: tuple[int, ...] = (), cache_time: float = 2.0, **fault: Any
) -> None:
    """`find_disk_groups`, where directories stand for disks."""
    board = me.board(host=hosts[me.rank])
    board.begin()
    with contextlib.ExitStack() as stack:
        if me.rank in stale:
            stack.enter_context(answers_of_a_minute_ago(run_dirs[me.rank]))
        stack.enter_context(blind(me.rank, **fault))
        with CaptureLogger(board_module.logging.get_logger("transformers.trainer_checkpoint.disk_groups")) as logs:
            groups = find_disk_groups(run_dirs[me.rank], board, cache_time=cache_time)
    board.close()
    me.say([groups, logs.out])


@contextlib.contextmanager
def answers_of_a_minute_ago(run_dir: str):
    """`exists`, `listdir` and `stat` do not know yet that `run_dir` is there."""
    real_stat, real_list, real_exists = os.stat, os.listdir, os.path.exists

    def is_new(path) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(run_dir)

    def stat(path, *args, **kwargs):
        if is_new(path):
            raise FileNotFoundError(2, "a minute ago it was not there", path)
        return real_stat(path, *args, **kwargs)

    with (
        mock.patch("os.stat", stat),
        mock.patch("os.listdir", lambda path=".": [] if is_new(path) else real_list(path)),
        mock.patch("os.path.exists", lambda path: not is_new(path) and real_exists(path)),
    ):
        yield


@contextlib.contextmanager
def blind(rank: int, blind_ranks: tuple[int, ...] = (), looks: float = 0, network: bool = False):
    """On some ranks the first looks at others' tokens find nothing, as through a cache."""
    from transformers.trainer_checkpoint import disk_groups

    real, count = disk_groups._opens, 0

    def opens(run_dir, name):
        nonlocal count
        count += 1
        return count > looks and real(run_dir, name)

    with contextlib.ExitStack() as stack:
        if network:
            stack.enter_context(mock.patch.object(disk_groups, "may_cache", lambda run_dir: True))
        if rank in blind_ranks:
            stack.enter_context(mock.patch.object(disk_groups, "_opens", opens))
        yield


CASES = {
    function.__name__: function
    for function in (
        several_rounds,
        several_boards,
        count_keys,
        big_answers,
        waits_for_one,
        signal_while_waiting,
        interrupted,
        two_errors,
        error_outlives_store,
        leaves_others_behind,
        last_word,
        child_of_a_rank,
        one_board_after_the_other,
        takes_time,
        has_less_patience,
        all_forget,
        misuse,
        file_store,
        look_for_disks,
    )
}

# ---- Under torchrun ----


def write_result(out: str, rank: int, told: Any) -> None:
    path = Path(out, f"rank-{rank}.json")
    path.with_suffix(".part").write_text(json.dumps(told), encoding="utf-8")
    path.with_suffix(".part").rename(path)


def of_process_group(out: str, port: str) -> None:
    """A training's life with process groups: two boards, the group taken down, the next one set up.

    The first group has the elastic agent's store, the others one that rank 0 serves, both on the same port.
    """
    import gc

    told: dict[str, Any] = {"without": StatusBoard.of_process_group(lambda: None) is None}
    for life in range(3):
        if life == 1:
            os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": port}
        dist.init_process_group("gloo")
        rank, world_size = dist.get_rank(), dist.get_world_size()
        first = StatusBoard.of_process_group(dist.barrier, patience=PATIENCE)
        first.begin()
        told[f"first {life}"] = first.exchange("written", [rank, life])
        first.barrier()
        second = StatusBoard.of_process_group(dist.barrier, patience=PATIENCE)
        second.begin()
        told[f"second {life}"] = second.exchange("written", [rank, life, "second"])
        told[f"hosts {life}"] = len(set(second.hosts))
        told[f"usable {life}"] = [first.usable(), second.usable()]
        # One is closed, one forgotten: neither may keep the group's port, nor complain later.
        first.close()
        dist.barrier()
        dist.destroy_process_group()
        gc.collect()
        told[f"usable after {life}"] = [first.usable(), second.usable()]
        told[f"lost {life}"] = outcome_of(second.exchange, "sealed", None)
        # The next group must not meet this one's store.
        Path(out, f"down-{life}-{rank}").touch()
        while not all(Path(out, f"down-{life}-{other}").exists() for other in range(world_size)):
            time.sleep(0.05)
    write_result(out, rank, told)


def disks_of_nodes(out: str, run_dir: str) -> None:
    """`find_disk_groups` on two nodes; what each rank found goes to a place both nodes see."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    board = StatusBoard.of_process_group(dist.barrier, patience=PATIENCE)
    board.begin()
    groups = find_disk_groups(run_dir, board, cache_time=2.0)
    told = {"groups": groups.groups, "hosts": groups.hosts, "left": sorted(os.listdir(run_dir))}
    write_result(out, rank, told)
    board.close()
    dist.destroy_process_group()


def node_vanishes(out: str, interface_down: str) -> None:
    """The last rank's network goes away without a word while all wait for a vote."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store().clone()
    board = StatusBoard(store, rank, world_size, dist.barrier, patience=PATIENCE, silence=SILENCE, beat_interval=BEAT)
    board._near = {}  # one kernel runs both nodes here; two would not see each other's processes
    board.begin()
    board.exchange("open", None)
    if rank == world_size - 1:
        import subprocess

        subprocess.run(["ip", "link", "set", interface_down, "down"], check=True)
    told = outcome_of(board.exchange, "written", rank)
    write_result(out, rank, told)
    os._exit(0)  # the process group cannot be taken down in an orderly way any more


if __name__ == "__main__":
    # torchrun's processes outlive whoever started it: nothing that hangs may stay.
    faulthandler.dump_traceback_later(GIVE_UP, exit=True)
    sys.path.insert(0, str(Path(__file__).parent))
    {"of_process_group": of_process_group, "disks_of_nodes": disks_of_nodes, "node_vanishes": node_vanishes}[
        sys.argv[1]
    ](*sys.argv[2:])
