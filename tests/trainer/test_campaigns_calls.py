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
"""Sized-down runs of `scripts/syscall_campaign.py`: system calls of a save met by strace, and all that tidies up."""

import sys
import unittest

import pytest
from parameterized import parameterized

from .test_campaigns import SCRIPTS, CampaignTestCase


sys.path.insert(0, str(SCRIPTS))

from syscall_campaign import CASES, SCENARIOS  # noqa: E402


TIDYING = [name for name in CASES if name not in SCENARIOS]


@pytest.mark.slow
class CallCampaignTest(CampaignTestCase):
    def calls(self, *arguments: str) -> dict:
        report = self.run_script("syscall_campaign.py", *arguments)
        if "missing" in report:
            self.skipTest(f"meeting system calls needs {report['missing']}, which is not here")
        return report

    def test_kill_at_every_40th_system_call(self):
        report = self.calls("kill", "--stride", "40")
        self.assertEqual(report["violations"], [])
        self.assertGreater(sum(report["points"].values()), 30)
        # `fsync` is called by the threads that digest, too.
        self.assertLessEqual({"fsync", "openat", "mkdir"}, set(report["calls"]))

    @parameterized.expand(["ENOSPC", "EIO"])
    def test_an_error_at_every_60th_system_call(self, error):
        report = self.calls("error", "--errors", error, "--stride", "60")
        self.assertEqual(report["violations"], [])
        self.assertGreater(sum(report["points"].values()), 20)

    def test_kill_while_tidying_up(self):
        report = self.calls("kill", "--level", "python", "--only", *TIDYING)
        self.assertEqual(report["violations"], [])
        for name in TIDYING:
            self.assertGreater(report["points"][name], 3, name)

    def test_an_error_while_tidying_up(self):
        report = self.calls("error", "--level", "python", "--errors", "EIO", "--stride", "3", "--only", *TIDYING)
        self.assertEqual(report["violations"], [])
        self.assertGreater(sum(report["points"].values()), 30)

    def test_a_disk_that_fails_for_a_moment_does_not_bring_an_older_checkpoint_back(self):
        report = self.calls("error", "--level", "python", "--errors", "EIO", "--only", "retire_after_swap")
        self.assertEqual(report["violations"], [])
        self.assertGreater(report["points"]["retire_after_swap"], 20)


if __name__ == "__main__":
    unittest.main()
