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
"""Fixtures that take long to make: one build of the wheel for all processes of a test run."""

import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

from .helpers import SECONDS, build, repository_copy


@pytest.fixture
def repository(tmp_path) -> Path:
    return repository_copy(tmp_path / "repository")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory, worker_id) -> Path:
    """The built wheel, unpacked: a directory with `transformers` and its `.dist-info`."""
    base = tmp_path_factory.getbasetemp()
    # Every process of a run has a directory of its own below a common one.
    shared = base if worker_id == "master" else base.parent
    unpacked = shared / "wheel"
    with FileLock(shared / "wheel.lock", timeout=SECONDS):
        if not unpacked.is_dir():
            result = build(repository_copy(shared / "wheel-source"), "build_wheel", shared / "wheel-file")
            assert result.returncode == 0, result.stdout + result.stderr
            (path,) = (shared / "wheel-file").glob("*.whl")
            with zipfile.ZipFile(path) as archive:
                archive.extractall(unpacked)
    return unpacked
