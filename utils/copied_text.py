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
Finds upstream's text in our files: a run of consecutive lines that are equal, trivial ones not counted.

This repository holds only its own text, and upstream's source comes from the package index. A call site may resemble
what it replaces; five lines in a row that are the same are a copy.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edit_file import ROOT
from upstream import released_tree


RUN = 5

# A licence text is the same everywhere by its nature.
NOT_OURS_TO_WRITE = ("LICENSE",)
TEXT_SUFFIXES = (".py", ".md", ".toml", ".sh", ".yml", ".yaml", ".cfg", ".in", ".txt", ".json", "")
TRIVIAL = re.compile(
    r"""
    (?:from\s+\S+\s+)?import\b .*          # imports: their order is not free
    | \#.*Copyright.* | \#.*[Ll]icen[sc]e.* | \#\s*(?:you\ may\ not|You\ may\ obtain|WITHOUT\ WARRANTIES|distributed).*
    | \#\s*(?:See\ the\ License|limitations|http://www\.apache).*
    | (?:\W|\b(?:else|try|finally|return|pass|None|True|False|self|continue|break|yield|raise|Args|Returns|Raises)\b)*
    """,
    flags=re.VERBOSE,
)


@dataclass(frozen=True)
class Copy:
    """A run of equal lines."""

    ours: str
    line: int
    theirs: str
    their_line: int
    first: str

    def __str__(self) -> str:
        return f"{self.ours}:{self.line}: {RUN} lines as in {self.theirs}:{self.their_line}, from {self.first!r} on"


def telling_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text that say something, without layout, each with its number."""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = " ".join(line.split())
        if len(stripped) > 3 and not TRIVIAL.fullmatch(stripped):
            yield number, stripped


def runs(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Every run of `RUN` telling lines of a text, each with the number of its first line."""
    lines = list(telling_lines(text))
    for start in range(len(lines) - RUN + 1):
        yield lines[start][0], tuple(line for _, line in lines[start : start + RUN])


def find_copies(ours: dict[str, str], theirs: Iterable[tuple[str, str]]) -> list[Copy]:
    """
    Compare texts.

    Args:
        ours (`dict[str, str]`):
            Our texts by name.
        theirs (`Iterable[tuple[str, str]]`):
            The names and texts that nothing may be copied from.

    Returns:
        `list[Copy]`: The first run of each place in ours that is in theirs too, in our files' order.
    """
    where: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    lines: set[str] = set()
    for name, text in ours.items():
        for line, run in runs(text):
            where.setdefault(run, []).append((name, line))
            lines.update(run)
    found: dict[tuple[str, int], Copy] = {}
    for name, text in theirs:
        # Most files of a release share not even one line with ours.
        if lines.isdisjoint({" ".join(line.split()) for line in text.splitlines()}):
            continue
        for their_line, run in runs(text):
            for our_name, line in where.get(run, ()):
                found.setdefault((our_name, line), Copy(our_name, line, name, their_line, run[0]))
    return [found[key] for key in sorted(found)]


def our_texts(root: Path = ROOT) -> dict[str, str]:
    """Every text file that the repository has or would get with the next `git add --all`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True, timeout=60).stdout.decode("utf-8")
    texts = {}
    for name in sorted(filter(None, listed.split("\0"))):
        path = root / name
        if path.is_file() and path.suffix in TEXT_SUFFIXES and path.name not in NOT_OURS_TO_WRITE:
            texts[name] = path.read_text(encoding="utf-8")
    return texts


def their_texts(tree: Path) -> Iterator[tuple[str, str]]:
    """Every text file of the release's package, and its metadata, which holds upstream's README."""
    for path in [*sorted((tree / "transformers").rglob("*")), *sorted(tree.glob("*.dist-info/METADATA"))]:
        if path.is_file() and path.suffix in TEXT_SUFFIXES:
            yield path.relative_to(tree).as_posix(), path.read_text(encoding="utf-8", errors="replace")


def main(arguments: list[str] | None = None) -> int:
    argparse.ArgumentParser(description="Find upstream's text in this repository.").parse_args(arguments)
    copies = find_copies(our_texts(), their_texts(released_tree()))
    for copy in copies:
        print(copy)
    return 1 if copies else 0


if __name__ == "__main__":
    sys.exit(main())
