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
"""`python -m transformers.trainer_checkpoint`: the commands of `transformers checkpoints`, without importing torch.

Plain text, for machines where only the checkpoints matter. Exit codes: 0 all is well; 1 something is wrong with what
was looked at; 2 it could not be looked at, or the command was wrong.
"""

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import disk, inspection
from .errors import CheckpointError
from .inspection import as_json, format_time, printable
from .layout import MANIFEST_NAME, TRAINER_STATE_NAME
from .verification import FULL, SIZE, UNREADABLE


PROGRAM = "python -m transformers.trainer_checkpoint"

# Exit codes.
OK, WRONG, NOT_LOOKED = 0, 1, 2
INTERRUPTED = 130  # what a shell reports of a process that SIGINT ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. `arguments` are those of the command line. Returns the exit code."""
    options = _parser().parse_args(arguments)
    return guarded(lambda: options.run(options))


def guarded(command: Callable[[], int]) -> int:
    """Run `command` and turn what a user's directory can cause into one line on stderr and an exit code."""
    # A path may hold what the terminal's encoding lacks. Python has it so for stderr anyway.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of a pipe has gone, as `head` does. The interpreter flushes once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        print(printable(f"{where}{error.strerror or error}"), file=sys.stderr)
        return NOT_LOOKED
    except (CheckpointError, ValueError) as error:
        print(printable(str(error)), file=sys.stderr)
        return NOT_LOOKED


# ---- Commands ----


def list_command(options: argparse.Namespace) -> int:
    found = inspection.list_checkpoints(options.directory, level=FULL if options.full else SIZE)
    if options.json:
        return print_json(found)
    if not found:
        print(nothing_found(options.directory))
    rows = [("", "checkpoint", "saved", "size", "files", "inside", "verdict")]
    newest = next((one for one in reversed(found) if one.resumable), None)
    for one in found:
        rows.append((">" if one is newest else "", *row_of(one)))
    for line in _columns(rows if found else []):
        print(line)
    for line in remarks(found, options.full) if found else []:
        print(line)
    return OK


def verify_command(options: argparse.Namespace) -> int:
    result = inspection.verify_checkpoint(options.path, quick=options.quick, show_progress=sys.stderr.isatty())
    if options.json:
        print_json(result)
    else:
        for line in verdict_lines(result):
            print(line)
    return exit_code(result)


def explain_command(options: argparse.Namespace) -> int:
    level = SIZE if options.quick else FULL
    explanation = inspection.explain(options.directory, level=level, show_progress=sys.stderr.isatty())
    if options.json:
        print_json(explanation)
    else:
        for line in explanation_lines(explanation):
            print(line)
    return OK if explanation.chosen is not None else WRONG


def clean_command(options: argparse.Namespace) -> int:
    leftovers, problems = inspection.clean(options.directory, delete=options.yes)
    if options.json:
        print_json({"leftovers": leftovers, "deleted": options.yes, "problems": problems})
    else:
        for line in clean_lines(options.directory, leftovers, options.yes):
            print(line)
        for problem in problems:
            print(printable(f"Could not be deleted: {problem}"), file=sys.stderr)
    return WRONG if problems else OK


def info_command(options: argparse.Namespace) -> int:
    from .patch_info import describe

    print(describe())
    print(f"Commands for checkpoints: {PROGRAM} --help")
    return OK


# ---- Texts, for both command lines ----


def exit_code(result: Any) -> int:
    """The exit code of `verify` for a `VerifyResult`."""
    if result.ok:
        return OK
    return NOT_LOOKED if result.verdict == UNREADABLE else WRONG


def nothing_found(run_dir: str) -> str:
    """What to say of a directory without checkpoints: people also name a checkpoint where its parent is meant."""
    itself = any(os.path.lexists(os.path.join(run_dir, name)) for name in (MANIFEST_NAME, TRAINER_STATE_NAME))
    hint = " It looks like a checkpoint itself: see the command `verify`, or name its parent." if itself else ""
    return printable(f"No checkpoints in {run_dir}.{hint}")


def row_of(one: inspection.CheckpointInfo) -> tuple[str, str, str, str, str, str]:
    verdict = one.verdict + (", pinned" if one.pinned else "")
    inside = " ".join(one.state) or "-"
    return printable(one.name), format_time(one.saved_at), disk.format_size(one.size), str(one.files), inside, verdict


def remarks(found: Sequence[inspection.CheckpointInfo], full: bool) -> list[str]:
    """What is wrong with, or worth saying of, each checkpoint that has something to be said of it."""
    lines = [
        printable(f"{one.name}: {'; '.join([*_some(one.problems), *one.notes])}")
        for one in found
        if one.problems or one.notes
    ]
    if not full:
        lines.append("Sizes were compared, and no contents: `--full` reads every byte.")
    return lines


def verdict_lines(result: Any) -> list[str]:
    lines = [f"{result.path}: {result.verdict} ({disk.format_size(result.size)} in {result.files} files)"]
    lines += [f"  {problem}" for problem in result.problems]
    lines += [f"  note: {note}" for note in result.notes]
    return [printable(line) for line in lines]


def explanation_lines(explanation: inspection.Explanation) -> list[str]:
    if explanation.chosen is not None:
        lines = [f"`resume_from_checkpoint=True` resumes from {explanation.chosen}"]
        lines += [f"  note: {note}" for note in explanation.notes]
    elif explanation.passed_over:
        lines = [f"No checkpoint in {explanation.run_dir} can be resumed from."]
    else:
        lines = [nothing_found(explanation.run_dir)]
    if explanation.passed_over:
        lines.append("Passed over, newest first:")
        lines += [f"  {os.path.basename(path)}: {reason}" for path, reason in explanation.passed_over]
    if explanation.older:
        older = _some([os.path.basename(path) for path in explanation.older], 10)
        lines.append(f"Older, not looked at: {', '.join(older)}")
    if explanation.leftovers:
        lines.append("Left over from killed saves and rotations:")
        lines += [f"  {_leftover_line(explanation.run_dir, leftover)}" for leftover in explanation.leftovers]
    if explanation.owner is not None:
        lines.append(f"Saving there now, unless it has died: {explanation.owner}")
    return [printable(line) for line in lines]


def clean_lines(run_dir: str, leftovers: Sequence[inspection.Leftover], deleted: bool) -> list[str]:
    deletable = [leftover for leftover in leftovers if leftover.action == inspection.DELETE]
    if not deletable:
        lines = [f"Nothing to delete in {run_dir}."]
    else:
        size = disk.format_size(sum(leftover.size for leftover in deletable))
        lines = [f"{'Deleted' if deleted else 'Would delete'} {size} in {run_dir}:"]
        lines += [f"  {_leftover_line(run_dir, leftover)}" for leftover in deletable]
        if not deleted:
            lines.append("Nothing was changed. Say --yes to delete it.")
    kept = [leftover for leftover in leftovers if leftover.action != inspection.DELETE]
    if kept:
        lines.append("Stays:")
        lines += [f"  {_leftover_line(run_dir, leftover)}" for leftover in kept]
    return [printable(line) for line in lines]


def print_json(value: Any) -> int:
    print(json.dumps(as_json(value), indent=2))
    return OK


def _leftover_line(run_dir: str, leftover: inspection.Leftover) -> str:
    return f"{os.path.relpath(leftover.path, run_dir)} ({disk.format_size(leftover.size)}): {leftover.text}"


def _some(texts: Sequence[str], most: int = 3) -> list[str]:
    return list(texts) if len(texts) <= most else [*texts[:most], f"and {len(texts) - most} more"]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


# ---- The command line ----


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Look at the checkpoints of a training.")
    parser.set_defaults(run=info_command)
    commands = parser.add_subparsers(metavar="COMMAND")

    command = commands.add_parser("list", help="list the checkpoints of a run directory, oldest first")
    command.add_argument("directory", metavar="DIR", help="the output_dir of a training")
    command.add_argument("--full", action="store_true", help="read every byte instead of comparing sizes")
    command.set_defaults(run=list_command)

    command = commands.add_parser("verify", help="check that a checkpoint is what was saved (exit code 0, 1 or 2)")
    command.add_argument("path", metavar="PATH", help="a checkpoint")
    command.add_argument("--quick", action="store_true", help="compare sizes only")
    command.set_defaults(run=verify_command)

    command = commands.add_parser("explain", help="say what resume_from_checkpoint=True would pick, and why")
    command.add_argument("directory", metavar="DIR", help="the output_dir of a training")
    command.add_argument("--quick", action="store_true", help="compare sizes only")
    command.set_defaults(run=explain_command)

    command = commands.add_parser("clean", help="delete what killed saves left; shows only, unless told --yes")
    command.add_argument("directory", metavar="DIR", help="the output_dir of a training")
    command.add_argument("--yes", "--delete", action="store_true", help="really delete")
    command.set_defaults(run=clean_command)

    for command in commands.choices.values():
        command.add_argument("--json", action="store_true", help="print JSON")

    command = commands.add_parser("info", help="say which build this is and what it changes; also without a command")
    command.set_defaults(run=info_command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
