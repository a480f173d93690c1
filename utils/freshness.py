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
Whether the `transformers` that a test run would import is the patched one, and as new as this repository.
"""

import hashlib
import importlib.util
import json
import sys
from pathlib import Path

from assemble import DATA_FILE, SOURCES, edits_digest, our_files


def installed_parent() -> Path | None:
    """The directory with the `transformers` that this interpreter would import, which is not imported for it."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent.parent


def staleness(parent: Path | None) -> str | None:
    """
    Compare a `transformers` with this repository.

    Args:
        parent (`Path`, *optional*):
            The directory that holds it; `None` when there is none.

    Returns:
        `str` or `None`: What is wrong and which command puts it right, or `None` when tests can run against it.
    """
    # The command has to reach the interpreter that runs the tests, whichever environment that is in.
    command = f"make link PY={sys.executable}"
    if parent is None:
        return f"No transformers is installed for {sys.executable}. Run: {command}"
    data_file = parent / DATA_FILE
    if not data_file.is_file():
        return (
            f"The transformers in {parent} is not patched, so the tests would test upstream's release.\n"
            f"Run: {command}\n(in a virtual environment without another transformers)"
        )
    data = json.loads(data_file.read_text(encoding="utf-8"))
    if data["edits_digest"] != edits_digest():
        return f"The edits, the engine or the pins changed since {parent} was built. Run: {command}"
    for path, digest in data["files"].items():
        file = parent / path
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            return f"{file} is not the file that the edits make. Run: {command}"
    for path in our_files():
        theirs, ours = parent / path, SOURCES / path
        if not theirs.is_file() or not (theirs.samefile(ours) or theirs.read_bytes() == ours.read_bytes()):
            return f"{theirs} is not src/{path} as it is now. Run: {command}"
    return None
