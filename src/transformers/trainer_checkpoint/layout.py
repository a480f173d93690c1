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
"""Every name the checkpoint code gives to something on disk, in one place.

What a run directory looks like while step 30 is being saved:

    out/                            run directory
    ├── checkpoint-10/              a checkpoint without a manifest (written by another version)
    ├── checkpoint-20/              a published checkpoint
    │   ├── model.safetensors ...   what the Trainer wrote
    │   ├── checkpoint-files.1.json the list of files: relative path, size, digest
    │   └── checkpoint-manifest.json  the head, written last: with it the checkpoint is sealed
    ├── _staging/                   staging run directory, only there while somebody saves
    │   ├── owner.json              who saves here
    │   └── checkpoint-30/          what is being written now
    └── _trash/                     retired checkpoints on their way out
        └── checkpoint-0.5f0c2a9be1d34c77

Names that start with `_` are left out by the Trainer's own upload to the Hub and match no `checkpoint-*` glob.
"""

import os
import re


CHECKPOINT_PREFIX = "checkpoint"
STAGING_DIR = "_staging"
TRASH_DIR = "_trash"

MANIFEST_NAME = "checkpoint-manifest.json"
# The number grows with each sealing of the same directory, so that the old list stays valid until the new head is in
# place.
FILE_LIST_PATTERN = re.compile(r"^checkpoint-files\.(\d+)\.json\Z")
# A dead owner's record is never replaced in place: who takes over makes `owner.1.json`, and so on (see `owner`).
OWNER_NAME = "owner.json"
# The name the library's own preemption code has always used.
SENTINEL_NAME = "checkpoint-is-incomplete.txt"
KEEP_NAME = "KEEP"
# What a user puts into a run directory to ask a running training for a checkpoint, or for a checkpoint and its end.
SAVE_REQUEST_NAME = "SAVE"
STOP_REQUEST_NAME = "STOP"

TRAINER_STATE_NAME = "trainer_state.json"

# Names that are ours inside a checkpoint and that no digest covers: the head cannot list itself, a pin may come and go.
UNLISTED_NAMES = frozenset({MANIFEST_NAME, SENTINEL_NAME, KEEP_NAME})

# Parts of a name that mark a file as half-written by us; a kill may leave one.
TEMPORARY_SUFFIX = ".tmp-checkpoint"

_CHECKPOINT = re.compile(rf"^{CHECKPOINT_PREFIX}-(\d+)\Z")
_OWNER = re.compile(r"^owner(?:\.([1-9][0-9]{0,8}))?\.json\Z")
_DISK_TOKEN = re.compile(r"^_disk-[0-9a-f]{16}\Z")
_RETIRED = re.compile(rf"^{CHECKPOINT_PREFIX}-\d+\.[0-9a-f]{{16}}$")


def checkpoint_name(step: int) -> str:
    return f"{CHECKPOINT_PREFIX}-{step}"


def step_of(name: str) -> int | None:
    """The step in the name `checkpoint-<digits>`, or `None` for any other name."""
    # `\d` matches digits of other scripts too; those were never written by a Trainer.
    match = _CHECKPOINT.match(name) if name.isascii() else None
    return int(match.group(1)) if match else None


def is_retired_name(name: str) -> bool:
    """Whether an entry of a trash directory carries a name that `retired_name` gives."""
    return _RETIRED.match(name) is not None


def retired_name(name: str, nonce: str) -> str:
    """Name in the trash for the checkpoint `name`; `nonce` is 16 hexadecimal digits."""
    return f"{name}.{nonce}"


def replaced_name(name: str, nonce: str) -> str:
    """Name beside the checkpoints for something that stood in the way and is not a checkpoint: it is never deleted."""
    return f"{name}.replaced-{nonce}"


def file_list_name(sealing: int) -> str:
    return f"checkpoint-files.{sealing}.json"


def owner_name(generation: int) -> str:
    """Name of the owner record that took over from `generation` dead ones."""
    return f"owner.{generation}.json" if generation else OWNER_NAME


def owner_generation(name: str) -> int | None:
    """The generation in a name that `owner_name` gives, or `None` for any other name."""
    match = _OWNER.match(name)
    return int(match.group(1) or 0) if match else None


def disk_token_name(nonce: str) -> str:
    """Name in the run directory by which the ranks find out who shares a disk; only there while they look."""
    return f"_disk-{nonce}"


def is_disk_token(name: str) -> bool:
    return _DISK_TOKEN.match(name) is not None


def staging_run_dir(run_dir: str | os.PathLike) -> str:
    return os.path.join(run_dir, STAGING_DIR)


def trash_dir(run_dir: str | os.PathLike) -> str:
    return os.path.join(run_dir, TRASH_DIR)


# Names that carry a rank: the Trainer's random states, DCP's and DeepSpeed's shards, XLA's optimizer parts.
_RANK_IN_NAME = re.compile(r"(?:^|/)(?:rng_state_|__|(?:bf16_|fp16_)?zero_pp_rank_|rank)(\d+)(?=[._-])")


def rank_in(name: str) -> int | None:
    """The rank that the relative path `name` says it belongs to, or `None`."""
    match = _RANK_IN_NAME.search(name)
    return int(match.group(1)) if match else None
