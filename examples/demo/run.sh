#!/usr/bin/env bash
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

# Sets up what the demo needs and runs it. With PYTHON=... in the environment that interpreter is used as it is;
# without, a virtual environment in build/demo/venv gets torch, accelerate and the patched transformers, built as
# `pip install .` builds it.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"

if [ -z "${PYTHON:-}" ]; then
    venv=build/demo/venv
    PYTHON=$root/$venv/bin/python
    [ -x "$PYTHON" ] || python3 -m venv "$venv"
    fresh='import sys; sys.path.insert(0, "utils"); from freshness import *; sys.exit(staleness(installed_parent()) is not None)'
    if ! "$PYTHON" -c "$fresh"; then
        echo "Building and installing the patched transformers, torch and accelerate into $venv, once." >&2
        # The versions that the tests are run with.
        grep -E '^(torch|accelerate)==' requirements/test.txt >build/demo/requirements.txt
        pip=("$PYTHON" -m pip --quiet --disable-pip-version-check)
        rm -f build/demo/*.whl
        "${pip[@]}" wheel --no-deps --wheel-dir build/demo .
        "${pip[@]}" install -r build/demo/requirements.txt build/demo/*.whl
        # An older build has the same version.
        "${pip[@]}" install --force-reinstall --no-deps build/demo/*.whl
    fi
fi
exec "$PYTHON" examples/demo/demo.py "$@"
