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
Upstream's own Trainer tests as a gate: runs them, out of a checkout of the tag, against the linked package.

The tests run in a copy whose `src` is the linked tree, since upstream's `conftest.py` puts the checkout's own `src` in
front. Tests that this patch set changes on purpose are listed in `upstream_tests.toml` with the reason, and with the
test of ours that shows what happens instead; they are left out, and each must exist.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from edit_file import ROOT
from link import DEV
from upstream import read_pins


LIST = Path(__file__).with_name("upstream_tests.toml")
DEFAULT_TESTS = "tests/trainer"
COLLECT_SECONDS = 600


class GateError(Exception):
    """The gate cannot run. The text says why and what to do."""


@dataclass(frozen=True)
class ChangedTest:
    """A test of upstream that this patch set fails on purpose."""

    test: str
    reason: str
    ours: str


def read_changed(path: Path = LIST, root: Path = ROOT) -> list[ChangedTest]:
    """
    Read the list of upstream tests that are changed on purpose.

    Args:
        path (`Path`, *optional*, defaults to `utils/upstream_tests.toml`):
            The list.
        root (`Path`, *optional*, defaults to the repository):
            What the paths of our own tests in it are relative to.

    Returns:
        `list[ChangedTest]`: The entries.

    Raises:
        `GateError`: for an entry without a reason, an unknown key, a test named twice, or a test of ours that does
            not exist.
    """
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    if set(data) - {"changed"}:
        raise GateError(
            f"{path.name}: only `[[changed]]` tables are known, found {', '.join(set(data) - {'changed'})}"
        )
    entries: list[ChangedTest] = []
    for number, table in enumerate(data.get("changed", []), 1):
        if set(table) != {"test", "reason", "ours"} or not all(str(value).strip() for value in table.values()):
            raise GateError(f"{path.name}, entry {number}: needs exactly `test`, `reason` and `ours`: {table}")
        entry = ChangedTest(**table)
        if any(entry.test == other.test for other in entries):
            raise GateError(f"{path.name}: {entry.test} is listed twice")
        file, _, name = entry.ours.partition("::")
        own = root / file
        if not own.is_file() or f"def {name.rpartition('::')[2]}(" not in own.read_text(encoding="utf-8"):
            raise GateError(f"{path.name}: {entry.test} is replaced by {entry.ours}, which does not exist here")
        entries.append(entry)
    return entries


def prepare(checkout: Path, version: str, into: Path, tree: Path) -> None:
    """
    Copy what upstream's tests need, with the linked package in the place of the checkout's.

    Args:
        checkout (`Path`):
            A checkout of upstream's tag.
        version (`str`):
            The version it has to be of.
        into (`Path`):
            An empty directory. Afterwards it holds `tests`, the checkout's files beside it, and a link `src`.
        tree (`Path`):
            The linked tree.

    Raises:
        `GateError`: for a directory that is no checkout of that version.
    """
    init = checkout / "src" / "transformers" / "__init__.py"
    if not init.is_file() or not (checkout / DEFAULT_TESTS).is_dir():
        raise GateError(f"{checkout} is not a checkout of transformers: {init} or {DEFAULT_TESTS} is not there")
    found = re.search(r'^__version__ = "(.*)"', init.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if found is None or found[1] != version:
        raise GateError(f"{checkout} is at version {found[1] if found else '(none)'}: check out the tag v{version}")
    shutil.copytree(checkout / "tests", into / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("examples", "templates", "utils"):
        if (checkout / name).is_dir():
            (into / name).symlink_to(checkout / name)
    for path in checkout.iterdir():
        if path.is_file() and path.suffix in (".py", ".toml", ".cfg", ".ini", ".md"):
            shutil.copy(path, into / path.name)
    (into / "src").symlink_to(tree)


def collected(python: str, directory: Path, tests: list[str]) -> set[str]:
    """The ids of the tests that pytest finds."""
    command = [python, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests]
    result = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=COLLECT_SECONDS)
    if result.returncode:
        raise GateError(f"upstream's tests could not be collected:\n{result.stdout[-4000:]}{result.stderr[-4000:]}")
    return {line.strip() for line in result.stdout.splitlines() if "::" in line}


def run(checkout: Path, arguments: list[str], python: str, changed: list[ChangedTest], tree: Path = DEV) -> int:
    """
    Run upstream's tests.

    Args:
        checkout (`Path`):
            A checkout of upstream's tag.
        arguments (`list[str]`):
            For pytest; without a path in them, all of `tests/trainer` runs.
        python (`str`):
            An interpreter that sees the linked package.
        changed (`list[ChangedTest]`):
            The tests to leave out.
        tree (`Path`, *optional*, defaults to `build/dev`):
            The linked tree.

    Returns:
        `int`: pytest's exit status.

    Raises:
        `GateError`: when the checkout does not fit, or a listed test does not exist.
    """
    with tempfile.TemporaryDirectory(prefix="upstream-tests-") as temporary:
        directory = Path(temporary)
        prepare(checkout, read_pins().version, directory, tree)
        paths = [argument for argument in arguments if (directory / argument.partition("::")[0]).exists()]
        options = [argument for argument in arguments if argument not in paths]
        ids = collected(python, directory, [DEFAULT_TESTS])
        for entry in changed:
            # A parameterized test is listed by its name without the parameters, and stands for all of them.
            if not any(test == entry.test or test.startswith(f"{entry.test}[") for test in ids):
                raise GateError(f"{LIST.name} lists {entry.test}, which upstream does not have: remove the entry")
        deselect = [part for entry in changed for part in ("--deselect", entry.test)]
        command = [python, "-m", "pytest", *(paths or [DEFAULT_TESTS]), "-p", "no:cacheprovider", *deselect, *options]
        print(f"{len(ids)} tests of upstream, {len(changed)} of them changed on purpose")
        for entry in changed:
            print(f"  left out: {entry.test}: {entry.reason} (ours: {entry.ours})")
        sys.stdout.flush()
        return subprocess.run(command, cwd=directory).returncode


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run upstream's Trainer tests against the linked package.")
    parser.add_argument("checkout", type=Path, help="a checkout of upstream's tag")
    options, rest = parser.parse_known_args(arguments)
    try:
        return run(options.checkout.resolve(), rest, sys.executable, read_changed())
    except GateError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
