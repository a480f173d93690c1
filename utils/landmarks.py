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
Finding landmarks in Python source with `ast`, in byte positions, and fingerprinting what surrounds them.

Spelling, comments and line breaks never decide a match: two pieces of code are the same when their syntax trees are.
"""

import ast
import functools
import hashlib
import io
import re
import tokenize
from dataclasses import dataclass

from edit_file import CHECK_COMMAND, KINDS, MODULE_SCOPE, Edit, EditError, Landmark


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.ClassDef)
BOM = b"\xef\xbb\xbf"

# Parts of a node that say nothing about what the code does, or that only some Python versions have.
NOT_MEANING = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


def shape(node) -> str:
    """
    A text that is equal for equal code. Unlike `ast.dump` it is the same on every Python version that we support:
    empty and absent parts are left out, so a part that a newer version adds does not show until it is used.
    """
    if isinstance(node, ast.AST):
        parts = []
        for name in node._fields:
            value = getattr(node, name, None)
            if name in NOT_MEANING or value is None or value == []:
                continue
            parts.append(f"{name}={shape(value)}")
        # `Constant(value=None)` has to stay apart from a Constant without a value.
        if isinstance(node, ast.Constant) and node.value is None:
            parts.append("value=None")
        return f"{type(node).__name__}({', '.join(parts)})"
    if isinstance(node, list):
        return f"[{', '.join(shape(item) for item in node)}]"
    return repr(node)


def docstring_of(node) -> ast.Expr | None:
    """The statement that is the docstring of a definition, or `None`."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
        value = body[0].value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return body[0]
    return None


def shape_without_docstrings(node: ast.AST) -> str:
    """[`shape`] of a definition, with its docstring and those of all definitions inside it left out."""
    holders = [n for n in ast.walk(node) if isinstance(n, SCOPES) and docstring_of(n) is not None]
    kept = [(holder, holder.body) for holder in holders]
    try:
        for holder in holders:
            holder.body = holder.body[1:]
        return shape(node)
    finally:
        for holder, body in kept:
            holder.body = body


def head_shape(statement: ast.stmt) -> str:
    """[`shape`] of a statement without the blocks below its head."""
    parts = []
    for name in statement._fields:
        value = getattr(statement, name, None)
        if name in NOT_MEANING or name in ("body", "orelse", "finalbody", "handlers", "cases"):
            continue
        if value is not None and value != []:
            parts.append(f"{name}={shape(value)}")
    return f"{type(statement).__name__}({', '.join(parts)})"


def lines_inside_strings(code: str) -> set[int]:
    """The lines (counted from 1) that begin inside a string: their leading white space is part of a value."""
    inside: set[int] = set()
    opened: list[int] = []
    starts = tuple(getattr(tokenize, name) for name in ("FSTRING_START", "TSTRING_START") if hasattr(tokenize, name))
    ends = tuple(getattr(tokenize, name) for name in ("FSTRING_END", "TSTRING_END") if hasattr(tokenize, name))
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        first = None
        if token.type == tokenize.STRING:
            first = token.start[0]
        elif token.type in starts:
            opened.append(token.start[0])
        elif token.type in ends:
            first = opened.pop()
        if first is not None:
            inside.update(range(first + 1, token.end[0] + 1))
    return inside


class Source:
    """
    A Python file as bytes, with its syntax tree and the way from tree positions to byte positions.

    Args:
        name (`str`):
            How errors call the file.
        data (`bytes`):
            The file's content.
    """

    def __init__(self, name: str, data: bytes):
        self.name = name
        self.bom = BOM if data.startswith(BOM) else b""
        self.data = data[len(self.bom) :]
        cookie = re.match(rb"[^\n]*\n?[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", self.data)
        try:
            if cookie and cookie[1].lower().replace(b"_", b"-") not in (b"utf-8", b"utf8", b"ascii", b"us-ascii"):
                raise SyntaxError(f"the encoding {cookie[1].decode('ascii')} instead of utf-8")
            self.data.decode("utf-8")
            self.tree = ast.parse(self.data)
        except (SyntaxError, UnicodeDecodeError, ValueError) as error:
            raise EditError(
                name, "(file)", "bad source", "Python source in utf-8", str(error), f"`{CHECK_COMMAND}`"
            ) from error
        # `ast` counts a line at each of these, `str.splitlines` at some more.
        self.line_starts = [0, *(match.end() for match in re.finditer(rb"\r\n|\r|\n", self.data))]
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @functools.cached_property
    def definitions(self) -> dict[str, list[ast.AST]]:
        return definitions(self.tree)

    @functools.cached_property
    def string_lines(self) -> set[int]:
        return lines_inside_strings(self.data.decode("utf-8"))

    @functools.cached_property
    def newline(self) -> bytes:
        first = re.search(rb"\r\n|\r|\n", self.data)
        return first[0] if first else b"\n"

    def line_start(self, line: int) -> int:
        """Where the line (counted from 1) begins; past the last line, the end of the file."""
        return self.line_starts[line - 1] if line <= len(self.line_starts) else len(self.data)

    def start(self, node) -> int:
        return self.line_start(node.lineno) + node.col_offset

    def end(self, node) -> int:
        return self.line_start(node.end_lineno) + node.end_col_offset

    def indent(self, line: int) -> bytes:
        """The white space that the line begins with."""
        return re.match(rb"[ \t\f]*", self.data[self.line_start(line) :])[0]

    def first_line(self, statement: ast.stmt) -> int:
        """The line a statement begins on, its decorators included."""
        return min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds a node."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def block_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements that a statement is in."""
        parent = self.parents[statement]
        for _, value in ast.iter_fields(parent):
            if isinstance(value, list) and statement in value:
                return value
        raise AssertionError(f"{self.name}: a statement outside every block, line {statement.lineno}")


@dataclass(frozen=True)
class Found:
    """Where an edit's landmark is: the definition, the node, the line to read, and the last node of a range."""

    scope: ast.AST
    node: ast.AST
    line: int
    last: ast.AST | None = None


def _lines(nodes) -> str:
    numbers = [f"{getattr(node, 'lineno', 1)}" for node in nodes]
    return f"line {numbers[0]}" if len(numbers) == 1 else f"lines {', '.join(numbers[:-1])} and {numbers[-1]}"


def walk_scope(scope: ast.AST):
    """Every node of a definition's body that belongs to it and not to a definition inside it."""
    queue = list(scope.body)
    while queue:
        node = queue.pop(0)
        yield node
        if isinstance(node, SCOPES):
            continue
        queue[:0] = ast.iter_child_nodes(node)


def definitions(tree: ast.Module) -> dict[str, list[ast.AST]]:
    """Every function and class of a module by qualified name; several under one name where the code has several."""
    found: dict[str, list[ast.AST]] = {}

    def visit(scope, prefix):
        for node in walk_scope(scope):
            if isinstance(node, SCOPES):
                found.setdefault(prefix + node.name, []).append(node)
                visit(node, f"{prefix}{node.name}.")

    visit(tree, "")
    return found


def find_scope(source: Source, edit: Edit) -> ast.AST:
    """The one definition that `in` names, or an [`EditError`]."""
    if edit.scope == MODULE_SCOPE:
        return source.tree
    known = source.definitions
    nodes = known.get(edit.scope, [])
    if len(nodes) == 1:
        return nodes[0]
    if nodes:
        raise lost(
            source, edit, "ambiguous", f"the definition `{edit.scope}`", f"{len(nodes)} of them, {_lines(nodes)}"
        )
    last = edit.scope.rpartition(".")[2]
    similar = [name for name in known if name.rpartition(".")[2] == last]
    found = f"no such definition; the name is used by {', '.join(similar)}" if similar else "no such definition"
    raise lost(source, edit, "anchor lost", f"the definition `{edit.scope}`", found)


def lost(source: Source, edit: Edit, kind: str, looked_for: str, found: str) -> EditError:
    """The error for an edit that does not fit a file."""
    return EditError(
        source.name,
        edit.id,
        kind,
        looked_for,
        found,
        f"read {source.name}, correct the edit in {edit.origin.name}, then run `{CHECK_COMMAND}`",
    )


def parse_expression(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


def parse_head(text: str) -> ast.stmt:
    """The statement that a landmark spells out; a compound one by its head, with the colon."""
    body = ast.parse(f"{text}\n    pass" if text.endswith(":") else text).body
    if len(body) != 1:
        raise SyntaxError(f"{len(body)} statements instead of one")
    return body[0]


def _matcher(landmark: Landmark):
    """A function that tells whether a node is the landmark."""
    kind, text = landmark.kind, landmark.text
    if kind == "call":
        wanted = shape(parse_expression(text))
        return lambda node: isinstance(node, ast.Call) and shape(node.func) == wanted
    if kind == "expression":
        wanted = shape(parse_expression(text))
        return lambda node: isinstance(node, ast.expr) and shape(node) == wanted
    if kind == "return":
        wanted = shape(parse_expression(text))
        return lambda node: isinstance(node, ast.Return) and node.value is not None and shape(node.value) == wanted
    if kind == "statement":
        head = parse_head(text)
        wanted = head_shape(head)
        return lambda node: type(node) is type(head) and head_shape(node) == wanted
    if kind == "field":
        return lambda node: (
            isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == text
        )
    if kind == "import":
        return lambda node: isinstance(node, ast.Import) and any(alias.name == text for alias in node.names)
    if kind == "import_from":
        return lambda node: isinstance(node, ast.ImportFrom) and "." * node.level + (node.module or "") == text
    if kind == "class":
        return lambda node: isinstance(node, ast.ClassDef) and node.name == text
    if kind == "def":
        return lambda node: isinstance(node, FUNCTIONS) and node.name == text
    assert kind == "list", kind
    wanted = shape(parse_expression(text))
    return lambda node: isinstance(node, (ast.List, ast.Tuple, ast.Set)) and getattr(node, "named", None) == wanted


def _name_lists(tree: ast.AST) -> None:
    """
    Give each list that is assigned to a name, or is a value of a dictionary that is, the shape of the expression that
    reaches it (`NAMES` or `TABLE["key"]`) as an attribute `named`.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        value.named = shape(target)
        if isinstance(value, ast.Dict):
            for key, item in zip(value.keys, value.values):
                if key is not None:
                    item.named = shape(ast.Subscript(value=target, slice=key))


def find_landmark(source: Source, edit: Edit, scope: ast.AST, landmark: Landmark) -> ast.AST:
    """The one node in a definition that is the landmark, or an [`EditError`] that says how many there are and where."""
    where = "the module's top level" if edit.scope == MODULE_SCOPE else f"`{edit.scope}`"
    looked_for = f"{landmark} in {where}"
    try:
        if landmark.kind == "list":
            _name_lists(source.tree)
        matches = _matcher(landmark)
    except SyntaxError as error:
        raise EditError(
            edit.origin.name,
            edit.id,
            "bad edit",
            f"Python code as the landmark `{landmark.kind}`",
            f"`{landmark.text}`: {error.msg}",
            f"correct it, then run `{CHECK_COMMAND}`",
        ) from error
    found = [node for node in walk_scope(scope) if matches(node)]
    if len(found) == 1:
        return found[0]
    if found:
        raise lost(source, edit, "ambiguous", looked_for, f"{len(found)} matches, {_lines(found)}")
    elsewhere = [node for node in ast.walk(source.tree) if matches(node)]
    note = f"; outside of it there is one on {_lines(elsewhere)}" if elsewhere else ""
    line = getattr(scope, "lineno", 1)
    raise lost(source, edit, "anchor lost", looked_for, f"0 matches in the definition on line {line}{note}")


@dataclass(frozen=True)
class DocEntry:
    """One argument's entry in a docstring: the lines it spans, counted from 1, and its indentation."""

    first: int
    last: int
    indent: bytes


def find_doc_entry(source: Source, edit: Edit, scope: ast.AST, name: str) -> DocEntry:
    """The entry of one argument in a definition's docstring, or an [`EditError`]."""
    looked_for = f"{KINDS['argument']} `{name}` in the docstring of `{edit.scope}`"
    docstring = docstring_of(scope)
    if docstring is None:
        raise lost(source, edit, "anchor lost", looked_for, "no docstring")
    starts = doc_entry_lines(source, docstring, name)
    if not starts:
        raise lost(source, edit, "anchor lost", looked_for, "0 matches in the docstring on " + _lines([docstring]))
    if len(starts) > 1:
        raise lost(source, edit, "ambiguous", looked_for, f"{len(starts)} matches, lines {starts}")
    indent = source.indent(starts[0])
    last = starts[0]
    for line in range(starts[0] + 1, docstring.end_lineno):
        text = source.data[source.line_start(line) : source.line_start(line + 1)]
        if text.strip():
            if len(source.indent(line)) <= len(indent):
                break
            last = line
    return DocEntry(starts[0], last, indent)


def doc_entry_lines(source: Source, docstring: ast.Expr, name: str) -> list[int]:
    """The lines of a docstring on which an entry for the argument begins."""
    return [
        line
        for line in range(docstring.lineno + 1, docstring.end_lineno + 1)
        if source.data[source.line_start(line) : source.line_start(line + 1)].lstrip().startswith(f"{name} (".encode())
    ]


def find(source: Source, edit: Edit) -> Found:
    """
    Locate an edit in a file.

    Args:
        source (`Source`):
            The file.
        edit (`Edit`):
            The edit.

    Returns:
        `Found`: The definition and the node.

    Raises:
        `EditError`: of the kind `"anchor lost"` or `"ambiguous"`, unless there is exactly one match.
    """
    scope = find_scope(source, edit)
    if edit.at.kind == "argument":
        return Found(scope, scope, find_doc_entry(source, edit, scope, edit.at.text).first)
    node = find_landmark(source, edit, scope, edit.at)
    if edit.through is None:
        return Found(scope, node, node.lineno)
    last = source.statement_of(find_landmark(source, edit, scope, edit.through))
    first = source.statement_of(node)
    block = source.block_of(first)
    if last not in block or block.index(last) < block.index(first):
        raise lost(
            source,
            edit,
            "anchor lost",
            f"{edit.where}, both in one block and in this order",
            f"the first on {_lines([first])}, the other on {_lines([last])}",
        )
    return Found(scope, node, node.lineno, last)


def fingerprint(source: Source, edit: Edit, found: Found) -> str:
    """
    A digest of what a reviewer had to read: the whole function for an edit inside one; the function itself where it
    is the landmark; a class's head where the class is; the statement at the landmark for module and class level; the
    entry for a documented argument. Comments, docstrings and layout are not in it.
    """
    if edit.at.kind == "argument":
        entry = find_doc_entry(source, edit, found.scope, edit.at.text)
        text = source.data[source.line_start(entry.first) : source.line_start(entry.last + 1)]
        content = " ".join(text.decode("utf-8").split())
    elif isinstance(found.scope, FUNCTIONS):
        content = shape_without_docstrings(found.scope)
    elif isinstance(found.node, FUNCTIONS):
        content = shape_without_docstrings(found.node)
    elif isinstance(found.node, ast.ClassDef):
        content = head_shape(found.node)
    else:
        first = source.statement_of(found.node)
        block = source.block_of(first)
        last = found.last if found.last is not None else first
        content = "; ".join(shape(node) for node in block[block.index(first) : block.index(last) + 1])
    return hashlib.sha256(content.encode("utf-8")).hexdigest()[:16]
