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
"""The training arguments of checkpoints, looked at when they are given and not at the first save."""

import re
import signal
from collections.abc import Sequence
from typing import Any


CHOICES: dict[str, tuple[str, ...]] = {
    "save_durability": ("full", "process"),
    "on_save_error": ("raise", "warn"),
    "resume_verify": ("full", "size", "off"),
}

# Signals that other programs send to ask a process to end, or to do what it likes. Those that the kernel sends for a
# mistake of the process itself, or that cannot be caught, are not among them.
JIT_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGBREAK")

_URI = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")


def check_checkpoint_arguments(args: Any) -> None:
    """Refuse training arguments about checkpoints that cannot be meant. Every rank calls it; nothing is written.

    Args:
        args ([`TrainingArguments`]):
            The arguments, from their `__post_init__`.

    Raises:
        `ValueError`: names the argument, what was given and what can be given.
    """
    for name, choices in CHOICES.items():
        value = getattr(args, name)
        if value not in choices:
            raise ValueError(f"`{name}` is {value!r}; it has to be one of {', '.join(map(repr, choices))}.")
    for name in ("save_patience", "jit_checkpoint_grace"):
        seconds = getattr(args, name)
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
            raise ValueError(f"`{name}` is {seconds!r}; it has to be a number of seconds above 0.")
    every = args.save_keep_every_n_steps
    if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
        raise ValueError(f"`save_keep_every_n_steps` is {every!r}; it has to be a whole number of steps above 0.")
    jit_signal_numbers(args.jit_checkpoint_signals)
    if args.output_dir is not None and _URI.match(str(args.output_dir)):
        raise ValueError(
            f"`output_dir` is {args.output_dir!r}, an address. The Trainer writes to a file system: it would make a "
            "local directory of that odd name. Mount the storage and give the path, or give a local path and upload "
            "from there (`push_to_hub`, or a callback's `on_save`)."
        )


def jit_signal_numbers(names: str | Sequence[str]) -> tuple[int, ...]:
    """The numbers of the signals in `jit_checkpoint_signals`.

    Args:
        names (`str` or `list[str]`):
            Names, with or without `SIG`; in one text they are separated by commas.

    Raises:
        `ValueError`: there is no name, or one that is not a signal to wait for.
    """
    told = names.split(",") if isinstance(names, str) else names
    known = [name for name in JIT_SIGNALS if hasattr(signal, name)]
    numbers = []
    for name in told if isinstance(told, (list, tuple)) else [told]:
        full = name.strip().upper() if isinstance(name, str) else ""
        full = full if full.startswith("SIG") else f"SIG{full}"
        if full not in known:
            raise ValueError(
                f"`jit_checkpoint_signals` is {names!r}, and {name!r} is no signal that a training can wait for; "
                f"it can be {', '.join(known)}, several as a list or separated by commas."
            )
        numbers.append(int(getattr(signal, full)))
    if not numbers:
        raise ValueError(
            f"`jit_checkpoint_signals` is {names!r}; it has to name at least one signal. To wait for none, leave "
            "`enable_jit_checkpoint` off."
        )
    return tuple(dict.fromkeys(numbers))
