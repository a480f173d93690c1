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
"""Sized-down runs of the campaigns with several processes: ranks killed and failed, nodes cut off, the soak."""

import unittest

import pytest
from parameterized import parameterized

from .test_campaigns import CampaignTestCase


@pytest.mark.slow
class RankCampaignTest(CampaignTestCase):
    @parameterized.expand([(2, 14), (3, 30)])
    def test_kill_each_rank(self, ranks, stride):
        report = self.run_script("rank_campaign.py", "kill", "--ranks", str(ranks), "--stride", str(stride))
        self.assertEqual(report["violations"], [])
        self.assertGreater(sum(report["points"].values()), 10)

    def test_kill_the_last_rank_at_each_of_its_operations(self):
        report = self.run_script("rank_campaign.py", "kill", "--rank", "1", "--only", "older")
        self.assertEqual(report["violations"], [])
        self.assertGreater(sum(report["points"].values()), 1)

    def test_an_error_on_each_rank(self):
        report = self.run_script("rank_campaign.py", "error", "--errors", "ENOSPC", "EIO", "--stride", "12")
        self.assertEqual(report["violations"], [])
        self.assertGreater(sum(report["points"].values()), 50)

    def test_a_disk_that_fails_while_the_ranks_look_who_shares_it_fails_one_save_only(self):
        report = self.run_script("rank_campaign.py", "error", "--errors", "EIO", "--only", "first", "--at", "2")
        self.assertEqual(report["violations"], [])
        self.assertEqual(report["points"], {"first, rank 0": 1, "first, rank 1": 1})

    def test_a_training_is_killed_and_resumed_bit_for_bit(self):
        report = self.run_script("rank_campaign.py", "trainings", "--points", "1")
        self.assertEqual(report["violations"], [])


@pytest.mark.slow
class NodeCampaignTest(CampaignTestCase):
    def nodes(self, *arguments: str) -> None:
        report = self.run_script("node_campaign.py", *arguments)
        if "missing" in report:
            self.skipTest(f"two nodes on one machine need {report['missing']}, which is not here")
        self.assertEqual(report["violations"], [])
        self.assertEqual(sum(report["points"].values()), 1)

    @parameterized.expand([("one_disk", 1, 0, 20), ("a_disk_each", 2, 1, 5)])
    def test_the_link_is_cut_in_the_middle_of_a_save(self, _, disks, rank, at):
        self.nodes("--links", "cut", "--disks", str(disks), "--rank", str(rank), "--at", str(at))

    def test_the_link_comes_back_soon_enough(self):
        self.nodes("--links", "back", "--disks", "1", "--rank", "1", "--at", "2")

    def test_the_link_is_slow(self):
        self.nodes("--links", "slow", "--disks", "2")


@pytest.mark.slow
class SoakTest(CampaignTestCase):
    @parameterized.expand([(2, 4), (4, 2)])
    def test_trainings_are_killed_at_random_and_resumed(self, ranks, cycles):
        report = self.run_script("soak.py", "--ranks", str(ranks), "--cycles", str(cycles))
        self.assertEqual(report["violations"], [], f"again with --ranks {ranks} --seed {report['seed']}")
        self.assertEqual(sum(report["cycles"].values()), cycles)


if __name__ == "__main__":
    unittest.main()
