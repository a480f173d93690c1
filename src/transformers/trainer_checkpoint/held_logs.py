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
"""Keeping staging paths out of the logs and out of error texts.

While a save is open, the library's own savers log the path they write to, which is a path in staging. Such a line is
held back. After the publish it is shown with the final path; if the save fails it is shown at debug level with the
path it really meant.
"""

import contextlib
import logging
import os
from collections.abc import Generator
from typing import Any

from .errors import CheckpointError


class HeldLogs:
    """Holds back log records that name a path below `staging`, of every logger that has a handler.

    Args:
        staging (`str`):
            The staging run directory.
        final (`str`):
            The run directory, whose paths are shown instead.
    """

    def __init__(self, staging: str, final: str):
        self._spellings = _spellings(staging, final)
        self._held: list[tuple[logging.Logger, logging.LogRecord]] = []
        self._handlers: list[logging.Handler] = []

    def start(self) -> None:
        loggers = [logging.getLogger(), *logging.root.manager.loggerDict.values()]
        for handler in {h for candidate in loggers for h in getattr(candidate, "handlers", ())}:
            handler.addFilter(self._filter)
            self._handlers.append(handler)

    def stop(self) -> None:
        for handler in self._handlers:
            handler.removeFilter(self._filter)
        self._handlers.clear()

    def show(self) -> None:
        """Say what was held, with final paths. They are true now."""
        self._release(lambda record, text: (record.levelno, record.levelname, self.rewrite(text)))

    def show_as_debug(self) -> None:
        """Say what was held as it was said, at debug level, for somebody who looks for the cause of a failed save."""
        self._release(lambda record, text: (logging.DEBUG, "DEBUG", text))

    def rewrite(self, text: str) -> str:
        return _replace(text, self._spellings)

    def rewrite_error(self, error: BaseException | None) -> None:
        """Put final paths into the texts of `error` and of what it was raised from, in place."""
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            with contextlib.suppress(Exception):  # some exceptions allow no assignment; their text stays
                error.args = tuple(self._rewrite_value(arg) for arg in error.args)
                if isinstance(error, CheckpointError):
                    error.__init__(*error.args)
            for name in ("filename", "filename2"):
                value = getattr(error, name, None)
                if isinstance(value, (str, os.PathLike)):
                    with contextlib.suppress(Exception):
                        setattr(error, name, self.rewrite(os.fspath(value)))
            for member in getattr(error, "exceptions", ()):  # an ExceptionGroup
                if isinstance(member, BaseException):
                    self.rewrite_error(member)
            error = error.__cause__ or error.__context__

    def _rewrite_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.rewrite(value)
        if isinstance(value, dict):
            return {key: self._rewrite_value(entry) for key, entry in value.items()}
        # torch's CheckpointException holds the errors of all ranks in pairs with their stacks.
        if type(value) in (tuple, list):
            return type(value)(self._rewrite_value(entry) for entry in value)
        if isinstance(value, BaseException):
            self.rewrite_error(value)
        return value

    def _filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "_checkpoint_released", False):
            return True
        try:
            text = record.getMessage()
        except Exception:  # a bad format string is the handler's to report
            return True
        if not any(staging in text for staging, _ in self._spellings):
            return True
        # A record passes one handler after the other; it is held once.
        if not any(held is record for _, held in self._held):
            self._held.append((logging.getLogger(record.name), record))
        return False

    def _release(self, change) -> None:
        held, self._held = self._held, []
        for target, record in held:
            shown = logging.makeLogRecord(record.__dict__)
            shown.levelno, shown.levelname, shown.msg = change(record, record.getMessage())
            shown.args = None
            shown._checkpoint_released = True
            if target.isEnabledFor(shown.levelno):
                target.handle(shown)


@contextlib.contextmanager
def held_logs(staging: str, final: str) -> Generator[HeldLogs, None, None]:
    """`HeldLogs` for the length of a block. What is still held at its end is shown at debug level."""
    held = HeldLogs(staging, final)
    held.start()
    try:
        yield held
    finally:
        held.stop()
        held.show_as_debug()


def final_paths(text: str, staging: str, final: str) -> str:
    """`text` with paths in the run directory `final` in place of those in its staging run directory."""
    return _replace(text, _spellings(staging, final))


def _replace(text: str, spellings: list[tuple[str, str]]) -> str:
    # What is said of the staging directory itself, that something else has its name for instance, stays.
    for shown, instead in spellings:
        text = text.replace(shown + os.sep, instead + os.sep)
    return text


def _spellings(staging: str, final: str) -> list[tuple[str, str]]:
    """The ways in which a saver may spell the staging directory, longest first, with what to show instead."""
    pairs = {
        staging: final,
        os.path.normpath(staging): os.path.normpath(final),
        os.path.abspath(staging): os.path.abspath(final),
        os.path.realpath(staging): os.path.realpath(final),
    }
    return sorted(pairs.items(), key=lambda pair: len(pair[0]), reverse=True)
