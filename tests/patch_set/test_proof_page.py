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
"""The page on the proof is what the results in the repository make it, and says what they say."""

import json
import unittest

from prove_report import PAGE, RESULTS, merged, page


def result(row: str, **more) -> dict:
    return {"row": row, "finds": False, "points": 3, "violations": [], "seconds": 1.0} | more


def run(scale: float, *results: dict) -> dict:
    about = {"date": "2026-01-02", "machine": "8 cores", "versions": {"torch": "2"}, "minutes": 1.5}
    return {"scale": scale, "results": list(results)} | about


class ProofPageTest(unittest.TestCase):
    def test_the_page_is_made_from_the_results(self):
        proof = merged([json.loads(RESULTS.read_text(encoding="utf-8"))])
        self.assertEqual(PAGE.read_text(encoding="utf-8"), page(proof), "run utils/prove_report.py")

    def test_the_rows_of_a_later_run_replace_those_of_an_earlier_one(self):
        first = run(1.0, result("kill, ranks", points=5), result("kill, ranks", points=6), result("nodes"))
        proof = merged([first, run(0.5, result("kill, ranks", points=7))])
        self.assertEqual(
            [(entry["row"], entry["points"], entry["scale"]) for entry in proof["results"]],
            [("kill, ranks", 7, 0.5), ("nodes", 3, 1.0)],
        )
        self.assertEqual(proof["minutes"], 3.0)
        text = page(proof)
        self.assertIn("a run with 50% to 100% of the full one's points", text)
        self.assertIn("after what the first one had found was fixed or changed: kill, ranks.", text)
        self.assertEqual(text, page(merged([proof])), "kept, it says the same")
        self.assertIn("7 kills and 0 errors at single operations, and 0 power cuts, broke no rules.", text)

    def test_what_went_wrong_is_on_the_page(self):
        text = page(
            merged(
                [
                    run(
                        1.0,
                        result("kill, ranks", violations=["lost"]),
                        result("disk full", error="torn", points=0),
                        {"row": "nodes", "finds": False, "missing": "root", "seconds": 1.0},
                        result("power cut without flushes, xfs", finds=True, violations=["lost", "lost"]),
                    )
                ]
            )
        )
        self.assertIn("broke 1 rule.", text)
        self.assertIn("It was the full run", text)
        for row, end in (
            ("kill, ranks", "| 100% | 3 | **1** |"),
            ("disk full", "did not come to its end |"),
            ("nodes", "not run: root is missing |"),
            ("power cut without flushes, xfs", "| 3 | 2 losses found, as it must |"),
        ):
            line = next(line for line in text.splitlines() if line.startswith(f"| {row} |"))
            self.assertTrue(line.endswith(end), line)


if __name__ == "__main__":
    unittest.main()
