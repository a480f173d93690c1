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
How the edits would do on other releases of upstream: one verdict per edit and release.

- `clean`: fits, and what surrounds it is what was reviewed
- `context changed`: fits, but the code around it has to be read again
- `anchor lost`: the definition or the landmark is not there
- `ambiguous`: there are several
- `file moved`: the file is not there; where the definition is now, if it is anywhere
- `upstream has it`: the release already does what the edit would do
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from apply_edits import locate
from edit_file import MODULE_SCOPE, Edit, EditError, read_edits
from landmarks import Source, definitions, fingerprint
from upstream import UpstreamError, download


VERDICTS = {"applied": "upstream has it", "anchor lost": "anchor lost", "ambiguous": "ambiguous"}


def wanted_definition(edit: Edit) -> str | None:
    """The definition by which to look for an edit's place in another file."""
    if edit.scope != MODULE_SCOPE:
        return edit.scope
    return edit.at.text if edit.at.kind in ("def", "class") else None


def find_moved(tree: Path, edit: Edit) -> str:
    """Where a definition went whose file is gone, in words."""
    wanted = wanted_definition(edit)
    if wanted is None:
        return "no such file"
    last = wanted.rpartition(".")[2].encode("utf-8")
    places = []
    for path in sorted((tree / "transformers").rglob("*.py")):
        data = path.read_bytes()
        # Parsing every file of a release takes a minute; most do not even hold the name.
        if b"def " + last not in data and b"class " + last not in data:
            continue
        if wanted in definitions(Source(path.name, data).tree):
            places.append(f"src/{path.relative_to(tree).as_posix()}")
    return f"`{wanted}` is in {', '.join(places)}" if places else f"`{wanted}` is nowhere"


def verdict(tree: Path, edit: Edit, sources: dict[str, Source | None]) -> tuple[str, str]:
    """
    How one edit does on one release.

    Args:
        tree (`Path`):
            The directory that holds the release's `transformers`.
        edit (`Edit`):
            The edit.
        sources (`dict[str, Source]`):
            The release's files that were parsed so far.

    Returns:
        `tuple[str, str]`: The verdict, and what was found where it is not `"clean"`.
    """
    if edit.target not in sources:
        path = tree / edit.target.removeprefix("src/")
        sources[edit.target] = Source(edit.target, path.read_bytes()) if path.is_file() else None
    source = sources[edit.target]
    if source is None:
        return "file moved", find_moved(tree, edit)
    try:
        found = locate(source, edit)
    except EditError as error:
        if error.kind not in VERDICTS:
            raise
        return VERDICTS[error.kind], error.found
    now = fingerprint(source, edit, found)
    if now == edit.fingerprint:
        return "clean", ""
    return "context changed", f"read {edit.target}, line {found.line}"


def table(releases: list[tuple[str, Path]], edits: dict[str, list[Edit]]) -> tuple[str, list[str]]:
    """The verdicts as a Markdown table with one column per release, and a line for each that is not `clean`."""
    columns, notes = [], []
    every = [edit for own in edits.values() for edit in own]
    for version, tree in releases:
        sources: dict[str, Source | None] = {}
        column = []
        for edit in every:
            result, note = verdict(tree, edit, sources)
            column.append(result)
            if note:
                notes.append(f"{version}: {edit.id}: {result}: {note}")
        columns.append(column)
    versions = [version for version, _ in releases]
    lines = [f"| edit | {' | '.join(versions)} |", f"| --- |{' --- |' * len(versions)}"]
    lines += [f"| `{edit.id}` | {' | '.join(row)} |" for edit, row in zip(every, zip(*columns))]
    totals = [", ".join(f"{count} {word}" for word, count in Counter(column).most_common()) for column in columns]
    lines.append(f"| in all | {' | '.join(totals)} |")
    return "\n".join(lines), notes


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", help="releases to try, for example 5.23.0; or directories with one")
    options = parser.parse_args(arguments)
    try:
        releases = [
            (name, Path(name)) if Path(name, "transformers").is_dir() else (name, download(name).root)
            for name in options.versions
        ]
        text, notes = table(releases, read_edits())
    except (EditError, UpstreamError) as error:
        print(error, file=sys.stderr)
        return 1
    print(text)
    if notes:
        print()
    for note in notes:
        print(note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
