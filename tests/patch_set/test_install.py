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
What a user does: installing from a git URL with pip and from the directory with uv, into an empty environment. The
build takes upstream's release from the package index, so these need one.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from upstream import read_pins

from .helpers import SECONDS


CHECK = """
import importlib.metadata, sys
from pathlib import Path

import transformers
from transformers import Trainer
from transformers.trainer_checkpoint.patch_info import patch_info

assert Path(transformers.__file__).is_relative_to(sys.prefix), transformers.__file__
assert "TransactionalCheckpoints" in [base.__name__ for base in Trainer.__mro__]
print(importlib.metadata.version("transformers"), patch_info().version, transformers.__version__)
"""


def run(*command, cwd: Path) -> str:
    result = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=2 * SECONDS)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def environment(tmp_path) -> Path:
    """An empty virtual environment, as its interpreter."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    return tmp_path / "venv" / "bin" / "python"


def check(python: Path) -> None:
    """
    Import the installed package. What it depends on is this environment's, behind the installed package on the path:
    downloading torch again would tell nothing about the build.
    """
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    elsewhere = [path for path in sys.path if path.endswith("site-packages")]
    assert elsewhere
    (site / "dependencies.pth").write_text("\n".join(elsewhere) + "\n", encoding="utf-8")
    version = read_pins().full_version
    assert run(python, "-c", CHECK, cwd=site).split() == [version, version, read_pins().version]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_pip_from_a_git_url(environment, repository):
    for arguments in (
        ("init", "--quiet"),
        ("add", "--all"),
        ("-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "--quiet", "--message", "All"),
    ):
        run("git", *arguments, cwd=repository)
    run(environment, "-m", "pip", "install", "--no-deps", f"git+{repository.as_uri()}", cwd=repository.parent)
    check(environment)
    run(environment, "-m", "pip", "uninstall", "--yes", "transformers", cwd=repository.parent)
    (site,) = (environment.parents[1] / "lib").glob("python*/site-packages")
    assert not list(site.glob("transformers*"))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_uv_from_the_directory(environment, repository):
    uv = Path(sys.executable).with_name("uv")
    uv = uv if uv.exists() else shutil.which("uv")
    run(uv, "pip", "install", "--python", environment, "--no-deps", repository, cwd=repository.parent)
    check(environment)
