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
"""Stop, or disturb, a save at every one of its file operations, and look at what is left each time.

    python save_campaign.py kill             SIGKILL at each operation of each scenario
    python save_campaign.py error            ENOSPC, EIO, EACCES and EROFS in place of each operation
    python save_campaign.py kill --only same_step --at 17     one point again, with what was done before it

Prints one JSON object with the number of points per scenario and every violation found. What must hold after a kill:

1. what `get_last_checkpoint` answers is complete and verifies with digests;
2. it is not older than the last checkpoint that was announced;
3. its files are exactly those of one save, never a mix, and the older of two is not back once the newer was there;
4. the next run saves, and leaves nothing of the dead one in staging.

After an error the save has either raised and the older checkpoints stand as they were, or it has succeeded; and the
next save of the same process works.
"""

import argparse
import errno
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

from file_operations import FileOperations
from save_driver import content, read_files, save, write_files

from transformers.trainer_checkpoint import disk
from transformers.trainer_checkpoint.discovery import find_checkpoints, newest_complete_checkpoint
from transformers.trainer_checkpoint.layout import STAGING_DIR, TRASH_DIR
from transformers.trainer_checkpoint.verification import verify
from transformers.utils import logging


OLD, NEW, NEXT = content("old", 20, shards=3), content("newer", 20), content("the next", 30)
STOCK = content("from stock", 20, shards=2)
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS)


@dataclass
class Scenario:
    """`prepare` makes the run directory; the save of step 20 is disturbed; `before` is what step 20 was."""

    prepare: Callable[[str], None]
    before: dict[str, bytes] | None = None
    durable: bool = True
    in_place: str | None = None
    swap: bool = True
    # Whether `before` lies under its final name, so that nothing older may be picked.
    before_is_published: bool = True


def nothing(run_dir: str) -> None:
    os.makedirs(run_dir)


def older(run_dir: str) -> None:
    save(run_dir, 10, content("ten", 10))


def same_step(run_dir: str) -> None:
    older(run_dir)
    save(run_dir, 20, OLD)


def stock_target(run_dir: str) -> None:
    older(run_dir)
    write_files(os.path.join(run_dir, "checkpoint-20"), STOCK)


def plain_file(run_dir: str) -> None:
    older(run_dir)
    with open(os.path.join(run_dir, "checkpoint-20"), "w", encoding="utf-8") as file:
        file.write("somebody's notes")


def symlink(run_dir: str) -> None:
    older(run_dir)
    os.makedirs(os.path.join(run_dir, "elsewhere"))
    os.symlink("elsewhere", os.path.join(run_dir, "checkpoint-20"))


def empty_directory(run_dir: str) -> None:
    older(run_dir)
    os.makedirs(os.path.join(run_dir, "checkpoint-20"))


def _interrupted(run_dir: str, before: Callable[[str, tuple], bool]) -> None:
    """Leave what a save of step 20 leaves that dies just before the first operation that `before` recognises."""
    child = os.fork()
    if child == 0:
        sys.addaudithook(lambda event, args: os._exit(0) if before(event, args) else None)
        save(run_dir, 20, OLD)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the save was not interrupted"


def sealed_leftover(run_dir: str) -> None:
    older(run_dir)
    target = os.path.join(run_dir, "checkpoint-20")
    _interrupted(run_dir, lambda event, args: event == "os.rename" and args[1] == target)


def unsealed_leftover(run_dir: str) -> None:
    older(run_dir)
    staged = os.path.join(run_dir, STAGING_DIR, "checkpoint-20", "model")
    _interrupted(run_dir, lambda event, args: event == "trainer_checkpoint.flush" and args[0].startswith(staged))


SCENARIOS = {
    "first": Scenario(nothing),
    "older": Scenario(older),
    "not_durable": Scenario(older, durable=False),
    "same_step": Scenario(same_step, before=OLD),
    "same_step_without_swap": Scenario(same_step, before=OLD, swap=False),
    "stock_target": Scenario(stock_target, before=STOCK),
    "stock_target_without_swap": Scenario(stock_target, before=STOCK, swap=False),
    "plain_file": Scenario(plain_file),
    "symlink": Scenario(symlink),
    "empty_directory": Scenario(empty_directory),
    "unsealed_leftover": Scenario(unsealed_leftover),
    "sealed_leftover": Scenario(sealed_leftover, before=OLD, before_is_published=False),
    "in_place": Scenario(older, in_place="asked for"),
    "in_place_over_old": Scenario(same_step, before=OLD, in_place="asked for"),
}


def no_swap(first: str, second: str) -> None:
    raise disk.SwapUnsupported(errno.ENOSYS, "not here", first)


def disturbed_save(scenario: Scenario, run_dir: str, at: int | None, error: int | None) -> list[str]:
    """In a child of its own: save step 20, disturbed. Returns the operations up to the end, for the counting run."""
    operations = FileOperations(run_dir, at, error)
    with mock.patch.object(disk, "swap", no_swap if not scenario.swap else disk.swap):
        save(run_dir, 20, NEW, durable=scenario.durable, in_place=scenario.in_place)
    operations.active = False
    return operations.seen


def in_child(work: Callable[[], str]) -> tuple[int, str]:
    """Exit code and what `work` returned, of a fork; a raised error comes back as its text with code 1."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 0
        try:
            text = work()
        except BaseException:
            code, text = 1, traceback.format_exc()
        with os.fdopen(writing, "w") as pipe:
            pipe.write(text)
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def look(scenario: Scenario, run_dir: str, announced: bool, allowed_debris: bool = False) -> list[str]:
    """Every rule that what lies in `run_dir` breaks."""
    wrong = []
    newest = newest_complete_checkpoint(run_dir)
    had_any = any(found.complete for found in find_checkpoints(os.path.dirname(run_dir) + "/template"))
    if newest is None:
        if announced or (had_any and not (scenario.in_place and scenario.before is None)):
            wrong.append("no complete checkpoint is left")
        return wrong
    problems = verify(newest, level="full").problems
    if problems:
        wrong.append(f"{newest} is picked and has {problems}")
    found = read_files(newest)
    step = os.path.basename(newest)
    if step == "checkpoint-10":
        before_counts = scenario.before is not None and scenario.before_is_published
        if announced or (before_counts and not scenario.in_place and scenario.swap):
            wrong.append("an older checkpoint is picked than was announced")
        if found != content("ten", 10):
            wrong.append("checkpoint-10 has changed")
    elif found == NEW:
        pass
    elif found == scenario.before and not announced:
        pass
    else:
        wrong.append(f"{step} is a mix of two saves, or the older one is back: {sorted(found)}")
    return wrong


def next_run(run_dir: str) -> list[str]:
    """The next training saves step 30, and staging is empty after it."""
    code, text = in_child(lambda: str(save(run_dir, 30, NEXT)))
    if code != 0:
        return [f"the next save fails: {text}"]
    wrong = []
    newest = newest_complete_checkpoint(run_dir)
    if newest is None or read_files(newest) != NEXT:
        wrong.append(f"the next save is not picked, {newest} is")
    if os.path.exists(os.path.join(run_dir, STAGING_DIR)):
        wrong.append(f"staging is left behind: {os.listdir(os.path.join(run_dir, STAGING_DIR))}")
    left = [name for name in os.listdir(run_dir) if not name.startswith(("checkpoint-", "elsewhere", TRASH_DIR))]
    if left:
        wrong.append(f"left behind in the run directory: {left}")
    return wrong


def survivors(name: str, run_dir: str) -> list[str]:
    """What was not a checkpoint and stood in the way is still somewhere."""
    if name == "plain_file":
        for entry in os.listdir(run_dir):
            path = os.path.join(run_dir, entry)
            if entry.startswith("checkpoint-20") and os.path.isfile(path) and not os.path.islink(path):
                with open(path, encoding="utf-8") as file:
                    return [] if file.read() == "somebody's notes" else ["somebody's file was changed"]
        return ["somebody's file is gone"]
    if name == "symlink" and not os.path.isdir(os.path.join(run_dir, "elsewhere")):
        return ["what the link led to is gone"]
    return []


class Campaign:
    def __init__(self, root: str):
        self.root = root
        self.violations: list[str] = []

    def fresh(self, scenario: Scenario) -> str:
        run_dir = os.path.join(self.root, "run")
        shutil.rmtree(run_dir, ignore_errors=True)
        template = os.path.join(self.root, "template")
        shutil.copytree(template, run_dir, symlinks=True)
        return run_dir

    def template(self, scenario: Scenario) -> None:
        template = os.path.join(self.root, "template")
        shutil.rmtree(template, ignore_errors=True)
        scenario.prepare(template)

    def count(self, scenario: Scenario, error: int | None) -> list[str]:
        run_dir = self.fresh(scenario)
        code, text = in_child(lambda: json.dumps(disturbed_save(scenario, run_dir, None, error)))
        if code != 0:
            raise SystemExit(f"the undisturbed save fails: {text}")
        return json.loads(text)

    def kill(self, name: str, at: int) -> None:
        scenario = SCENARIOS[name]
        run_dir = self.fresh(scenario)
        code, _ = in_child(lambda: str(disturbed_save(scenario, run_dir, at, None)))
        wrong = look(scenario, run_dir, announced=code == 0)
        wrong += next_run(run_dir) + survivors(name, run_dir)
        self.violations += [f"{name}, killed at operation {at}: {text}" for text in wrong]

    def fail(self, name: str, at: int, error: int) -> None:
        scenario = SCENARIOS[name]
        run_dir = self.fresh(scenario)
        code, text = in_child(lambda: str(disturbed_save(scenario, run_dir, at, error)))
        wrong = look(scenario, run_dir, announced=code == 0)
        if code not in (0, 1):
            wrong.append(f"the process ended with {code}")
        if code == 1 and errno.errorcode[error] not in text and os.strerror(error) not in text:
            wrong.append(f"the error does not name its cause: {text}")
        wrong += next_run(run_dir) + survivors(name, run_dir)
        self.violations += [f"{name}, {errno.errorcode[error]} at operation {at}: {text}" for text in wrong]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["kill", "error"])
    parser.add_argument("--only", choices=sorted(SCENARIOS), help="one scenario")
    parser.add_argument("--at", type=int, help="one operation")
    parser.add_argument("--stride", type=int, default=1, help="every n-th operation only")
    parser.add_argument("--errors", nargs="*", default=[errno.errorcode[e] for e in ERRORS], help="names of errnos")
    parser.add_argument("--root", help="where to work; the default is memory where there is some")
    options = parser.parse_args()
    logging.set_verbosity_error()
    base = options.root or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
    report: dict = {"points": {}, "violations": []}
    with tempfile.TemporaryDirectory(dir=base) as root:
        campaign = Campaign(os.path.realpath(root))
        for name in [options.only] if options.only else SCENARIOS:
            scenario = SCENARIOS[name]
            campaign.template(scenario)
            first_error = getattr(errno, options.errors[0]) if options.kind == "error" else None
            operations = campaign.count(scenario, first_error)
            points = range(1, len(operations) + 1, options.stride)
            for at in [options.at] if options.at else points:
                if options.kind == "kill":
                    campaign.kill(name, at)
                else:
                    for error in options.errors:
                        campaign.fail(name, at, getattr(errno, error))
            report["points"][name] = len(points) * (1 if options.kind == "kill" else len(options.errors))
            if options.at:
                report["operations"] = operations[: options.at]
        report["violations"] = campaign.violations
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
