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
"""Two nodes whose link is cut, comes back or is slow, in the middle of a save. One disk for both, or one each.

    python node_campaign.py                                   every kind of link, with one disk and with two
    python node_campaign.py --links cut --disks 2 --rank 1    ...
    python node_campaign.py --links cut --disks 1 --rank 0 --at 17    one point again

A node is a network, mount and pid namespace of its own with one rank; a pair of virtual interfaces joins the two. The
store is served on the first node. The link of rank R's node is met at R's n-th file operation:

- `cut`: the interface goes down and stays down;
- `back`: it comes up again before a rank would count as lost;
- `slow`: every packet of the second node's connection to the store is held back for a while, during the whole save.

What must hold: nobody hangs; a slow link costs time and nothing else; with a link that is cut each rank announces or
raises `CheckpointSaveError`, and none says "not saved" of a checkpoint that is there; on each disk only complete
checkpoints are picked, never an older one than was announced; the next training saves on both.

Needs root and namespaces. Prints one JSON object.
"""

import argparse
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from multiprocessing import Pipe
from typing import Any

import torch.distributed as dist
from rank_campaign import Hanging, World, denials, of_all, of_rank, rank_main
from save_driver import content, read_files, save

from transformers.trainer_checkpoint.discovery import find_checkpoints, newest_complete_checkpoint
from transformers.trainer_checkpoint.layout import STAGING_DIR
from transformers.trainer_checkpoint.verification import verify
from transformers.utils import logging


ADDRESSES = ("10.99.0.1", "10.99.0.2")
PORT, RELAY_PORT = 29500, 29501
# Seconds: how long a rank is silent before it counts as lost; how long `back` is; what `slow` adds to each packet.
SILENCE, GAP, DELAY = 4.0, 1.0, 0.02
LINKS = ("cut", "back", "slow")

_CLONE_NEWNS, _CLONE_NEWPID, _CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 1 << 18
_PR_SET_PDEATHSIG = 1
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def unshare(flags: int) -> None:
    checked(libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str, flags: int) -> None:
    checked(libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None), target)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)


def set_link(name: str, up: bool) -> None:
    """Put an interface of this process's network up or down, without another process."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        answer = fcntl.ioctl(handle, _SIOCGIFFLAGS, struct.pack("16sh22x", name.encode(), 0))
        flags = struct.unpack("16sh22x", answer)[1]
        flags = flags | _IFF_UP if up else flags & ~_IFF_UP
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sh22x", name.encode(), flags))


def reach_store() -> socket.socket:
    """A connection to the store, which the other node may still be about to serve."""
    deadline = time.monotonic() + 60
    while True:
        try:
            far = socket.create_connection((ADDRESSES[0], PORT), timeout=60)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            far.settimeout(None)
            return far


def relay(delay: float) -> None:
    """Carry connections to the store, each packet `delay` seconds later."""

    def carry(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(1 << 16):
            time.sleep(delay)
            target.sendall(data)
        target.close()

    listener = socket.create_server(("127.0.0.1", RELAY_PORT))
    while True:
        near, _ = listener.accept()
        far = reach_store()
        for pair in ((near, far), (far, near)):
            threading.Thread(target=carry, args=pair, daemon=True).start()


# ---- One node ----


def node_main(rank: int, root: str, disks: int, link: str, ready: Any, pipe: Any) -> None:
    """In a fork: become a node, start the rank, and serve what belongs to the node until the end."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    unshare(_CLONE_NEWNET | _CLONE_NEWNS)
    mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    if disks == 2:
        mount(os.path.join(root, f"disk-{rank}"), os.path.join(root, "disk"), "", _MS_BIND)
    ready.send("namespaces")
    ready.recv()
    ip("addr", "add", f"{ADDRESSES[rank]}/24", "dev", f"node{rank}")
    ip("link", "set", f"node{rank}", "up")
    ip("link", "set", "lo", "up")
    if os.fork() == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # Whoever unshares pids can start no thread any more, and its first child is all that lives in there.
        unshare(_CLONE_NEWPID)
        if os.fork() == 0:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            mount("proc", "/proc", "proc", 0)
            run_rank(rank, link, pipe)
        pipe.close()
        os.wait()
        os._exit(0)
    pipe.close()
    if rank == 0:
        server = dist.TCPStore(ADDRESSES[0], PORT, is_master=True, wait_for_workers=False)
        assert server.port == PORT
    elif link == "slow":
        relay(DELAY)
    signal.pause()


def run_rank(rank: int, link: str, pipe: Any) -> None:
    name = f"node{rank}"

    def cut() -> None:
        set_link(name, False)

    def back() -> None:
        set_link(name, False)
        threading.Timer(GAP, set_link, (name, True)).start()

    through_relay = rank == 1 and link == "slow"
    host, port = ("127.0.0.1", RELAY_PORT) if through_relay else (ADDRESSES[0], PORT)
    try:
        rank_main(rank, 2, port, "node", pipe, host=host, silence=SILENCE, actions={"cut": cut, "back": back})
    except BaseException:
        traceback.print_exc()
        os._exit(1)


class Nodes(World):
    """Two nodes and their link, which all end with this process."""

    def __init__(self, root: str, disks: int, link: str):
        self.pipes, self.children = [], []
        readies = []
        for rank in range(2):
            (ours, theirs), (ready, told) = Pipe(), Pipe()
            child = os.fork()
            if child == 0:
                try:
                    node_main(rank, root, disks, link, told, theirs)
                except BaseException:
                    traceback.print_exc()
                os._exit(1)
            theirs.close()
            told.close()
            self.pipes.append(ours)
            self.children.append(child)
            readies.append(ready)
        for ready in readies:
            if not ready.poll(30) or ready.recv() != "namespaces":
                self.end()
                raise SystemExit("a node cannot be made")
        ip("link", "add", "node0", "type", "veth", "peer", "name", "node1")
        for rank, child in enumerate(self.children):
            ip("link", "set", f"node{rank}", "netns", str(child))
            readies[rank].send("go")
        self.wait_until_ready()

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for child in self.children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


# ---- The campaign ----


class NodeCampaign:
    def __init__(self, root: str, disks: int):
        self.root, self.disks = root, disks
        self.violations: list[str] = []
        self.points: Counter[str] = Counter()
        self.slowest = 0.0

    @property
    def run_dirs(self) -> list[str]:
        """The run directory of each disk, as it is seen from here."""
        names = ["disk"] if self.disks == 1 else ["disk-0", "disk-1"]
        return [os.path.join(self.root, name, "out") for name in names]

    def expected(self, tag: str, step: int, number: int) -> dict[str, bytes]:
        """What lies on disk `number`. With one disk each, both nodes save what is there once per disk."""
        return of_all(tag, step, 2) if self.disks == 1 else of_rank(tag, step, number, each=True)

    def fresh(self) -> None:
        for name in os.listdir(self.root):
            shutil.rmtree(os.path.join(self.root, name))
        for name in ("disk", "disk-0", "disk-1"):
            os.mkdir(os.path.join(self.root, name))

    def order(self, **more: Any) -> dict[str, Any]:
        base = {"root": os.path.join(self.root, "disk"), "run_dir": os.path.join(self.root, "disk", "out")}
        how = {"durable": True, "in_place": None, "swap": True, "tag": "newer", "step": 20}
        return (
            base
            | how
            | {"rank": None, "at": None, "error": None, "action": None, "last": True, "each": self.disks == 2}
            | more
        )

    def ten(self) -> None:
        for run_dir in self.run_dirs:
            save(run_dir, 10, content("ten", 10))

    def count(self, link: str) -> list[int]:
        """The number of file operations of each rank."""
        self.fresh()
        self.ten()
        nodes = Nodes(self.root, self.disks, link)
        answers = nodes.save(self.order())
        nodes.end()
        if not all(answer and answer["announced"] for answer in answers):
            raise SystemExit(f"the undisturbed save fails: {answers}")
        for number, run_dir in enumerate(self.run_dirs):
            found = read_files(os.path.join(run_dir, "checkpoint-20"))
            if found != self.expected("newer", 20, number):
                raise SystemExit(f"the undisturbed save leaves {sorted(found)} on disk {number}")
        return [answer["operations"] for answer in answers]

    def meet(self, link: str, rank: int, at: int | None) -> None:
        self.fresh()
        self.ten()
        nodes = Nodes(self.root, self.disks, link)
        wrong, answers = [], []
        try:
            started = time.monotonic()
            answers = nodes.save(self.order(rank=rank, at=at, action=link))
            self.slowest = max(self.slowest, time.monotonic() - started)
            wrong += self.wrong_answers(answers, link)
        except Hanging as hanging:
            wrong.append(str(hanging))
        nodes.end()
        announced = any(answer and answer["announced"] for answer in answers)
        for number, run_dir in enumerate(self.run_dirs):
            wrong += self.look(run_dir, number, announced)
        wrong += self.next_training()
        self.points[f"{link}, {self.disks} disk(s), rank {rank}"] += 1
        where = f"{link}, {self.disks} disk(s), rank {rank} at operation {at}"
        self.violations += [f"{where}: {text}" for text in wrong]

    def wrong_answers(self, answers: list[dict[str, Any] | None], link: str) -> list[str]:
        wrong = []
        for rank, answer in enumerate(answers):
            if answer is None:
                wrong.append(f"rank {rank} has died")
            elif not answer["announced"] and (link != "cut" or answer["raised"] != "CheckpointSaveError"):
                wrong.append(f"rank {rank} raises {answer['raised']}: {answer['text']}")
        left = [answer for answer in answers if answer is not None]
        for number, run_dir in enumerate(self.run_dirs):
            wrong += denials(left, run_dir, self.expected("newer", 20, number))
        return wrong

    def look(self, run_dir: str, number: int, announced: bool) -> list[str]:
        """Every rule that what lies on a disk breaks."""
        wrong = []
        newest = newest_complete_checkpoint(run_dir)
        wanted = {10: content("ten", 10), 20: self.expected("newer", 20, number)}
        for found in find_checkpoints(run_dir):
            if not found.complete or read_files(found.path) != wanted.get(found.step):
                wrong.append(f"disk {number}: {found.name} is half published ({found.problem})")
            elif problems := verify(found.path, level="full").problems:
                wrong.append(f"disk {number}: {found.name} has {problems}")
        step = None if newest is None else os.path.basename(newest)
        if step is None or (announced and step != "checkpoint-20"):
            wrong.append(f"disk {number}: {step} is picked")
        return wrong

    def next_training(self) -> list[str]:
        """New processes on both nodes save step 30."""
        nodes = Nodes(self.root, self.disks, "none")
        try:
            answers = nodes.save(self.order(tag="the next", step=30))
        except Hanging as hanging:
            return [f"the next save hangs: {hanging}"]
        finally:
            nodes.end()
        wrong = (
            [] if all(answer and answer["announced"] for answer in answers) else [f"the next save fails: {answers}"]
        )
        for number, run_dir in enumerate(self.run_dirs):
            newest = newest_complete_checkpoint(run_dir)
            if newest is None or read_files(newest) != self.expected("the next", 30, number):
                wrong.append(f"disk {number}: the next save is not picked, {newest} is")
            if os.path.exists(os.path.join(run_dir, STAGING_DIR)):
                wrong.append(f"disk {number}: staging is left behind")
        return wrong


def missing_tools() -> str | None:
    """What the campaign needs and does not find, or `None`."""
    if os.geteuid() != 0:
        return "root"
    if shutil.which("ip") is None:
        return "ip"
    try_it = "ip link add node0 type veth peer name node1 && mount -t proc proc /proc"
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "sh", "-c", try_it]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        return "unshare"
    return None if done.returncode == 0 else f"namespaces ({done.stderr.strip()})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", nargs="*", choices=LINKS, default=list(LINKS))
    parser.add_argument("--disks", nargs="*", type=int, choices=[1, 2], default=[1, 2])
    parser.add_argument("--rank", type=int, choices=[0, 1], help="meet the link of this rank's node only")
    parser.add_argument("--at", type=int, help="one operation")
    parser.add_argument("--stride", type=int, default=1, help="every n-th point only")
    options = parser.parse_args()
    logging.set_verbosity(logging.CRITICAL)
    if (needed := missing_tools()) is not None:
        print(json.dumps({"missing": needed}))
        return
    # The interfaces get their names in a network of this process's own.
    unshare(_CLONE_NEWNET)
    report: dict = {"points": {}, "slowest_answer": 0.0, "violations": []}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as root:
        root = os.path.realpath(root)
        turn = 0
        for disks in options.disks:
            for link in options.links:
                campaign = NodeCampaign(root, disks)
                for rank, count in enumerate(campaign.count(link)):
                    if options.rank not in (None, rank) or (link == "slow" and rank == 0):
                        continue
                    # A slow link is slow all the time; once is enough.
                    every = [None] if link == "slow" else range(1, count + 1)
                    for at in [options.at] if options.at else every:
                        turn += 1
                        if options.at or link == "slow" or turn % options.stride == 0:
                            campaign.meet(link, rank, at)
                report["points"] |= campaign.points
                report["violations"] += campaign.violations
                report["slowest_answer"] = round(max(report["slowest_answer"], campaign.slowest), 1)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    sys.exit(main())
