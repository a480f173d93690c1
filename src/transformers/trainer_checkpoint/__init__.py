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
"""Crash-safe checkpoints for the Trainer: written whole or not at all, found again, verified, rotated.

For users: [`list_checkpoints`] and [`verify_checkpoint`], and on the command line `transformers checkpoints`, or
`python -m transformers.trainer_checkpoint`, which imports neither torch nor the rest of the library. The Trainer goes
through `trainer_glue`. `layout` shows what is on disk, `transaction` how a save goes, `discovery` how a checkpoint is
found again.

Importing this package imports none of its modules.
"""

import importlib
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .errors import (
        CheckpointError,
        CheckpointOwnedError,
        CheckpointResumeError,
        CheckpointSaveError,
        ManifestError,
    )
    from .inspection import CheckpointInfo, list_checkpoints, verify_checkpoint
    from .preemption import TrainingPreempted
    from .verification import Problem, VerifyResult

_MODULE_OF = {
    "CheckpointError": "errors",
    "CheckpointInfo": "inspection",
    "CheckpointOwnedError": "errors",
    "CheckpointResumeError": "errors",
    "CheckpointSaveError": "errors",
    "ManifestError": "errors",
    "Problem": "verification",
    "TrainingPreempted": "preemption",
    "VerifyResult": "verification",
    "list_checkpoints": "inspection",
    "verify_checkpoint": "inspection",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])


__all__ = [
    "CheckpointError",
    "CheckpointInfo",
    "CheckpointOwnedError",
    "CheckpointResumeError",
    "CheckpointSaveError",
    "ManifestError",
    "Problem",
    "TrainingPreempted",
    "VerifyResult",
    "list_checkpoints",
    "verify_checkpoint",
]
