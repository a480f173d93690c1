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
"""Break the protocol on purpose, and see that a campaign notices.

    python mutants.py                      every mutant, and every campaign without one
    python mutants.py --only "delete in place"

A mutant is a change of a few lines of the library, made in a copy of it that only the campaign's processes import. A
mutant whose lines are not found exactly once is an error: the code has changed, and the mutant has to be looked at.
Each one names the cheapest campaign that notices. The same campaign must find nothing without it, or its finding says
nothing about the mutant.

Prints one JSON object. `caught` of a mutant holds what the campaign said first.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import trainer_checkpoint


SCRIPTS = Path(__file__).parent
PACKAGE = Path(trainer_checkpoint.__file__).parent
# Seconds for one campaign of a mutant. Some mutants make ranks wait as long as they may.
GIVE_UP = 900

# Imported by every interpreter at its start, where `PYTHONPATH` leads to it.
SITE_CUSTOMIZE = """
import importlib.util
import sys


class Mutated:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "transformers.trainer_checkpoint":
            return None
        return importlib.util.spec_from_file_location(
            name, {package!r} + "/__init__.py", submodule_search_locations=[{package!r}]
        )


sys.meta_path.insert(0, Mutated)
"""


@dataclass(frozen=True)
class Mutant:
    """One breakage.

    Args:
        name (`str`):
            What is broken.
        edits (`tuple[tuple[str, str, str], ...]`):
            Module, the lines as they are, and as they are to be.
        campaign (`tuple[str, ...]`):
            The script that notices, with its arguments.
    """

    name: str
    edits: tuple[tuple[str, str, str], ...]
    campaign: tuple[str, ...]


MUTANTS = (
    Mutant(
        "no barrier before publish",
        (
            (
                "transaction.py",
                'replies = self.ranks.exchange(f"save {topic}", payload, patience)',
                'replies = [payload] * self.ranks.world_size if topic in ("written", "flushed", "sealed") else '
                'self.ranks.exchange(f"save {topic}", payload, patience)',
            ),
            ("transaction.py", "            self.ranks.barrier()\n", "            pass\n"),
        ),
        ("rank_campaign.py", "kill", "--only", "older", "--rank", "1"),
    ),
    Mutant(
        "rename before manifest",
        (
            (
                "transaction.py",
                "        head = write_manifest(self.writing, head, entries, durable=self._durable)\n",
                "        publishing.publish(\n"
                "            self.run.path, self.writing, self._name, nonce=self._nonce, durable=self._durable\n"
                "        )\n"
                "        head = write_manifest(self.final, head, entries, durable=self._durable)\n",
            ),
            ("transaction.py", "                self._publish()\n", "                pass\n"),
        ),
        ("syscall_campaign.py", "kill", "--level", "python", "--only", "older"),
    ),
    Mutant(
        "no directory flush",
        (
            (
                "disk.py",
                'descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))',
                "return",
            ),
        ),
        ("power_cut.py", "--fs", "ext4", "--states", "60", "--seed", "1"),
    ),
    Mutant(
        "no file flush",
        (("digest.py", "for path in paths if sync]", "for path in paths if False]"),),
        ("power_cut.py", "--fs", "ext4", "--states", "60", "--seed", "1"),
    ),
    Mutant(
        "delete in place",
        (("disk.py", "        os.rename(path, target)\n", "        delete(path)\n"),),
        ("syscall_campaign.py", "kill", "--level", "python", "--only", "rotate"),
    ),
    Mutant(
        "rotation before publish",
        (
            (
                "transaction.py",
                "        self._leave_staging = True\n        try:\n",
                "        self._leave_staging = True\n"
                "        for name in os.listdir(self.run.path):\n"
                "            if step_of(name) is not None:\n"
                "                disk.retire(self.run.path, os.path.join(self.run.path, name), self._nonce, "
                "durable=True)\n"
                "        try:\n",
            ),
        ),
        ("syscall_campaign.py", "kill", "--level", "python", "--only", "older"),
    ),
    Mutant(
        "random staging name",
        (
            (
                "transaction.py",
                "return os.path.join(self.writing_run_dir, self._name)",
                'return os.path.join(self.writing_run_dir, f"{self._name}-{os.getpid()}")',
            ),
        ),
        ("rank_campaign.py", "kill", "--only", "older", "--rank", "1"),
    ),
    Mutant(
        "error swallowed on one rank",
        (
            (
                "transaction.py",
                '        text = self._final_paths(f"{what}: {describe(cause or error)}")\n',
                "        if self.ranks.rank:\n"
                "            return\n"
                '        text = self._final_paths(f"{what}: {describe(cause or error)}")\n',
            ),
        ),
        ("rank_campaign.py", "error", "--only", "older", "--rank", "1", "--errors", "EIO"),
    ),
    Mutant(
        "digest not checked",
        (("verification.py", "            elif outcome != entries[name].digest:\n", "            elif False:\n"),),
        ("syscall_campaign.py", "kill", "--level", "python", "--only", "roll_forward_of_damaged"),
    ),
    Mutant(
        "rolled forward without a look",
        (("publishing.py", 'problems = verify(staged, level="full").problems', "problems = ()"),),
        ("syscall_campaign.py", "kill", "--level", "python", "--only", "roll_forward_of_damaged"),
    ),
    Mutant(
        "older leftover put in a newer one's place",
        (("publishing.py", "None if head.sequence > there.sequence else", "None if True else"),),
        ("syscall_campaign.py", "kill", "--level", "python", "--only", "retire_after_swap"),
    ),
    Mutant(
        "delete then rename",
        (
            (
                "publishing.py",
                "        disk.swap(staged, target)\n        return staged\n",
                "        disk.delete(target)\n        os.rename(staged, target)\n        return None\n",
            ),
        ),
        ("syscall_campaign.py", "kill", "--level", "python", "--only", "same_step"),
    ),
    Mutant(
        "manifest written where it is read",
        (("disk.py", 'temporary = f"{os.fspath(path)}{TEMPORARY_SUFFIX}"', "temporary = os.fspath(path)"),),
        ("syscall_campaign.py", "kill", "--only", "seal_again", "--call", "write"),
    ),
    Mutant(
        "no sentinel in place",
        (
            (
                "transaction.py",
                "        problems = self._empty_final()\n",
                "        os.unlink(sentinel)\n        problems = self._empty_final()\n",
            ),
            ("transaction.py", "        os.unlink(os.path.join(self.final, SENTINEL_NAME))\n", ""),
        ),
        ("syscall_campaign.py", "kill", "--level", "python", "--only", "in_place"),
    ),
    Mutant(
        "leftovers not swept",
        (
            (
                "transaction.py",
                "        publishing.settle(self.path, nonce=nonce, durable=self.durable, expect=self._ask_for_time)\n",
                "",
            ),
        ),
        ("syscall_campaign.py", "kill", "--level", "python", "--only", "unsealed_leftover"),
    ),
    Mutant(
        "unknown outcome called a failure",
        (("transaction.py", 'outcome_unknown=topic == "published"', "outcome_unknown=False"),),
        ("rank_campaign.py", "kill", "--only", "first", "--rank", "0"),
    ),
)


class Accident(Exception):
    """A campaign did not come to its end, and not because a save did not."""


def mutate(mutant: Mutant, directory: str) -> None:
    """Put a changed copy of the library, and what makes it be imported, into `directory`."""
    package = os.path.join(directory, "mutated")
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for module, old, new in mutant.edits:
        path = os.path.join(package, module)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if text.count(old) != 1:
            raise Accident(f"{mutant.name}: {old!r} is {text.count(old)} times in {module}, and has to be there once")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(old, new))
    with open(os.path.join(directory, "sitecustomize.py"), "w", encoding="utf-8") as file:
        file.write(SITE_CUSTOMIZE.format(package=package))


def run(campaign: tuple[str, ...], directory: str | None) -> tuple[str | None, str | None]:
    """What the campaign found first, and what it lacks on this machine, with the library that is in `directory`."""
    environment = dict(os.environ)
    if directory is not None:
        paths = [directory, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, str(SCRIPTS / campaign[0]), *campaign[1:]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=GIVE_UP)
    if done.returncode != 0:
        # A mutant that no save survives is told by the first, undisturbed one. Anything else is an accident.
        last = done.stderr.strip().splitlines()[-1:] or [""]
        if "undisturbed" not in last[0]:
            raise Accident(f"{' '.join(campaign)} ends with {done.returncode}: {done.stderr[-3000:]}")
        return last[0][:400], None
    report = json.loads(done.stdout)
    return (report["violations"] or [None])[0] if "missing" not in report else None, report.get("missing")


def judge(mutant: Mutant) -> dict[str, Any]:
    """Run the campaign of `mutant` with it."""
    with tempfile.TemporaryDirectory() as directory:
        mutate(mutant, directory)
        found, missing = run(mutant.campaign, directory)
    return {"mutant": mutant.name, "campaign": " ".join(mutant.campaign), "caught": found, "missing": missing}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [mutant.name for mutant in MUTANTS]
    parser.add_argument("--only", nargs="*", choices=names, default=names, metavar="NAME", help="these mutants")
    parser.add_argument("--list", action="store_true", help="print the names and apply each once; run nothing")
    parser.add_argument("--no-control", action="store_true", help="leave out the campaigns without a mutant")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if mutant.name in options.only]
    if options.list:
        for mutant in chosen:
            with tempfile.TemporaryDirectory() as directory:
                mutate(mutant, directory)
        print(json.dumps([mutant.name for mutant in chosen], indent=1))
        return
    results, violations = [], []
    for mutant in chosen:
        try:
            results.append(judge(mutant))
        except Accident as accident:
            violations.append(str(accident))
            continue
        if results[-1]["caught"] is None and results[-1]["missing"] is None:
            violations.append(f"no campaign notices: {mutant.name} ({' '.join(mutant.campaign)})")
    controls = [] if options.no_control else sorted({mutant.campaign for mutant in chosen})
    for campaign in controls:
        try:
            found, _ = run(campaign, None)
        except Accident as accident:
            found = str(accident)
        if found is not None:
            violations.append(f"found without a mutant: {' '.join(campaign)}: {found}")
    print(json.dumps({"mutants": results, "controls": len(controls), "violations": violations}, indent=1))


if __name__ == "__main__":
    main()
