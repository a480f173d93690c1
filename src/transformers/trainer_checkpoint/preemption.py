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
"""A checkpoint when somebody asks for one: a signal to any rank, or a file `SAVE` or `STOP` in the run directory.

The ranks agree on a place between two steps (`agreement`) and save there, in an ordinary transaction. Then the training
ends with `TrainingPreempted`, or goes on if a save is all that was asked for.

A checkpoint made here stands for the end of a step: the random state is that of the moment after it, and an evaluation
that was due then is noted in it as due and made up for when the training is resumed.
"""

import contextlib
import random
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..utils import logging
from .agreement import Agreement, GivenUp, Point, name_of, upper
from .arguments import jit_signal_numbers
from .signal_watch import OutliveSignals, SignalWatch


if TYPE_CHECKING:
    from ..trainer import Trainer
    from .board import StatusBoard
    from .trainer_glue import TrainerCheckpoints

logger = logging.get_logger(__name__)
T = TypeVar("T")

# Seconds between two heartbeats on the board of the agreement: a dead rank is to be noticed at once.
BEAT_INTERVAL = 1.0


class TrainingPreempted(SystemExit):
    """The training was asked to end and has. Ends the process unless somebody catches it.

    The exit status is 128 plus the number of the signal (143 for SIGTERM), and 0 after a file `STOP`.

    Args:
        status (`int`):
            The exit status.
        reason (`str`):
            Who asked for the end.
        step (`int`):
            The last step that was completed.
        checkpoint (`str`, *optional*):
            The checkpoint to resume from that this process knows of; `None` if there is none.
    """

    def __init__(self, status: int, reason: str, step: int, checkpoint: str | None = None):
        super().__init__(status)
        self.status = status
        self.reason = reason
        self.step = step
        self.checkpoint = checkpoint

    def __reduce__(self) -> tuple:
        return type(self), (self.status, self.reason, self.step, self.checkpoint)

    def __str__(self) -> str:
        return f"{self.reason}: ended after step {self.step} with status {self.status}"


# ---- In the Trainer ----


class Preemption:
    """What a Trainer with `enable_jit_checkpoint` does about requests for a checkpoint.

    Args:
        checkpoints (`TrainerCheckpoints`):
            The Trainer's checkpoints.
    """

    def __init__(self, checkpoints: "TrainerCheckpoints"):
        self.checkpoints = checkpoints
        self.trainer: Trainer = checkpoints.trainer
        #: The save that is going on is the last one of the run.
        self.stopping = False
        self._numbers = jit_signal_numbers(self.trainer.args.jit_checkpoint_signals or ())
        self._agreement: Agreement | None = None
        self._trial: Any = None
        self._point: Point = (-1, 0)
        # Whether the last step is complete and the next one has not begun: only then can be saved.
        self._between_steps = False
        self._boundary_of = -1
        self._inside: set[str] = set()
        self._iterator: Iterator[Any] | None = None
        # The random state after the last step, where it may have changed since.
        self._random_state: dict[str, Any] | None = None
        self._evaluation_is_due = False
        self._save_is_due = False

    @contextlib.contextmanager
    def watching(self, trial: Any) -> Generator[None, None, None]:
        """Around the training loop: signals and files are noticed. Called by all ranks.

        Raises:
            [`TrainingPreempted`]: the training was asked to end, and has.
        """
        if self._agreement is not None:
            yield
            return
        board, connected = self._connect()
        if not connected:
            yield
            return
        args = self.trainer.args
        signals = SignalWatch(self._numbers)
        run_dir = self.trainer._get_output_dir(trial) if self.trainer.is_world_process_zero() else None
        agreement = Agreement(
            board, signals, run_dir, args.jit_checkpoint_grace, args.save_patience, self._what_is_saved
        )
        self._agreement, self._trial = agreement, trial
        self._between_steps, self._boundary_of, self._random_state = True, -1, None
        self._save_is_due = self._evaluation_is_due = self.stopping = False
        signals.start()
        agreement.start()
        try:
            yield
            self._too_late(agreement)
        except Exception as error:
            self._explain(agreement, error)
            raise
        finally:
            self._agreement = self._iterator = None
            self.stopping = False
            # First, so that a signal does what it did before; the thread needs it no more.
            signals.stop()
            agreement.close()
            signals.close()

    def _connect(self) -> tuple["StatusBoard | None", bool]:
        args = self.trainer.args
        if args.world_size <= 1:
            return None, True
        from .board import StatusBoard

        board = StatusBoard.of_process_group(
            barrier=self.trainer.accelerator.wait_for_everyone,
            patience=args.save_patience,
            beat_interval=BEAT_INTERVAL,
        )
        if board is None and self.trainer.is_world_process_zero():
            logger.warning(
                f"`enable_jit_checkpoint` has no effect: the {args.world_size} processes of this training have no store "
                "over which they could agree on a step, and a save that not all of them take part in never ends. "
                f"{', '.join(map(name_of, self._numbers))} will do what it does without the option."
            )
        return board, board is not None

    # ---- Points ----

    def at_step_boundary(self, log_save_evaluate: Callable[[], T]) -> T:
        """In place of `_maybe_log_save_evaluate`, which comes after a step and at the end of an epoch."""
        if self._agreement is None or "boundary" in self._inside:
            return log_save_evaluate()
        trainer = self.trainer
        with self._only_here("boundary"):
            step = trainer.state.global_step
            # It comes twice for the last step of an epoch.
            again, self._boundary_of = self._boundary_of == step, step
            self._between_steps = again or not self._epoch_ends_here()
            self._random_state = None
            if self._is_to_end():
                self._log_only(log_save_evaluate)
                self._end()
            if trainer.control.should_evaluate:
                self._random_state, self._evaluation_is_due = self._take_random_state(), True
            result = log_save_evaluate()
            self._random_state, self._evaluation_is_due = None, False
            if self._is_to_end():
                self._end()
            if self._save_is_due and self._between_steps:
                self._serve()
            self._random_state = self._take_random_state()
            if again:
                self._iterator = None
            return result

    def at_prediction_step(self, predict: Callable[[], T]) -> T:
        """In place of `prediction_step`: an evaluation is broken off for the end of the training."""
        if self._agreement is None or "prediction" in self._inside:
            return predict()
        if self._is_to_end():
            self._end()
        with self._only_here("prediction"):
            return predict()

    def while_loading_data(self, epoch_iterator: Iterator[Any], load: Callable[[Iterator[Any]], T]) -> T:
        """In place of `get_batch_samples`, between two steps: it is interrupted for the end of the training."""
        if self._agreement is None or "loading" in self._inside:
            return load(epoch_iterator)
        with self._only_here("loading"):
            loaded = load(_Batches(self, epoch_iterator))
            self._between_steps = False
            return loaded

    def next_batch(self, epoch_iterator: Iterator[Any]) -> Any:
        """The next batch, for which there is a point behind it."""
        agreement = self._agreement
        first, self._iterator = self._iterator is not epoch_iterator, epoch_iterator
        if agreement is None or not self._between_steps or self._stops_by_itself():
            return next(epoch_iterator)
        if self.trainer.args.world_size > 1 and (first or not self._loads_alone()):
            # A loader may have the ranks agree on something when it starts; whoever is in there waits for the others.
            if self._is_to_end():
                self._end()
            batch = next(epoch_iterator)
        else:
            batch = agreement.load_before(self._next_point(), lambda: next(epoch_iterator))
        if self._is_to_end():
            self._end()
        return batch

    def _loads_alone(self) -> bool:
        """Whether a batch is loaded without the other ranks, once the loader is started."""
        from accelerate.data_loader import DataLoaderShard
        from torch.utils.data import DataLoader

        return type(self.trainer.callback_handler.train_dataloader) in (DataLoaderShard, DataLoader)

    def finish(self) -> None:
        """The last step was trained, and the training is being wound up. Called by all ranks."""
        if self._agreement is not None:
            self._between_steps = False
            self._agreement.finish()

    @contextlib.contextmanager
    def _only_here(self, what: str) -> Generator[None, None, None]:
        """An override calls `super()`: only the outermost call counts."""
        self._inside.add(what)
        try:
            yield
        finally:
            self._inside.discard(what)

    def _epoch_ends_here(self) -> bool:
        """Whether the end of an epoch follows at once, with an evaluation of its own that belongs to this step."""
        trainer = self.trainer
        control, epoch = trainer.control, trainer.state.epoch
        ends = control.should_epoch_stop or control.should_training_stop or (epoch is not None and epoch % 1 == 0)
        return trainer.args.eval_strategy == "epoch" and ends

    def _stops_by_itself(self) -> bool:
        """Whether somebody else has ended the training early, which a resumed one would not know."""
        state = self.trainer.state
        return self.trainer.control.should_training_stop and state.global_step < state.max_steps

    def _next_point(self) -> Point:
        step = self.trainer.state.global_step
        return (step, self._point[1] + 1 if self._point[0] == step else 0)

    def _is_to_end(self) -> bool:
        """Go through a point, if this is one. Whether the training ends here; a save that is to be made is noted."""
        agreement = self._agreement
        assert agreement is not None
        if not self._between_steps or self._stops_by_itself():
            return False
        self._point = self._next_point()
        if self._save_is_due:
            return False
        try:
            if not agreement.reaches(self._point, self._synchronize):
                return False
        except GivenUp as given_up:
            return self._without_save(agreement, given_up)
        assert agreement.request is not None
        if agreement.request.ends:
            return True
        self._save_is_due = True
        return False

    def _without_save(self, agreement: Agreement, given_up: GivenUp) -> bool:
        request = agreement.request
        assert request is not None
        if request.urgent or agreement.signals.first is not None:
            self._leave(f"nothing was saved, because {given_up}")
        logger.error(f"{upper(request.reason)} is not followed, because {given_up}. The training goes on.")
        agreement.served(saved=False)
        return False

    def _synchronize(self) -> None:
        import torch

        if self.trainer.args.device.type not in ("cpu", "meta", "xla"):
            torch.get_device_module(self.trainer.args.device).synchronize()

    # ---- At the target ----

    def _log_only(self, log_save_evaluate: Callable[[], Any]) -> None:
        """Log what is due. An evaluation that is due as well stays due, in the checkpoint too."""
        control = self.trainer.control
        evaluation_is_due = control.should_evaluate
        control.should_evaluate = control.should_save = False
        log_save_evaluate()
        self.trainer.control.should_evaluate = evaluation_is_due

    def _serve(self) -> None:
        """Save what was asked for, and go on. Called by all ranks, at the same place."""
        agreement = self._agreement
        assert agreement is not None and agreement.request is not None
        self._save_is_due = False
        if self._saved_path() is None:
            agreement.saving = True
            self._save()
            agreement.saving = False
        path = self._saved_path()
        if path is not None and self.trainer.is_world_process_zero():
            logger.warning(f"{upper(agreement.request.reason)} asked for a checkpoint: it is {path}.")
        agreement.served(saved=path is not None)

    def _end(self) -> NoReturn:
        """Save unless that is done already, and end the training. Called by all ranks, at the same point."""
        agreement, trainer = self._agreement, self.trainer
        assert agreement is not None
        if trainer.state.global_step == trainer._initial_global_step:
            self._leave("no step was trained since the start, so there is nothing to save", agreed=True)
        if self._saved_path() is None:
            last = self.checkpoints.last_published
            try:
                agreement.may_start(last.seconds if last is not None else 0.0)
            except GivenUp as given_up:
                self._leave(f"nothing was saved, because {given_up}")
            if self._random_state is not None:
                _set_random_state(self._random_state)
            if self._evaluation_is_due:
                trainer.control.should_evaluate = True
            self.stopping = agreement.saving = True
            self._save()
            agreement.saving = False
        if self._saved_path() is None:
            self._leave("the Trainer's own `_save_checkpoint` saved nothing", agreed=True)
        self._leave(None, agreed=True)

    def _save(self) -> None:
        # `model_wrapped` is only typed as what it is before the training.
        trainer: Any = self.trainer
        trainer._save_checkpoint(trainer.model_wrapped, self._trial)
        trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)

    def _saved_path(self) -> str | None:
        """The checkpoint of the current step, if this training has published it."""
        last = self.checkpoints.last_published
        return last.path if last is not None and last.step == self.trainer.state.global_step else None

    def _what_is_saved(self) -> str:
        path = self._last_path()
        return "There is no checkpoint of this run." if path is None else f"The last checkpoint is {path}."

    def _leave(self, problem: str | None, agreed: bool = False) -> NoReturn:
        """End the training. Called by all ranks.

        On disk afterwards: a file that asked is gone, if the ranks have agreed.

        Args:
            problem (`str`, *optional*):
                Why nothing was saved, if so.
            agreed (`bool`, *optional*, defaults to `False`):
                All ranks are there.
        """
        agreement, trainer = self._agreement, self.trainer
        assert agreement is not None and agreement.request is not None
        agreement.leaving = True
        request, status, step = agreement.request, agreement.status, trainer.state.global_step
        if agreed:
            agreement.remove_file()
        if trainer.is_world_process_zero() or not agreed:
            if problem is None:
                told = f"step {step} is saved in {self._saved_path()}."
            else:
                told = f"{problem}. {self._what_is_saved()}"
            log = logger.warning if problem is None else logger.error
            log(f"{upper(request.reason)}: {told} Ending with status {status}.")
        trainer.control = trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
        trainer.is_in_train = False
        if agreed:
            agreement.leave_together()
            self.checkpoints.look_again()
        if agreement.signals.raised is not None:
            raise agreement.signals.raised
        raise TrainingPreempted(status, request.reason, step, self._last_path())

    def _last_path(self) -> str | None:
        last = self.checkpoints.last_published
        return last.path if last is not None else self.checkpoints.resumed_from

    def _too_late(self, agreement: Agreement) -> None:
        """The training has come to its end. Nobody is stopped on the way to use what was trained."""
        request, first = agreement.request, agreement.signals.first
        reason = request.reason if request is not None else name_of(first[0]) if first is not None else None
        if reason is not None:
            logger.warning(f"{upper(reason)} came when the training was over: it ends as it would have.")
            agreement.remove_file()
        if agreement.signals.raised is not None:
            raise agreement.signals.raised

    def _explain(self, agreement: Agreement, error: Exception) -> None:
        """The training has failed. If a lost rank is what it failed of, the end that was asked for is what remains."""
        request = agreement.request
        if request is None or not request.urgent or self.stopping or agreement.leaving:
            return
        reason = agreement.who_is_lost(3 * BEAT_INTERVAL)
        if reason is None:
            return
        agreement.leaving = True
        logger.error(
            f"{upper(request.reason)}: nothing was saved, because {reason}. {self._what_is_saved()} Ending with status "
            f"{request.status}."
        )
        step = self.trainer.state.global_step
        raise TrainingPreempted(request.status, request.reason, step, self._last_path()) from error

    def make_up(self, evaluate: Callable[[], None]) -> None:
        """`evaluate`, at the start of a resumed training: a request ends it too."""
        before = self._between_steps
        self._between_steps, self._boundary_of = True, self.trainer.state.global_step
        try:
            evaluate()
        finally:
            self._between_steps = before

    # ---- Random states ----

    def _take_random_state(self) -> dict[str, Any]:
        return _random_state(self.trainer.args.device, self.trainer.args.n_gpu > 1)

    # ---- Data loaders ----

    def protect_workers(self, dataloader: Any) -> Any:
        """Have the workers of `dataloader` outlive the signals. Returns it."""
        loader = getattr(dataloader, "base_dataloader", dataloader)
        init = getattr(loader, "worker_init_fn", None)
        if getattr(loader, "num_workers", 0) and not isinstance(init, OutliveSignals):
            with contextlib.suppress(AttributeError):
                loader.worker_init_fn = OutliveSignals(init, self._numbers, self.trainer.args.jit_checkpoint_grace)
        return dataloader


class _Batches:
    """An iterator over batches that can be interrupted in each of them."""

    def __init__(self, preemption: Preemption, epoch_iterator: Iterator[Any]):
        self._preemption = preemption
        self._epoch_iterator = epoch_iterator

    def __iter__(self) -> "_Batches":
        return self

    def __next__(self) -> Any:
        return self._preemption.next_batch(self._epoch_iterator)


# ---- Made up for when resuming ----


def evaluate_if_due(checkpoints: "TrainerCheckpoints", trial: Any, ignore_keys: list[str] | None) -> None:
    """Evaluate, if the checkpoint that was resumed from says that it was due there. Called by all ranks.

    The random state has to be that of the checkpoint: in a training that was not interrupted, the evaluation comes
    right after the step.
    """
    trainer: Any = checkpoints.trainer
    stored = trainer.state.stateful_callbacks.get("TrainerControl")
    flags = stored.get("args", {}) if isinstance(stored, dict) else {}
    if not flags.get("should_evaluate") or trainer.args.eval_strategy == "no" or trainer.eval_dataset is None:
        return
    flags["should_evaluate"] = False
    control = trainer.control
    control.should_log = control.should_save = False
    control.should_evaluate = True
    if trainer.is_world_process_zero():
        logger.warning(
            f"The evaluation of step {trainer.state.global_step} was put off for an early end: it is made now."
        )

    def evaluate() -> None:
        trainer._maybe_log_save_evaluate(
            tr_loss=trainer._tr_loss,
            grad_norm=None,
            model=trainer.model_wrapped,
            trial=trial,
            epoch=trainer.state.epoch,
            ignore_keys_for_eval=ignore_keys,
            start_time=time.time(),
        )

    if checkpoints.preemption is None:
        evaluate()
    else:
        checkpoints.preemption.make_up(evaluate)


# ---- Random states ----


def _random_state(device: Any, all_devices: bool) -> dict[str, Any]:
    import numpy as np
    import torch

    state = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}
    module = _device_module(device)
    if module is not None:
        state["all devices"] = all_devices
        state["device"] = module.get_rng_state_all() if all_devices else module.get_rng_state()
    state["module"] = module
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    import numpy as np
    import torch

    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["cpu"])
    module = state["module"]
    if module is not None:
        (module.set_rng_state_all if state["all devices"] else module.set_rng_state)(state["device"])


def _device_module(device: Any) -> Any:
    import torch

    if device.type in ("cpu", "meta", "xla"):
        return None
    module = torch.get_device_module(device)
    return module if hasattr(module, "get_rng_state") else None
