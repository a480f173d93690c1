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
Our pages in upstream's table of contents: the entries in `docs/toctree.yml` go behind the page on the Trainer.

The table is changed as text, line by line: everything else in it stays byte for byte.
"""

import argparse
import re
import sys
from pathlib import Path

from edit_file import ROOT


FRAGMENT = ROOT / "docs" / "toctree.yml"
TABLE = "docs/source/en/_toctree.yml"
AFTER = "trainer"

_LOCAL = re.compile(r"^( *)- local: (\S+)\s*$")


class ToctreeError(Exception):
    """The table of contents cannot take our entries. The text says why and what to do."""


def entries(fragment: Path = FRAGMENT) -> list[str]:
    """The lines of our entries, without comments."""
    lines = fragment.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def pages(text: str) -> list[str]:
    """The pages that a table of contents, or a part of one, names, in order."""
    return [match[2] for line in text.splitlines() if (match := _LOCAL.match(line))]


def with_entries(text: str, fragment: Path = FRAGMENT) -> str:
    """
    Put our entries into a table of contents.

    Args:
        text (`str`):
            Upstream's table of contents.
        fragment (`Path`, *optional*, defaults to `docs/toctree.yml`):
            The entries.

    Returns:
        `str`: The table with the entries behind the Trainer's, at the same depth; `text` itself if they are in it.

    Raises:
        `ToctreeError`: unless the page they go behind is in the table once, or if only some of them are in it.
    """
    own = entries(fragment)
    names = pages("\n".join(own))
    there = set(names) & set(pages(text))
    if there == set(names):
        return text
    if there:
        raise ToctreeError(f"{TABLE} has {', '.join(sorted(there))} already, and not the others: take them out first")
    lines = text.splitlines(keepends=True)
    found = [(at, match[1]) for at, line in enumerate(lines) if (match := _LOCAL.match(line)) and match[2] == AFTER]
    if len(found) != 1:
        raise ToctreeError(
            f"{TABLE} has the page {AFTER!r} {len(found)} times, and our entries go behind it: change `AFTER` in "
            f"{Path(__file__).name} to a page that is there once"
        )
    at, indent = found[0]
    at += 1
    # The rest of that page's entry is indented further.
    while at < len(lines) and lines[at].strip() and len(lines[at]) - len(lines[at].lstrip()) > len(indent):
        at += 1
    if at > 0 and not lines[at - 1].endswith("\n"):
        lines[at - 1] += "\n"
    return "".join([*lines[:at], *(f"{indent}{line}\n" for line in own), *lines[at:]])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Put our pages into the table of contents of an upstream checkout.")
    parser.add_argument("checkout", type=Path, help="root of an upstream checkout")
    options = parser.parse_args(arguments)
    table = options.checkout / TABLE
    try:
        text = table.read_text(encoding="utf-8")
        table.write_text(with_entries(text), encoding="utf-8")
    except FileNotFoundError:
        print(f"{table} is not there: is {options.checkout} the root of an upstream checkout?", file=sys.stderr)
        return 1
    except ToctreeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
