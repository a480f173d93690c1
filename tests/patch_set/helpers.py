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
"""What the tests of the patch set share: making edits out of a few keys, and running our own commands."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from edit_file import ROOT, Edit, parse_edit_file
from upstream import pinned_release, released_tree


UTILS = ROOT / "utils"

DEFAULTS = {
    "id": "an-edit",
    "in": "<module>",
    "code": "",
    "why": "For the test.",
    "retire": "With the test.",
    "fingerprint": "",
}
TARGET = "src/transformers/module.py"

# A build copies and compresses sixty megabytes; an installation downloads what it needs first.
SECONDS = 300


def toml_value(value) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + " }"
    # A JSON string or truth value is a TOML one too.
    return json.dumps(value, ensure_ascii=False)


def toml_table(**keys) -> str:
    """One `[[edit]]` table; keys that are `None` are left out, the others replace or join the defaults."""
    table = {**DEFAULTS, **keys}
    lines = [f"{key} = {toml_value(value)}" for key, value in table.items() if value is not None]
    return "\n".join(["[[edit]]", *lines, ""])


def write_edits(directory: Path, *tables: str, target: str = TARGET) -> Path:
    """An edit file for a target, and the directory it is read from."""
    path = directory / "edits" / f"{target}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(tables), encoding="utf-8")
    return directory / "edits"


def make_edits(directory: Path, *tables: str) -> list[Edit]:
    edits_dir = write_edits(directory, *tables)
    return parse_edit_file(edits_dir / f"{TARGET}.toml", edits_dir)


def make_edit(directory: Path, **keys) -> Edit:
    return make_edits(directory, toml_table(**keys))[0]


def run_tool(name: str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    """Run one of our commands the way a developer does."""
    command = [sys.executable, str(UTILS / name), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS)


def upstream_file(target: str) -> bytes:
    """A file of the pinned release."""
    return (released_tree() / target.removeprefix("src/")).read_bytes()


def repository_copy(destination: Path) -> Path:
    """The repository's files as the next commit would have them, without what was built."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60).stdout.decode("utf-8")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, destination / name)
    return destination


def build(source: Path, what: str, destination: Path, upstream: Path | None = None) -> subprocess.CompletedProcess:
    """
    Build a wheel or an sdist as a frontend does, with `upstream` as the environment's `transformers`: the unpacked
    release, unless a test gives another.
    """
    destination.mkdir(parents=True, exist_ok=True)
    code = f"from setuptools import build_meta; print(build_meta.{what}({str(destination)!r}))"
    environment = {**os.environ, "PYTHONPATH": str(upstream or pinned_release().root)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=SECONDS, env=environment
    )
