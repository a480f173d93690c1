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
README's map of the repository: a phrase per file, between two marker lines, and checked by a test.

The phrase of a Python file is the first sentence of its docstring, so that a file says itself what it is for. Only
files that have none are described here.
"""

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

from edit_file import ROOT


README = ROOT / "README.md"
BEGIN = "<!-- map: made by `python utils/readme_map.py`, not by hand -->"
END = "<!-- end of map -->"

# Sections in this order: directory, what it holds, and whether its files are shown at once.
SECTIONS = (
    ("", "At the root", True),
    ("src/transformers", "Our modules, at the path they have in the package", True),
    ("edits/src/transformers", "Call sites in upstream's files, declared; the table below has each", False),
    ("docs", "Pages in upstream's format", True),
    ("examples/demo", "What `make demo` runs", True),
    ("utils", "Tools: building, checking, the way upstream. Each has `--help`", True),
    ("tests", "Tests. [TESTING.md](tests/TESTING.md) says how to run which and how to add a fault", False),
    ("benchmarks", "What it costs, side by side with the stock release", False),
)

PHRASES = {
    ".ci/run": "Runs all tests from a fresh clone",
    ".gitignore": "What is built or downloaded",
    "LICENSE": "Apache-2.0",
    "MANIFEST.in": "What a source distribution holds",
    "Makefile": "`make help` lists the targets",
    "README.md": "This page",
    "UPSTREAM.toml": "The pinned release and its digest, the number of the patch set",
    "pyproject.toml": "The build requirement, and the settings of ruff, ty and pytest",
    "requirements/test.txt": "What the tests and the style check need",
    "docs/source/en/trainer_checkpoints.md": "The user's page: options, commands, messages, after an accident",
    "docs/source/en/trainer_checkpoint_protocol.md": "The protocol: steps, commit point, crash gaps, who may delete",
    "docs/source/en/trainer_checkpoint_proof.md": "What the campaigns of `make prove` found, generated",
    "docs/proof.json": "The results of one run of `make prove`",
    "docs/toctree.yml": "Their place in upstream's table of contents",
    "docs/images/demo.svg": "The recording at the top of this page, made by `demo.py --record`",
    "examples/demo/run.sh": "Sets up what the demo needs and runs it",
    "tests/TESTING.md": "How the suite is laid out",
    "utils/upstream_tests.toml": "Upstream's tests that are left out or changed on purpose, with the reason",
}


class MapError(Exception):
    """A file cannot be put on the map. The text says which and what to do."""


def files(root: Path = ROOT) -> list[str]:
    """Every file that the repository has or would get with the next `git add --all`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True, timeout=60).stdout.decode("utf-8")
    return sorted(name for name in set(listed.split("\0")) if name and (root / name).is_file())


def phrase(name: str, root: Path = ROOT) -> str | None:
    """
    What a file is for, in a phrase; `None` for a file without content, which needs none.

    Raises:
        `MapError`: for a file that does not say what it is for.
    """
    if name in PHRASES:
        return PHRASES[name]
    if name.startswith("edits/") and name.endswith(".toml"):
        return f"The edits of `{name.removeprefix('edits/src/transformers/').removesuffix('.toml')}`"
    text = (root / name).read_text(encoding="utf-8")
    if not text.strip():
        return None
    docstring = ast.get_docstring(ast.parse(text)) if name.endswith(".py") else None
    if docstring is None:
        raise MapError(f"{name} is not on README's map: give it a docstring, or a line in {Path(__file__).name}")
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[^.])\.(?:\s|$)", paragraph)[0].rstrip(".:")


def repository_map(root: Path = ROOT) -> str:
    """The map as Markdown: a table per section, files in order of their paths. Raises `MapError`."""
    parts = []
    names = files(root)
    known = tuple(f"{directory}/" for directory, _, _ in SECTIONS if directory)
    for directory, title, open_ in SECTIONS:
        inside = [
            name for name in names if (name.startswith(f"{directory}/") if directory else not name.startswith(known))
        ]
        rows = ["| file | what it is for |", "| --- | --- |"]
        for name in inside:
            text = phrase(name, root)
            if text is not None:
                escaped = text.replace("|", "\\|")
                rows.append(f"| [`{name.removeprefix(f'{directory}/')}`]({name}) | {escaped} |")
        if len(rows) == 2:
            continue
        heading = f"**{f'`{directory}/`: ' if directory else ''}{title}.**"
        table = "\n".join(rows)
        parts.append(
            f"{heading}\n\n{table}"
            if open_
            else f"{heading}\n\n<details><summary>files</summary>\n\n{table}\n\n</details>"
        )
    return "\n\n".join(parts)


def with_map(text: str, root: Path = ROOT) -> str:
    """README with a fresh map. Raises `ValueError` unless each marker is there once, in order; `MapError`."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"README.md needs one line `{BEGIN}` and, below it, one line `{END}`: the map goes between")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{repository_map(root)}\n\n{END}{rest.partition(END)[2]}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the map of the repository into README.md.")
    parser.add_argument("--check", action="store_true", help="only tell whether the map is current")
    parser.add_argument("--readme", type=Path, default=README, help="another file than README.md")
    options = parser.parse_args(arguments)
    text = options.readme.read_text(encoding="utf-8")
    try:
        fresh = with_map(text)
    except (MapError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if fresh == text:
        return 0
    if options.check:
        print(f"{options.readme}: the map is not current. Run: python utils/{Path(__file__).name}", file=sys.stderr)
        return 1
    options.readme.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
