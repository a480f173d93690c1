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
"""All campaigns, with progress, a table at the end, and a JSON file with everything.

    python prove.py                      an hour on two idle cores
    python prove.py --quick              the same in some minutes, with a fraction of the points
    python prove.py --only nodes soak    some of it

Ends with status 1 if a rule was broken, if a campaign that has to find something found nothing, or if one did not run
to its end. A campaign that the machine lacks something for is named as missing.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from syscall_campaign import CASES, SCENARIOS
from tqdm import tqdm

import transformers


SCRIPTS = Path(__file__).parent
FILE_SYSTEMS = ("ext4", "xfs", "btrfs")
TIDYING = [name for name in CASES if name not in SCENARIOS]
# Seconds for one job.
GIVE_UP = 2 * 3600
QUICK = 0.04


@dataclass(frozen=True)
class Job:
    """One run of one script.

    Args:
        group (`str`):
            For `--only`.
        row (`str`):
            The row of the table it counts for.
        command (`tuple[str, ...]`):
            The script, with its arguments.
        finds (`bool`, *optional*, defaults to `False`):
            It has to find something: it shows that the campaign can.
    """

    group: str
    row: str
    command: tuple[str, ...]
    finds: bool = False


def jobs(scale: float) -> list[Job]:
    """The longest first, so that two workers end at about the same time."""

    def stride(most: float) -> str:
        """Every n-th point, where `most` is the part of all that the full run takes."""
        return str(max(1, round(1 / (most * scale))))

    minutes = str(round(max(0.5, 10 * scale), 1))
    found = [
        Job("soak", "soak, 4 processes", ("soak.py", "--ranks", "4", "--minutes", minutes)),
        Job("soak", "soak, 2 processes", ("soak.py", "--ranks", "2", "--minutes", minutes)),
    ]
    for fs in FILE_SYSTEMS:
        # Each part records a run of the workload of its own, and has room for all its flushes and announcements twice.
        for part in range(4 if scale >= 0.5 else 1):
            states = str(700 if scale >= 0.5 else max(30, round(1000 * scale)))
            found.append(
                Job("power", f"power cut, {fs}", ("power_cut.py", "--fs", fs, "--states", states, "--seed", str(part)))
            )
    found += [
        Job("mutants", "mutants", ("mutants.py", *(["--no-control"] if scale < 0.5 else []))),
        Job("ranks", "error, ranks", ("rank_campaign.py", "error", "--stride", stride(0.25))),
        Job("ranks", "kill, ranks", ("rank_campaign.py", "kill", "--stride", stride(1))),
        Job("ranks", "kill, ranks", ("rank_campaign.py", "kill", "--ranks", "3", "--stride", stride(0.25))),
        Job("nodes", "nodes", ("node_campaign.py", "--stride", stride(0.25))),
        Job("calls", "kill, system calls", ("syscall_campaign.py", "kill", "--stride", stride(1))),
        Job("calls", "error, system calls", ("syscall_campaign.py", "error", "--stride", stride(0.15))),
    ]
    for name in ("ENOSPC", "EIO", "EACCES", "EROFS"):
        row = "error, file operations"
        found.append(Job("operations", row, ("save_campaign.py", "error", "--errors", name, "--stride", stride(1))))
        tidy = ("syscall_campaign.py", "error", "--level", "python", "--errors", name, "--stride", stride(1))
        found.append(Job("operations", row, (*tidy, "--only", *TIDYING)))
    found += [
        Job("operations", "kill, file operations", ("save_campaign.py", "kill", "--stride", stride(1))),
        Job(
            "operations",
            "kill, file operations",
            ("syscall_campaign.py", "kill", "--level", "python", "--stride", stride(1), "--only", *TIDYING),
        ),
        Job("trainings", "kill, trainings", ("rank_campaign.py", "trainings", "--points", str(round(2 + 10 * scale)))),
    ]
    for fs in FILE_SYSTEMS:
        command = ("power_cut.py", "--fs", fs, "--states", "30", "--seed", "0", "--durability", "process")
        found.append(Job("power", f"power cut without flushes, {fs}", command, finds=True))
    found.append(Job("full", "disk full", ("../test_disk_full.py", "-v")))
    return found


def points_of(report: dict[str, Any]) -> int:
    """How many points, states, cycles or mutants a report is about."""
    for name in ("points", "cycles"):
        if name in report:
            return sum(report[name].values())
    return report["states"] if "states" in report else len(report["mutants"])


def run(job: Job) -> dict[str, Any]:
    """The job's report with its running time; `error` if it did not come to its end."""
    started = time.monotonic()
    command = [sys.executable, str(SCRIPTS / job.command[0]), *job.command[1:]]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
    result: dict[str, Any] = {"group": job.group, "row": job.row, "command": list(job.command), "finds": job.finds}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=GIVE_UP)
    except subprocess.TimeoutExpired:
        return result | {"seconds": GIVE_UP, "error": f"not done after {GIVE_UP} s"}
    result["seconds"] = round(time.monotonic() - started, 1)
    if job.group == "full":
        return result | of_unittest(done)
    if done.returncode != 0:
        return result | {"error": done.stderr[-3000:] or f"status {done.returncode}"}
    report = json.loads(done.stdout)
    if "missing" in report:
        return result | {"missing": report["missing"]}
    return result | {"points": points_of(report), "violations": report["violations"], "report": report}


def of_unittest(done: subprocess.CompletedProcess) -> dict[str, Any]:
    """The same of a file of tests, each of which counts as a point."""
    ran = re.search(r"^Ran (\d+) tests? in", done.stderr, re.MULTILINE)
    skipped = re.search(r"^OK \(skipped=\d+\)$|\.\.\. skipped (.+)$", done.stderr, re.MULTILINE)
    if ran is None:
        return {"error": done.stderr[-3000:]}
    if skipped is not None:
        return {"missing": skipped[1] or "what it needs"}
    return {"points": int(ran[1]), "violations": [] if done.returncode == 0 else [done.stderr[-3000:]]}


def verdict(result: dict[str, Any]) -> str | None:
    """What is wrong with a result, or `None`."""
    if "error" in result:
        return f"did not come to its end: {result['error']}"
    if "missing" in result:
        return None
    if result["points"] == 0:
        return "looked at nothing"
    if result["finds"]:
        return None if result["violations"] else "found nothing, where there is something to find"
    return (
        f"{len(result['violations'])} rule(s) broken, first: {result['violations'][0]}"
        if result["violations"]
        else None
    )


def rows(results: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Row, points, what was found, and minutes: one per row of the table."""
    table = []
    for row in dict.fromkeys(result["row"] for result in results):
        mine = [result for result in results if result["row"] == row]
        ran = [result for result in mine if "points" in result]
        missing = {result["missing"] for result in mine if "missing" in result}
        broken = sum(len(result["violations"]) for result in ran)
        text = f"{broken} losses, as it must" if mine[0]["finds"] else f"{broken} broken"
        if any("error" in result for result in mine):
            text = "did not come to its end"
        elif not ran:
            text = f"not run: {', '.join(sorted(missing))} is missing"
        minutes = sum(result["seconds"] for result in mine) / 60
        table.append((row, f"{sum(result['points'] for result in ran):,}", text, f"{minutes:.1f}"))
    return table


def print_table(table: list[tuple[str, str, str, str]]) -> None:
    header = ("campaign", "points", "result", "minutes")
    widths = [max(len(line[column]) for line in [header, *table]) for column in range(4)]
    for line in [header, tuple("-" * width for width in widths), *table]:
        cells = [
            line[0].ljust(widths[0]),
            line[1].rjust(widths[1]),
            line[2].ljust(widths[2]),
            line[3].rjust(widths[3]),
        ]
        print("  ".join(cells))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    groups = list(dict.fromkeys(job.group for job in jobs(1.0)))
    parser.add_argument("--quick", action="store_true", help=f"the same as --scale {QUICK}")
    parser.add_argument("--scale", type=float, help="part of the full run's points, 1 for all")
    parser.add_argument("--only", nargs="*", choices=groups, default=groups, help="these parts")
    parser.add_argument("--workers", type=int, default=2, help="how many campaigns at a time")
    parser.add_argument("--json", default="build/proof.json", help="where the results go")
    options = parser.parse_args()
    scale = options.scale or (QUICK if options.quick else 1.0)
    chosen = [job for job in jobs(scale) if job.group in options.only]
    started = time.monotonic()
    proof: dict[str, Any] = {
        "scale": scale,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "minutes": 0.0,
        "results": [],
    }
    os.makedirs(os.path.dirname(os.path.abspath(options.json)), exist_ok=True)
    lock = threading.Lock()
    with tqdm(total=len(chosen), unit="job") as bar, ThreadPoolExecutor(options.workers) as pool:

        def work(job: Job) -> None:
            result = run(job)
            with lock:
                result["scale"] = scale
                problem = verdict(result)
                if problem is not None:
                    bar.write(f"{' '.join(job.command)}: {problem}", file=sys.stderr)
                bar.set_postfix_str(job.row)
                bar.update()
                proof["results"].append(result)
                proof["minutes"] = round((time.monotonic() - started) / 60, 1)
                # After each one, so that a run that is cut short has told what it knows.
                with open(options.json, "w", encoding="utf-8") as file:
                    json.dump(proof, file, indent=1)
                    file.write("\n")

        list(pool.map(work, chosen))
    order = [job.row for job in chosen]
    proof["results"].sort(key=lambda result: order.index(result["row"]))
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump(proof, file, indent=1)
        file.write("\n")
    print_table(rows(proof["results"]))
    print(f"{proof['minutes']} minutes in all, on {proof['machine']}. {options.json} has everything.")
    return 1 if any(verdict(result) is not None for result in proof["results"]) else 0


if __name__ == "__main__":
    sys.exit(main())
