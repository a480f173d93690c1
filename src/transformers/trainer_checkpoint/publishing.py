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
"""Putting a sealed directory in its place, and putting what is left of a dead save in order.

The commit point of a save is one rename in `publish`: before it the checkpoint does not exist, after it, it exists
whole. Only a disk's publisher calls anything here.

| a kill ... | leaves | and then |
| --- | --- | --- |
| before the seal | an unsealed directory in staging | readers ignore it; `settle` removes it |
| between seal and publish | a sealed one | `settle` publishes it |
| without `swap`: after the target was retired | a sealed one, no target | `settle` publishes it |
| after the swap | the older one in staging | `settle` retires it |
| while retiring | an entry in the trash | the next sweep deletes it |
"""

import contextlib
import errno
import os
from collections.abc import Callable

from ..utils import logging
from . import disk, owner
from .errors import ManifestError
from .layout import (
    KEEP_NAME,
    MANIFEST_NAME,
    TEMPORARY_SUFFIX,
    TRAINER_STATE_NAME,
    replaced_name,
    staging_run_dir,
    step_of,
)
from .manifest import Head, read_head


logger = logging.get_logger(__name__)

# A directory that holds one of these, or a file that ends in one of the endings, is a checkpoint and may be deleted
# once a newer one has taken its place. Anything else with the name of a checkpoint is kept aside.
_CHECKPOINT_FILES = frozenset({MANIFEST_NAME, TRAINER_STATE_NAME, "config.json", "latest", "training_args.bin"})
_CHECKPOINT_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".distcp", ".metadata")


class NotDurableError(OSError):
    """The checkpoint is in place, whole, and the flush of the directory that holds its name failed."""


class HalfwayError(OSError):
    """The old checkpoint is retired and the new one, sealed in staging, could not be renamed: `settle` will do it."""


def publish(run_dir: str, staged: str, name: str, *, nonce: str, durable: bool) -> None:
    """Give the sealed directory `staged` its final name `<run_dir>/<name>`: the commit point.

    On disk afterwards: the new checkpoint under its name, flushed if `durable`; what had the name before lies in the
    trash, or beside it as `<name>.replaced-<nonce>` where it is not recognised as a checkpoint. At no moment is there a
    mix of the two.

    Raises:
        [`NotDurableError`]: it is in place, and could not be made durable.
        [`HalfwayError`]: it is not in place yet, and what had the name before is retired already.
        `OSError`: it is not in place, and nothing has changed.
    """
    target = os.path.join(run_dir, name)
    came_out = None
    if os.path.lexists(target):
        came_out = _replace(run_dir, staged, target, nonce, durable)
    else:
        try:
            os.rename(staged, target)
        except OSError as error:
            # Somebody made the target just now.
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR} or not os.path.lexists(target):
                raise
            came_out = _replace(run_dir, staged, target, nonce, durable)
    if durable:
        try:
            disk.flush_directory(run_dir)
            disk.flush_directory(os.path.dirname(staged))
        except OSError as error:
            raise NotDurableError(error.errno, error.strerror, run_dir) from error
    # New data is durable before old data goes.
    if came_out is not None:
        try:
            put_out_of_use(run_dir, came_out, nonce, durable=durable)
        except OSError as error:
            logger.warning(f"What {target} was before could not be taken away ({error}); it is left in {run_dir}.")


def _replace(run_dir: str, staged: str, target: str, nonce: str, durable: bool) -> str | None:
    """Put `staged` where `target` is. Returns where the old one is now if it still has to be taken away."""
    try:
        disk.swap(staged, target)
        return staged
    except disk.SwapUnsupported:
        put_out_of_use(run_dir, target, nonce, durable=durable)
        try:
            os.rename(staged, target)
        except OSError as error:
            raise HalfwayError(error.errno, error.strerror, staged, None, target) from error
        return None


def put_out_of_use(run_dir: str, path: str, nonce: str, *, durable: bool) -> None:
    """Retire `path` if it is a checkpoint or an empty directory, else keep it beside the checkpoints and say so."""
    reason = why_to_keep(path)
    if reason is None:
        disk.retire(run_dir, path, nonce, durable=durable)
        return
    aside = os.path.join(run_dir, replaced_name(os.path.basename(path), nonce))
    os.rename(path, aside)
    if durable:
        disk.flush_directory(run_dir)
    name = os.path.join(run_dir, os.path.basename(path))
    logger.warning(f"{name} stood in the way of a checkpoint and {reason}. It was kept as {aside}.")


def why_to_keep(path: str) -> str | None:
    """Why `path` must not be deleted, or `None` if it is an empty directory or a checkpoint, complete or not.

    Nothing is deleted because it could not be read: a checkpoint whose manifest is damaged is kept too.
    """
    if os.path.islink(path) or not os.path.isdir(path):
        return "was not a directory"
    names = os.listdir(path)
    if not names:
        return None
    if KEEP_NAME in names:
        return f"is pinned by its file {KEEP_NAME}"
    try:
        if read_head(path) is not None:
            return None
    except (ManifestError, OSError) as error:
        return f"could not be read ({error})"
    if any(
        name in _CHECKPOINT_FILES or name.endswith(_CHECKPOINT_ENDINGS) or name.startswith("global_step")
        for name in names
    ):
        return None
    return "was not recognised as a checkpoint"


def settle(
    run_dir: str, *, nonce: str, durable: bool, expect: Callable[[str, int], None] = lambda path, size: None
) -> list[str]:
    """Put in order what a dead save left in staging: publish what is sealed and good, retire the rest.

    Called by the publisher, at the start of a training and when a save opens, after the owner check. On disk
    afterwards: no checkpoint in staging.

    Args:
        run_dir (`str`):
            The run directory.
        nonce (`str`):
            Of the save or resume that puts it in order, for names in the trash.
        durable (`bool`):
            Flush what is renamed.
        expect (`Callable[[str, int], None]`, *optional*):
            Called before a sealed leftover is read through, with its path and its size in bytes.

    Returns:
        `list[str]`: paths of checkpoints that were published by this.

    Raises:
        `OSError`: something could not be renamed.
    """
    staging = staging_run_dir(run_dir)
    if os.path.islink(staging) or not os.path.isdir(staging):
        return []
    ours = owner.staging_is_ours(run_dir)
    published = []
    for name in sorted(os.listdir(staging)):
        path = os.path.join(staging, name)
        if ours and name.endswith(TEMPORARY_SUFFIX):
            disk.delete(path)
        elif step_of(name) is not None and (os.path.islink(path) or not os.path.isdir(path) or not ours):
            put_aside = os.path.join(run_dir, replaced_name(name, nonce))
            os.rename(path, put_aside)
            logger.warning(f"{path} was not left by a save of this library. It was kept as {put_aside}.")
        elif step_of(name) is not None:
            target = os.path.join(run_dir, name)
            reason = why_not_to_publish(path, target, expect)
            if reason is None:
                publish(run_dir, path, name, nonce=nonce, durable=durable)
                logger.warning(
                    f"Published {target}: the save that wrote it was interrupted after everything was written and "
                    "verified."
                )
                published.append(target)
            else:
                put_out_of_use(run_dir, path, nonce, durable=durable)
                logger.warning(f"Removed what an interrupted save of {target} left behind ({reason}).")
    return published


def why_not_to_publish(
    staged: str, target: str, expect: Callable[[str, int], None] = lambda path, size: None
) -> str | None:
    """Why the leftover `staged` must not become `target`, or `None` if it is sealed, good and newer than `target`.

    `expect` is called with `staged` and its size in bytes before it is read through.
    """
    try:
        head = read_head(staged)
    except (ManifestError, OSError) as error:
        return str(error)
    if head is None:
        return "it was not complete"
    # Imported late: verification is only needed after an accident.
    from .verification import verify

    expect(staged, head.files.bytes)
    problems = verify(staged, level="full").problems
    if problems:
        return f"{problems[0].file}: {problems[0].reason}"
    return _why_older(head, target)


def _why_older(head: Head, target: str) -> str | None:
    if not os.path.lexists(target):
        return None
    try:
        there = read_head(target)
    except ManifestError:
        # `publish` keeps what cannot be read beside the checkpoints.
        return None
    except OSError as error:
        # A disk that fails for a moment must not put the older of two in the newer one's place.
        return f"{target} cannot be looked at, and may be newer: {error.strerror or error}"
    if there is not None:
        return None if head.sequence > there.sequence else "a newer checkpoint has taken its place"
    if os.path.isdir(target) and os.listdir(target) and os.path.basename(target) not in head.saw:
        return "another version has saved this step since"
    return None


def close_staging(run_dir: str) -> None:
    """Remove the staging run directory if nothing is in it. Never raises."""
    with contextlib.suppress(OSError):
        os.rmdir(staging_run_dir(run_dir))
