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
"""`transformers checkpoints`: look at the checkpoints of a training. Imports no torch.

The commands and their exit codes are those of `python -m transformers.trainer_checkpoint`; here with tables and bars.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Generator
from typing import Annotated, Literal

import typer
from huggingface_hub import typer_factory
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from ..trainer_checkpoint import __main__ as plain
from ..trainer_checkpoint import inspection
from ..trainer_checkpoint.inspection import printable
from ..trainer_checkpoint.verification import (
    DAMAGED,
    FULL,
    GOOD,
    MODIFIED,
    PROGRESS_DELAY,
    SIZE,
    UNREADABLE,
    UNVERIFIED,
    bytes_to_read,
)


STYLES = {GOOD: "green", MODIFIED: "yellow", UNVERIFIED: "yellow", DAMAGED: "red", UNREADABLE: "magenta"}

Directory = Annotated[str, typer.Argument(help="The output_dir of a training.")]
# `--json` alone would be taken away by the Hub's command group, which has an output mode of its own; of a command that
# has a `--format` it leaves both options alone.
Format = Annotated[
    Literal["table", "json"], typer.Option("--format", help="How to print: for people, or for scripts.")
]
Json = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
Quick = Annotated[bool, typer.Option("--quick", help="Compare sizes only, and read no contents.")]

app = typer_factory(help="Look at the checkpoints of a training: list, verify, explain, clean.")


@app.command(name="list")
def list_(
    directory: Directory,
    full: Annotated[bool, typer.Option("--full", help="Read every byte instead of comparing sizes.")] = False,
    format: Format = "table",
    json: Json = False,
):
    """List the checkpoints of a run directory, oldest first."""

    def command() -> int:
        found = inspection.list_checkpoints(directory, level=FULL if full else SIZE)
        if json or format == "json":
            return plain.print_json(found)
        _print_table(directory, found, full)
        return plain.OK

    sys.exit(plain.guarded(command))


@app.command()
def verify(
    path: Annotated[str, typer.Argument(help="A checkpoint.")],
    quick: Quick = False,
    format: Format = "table",
    json: Json = False,
):
    """Check that a checkpoint is what was saved. Exit code 0: nothing is wrong; 1: damaged; 2: could not be checked."""

    def command() -> int:
        with _bar(path, quick) as advance:
            result = inspection.verify_checkpoint(path, quick=quick, progress=advance)
        if json or format == "json":
            plain.print_json(result)
        else:
            _print_lines(plain.verdict_lines(result), STYLES[result.verdict])
        return plain.exit_code(result)

    sys.exit(plain.guarded(command))


@app.command()
def explain(directory: Directory, quick: Quick = False, format: Format = "table", json: Json = False):
    """Say what resume_from_checkpoint=True would pick, and why not the others. Exit code 1: nothing."""

    def command() -> int:
        level = SIZE if quick else FULL
        explanation = inspection.explain(directory, level=level, show_progress=sys.stderr.isatty())
        if json or format == "json":
            plain.print_json(explanation)
        else:
            _print_lines(plain.explanation_lines(explanation), "red" if explanation.chosen is None else "green")
        return plain.WRONG if explanation.chosen is None else plain.OK

    sys.exit(plain.guarded(command))


@app.command()
def clean(
    directory: Directory,
    yes: Annotated[bool, typer.Option("--yes", "--delete", help="Really delete.")] = False,
    format: Format = "table",
    json: Json = False,
):
    """Delete what killed saves and rotations left over. Only shows it, unless told --yes."""

    def command() -> int:
        leftovers, problems = inspection.clean(directory, delete=yes)
        if json or format == "json":
            plain.print_json({"leftovers": leftovers, "deleted": yes, "problems": problems})
        else:
            _print_lines(plain.clean_lines(directory, leftovers, yes), "bold")
            for problem in problems:
                Console(stderr=True).print(Text(printable(f"Could not be deleted: {problem}"), style="red"))
        return plain.WRONG if problems else plain.OK

    sys.exit(plain.guarded(command))


# ---- Printing ----


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Called while the error is handled. Rich would end the process with exit code 1; `guarded` knows better."""
        raise


# The columns of the table, those that a narrow terminal has room for first; and how narrow they may be folded.
_FOLDED = {"": 1, "checkpoint": None, "verdict": None, "size": None, "saved": 10, "files": None, "inside": 9}
# What rich draws beside each cell, and once more at the end (characters).
_BESIDE, _END = 3, 1


def _print_table(directory: str, found: list[inspection.CheckpointInfo], full: bool) -> None:
    # Text objects throughout: a file name may hold what rich takes for markup.
    console = _Console()
    if not found:
        console.print(Text(plain.nothing_found(directory)))
        return
    newest = next((one for one in reversed(found) if one.resumable), None)
    columns: dict[str, list[Text]] = {
        name: [] for name in ("", "checkpoint", "saved", "size", "files", "inside", "verdict")
    }
    for one in found:
        *cells, verdict = plain.row_of(one)
        arrow = Text("➜" if console.encoding.startswith("utf") else ">", style="bold green")
        row = (arrow if one is newest else Text(), *map(Text, cells), Text(verdict, style=STYLES[one.verdict]))
        for column, cell in zip(columns.values(), row, strict=True):
            column.append(cell)
    widths = _widths({name: max(map(len, (name, *cells))) for name, cells in columns.items()}, console.width)
    table = Table(title=Text(printable(os.path.abspath(directory))), title_justify="left", title_style="bold")
    shown = [name for name in columns if name in widths]
    for name in shown:
        justify = "right" if name in ("size", "files") else "left"
        table.add_column(name, justify=justify, overflow="fold", width=widths[name])
    for row in zip(*(columns[name] for name in shown), strict=True):
        table.add_row(*row)
    console.print(table)
    _print_lines(plain.remarks(found, full), None, console)


def _widths(natural: dict[str, int], total: int) -> dict[str, int]:
    """How wide each column becomes, in a terminal of `total` characters; those without room are not among them."""
    widths = {name: min(natural[name], least or natural[name]) for name, least in _FOLDED.items()}

    def spare() -> int:
        return total - sum(widths.values()) - _BESIDE * len(widths) - _END

    while spare() < 0 and len(widths) > 3:
        widths.popitem()
    if spare() < 0:
        widths["checkpoint"] = max(1, widths["checkpoint"] + spare())
    for name in widths:
        widths[name] += max(0, min(spare(), natural[name] - widths[name]))
    return widths


def _print_lines(lines: list[str], first_style: str | None, console: Console | None = None) -> None:
    console = console or _Console()
    for number, line in enumerate(lines):
        # Paths are for copying: they are never broken into several lines.
        console.print(Text(line, style=first_style or "" if number == 0 else ""), soft_wrap=True)


@contextlib.contextmanager
def _bar(path: str, quick: bool) -> Generator[Callable[[int], None] | None]:
    """A progress bar with the expected time, that shows itself once it has taken a few seconds."""
    console = Console(stderr=True)
    if quick or not console.is_terminal or not os.path.isdir(path):
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task("Verifying", total=bytes_to_read(path))

    started = time.monotonic()

    def advance(count: int) -> None:
        progress.advance(task, count)
        if not progress.live.is_started and time.monotonic() - started > PROGRESS_DELAY:
            progress.start()

    try:
        yield advance
    finally:
        progress.stop()


__all__ = ["app"]
