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
"""Trainings that get signals: a tiny Trainer that tells what it is doing, so that somebody outside can send them in time.

As a script it trains once, with one argument, the file of its `Case` in JSON. With `--serve` it imports everything once
and then forks a rank for each line it reads on stdin, because that takes a second and a start takes ten:

    {"run": FILE, "env": {...}, "log": FILE}   fork a rank, in a process group of its own: answers its pid
    {"wait": PID, "seconds": S}                answers how it ended: the status, minus the signal, or null

On disk afterwards, in the folder of the case, for each rank r: `events.r`, a line for each thing it began, and
`result.r.json`, how the training ended.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


sys.path.insert(0, str(Path(__file__).parent))

import torch  # noqa: E402
from tiny_training import Tokens, leave, losses, tiny_model  # noqa: E402

from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402
from transformers.trainer_checkpoint import TrainingPreempted, signal_watch  # noqa: E402


@dataclass
class Case:
    """One training.

    Args:
        folder (`str`):
            Where it leaves its files; the run directory is `out` in it.
        resume (`bool`, *optional*, defaults to `False`):
            Go on from the newest checkpoint.
        arguments (`dict[str, Any]`, *optional*):
            Training arguments.
        seconds (`dict[str, float]`, *optional*):
            How long "train", "predict" and "save" take in addition; "train 2" is that after step 2 alone.
        slow_row (`int`, *optional*):
            The loading of this row, counted in the order in which a process loads them, takes long.
        slow_rank (`int`, *optional*):
            Only on this rank.
        slow_seconds (`float`, *optional*, defaults to 900):
            How long.
        same_signal (`float`, *optional*):
            In place of `signal_watch.SAME_SIGNAL`.
        handler (`str`, *optional*):
            What the user's own handler of SIGTERM does: "note" or "exit".
        break_write (`bool`, *optional*, defaults to `False`):
            Every save on rank 1 fails.
        thread (`bool`, *optional*, defaults to `False`):
            Train in a thread.
        no_store (`bool`, *optional*, defaults to `False`):
            As if the processes had no store.
        train_end (`float`, *optional*, defaults to 0):
            Seconds that `on_train_end` takes.
    """

    folder: str
    resume: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    slow_row: int | None = None
    slow_rank: int | None = None
    slow_seconds: float = 900.0
    same_signal: float | None = None
    handler: str | None = None
    break_write: bool = False
    thread: bool = False
    no_store: bool = False
    train_end: float = 0.0


ROWS, DROPOUT = 24, 0.3
ARGUMENTS = {
    "use_cpu": True,
    "max_steps": 8,
    "save_strategy": "steps",
    "save_steps": 100,
    "logging_steps": 1,
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 2,
    "learning_rate": 1e-2,
    "report_to": "none",
    "disable_tqdm": True,
    "seed": 3,
    "enable_jit_checkpoint": True,
    "jit_checkpoint_grace": 60.0,
}


class Events:
    """What this rank has begun, a line each."""

    def __init__(self, path: str):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __call__(self, *words: Any) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class SlowTokens(Tokens):
    """Rows of which one takes long, in each process that loads them."""

    def __init__(self, size: int, slow: int | None, seconds: float, events: Events):
        super().__init__(size)
        self.slow, self.seconds, self.events, self.loaded = slow, seconds, events, 0

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.loaded += 1
        if self.loaded == self.slow:
            self.events("load", self.loaded)
            time.sleep(self.seconds)
        self.events("row", self.loaded)
        return super().__getitem__(index)


class Paced(Trainer):
    case: Case
    events: Events

    def _pace(self, what: str) -> None:
        self.events(what, self.state.global_step)
        seconds = self.case.seconds
        time.sleep(seconds.get(f"{what} {self.state.global_step}", seconds.get(what, 0.0)))

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._pace("train")
        return super().training_step(*args, **kwargs)

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        self._pace("predict")
        return super().prediction_step(*args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        self._pace("save")
        if self.case.break_write and self.args.process_index == 1:
            raise OSError(28, "No space left on device", output_dir)
        super()._save_rng_state(output_dir)


class Ends(TrainerCallback):
    def __init__(self, events: Events, seconds: float):
        self.events, self.seconds = events, seconds

    def on_save(self, args, state, control, **kwargs):
        self.events("saved", state.global_step)

    def on_evaluate(self, args, state, control, **kwargs):
        self.events("evaluated", state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        self.events("end", state.global_step)
        time.sleep(self.seconds)


def train(case: Case, rank: int) -> None:
    events = Events(os.path.join(case.folder, f"events.{rank}"))
    if case.same_signal is not None:
        signal_watch.SAME_SIGNAL = case.same_signal
    if case.no_store:
        from transformers.trainer_checkpoint.board import StatusBoard

        StatusBoard.of_process_group = lambda **_: None
    noted: list[int] = []
    if case.handler is not None:

        def handler(number: int, frame: Any) -> None:
            noted.append(number)
            events("handler", number)
            if case.handler == "exit":
                raise SystemExit(7)

        signal.signal(signal.SIGTERM, handler)
    args = TrainingArguments(output_dir=os.path.join(case.folder, "out"), **{**ARGUMENTS, **case.arguments})
    slow = case.slow_row if case.slow_rank in (None, rank) else None
    trainer = Paced(
        model=tiny_model(DROPOUT),
        args=args,
        train_dataset=SlowTokens(ROWS, slow, case.slow_seconds, events),
        eval_dataset=Tokens(8),
        callbacks=[Ends(events, case.train_end)],
    )
    trainer.case, trainer.events = case, events
    before = signal.getsignal(signal.SIGTERM)
    result: dict[str, Any] = {"pid": os.getpid()}
    try:
        trainer.train(resume_from_checkpoint=True if case.resume else None)
        result["ended"] = "as usual"
    except TrainingPreempted as preempted:
        result.update(ended="preempted", status=preempted.status, step=preempted.step)
        result.update(checkpoint=preempted.checkpoint, reason=preempted.reason)
        raise
    except BaseException as error:
        result.update(ended=type(error).__name__, text=str(error))
        raise
    finally:
        result["losses"] = losses(trainer)
        result["evaluations"] = [
            (entry["step"], entry["eval_loss"]) for entry in trainer.state.log_history if "eval_loss" in entry
        ]
        result["noted"] = noted
        result["put_back"] = signal.getsignal(signal.SIGTERM) is before
        result["threads"] = [t.name for t in threading.enumerate() if t.name.startswith("checkpoint-pre")]
        with open(os.path.join(case.folder, f"result.{rank}.json"), "w", encoding="utf-8") as file:
            json.dump(result, file)


def write_case(case: Case) -> str:
    path = os.path.join(case.folder, "case.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(asdict(case), file)
    return path


def run(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        case = Case(**json.load(file))
    rank = int(os.environ.get("RANK", "0"))
    if not case.thread:
        train(case, rank)
        return
    thread = threading.Thread(target=lambda: train(case, rank))
    thread.start()
    thread.join()


# ---- Forking ranks ----


def _wait(pid: int, seconds: float) -> int | None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return None


def serve() -> dict[str, Any] | None:
    """Fork and wait as told. Returns, in a fork, what it was told to run."""
    for line in sys.stdin:
        told = json.loads(line)
        answer: int | None
        if "wait" in told:
            answer = _wait(told["wait"], told["seconds"])
        else:
            answer = os.fork()
            if answer == 0:
                return told
            with contextlib.suppress(OSError):
                os.setpgid(answer, answer)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return None


def main() -> None:
    if sys.argv[1] != "--serve":
        run(sys.argv[1])
        return
    told = serve()
    if told is None:
        return
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    log = os.open(told["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    os.environ.update(told["env"])
    # Not through the end of the interpreter: it writes to every page that the fork shares, which takes longer than all.
    status: Any = 0
    try:
        run(told["run"])
    except SystemExit as error:
        status = error.code
    except BaseException:
        traceback.print_exc()
        status = 1
    leave(status)


if __name__ == "__main__":
    main()
