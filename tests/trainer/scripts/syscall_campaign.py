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
"""Stop, or fail, a save at every one of its system calls, native code's and other threads' included.

    python syscall_campaign.py kill                       SIGKILL on entering each call that changes a disk
    python syscall_campaign.py error --errors EIO ENOSPC  the call fails, and nothing was done
    python syscall_campaign.py kill --level python        the same cases at the file operations that Python announces
    python syscall_campaign.py kill --only rotate --call rename --at 2     one point again

The cases are those of `save_campaign.py`, and what tidies up: rotation, the sweep of what a dead run left, the
roll-forward of a sealed save, the second seal after a callback. The rules are those of `save_campaign.py`, and: what
is published is sealed, and every complete checkpoint is one of those that were saved, byte for byte.

strace does it: a fork waits until it is traced, and the n-th call of a thread of it is met. Prints one JSON object.
"""

import argparse
import errno
import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import save_campaign
from file_operations import FileOperations
from save_campaign import NEW, OLD, SCENARIOS, Campaign, Scenario, next_run, no_swap, survivors
from save_driver import content, read_files, save

from transformers.trainer_checkpoint import disk
from transformers.trainer_checkpoint.discovery import find_checkpoints, newest_complete_checkpoint
from transformers.trainer_checkpoint.layout import STAGING_DIR, TRASH_DIR, disk_token_name
from transformers.trainer_checkpoint.manifest import draw_nonce, read_head
from transformers.trainer_checkpoint.ranks import Alone
from transformers.trainer_checkpoint.rotation import rotate_run
from transformers.trainer_checkpoint.sealing import seal_again, snapshot
from transformers.trainer_checkpoint.transaction import RunDirectory
from transformers.trainer_checkpoint.verification import verify
from transformers.utils import logging


# What changes a disk, and `openat`, which also makes files. A name that the machine's kernel lacks is left out.
CALLS = (
    "openat write pwrite64 writev fsync fdatasync ftruncate fallocate rename renameat renameat2 "
    "unlink unlinkat rmdir mkdir mkdirat chmod fchmod fchmodat copy_file_range sendfile link linkat symlink"
).split()
# Seconds after which a disturbed save is given up; undisturbed it takes a fraction of one.
GIVE_UP = 60.0
FIVE, TEN = content("five", 5), content("ten", 10)


@dataclass
class Case:
    """`prepare` makes the run directory, `work` is disturbed, `look` names the rules that what is left breaks."""

    prepare: Callable[[str], None]
    work: Callable[[str], None]
    look: Callable[[str, bool], list[str]]
    # Rotation never fails a run.
    may_raise: bool = True
    # A save that does not raise is done, whatever happened inside; what tidies up does what it can.
    all_or_error: bool = False
    # Looked at once the next run has put everything in order.
    afterwards: Callable[[str], list[str]] = lambda run_dir: []


# ---- Saves ----


def saving(name: str, scenario: Scenario) -> Case:
    def work(run_dir: str) -> None:
        with mock.patch.object(disk, "swap", disk.swap if scenario.swap else no_swap):
            save(run_dir, 20, NEW, durable=scenario.durable, in_place=scenario.in_place)

    def look(run_dir: str, announced: bool) -> list[str]:
        wrong = save_campaign.look(scenario, run_dir, announced)
        return wrong + published_is_sealed(run_dir)

    return Case(scenario.prepare, work, look, all_or_error=True, afterwards=lambda run_dir: survivors(name, run_dir))


def published_is_sealed(run_dir: str) -> list[str]:
    path = os.path.join(run_dir, "checkpoint-20")
    if os.path.isdir(path) and read_files(path) == NEW and read_head(path) is None:
        return ["checkpoint-20 is published and has no manifest"]
    return []


# ---- What tidies up ----


def three(run_dir: str) -> None:
    for step, files in ((5, FIVE), (10, TEN), (20, OLD)):
        save(run_dir, step, files)


def leftovers(run_dir: str) -> None:
    """An entry in the trash, an unsealed directory, a token and a dead owner's record."""
    three(run_dir)
    disk.retire(run_dir, os.path.join(run_dir, "checkpoint-5"), draw_nonce(), durable=False)
    shutil.rmtree(os.path.join(run_dir, "checkpoint-20"))
    with open(os.path.join(run_dir, disk_token_name(draw_nonce())), "w", encoding="ascii"):
        pass
    staged = os.path.join(run_dir, STAGING_DIR, "checkpoint-20", "model")
    save_campaign._interrupted(
        run_dir, lambda event, args: event == "trainer_checkpoint.flush" and args[0].startswith(staged)
    )


def sealed_over_older(run_dir: str) -> None:
    """A sealed save of step 20 in staging, and an older checkpoint under its name."""
    save(run_dir, 10, TEN)
    save(run_dir, 20, NEW)
    save_campaign._interrupted(run_dir, lambda event, args: event == "trainer_checkpoint.swap")


def damaged_sealed(run_dir: str) -> None:
    """A sealed save whose weights have lost a bit: no size and no name tells it."""
    save_campaign.sealed_leftover(run_dir)
    staged = os.path.join(run_dir, STAGING_DIR, "checkpoint-20")
    path = os.path.join(staged, next(name for name in sorted(os.listdir(staged)) if name.endswith(".safetensors")))
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte ^ 1]))


def swapped(run_dir: str) -> None:
    """Killed just after the swap: the newer one is published, the older one is in staging, sealed."""
    save(run_dir, 10, TEN)
    save(run_dir, 20, NEW)
    trash = os.path.join(run_dir, TRASH_DIR)
    save_campaign._interrupted(run_dir, lambda event, args: event == "os.mkdir" and args[0] == trash)


def changed_by_callback(run_dir: str) -> None:
    save(run_dir, 10, TEN)
    save(run_dir, 20, OLD)


# Files of a checkpoint after a callback changed it: the common adapter recipe rewrites and adds.
RESEALED = {**OLD, "config.json": json.dumps({"tag": "changed"}).encode(), "adapter_config.json": b"{}"}


def callback_and_seal(run_dir: str) -> None:
    path = os.path.join(run_dir, "checkpoint-20")
    seen, head = snapshot(path), read_head(path)
    assert head is not None
    for name in ("config.json", "adapter_config.json"):
        disk.write_whole(os.path.join(path, name), RESEALED[name], durable=True)
    assert seal_again(path, head, seen, durable=True) is not None


def open_run(run_dir: str) -> None:
    """What the next training does before its first save."""
    run = RunDirectory(run_dir, Alone())
    run.find_groups()
    run.prepare(draw_nonce())
    run.close()


def rotate(run_dir: str) -> None:
    rotate_run(run_dir, limit=1, durable=True)


def rotate_without_rename(run_dir: str) -> None:
    with mock.patch.object(disk, "retire", side_effect=PermissionError(errno.EPERM, "no renames here")):
        rotate_run(run_dir, limit=1, durable=True)


def whole(
    newest: int, *wanted: dict[str, bytes], gone: tuple[int, ...] = (), also: int | None = None, sealed: bool = True
) -> Callable[[str, bool], list[str]]:
    """What must lie there.

    Args:
        newest (`int`):
            The step that is picked.
        wanted (`dict[str, bytes]`):
            The checkpoints that may lie there; each complete one is one of these.
        gone (`tuple[int, ...]`, *optional*):
            Steps that have no directory once the work was done.
        also (`int`, *optional*):
            A step that may be picked as long as the work was not done.
        sealed (`bool`, *optional*, defaults to `True`):
            Whether each complete one fits its manifest to the letter.
    """

    def look(run_dir: str, done: bool) -> list[str]:
        wrong = []
        picked = newest_complete_checkpoint(run_dir)
        steps = {newest} if done or also is None else {newest, also}
        if picked not in {os.path.join(run_dir, f"checkpoint-{step}") for step in steps}:
            wrong.append(f"{picked} is picked, not one of {sorted(steps)}")
        for found in find_checkpoints(run_dir):
            files = read_files(found.path) if found.complete else None
            if found.complete and files not in wanted:
                wrong.append(f"{found.name} counts as complete and is none of those saved: {sorted(files)}")
            if found.complete and sealed and verify(found.path, level="full").problems:
                wrong.append(f"{found.name} is {verify(found.path, level='full').problems}")
            if done and found.step in gone:
                wrong.append(f"{found.name} is still there")
        return wrong

    return look


def no_half_deleted(run_dir: str, done: bool) -> list[str]:
    """Rotation by rename: what lies under a checkpoint's name is whole at every moment."""
    wrong = whole(20, FIVE, TEN, OLD, gone=(5, 10))(run_dir, done)
    half = [found.name for found in find_checkpoints(run_dir) if not found.complete]
    return wrong + [f"{name} is half deleted under its own name" for name in half]


def resealed(run_dir: str, done: bool) -> list[str]:
    half = {**OLD, "config.json": RESEALED["config.json"]}
    wrong = whole(20, TEN, OLD, half, RESEALED)(run_dir, done)
    found = next((found for found in find_checkpoints(run_dir) if found.step == 20), None)
    if done and found is not None and found.note is not None:
        wrong.append(f"sealed again, and still {found.note}")
    return wrong


CASES = {
    **{name: saving(name, scenario) for name, scenario in SCENARIOS.items()},
    "rotate": Case(three, rotate, no_half_deleted, may_raise=False),
    "rotate_in_place": Case(three, rotate_without_rename, whole(20, FIVE, TEN, OLD), may_raise=False),
    "sweep": Case(leftovers, open_run, whole(10, TEN, gone=(5, 20))),
    "roll_forward": Case(save_campaign.sealed_leftover, open_run, whole(20, TEN, OLD, also=10)),
    "roll_forward_over_older": Case(sealed_over_older, open_run, whole(20, TEN, OLD, NEW)),
    "roll_forward_of_damaged": Case(damaged_sealed, open_run, whole(10, TEN)),
    "retire_after_swap": Case(swapped, open_run, whole(20, TEN, OLD)),
    "seal_again": Case(changed_by_callback, callback_and_seal, resealed),
}


# ---- Disturbing ----


class Outcome:
    """What a fork says of its work. In shared memory, so that saying it is no system call that could be met."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 1 << 16)

    def say(self, text: str) -> None:
        data = text.encode()[: (1 << 16) - 8]
        self.memory[4 : 4 + len(data)] = data
        self.memory[:4] = (len(data) + 1).to_bytes(4, "little")

    def heard(self) -> str | None:
        """`None` if the fork died first."""
        length = int.from_bytes(self.memory[:4], "little")
        return self.memory[4 : 3 + length].decode(errors="replace") if length else None


def forked(work: Callable[[], str], outcome: Outcome, go: tuple[int, int] | None = None) -> int:
    """A fork that works once a byte has come through the pipe `go`. Its exit code is 1 if the work raised."""
    child = os.fork()
    if child:
        return child
    code = 0
    try:
        if go is not None:
            os.close(go[1])
            os.read(go[0], 1)
        outcome.say(work())
    except BaseException:
        outcome.say(traceback.format_exc())
        code = 1
    os._exit(code)


def traced(work: Callable[[], str], *arguments: str) -> tuple[int, str | None]:
    """Exit code and text of a fork that strace was attached to before it began."""
    outcome, go = Outcome(), os.pipe()
    child = forked(work, outcome, go)
    os.close(go[0])
    strace = subprocess.Popen(["strace", "-f", *arguments, "-p", str(child)], stderr=subprocess.PIPE)
    try:
        # The one line that it writes about attaching comes after it has.
        line = strace.stderr.readline().decode()
        if "attached" not in line:
            raise SystemExit(f"strace cannot be used: {line}{strace.stderr.read().decode()}")
        os.write(go[1], b"g")
        return wait_for(child), outcome.heard()
    finally:
        os.close(go[1])
        strace.stderr.close()
        strace.wait(timeout=GIVE_UP)


def wait_for(child: int) -> int:
    """Exit code of a fork; it is killed, and that is an error, if it takes too long."""
    deadline = time.monotonic() + GIVE_UP
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise SystemExit(f"a disturbed save has taken {GIVE_UP:g} s")
        time.sleep(0.002)


class CallCampaign(Campaign):
    """Every case at every call, or at every file operation that Python announces."""

    def __init__(self, root: str, level: str):
        super().__init__(root)
        self.level = level

    def prepared(self, case: Case) -> str:
        return self.fresh(Scenario(case.prepare))

    def points(self, case: Case, error: int | None) -> Counter[str]:
        """How often each call is made, by the thread that makes it most; for Python, how many operations there are."""
        run_dir = self.prepared(case)
        if self.level == "python":
            outcome = Outcome()
            code = wait_for(forked(lambda: str(len(self.operations(case, run_dir, None, error))), outcome))
            text = outcome.heard()
            self.check_undisturbed(case, run_dir, code, text)
            return Counter({"operation": int(text or 0)})
        log = os.path.join(self.root, "log")
        calls = ",".join(f"?{call}" for call in CALLS)
        code, text = traced(lambda: str(case.work(run_dir)), "-o", log, "-e", f"trace={calls}")
        self.check_undisturbed(case, run_dir, code, text)
        per_thread: Counter[tuple[str, str]] = Counter()
        with open(log, encoding="utf-8", errors="replace") as file:
            for line in file:
                if match := re.match(r"(\d+) +(\w+)\(", line):
                    per_thread[match[1], match[2]] += 1
        most: Counter[str] = Counter()
        for (_, call), count in per_thread.items():
            most[call] = max(most[call], count)
        return most

    def check_undisturbed(self, case: Case, run_dir: str, code: int, text: str | None) -> None:
        wrong = [] if code == 0 else [f"fails: {text}"]
        wrong += case.look(run_dir, True)
        if wrong:
            raise SystemExit(f"undisturbed, it already breaks a rule: {wrong}")

    def operations(self, case: Case, run_dir: str, at: int | None, error: int | None) -> list[str]:
        operations = FileOperations(run_dir, at, error)
        case.work(run_dir)
        operations.active = False
        return operations.seen

    def disturb(self, name: str, call: str, at: int, error: int | None) -> None:
        case = CASES[name]
        run_dir = self.prepared(case)
        if self.level == "python":
            outcome = Outcome()
            code = wait_for(forked(lambda: str(self.operations(case, run_dir, at, error)), outcome))
            text = outcome.heard()
        else:
            how = "signal=KILL" if error is None else f"error={errno.errorcode[error]}"
            inject = f"inject={call}:{how}:when={at}"
            code, text = traced(
                lambda: str(case.work(run_dir)), "-o", "/dev/null", "-e", f"trace={call}", "-e", inject
            )
        wrong = case.look(run_dir, code == 0 if error is None or case.all_or_error else False)
        if error is not None:
            wrong += self.wrong_error(case, code, text, error)
        wrong += next_run(run_dir) + case.afterwards(run_dir)
        how = "killed" if error is None else errno.errorcode[error]
        self.violations += [f"{name}, {how} at {call} {at}: {text}" for text in wrong]

    @staticmethod
    def wrong_error(case: Case, code: int, text: str | None, error: int) -> list[str]:
        wrong = [] if code in (0, 1) else [f"the process ended with {code}"]
        if code == 1 and not case.may_raise:
            wrong.append(f"it raises: {str(text)[-400:]}")
        if code == 1 and errno.errorcode[error] not in str(text) and os.strerror(error) not in str(text):
            wrong.append(f"the error does not name its cause: {str(text)[-400:]}")
        return wrong


def missing_tools() -> str | None:
    """What the campaign needs and does not find, or `None`."""
    return "strace" if shutil.which("strace") is None else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["kill", "error"])
    parser.add_argument("--level", choices=["calls", "python"], default="calls")
    parser.add_argument("--only", nargs="*", choices=sorted(CASES), default=list(CASES), help="these cases")
    parser.add_argument("--call", help="one system call")
    parser.add_argument("--at", type=int, help="one point")
    parser.add_argument("--stride", type=int, default=1, help="every n-th point only")
    parser.add_argument("--errors", nargs="*", default=["ENOSPC", "EIO", "EACCES", "EROFS"], help="names of errnos")
    parser.add_argument("--root", help="where to work; the default is memory where there is some")
    options = parser.parse_args()
    logging.set_verbosity(logging.CRITICAL)
    if options.level == "calls" and (needed := missing_tools()) is not None:
        print(json.dumps({"missing": needed}))
        return
    errors = [None] if options.kind == "kill" else [getattr(errno, name) for name in options.errors]
    base = options.root or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
    report: dict = {"kind": options.kind, "level": options.level, "points": {}, "calls": Counter(), "violations": []}
    with tempfile.TemporaryDirectory(dir=base) as root:
        campaign = CallCampaign(os.path.realpath(root), options.level)
        turn = 0
        for name in options.only:
            case = CASES[name]
            campaign.template(Scenario(case.prepare))
            report["points"][name] = 0
            for call, count in sorted(campaign.points(case, errors[0]).items()):
                if options.call and call != options.call:
                    continue
                for at in [options.at] if options.at else range(1, count + 1):
                    for error in errors:
                        turn += 1
                        # Over all points rather than over those of one call, of which some have only one.
                        if options.at or turn % options.stride == 0:
                            campaign.disturb(name, call, at, error)
                            report["points"][name] += 1
                            report["calls"][call] += 1
        report["violations"] = campaign.violations
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    sys.exit(main())
