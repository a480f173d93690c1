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
"""Stop this process, or fail an operation, at the n-th change of the disk below one directory.

Python raises an audit event before each operation; an exception raised from an audit hook takes the operation's place.
`trainer_checkpoint.flush` and `trainer_checkpoint.swap` are this library's own, for the two operations that have none.
"""

import os
import signal
import sys


_PATH_EVENTS = {
    "open": 1,
    "os.mkdir": 1,
    "os.rmdir": 1,
    "os.remove": 1,
    "os.chmod": 1,
    "os.rename": 2,
    "trainer_checkpoint.flush": 1,
    "trainer_checkpoint.swap": 2,
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class FileOperations:
    """Counts the changes below `root`; at number `at` either kills this process or raises `OSError(error)`.

    Args:
        root (`str`):
            Only operations on paths below it count.
        at (`int`, *optional*):
            The operation, from 1. Without it everything is only counted.
        error (`int`, *optional*):
            The errno to fail with. Without it the process kills itself.
    """

    def __init__(self, root: str, at: int | None = None, error: int | None = None):
        self.root = os.path.realpath(root)
        self.at = at
        self.error = error
        self.seen: list[str] = []
        self.active = True
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple) -> None:
        if not self.active or event not in _PATH_EVENTS:
            return
        if event == "open" and self.error is None and not (isinstance(args[2], int) and args[2] & _WRITING):
            return
        paths = [os.fsdecode(arg) for arg in args[: _PATH_EVENTS[event]] if isinstance(arg, (str, bytes))]
        # `shutil.rmtree` names what it removes relative to a descriptor.
        if event in ("os.remove", "os.rmdir") and args[1] >= 0:
            paths = [os.path.join(os.readlink(f"/proc/self/fd/{args[1]}"), paths[0])]
        if not any(os.path.abspath(path).startswith(self.root) for path in paths):
            return
        self.seen.append(f"{event} {' '.join(os.path.relpath(path, self.root) for path in paths)}")
        if len(self.seen) == self.at:
            if self.error is None:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(self.error, os.strerror(self.error), paths[0])
