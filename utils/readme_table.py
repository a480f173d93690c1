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
README's table of the edits: made from the edit files, between two marker lines, and checked by a test.
"""

import argparse
import sys
from pathlib import Path

from edit_file import ROOT, EditError, read_edits


README = ROOT / "README.md"
BEGIN = "<!-- edits: made by `make readme`, not by hand -->"
END = "<!-- end of edits -->"


def edits_table() -> str:
    """The table as Markdown, one row per edit, files in order."""
    rows = ["| upstream file | edit | where | why |", "| --- | --- | --- | --- |"]
    for target, edits in read_edits().items():
        for edit in edits:
            scope = "module" if edit.scope == "<module>" else f"`{edit.scope}`"
            why = edit.why.replace("|", "\\|")
            rows.append(f"| `{target.removeprefix('src/transformers/')}` | `{edit.id}` | {scope} | {why} |")
    return "\n".join(rows)


def with_table(text: str) -> str:
    """
    README with a fresh table.

    Args:
        text (`str`):
            README as it is.

    Returns:
        `str`: The same with everything between the two markers replaced.

    Raises:
        `ValueError`: unless each marker is there once, in order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"README.md needs one line `{BEGIN}` and, below it, one line `{END}`: the table goes between")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{edits_table()}\n{END}{rest.partition(END)[2]}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the table of the edits into README.md.")
    parser.add_argument("--check", action="store_true", help="only tell whether the table is current")
    parser.add_argument("--readme", type=Path, default=README, help="another file than README.md")
    options = parser.parse_args(arguments)
    text = options.readme.read_text(encoding="utf-8")
    try:
        fresh = with_table(text)
    except (EditError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if fresh == text:
        return 0
    if options.check:
        print(f"{options.readme}: the table of the edits is not current. Run: make readme", file=sys.stderr)
        return 1
    options.readme.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
