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
"""An accident at a fixed place: this process is killed in the middle of a save."""

import os
import signal
import sys


def arrange(checkpoint: str) -> None:
    """SIGKILL this process when it is about to write the Trainer's state, the last file of `checkpoint`.

    Python announces each `open` to its audit hooks before it happens. Nothing can be caught or cleaned up after that,
    as with a node that is taken away or the kernel's out-of-memory killer.

    Args:
        checkpoint (`str`):
            The name of the checkpoint's directory, wherever it is being written.
    """

    def hook(event: str, args: tuple) -> None:
        if event != "open" or not isinstance(args[0], str) or not args[1] or "w" not in args[1]:
            return
        directory, name = os.path.split(args[0])
        if name == "trainer_state.json" and os.path.basename(directory) == checkpoint:
            print(f"rank 0: SIGKILL, {name} of {checkpoint} was about to be written", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
