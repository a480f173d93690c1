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
Reading `edits/**/*.toml`: what an edit may say, and the error every mistake in one ends in.

An edit file is named after the upstream file it touches, `edits/src/transformers/trainer.py.toml` for
`src/transformers/trainer.py`, and holds one `[[edit]]` table per call site. Nothing here looks at upstream's source.
"""

import re
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path


ROOT = Path(__file__).resolve().parents[1]
EDITS_DIR = ROOT / "edits"
MODULE_SCOPE = "<module>"

# How a landmark is described in an error, by kind. The keys are the closed set of kinds.
KINDS = {
    "call": "call to",
    "return": "return of",
    "statement": "statement",
    "expression": "expression",
    "field": "field",
    "import": "import of",
    "import_from": "import from",
    "class": "class",
    "def": "function",
    "list": "list",
    "argument": "documentation of the argument",
}

STATEMENTS = ("statement", "call", "return")


@dataclass(frozen=True)
class Op:
    """What one operation accepts: landmark kinds, optional keys, and whether `code` may be empty."""

    kinds: tuple[str, ...]
    optional: tuple[str, ...] = ()
    may_delete: bool = False


# The closed set of operations.
OPS = {
    "insert_before": Op(STATEMENTS),
    "insert_after": Op(STATEMENTS),
    "wrap_with": Op(STATEMENTS, optional=("through",)),
    "replace_expression": Op(("call", "return", "expression")),
    "replace_callee": Op(("call",)),
    "replace_statement": Op(STATEMENTS, optional=("through", "drop_comment"), may_delete=True),
    "replace_body": Op(("def",)),
    "add_field": Op(("field",)),
    "add_import": Op(("import_from", "import"), optional=("place",)),
    "remove_import_name": Op(("import_from", "import")),
    "add_base": Op(("class",)),
    "add_decorator": Op(("class", "def")),
    "add_list_entry": Op(("list",)),
    "document_argument": Op(("argument",)),
}

REQUIRED = {"id": str, "in": str, "at": dict, "op": str, "code": str, "why": str, "retire": str, "fingerprint": str}
OPTIONAL = {"through": dict, "drop_comment": bool, "place": str}

CHECK_COMMAND = "python utils/apply_edits.py --check"


class EditError(Exception):
    """
    One edit that cannot be read or applied.

    Args:
        file (`str`):
            The file the mistake is in: the edit file, or the upstream file the edit is for.
        edit_id (`str`):
            The edit, or a description of the table when it has no usable id.
        kind (`str`):
            One word for `drift`: `"bad edit"`, `"anchor lost"`, `"ambiguous"`, `"context changed"`, `"applied"`,
            `"overlap"`, `"bad source"`.
        looked_for (`str`):
            What was expected.
        found (`str`):
            What is there, with line numbers.
        next_step (`str`):
            What to do, ending in a command.
    """

    def __init__(self, file: str, edit_id: str, kind: str, looked_for: str, found: str, next_step: str):
        self.file = file
        self.edit_id = edit_id
        self.kind = kind
        self.looked_for = looked_for
        self.found = found
        self.next_step = next_step
        super().__init__(file, edit_id, kind, looked_for, found, next_step)

    def __str__(self) -> str:
        return (
            f"{self.file}: edit `{self.edit_id}`: {self.kind}\n"
            f"  looked for: {self.looked_for}\n"
            f"  found: {self.found}\n"
            f"  next: {self.next_step}"
        )


@dataclass(frozen=True)
class Landmark:
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{KINDS[self.kind]} `{self.text}`"


@dataclass(frozen=True)
class Edit:
    """One call site in one upstream file."""

    id: str
    target: str
    origin: Path
    scope: str
    at: Landmark
    op: str
    code: str
    why: str
    retire: str
    fingerprint: str
    through: Landmark | None = None
    drop_comment: bool = False
    place: str = "after"

    @property
    def where(self) -> str:
        scope = "the module's top level" if self.scope == MODULE_SCOPE else f"`{self.scope}`"
        through = f" through the {self.through}" if self.through else ""
        return f"{self.at}{through} in {scope}"


def shown(path: Path) -> str:
    """The path as a reader of the repository knows it."""
    try:
        return path.resolve().relative_to(ROOT).as_posix()
    except ValueError:
        return path.as_posix()


def _last_id_before(text: str, line: int) -> str:
    """The id of the table that a syntax error at `line` is in: the parser itself gives only the line."""
    found = "(no id yet)"
    for candidate in text.splitlines()[:line]:
        if candidate.strip() == "[[edit]]":
            found = "(no id yet)"
        elif match := re.match(r'\s*id\s*=\s*["\'](.*)["\']', candidate):
            found = match[1]
    return found


def _parse_landmark(file: str, edit_id: str, key: str, value: dict, op: str) -> Landmark:
    def refuse(found: str):
        raise EditError(
            file,
            edit_id,
            "bad edit",
            f"`{key}` with one landmark that `{op}` can work on: {', '.join(OPS[op].kinds)}",
            found,
            f"correct `{key}` in {file}, then run `{CHECK_COMMAND}`",
        )

    if len(value) != 1:
        refuse(f"{len(value)} landmarks: {', '.join(value) or 'none'}")
    kind, text = next(iter(value.items()))
    if kind not in KINDS:
        refuse(f"an unknown landmark `{kind}`")
    if kind not in OPS[op].kinds:
        refuse(f"the landmark `{kind}`")
    if not isinstance(text, str) or not text.strip():
        refuse(f"`{kind}` = {text!r}, which is not a text")
    return Landmark(kind, text.strip())


def _parse_table(file: str, origin: Path, target: str, number: int, table: dict) -> Edit:
    edit_id = table["id"] if isinstance(table.get("id"), str) and table["id"] else f"(table {number})"

    def refuse(looked_for: str, found: str):
        raise EditError(
            file, edit_id, "bad edit", looked_for, found, f"correct it in {file}, then run `{CHECK_COMMAND}`"
        )

    allowed = {**REQUIRED, **OPTIONAL}
    for key in table:
        if key not in allowed:
            refuse(f"only the keys {', '.join(allowed)}", f"an unknown key `{key}`")
    for key in REQUIRED:
        if key not in table:
            refuse(f"the key `{key}`", "no such key in the table")
    for key, value in table.items():
        if not isinstance(value, allowed[key]):
            refuse(f"`{key}` as a {allowed[key].__name__}", f"{value!r}")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", table["id"]):
        refuse("an `id` of lower-case words joined by dashes", repr(table["id"]))
    op = table["op"]
    if op not in OPS:
        refuse(f"an `op` out of {', '.join(OPS)}", f"`{op}`, which does not exist")
    for key in OPTIONAL:
        if key in table and key not in OPS[op].optional:
            refuse(f"only keys that `{op}` knows", f"the key `{key}`")
    for key in ("in", "why", "retire"):
        if not table[key].strip():
            refuse(f"a text for `{key}`", "an empty one")
    code = textwrap.dedent(table["code"].expandtabs(4)).strip("\n")
    if not code.strip() and not OPS[op].may_delete:
        refuse(f"the `code` for `{op}`", "an empty one")
    if table.get("place", "after") not in ("before", "after"):
        refuse('`place` = "before" or "after"', repr(table["place"]))
    return Edit(
        id=edit_id,
        target=target,
        origin=origin,
        scope=table["in"].strip(),
        at=_parse_landmark(file, edit_id, "at", table["at"], op),
        op=op,
        code=code,
        why=" ".join(table["why"].split()),
        retire=" ".join(table["retire"].split()),
        fingerprint=table["fingerprint"],
        through=_parse_landmark(file, edit_id, "through", table["through"], op) if "through" in table else None,
        drop_comment=table.get("drop_comment", False),
        place=table.get("place", "after"),
    )


def parse_edit_file(path: Path, edits_dir: Path = EDITS_DIR) -> list[Edit]:
    """
    Read one edit file.

    Args:
        path (`Path`):
            A file below `edits_dir` whose name is the upstream file's name with `.toml` appended.
        edits_dir (`Path`, *optional*, defaults to the repository's `edits`):
            What the upstream path is relative to.

    Returns:
        `list[Edit]`: The edits in the file's order.

    Raises:
        `EditError`: for anything the file may not say.
    """
    file = shown(path)
    text = path.read_text(encoding="utf-8")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        edit_id = _last_id_before(text, int(line[1]) if line else len(text))
        raise EditError(
            file, edit_id, "bad edit", "a file in TOML, no key twice", str(error), f"correct {file}"
        ) from error
    tables = data.pop("edit", [])
    if data or not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise EditError(
            file,
            "(file)",
            "bad edit",
            "one or more `[[edit]]` tables and nothing beside them",
            f"the top-level keys {', '.join(data)}" if data else "no `[[edit]]` table",
            f"correct {file}, then run `{CHECK_COMMAND}`",
        )
    target = path.relative_to(edits_dir).as_posix().removesuffix(".toml")
    return [_parse_table(file, path, target, number, table) for number, table in enumerate(tables, 1)]


def read_edits(edits_dir: Path = EDITS_DIR) -> dict[str, list[Edit]]:
    """
    Read every edit file.

    Args:
        edits_dir (`Path`, *optional*, defaults to the repository's `edits`):
            The directory with the edit files.

    Returns:
        `dict[str, list[Edit]]`: The edits by upstream file (`"src/transformers/trainer.py"`), files in order.

    Raises:
        `EditError`: for a file that cannot be read, or an id that is used twice.
    """
    by_target: dict[str, list[Edit]] = {}
    seen: dict[str, Edit] = {}
    for path in sorted(edits_dir.rglob("*.toml")):
        edits = parse_edit_file(path, edits_dir)
        for edit in edits:
            if edit.id in seen:
                raise EditError(
                    shown(path),
                    edit.id,
                    "bad edit",
                    "an `id` that no other edit has",
                    f"the same id in {shown(seen[edit.id].origin)}",
                    f"give one of the two another id, then run `{CHECK_COMMAND}`",
                )
            seen[edit.id] = edit
        by_target[edits[0].target] = edits
    return by_target
