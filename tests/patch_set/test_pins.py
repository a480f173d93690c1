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
Pins agree everywhere, and what a stranger to this machine would stumble over is not in any file.
"""

import ast
import re
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from assemble import our_files
from copied_text import our_texts
from edit_file import ROOT
from upstream import pinned_release, read_pins, verify


PINS = read_pins()
TEXTS = our_texts()

# Files that name releases of upstream, each with the pattern that finds the pinned one.
PLACES = {
    "UPSTREAM.toml": r'(?m)^version = "(.+)"',
    "pyproject.toml": r'"transformers==([^"]+)"',
    "requirements/test.txt": r"(?m)^transformers==(.+)$",
    "README.md": r"transformers\]?(?:\([^)]*\))? (\d+\.\d+\.\d+)",
}


@pytest.mark.parametrize("file", PLACES)
def test_version_of_upstream_is_the_same_everywhere(file):
    found = re.findall(PLACES[file], TEXTS[file])
    assert found and set(found) == {PINS.version}, f"{file}: {found}"


def test_build_requirement_is_exact():
    requires = [Requirement(line) for line in tomllib.loads(TEXTS["pyproject.toml"])["build-system"]["requires"]]
    (upstream,) = [requirement for requirement in requires if requirement.name == PINS.name]
    assert [str(specifier) for specifier in upstream.specifier] == [f"=={PINS.version}"]


def test_digest_is_that_of_the_release():
    verify(pinned_release(), PINS)


def test_full_version():
    version = Version(PINS.full_version)
    assert str(version) == f"{PINS.version}+staged.{PINS.patch_set}" and version > Version(PINS.version)


def test_requirements_of_our_modules_are_declared():
    """Every third-party module that our modules import is required by upstream or by `UPSTREAM.toml`."""
    known = {"torch", "accelerate", "numpy", "safetensors", "huggingface_hub", "packaging", "typer", "yaml", "tqdm"}
    known |= {"transformers", *(re.split(r"[<>=]", requirement)[0] for requirement in PINS.requires)}
    # `typer` brings it.
    known |= {"rich"}
    # Only looked for, never needed.
    known |= {"deepspeed", "peft", "torch_xla", "smdistributed"}
    import sys

    for path in our_files():
        if not path.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(TEXTS[f"src/{path}"])):
            if isinstance(node, ast.Import):
                names = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = {node.module.partition(".")[0]}
            else:
                continue
            assert names <= known | set(sys.stdlib_module_names), f"src/{path}:{node.lineno}: {names}"


def test_tests_requirements_hold_what_modules_need():
    required = {Requirement(line).name for line in TEXTS["requirements/test.txt"].splitlines() if line[:1].isalpha()}
    assert {Requirement(line).name for line in PINS.requires} <= required
    assert {"torch", "accelerate", "pytest", "pytest-timeout", "pytest-xdist", "ruff", "hypothesis"} <= required


@pytest.mark.parametrize("directory", ["src", "utils", "tests"])
def test_licence_header(directory):
    header = TEXTS["setup.py"].split('"""')[0]
    assert header.startswith(
        "# Copyright 2026 The HuggingFace Team. All rights reserved.\n#\n# Licensed under the Apache"
    )
    files = [
        name for name in TEXTS if name.startswith(f"{directory}/") and name.endswith(".py") and TEXTS[name].strip()
    ]
    assert files
    without = [name for name in files if not TEXTS[name].startswith(header)]
    assert not without


def test_no_file_knows_this_machine():
    """Paths of the machine it was written on, in any file; this test's own pattern is spelled so as not to match."""
    pattern = re.compile(r"/(?:opt|work|root)/(?:w|main|shared|stock|wheels|\.pyenv)\b")
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in TEXTS.items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_nothing_that_was_built_is_in_the_repository():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    built = [
        name for name in listed
        if name.startswith(("build/", ".venv/", "dist/")) or name.endswith((".pyc", ".whl", "_patch_set.json"))
    ]  # fmt: skip
    assert not built


def test_every_make_target_is_in_the_help():
    makefile = TEXTS["Makefile"]
    phony = set(re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)[1].split())
    documented = set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))
    assert phony == documented
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert {line.split()[0] for line in shown.splitlines()} == documented
