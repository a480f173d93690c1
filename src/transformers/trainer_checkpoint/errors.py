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
"""The errors of saving and resuming. All of them can be pickled and none is a `RuntimeError`.

The batch-size finder reads the text of every `RuntimeError` and takes a quoted "out of memory" for one, so an error
that quotes another rank's failure must not be one.
"""

from .ranks import format_ranks


class CheckpointError(Exception):
    """Base of everything this package raises on purpose."""


class CheckpointSaveError(CheckpointError):
    """A checkpoint was not saved; the same on every rank.

    Args:
        path (`str`):
            The final path of the checkpoint that does not exist (or is the older one it was).
        failures (`dict[int, str]`):
            Rank to cause, one entry for each rank that failed.
        newest_good (`str`, *optional*):
            The checkpoint that is still the newest good one.
        outcome_unknown (`bool`, *optional*, defaults to `False`):
            The announcement was lost: the checkpoint may have been published.
        every_rank_reported (`bool`, *optional*, defaults to `True`):
            Every rank told how it fared itself. Otherwise some are dead, late or cut off.
    """

    def __init__(
        self,
        path: str,
        failures: dict[int, str],
        newest_good: str | None = None,
        outcome_unknown: bool = False,
        every_rank_reported: bool = True,
    ):
        super().__init__(path, failures, newest_good, outcome_unknown, every_rank_reported)
        self.path = path
        self.failures = dict(failures)
        self.newest_good = newest_good
        self.outcome_unknown = outcome_unknown
        self.every_rank_reported = every_rank_reported

    def __str__(self) -> str:
        ranks: dict[str, list[int]] = {}
        for rank, cause in sorted(self.failures.items()):
            ranks.setdefault(cause.rstrip("."), []).append(rank)
        causes = "; ".join(
            f"{'rank' if len(same) == 1 else 'ranks'} {format_ranks(same)}: {cause}" for cause, same in ranks.items()
        )
        if self.outcome_unknown:
            return (
                f"Whether checkpoint {self.path} was published is unknown: {causes}. It is either there whole or not "
                "at all; resuming finds out."
            )
        still = (
            f"The newest good checkpoint is still {self.newest_good}."
            if self.newest_good is not None
            else "There is no good checkpoint in the run directory yet."
        )
        return f"Checkpoint {self.path} was not saved: {causes}. {still}"


class CheckpointOwnedError(CheckpointError):
    """Somebody else who is alive saves into this run directory."""

    def __init__(self, run_dir: str, owner: str):
        super().__init__(run_dir, owner)
        self.run_dir = run_dir
        self.owner = owner

    def __str__(self) -> str:
        return (
            f"{self.run_dir} is in use: {self.owner} is saving checkpoints there and is still alive. Two trainings "
            "cannot share a run directory: stop the other one, or give this one its own `output_dir`. (On one machine "
            "with several processes, start them with `torchrun` or `accelerate launch`.)"
        )


class CheckpointResumeError(CheckpointError, ValueError):
    """No checkpoint that was asked for can be resumed from.

    It is a `ValueError` too, which is what the Trainer raised before there was this class.
    """


class ManifestError(CheckpointError):
    """A manifest cannot be used. The text starts with the manifest's path."""


class NewerManifestError(ManifestError):
    """A manifest of a format that a newer version wrote. It says nothing about whether the checkpoint is good."""


class RankLostError(CheckpointError):
    """Ranks that were waited for did not report.

    Args:
        topic (`str`):
            What the ranks were to report.
        ranks (`tuple[int, ...]`):
            The ranks that are missing.
        reason (`str`):
            What is known of them, for instance how long they have been silent.
        late (`bool`, *optional*, defaults to `False`):
            They are alive. Otherwise they have ended, or cannot be heard.
    """

    def __init__(self, topic: str, ranks: tuple[int, ...], reason: str, late: bool = False):
        super().__init__(topic, ranks, reason, late)
        self.topic = topic
        self.ranks = tuple(ranks)
        self.reason = reason
        self.late = late

    def __str__(self) -> str:
        return f"no word from rank(s) {format_ranks(self.ranks)} on {self.topic!r}: {self.reason}"
