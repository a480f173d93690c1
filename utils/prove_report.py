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
"""
The page on the proof, out of the JSON of one run of `make prove`: every number on it comes from there.

    python utils/prove_report.py                            docs/proof.json to docs/source/en/trainer_checkpoint_proof.md
    python utils/prove_report.py --json build/proof.json    keep the results of a new run, and make the page
    python utils/prove_report.py --json a.json b.json       the same of several runs: a row is that of the last one
    python utils/prove_report.py --check                    status 1 if the page is not what the results make it
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from edit_file import ROOT


RESULTS = ROOT / "docs" / "proof.json"
PAGE = ROOT / "docs" / "source" / "en" / "trainer_checkpoint_proof.md"
SCRIPTS = "tests/trainer/scripts"

LICENCE = """<!--Copyright 2026 The HuggingFace Team. All rights reserved.

Licensed under the Apache License, Version 2.0 (the "License"); you may not use this file except in compliance with
the License. You may obtain a copy of the License at

http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software distributed under the License is distributed on
an "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the License for the
specific language governing permissions and limitations under the License.
-->
"""

# Row of the table: what is done at a point, and what must hold after it besides the rules of all campaigns.
ROWS = {
    "kill, file operations": ("SIGKILL before each file operation of a save and of what tidies up", "the next run"),
    "kill, system calls": ("SIGKILL on entering each system call of them, native code's too", "the next run"),
    "error, file operations": ("ENOSPC, EIO, EACCES and EROFS in place of each file operation", "the next save"),
    "error, system calls": ("the same in place of system calls", "the next save"),
    "kill, ranks": ("SIGKILL of each of several processes", "the others raise one error that names it"),
    "error, ranks": ("an error on each of two processes", "both raise the same error; they save again"),
    "kill, trainings": ("whole trainings under torchrun, killed and resumed", "losses bit for bit"),
    "disk full": ("a small tmpfs and ext4, from nothing free to enough", "the cause is named"),
    "nodes": ("a link cut, interrupted or slow; one disk and one each", "nobody hangs, nobody denies"),
    "soak, 2 processes": ("trainings killed at random and resumed", "rotation's count, losses bit for bit"),
    "soak, 4 processes": ("the same", "the same"),
    "mutants": ("a guard taken out of the code", "a campaign notices"),
}

# What the campaigns found while they were written, and what became of it.
FOUND = (
    "The files by which processes find out who shares a disk stayed for good after a kill at the wrong moment. The next "
    "training now removes them.",
    "When a read of the newer checkpoint failed once, at the start after a kill between two renames, the older one of "
    "the same step was put in its place. What cannot be looked at is now taken for newer.",
    "One write that failed while the processes looked who shares a disk made every later save of that training fail. "
    "They now look again at the next save.",
    "When the record of who saves in a run directory could not be read just before the publish, the error said that "
    "another training was using it. It now says what could not be read.",
    "Where several hosts share a disk, each finds out the usual mode of a file by making one, in the directory that the "
    "others were walking. Now and then one of them met it just before it was gone, and the save failed. Walking passes "
    "over such files.",
    "A process that had written all it had to looked at what was there while another one was writing yet, and met a file "
    "that was just being renamed into place: the save failed, now and then. Until all have said that they are done, what "
    "comes and goes is passed over.",
    "Two processes that had told each other of an error forgot it later at the same time. One asked for what the other had "
    "deleted a moment before, which blocks for minutes, and was taken for lost. Nothing is read any more to delete it.",
    "An `on_save` callback of another process was in the middle of a file, or had changed one before the publishing process "
    "first looked, and the checkpoint was reported as damaged for good. It is now sealed again when "
    "all have returned, and what is compared is what was sealed.",
    "The record of a dead owner that could not be removed when its run directory was taken over stayed when the next owner "
    "left, and kept the staging directory there for good.",
    "Resuming from a disk that nothing can be written to ended with an internal error when there were several processes.",
    "Rotation kept a checkpoint whose manifest a disk had refused for a moment in place of the newest one: it was looked at "
    "a second time, and counted as good in the place that it had been given without its manifest.",
    "A training that got its arguments from a command line refused to start, because `jit_checkpoint_signals` had lost "
    "its default there.",
)


def merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One run out of several: each row of the table as the last run that has it made it, and what they took in all."""
    rows: dict[str, list[dict[str, Any]]] = {}
    again: list[str] = [row for run in runs for row in run.get("again", [])]
    for run in runs:
        mine: dict[str, list[dict[str, Any]]] = {}
        for result in run["results"]:
            mine.setdefault(result["row"], []).append({"scale": run["scale"], **result})
        again += [row for row in mine if row in rows and row not in again]
        rows |= mine
    results = [result for row in sorted(rows, key=place) for result in rows[row]]
    minutes = round(sum(run["minutes"] for run in runs), 1)
    return {**runs[-1], "minutes": minutes, "again": sorted(again, key=place), "results": results}


def place(row: str) -> tuple[int, str]:
    """Where a row stands in the table."""
    names = list(ROWS)
    return (names.index(row) if row in names else len(names), row)


def total(results: list[dict[str, Any]], *starts: str) -> int:
    return sum(
        result.get("points", 0) for result in results if result["row"].startswith(starts) and not result["finds"]
    )


def outcome(results: list[dict[str, Any]]) -> str:
    """The cell that says how the runs of one row went."""
    if any("error" in result for result in results):
        return "did not come to its end"
    ran = [result for result in results if "points" in result]
    if not ran:
        return f"not run: {results[0]['missing']} is missing"
    count = sum(len(result["violations"]) for result in ran)
    if results[0]["finds"]:
        return f"{count} losses found, as it must"
    return "none" if count == 0 else f"**{count}**"


def table(results: list[dict[str, Any]]) -> list[str]:
    header = "| campaign | at each point | must hold, too | part of the full run | points | rules broken |"
    lines = [header, "|---|---|---|---|---|---|"]
    for row in dict.fromkeys(result["row"] for result in results):
        mine = [result for result in results if result["row"] == row]
        what, rule = ROWS.get(row, ("", ""))
        if row.startswith("power cut without"):
            what, rule = 'the same with `save_durability="process"`', "shows that the campaign can fail"
        elif row.startswith("power cut"):
            what, rule = "the disk as a power cut leaves it, unflushed writes dropped", "what was announced is there"
        points = sum(result.get("points", 0) for result in mine)
        part = f"{min(result['scale'] for result in mine):.0%}"
        lines.append(f"| {row} | {what} | {rule} | {part} | {points:,} | {outcome(mine)} |")
    return lines


def power_cuts(results: list[dict[str, Any]]) -> list[str]:
    lines = ["| file system | durability | writes and flushes recorded | flushes | states |", "|---|---|---|---|---|"]
    per_kind: dict[tuple[str, str], Counter[str]] = {}
    for result in results:
        report = result.get("report", {})
        if "fs" in report:
            counts = per_kind.setdefault((report["fs"], report["durability"]), Counter())
            counts.update({name: report[name] for name in ("records", "flushes", "states")})
    for (fs, durability), counts in per_kind.items():
        cells = f"{counts['records']:,} | {counts['flushes']:,} | {counts['states']:,}"
        lines.append(f"| {fs} | `{durability}` | {cells} |")
    return lines if per_kind else ["Not run."]


def mutants(results: list[dict[str, Any]]) -> list[str]:
    found = [mutant for result in results for mutant in result.get("report", {}).get("mutants", [])]
    if not found:
        return ["Not run."]
    lines = ["| what was broken | noticed by |", "|---|---|"]
    for mutant in found:
        noticed = f"`{mutant['campaign']}`" if mutant["caught"] else f"not run: {mutant['missing']} is missing"
        lines.append(f"| {mutant['mutant']} | {noticed} |")
    return lines


def repeated(proof: dict[str, Any]) -> str:
    """A sentence about rows that are of a later run than the others."""
    again = proof.get("again", [])
    if not again:
        return ""
    return (
        f" Of these campaigns the table has a second run, made after what the first one had found was fixed or changed: "
        f"{'; '.join(again)}."
    )


def page(proof: dict[str, Any]) -> str:
    """The text of the page."""
    results = proof["results"]
    kills, errors = total(results, "kill"), total(results, "error")
    broken = sum(len(result.get("violations", [])) for result in results if not result["finds"])
    versions = ", ".join(f"{name} {version}" for name, version in proof["versions"].items())
    scales = sorted({result["scale"] for result in results})
    share = "the full run" if scales == [1] else f"a run with {scales[0]:.0%} of the full one's points"
    if len(scales) > 1:
        share = f"a run with {scales[0]:.0%} to {scales[-1]:.0%} of the full one's points"
    lines = [
        LICENCE,
        "<!-- Made by utils/prove_report.py. Change that, or run `make prove`, and not this page. -->",
        "",
        "# The proof",
        "",
        "This page reports one run of the campaigns that [crash-safe checkpoints](./trainer_checkpoints) are tested "
        "with: what was done to a save, how often, and what was left. Anyone can run them. What must hold is "
        "explained in [the checkpoint protocol](./trainer_checkpoint_protocol).",
        "",
        f"{kills:,} kills and {errors:,} errors at single operations, and {total(results, 'power cut'):,} power cuts, "
        f"broke {broken or 'no'} rule{'' if broken == 1 else 's'}.",
        "",
        f"It was {share}, on {proof['date']}, on {proof['machine']}, with {versions}. It took "
        f"{proof['minutes']} minutes.{repeated(proof)}",
        "",
        "## Campaigns",
        "",
        "After every point of every campaign: the checkpoint that is picked is complete, its digests are right, it is "
        "not older than the last one that was announced, its files are those of one save, and the next save works and "
        "leaves nothing of the dead one behind.",
        "",
        *table(results),
        "",
        "## Power cuts",
        "",
        "A file in a file system of our own is the disk of a loop device, and keeps every write and every flush in "
        "order. A state is what a cut after some of them could have left: everything written, only what was flushed, or "
        "a random part of the rest. It is mounted, and looked at.",
        "",
        *power_cuts(results),
        "",
        "## Mutants",
        "",
        "Each guard was taken out of a copy of the code, and a campaign had to notice.",
        "",
        *mutants(results),
        "",
        "## What was found on the way",
        "",
        *(f"- {text}" for text in FOUND),
        "",
        "## Run it",
        "",
        "```bash",
        "make prove",
        "```",
        "",
        f"It needs root, strace, FUSE, loop devices and namespaces, and says which campaign it left out where one is "
        f"missing. The campaigns are in `{SCRIPTS}`, each with `--help`. What a campaign finds, it prints with the "
        "arguments that make it happen again.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, nargs="+", default=[RESULTS], help="results of `make prove`")
    parser.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args()
    gone = [path for path in options.json if not path.exists()]
    if gone:
        print(f"{gone[0]} is not there. Run `make prove` first, or give --json its results.", file=sys.stderr)
        return 1
    proof = merged([json.loads(path.read_text(encoding="utf-8")) for path in options.json])
    text = page(proof)
    if options.check:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            print(f"{PAGE} is not what {options.json[0]} makes it: run utils/prove_report.py", file=sys.stderr)
            return 1
        return 0
    if options.json != [RESULTS]:
        RESULTS.write_text(json.dumps(proof, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
