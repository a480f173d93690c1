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
"""Which ranks share a disk: one node, several nodes with one disk or with one each, caches, ranks without a disk.

In most cases directories stand for disks, and a name for a host: what counts is only what a rank can open. Two real
nodes (network and mount namespaces, torchrun) are at the end.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import unittest
from pathlib import Path
from unittest import mock

import pytest
from parameterized import parameterized

from transformers.testing_utils import TestCasePlus
from transformers.trainer_checkpoint import disk_groups
from transformers.trainer_checkpoint.disk_groups import DiskGroups, find_disk_groups, may_cache, warnings_for
from transformers.trainer_checkpoint.layout import disk_token_name, is_disk_token
from transformers.trainer_checkpoint.ranks import Alone, Unconnected


SCRIPTS = Path(__file__).parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from board_ranks import World  # noqa: E402


class FindingOutTest(TestCasePlus):
    def setUp(self):
        super().setUp()
        self.root = self.get_auto_remove_tmp_dir()

    def find(self, disks: str, hosts: str, **options) -> tuple[DiskGroups, str]:
        """The groups that all ranks found, and rank 0's log. One letter per rank in `disks` and `hosts`."""
        world = World()
        self.addCleanup(world.end)
        run_dirs = [os.path.join(self.root, letter, "runs", "out") for letter in disks]
        world.start("look_for_disks", len(disks), run_dirs=run_dirs, hosts=list(hosts), **options)
        told = world.all_told()
        for groups, _ in told.values():
            self.assertEqual(groups, told[0][0])
        for run_dir in {run_dir for rank, run_dir in enumerate(run_dirs) if rank not in told[0][0].diskless}:
            self.assertEqual(os.listdir(run_dir), [], "something was left in the run directory")
        return told[0][0], "".join(log for _, log in told.values())

    @parameterized.expand(
        [
            ("one_node", "aa", "xx", ((0, 1),)),
            ("one_node_of_four", "aaaa", "xxxx", ((0, 1, 2, 3),)),
            ("two_nodes_one_disk", "aaaa", "xxyy", ((0, 1, 2, 3),)),
            ("two_nodes_one_disk_each", "aabb", "xxyy", ((0, 1), (2, 3))),
            ("ranks_dealt_out_in_turn", "abab", "xyxy", ((0, 2), (1, 3))),
            ("two_of_three_nodes_share", "abab", "wxyz", ((0, 2), (1, 3))),
            ("four_nodes_one_disk", "aaaa", "wxyz", ((0, 1, 2, 3),)),
            ("one_node_two_directories", "ab", "xx", ((0,), (1,))),
            ("one_node_a_directory_each_but_one", "abaa", "xxxx", ((0, 2, 3), (1,))),
            ("a_rank_looks_at_the_other_nodes_disk", "aabb"[::-1], "xyyx", ((0, 1), (2, 3))),
        ]
    )
    def test_groups(self, _, disks, hosts, expected):
        groups, log = self.find(disks, hosts)
        self.assertEqual(groups.groups, expected)
        self.assertEqual(groups.hosts, tuple(hosts))
        self.assertEqual(groups.diskless, {})
        self.assertEqual(log, "", "a local file system answers at once")

    def test_answers_of_a_minute_ago_change_nothing(self):
        for stale in ((1,), (0, 1), (2,)):
            groups, _ = self.find("aaa", "xyz", stale=stale)
            self.assertEqual(groups.groups, ((0, 1, 2),))
            shutil.rmtree(os.path.join(self.root, "a"))

    def test_a_cache_that_hides_the_others_for_a_while(self):
        groups, log = self.find("aa", "xy", blind_ranks=(0, 1), looks=3, network=True, cache_time=60.0)
        self.assertEqual(groups.groups, ((0, 1),))
        self.assertRegex(log, r"Rank 0 does not see the other nodes' files in .*a/runs/out.* up to 60 s")

    def test_one_that_sees_is_enough(self):
        # Rank 1's cache never gives in; rank 0 has opened rank 1's token, which is proof.
        groups, log = self.find("aa", "xy", blind_ranks=(1,), looks=float("inf"), network=True, cache_time=60.0)
        self.assertEqual(groups.groups, ((0, 1),))
        self.assertEqual(log, "", "nobody had to wait")

    def test_separate_disks_on_mounts_that_may_cache(self):
        groups, log = self.find("ab", "xy", network=True, cache_time=1.0)
        self.assertEqual(groups.groups, ((0,), (1,)))
        self.assertEqual(log.count("in case this is a shared disk that answers from a cache"), 2)

    def test_without_the_second_look_a_cache_would_split_one_disk(self):
        # What the waiting is for: with no time for it the same disk is taken for two.
        groups, _ = self.find("aa", "xy", blind_ranks=(0, 1), looks=3, network=True, cache_time=0.0)
        self.assertEqual(groups.groups, ((0,), (1,)))

    def test_a_rank_without_a_disk(self):
        Path(self.root, "b").touch()  # no directory can be made below a file
        groups, _ = self.find("aabb", "xxyy")
        self.assertEqual(groups.groups, ((0, 1),))
        self.assertEqual(set(groups.diskless), {2, 3})
        self.assertRegex(groups.diskless[2], r"b/runs/out: Not a directory")
        self.assertEqual([groups.publisher_of(rank) for rank in range(4)], [0, 0, None, None])
        self.assertEqual((groups.group_of(3), groups.leader_of_host(3)), ((), None))

    def test_rank_0_without_a_disk(self):
        Path(self.root, "b").touch()
        groups, _ = self.find("baaa", "xxyy")
        self.assertEqual((groups.groups, set(groups.diskless)), (((1, 2, 3),), {0}))

    def test_one_process_touches_nothing(self):
        out = os.path.join(self.root, "out")
        ranks = Alone()
        groups = find_disk_groups(out, ranks)
        self.assertEqual((groups.groups, groups.hosts), (((0,),), (ranks.host,)))
        groups = find_disk_groups(out, Unconnected(1, 2, lambda: self.fail("nothing to wait for")))
        self.assertEqual(groups.groups, ((0, 1),))
        self.assertEqual(os.listdir(self.root), [])

    def test_tokens_of_killed_processes_are_swept_and_nothing_else(self):
        names = [disk_token_name("0123456789abcdef"), "_disk-notes", "disk-0123456789abcdef", "checkpoint-1"]
        for name in names:
            Path(self.root, name).touch()
        self.assertEqual([is_disk_token(name) for name in names], [True, False, False, False])
        disk_groups.sweep_disk_tokens(self.root)
        self.assertEqual(sorted(os.listdir(self.root)), sorted(names[1:]))
        disk_groups.sweep_disk_tokens(os.path.join(self.root, "missing"))

    def test_a_full_disk_is_none(self):
        token = disk_groups._Token(self.root)
        with mock.patch("os.fsync", side_effect=OSError(28, "No space left on device")):
            token.write()
        self.assertEqual(token.told(), {"name": None, "problem": f"{self.root}: No space left on device"})
        self.assertEqual(os.listdir(self.root), [])


class MountTest(unittest.TestCase):
    MOUNTS = (
        "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "30 21 0:40 / /data rw,relatime shared:2 - nfs4 server:/data rw,vers=4.2\n"
        "31 30 8:2 / /data/local rw - xfs /dev/sdb rw\n"
        "32 21 0:41 / /with\\040space rw - fuse.s3 bucket rw\n"
        "33 21 0:42 / /twice rw - ext4 /dev/sdc rw\n"
        "34 33 0:43 / /twice rw - lustre mgs:/fs rw\n"
    )

    @parameterized.expand(
        [
            ("/home/runs", False),
            ("/data/runs", True),
            ("/data", True),
            ("/database/runs", False),
            ("/data/local/runs", False),
            ("/with space/runs", True),
            ("/twice/runs", True),
        ]
    )
    def test_kind_of_mount(self, path, expected):
        with mock.patch("builtins.open", mock.mock_open(read_data=self.MOUNTS)):
            self.assertEqual(may_cache(path), expected)

    def test_where_the_system_does_not_tell(self):
        with mock.patch("builtins.open", side_effect=FileNotFoundError):
            self.assertTrue(may_cache("/data"))


class DiskGroupsTest(unittest.TestCase):
    GROUPS = DiskGroups(((0, 1, 4, 5), (2, 3)), ("x", "x", "y", "y", "z", "z"))

    def test_who_is_who(self):
        groups = self.GROUPS
        self.assertEqual(groups.publishers, (0, 2))
        self.assertEqual([groups.publisher_of(rank) for rank in range(6)], [0, 0, 2, 2, 0, 0])
        self.assertEqual([groups.leader_of_host(rank) for rank in range(6)], [0, 0, 2, 2, 4, 4])
        self.assertEqual(groups.group_of(5), (0, 1, 4, 5))

    def test_leader_of_a_host_with_two_disks(self):
        groups = DiskGroups(((0, 2), (1,)), ("x", "x", "x"))
        self.assertEqual([groups.leader_of_host(rank) for rank in range(3)], [0, 1, 0])

    @parameterized.expand([(False, [0]), (True, [0, 2])])
    def test_who_writes_what_is_common(self, save_on_each_node, expected):
        found = [rank for rank in range(6) if self.GROUPS.should_save(rank, save_on_each_node=save_on_each_node)]
        self.assertEqual(found, expected)


class WarningsTest(unittest.TestCase):
    ONE_DISK = DiskGroups(((0, 1, 2, 3),), ("a/1", "a/1", "b/1", "b/1"))
    TWO_DISKS = DiskGroups(((0, 1), (2, 3)), ("a/1", "a/1", "b/1", "b/1"))
    ONE_HOST = DiskGroups(((0, 1, 2, 3),), ("a/1",) * 4)
    PAIRS = DiskGroups(((0, 1), (2, 3)), ("a/1", "b/1", "c/1", "d/1"))
    SPLIT_HOST = DiskGroups(((0,), (1,)), ("a/1", "a/1"))
    DISKLESS = DiskGroups(
        ((0,),), ("a/1", "b/1", "b/1"), {1: "/out: Read-only file system", 2: "/out: Read-only file system"}
    )

    def find(self, groups: DiskGroups, **options):
        return warnings_for(groups, "/out", **{"save_on_each_node": False, **options})

    @parameterized.expand(
        [
            ("one_host", "ONE_HOST", {}),
            ("one_host_each_node", "ONE_HOST", {"save_on_each_node": True}),
            ("one_disk", "ONE_DISK", {}),
            ("one_disk_sharded", "ONE_DISK", {"sharded": "fsdp"}),
            ("two_disks_each_node", "TWO_DISKS", {"save_on_each_node": True}),
            (
                "two_disks_deepspeed_local",
                "TWO_DISKS",
                {"save_on_each_node": True, "sharded": "deepspeed", "node_local_storage": True},
            ),
        ]
    )
    def test_nothing_to_say(self, _, groups, options):
        self.assertEqual(self.find(getattr(self, groups), **options), disk_groups.SetupFindings())

    @parameterized.expand(
        [
            (
                "one_disk",
                "ONE_DISK",
                r"^`save_on_each_node` is set, and rank\(s\) 0-3 .* share .*/out.* only rank 0 writes",
            ),
            ("second_disk", "PAIRS", r"rank\(s\) 2-3 of several nodes .* only rank 2 writes"),
        ]
    )
    def test_nodes_that_would_overwrite_each_other(self, _, groups, expected):
        found = self.find(getattr(self, groups), save_on_each_node=True)
        self.assertEqual(found.errors, ())
        self.assertRegex(found.warnings[-1], expected)

    @parameterized.expand(
        [
            (
                "plain",
                {},
                r"written to the disk of rank 0 only, so rank\(s\) 2-3 cannot resume.*save_on_each_node=True",
            ),
            ("fsdp", {"save_on_each_node": True, "sharded": "fsdp"}, r"`\.metadata`.*rank\(s\) 2-3 cannot resume"),
            (
                "fsdp_full",
                {"save_on_each_node": True, "sharded": "fsdp full"},
                r"full state dicts.*rank\(s\) 2-3 cannot resume",
            ),
            (
                "deepspeed",
                {"save_on_each_node": True, "sharded": "deepspeed"},
                r"DeepSpeed.*rank\(s\) 2-3 cannot resume.*use_node_local_storage",
            ),
        ]
    )
    def test_set_ups_that_cannot_resume(self, _, options, expected):
        found = self.find(self.TWO_DISKS, **options)
        self.assertEqual((found.errors, len(found.warnings)), ((), 1))
        self.assertRegex(found.warnings[0], r"^The ranks do not share the run directory /out: rank\(s\) 0-1 on a; ")
        self.assertRegex(found.warnings[0], expected)

    def test_ranks_of_one_node_with_different_directories(self):
        found = self.find(self.SPLIT_HOST, save_on_each_node=True)
        self.assertRegex(found.warnings[0], r"^Ranks on one node \(a\) do not have the same run directory")

    def test_a_rank_without_a_disk(self):
        found = self.find(self.DISKLESS)
        self.assertEqual(len(found.errors), 1)
        self.assertRegex(found.errors[0], r"run directory /out \(rank\(s\) 1-2: /out: Read-only file system\)")


# ---- Two nodes ----


def _cannot_have_nodes() -> str | None:
    """What this machine lacks for two nodes of its own, or `None`."""
    if not sys.platform.startswith("linux"):
        return "namespaces are Linux's"
    for tool in ("ip", "unshare", "mount"):
        if shutil.which(tool) is None:
            return f"there is no `{tool}`"
    name = f"probe{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if done.returncode != 0:
        return f"no network namespace can be made: {done.stderr.strip()}"
    try:
        link = [
            "ip",
            "link",
            "add",
            f"{name[:12]}a",
            "netns",
            name,
            "type",
            "veth",
            "peer",
            "name",
            "b",
            "netns",
            name,
        ]
        done = subprocess.run(link, capture_output=True, text=True)
        if done.returncode != 0:
            return f"no pair of network devices can be made: {done.stderr.strip()}"
        done = subprocess.run(
            ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True
        )
        return f"nothing can be mounted in a namespace: {done.stderr.strip()}" if done.returncode != 0 else None
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


LACKING = _cannot_have_nodes() if hasattr(os, "geteuid") and os.geteuid() == 0 else "only root can make namespaces"


@pytest.mark.slow
@unittest.skipIf(LACKING is not None, f"two nodes need namespaces: {LACKING}")
class TwoNodesTest(TestCasePlus):
    """Each node is a network namespace with its end of a cable, and a mount namespace."""

    def setUp(self):
        super().setUp()
        self.out = self.get_auto_remove_tmp_dir()
        self.shared = self.get_auto_remove_tmp_dir()
        self.nodes = [f"ckpt{os.getpid()}{letter}" for letter in "ab"]
        for node in self.nodes:
            self.ip("netns", "add", node)
            self.addCleanup(subprocess.run, ["ip", "netns", "del", node], capture_output=True)
        self.ip(
            "link", "add", "up0", "netns", self.nodes[0], "type", "veth", "peer", "name", "up1", "netns", self.nodes[1]
        )
        for number, node in enumerate(self.nodes):
            self.ip("-n", node, "addr", "add", f"10.213.0.{number + 1}/24", "dev", f"up{number}")
            self.ip("-n", node, "link", "set", f"up{number}", "up")
            self.ip("-n", node, "link", "set", "lo", "up")

    def ip(self, *arguments: str):
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def torchrun(
        self, *arguments: str, own_disk_at: str | None = None, per_node: int = 2, orderly: bool = True
    ) -> list[str]:
        """Run the script of ranks on both nodes; what each node wrote to stderr."""
        script = str(SCRIPTS / "board_ranks.py")
        mount = f"mount -t tmpfs none {own_disk_at} && " if own_disk_at else ""
        started = []
        with contextlib.ExitStack() as stack:
            for number, node in enumerate(self.nodes):
                command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node_rank={number}"]
                command += [f"--nproc_per_node={per_node}", "--master_addr=10.213.0.1", "--master_port=29431"]
                process = subprocess.Popen(
                    ["ip", "netns", "exec", node, "unshare", "-m", "sh", "-c", f'{mount}exec "$@"', "sh"]
                    + [*command, script, *arguments],
                    env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": f"up{number}"},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                stack.callback(process.kill)
                started.append(process)
            # Not for torchrun itself: its two agents do not part well when the network between them is gone.
            paths = [Path(self.out, f"rank-{rank}.json") for rank in range(2 * per_node)]
            end = time.monotonic() + 300
            while not all(path.exists() for path in paths) and time.monotonic() < end:
                if orderly and all(process.poll() is not None for process in started):
                    break
                time.sleep(0.2)
            if orderly:
                return [process.communicate(timeout=60)[1] for process in started]
        return [process.communicate(timeout=60)[1] for process in started]

    def told(self, world_size: int, texts: list[str]) -> list:
        paths = [Path(self.out, f"rank-{rank}.json") for rank in range(world_size)]
        for path in paths:
            self.assertTrue(path.exists(), "\n".join(texts))
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

    @parameterized.expand([("one_disk", False, [[0, 1, 2, 3]]), ("one_disk_each", True, [[0, 1], [2, 3]])])
    def test_disks(self, _, own_disks, expected):
        run_dir = os.path.join(self.shared, "out")
        texts = self.torchrun("disks_of_nodes", self.out, run_dir, own_disk_at=self.shared if own_disks else None)
        for told in self.told(4, texts):
            self.assertEqual(told["groups"], expected)
            self.assertEqual(told["hosts"], [told["hosts"][0]] * 2 + [told["hosts"][2]] * 2)
            self.assertNotEqual(told["hosts"][0], told["hosts"][2])
            self.assertEqual(told["left"], [])
        self.assertEqual(os.listdir(self.shared), [] if own_disks else ["out"])

    def test_a_node_whose_network_vanishes(self):
        # No connection is closed: no packet ever says that the other node is gone.
        texts = self.torchrun("node_vanishes", self.out, "up1", per_node=1, orderly=False)
        told = self.told(2, texts)
        self.assertEqual([answer["raised"] for answer in told], ["RankLostError"] * 2)
        self.assertEqual([answer["ranks"] for answer in told], [[1], [0]])
        self.assertIn("no sign of life", told[0]["reason"])
        self.assertIn("has not answered for", told[1]["reason"])
