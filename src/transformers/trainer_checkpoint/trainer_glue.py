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
"""Where the Trainer meets the protocol: the base class of `Trainer` and the one object of it that knows of checkpoints.

`TransactionalCheckpoints` wraps, in every subclass of `Trainer`, the methods that save: a transaction is opened around
the outermost `_save_checkpoint`, overridden or not, and an error in one of the writers is kept until all ranks have
voted. `TrainerCheckpoints` is what the call sites in the Trainer talk to.

While a transaction is open, `Trainer._get_output_dir` answers the staging run directory, so that everything a Trainer
or a subclass writes for this step lands in staging. What the Trainer would do with a finished checkpoint (rotation,
upload to the Hub) waits until it is published.
"""

import contextlib
import copy
import functools
import inspect
import os
import traceback
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from ..utils import logging
from . import backends, disk
from .errors import CheckpointSaveError, RankLostError
from .held_logs import held_logs
from .layout import checkpoint_name
from .ranks import Alone, Ranks, Unconnected
from .rotation import Memory, Sweeper
from .sealing import LaterSeals
from .transaction import Published, RunDirectory, SaveTransaction


if TYPE_CHECKING:
    from ..trainer import Trainer
    from ..trainer_callback import CallbackHandler
    from ..trainer_jit_checkpoint import JITCheckpointCallback
    from .preemption import Preemption
    from .resume import Loading


logger = logging.get_logger(__name__)

# How long an upload waits for the deletion of older checkpoints (seconds).
PUSH_PATIENCE = 60.0

# How long the publisher waits for the `on_save` callbacks of other ranks, and how long if some did not return in that time
# after the save before. What they change later is sealed at the next save or at the end of the training (seconds).
CALLBACKS_PATIENCE, SHORT_CALLBACKS_PATIENCE = 10.0, 1.0

# These are never kept: whoever sent them wants the process to stop.
_STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)


# ---- What is wrapped in every Trainer class ----


def _in_transaction(method: Callable) -> Callable:
    """`_save_checkpoint` with a transaction around the outermost call."""

    @functools.wraps(method)
    def save_checkpoint(self: "Trainer", model: Any, trial: Any = None, *args: Any, **kwargs: Any) -> Any:
        return self._safe_checkpoints.save(trial, functools.partial(method, self, model, trial, *args, **kwargs))

    return save_checkpoint


def _keeping_errors(method: Any) -> Callable:
    """A writer whose error is kept until the vote, so that this rank stays in step with the others."""
    what = method.__name__

    @functools.wraps(method)
    def write(self: "Trainer", *args: Any, **kwargs: Any) -> Any:
        with self._safe_checkpoints.keep_error(what):
            result = method(self, *args, **kwargs)
            self._safe_checkpoints.account_for_known_files()
            return result

    return write


def _once_per_save(method: Callable) -> Callable:
    """`store_flos`, a collective that all ranks have gone through by the time that one of them may fail."""

    @functools.wraps(method)
    def store_flos(self: "Trainer") -> Any:
        return None if self._safe_checkpoints.flos_are_stored else method(self)

    return store_flos


def _giving_up_the_run_directory(method: Callable) -> Callable:
    """`train`, after whose outermost call the run directory belongs to nobody."""

    @functools.wraps(method)
    def train(self: "Trainer", *args: Any, **kwargs: Any) -> Any:
        with self._safe_checkpoints.training():
            return method(self, *args, **kwargs)

    return train


def _keeping_load_errors(method: Any) -> Callable:
    """A loader whose error is kept until all ranks tell how loading went, so that this rank stays in step."""
    what = method.__name__

    @functools.wraps(method)
    def load(self: "Trainer", *args: Any, **kwargs: Any) -> Any:
        with self._safe_checkpoints.keep_load_error(what):
            return method(self, *args, **kwargs)

    return load


def _voting_on_random_state(method: Callable) -> Callable:
    """`_load_rng_state`, the last thing that is loaded, after which all ranks tell how that went."""

    @functools.wraps(method)
    def load_random_state(self: "Trainer", checkpoint: str | None, *args: Any, **kwargs: Any) -> Any:
        load = functools.partial(method, self, checkpoint, *args, **kwargs)
        loading = self._safe_checkpoints.loading
        if loading is None or not loading.random_state_pending or checkpoint != loading.path:
            result = load()
        else:
            result = loading.load_random_state(load)
        self._safe_checkpoints.evaluate_if_due()
        return result

    return load_random_state


def _entering_again(method: Callable) -> Callable:
    """`_inner_training_loop`, entered again when the checkpoint to resume from cannot be loaded and is set aside.

    Inside it, requests for a checkpoint are waited for.
    """

    @functools.wraps(method)
    def inner_training_loop(self: "Trainer", *args: Any, **kwargs: Any) -> Any:
        loading = self._safe_checkpoints.loading
        given = inspect.signature(method).bind(self, *args, **kwargs).arguments
        with self._safe_checkpoints.in_loop(given.get("trial"), given.get("ignore_keys_for_eval")):
            if loading is None:
                return method(self, *args, **kwargs)
            return loading.run(method, args, kwargs)

    return inner_training_loop


def _at_step_boundary(method: Callable) -> Callable:
    """`_maybe_log_save_evaluate`, where a step is complete."""

    @functools.wraps(method)
    def maybe_log_save_evaluate(self: "Trainer", *args: Any, **kwargs: Any) -> Any:
        preemption = self._safe_checkpoints.preemption
        if preemption is None:
            return method(self, *args, **kwargs)
        return preemption.at_step_boundary(functools.partial(method, self, *args, **kwargs))

    return maybe_log_save_evaluate


def _at_prediction_step(method: Callable) -> Callable:
    """`prediction_step`, where an evaluation can be broken off."""

    @functools.wraps(method)
    def prediction_step(self: "Trainer", *args: Any, **kwargs: Any) -> Any:
        preemption = self._safe_checkpoints.preemption
        if preemption is None:
            return method(self, *args, **kwargs)
        return preemption.at_prediction_step(functools.partial(method, self, *args, **kwargs))

    return prediction_step


def _while_loading_data(method: Callable) -> Callable:
    """`get_batch_samples`, which may take long."""

    @functools.wraps(method)
    def get_batch_samples(self: "Trainer", epoch_iterator: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
        preemption = self._safe_checkpoints.preemption
        if preemption is None:
            return method(self, epoch_iterator, *args, **kwargs)
        return preemption.while_loading_data(epoch_iterator, lambda iterator: method(self, iterator, *args, **kwargs))

    return get_batch_samples


def _protecting_workers(method: Callable) -> Callable:
    """`get_train_dataloader` and `get_eval_dataloader`, whose workers must not die of the signals."""

    @functools.wraps(method)
    def get_dataloader(self: "Trainer", *args: Any, **kwargs: Any) -> Any:
        dataloader = method(self, *args, **kwargs)
        preemption = self._safe_checkpoints.preemption
        return dataloader if preemption is None else preemption.protect_workers(dataloader)

    return get_dataloader


def _after_the_last_step(method: Callable) -> Callable:
    """`_finalize_training`, before which an evaluation may be left to be made up for, and after which nothing ends."""

    @functools.wraps(method)
    def finalize_training(self: "Trainer", *args: Any, **kwargs: Any) -> Any:
        self._safe_checkpoints.after_the_last_step()
        return method(self, *args, **kwargs)

    return finalize_training


def _checking_for_remains(method: Callable) -> Callable:
    """`_issue_warnings_after_load`, where it is known which weights a checkpoint did not hold."""

    @functools.wraps(method)
    def issue_warnings_after_load(self: "Trainer", load_result: Any) -> Any:
        loading = self._safe_checkpoints.loading
        if loading is not None:
            loading.check_no_remains(load_result.missing_keys)
        return method(self, load_result)

    return issue_warnings_after_load


_WRAPPERS: dict[str, Callable[[Callable], Callable]] = {
    "_save_checkpoint": _in_transaction,
    "_save": _keeping_errors,
    "_save_optimizer_and_scheduler": _keeping_errors,
    "_save_scaler": _keeping_errors,
    "store_flos": _once_per_save,
    "_save_rng_state": _keeping_errors,
    "_load_from_checkpoint": _keeping_load_errors,
    "_load_optimizer_and_scheduler": _keeping_load_errors,
    "_load_scaler": _keeping_load_errors,
    "_load_rng_state": _voting_on_random_state,
    "_issue_warnings_after_load": _checking_for_remains,
    "_inner_training_loop": _entering_again,
    "_maybe_log_save_evaluate": _at_step_boundary,
    "prediction_step": _at_prediction_step,
    "get_batch_samples": _while_loading_data,
    "get_train_dataloader": _protecting_workers,
    "get_eval_dataloader": _protecting_workers,
    "_finalize_training": _after_the_last_step,
    "train": _giving_up_the_run_directory,
}


class TransactionalCheckpoints:
    """Base of [`Trainer`]: checkpoints are saved whole or not at all, in every subclass.

    A subclass overrides `_save_checkpoint` and the writers as it always did; what it writes to
    `os.path.join(self._get_output_dir(trial), f"checkpoint-{step}")`, before or after `super()`, is inside the
    transaction.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, wrap in _WRAPPERS.items():
            # Looked up, not taken from `cls.__dict__`: a mix-in beside the Trainer may bring the override.
            method = getattr(cls, name, None)
            # The mark names its function: `functools.wraps` of an override's own decorator copies marks.
            if callable(method) and getattr(method, "_checkpoint_wrapper", None) is not method:
                wrapped: Any = wrap(method)
                wrapped._checkpoint_wrapper = wrapped
                setattr(cls, name, wrapped)

    @property
    def _safe_checkpoints(self: Any) -> "TrainerCheckpoints":
        # Made at the first use: subclasses exist that do not call `Trainer.__init__`.
        keeper = self.__dict__.get("_safe_checkpoints")
        # A copied Trainer comes with the other one's.
        if keeper is None or keeper.trainer is not self:
            keeper = self.__dict__["_safe_checkpoints"] = TrainerCheckpoints(self)
        return keeper


def after_publish(handler: Any) -> Callable:
    """`handler.call_event` for the event `on_save`: only for a checkpoint that is there, which is sealed again after.

    Args:
        handler ([`CallbackHandler`]):
            The Trainer's callback handler.
    """
    hook = handler.__dict__.pop("_after_publish", None)
    return handler.call_event if hook is None else hook(handler.call_event)


def _looks_at_saves(handler: "CallbackHandler") -> bool:
    """Whether one of the callbacks does anything on `on_save`, which most do not."""
    from ..trainer_callback import CallbackHandler, TrainerCallback

    does_more = type(handler).on_save is not CallbackHandler.on_save
    theirs = (getattr(callback.on_save, "__func__", None) for callback in handler.callbacks)
    return does_more or any(function is not TrainerCallback.on_save for function in theirs)


# ---- The Trainer's checkpoints ----


class TrainerCheckpoints:
    """What one Trainer knows of its checkpoints.

    Args:
        trainer ([`Trainer`]):
            The Trainer it belongs to.
    """

    def __init__(self, trainer: "Trainer"):
        self.trainer = trainer
        self._runs: dict[str, RunDirectory] = {}
        self._board: Ranks | None = None
        self._training_depth = 0
        self._transaction: SaveTransaction | None = None
        # While a save is being opened: the run directory and what `run_dir_for_saving` answers for it.
        self._redirect: tuple[str, str] | None = None
        self._sweeper, self._memory = Sweeper(), Memory()
        self._later_seals = LaterSeals()
        # During a save: its collective was gone through when the save was opened.
        self.flos_are_stored = False
        # A rotation left something to a later one, because an upload was reading the run directory.
        self._put_off = False
        # How long callbacks are waited for, where it is not the usual time.
        self._callbacks_patience: float | None = None
        # The checkpoint that this training goes on from; rotation leaves it alone.
        self.resumed_from: str | None = None
        # That checkpoint and how far loading it has come, during `train`.
        self.loading: Loading | None = None
        # What this training has published last.
        self.last_published: Published | None = None
        # What is done about signals and files that ask for a checkpoint, with `enable_jit_checkpoint`.
        self.preemption: Preemption | None = None
        # The trial and the keys that an evaluation leaves out, during the training loop.
        self._loop: tuple[Any, list[str] | None] | None = None

    def __reduce__(self) -> tuple[Callable, tuple]:
        # A copied or pickled Trainer starts with none: threads and connections cannot go along.
        return _nothing, ()

    # ---- Ranks and directories ----

    def ranks(self) -> Ranks:
        """The ranks of this training. Called by all ranks."""
        world_size = self.trainer.args.world_size
        if world_size <= 1:
            return Alone()
        if self._board is None or not self._board.usable():
            from .board import StatusBoard

            args, barrier = self.trainer.args, self.trainer.accelerator.wait_for_everyone
            board = StatusBoard.of_process_group(barrier=barrier, patience=args.save_patience)
            self._board = board or Unconnected(args.process_index, world_size, barrier)
        return self._board

    def run_directory(self, path: str) -> RunDirectory:
        ranks = self.ranks()
        # One relative path can mean two directories, before and after a change of the working directory.
        key = os.path.abspath(path)
        run = self._runs.get(key)
        if run is None or (run.ranks is not ranks and not ranks.alone):
            run = self._runs[key] = RunDirectory(
                path,
                ranks,
                durable=self.trainer.args.save_durability == "full",
                sweeper=self._sweeper,
                setup=backends.setup(self.trainer),
            )
        return run

    @contextlib.contextmanager
    def training(self) -> Generator[None, None, None]:
        """Around `train`: at the end of the outermost one, run directories are given up."""
        self._training_depth += 1
        try:
            yield
        finally:
            self._training_depth -= 1
            if self._training_depth == 0:
                self.loading = None
                self._give_up()

    def _give_up(self) -> None:
        self._later_seals.close()
        self._sweeper.close()
        for run in self._runs.values():
            run.close()
        # Its heartbeats would go on, and the others would wait for a process that has left the training by an error.
        if self._board is not None:
            self._board.close()

    # ---- Saving ----

    def run_dir_for_saving(self, run_dir: str) -> str:
        """What `_get_output_dir` answers: `run_dir`, or its staging run directory while a save into it is open."""
        if self._redirect is not None and self._redirect[0] == run_dir:
            return self._redirect[1]
        return run_dir

    def save(self, trial: Any, write: Callable[[], Any]) -> Any:
        """The transaction around the outermost `_save_checkpoint`, which is `write`. Called by all ranks.

        On disk afterwards: the checkpoint under its final name, with a manifest; or, after an error, what was there.

        Raises:
            [`CheckpointSaveError`]: the same on every rank, if any rank failed. In a training of one process, the
                error itself. With `on_save_error="warn"`, neither, but for the last save of the run.
        """
        if self._transaction is not None:
            return write()
        self._later_seals.wait()
        before = _StateBefore(self.trainer)
        try:
            transaction = self._transaction_for(trial)
        except RankLostError as lost:
            path = os.path.join(self.trainer._get_output_dir(trial), checkpoint_name(self.trainer.state.global_step))
            failures = dict.fromkeys(lost.ranks, lost.reason)
            raise CheckpointSaveError(path, failures, every_rank_reported=False) from lost
        self.trainer.callback_handler.__dict__.pop("_after_publish", None)
        # On every rank, like the Trainer's own lines: `log_level_replica` decides what is seen.
        logger.info(f"Saving checkpoint to {transaction.final}")
        try:
            with held_logs(transaction.run.staging, transaction.run.path) as held:
                try:
                    transaction.open()
                    # All ranks have come here from the callbacks of the save before.
                    self.look_again()
                    self._transaction = transaction
                    self._redirect = (transaction.run.path, transaction.writing_run_dir)
                    self._store_flos(transaction, trial)
                    if _looks_at_saves(self.trainer.callback_handler):
                        transaction.wishes.add("callbacks")
                    with (
                        self._one_writer_per_disk(transaction.run),
                        backends.staying_in_step(self.trainer, transaction),
                    ):
                        result = self._write(transaction, write)
                    published = transaction.commit()
                except CheckpointSaveError as error:
                    before.restore()
                    held.rewrite_error(error)
                    held.rewrite_error(transaction.kept)
                    self._failed(transaction, error)
                    return None
                except BaseException as error:
                    transaction.abort(error)
                    before.restore()
                    held.rewrite_error(error)
                    raise
                finally:
                    self._transaction = self._redirect = None
                    self.flos_are_stored = False
                held.show()
            if published is not None:
                self._finish(transaction, published)
            return result
        finally:
            if self._training_depth == 0:
                self._give_up()

    @contextlib.contextmanager
    def _one_writer_per_disk(self, run: RunDirectory) -> Generator[None, None, None]:
        """With `save_on_each_node` on a disk that nodes share, let one of them write what is common to all.

        `should_save` follows the argument, which is therefore unset for the length of the save, also in the
        `training_args.bin` that is saved, on the ranks that would overwrite another node's files. On another disk the
        one that writes gets to write all of it.
        """
        args = self.trainer.args
        assert run.groups is not None
        rank = run.ranks.rank
        too_many = (
            args.save_on_each_node and args.should_save and not run.groups.should_save(rank, save_on_each_node=True)
        )
        if too_many:
            args.save_on_each_node = False
        elif args.save_on_each_node and args.should_save and rank != 0:
            with backends.writing_weights_off_rank_0(self.trainer):
                yield
            return
        try:
            yield
        finally:
            if too_many:
                args.save_on_each_node = True

    def _store_flos(self, transaction: SaveTransaction, trial: Any) -> None:
        """Have the ranks add up their operations now: an override that fails would leave the others waiting there."""
        trainer = self.trainer
        if transaction.ranks.alone or not transaction.ranks.connected:
            return
        if trainer.hp_search_backend is None and trial is None:
            try:
                trainer.store_flos()
            except Exception as error:
                transaction.keep("store_flos", error, in_collective=True)
            self.flos_are_stored = True

    def _write(self, transaction: SaveTransaction, write: Callable[[], Any]) -> Any:
        """The writing itself: its errors are kept, other interruptions end the transaction."""
        try:
            return write()
        except _STOPS as stop:
            transaction.abort(stop)
            raise
        except BaseException as error:  # torch's CheckpointException is no Exception
            self._keep(transaction, "saving", error)

    def _keep(self, transaction: SaveTransaction, what: str, error: BaseException) -> bool:
        """Keep `error` until the vote. Returns whether the others may be in a collective, so that to go on is no use."""
        blame = backends.blame(self.trainer, what, error)
        transaction.keep(
            what,
            error,
            cause=blame.cause,
            in_collective=blame.leaves_others_waiting and not transaction.ranks.alone,
            told_by_another=blame.told_by_another,
        )
        return blame.leaves_others_waiting

    def _transaction_for(self, trial: Any) -> SaveTransaction:
        trainer = self.trainer
        path = trainer._get_output_dir(trial)
        run = self.run_directory(path)
        in_place = None
        self._redirect = (path, run.staging)
        try:
            if trainer._get_output_dir(trial) != run.staging:
                in_place = "`_get_output_dir` is overridden"
        finally:
            self._redirect = None
        if not in_place and not run.ranks.connected:
            in_place = "the processes have no store through which they could share errors"
        state = trainer.state
        hurry = self.preemption is not None and self.preemption.stopping
        last = hurry or state.global_step >= state.max_steps or trainer.control.should_training_stop
        return SaveTransaction(
            run,
            state.global_step,
            in_place=in_place,
            facts={"last": bool(last), "hurry": hurry, "best": self._best_path(path)},
            tell=logger.warning if trainer.is_world_process_zero() else lambda text: None,
        )

    def _failed(self, transaction: SaveTransaction, error: CheckpointSaveError) -> None:
        """Raise `error`, or in one process its cause; or only say it, where that is asked for and can be done."""
        may_go_on = error.every_rank_reported and not error.outcome_unknown and not transaction.facts.get("last")
        if self.trainer.args.on_save_error == "warn" and may_go_on:
            if self.trainer.is_world_process_zero():
                logger.error(f'{error} Training goes on without it, as `on_save_error="warn"` asks.')
            _release(error)
            _release(transaction.kept)
            # The callbacks of `on_save` would look for a checkpoint that is not there.
            self.trainer.callback_handler.__dict__["_after_publish"] = lambda call_event: _no_event
            return
        cause = transaction.kept
        if transaction.ranks.alone and cause is not None:
            cause.add_note(str(error))
            raise cause
        raise error

    def keep_error(self, what: str) -> contextlib.AbstractContextManager[None]:
        """A block whose error is kept until the vote if a save is open and there are other ranks."""
        return self._keep_error(what)

    @contextlib.contextmanager
    def _keep_error(self, what: str) -> Generator[None, None, None]:
        transaction = self._transaction
        if transaction is None or transaction.ranks.alone:
            yield
            return
        try:
            yield
        except _STOPS:
            raise
        except BaseException as error:  # torch's CheckpointException is no Exception
            if self._keep(transaction, what, error):
                raise

    def account_for_known_files(self) -> None:
        """Account for this rank's own random state, and on the ranks that save, for what the Trainer always writes."""
        transaction = self._transaction
        if transaction is None:
            return
        args = self.trainer.args
        names = ["rng_state.pth" if args.world_size <= 1 else f"rng_state_{args.process_index}.pth"]
        if args.should_save:
            names += ["optimizer.pt", "scheduler.pt", "scaler.pt"]
        transaction.account_for(*(name for name in names if _opens(os.path.join(transaction.writing, name))))

    # ---- Inside `_save_checkpoint` ----

    def record_best_checkpoint(self) -> None:
        """Put the final path of the best checkpoint into the state that is about to be saved."""
        if self._transaction is not None:
            self._transaction.wishes.add("best")
            if self._transaction.facts.get("best") is not None:
                self.trainer.state.best_model_checkpoint = self._transaction.facts["best"]

    def _best_path(self, run_dir: str) -> str | None:
        """Where the best checkpoint is, or will be once this save is published. What counts is rank 0's answer."""
        state = self.trainer.state
        if not state.best_global_step or self.trainer.args.save_strategy not in ("steps", "epoch", "best"):
            return None
        path = os.path.join(run_dir, checkpoint_name(state.best_global_step))
        return path if state.best_global_step == state.global_step or os.path.isdir(path) else None

    def push_after_publish(self, checkpoint_folder: str) -> None:
        """In place of `_push_from_checkpoint`: upload once the checkpoint has its final path."""
        if self._transaction is None:
            self.trainer._push_from_checkpoint(checkpoint_folder)
        else:
            self._transaction.wishes.add("push")

    def rotate_after_publish(self, output_dir: str, save_total_limit: int | None = None, **kwargs: Any) -> None:
        """In place of `rotate_checkpoints`: delete older checkpoints once the new one is published, on every disk."""
        if self._transaction is not None:
            self._transaction.wishes.add("rotate")
            return
        from .rotation import rotate

        rotate(output_dir, save_total_limit, **kwargs)

    # ---- After a save ----

    def _finish(self, transaction: SaveTransaction, published: Published) -> None:
        """Everything that may only see the final path and a quiet directory. Called by all ranks."""
        run = transaction.run
        # What counts is rank 0's answer: another node may not see the directory yet.
        if transaction.facts.get("best") is not None and "best" in transaction.wishes:
            self.trainer.state.best_model_checkpoint = transaction.facts["best"]
        run.saved_steps.add(published.step)
        self.last_published = published
        if run.is_publisher():
            if "rotate" in transaction.wishes:
                self._rotate(run)
            self._sweeper.sweep(run.path)
        if "push" in transaction.wishes:
            # The upload walks the whole run directory, and fails if something it has listed is gone.
            if not transaction.facts.get("hurry"):
                self._sweeper.wait(PUSH_PATIENCE)
            self.trainer._push_from_checkpoint(published.path)
        logger.info(
            f"Checkpoint saved to {published.path} ({disk.format_size(published.size)} in {published.files} files, "
            f"{published.seconds:.1f} s)"
        )
        wait = "callbacks" in transaction.wishes and not transaction.facts.get("hurry")
        self._seal_after_callbacks(published, run, wait)

    def _rotate(self, run: RunDirectory) -> None:
        """Take older checkpoints out of use. Called by the publisher, after the publish."""
        from .rotation import rotate_run

        args = self.trainer.args
        outcome = rotate_run(
            run.path,
            limit=args.save_total_limit,
            keep_every=args.save_keep_every_n_steps,
            protected={"the best": self.trainer.state.best_model_checkpoint, "resumed from": self.resumed_from},
            own=run.saved_steps,
            durable=run.durable,
            busy=self._is_pushing,
            sweeper=self._sweeper,
            memory=self._memory,
        )
        self._put_off = bool(outcome.put_off)

    def _is_pushing(self) -> bool:
        """Whether an upload may still be reading the run directory."""
        push = getattr(self.trainer, "push_in_progress", None)
        return push is not None and not push.is_done()

    def _seal_after_callbacks(self, published: Published, run: RunDirectory, wait: bool) -> None:
        """Have the `on_save` callbacks followed by a second sealing, if they change anything. Called by all ranks.

        Only the publisher waits, and not for long: a Trainer may call `on_save` on one rank only.

        Args:
            published ([`Published`]):
                What was saved.
            run ([`RunDirectory`]):
                Where.
            wait (`bool`):
                Some rank has such callbacks. All should return first: one may be in the middle of a file.
        """
        place = f"after callbacks of {published.nonce}"
        after_callbacks: Callable[[bool], None] | None = None
        if published.head is not None:
            path, head, seen = published.path, published.head, published.seen
            after_callbacks = self._later_seals.start(path, head, seen, durable=run.durable, busy=self._is_pushing)

        def hook(call_event: Callable) -> Callable:
            def call(*args: Any, **kwargs: Any) -> Any:
                control = call_event(*args, **kwargs)
                if wait:
                    run.ranks.arrive(place)
                if after_callbacks is not None:
                    arrived = not wait or run.ranks.all_arrived(place, self._callbacks_patience or CALLBACKS_PATIENCE)
                    self._callbacks_patience = None if arrived else SHORT_CALLBACKS_PATIENCE
                    after_callbacks(arrived)
                return control

            return call

        self.trainer.callback_handler.__dict__["_after_publish"] = hook

    # ---- Preemption ----

    def watch_for_preemption(self, callback: "JITCheckpointCallback") -> None:
        """In place of the callback's `set_trainer`. Called by all ranks when the Trainer is made.

        Args:
            callback ([`JITCheckpointCallback`]):
                What upstream's callback did on its own is done in the training loop, by all ranks together: its manager
                never hears of a signal.
        """
        from ..trainer_jit_checkpoint import CheckpointManager
        from .preemption import Preemption

        callback.trainer = self.trainer
        callback.jit_manager = CheckpointManager(self.trainer)
        self.preemption = Preemption(self)

    @contextlib.contextmanager
    def in_loop(self, trial: Any, ignore_keys: list[str] | None) -> Generator[None, None, None]:
        """Around the training loop. Called by all ranks; see `preemption.Preemption.watching`."""
        if self._loop is not None:
            yield
            return
        self._loop = (trial, ignore_keys)
        self.last_published = None
        try:
            with contextlib.nullcontext() if self.preemption is None else self.preemption.watching(trial):
                yield
        finally:
            self._loop = None

    def evaluate_if_due(self) -> None:
        """Make up for an evaluation that a preemption has put off; see `preemption.evaluate_if_due`."""
        from .preemption import evaluate_if_due

        if self._loop is not None:
            evaluate_if_due(self, *self._loop)

    def after_the_last_step(self) -> None:
        """The training loop is over. Called by all ranks, before the training is wound up."""
        self.evaluate_if_due()
        if self.preemption is not None:
            self.preemption.finish()

    # ---- Resuming ----

    def choose_checkpoint(self, resume_from_checkpoint: Any, trial: Any) -> str | None:
        """The path to resume from, or `None`. Called by all ranks; see `resume.choose_checkpoint`."""
        from .resume import choose_checkpoint

        self.resumed_from = choose_checkpoint(self, resume_from_checkpoint, trial)
        return self.resumed_from

    def keep_load_error(self, what: str) -> contextlib.AbstractContextManager[None]:
        """A loader, whose error is kept while a checkpoint is being resumed from; see `resume.Loading.keep`."""
        return contextlib.nullcontext() if self.loading is None else self.loading.keep(what)

    def where_to_start(self, epochs_trained: int, steps_trained: int, num_train_epochs: int) -> tuple[int, int]:
        """Epoch and batch at which the training goes on; see `resume.where_to_start`."""
        from .resume import where_to_start

        return where_to_start(self, epochs_trained, steps_trained, num_train_epochs)

    def after_loading(self, checkpoint: str | None) -> None:
        """Everything that is loaded before the loop is loaded. Called by all ranks; see `resume.after_loading`."""
        from .resume import after_loading

        after_loading(self, checkpoint)

    def resolve_best_checkpoint(self) -> None:
        """Find the best checkpoint of the resumed state on this machine, or go on without one."""
        from .resume import resolve_best_checkpoint

        resolve_best_checkpoint(self)

    def _meet_at_end(self) -> bool:
        """Wait until all ranks have come to the end of the training. Called by all ranks. Gives whether they have.

        Never raises: a rank that is lost is noticed where it is needed.
        """
        try:
            ranks = self.ranks()
            ranks.begin()
            ranks.exchange("end of training", None)
        except RankLostError:
            return False
        return True

    def look_again(self) -> None:
        """Seal the last checkpoint again if it was changed. Called when all ranks are past their callbacks."""
        self._later_seals.look_again()

    def clean_up_at_end(self, trial: Any) -> None:
        """The rotation at the end of a training. Called by all ranks; the publishers work.

        On disk afterwards: what rotation keeps, the final state among it; with `load_best_model_at_end=True` and
        `save_total_limit=1` the best checkpoint alone, as those two ask for together.
        """
        from .rotation import clean_up_at_end

        self._later_seals.wait()
        args = self.trainer.args
        best_only = args.load_best_model_at_end and args.save_total_limit == 1
        # A new round as well, in which the ranks may have to find out who shares a disk.
        if self.last_published is not None or best_only:
            if not self._meet_at_end():
                return
            self.look_again()
        run = self.run_directory(self.trainer._get_output_dir(trial))
        if not best_only and not self._put_off:
            return
        run.find_groups()
        # Nothing is deleted under an upload, and after this there is no later rotation to put it off to.
        self.trainer._finish_current_push()
        if not run.is_publisher():
            return
        if self._put_off:
            self._rotate(run)
        clean_up_at_end(
            run.path,
            self.trainer.state.best_model_checkpoint,
            keep_final=not best_only,
            keep_every=args.save_keep_every_n_steps,
            durable=run.durable,
            sweeper=self._sweeper,
        )


def _release(error: BaseException | None) -> None:
    """Let go of what the frames of a kept error hold: an open file of a failed write keeps its space on the disk."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class _StateBefore:
    """The part of the Trainer's state that saving changes, to be put back when the save fails."""

    def __init__(self, trainer: "Trainer"):
        self._trainer = trainer
        self._fields = {
            "best_model_checkpoint": trainer.state.best_model_checkpoint,
            "total_flos": trainer.state.total_flos,
            "stateful_callbacks": copy.deepcopy(trainer.state.stateful_callbacks),
        }
        self._flos = trainer.current_flos

    def restore(self) -> None:
        for name, value in self._fields.items():
            setattr(self._trainer.state, name, value)
        self._trainer.current_flos = self._flos


def _opens(path: str) -> bool:
    # Not `os.path.exists`, which a network file system may answer out of its cache.
    try:
        with open(path, "rb"):
            return True
    except OSError:
        return False


def _nothing() -> None:
    return None


def _no_event(event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
    return control
