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
"""Sized-down runs of the campaigns in `scripts/`: every file operation of a save killed or failed, power cuts.

`make prove` runs them in full. Each campaign also has a test here that shows it finds something where there is
something to find.
"""

import json
import subprocess
import sys
import unittest
from pathlib import Path

import pytest
from parameterized import parameterized

from transformers.testing_utils import TestCasePlus


SCRIPTS = Path(__file__).parent / "scripts"


class CampaignTestCase(TestCasePlus):
    def run_script(self, name: str, *arguments: str) -> dict:
        done = subprocess.run(
            [sys.executable, str(SCRIPTS / name), *arguments], capture_output=True, text=True, timeout=900
        )
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        return json.loads(done.stdout)


@pytest.mark.slow
class SaveCampaignTest(CampaignTestCase):
    def test_kill_at_every_file_operation(self):
        report = self.run_script("save_campaign.py", "kill")
        self.assertEqual(report["violations"], [])
        self.assertGreater(sum(report["points"].values()), 400)

    @parameterized.expand(["ENOSPC", "EIO", "EACCES"])
    def test_an_error_at_every_third_file_operation(self, error):
        report = self.run_script("save_campaign.py", "error", "--errors", error, "--stride", "3")
        self.assertEqual(report["violations"], [])
        self.assertGreater(sum(report["points"].values()), 200)


@pytest.mark.slow
class PowerCutTest(CampaignTestCase):
    def power_cut(self, fs: str, *arguments: str) -> dict:
        report = self.run_script("power_cut.py", "--fs", fs, *arguments)
        if "missing" in report:
            self.skipTest(f"cutting the power of a {fs} needs {report['missing']}, which is not here")
        return report

    @parameterized.expand(["ext4", "xfs", "btrfs"])
    def test_what_was_announced_survives(self, fs):
        report = self.power_cut(fs, "--states", "60")
        self.assertEqual(report["violations"], [])
        self.assertGreater(report["flushes"], 20)
        self.assertEqual([step for _, step in report["announced"]], [10, 20, 30, 40, 50, 60])

    @parameterized.expand(["ext4", "xfs", "btrfs"])
    def test_without_flushes_the_campaign_finds_losses(self, fs):
        report = self.power_cut(fs, "--states", "20", "--durability", "process")
        self.assertRegex(" ".join(report["violations"]), "was announced and is (gone|damaged)")


if __name__ == "__main__":
    unittest.main()
