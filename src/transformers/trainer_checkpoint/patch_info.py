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
Which build of `transformers` this is: stock, or patched, and then by which patch set and which edits.

A patched build carries the file `transformers/_patch_set.json`, which its build wrote. In a source tree without it the
answer is "not built". Importing this module imports no framework.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path


# Beside this package and not in it: the package's directory is the repository's own one in a linked tree.
DATA_FILE = Path(__file__).parent.parent / "_patch_set.json"

# The Hub library looks for updates at most this often, and we share its marker file.
SECONDS_BETWEEN_UPDATE_CHECKS = 24 * 3600


@dataclass(frozen=True)
class AppliedEdit:
    """One call site that the build put into an upstream file."""

    id: str
    file: str
    definition: str
    why: str
    fingerprint: str


@dataclass(frozen=True)
class PatchInfo:
    """
    What a patched build consists of.

    Args:
        version (`str`):
            The distribution's version, `"5.24.0+staged.1"`.
        patch_set (`int`):
            The number of the patch set.
        upstream (`str`):
            The version of the release below it, which is also `transformers.__version__`.
        edits_digest (`str`):
            A digest of the pins, the edits and the engine that made the edited files.
        edits (`tuple[AppliedEdit, ...]`):
            The edits, by file.
    """

    version: str
    patch_set: int
    upstream: str
    edits_digest: str
    edits: tuple[AppliedEdit, ...]


def patch_info(path: Path | None = None) -> PatchInfo | None:
    """
    Tell the patched build from an unbuilt source tree.

    Args:
        path (`Path`, *optional*, defaults to `transformers/_patch_set.json` beside this package):
            The file that the build wrote.

    Returns:
        `PatchInfo` or `None`: What was built; `None` where no build wrote the file.

    Raises:
        `ValueError`: for a file that is there and cannot be read as one: the installation is damaged.
    """
    path = DATA_FILE if path is None else path
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        data = json.loads(text)
        edits = tuple(
            AppliedEdit(edit["id"], edit["file"], edit["in"], edit["why"], edit["fingerprint"])
            for edit in data["edits"]
        )
        return PatchInfo(data["version"], data["patch_set"], data["upstream"], data["edits_digest"], edits)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not what a build of the patch set writes ({type(error).__name__}: {error}). "
            "The installation is damaged: install the patch set again."
        ) from error


def patch_set_version() -> str | None:
    """The distribution's version of a patched build, `"5.24.0+staged.1"`; `None` where no build wrote the data file."""
    info = patch_info()
    return None if info is None else info.version


def describe() -> str:
    """The text of `python -m transformers.trainer_checkpoint`: the build's versions, and every edit with its reason."""
    info = patch_info()
    if info is None:
        return (
            "transformers is not built from the patch set here: these are its modules in a source tree, or copied.\n"
            f"{DATA_FILE} does not exist."
        )
    lines = [
        f"transformers {info.version}: release {info.upstream} with patch set {info.patch_set} (staged checkpoints)",
        f"{len(info.edits)} edits in {len({edit.file for edit in info.edits})} upstream files:",
    ]
    file = None
    for edit in info.edits:
        if edit.file != file:
            file = edit.file
            lines.append(f"  {file}")
        lines.append(f"    {edit.id} ({edit.definition}): {edit.why}")
    return "\n".join(lines)


# ---- Updates ----


def update_message(info: PatchInfo, latest: str) -> str | None:
    """
    What to tell a user of a patched build about the newest release.

    Args:
        info (`PatchInfo`):
            The build.
        latest (`str`):
            The newest release of upstream.

    Returns:
        `str` or `None`: A text that never tells anyone to install a release over the patch set; `None` unless the
        newest release is newer than the one below the patch set.
    """
    from packaging.version import InvalidVersion, Version

    try:
        if Version(latest) <= Version(info.upstream):
            return None
    except InvalidVersion:
        return None
    return (
        f"transformers {latest} is out; this is patch set {info.patch_set} on {info.upstream}.\n"
        "Installing that release would replace this build and take its checkpoint protection away: "
        "wait for a patch set for it."
    )


def hint_at_update() -> None:
    """
    Tell a user of the command line, at most once a day, that upstream has a newer release than the one below this
    patch set. In a build without the patch set's data file the Hub library gives its own hint.

    Silent when `HF_HUB_DISABLE_UPDATE_CHECK` is set, without a network, and after any other failure: a hint never
    stops a command.
    """
    try:
        info = patch_info()
        if info is None:
            from huggingface_hub import check_cli_update

            check_cli_update("transformers")
            return
        message = _message_once_a_day(info)
        if message is not None:
            from huggingface_hub.cli._output import out

            out.hint(message)
    except Exception:
        return


def _message_once_a_day(info: PatchInfo) -> str | None:
    from huggingface_hub import constants
    from huggingface_hub.cli._cli_utils import _fetch_latest_pypi_version

    if constants.HF_HUB_DISABLE_UPDATE_CHECK:
        return None
    marker = Path(constants.CHECK_FOR_UPDATE_DONE_PATH)
    if marker.exists() and time.time() - marker.stat().st_mtime < SECONDS_BETWEEN_UPDATE_CHECKS:
        return None
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    latest = _fetch_latest_pypi_version("transformers")
    return None if latest is None else update_message(info, latest)
