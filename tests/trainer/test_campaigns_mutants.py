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
"""The campaigns notice what they are there for, and a run of all of them says what it found.

`make prove` runs every mutant. Here it is the quick ones, and that each mutant still fits the code.
"""

import sys
import unittest

import pytest
from parameterized import parameterized

from .test_campaigns import SCRIPTS, CampaignTestCase


sys.path.insert(0, str(SCRIPTS))

from mutants import MUTANTS  # noqa: E402
from prove import Job, jobs, rows, verdict  # noqa: E402


# What the suite must notice, whatever else it notices.
REQUIRED = (
    "no barrier before publish",
    "rename before manifest",
    "no directory flush",
    "delete in place",
    "rotation before publish",
    "random staging name",
    "error swallowed on one rank",
    "digest not checked",
)


class MutantListTest(CampaignTestCase):
    def test_each_mutant_fits_the_code(self):
        names = self.run_script("mutants.py", "--list")
        self.assertEqual(names, [mutant.name for mutant in MUTANTS])
        self.assertEqual(sorted(set(REQUIRED) - set(names)), [])


@pytest.mark.slow
class MutantTest(CampaignTestCase):
    @parameterized.expand(
        [
            ("delete in place",),
            ("digest not checked",),
            ("rename before manifest",),
            ("random staging name",),
        ]
    )
    def test_a_campaign_notices(self, name):
        report = self.run_script("mutants.py", "--only", name)
        self.assertEqual(report["violations"], [])
        self.assertEqual([result["mutant"] for result in report["mutants"] if result["caught"]], [name])
        self.assertEqual(report["controls"], 1)


class ProofTest(unittest.TestCase):
    def result(self, **more):
        return {"row": "kill", "command": ["a.py"], "finds": False, "seconds": 60.0, "points": 3} | more

    def test_every_campaign_is_part_of_the_proof(self):
        scripts = {job.command[0] for job in jobs(1.0)}
        campaigns = {"save", "syscall", "rank", "node"}
        self.assertLessEqual({f"{name}_campaign.py" for name in campaigns} | {"power_cut.py", "soak.py"}, scripts)
        self.assertEqual([job.command[0] for job in jobs(1.0) if job.finds], ["power_cut.py"] * 3)
        self.assertEqual({job.row for job in jobs(0.04)}, {job.row for job in jobs(1.0)})
        self.assertIsInstance(jobs(1.0)[0], Job)

    def test_what_counts_as_a_failure(self):
        self.assertIsNone(verdict(self.result(violations=[])))
        self.assertIn("1 rule(s) broken, first: lost", verdict(self.result(violations=["lost"])))
        self.assertIsNone(verdict(self.result(violations=["lost"], finds=True)))
        self.assertEqual(verdict(self.result(violations=[], points=0)), "looked at nothing")
        self.assertIn("found nothing", verdict(self.result(violations=[], finds=True)))
        self.assertIn("did not come to its end: torn", verdict(self.result(error="torn")))

    def test_the_table(self):
        results = [
            self.result(violations=[]),
            self.result(violations=["lost"], points=1000),
            self.result(row="cut", violations=["lost"], finds=True),
            {"row": "nodes", "missing": "root", "finds": False, "seconds": 1.0},
            {"row": "soak", "error": "torn", "finds": False, "seconds": 30.0},
        ]
        self.assertEqual(
            rows(results),
            [
                ("kill", "1,003", "1 broken", "2.0"),
                ("cut", "3", "1 losses, as it must", "1.0"),
                ("nodes", "0", "not run: root is missing", "0.0"),
                ("soak", "0", "did not come to its end", "0.5"),
            ],
        )


if __name__ == "__main__":
    unittest.main()
