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
"""Runs `python -m transformers.trainer_checkpoint` before the rest of the library is imported.

Python imports a package before it runs a module inside, and importing `transformers` takes several times as long as
listing checkpoints. The library's `__init__` calls `run_if_asked` first thing; in every other process that is a look at
`sys.argv` and no more.

It is no module of that package: `transformers` puts a lazy module in its own place at the end of its import, and a
package that was imported before is no attribute of that one.
"""

import sys


MODULE = "transformers.trainer_checkpoint"


def run_if_asked() -> None:
    """If this process was started as `python -m transformers.trainer_checkpoint`, run that and end the process.

    Raises:
        `SystemExit`: with the command's exit code.
    """
    if _module_asked_for() == MODULE:
        from .trainer_checkpoint.__main__ import main

        sys.exit(main(sys.argv[1:]))


def _module_asked_for() -> str | None:
    """What stands after `-m`, while Python is still looking for it: until it has found it, `sys.argv[0]` is `-m`."""
    if sys.argv[:1] != ["-m"] or len(sys.orig_argv) <= len(sys.argv):
        return None
    # What stood before it are options of the interpreter; `-mname` in one word is allowed.
    return sys.orig_argv[-len(sys.argv)].removeprefix("-m")
