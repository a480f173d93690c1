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
The real edits on the real source: that each fits once, what they add up to, and what a reader of the repository is
told about them.
"""

import ast
import difflib
import functools
import re
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from apply_edits import NOTICE, apply_edits, locate, review
from edit_file import ROOT, Edit, EditError, read_edits
from landmarks import FUNCTIONS, Source, definitions, docstring_of
from readme_table import BEGIN, END, with_table

from .helpers import SECONDS, run_tool, upstream_file


EDITS = read_edits()
ALL = [(target, edit) for target, edits in EDITS.items() for edit in edits]
each_edit = pytest.mark.parametrize("target, edit", ALL, ids=[edit.id for _, edit in ALL])
each_file = pytest.mark.parametrize("target", EDITS)

# Lines that the edits insert into upstream's files, without the notices. A larger number is a decision, not a side
# effect: the seam has to stay one that a reviewer reads in a minute.
INSERTED = {
    "src/transformers/__init__.py": 4,
    "src/transformers/cli/transformers.py": 5,
    "src/transformers/trainer.py": 19,
    "src/transformers/trainer_callback.py": 2,
    "src/transformers/trainer_utils.py": 5,
    "src/transformers/training_args.py": 2,
}
# Training arguments and their documentation are for users and are counted apart.
INSERTED_FOR_ARGUMENTS = {"checkpoint-arguments": 28, "document-checkpoint-arguments": 26}
LIMIT = 60
ARGUMENTS = 7


def edited(target: str, edits: list[Edit] | None = None, notice: bool = True) -> bytes:
    return apply_edits(target, upstream_file(target), EDITS[target] if edits is None else edits, notice)


def inserted_lines(before: bytes, after: bytes) -> list[str]:
    lines = difflib.unified_diff(
        before.decode("utf-8").splitlines(), after.decode("utf-8").splitlines(), n=0, lineterm=""
    )
    return [line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")]


@each_edit
def test_fits_once_and_was_reviewed(target, edit):
    source = Source(target, upstream_file(target))
    review(source, edit, locate(source, edit))


@each_edit
def test_applies_alone_and_not_twice(target, edit):
    """Each by itself compiles and changes something; on the result it is refused."""
    once = edited(target, [edit], notice=False)
    assert once != upstream_file(target)
    with pytest.raises(EditError) as caught:
        apply_edits(target, once, [edit], notice=False)
    assert caught.value.kind in ("applied", "anchor lost")
    assert caught.value.edit_id == edit.id


@each_file
def test_edited_file_is_refused(target):
    with pytest.raises(EditError, match="applied"):
        apply_edits(target, edited(target), EDITS[target])


@each_file
def test_notice_of_a_modified_file(target):
    lines = edited(target).decode("utf-8").splitlines()
    assert lines.count(NOTICE) == 1
    without = edited(target, notice=False).decode("utf-8").splitlines()
    assert [line for line in lines if line != NOTICE] == without


@each_file
def test_definitions_without_an_edit_stay_byte_for_byte(target):
    before, after = upstream_file(target), edited(target)
    touched = {edit.at.text if edit.at.kind in ("def", "class") else edit.scope for edit in EDITS[target]}
    old, new = texts_of_functions(before), texts_of_functions(after)
    assert set(old) == set(new) and len(old) > 0
    changed = {name for name in old if old[name] != new[name]}
    assert changed == touched & set(old)


def texts_of_functions(data: bytes) -> dict[str, list[bytes]]:
    source = Source("module", data)
    return {
        name: [source.data[source.start(node) : source.end(node)] for node in nodes]
        for name, nodes in definitions(source.tree).items()
        if isinstance(nodes[0], FUNCTIONS)
    }


def test_inserted_lines_are_frozen():
    apart = {}
    for target, edits in EDITS.items():
        for edit in edits:
            if edit.op in ("add_field", "document_argument"):
                apart[edit.id] = len(inserted_lines(upstream_file(target), edited(target, [edit], notice=False)))
    assert apart == INSERTED_FOR_ARGUMENTS
    counts = {}
    for target, edits in EDITS.items():
        seam = [edit for edit in edits if edit.id not in apart]
        counts[target] = len(inserted_lines(upstream_file(target), edited(target, seam, notice=False)))
    assert counts == INSERTED
    assert sum(counts.values()) <= LIMIT


def test_signatures_stay():
    """No edit changes what a caller of upstream's functions sees; only fields of `TrainingArguments` are added."""
    for target, edits in EDITS.items():
        before, after = (ast.parse(text) for text in (upstream_file(target), edited(target)))
        for old, new in zip(*(signatures(tree) for tree in (before, after)), strict=True):
            assert old == new, target
        removed = {name for edit in edits if edit.op == "remove_import_name" for name in edit.code.split(", ")}
        missing = top_level_names(before) - top_level_names(after)
        assert missing == removed, target


def signatures(tree: ast.Module) -> list[tuple[str, str]]:
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [(node.name, ast.unparse(node.args)) for node in functions]


def top_level_names(tree: ast.Module) -> set[str]:
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.asname or alias.name for node in imports for alias in node.names}
    return names | {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def test_ruff_accepts_every_edited_file(tmp_path):
    # edit: unused-after-edits
    # edit: unused-update-hint
    # edit: unused-shutil
    # edit: unused-path
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for target in EDITS:
        (tmp_path / target).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / target).write_bytes(edited(target))
    ruff = [sys.executable, "-m", "ruff"]
    # Its rules are about a name that is imported and not used, so leaving an import in has to show.
    for arguments in (["check"], ["format", "--check"]):
        result = subprocess.run(
            [*ruff, *arguments, "--no-cache", "."], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
        )
        assert result.returncode == 0, result.stdout + result.stderr
    for target, edits in EDITS.items():
        kept = [edit for edit in edits if edit.op != "remove_import_name"]
        if len(kept) < len(edits):
            (tmp_path / target).write_bytes(edited(target, kept))
            result = subprocess.run(
                [*ruff, "check", "--no-cache", target], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
            )
            assert result.returncode == 1 and "F401" in result.stdout, target


def test_an_import_that_an_edit_needs_is_there(tmp_path):
    """Each import is what another edit uses: without it ruff finds an undefined name, and the module would not run."""
    # edit: import-update-hint
    # edit: import-transactional-checkpoints
    # edit: import-after-publish
    # edit: import-discovery-and-rotation
    # edit: import-argument-check
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for target, edit in ALL:
        if edit.op != "add_import":
            continue
        file = tmp_path / f"{edit.id}.py"
        file.write_bytes(edited(target, [other for other in EDITS[target] if other is not edit]))
        command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "F821", file]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
        for name in re.findall(r"\bimport (.*)", edit.code):
            for part in (part.rpartition(" as ")[2] for part in name.split(", ")):
                assert f"Undefined name `{part}`" in result.stdout, (edit.id, result.stdout)


def test_every_added_argument_is_documented_with_its_default():
    # edit: document-checkpoint-arguments
    tree = ast.parse(edited("src/transformers/training_args.py"))
    (cls,) = definitions(tree)["TrainingArguments"]
    documentation = docstring_of(cls).value.value
    (edit,) = [edit for _, edit in ALL if edit.id == "checkpoint-arguments"]
    fields = ast.parse(edit.code).body
    assert len(fields) == ARGUMENTS
    for field in fields:
        default = next(keyword.value.value for keyword in field.value.keywords if keyword.arg == "default")
        head = re.search(rf"^ +{field.target.id} \((.*)\):$", documentation, flags=re.MULTILINE)
        assert head, field.target.id
        kind = ast.unparse(field.annotation).removesuffix(" | None").removeprefix("None | ")
        endings = {str: f', defaults to `"{default}"`', float: f", defaults to {default}", type(None): ""}
        ending = endings[type(default)]
        assert head[1] == f"`{kind}`, *optional*{ending}"


# ---- What is said about the edits ----


def test_readme_table_is_current():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_table(text) == text, "run: make readme"
    for _, edit in ALL:
        assert f"`{edit.id}`" in text


def test_readme_table_that_is_not_current_is_found(tmp_path):
    readme = tmp_path / "README.md"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    readme.write_text(text.replace(f"`{ALL[0][1].id}`", "`another`"), encoding="utf-8")
    result = run_tool("readme_table.py", "--check", "--readme", readme)
    assert result.returncode == 1 and "make readme" in result.stderr
    assert run_tool("readme_table.py", "--readme", readme).returncode == 0
    assert readme.read_text(encoding="utf-8") == with_table(text)
    for broken in (text.replace(BEGIN, ""), text.replace(END, END + END), text.replace(BEGIN, END, 1)):
        readme.write_text(broken, encoding="utf-8")
        result = run_tool("readme_table.py", "--readme", readme)
        assert result.returncode == 1 and BEGIN in result.stderr
        assert readme.read_text(encoding="utf-8") == broken


@functools.cache
def edits_named_by_tests() -> Counter:
    """How often each edit is named, in a comment `# edit: <id>`, by a test below `tests`."""
    named = Counter()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := re.fullmatch(r"\s+# edit: ([a-z0-9-]+(?:, [a-z0-9-]+)*)", line):
                named.update(match[1].split(", "))
    return named


def test_a_behaviour_test_names_every_edit():
    """A test that would fail without the edit carries the comment `# edit: <id>`, so that a reader finds it."""
    missing = [edit.id for _, edit in ALL if not edits_named_by_tests()[edit.id]]
    assert not missing, f"no test below tests/ has the comment `# edit: <id>` for these: {', '.join(missing)}"


def test_no_test_names_an_edit_that_does_not_exist():
    assert set(edits_named_by_tests()) <= {edit.id for _, edit in ALL}


def test_every_edit_file_is_named_after_a_file_of_the_release():
    for target, edits in EDITS.items():
        assert upstream_file(target)
        assert edits[0].origin.relative_to(ROOT).as_posix() == f"edits/{target}.toml"
