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
The documentation says what the code does: links, names, options, messages, commands, tests and samples are looked up.

Each check takes a page and gives a list of problems, one text each with file and line; an empty list is a good page.
"""

import argparse
import ast
import importlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

import toctree
from edit_file import ROOT
from readme_map import MapError, with_map
from upstream import read_pins


PAGES = ROOT / "docs" / "source" / "en"
README = ROOT / "README.md"
TESTING = ROOT / "tests" / "TESTING.md"
SOURCES = ROOT / "src" / "transformers"
USERS_PAGE = PAGES / "trainer_checkpoints.md"

# Headers of the tables that are compared with the code.
MESSAGES = ("message", "reason")
OPTIONS = ("argument", "training argument")
TEST_COLUMN = "test"
COMMANDS = "command"

# The samples of one page train a model of a few thousand parameters three times (seconds).
PATIENCE = 300
# Commands in samples that change the environment or need the repository's address: looked at, not run.
NOT_RUN = ("pip ", "echo ", "cd ", "git ", "bash examples/")

_FENCE = re.compile(r"^ *```(\w*)")
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_REFERENCE = re.compile(r"\[`~?([\w.]+)`\](?!\()")
_AUTODOC = re.compile(r"^\[\[autodoc\]\] ([\w.]+)")
_CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_PATH = re.compile(r"^(?:src|tests|utils|docs|edits|examples|benchmarks|requirements)/[\w./*-]+(?:::[\w:]+)?$")
_HOLE = "\0"


@dataclass(frozen=True)
class Line:
    """A line of a page, outside of code blocks."""

    number: int
    text: str


@dataclass(frozen=True)
class Sample:
    """A code block of a page."""

    number: int
    language: str
    code: str


class Page:
    """A Markdown file, taken apart.

    Args:
        path (`Path`):
            The file.
        root (`Path`, *optional*, defaults to the repository):
            What paths in it are relative to, besides the file itself.
    """

    def __init__(self, path: Path, root: Path = ROOT):
        self.path = path
        self.root = root
        self.lines: list[Line] = []
        self.samples: list[Sample] = []
        language, start, code = None, 0, []
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            fence = _FENCE.match(text)
            if fence and language is None:
                language, start, code = fence[1], number, []
            elif fence:
                self.samples.append(Sample(start, language or "", "\n".join(code) + "\n"))
                language = None
            elif language is None:
                self.lines.append(Line(number, text))
            else:
                code.append(text)

    def where(self, number: int) -> str:
        return f"{self.path.relative_to(self.root) if self.path.is_relative_to(self.root) else self.path}:{number}"

    def codes(self) -> Iterator[tuple[int, str]]:
        """Every piece of inline code, with the number of its line."""
        for line in self.lines:
            for match in _CODE.finditer(line.text):
                yield line.number, match[2].strip()

    def tables(self) -> Iterator[tuple[list[str], list[tuple[int, list[str]]]]]:
        """The header of each table, and its rows with the numbers of their lines."""
        header: list[str] | None = None
        rows: list[tuple[int, list[str]]] = []
        for line in [*self.lines, Line(0, "")]:
            if not line.text.startswith("|"):
                if header is not None:
                    yield header, rows
                header, rows = None, []
                continue
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.text.strip().strip("|"))]
            if header is None:
                header = cells
            elif not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
                rows.append((line.number, cells))

    def anchors(self) -> set[str]:
        """What a link into this page can name: its headings as sites spell them."""
        found = set()
        for line in self.lines:
            heading = re.match(r"^#{1,6} (.+)$", line.text)
            if heading:
                text = re.sub(r"[^\w\- ]", "", heading[1].replace("`", "").lower())
                found.add(text.strip().replace(" ", "-"))
        return found


def code_in(cell: str) -> str | None:
    """The inline code that a table's cell begins with."""
    match = _CODE.match(cell)
    return match[2].strip() if match else None


# ---- Links and names ----


def check_links(page: Page) -> list[str]:
    """Links within the repository lead to a file, and their anchors to a heading. Others have to be `https`."""
    problems = []
    for line in page.lines:
        for _, target in _LINK.findall(line.text):
            path, _, anchor = target.partition("#")
            if "://" in target:
                if not target.startswith("https://"):
                    problems.append(f"{page.where(line.number)}: the link {target} is not https")
                continue
            file = page.path.parent / path if path else page.path
            # Pages of upstream's documentation name each other without the ending.
            if not file.exists() and page.path.parent == PAGES and file.with_name(f"{file.name}.md").is_file():
                file = file.with_name(f"{file.name}.md")
            if not file.exists():
                problems.append(f"{page.where(line.number)}: the link {target} leads nowhere")
            elif anchor and (file.suffix != ".md" or anchor not in Page(file, page.root).anchors()):
                problems.append(f"{page.where(line.number)}: {path or 'this page'} has no heading for #{anchor}")
    return problems


def resolve(name: str) -> object:
    """The object of the patched library with a dotted name. Raises `AttributeError` or `ModuleNotFoundError`."""
    found: object = importlib.import_module("transformers")
    at = "transformers"
    for part in name.removeprefix("transformers.").split("."):
        at = f"{at}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(at)
    return found


def check_references(page: Page) -> list[str]:
    """What is referred to as an object of the library is one."""
    problems = []
    for line in page.lines:
        for name in [*_REFERENCE.findall(line.text), *_AUTODOC.findall(line.text)]:
            try:
                resolve(name)
            except (AttributeError, ImportError) as error:
                problems.append(f"{page.where(line.number)}: the library has no {name} ({error})")
    return problems


def check_paths(page: Page) -> list[str]:
    """Files of the repository that are named exist, and so do tests named with them."""
    problems = []
    for number, code in page.codes():
        path, _, test = code.partition("::")
        if not _PATH.match(code):
            continue
        if not any(page.root.glob(path)):
            problems.append(f"{page.where(number)}: there is no {path}")
        elif test and not has_test(page.root / path, test.split("::")):
            problems.append(f"{page.where(number)}: {path} has no {test}")
    return problems


def has_test(file: Path, names: list[str]) -> bool:
    """Whether a file defines what a test's id names, and whether that can be collected."""
    body: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
    for name in names:
        found = [
            node
            for node in body
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
        ]
        if not found:
            return False
        body = found[0].body
    return names[-1].startswith("test")


# ---- Options ----


def training_arguments() -> dict[str, object]:
    """Name and default of every training argument of the patched library."""
    from transformers import TrainingArguments

    return {field.name: None if field.default is MISSING else field.default for field in fields(TrainingArguments)}


def added_arguments(edits: Path = ROOT / "edits" / "src" / "transformers" / "training_args.py.toml") -> list[str]:
    """The training arguments that our edits add."""
    tables = tomllib.loads(edits.read_text(encoding="utf-8"))["edit"]
    code = "\n".join(table["code"] for table in tables if table["op"] == "add_field")
    return [node.target.id for node in ast.parse(code).body if isinstance(node, ast.AnnAssign)]


def check_options(page: Page, complete: bool) -> list[str]:
    """
    Training arguments that a page names exist, and have the defaults that its table says.

    Args:
        page (`Page`):
            The page.
        complete (`bool`):
            Whether its table has to have every argument that the edits add, and nothing else.
    """
    known = training_arguments()
    problems, listed = [], []
    for header, rows in page.tables():
        if header[0] not in OPTIONS or header[1:2] != ["default"]:
            continue
        for number, cells in rows:
            name, default = code_in(cells[0]), code_in(cells[1])
            if name not in known:
                problems.append(f"{page.where(number)}: there is no training argument {name}")
                continue
            listed.append(name)
            if default is None or ast.literal_eval(default) != known[name]:
                problems.append(f"{page.where(number)}: the default of {name} is {known[name]!r}, not {default}")
    for number, code in page.codes():
        match = re.match(r"^((?:save|resume|on_save|load|jit|enable)_\w+)(?:=.*)?$", code)
        if match and match[1] not in known and not is_name(match[1]):
            problems.append(f"{page.where(number)}: there is no option {match[1]}")
    if complete:
        problems += [
            f"{page.where(1)}: {name} is not in the table" for name in added_arguments() if name not in listed
        ]
        problems += [f"{page.where(1)}: {name} is not ours" for name in listed if name not in added_arguments()]
    return problems


def is_name(name: str) -> bool:
    """Whether a name is a method of the Trainer, one of its parameters, or a public name of the package."""
    import inspect

    from transformers import Trainer, trainer_checkpoint

    parameters = inspect.signature(Trainer.train).parameters
    return name in parameters or hasattr(Trainer, name) or name in trainer_checkpoint.__all__


# ---- Messages ----


def templates(sources: Path = SOURCES) -> set[str]:
    """Every text in our modules, with a hole where something is put in."""
    found = set()
    for path in sorted(sources.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else _HOLE for part in node.values]
                found.add(re.sub(f"{_HOLE}+", _HOLE, "".join(map(str, parts))))
    return found


def as_template(message: str) -> str:
    """A message as a page writes it, `<...>` for what differs, as the code has it."""
    return re.sub(r"<[^<>]+>", _HOLE, message).strip(_HOLE).strip()


def check_messages(page: Page, known: set[str]) -> list[str]:
    """Every message in a page's tables is one that the code can say."""
    problems = []
    for header, rows in page.tables():
        if header[0] not in MESSAGES:
            continue
        for number, cells in rows:
            message = code_in(cells[0])
            if message is None:
                problems.append(f"{page.where(number)}: the row does not begin with a message")
            elif not any(as_template(message) in text for text in known):
                problems.append(f"{page.where(number)}: nothing in the code says {message!r}")
    return problems


# ---- Tests that a table names ----


def check_tests_of_rows(page: Page) -> list[str]:
    """Every row of a table with a column of tests names one; whether it exists is for `check_paths`."""
    problems = []
    for header, rows in page.tables():
        if header[-1] == TEST_COLUMN:
            for number, cells in rows:
                named = code_in(cells[-1]) if len(cells) == len(header) else None
                if named is None or "::" not in named or not _PATH.match(named):
                    problems.append(f"{page.where(number)}: the row names no test")
    return problems


# ---- Commands ----


def commands() -> dict[str, set[str]]:
    """The commands of `transformers checkpoints`, each with its options."""
    from transformers.trainer_checkpoint.__main__ import _parser

    (subparsers,) = [action for action in _parser()._actions if hasattr(action, "choices") and action.choices]
    return {
        name: {option for action in parser._actions for option in action.option_strings}
        for name, parser in subparsers.choices.items()
    }


def make_targets(root: Path = ROOT) -> set[str]:
    text = (root / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", text, flags=re.MULTILINE))


def check_commands(page: Page) -> list[str]:
    """Commands that a page names exist, with the options it gives them; `make` targets too."""
    known, targets = commands(), make_targets()
    problems = []

    def check(number: int, command: str) -> None:
        words = command.split()
        if words[:2] == ["transformers", "checkpoints"]:
            words = words[2:]
        elif words[:3] == ["python", "-m", "transformers.trainer_checkpoint"]:
            words = words[3:]
        elif words[0] == "make" and len(words) > 1:
            if words[1] not in targets:
                problems.append(f"{page.where(number)}: make has no target {words[1]}")
            return
        else:
            return
        if words and words[0] not in known:
            problems.append(f"{page.where(number)}: there is no command {words[0]}")
        elif words:
            wrong = [word for word in words if word.startswith("--") and word not in known[words[0]]]
            problems.extend(f"{page.where(number)}: {words[0]} has no option {word}" for word in wrong)

    for number, code in page.codes():
        check(number, code)
    for sample in page.samples:
        if sample.language == "bash":
            for number, command in enumerate(sample.code.splitlines(), sample.number + 1):
                if command.strip():
                    check(number, command)
    for header, rows in page.tables():
        if header[0] == COMMANDS:
            for number, cells in rows:
                check(number, f"transformers checkpoints {code_in(cells[0])}")
                name = (code_in(cells[0]) or "").split(" ")[0]
                for option in re.findall(r"`(--[a-z]+)`", " ".join(cells[1:])):
                    if option not in known.get(name, {option}):
                        problems.append(f"{page.where(number)}: {name} has no option {option}")
    return problems


# ---- Samples ----


def check_samples(page: Page) -> list[str]:
    """Run the page's samples, in order, in an empty directory and in one process of Python."""
    blocks = [sample for sample in page.samples if sample.language in ("py", "python", "bash")]
    problems = [
        f"{page.where(sample.number)}: the sample is {sample.language or 'no language'}; use py, bash or text"
        for sample in page.samples
        if sample.language not in ("py", "bash", "text")
    ]
    runnable = [sample for sample in blocks if sample.language != "bash" or commands_to_run(sample)]
    problems += [
        f"{page.where(sample.number)}: `{command}` is not run here: give it another form, or a line in NOT_RUN"
        for sample in blocks
        if sample.language == "bash"
        for command in map(str.strip, sample.code.splitlines())
        if command and not command.startswith((*NOT_RUN, "make ")) and as_module(command) is None
    ]
    if problems or not runnable:
        return problems
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).resolve()), "--run-samples", str(page.path)]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            return [f"{page.where(runnable[0].number)}: the samples have not ended after {PATIENCE} s"]
    if done.returncode:
        return [f"{page.where(runnable[0].number)}: a sample fails:\n{done.stdout[-1000:]}{done.stderr[-3000:]}"]
    return []


def as_module(command: str) -> list[str] | None:
    """The arguments of one of the library's checkpoint commands; `None` for any other command."""
    words = command.split()
    for start in (["transformers", "checkpoints"], ["python", "-m", "transformers.trainer_checkpoint"]):
        if words[: len(start)] == start:
            return words[len(start) :]
    return None


def commands_to_run(sample: Sample) -> list[list[str]]:
    found = (as_module(command) for command in sample.code.splitlines())
    return [arguments for arguments in found if arguments is not None]


def run_samples(page: Page) -> None:
    """Run the samples of a page here. A sample that fails raises; its lines have the numbers they have in the page."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for sample in page.samples:
        if sample.language == "py":
            code = compile("\n" * sample.number + sample.code, str(page.path), "exec")
            exec(code, namespace)
        elif sample.language == "bash":
            for arguments in commands_to_run(sample):
                command = [sys.executable, "-m", "transformers.trainer_checkpoint", *arguments]
                # README's one is for a run directory that only its reader has.
                if page.path.name == README.name and arguments:
                    continue
                subprocess.run(command, check=True, timeout=PATIENCE)


# ---- Everything ----


def check_toctree() -> list[str]:
    """Our pages are those that upstream's table of contents is going to have."""
    there = {path.stem for path in PAGES.glob("*.md")}
    listed = set(toctree.pages("\n".join(toctree.entries())))
    return [f"{toctree.FRAGMENT.relative_to(ROOT)}: {name} is missing" for name in sorted(there - listed)] + [
        f"{toctree.FRAGMENT.relative_to(ROOT)}: there is no page {name}" for name in sorted(listed - there)
    ]


def check_readme() -> list[str]:
    """README's constraint pins this patch set, the way back leads to the release below it, and its map is current."""
    text = README.read_text(encoding="utf-8")
    pins = read_pins()
    problems = []
    if set(re.findall(r"transformers==([\w.+]+)", text)) != {pins.full_version, pins.version}:
        problems.append(
            f"README.md: the constraint has to be transformers=={pins.full_version}, and the way back "
            f"transformers=={pins.version}"
        )
    try:
        if with_map(text) != text:
            problems.append("README.md: the map is not current. Run: python utils/readme_map.py")
    except (MapError, ValueError) as error:
        problems.append(str(error))
    return problems


def check_all(samples: bool = True) -> list[str]:
    """Every check on every page. `samples=False` leaves out running the samples, which takes most of the time."""
    known = templates()
    problems = [*check_toctree(), *check_readme()]
    for path in [README, TESTING, *sorted(PAGES.glob("*.md"))]:
        page = Page(path)
        problems += check_links(page) + check_references(page) + check_paths(page)
        problems += check_options(page, complete=path in (README, USERS_PAGE))
        problems += check_messages(page, known) + check_tests_of_rows(page) + check_commands(page)
        if samples:
            problems += check_samples(page)
    return problems


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the documentation against the code.")
    parser.add_argument("--no-samples", action="store_true", help="do not run the samples")
    parser.add_argument("--run-samples", type=Path, metavar="PAGE", help="only run the samples of one page, here")
    options = parser.parse_args(arguments)
    if options.run_samples is not None:
        run_samples(Page(options.run_samples))
        return 0
    problems = check_all(samples=not options.no_samples)
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems" if problems else "The documentation agrees with the code.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
