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
The edit engine: puts our call sites into upstream's files.

Edits are located with `ast` in the file as upstream released it, all of them before anything is written, and then
spliced into its bytes from the end to the beginning. Everything outside a splice stays byte for byte. An edit that
does not fit exactly once, or whose surroundings changed since they were reviewed, stops the build.
"""

import argparse
import ast
import difflib
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from edit_file import CHECK_COMMAND, EDITS_DIR, Edit, EditError, read_edits, shown
from landmarks import (
    FUNCTIONS,
    Found,
    Source,
    doc_entry_lines,
    docstring_of,
    find,
    find_doc_entry,
    find_scope,
    fingerprint,
    head_shape,
    lines_inside_strings,
    lost,
    parse_expression,
    shape,
    walk_scope,
)


# Apache-2.0 asks that a modified file says so. A file that holds this line was edited already.
NOTICE = (
    "# This file was modified by the staged checkpoint patch set: see `python -m transformers.trainer_checkpoint`."
)
ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List, ast.Dict, ast.Set, ast.JoinedStr)


@dataclass(frozen=True)
class Splice:
    start: int
    end: int
    text: bytes


# ---- Text ----


def indent_unit(source: Source, scope: ast.AST) -> bytes:
    """One level of indentation as the file has it."""
    body = getattr(scope, "body", [])
    if not isinstance(scope, ast.Module) and body and body[0].lineno != scope.lineno:
        inner, outer = source.indent(source.first_line(body[0])), source.indent(scope.lineno)
        if inner.startswith(outer) and len(inner) > len(outer):
            return inner[len(outer) :]
    return b"    "


def indented(source: Source, edit: Edit, code: str, indent: bytes, unit: bytes) -> bytes:
    """The edit's code as whole lines with the file's indentation and line ends."""
    result = []
    inside = lines_inside_strings(code) if edit.op != "document_argument" else set()
    for number, line in enumerate(code.split("\n"), 1):
        if not line.strip():
            result.append(b"")
        elif number in inside:
            result.append(line.encode("utf-8"))
        else:
            level, rest = divmod(len(line) - len(line.lstrip(" ")), 4)
            result.append(indent + unit * level + b" " * rest + line.lstrip(" ").encode("utf-8"))
    return b"".join(line + source.newline for line in result)


def whole_lines(source: Source, edit: Edit, first: ast.stmt, last: ast.stmt) -> tuple[int, int]:
    """The byte range of the lines that statements fill, or an [`EditError`] where they share a line with other code."""
    start = source.line_start(source.first_line(first))
    end = source.line_start(last.end_lineno + 1)
    if source.first_line(first) == first.lineno:
        before = source.data[start : source.start(first)]
    else:
        before = b""
    after = source.data[source.end(last) : end].strip()
    if source.data[source.start(first) :].startswith(b"elif"):
        found = f"an `elif` on line {first.lineno}, which is a part of the `if` above it"
    elif before.strip() or (after and not after.startswith(b"#")):
        found = f"other code on line {first.lineno if before.strip() else last.end_lineno}"
    else:
        return start, end
    raise lost(source, edit, "anchor lost", f"{edit.where} on lines of its own", found)


def comment_start(source: Source, line: int) -> int:
    """The first line of the comment that stands directly above a line, with the same indentation."""
    indent = source.indent(line)
    while line > 1:
        above = source.data[source.line_start(line - 1) : source.line_start(line)]
        if not above.startswith(indent + b"#"):
            break
        line -= 1
    return line


def insertion(source: Source, position: int, text: bytes) -> Splice:
    """Whole lines put in at the start of a line; a last line without a line end gets one first."""
    if position == len(source.data) and source.data and not source.data.endswith((b"\n", b"\r")):
        text = source.newline + text.removesuffix(source.newline)
    return Splice(position, position, text)


# ---- Operations ----


def checked(edit: Edit, code: str, what: str, accepts) -> list[ast.stmt]:
    """The statements that the edit's code consists of, or an [`EditError`] when it is not what the operation takes."""
    try:
        body = ast.parse(code).body
    except SyntaxError as error:
        found = f"{error.msg} on line {error.lineno} of the code"
    else:
        if body and all(accepts(node) for node in body):
            return body
        found = "; ".join(type(node).__name__ for node in body) or "nothing"
    raise EditError(
        shown(edit.origin), edit.id, "bad edit", what, found, f"correct its `code`, then run `{CHECK_COMMAND}`"
    )


def checked_expression(edit: Edit) -> ast.expr:
    what = f"one expression on one line as the `code` of `{edit.op}`"
    body = checked(edit, edit.code, what, lambda node: isinstance(node, ast.Expr) and "\n" not in edit.code)
    if len(body) == 1:
        return body[0].value
    raise EditError(
        shown(edit.origin), edit.id, "bad edit", what, f"{len(body)} of them", f"correct it, then `{CHECK_COMMAND}`"
    )


def checked_statements(edit: Edit, code: str | None = None) -> list[ast.stmt]:
    """
    Statements for the inside of a function: they may `return`, so they are parsed as a function's body; never empty.
    """
    code = edit.code if code is None else code
    wrapped = "async def body():\n" + "".join(f"    {line}\n" if line else "\n" for line in code.split("\n"))
    return checked(edit, wrapped, f"statements as the `code` of `{edit.op}`", lambda node: True)[0].body


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _check_with_head(edit: Edit) -> None:
    what = "the head of a `with` statement, with its colon, on one line"
    if not edit.code.rstrip().endswith(":") or "\n" in edit.code:
        raise EditError(
            shown(edit.origin),
            edit.id,
            "bad edit",
            what,
            f"`{edit.code}`",
            f"correct its `code`, then run `{CHECK_COMMAND}`",
        )
    checked(edit, edit.code + "\n    pass", what, lambda node: isinstance(node, ast.With))


def _check_decorators(edit: Edit) -> None:
    what = "decorators, each with its `@`, on lines of their own"
    code = edit.code + ("\nclass C: pass" if edit.code.lstrip().startswith("@") else "")
    checked(edit, code, what, lambda node: isinstance(node, ast.ClassDef) and bool(node.decorator_list))


def _check_documentation(edit: Edit) -> None:
    if '"""' in edit.code or "\\" in edit.code or not re.match(r"\w+ \(", edit.code):
        raise EditError(
            shown(edit.origin),
            edit.id,
            "bad edit",
            "entries like ``name (`type`):`` without quotes of a docstring and without backslashes",
            repr(edit.code),
            f"correct its `code`, then run `{CHECK_COMMAND}`",
        )


def check_code(edit: Edit) -> None:
    """Raise an [`EditError`] for an edit whose `code` is not what its operation takes."""
    if edit.op == "wrap_with":
        _check_with_head(edit)
    elif edit.op in ("replace_expression", "replace_callee", "add_base", "add_list_entry"):
        checked_expression(edit)
    elif edit.op == "add_decorator":
        _check_decorators(edit)
    elif edit.op == "document_argument":
        _check_documentation(edit)
    elif edit.op == "add_import":
        checked(edit, edit.code, "import statements", _is_import)
    elif edit.op == "add_field":
        what = "dataclass fields with annotations"
        checked(edit, edit.code, what, lambda n: isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name))
    elif edit.op == "remove_import_name":
        checked(edit, f"({edit.code})", "imported names with commas between them", lambda n: isinstance(n, ast.Expr))
    elif edit.code.strip():
        checked_statements(edit)


def _statements(source: Source, edit: Edit, found: Found) -> tuple[ast.stmt, ast.stmt]:
    first = source.statement_of(found.node)
    return first, found.last if found.last is not None else first


def _insert(source: Source, edit: Edit, found: Found) -> list[Splice]:
    first, last = _statements(source, edit, found)
    start, end = whole_lines(source, edit, first, last)
    text = indented(source, edit, edit.code, source.indent(first.lineno), indent_unit(source, found.scope))
    return [insertion(source, start if edit.op == "insert_before" else end, text)]


def _wrap_with(source: Source, edit: Edit, found: Found) -> list[Splice]:
    first, last = _statements(source, edit, found)
    start, end = whole_lines(source, edit, first, last)
    indent, unit = source.indent(first.lineno), indent_unit(source, found.scope)
    text = indented(source, edit, edit.code, indent, unit)
    for line in range(source.first_line(first), last.end_lineno + 1):
        content = source.data[source.line_start(line) : source.line_start(line + 1)]
        text += content if line in source.string_lines or not content.strip() else unit + content
    return [Splice(start, end, text)]


def _replace_expression(source: Source, edit: Edit, found: Found) -> list[Splice]:
    if edit.op == "replace_callee":
        node = found.node.func
    elif edit.at.kind == "return":
        node = found.node.value
    else:
        node = found.node
    code = edit.code.strip()
    if edit.at.kind != "return" and not isinstance(parse_expression(code), ATOMS):
        code = f"({code})"
    return [Splice(source.start(node), source.end(node), code.encode("utf-8"))]


def _replace_statement(source: Source, edit: Edit, found: Found) -> list[Splice]:
    first, last = _statements(source, edit, found)
    start, end = whole_lines(source, edit, first, last)
    if edit.drop_comment:
        start = source.line_start(comment_start(source, source.first_line(first)))
    if not edit.code.strip():
        return [Splice(start, end, b"")]
    text = indented(source, edit, edit.code, source.indent(first.lineno), indent_unit(source, found.scope))
    if not source.data[start:end].endswith((b"\n", b"\r")):
        text = text.removesuffix(source.newline)
    return [Splice(start, end, text)]


def _replace_body(source: Source, edit: Edit, found: Found) -> list[Splice]:
    function = found.node
    docstring = docstring_of(function)
    body = function.body[1:] if docstring is not None else function.body
    unit = indent_unit(source, function)
    text = indented(source, edit, edit.code, source.indent(function.lineno) + unit, unit)
    if not body:
        _, end = whole_lines(source, edit, docstring, docstring)
        return [insertion(source, end, text)]
    start, end = whole_lines(source, edit, body[0], body[-1])
    start = source.line_start(comment_start(source, source.first_line(body[0])))
    if not source.data[start:end].endswith((b"\n", b"\r")):
        text = text.removesuffix(source.newline)
    return [Splice(start, end, text)]


def _add_field(source: Source, edit: Edit, found: Found) -> list[Splice]:
    _, end = whole_lines(source, edit, found.node, found.node)
    text = indented(source, edit, edit.code, source.indent(found.node.lineno), indent_unit(source, found.scope))
    return [insertion(source, end, text)]


def _add_import(source: Source, edit: Edit, found: Found) -> list[Splice]:
    start, end = whole_lines(source, edit, found.node, found.node)
    text = indented(source, edit, edit.code, source.indent(found.node.lineno), b"    ")
    return [insertion(source, start if edit.place == "before" else end, text)]


def _names(edit: Edit) -> list[str]:
    return [name.strip() for name in edit.code.split(",")]


def _remove_import_name(source: Source, edit: Edit, found: Found) -> list[Splice]:
    statement = found.node
    aliases = {alias.asname or alias.name: alias for alias in statement.names}
    names = _names(edit)
    if missing := [name for name in names if name not in aliases]:
        looked_for = f"the imported names {', '.join(names)} in the {edit.at}"
        raise lost(source, edit, "anchor lost", looked_for, f"no {', '.join(missing)} on line {statement.lineno}")
    if len(names) == len(aliases):
        start, end = whole_lines(source, edit, statement, statement)
        return [Splice(start, end, b"")]
    splices = []
    for name in names:
        alias = aliases[name]
        line_start, line_end = source.line_start(alias.lineno), source.line_start(alias.lineno + 1)
        line = source.data[line_start:line_end].split(b"#")[0].strip()
        if line.rstrip(b",").strip() == source.data[source.start(alias) : source.end(alias)] and line.endswith(b","):
            splices.append(Splice(line_start, line_end, b""))
            continue
        kept = [other for other in statement.names if (other.asname or other.name) not in names]
        rest = [other for other in kept if source.start(other) > source.start(alias)]
        if rest:
            following = statement.names[statement.names.index(alias) + 1]
            splices.append(Splice(source.start(alias), source.start(following), b""))
        else:
            previous = statement.names[statement.names.index(alias) - 1]
            splices.append(Splice(source.end(previous), source.end(alias), b""))
    return splices


def _add_base(source: Source, edit: Edit, found: Found) -> list[Splice]:
    node, code = found.node, edit.code.strip().encode("utf-8")
    # The base stands after the last base and before the first keyword, and either may be absent.
    if node.bases:
        position = source.end(node.bases[-1])
        while source.data[position : position + 1] == b")" and not _closes_class(source, node, position):
            position += 1
        return [Splice(position, position, b", " + code)]
    if node.keywords:
        position = source.start(node.keywords[0])
        return [Splice(position, position, code + b", ")]
    head = re.compile(rb"class\s+" + node.name.encode("utf-8"))
    position = head.match(source.data, source.start(node)).end()
    if parameters := getattr(node, "type_params", None):
        position = source.data.index(b"]", source.end(parameters[-1])) + 1
    if empty := re.compile(rb"\s*\(\s*\)").match(source.data, position):
        return [Splice(position, empty.end(), b"(" + code + b")")]
    return [Splice(position, position, b"(" + code + b")")]


def _closes_class(source: Source, node: ast.ClassDef, position: int) -> bool:
    """Whether the `)` at a position is the one of the class statement, not one around its last base."""
    rest = source.data[position + 1 : source.line_start(source.first_line(node.body[0]) + 1)]
    return rest.lstrip().startswith(b":")


def _add_decorator(source: Source, edit: Edit, found: Found) -> list[Splice]:
    start = source.line_start(source.first_line(found.node))
    return [insertion(source, start, indented(source, edit, edit.code, source.indent(found.node.lineno), b"    "))]


def _add_list_entry(source: Source, edit: Edit, found: Found) -> list[Splice]:
    node, code = found.node, edit.code.strip().encode("utf-8")
    if not node.elts:
        position = source.start(node) + 1
        return [Splice(position, position, code + (b"," if isinstance(node, ast.Tuple) else b""))]
    last = node.elts[-1]
    # Between the last entry and the bracket there can be brackets around the entry, white space, comments and a comma.
    tail = re.compile(rb"(?:[\s)]|#[^\r\n]*)*?,").match(source.data[: source.end(node) - 1], source.end(last))
    if node.end_lineno == last.end_lineno:
        position = tail.end() if tail else source.end(last)
        return [Splice(position, position, (b" " if tail else b", ") + code)]
    indent = source.indent(last.lineno)
    text = indent + code + b"," + source.newline
    splices = [insertion(source, source.line_start(last.end_lineno + 1), text)]
    if not tail:
        splices.insert(0, Splice(source.end(last), source.end(last), b","))
    return splices


def _document_argument(source: Source, edit: Edit, found: Found) -> list[Splice]:
    entry = find_doc_entry(source, edit, found.scope, edit.at.text)
    below = source.indent(entry.first + 1)
    deeper = entry.last > entry.first and below.startswith(entry.indent) and below != entry.indent
    unit = below[len(entry.indent) :] if deeper else b"    "
    text = indented(source, edit, edit.code, entry.indent, unit)
    return [insertion(source, source.line_start(entry.last + 1), text)]


OPERATIONS = {
    "insert_before": _insert,
    "insert_after": _insert,
    "wrap_with": _wrap_with,
    "replace_expression": _replace_expression,
    "replace_callee": _replace_expression,
    "replace_statement": _replace_statement,
    "replace_body": _replace_body,
    "add_field": _add_field,
    "add_import": _add_import,
    "remove_import_name": _remove_import_name,
    "add_base": _add_base,
    "add_decorator": _add_decorator,
    "add_list_entry": _add_list_entry,
    "document_argument": _document_argument,
}


# ---- Applied already ----


def _present(source: Source, edit: Edit) -> bool:
    """Whether the definition already holds what the edit would put there: it was applied, or upstream has it."""
    scope = find_scope(source, edit)
    nodes = list(walk_scope(scope))
    if edit.op == "wrap_with":
        wanted = head_shape(ast.parse(edit.code + "\n    pass").body[0])
        return any(isinstance(node, ast.With) and head_shape(node) == wanted for node in nodes)
    if edit.op in ("replace_expression", "replace_callee"):
        wanted = shape(parse_expression(edit.code))
        return any(isinstance(node, ast.expr) and shape(node) == wanted for node in nodes)
    if edit.op == "add_base":
        classes = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == edit.at.text]
        return any(shape(base) == shape(parse_expression(edit.code)) for node in classes for base in node.bases)
    if edit.op == "add_decorator":
        wanted = {shape(d) for d in ast.parse(edit.code + "\nclass C: pass").body[0].decorator_list}
        holders = [node for node in nodes if getattr(node, "name", None) == edit.at.text]
        return any(wanted & {shape(d) for d in getattr(node, "decorator_list", [])} for node in holders)
    if edit.op == "add_list_entry":
        return any(shape(item) == shape(parse_expression(edit.code)) for item in find(source, edit).node.elts)
    if edit.op == "document_argument":
        docstring = docstring_of(scope)
        names = re.findall(r"^(\w+) \(", edit.code, flags=re.MULTILINE)
        return docstring is not None and any(doc_entry_lines(source, docstring, name) for name in names)
    if edit.op == "add_field":
        names = {node.target.id for node in ast.parse(edit.code).body}
        return any(isinstance(node, ast.AnnAssign) and getattr(node.target, "id", None) in names for node in nodes)
    if edit.op == "remove_import_name":
        statements = [n for n in nodes if _is_import(n)]
        return not any((alias.asname or alias.name) in _names(edit) for n in statements for alias in n.names)
    if edit.op == "add_import":
        names = {alias.asname or alias.name for node in ast.parse(edit.code).body for alias in node.names}
        present = {alias.asname or alias.name for n in nodes if _is_import(n) for alias in n.names}
        return bool(names & present)
    if not edit.code.strip():
        return False
    wanted = [shape(node) for node in checked_statements(edit)]
    if edit.op == "replace_body":
        functions = [n for n in nodes if isinstance(n, FUNCTIONS) and n.name == edit.at.text]
        bodies = [n.body[1:] if docstring_of(n) is not None else n.body for n in functions]
        return any([shape(node) for node in body] == wanted for body in bodies)
    present = {shape(node) for node in nodes if isinstance(node, ast.stmt)}
    return all(text in present for text in wanted)


# The code of these can be in a definition for another reason, so it only counts once the landmark is gone.
REPLACING = ("replace_expression", "replace_callee", "replace_statement")


def locate(source: Source, edit: Edit) -> Found:
    """
    [`landmarks.find`], with an error of the kind `"applied"` for an edit that the file has already.
    """
    check_code(edit)
    try:
        found = find(source, edit)
    except EditError as error:
        if error.kind == "anchor lost":
            try:
                applied = _present(source, edit)
            except EditError:
                applied = False
            if applied:
                raise _applied(source, edit) from error
        raise
    if edit.op not in REPLACING and _present(source, edit):
        raise _applied(source, edit)
    return found


def _applied(source: Source, edit: Edit) -> EditError:
    return EditError(
        source.name,
        edit.id,
        "applied",
        f"{edit.where} without this edit",
        "the edit's result: the file was edited before, or upstream has the change",
        "start from upstream's release (`make link` fetches it), or retire the edit",
    )


# ---- Applying ----


def refuse_modified(name: str, data: bytes) -> None:
    """Raise an [`EditError`] for a file that carries the notice of a modified file."""
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip() == NOTICE.encode():
            raise EditError(
                name,
                "(all)",
                "applied",
                "the file as upstream released it",
                f"the notice of a modified file on line {number}",
                "start from upstream's release: `make link` fetches it",
            )


def review(source: Source, edit: Edit, found: Found) -> None:
    """Raise an [`EditError`] when the code around an edit is not what it was reviewed against."""
    now = fingerprint(source, edit, found)
    if now != edit.fingerprint:
        raise EditError(
            source.name,
            edit.id,
            "context changed",
            f"the fingerprint {edit.fingerprint or '(none yet)'} for what surrounds the {edit.where}",
            f"{now}, line {found.line}",
            f"read the code there, then accept it with `python utils/apply_edits.py --fingerprint --write {edit.id}`",
        )


def apply_edits(name: str, data: bytes, edits: list[Edit], notice: bool = True, reviewed: bool = True) -> bytes:
    """
    Apply all edits of one file.

    Args:
        name (`str`):
            How errors call the file.
        data (`bytes`):
            The file as upstream released it.
        edits (`list[Edit]`):
            The edits, in any order.
        notice (`bool`, *optional*, defaults to `True`):
            Whether the result carries the one-line notice of a modified file.
        reviewed (`bool`, *optional*, defaults to `True`):
            Whether the code around each edit has to be what it was reviewed against.

    Returns:
        `bytes`: The edited file, which compiles.

    Raises:
        `EditError`: for the first edit that does not fit; nothing is applied then.
    """
    refuse_modified(name, data)
    source = Source(name, data)
    placed: list[tuple[Splice, Edit]] = []
    for edit in edits:
        found = locate(source, edit)
        if reviewed:
            review(source, edit, found)
        placed.extend((splice, edit) for splice in OPERATIONS[edit.op](source, edit, found))
    placed.sort(key=lambda item: (item[0].start, item[0].end))
    for (one, first), (other, second) in zip(placed, placed[1:]):
        if other.start < one.end or (one.start, one.end) == (other.start, other.end):
            line = source.data.count(b"\n", 0, other.start) + 1
            raise EditError(
                name,
                second.id,
                "overlap",
                f"{second.where} for itself",
                f"the edit `{first.id}` at the same place, line {line}",
                f"join the two edits, or move one to another landmark, then run `{CHECK_COMMAND}`",
            )
    result = source.data
    for splice, _ in reversed(placed):
        result = result[: splice.start] + splice.text + result[splice.end :]
    try:
        compile(result, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        ids = ", ".join(edit.id for edit in edits)
        raise EditError(
            name, ids, "bad edit", "a file that compiles", f"{error.msg}, line {error.lineno}", f"`{CHECK_COMMAND}`"
        ) from error
    if notice:
        result = add_notice(result, source.newline)
    return source.bom + result


def add_notice(data: bytes, newline: bytes) -> bytes:
    """Put the notice of a modified file behind the comment that the file begins with, or in front of everything."""
    position = 0
    for match in re.finditer(rb"[^\r\n]*(\r\n|\r|\n|$)", data):
        if not match[0].startswith(b"#"):
            break
        position = match.end()
    if position and not data[:position].endswith((b"\n", b"\r")):
        return data + newline + NOTICE.encode("utf-8") + newline
    return data[:position] + NOTICE.encode("utf-8") + newline + data[position:]


def edited_files(tree: Path, edits: dict[str, list[Edit]], notice: bool = True) -> dict[str, bytes]:
    """
    Every touched file of a source tree with its edits applied. Nothing is written.

    Args:
        tree (`Path`):
            The directory that holds `transformers`.
        edits (`dict[str, list[Edit]]`):
            The edits by upstream file, as [`edit_file.read_edits`] gives them.
        notice (`bool`, *optional*, defaults to `True`):
            Whether the results carry the notice of a modified file.

    Returns:
        `dict[str, bytes]`: The contents by upstream file (`"src/transformers/trainer.py"`).

    Raises:
        `EditError`: for the first edit that does not fit, or whose file is not there.
    """
    return {
        target: apply_edits(target, upstream_bytes(tree, target, file_edits), file_edits, notice)
        for target, file_edits in edits.items()
    }


def upstream_bytes(tree: Path, target: str, edits: list[Edit]) -> bytes:
    """The content of the file that edits are for."""
    path = tree / target.removeprefix("src/")
    if not path.is_file():
        raise EditError(
            target,
            edits[0].id,
            "anchor lost",
            f"the file {target}",
            "no such file in this release",
            f"rename {shown(edits[0].origin)} after the file's new name, then run `{CHECK_COMMAND}`",
        )
    return path.read_bytes()


# ---- Command line ----


def write_fingerprints(tree: Path, edits: dict[str, list[Edit]], only: list[str], write: bool) -> int:
    """Print, and with `write` store, the fingerprint of each named edit (of all without names)."""
    known = {edit.id for file_edits in edits.values() for edit in file_edits}
    for unknown in [name for name in only if name not in known]:
        print(f"no edit has the id `{unknown}`", file=sys.stderr)
        return 1
    for target, file_edits in edits.items():
        source = Source(target, upstream_bytes(tree, target, file_edits))
        for edit in file_edits:
            if only and edit.id not in only:
                continue
            now = fingerprint(source, edit, locate(source, edit))
            print(f"{edit.id}: {now}{'' if now == edit.fingerprint else f' (was {edit.fingerprint or None})'}")
            if write and now != edit.fingerprint:
                store_fingerprint(edit, now)
    return 0


def store_fingerprint(edit: Edit, value: str) -> None:
    """Replace one edit's fingerprint in its edit file and leave every other byte."""
    text = edit.origin.read_text(encoding="utf-8")
    tables = re.split(r"(?m)^(?=\[\[edit\]\])", text)
    for number, table in enumerate(tables):
        if re.search(rf'(?m)^id\s*=\s*"{re.escape(edit.id)}"', table):
            tables[number] = re.sub(r'(?m)^fingerprint\s*=\s*".*"', f'fingerprint = "{value}"', table)
    edit.origin.write_text("".join(tables), encoding="utf-8")


def check(tree: Path, edits: dict[str, list[Edit]]) -> int:
    """Try every edit on a source tree and print each error; 0 when all fit."""
    errors: list[EditError] = []
    for target, file_edits in edits.items():
        try:
            data = upstream_bytes(tree, target, file_edits)
            refuse_modified(target, data)
            source = Source(target, data)
        except EditError as error:
            errors.append(error)
            continue
        before = len(errors)
        for edit in file_edits:
            try:
                review(source, edit, locate(source, edit))
            except EditError as error:
                errors.append(error)
        if len(errors) == before:
            try:
                apply_edits(target, data, file_edits)
            except EditError as error:
                errors.append(error)
    for error in errors:
        print(error, file=sys.stderr)
    count = sum(len(file_edits) for file_edits in edits.values())
    print(f"{count} edits in {len(edits)} files, {len(errors)} errors")
    return 1 if errors else 0


def unified_diff(tree: Path, edits: dict[str, list[Edit]], notice: bool = True, context: int = 3) -> str:
    """The whole seam as a unified diff."""
    parts = []
    for target, content in edited_files(tree, edits, notice).items():
        before = upstream_bytes(tree, target, edits[target]).decode("utf-8").splitlines(keepends=True)
        after = content.decode("utf-8").splitlines(keepends=True)
        parts.extend(difflib.unified_diff(before, after, f"a/{target}", f"b/{target}", n=context))
    return "".join(parts)


def apply_into(tree: Path, destination: Path, edits: dict[str, list[Edit]]) -> None:
    """Copy `tree/transformers` into a new directory and write the edited files there."""
    if (destination / "transformers").exists():
        raise SystemExit(f"{destination / 'transformers'} exists already: give a directory without it")
    contents = edited_files(tree, edits)
    shutil.copytree(tree / "transformers", destination / "transformers", ignore=shutil.ignore_patterns("__pycache__"))
    for target, content in contents.items():
        (destination / target.removeprefix("src/")).write_bytes(content)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Apply our edits to upstream's source, or look at them.")
    parser.add_argument("tree", nargs="?", type=Path, help="directory that holds `transformers`; default: the release")
    parser.add_argument("--edits", type=Path, default=EDITS_DIR, help="directory with the edit files")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="try every edit and list each error")
    action.add_argument("--diff", action="store_true", help="print the seam as a unified diff")
    action.add_argument("--into", type=Path, metavar="DIR", help="copy the tree to DIR and apply the edits there")
    action.add_argument("--fingerprint", nargs="*", metavar="ID", help="print the fingerprints of the edits")
    parser.add_argument("--write", nargs="*", metavar="ID", help="with --fingerprint: store them, after a review")
    options = parser.parse_args(arguments)
    try:
        edits = read_edits(options.edits.resolve())
        tree = options.tree
        if tree is None:
            from upstream import released_tree

            tree = released_tree()
        if options.check:
            return check(tree, edits)
        if options.diff:
            print(unified_diff(tree, edits), end="")
        elif options.into is not None:
            apply_into(tree, options.into, edits)
        else:
            only = [*options.fingerprint, *(options.write or [])]
            return write_fingerprints(tree, edits, only, options.write is not None)
    except EditError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
