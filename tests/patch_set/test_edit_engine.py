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
The edit engine on small sources: every operation where it fits, where it must not match, where there are several
places, and where it was applied before; what is refused, and that nothing outside a splice changes.
"""

import ast
import re
import textwrap
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apply_edits import NOTICE, apply_edits, locate
from edit_file import KINDS, OPS, EditError, parse_edit_file, read_edits
from landmarks import Source, fingerprint

from .helpers import DEFAULTS, TARGET, UTILS, make_edit, make_edits, run_tool, toml_table, write_edits


@dataclass
class Case:
    """One operation: where it fits and what comes out, a source without the landmark, and one with two of them."""

    name: str
    keys: dict
    before: str
    after: str
    none: str
    several: str


CASES = [
    Case(
        "insert_before",
        {"op": "insert_before", "in": "f", "at": {"call": "save"}, "code": "prepare()\nwarm_up()"},
        "def f():\n    x = 1\n    # why\n    save(x)\n",
        "def f():\n    x = 1\n    # why\n    prepare()\n    warm_up()\n    save(x)\n",
        "def f():\n    x = 1\n\ndef g():\n    save(1)\n",
        "def f():\n    save(1)\n    if x:\n        y = save(2)\n",
    ),
    Case(
        "insert_after",
        {"op": "insert_after", "in": "C.f", "at": {"statement": "if x is not None:"}, "code": "done(x)"},
        "class C:\n    def f(self, x):\n        if x is not None:\n            a()\n        else:\n            b()\n\n        c()\n",
        "class C:\n    def f(self, x):\n        if x is not None:\n            a()\n        else:\n            b()\n"
        "        done(x)\n\n        c()\n",
        "class C:\n    def f(self, x):\n        if x is None:\n            a()\n    def g(self, x):\n"
        "        if x is not None:\n            a()\n",
        "class C:\n    def f(self, x):\n        if x is not None:\n            a()\n        if x is not None:\n            b()\n",
    ),
    Case(
        "wrap_with",
        {"op": "wrap_with", "in": "f", "at": {"call": "save"}, "code": 'with keep("it"):'},
        'def f():\n    if a:\n        save(\n            """one\n  two""",\n        )  # note\n    return 1\n',
        'def f():\n    if a:\n        with keep("it"):\n            save(\n                """one\n  two""",\n            )  # note\n    return 1\n',
        "def f():\n    store()\n",
        "def f():\n    save()\n    save()\n",
    ),
    Case(
        "replace_expression",
        {"op": "replace_expression", "in": "f", "at": {"return": "run_dir"}, "code": "here.staged(run_dir)"},
        "def f(a):\n    run_dir = a\n    return (run_dir)  # the last one\n",
        "def f(a):\n    run_dir = a\n    return (here.staged(run_dir))  # the last one\n",
        "def f(a):\n    run_dir = a\n    return run_dir + a\n",
        "def f(a):\n    if a:\n        return run_dir\n    return run_dir\n",
    ),
    Case(
        "replace_callee",
        {"op": "replace_callee", "in": "f", "at": {"call": "self.rotate"}, "code": "self.later.rotate"},
        "def f(self):\n    self.rotate(\n        1,\n        # kept\n        limit=2,\n    )\n",
        "def f(self):\n    self.later.rotate(\n        1,\n        # kept\n        limit=2,\n    )\n",
        "def f(self):\n    self.rotate\n    rotate(1)\n",
        "def f(self):\n    self.rotate(self.rotate(1))\n",
    ),
    Case(
        "replace_statement",
        {
            "op": "replace_statement",
            "in": "f",
            "at": {"statement": "names = find(d, best=b)"},
            "through": {"statement": "if b and limit == 1:"},
            "code": "clean(d)",
        },
        "def f(d):\n    a()\n\n    names = find(\n        d, best=b\n    )\n\n    # about it\n    if (\n        b\n        and limit == 1\n"
        "    ):\n        for n in names:\n            drop(n)\n\n    z()\n",
        "def f(d):\n    a()\n\n    clean(d)\n\n    z()\n",
        "def f(d):\n    names = find(d, best=c)\n    if b and limit == 1:\n        x()\n",
        "def f(d):\n    names = find(d, best=b)\n    names = find(d, best=b)\n    if b and limit == 1:\n        x()\n",
    ),
    Case(
        "replace_body",
        {"op": "replace_body", "at": {"def": "last"}, "code": "return newest(folder)"},
        '@cached\ndef last(\n    folder: str,\n) -> str:\n    """\n    What it is.\n    """\n    # long ago\n    x = 1\n\n    return x\n\n\nz = 1\n',
        '@cached\ndef last(\n    folder: str,\n) -> str:\n    """\n    What it is.\n    """\n    return newest(folder)\n\n\nz = 1\n',
        "class C:\n    def last(folder):\n        return 1\n",
        "if a:\n    def last(folder):\n        return 1\nelse:\n    def last(folder):\n        return 2\n",
    ),
    Case(
        "add_field",
        {"op": "add_field", "in": "Args", "at": {"field": "limit"}, "code": "mode: str = field(\n    default='a',\n)"},
        "@dataclass\nclass Args:\n    limit: int | None = field(\n        default=None,\n    )\n    other: int = 1\n",
        "@dataclass\nclass Args:\n    limit: int | None = field(\n        default=None,\n    )\n    mode: str = field(\n"
        "        default='a',\n    )\n    other: int = 1\n",
        "@dataclass\nclass Args:\n    limits: int = 1\n    def f(self):\n        limit: int = 1\n",
        "class Args:\n    limit: int = 1\n    limit: str = 1\n",
    ),
    Case(
        "add_import",
        {"op": "add_import", "at": {"import_from": ".callback"}, "code": "from .checkpoint.glue import Base"},
        "import os\n\nfrom .callback import (\n    A,\n    B,\n)\nfrom .other import C\n",
        "import os\n\nfrom .callback import (\n    A,\n    B,\n)\nfrom .checkpoint.glue import Base\nfrom .other import C\n",
        "from callback import A\nfrom ..callback import B\n",
        "from .callback import A\nfrom .callback import B\n",
    ),
    Case(
        "remove_import_name",
        {"op": "remove_import_name", "at": {"import_from": ".utils"}, "code": "last, rotate"},
        "from .utils import (\n    first,\n    last,  # used below\n    rotate,\n    sort,\n)\n",
        "from .utils import (\n    first,\n    sort,\n)\n",
        "from .tools import last, rotate\n",
        "from .utils import last, rotate\nfrom .utils import last, rotate\n",
    ),
    Case(
        "add_base",
        {"op": "add_base", "at": {"class": "Trainer"}, "code": "Transactional"},
        "@requires('torch')\nclass Trainer:\n    pass\n",
        "@requires('torch')\nclass Trainer(Transactional):\n    pass\n",
        "def f():\n    class Trainer:\n        pass\n",
        "if a:\n    class Trainer:\n        pass\nelse:\n    class Trainer:\n        pass\n",
    ),
    Case(
        "add_decorator",
        {"op": "add_decorator", "in": "C", "at": {"def": "save"}, "code": "@transactional"},
        "class C:\n    # first\n    @property\n    def save(self):\n        pass\n",
        "class C:\n    # first\n    @transactional\n    @property\n    def save(self):\n        pass\n",
        "class C:\n    def store(self):\n        pass\n\ndef save():\n    pass\n",
        "class C:\n    @property\n    def save(self):\n        pass\n    @save.setter\n    def save(self, x):\n        pass\n",
    ),
    Case(
        "add_list_entry",
        {"op": "add_list_entry", "at": {"list": 'TABLE["utils"]'}, "code": '"rotate"'},
        'TABLE = {\n    "utils": [\n        "first",\n        "last",  # so far\n    ],\n    "more": [],\n}\n',
        'TABLE = {\n    "utils": [\n        "first",\n        "last",  # so far\n        "rotate",\n    ],\n    "more": [],\n}\n',
        'TABLE = {"more": ["last"]}\nOTHER = {"utils": []}\n',
        'TABLE = {"utils": ["a"]}\nTABLE = {"utils": ["b"]}\n',
    ),
    Case(
        "document_argument",
        {
            "op": "document_argument",
            "in": "Args",
            "at": {"argument": "limit"},
            "code": "mode (`str`, *optional*):\n    What happens.\n\n    And then.",
        },
        'class Args:\n    """\n    Arguments.\n\n    Args:\n        limit (`int`):\n            How many.\n\n            At most.\n\n    After.\n    """\n',
        'class Args:\n    """\n    Arguments.\n\n    Args:\n        limit (`int`):\n            How many.\n\n            At most.\n'
        '        mode (`str`, *optional*):\n            What happens.\n\n            And then.\n\n    After.\n    """\n',
        'class Args:\n    """\n    limits (`int`):\n        How many.\n    """\n    text = """\n    limit (`int`):\n    """\n',
        'class Args:\n    """\n    limit (`int`):\n        One.\n    limit (`str`):\n        Two.\n    """\n',
    ),
]
BY_NAME = {case.name: case for case in CASES}
each_operation = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def apply(edits, source: str, **keywords) -> str:
    keywords = {"notice": False, "reviewed": False, **keywords}
    return apply_edits(TARGET, source.encode("utf-8"), edits, **keywords).decode("utf-8")


def error_of(edits, source: str, **keywords) -> EditError:
    with pytest.raises(EditError) as caught:
        apply(edits, source, **keywords)
    return caught.value


# ---- The operations ----


def test_every_operation_and_landmark_has_a_case():
    assert {case.name for case in CASES} == set(OPS)
    tried = [case.keys for case in CASES] + [keys for keys, _, _ in DETAILS]
    assert {kind for keys in tried for kind in keys["at"]} == set(KINDS)


@each_operation
def test_before_and_after(case, tmp_path):
    assert apply([make_edit(tmp_path, **case.keys)], case.before) == case.after


@each_operation
def test_no_match(case, tmp_path):
    error = error_of([make_edit(tmp_path, **case.keys)], case.none)
    assert error.kind == "anchor lost"
    text = str(error)
    assert TARGET in text and "`an-edit`" in text and "looked for:" in text
    assert re.search(r"found: (0 matches|no )", text)
    assert "python utils/apply_edits.py --check" in text


@each_operation
def test_several_matches(case, tmp_path):
    error = error_of([make_edit(tmp_path, **case.keys)], case.several)
    assert error.kind == "ambiguous"
    assert re.search(r"2 (matches|of them), lines \[?\d+", error.found)


@each_operation
def test_applied_twice(case, tmp_path):
    edit = make_edit(tmp_path, **case.keys)
    error = error_of([edit], case.after)
    assert error.kind == "applied"
    assert "edited before, or upstream has the change" in error.found


@each_operation
def test_modified_file_is_refused(case, tmp_path):
    edit = make_edit(tmp_path, **case.keys)
    once = apply([edit], case.before, notice=True)
    error = error_of([edit], once)
    assert error.kind == "applied"
    assert f"line {once.splitlines().index(NOTICE) + 1}" in error.found


@each_operation
def test_line_ends_tabs_and_wide_characters_are_kept(case, tmp_path):
    """The same edit in a file with CRLF, tabs, a byte order mark, and characters of several bytes before the landmark."""

    def elsewhere(text: str) -> str:
        lines = [re.sub("^(    )+", lambda m: "\t" * (len(m[0]) // 4), line) for line in text.split("\n")]
        return "\r\n".join(["\ufeffWIDE = '🤗é'", *lines])

    keys = case.keys
    if case.name == "wrap_with":
        before, after = case.before.replace("\n  two", "\n🤗"), case.after.replace("\n  two", "\n🤗")
    else:
        before, after = case.before, case.after
    assert apply([make_edit(tmp_path, **keys)], elsewhere(before)) == elsewhere(after)


DETAILS = [
    # A class with bases, with keywords, with both, with empty brackets, and with brackets around its base.
    ({"op": "add_base", "at": {"class": "A"}, "code": "X"}, "class A(B):\n    pass\n", "class A(B, X):\n    pass\n"),
    (
        {"op": "add_base", "at": {"class": "A"}, "code": "X"},
        "class A(metaclass=M):\n    pass\n",
        "class A(X, metaclass=M):\n    pass\n",
    ),
    (
        {"op": "add_base", "at": {"class": "A"}, "code": "X"},
        "class A(B, C, metaclass=M): pass\n",
        "class A(B, C, X, metaclass=M): pass\n",
    ),
    ({"op": "add_base", "at": {"class": "A"}, "code": "X"}, "class A( ):\n    pass\n", "class A(X):\n    pass\n"),
    ({"op": "add_base", "at": {"class": "A"}, "code": "X"}, "class A((B)): pass\n", "class A((B), X): pass\n"),
    # Lists on one line, empty, a tuple, without a last comma.
    ({"op": "add_list_entry", "at": {"list": "L"}, "code": "'c'"}, "L = ['a', 'b']\n", "L = ['a', 'b', 'c']\n"),
    ({"op": "add_list_entry", "at": {"list": "L"}, "code": "'c'"}, "L = []\n", "L = ['c']\n"),
    ({"op": "add_list_entry", "at": {"list": "L"}, "code": "'c'"}, "L: tuple = ()\n", "L: tuple = ('c',)\n"),
    ({"op": "add_list_entry", "at": {"list": "L"}, "code": "'c'"}, "L = ('a',)\n", "L = ('a', 'c')\n"),
    (
        {"op": "add_list_entry", "at": {"list": "L"}, "code": "'c'"},
        "L = {\n    'a',\n    'b'  # last\n}\n",
        "L = {\n    'a',\n    'b',  # last\n    'c',\n}\n",
    ),
    # Imports.
    ({"op": "add_import", "at": {"import": "os"}, "code": "import re"}, "import os\n", "import os\nimport re\n"),
    (
        {"op": "add_import", "at": {"import_from": ".b"}, "code": "from .a import x", "place": "before"},
        "import os\n\nfrom .b import y\n",
        "import os\n\nfrom .a import x\nfrom .b import y\n",
    ),
    ({"op": "remove_import_name", "at": {"import": "os"}, "code": "os"}, "import os\nimport re\n", "import re\n"),
    (
        {"op": "remove_import_name", "at": {"import_from": "a"}, "code": "x, y"},
        "from a import x, b, y, c\n",
        "from a import b, c\n",
    ),
    (
        {"op": "remove_import_name", "at": {"import_from": "a"}, "code": "c"},
        "from a import b, c  # note\n",
        "from a import b  # note\n",
    ),
    (
        {"op": "remove_import_name", "at": {"import_from": "a"}, "code": "b, c"},
        "from a import (\n    x, b, c\n)\n",
        "from a import (\n    x\n)\n",
    ),
    # Expressions.
    (
        {"op": "replace_expression", "in": "f", "at": {"expression": "a + b"}, "code": "c or d"},
        "def f():\n    return 2 * (a + b) if x else 1\n",
        "def f():\n    return 2 * ((c or d)) if x else 1\n",
    ),
    (
        {"op": "replace_expression", "in": "f", "at": {"call": "g"}, "code": "h(1)"},
        "def f():\n    x = 'é' + g(\n        2\n    )\n",
        "def f():\n    x = 'é' + h(1)\n",
    ),
    # Deleting, with the comment above.
    (
        {"op": "replace_statement", "in": "f", "at": {"call": "g"}, "code": "", "drop_comment": True},
        "def f():\n    a = 1\n\n    # what g\n    # is for\n    g()\n    b = 2\n",
        "def f():\n    a = 1\n\n    b = 2\n",
    ),
    # A range under one `with`.
    (
        {"op": "wrap_with", "in": "f", "at": {"call": "g"}, "through": {"call": "h"}, "code": "with x:"},
        "def f():\n    g()\n\n    # about h\n    h()\n    i()\n",
        "def f():\n    with x:\n        g()\n\n        # about h\n        h()\n    i()\n",
    ),
    # The last line of a file that does not end in a line end.
    (
        {"op": "insert_after", "in": "f", "at": {"call": "g"}, "code": "h()"},
        "def f():\n    g()",
        "def f():\n    g()\n    h()",
    ),
    ({"op": "replace_body", "at": {"def": "f"}, "code": "g()"}, "def f():\n    pass", "def f():\n    g()"),
    (
        {"op": "replace_body", "at": {"def": "f"}, "code": "g()"},
        'def f():\n    """D."""\n',
        'def f():\n    """D."""\n    g()\n',
    ),
    (
        {"op": "replace_body", "at": {"def": "f"}, "code": "return await g()"},
        "async def f():\n    if x:\n        return 1\n",
        "async def f():\n    return await g()\n",
    ),
    # Code with a string over several lines keeps what is in it.
    (
        {"op": "insert_after", "in": "f", "at": {"call": "g"}, "code": 'if x:\n    h("""a\n  b""")'},
        "def f():\n\tg()\n",
        'def f():\n\tg()\n\tif x:\n\t\th("""a\n  b""")\n',
    ),
]


@pytest.mark.parametrize("keys, before, after", DETAILS)
def test_details_of_operations(keys, before, after, tmp_path):
    ast.parse(after)
    assert apply([make_edit(tmp_path, **keys)], before) == after


@pytest.mark.parametrize(
    "keys, source, found",
    [
        (
            {"op": "insert_after", "in": "f", "at": {"call": "g"}, "code": "h()"},
            "def f():\n    g(); i()\n",
            "other code on line 2",
        ),
        ({"op": "replace_body", "at": {"def": "f"}, "code": "h()"}, "def f(): pass\n", "other code on line 1"),
        (
            {"op": "insert_before", "in": "f", "at": {"statement": "if b:"}, "code": "h()"},
            "def f():\n    if a:\n        x()\n    elif b:\n        y()\n",
            "an `elif` on line 4",
        ),
        (
            {
                "op": "replace_statement",
                "in": "f",
                "at": {"call": "g"},
                "through": {"call": "h"},
                "code": "i()",
            },
            "def f():\n    g()\n    if x:\n        h()\n",
            "the first on line 2, the other on line 4",
        ),
        (
            {"op": "remove_import_name", "at": {"import_from": "a"}, "code": "b, z"},
            "from a import b, c\n",
            "no z on line 1",
        ),
    ],
)
def test_what_cannot_be_spliced_is_refused(keys, source, found, tmp_path):
    error = error_of([make_edit(tmp_path, **keys)], source)
    assert error.kind == "anchor lost"
    assert found in error.found


def test_anchor_in_the_wrong_scope_says_where_it_is(tmp_path):
    keys = {**BY_NAME["insert_before"].keys, "in": "f"}
    error = error_of([make_edit(tmp_path, **keys)], "def f():\n    pass\n\n\ndef g():\n    save(1)\n")
    assert "0 matches in the definition on line 1; outside of it there is one on line 6" in error.found
    keys["in"] = "Trainer.g"
    error = error_of(
        [make_edit(tmp_path, **keys)], "def f():\n    pass\n\n\nclass Other:\n    def g():\n        save(1)\n"
    )
    assert "no such definition; the name is used by Other.g" in error.found


def test_a_definition_that_is_there_twice_is_ambiguous(tmp_path):
    source = (
        "class C:\n    @property\n    def f(self):\n        save()\n    @f.setter\n    def f(self, x):\n        pass\n"
    )
    keys = {**BY_NAME["insert_before"].keys, "in": "C.f"}
    error = error_of([make_edit(tmp_path, **keys)], source)
    assert error.kind == "ambiguous" and "2 of them, lines 3 and 6" in error.found


# ---- Several edits ----


def test_several_edits_in_one_definition(tmp_path):
    edits = make_edits(
        tmp_path,
        toml_table(id="a", op="insert_after", **{"in": "f"}, at={"call": "two"}, code="after_two()\nand_more()"),
        toml_table(id="b", op="replace_callee", **{"in": "f"}, at={"call": "three"}, code="self.three"),
        toml_table(id="c", op="wrap_with", **{"in": "f"}, at={"call": "one"}, code="with x:"),
    )
    source = "def f():\n    one()\n    two()\n    three(1)\n"
    expected = "def f():\n    with x:\n        one()\n    two()\n    after_two()\n    and_more()\n    self.three(1)\n"
    for order in (edits, edits[::-1]):
        assert apply(order, source) == expected


@pytest.mark.parametrize(
    "first, second",
    [
        # One inside the other; both at one point; both on one line.
        ({"op": "replace_statement", "at": {"call": "g"}, "code": "x()"}, {"op": "replace_callee", "at": {"call": "g"}, "code": "h"}),
        ({"op": "insert_after", "at": {"call": "g"}, "code": "x()"}, {"op": "insert_after", "at": {"call": "g"}, "code": "y()"}),
        ({"op": "insert_after", "at": {"call": "g"}, "code": "x()"}, {"op": "insert_before", "at": {"call": "z"}, "code": "y()"}),
        ({"op": "wrap_with", "at": {"call": "g"}, "code": "with x:"}, {"op": "wrap_with", "at": {"call": "g"}, "code": "with y:"}),
    ],
)  # fmt: skip
def test_overlapping_edits_are_refused(first, second, tmp_path):
    edits = make_edits(
        tmp_path, toml_table(id="one", **{"in": "f"}, **first), toml_table(id="two", **{"in": "f"}, **second)
    )
    error = error_of(edits, "def f():\n    g(1)\n    z()\n")
    assert error.kind == "overlap"
    assert {error.edit_id, re.search(r"the edit `(\w+)`", error.found)[1]} == {"one", "two"}
    assert re.search(r"line \d", error.found)


def test_a_result_that_does_not_compile_is_refused(tmp_path):
    edit = make_edit(tmp_path, op="insert_after", **{"in": "f"}, at={"call": "g"}, code="await h()")
    error = error_of([edit], "def f():\n    g()\n")
    assert error.kind == "bad edit" and "'await' outside async function" in error.found


# ---- Fingerprints ----

REVIEWED = "class C(Base):\n    def f(self, x=1):\n        '''Doc.'''\n        # note\n        save(x)\n        return f'{x!r:>{width}}'\n"


def fingerprint_of(edit, source: str) -> str:
    parsed = Source(TARGET, source.encode("utf-8"))
    return fingerprint(parsed, edit, locate(parsed, edit))


@pytest.fixture
def reviewed(tmp_path):
    edit = make_edit(tmp_path, **{**BY_NAME["insert_before"].keys, "in": "C.f"})
    return replace(edit, fingerprint=fingerprint_of(edit, REVIEWED))


@pytest.mark.parametrize(
    "old, new",
    [
        ("        # note\n", ""),
        ("'''Doc.'''", '"""Another text."""'),
        ("save(x)", "save(\n            x,\n        )"),
        ("class C(Base):", "import os\n\nclass C(Other):"),
        ("x=1", "x = 1"),
    ],
)
def test_layout_and_comments_do_not_change_a_fingerprint(old, new, reviewed):
    assert old in REVIEWED
    apply([reviewed], REVIEWED.replace(old, new), reviewed=True)


@pytest.mark.parametrize(
    "old, new",
    [
        ("x=1", "x=2"),
        ("save(x)", "save(x, y)"),
        ("        save(x)\n", "        save(x)\n        more()\n"),
        ("!r", ""),
        ("def f", "@cached\n    def f"),
        ("return", "yield"),
    ],
)
def test_a_change_of_meaning_stops_the_build(old, new, reviewed):
    assert old in REVIEWED
    error = error_of([reviewed], REVIEWED.replace(old, new), reviewed=True)
    assert error.kind == "context changed"
    assert reviewed.fingerprint in error.looked_for and re.search(r"^[0-9a-f]{16}, line \d+$", error.found)
    assert error.next_step.endswith("--fingerprint --write an-edit`")


def test_an_edit_without_a_fingerprint_is_not_reviewed_yet(reviewed):
    error = error_of([replace(reviewed, fingerprint="")], REVIEWED, reviewed=True)
    assert error.kind == "context changed" and "(none yet)" in error.looked_for


@each_operation
def test_what_a_fingerprint_covers(case, tmp_path):
    """Code in another definition is never in it, so that one upstream change does not stop every edit."""
    edit = make_edit(tmp_path, **case.keys)
    before = fingerprint_of(edit, case.before)
    assert fingerprint_of(edit, case.before + "\n\ndef another():\n    return 7\n") == before


def test_the_fingerprint_does_not_depend_on_the_python_version(tmp_path):
    """Computed with 3.11; a run with another version has to give the same."""
    source = textwrap.dedent(
        '''
        class C:
            def f(self, a: int | None = None, /, *b, c=1.5, **d) -> list[str]:
                """Doc."""
                save(a)
                match a:
                    case {"x": [1, *rest]} if rest:
                        return [f"{x!r:>{a}}" "tail" for x in rest]
                try:
                    async_call = lambda y, *z: (yield)
                except* ValueError as error:
                    raise
                with open(a) as g, open("b"):
                    del a[1:2], g
                return (None, ..., b"x", 1j, True, not a, -1 if a else a[::2])
        '''
    )
    edit = make_edit(tmp_path, **{**BY_NAME["insert_before"].keys, "in": "C.f"})
    assert fingerprint_of(edit, source) == "ac13be3875f82201"


def test_fingerprints_are_written_after_a_review(tmp_path):
    tree = tmp_path / "tree"
    (tree / "transformers").mkdir(parents=True)
    (tree / "transformers" / "module.py").write_text(REVIEWED, encoding="utf-8")
    tables = [
        toml_table(id=name, op="insert_before", **{"in": "C.f"}, at={"call": "save"}, code=f"{name}()")
        for name in ("one", "two")
    ]
    edits_dir = write_edits(tmp_path, "# kept\n", *tables)
    path = edits_dir / f"{TARGET}.toml"
    common = (tree, "--edits", edits_dir, "--fingerprint")
    assert run_tool("apply_edits.py", *common, "--write", "three").returncode == 1
    assert run_tool("apply_edits.py", *common).returncode == 0
    assert path.read_text(encoding="utf-8").count('fingerprint = ""') == 2
    shown = run_tool("apply_edits.py", *common, "--write", "two")
    assert shown.returncode == 0, shown.stderr
    one, two = parse_edit_file(path, edits_dir)
    assert (one.fingerprint, two.fingerprint) == ("", fingerprint_of(two, REVIEWED))
    assert path.read_text(encoding="utf-8").startswith("# kept\n")


# ---- Edit files ----

GOOD = {"op": "insert_before", "at": {"call": "save"}, "code": "x()"}


@pytest.mark.parametrize(
    "table, found",
    [
        (toml_table(**GOOD, opp="x"), "an unknown key `opp`"),
        *((toml_table(**{**GOOD, key: None}), "no such key in the table") for key in [*DEFAULTS, "op", "at"]),
        (toml_table(**{**GOOD, "op": "insert_befor"}), "`insert_befor`, which does not exist"),
        (toml_table(**{**GOOD, "op": ["insert_before"]}), "['insert_before']"),
        (toml_table(**{**GOOD, "id": "An Edit"}), "'An Edit'"),
        (toml_table(**{**GOOD, "why": " "}), "an empty one"),
        (toml_table(**{**GOOD, "code": ""}), "an empty one"),
        (toml_table(**{**GOOD, "at": {"cal": "save"}}), "an unknown landmark `cal`"),
        (toml_table(**{**GOOD, "at": {"field": "save"}}), "the landmark `field`"),
        (toml_table(**{**GOOD, "at": {}}), "0 landmarks: none"),
        (toml_table(**{**GOOD, "at": {"call": "a", "return": "b"}}), "2 landmarks: call, return"),
        (toml_table(**{**GOOD, "at": {"call": " "}}), "which is not a text"),
        (toml_table(**GOOD, through={"call": "x"}), "the key `through`"),
        (toml_table(**{**GOOD, "op": "add_import", "at": {"import": "os"}}, place="above"), "'above'"),
        (toml_table(**GOOD) + 'op = "another"\n', "Cannot overwrite a value"),
        (toml_table(**GOOD) + "broken\n", "line"),
        (toml_table(**GOOD) + toml_table(**GOOD), "the same id"),
        ('[[edits]]\nid = "x"\n', "the top-level keys edits"),
        ("", "no `[[edit]]` table"),
        ("edit = 1\n", "no `[[edit]]` table"),
    ],
)
def test_a_mistake_in_an_edit_file_is_one_clear_error(table, found, tmp_path):
    edits_dir = write_edits(tmp_path, table)
    with pytest.raises(EditError) as caught:
        read_edits(edits_dir)
    error = caught.value
    assert error.kind == "bad edit"
    assert found in error.found
    text = str(error)
    assert f"{TARGET}.toml" in text and "next: " in text
    if "[[edit]]" in table and "'An Edit'" not in found and 'id = "an-edit"' in table:
        assert "edit `an-edit`" in text


@pytest.mark.parametrize(
    "keys, found",
    [
        ({**GOOD, "code": "x("}, "was never closed"),
        ({**GOOD, "at": {"call": "save("}}, "`save(`"),
        ({**GOOD, "op": "replace_callee", "code": "x = 1"}, "Assign"),
        ({**GOOD, "op": "replace_callee", "code": "x\ny"}, "Expr"),
        ({**GOOD, "op": "wrap_with", "code": "if x:"}, "If"),
        ({**GOOD, "op": "wrap_with", "code": "with x: pass"}, "`with x: pass`"),
        ({"op": "remove_import_name", "at": {"import": "os"}, "code": "os;"}, "invalid syntax"),
        ({"op": "add_import", "at": {"import": "os"}, "code": "x = 1"}, "Assign"),
        ({"op": "add_field", "in": "A", "at": {"field": "x"}, "code": "y = 1"}, "Assign"),
        ({"op": "add_decorator", "at": {"class": "A"}, "code": "cached"}, "Expr"),
        ({"op": "document_argument", "in": "A", "at": {"argument": "x"}, "code": "y: no type"}, "y: no type"),
        ({"op": "document_argument", "in": "A", "at": {"argument": "x"}, "code": 'y (`int`):\n    """'}, '"""'),
    ],
)
def test_code_that_the_operation_cannot_take_is_refused(keys, found, tmp_path):
    source = 'import os\n\nclass A:\n    """\n    x (`int`):\n        X.\n    """\n    x: int = 1\n\nsave(1)\n'
    error = error_of([make_edit(tmp_path, **keys)], source)
    assert error.kind == "bad edit"
    assert found in error.found
    assert "edit `an-edit`" in str(error)


@pytest.mark.parametrize(
    "data, found",
    [
        (b"def f(:\n", "invalid syntax"),
        (b"x = '\xff'\n", "utf-8"),
        (b"# -*- coding: latin-1 -*-\nx = 1\n", "latin-1"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused(data, found, tmp_path):
    with pytest.raises(EditError) as caught:
        apply_edits(TARGET, data, [make_edit(tmp_path, **GOOD)])
    assert caught.value.kind == "bad source" and found in caught.value.found


# ---- The notice ----


@pytest.mark.parametrize(
    "before, lines",
    [
        ("# Copyright\n# Licence\n\nimport os\n", ["# Copyright", "# Licence", NOTICE, "", "import os"]),
        (
            "#!/usr/bin/env python\n# Copyright\nimport os\n",
            ["#!/usr/bin/env python", "# Copyright", NOTICE, "import os"],
        ),
        ("import os\n", [NOTICE, "import os"]),
        ('"""Doc."""\nimport os\n', [NOTICE, '"""Doc."""', "import os"]),
    ],
)
def test_the_notice_follows_the_licence(before, lines, tmp_path):
    edit = make_edit(tmp_path, op="add_import", at={"import": "os"}, code="import re")
    assert apply([edit], before, notice=True).split("\n") == [*lines, "import re", ""]
    crlf = apply([edit], before.replace("\n", "\r\n"), notice=True)
    assert crlf.split("\r\n") == [*lines, "import re", ""]
    assert len(NOTICE) <= 119


# ---- Byte for byte ----

STATEMENTS = st.sampled_from(
    ["pass", "x = 'é🤗'", "y = '''a\n\tb\n'''", "# nothing \u2028 here", "if x:\n    z(1)", "", "t = f'{x}é{y}'"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.lists(STATEMENTS, max_size=5),
    after=st.lists(STATEMENTS, max_size=5),
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
    unit=st.sampled_from(["    ", "\t", "  "]),
    last=st.booleans(),
)
def test_everything_outside_the_splices_stays(before, after, newline, unit, last, tmp_path):
    """Whatever stands around the landmarks: without the three insertions the result is the source again."""
    body = "\n".join([*before, "save(1)", *after])
    lines = ["def f(x, y=None):", *(f"{unit}{line}" if line else line for line in body.split("\n"))]
    source = newline.join(lines) + (newline if last else "")
    edits = make_edits(
        tmp_path,
        toml_table(id="a", op="insert_before", **{"in": "f"}, at={"call": "save"}, code="inserted_before()"),
        toml_table(id="b", op="replace_callee", **{"in": "f"}, at={"call": "save"}, code="replaced_callee"),
        toml_table(id="c", op="insert_after", **{"in": "f"}, at={"call": "save"}, code="inserted_after()"),
    )
    data = source.encode("utf-8")
    result = apply_edits(TARGET, data, edits, notice=False, reviewed=False)
    indent, end = unit.encode(), newline.encode()
    assert result.count(b"replaced_callee(1)") == 1
    undone = result.replace(b"replaced_callee", b"save").replace(indent + b"inserted_before()" + end, b"")
    for inserted in (indent + b"inserted_after()" + end, end + indent + b"inserted_after()"):
        if undone.replace(inserted, b"") == data:
            return
    raise AssertionError((data, result))


def test_help_of_every_command():
    commands = sorted(path.name for path in UTILS.glob("*.py") if "argparse" in path.read_text(encoding="utf-8"))
    assert "apply_edits.py" in commands
    for command in commands:
        result = run_tool(command, "--help")
        assert result.returncode == 0 and "usage:" in result.stdout, (command, result.stderr)
