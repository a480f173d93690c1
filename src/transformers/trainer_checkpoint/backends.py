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
"""What the save protocol has to know of the backends: where a rank that fails leaves the others waiting for it.

A backend's saving code goes through collectives and writes files between them. A rank whose *file* fails can go on to
the next collective and tell the others at the vote. A rank that fails *inside* a collective, or before it has come to
one, cannot: the others are in there, and nothing wakes them but the end of its process.

| backend | files, whose errors are kept where they happen | everything else |
| --- | --- | --- |
| DDP | no collective while writing: all of it | |
| FSDP, full state dict | rank 0's `torch.save`, after the gathering | leaves the others waiting |
| FSDP, sharded state dict | torch's DCP tells every rank of any rank's error itself (`CheckpointException`) | as above |
| DeepSpeed | its checkpoint engine, the recovery script, the file `latest` | as above |
| sharded when loaded (tensor parallel) | none can be told apart | as above |
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from ..trainer import Trainer
    from .transaction import SaveTransaction


# Modules whose `torch.save` comes when all collectives of the function it stands in are over.
_WRITE_AFTER_GATHERING = frozenset({"accelerate.utils.fsdp_utils", "transformers.trainer"})
# The other writers only write. "saving" is all of `_save_checkpoint` that is no writer: overrides, state dicts.
_WRITERS_WITH_COLLECTIVES = frozenset({"saving", "save_fsdp_model", "_save_optimizer_and_scheduler"})
# What DeepSpeed asks of its checkpoint engine while it saves, none of it a collective.
_ENGINE_WRITES = frozenset({"makedirs", "create", "save", "commit"})


@dataclasses.dataclass(frozen=True)
class Blame:
    """What an error in a writer means for the other ranks.

    Args:
        cause (`BaseException`):
            The error to tell of: the one inside, where a library wraps it.
        leaves_others_waiting (`bool`, *optional*, defaults to `False`):
            The others may be inside a collective that this rank did not join.
        told_by_another (`bool`, *optional*, defaults to `False`):
            Another rank failed, and the library has told this one.
    """

    cause: BaseException
    leaves_others_waiting: bool = False
    told_by_another: bool = False


def blame(trainer: "Trainer", what: str, error: BaseException) -> Blame:
    """Who failed, and who waits for whom, when a writer of this rank raised `error`. One rank calls it.

    Args:
        trainer ([`Trainer`]):
            The Trainer that saves.
        what (`str`):
            The writer.
        error (`BaseException`):
            What it raised.
    """
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures and type(error).__name__ == "CheckpointException":
        own = failures.get(trainer.args.process_index)
        return Blame(own[0] if own else next(iter(failures.values()))[0], told_by_another=own is None)
    waiting = _has_collectives(trainer, what) and not _failed_in_a_file(error)
    return Blame(error, leaves_others_waiting=waiting)


def _has_collectives(trainer: "Trainer", what: str) -> bool:
    """Whether ranks may wait for each other inside the writer `what`, or after it, for one that failed there."""
    if what == "_save":
        return bool(getattr(trainer, "is_distributed_loading_by_transformers", False))
    return what in _WRITERS_WITH_COLLECTIVES and bool(
        trainer.is_fsdp_enabled
        or trainer.is_deepspeed_enabled
        or getattr(trainer, "is_distributed_loading_by_transformers", False)
    )


def _failed_in_a_file(error: BaseException) -> bool:
    """Whether `error` comes out of a `torch.save` that stands behind all collectives of its function."""
    caller, frame = "", error.__traceback__
    while frame is not None:
        code = frame.tb_frame
        if code.f_globals.get("__name__") == "torch.serialization" and code.f_code.co_name == "save":
            return caller in _WRITE_AFTER_GATHERING
        caller, frame = code.f_globals.get("__name__", ""), frame.tb_next
    return False


@contextlib.contextmanager
def writing_weights_off_rank_0(trainer: "Trainer") -> Generator[None, None, None]:
    """Have this rank, which saves on a disk that rank 0 does not see, save the weights too.

    `save_pretrained` writes them on global rank 0 only, whoever asks, and the other disks would hold checkpoints
    without a model. Called for a block by one rank of such a disk. Nothing happens where this rank may not have all
    weights: with FSDP, DeepSpeed, and a model that was sharded when it was loaded.

    Args:
        trainer ([`Trainer`]):
            The Trainer that saves.
    """
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    has_part = (
        trainer.is_fsdp_enabled
        or trainer.is_deepspeed_enabled
        or getattr(trainer, "is_distributed_loading_by_transformers", False)
    )
    if has_part or not hasattr(model, "should_save_on_this_rank"):
        yield
        return
    model.should_save_on_this_rank = lambda is_main_process: is_main_process
    try:
        yield
    finally:
        model.__dict__.pop("should_save_on_this_rank", None)


# ---- DeepSpeed ----


@contextlib.contextmanager
def staying_in_step(trainer: "Trainer", transaction: "SaveTransaction") -> Generator[None, None, None]:
    """Keep what fails inside DeepSpeed between its collectives, for the length of a save. Called by all ranks.

    Nothing happens with other backends. The files that DeepSpeed writes on this rank are accounted for, and where it
    has a process of its own write them, they are there when this ends.

    Args:
        trainer ([`Trainer`]):
            The Trainer that saves.
        transaction ([`SaveTransaction`]):
            The save, which keeps the errors.
    """
    engine = getattr(trainer, "deepspeed", None) if trainer.is_deepspeed_enabled else None
    if engine is None or not hasattr(engine, "checkpoint_engine"):
        yield
        return
    writer = _KeepingEngine(engine.checkpoint_engine, transaction)
    engine.checkpoint_engine = writer
    # On the instance: the class serves every engine of the process.
    engine.save_checkpoint = _in_step(engine, writer)
    script = getattr(engine, "_copy_recovery_script", None)
    if script is not None:
        engine._copy_recovery_script = writer.keeping(script, "DeepSpeed's recovery script")
    try:
        yield
    finally:
        engine.checkpoint_engine = writer.engine
        for name in ("save_checkpoint", "_copy_recovery_script"):
            engine.__dict__.pop(name, None)


class _KeepingEngine:
    """DeepSpeed's checkpoint engine, whose errors are kept until the vote."""

    def __init__(self, engine: Any, transaction: "SaveTransaction"):
        self.engine = engine
        self.transaction = transaction
        # How far the call of `save_checkpoint` that is under way has come.
        self.committed = False

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.engine, name)
        return self.keeping(value, f"DeepSpeed's {name}") if name in _ENGINE_WRITES else value

    def save(self, state_dict: Any, path: str) -> Any:
        name = os.path.relpath(path, self.transaction.writing)
        if not name.startswith(os.pardir):
            self.transaction.account_for(name.replace(os.sep, "/"))
        return self.keeping(self.engine.save, f"DeepSpeed's {os.path.basename(path)}")(state_dict, path)

    def commit(self, info: Any) -> Any:
        self.committed = True
        return self.keeping(self.engine.commit, "DeepSpeed's commit")(info)

    def keeping(self, method: Callable, what: str) -> Callable:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                if self.transaction.ranks.alone:
                    raise
                self.transaction.keep(what, error)
                # The engine's methods say with this that all is well.
                return True

        return call


def _in_step(engine: Any, writer: _KeepingEngine) -> Callable:
    """`engine.save_checkpoint`, which comes to its last barrier even if the file `latest` fails."""
    save = engine.save_checkpoint

    @functools.wraps(save)
    def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
        writer.committed = False
        try:
            result = save(*args, **kwargs)
        except Exception as error:
            # After the commit comes the file `latest`, and then the barrier at which the others wait.
            if not writer.committed or writer.transaction.ranks.alone:
                raise
            writer.transaction.keep("DeepSpeed's latest", error)
            from deepspeed import comm

            comm.barrier()
            return True
        if writer.engine.is_decoupled():
            # Its own process writes on, and would do so under a path that is gone after the publish.
            engine._commit_decoupled_checkpoint()
        return result

    return save_checkpoint


def setup(trainer: "Trainer") -> dict[str, Any]:
    """What `disk_groups.warnings_for` has to know of a training: who writes, and whether the state is sharded."""
    sharded, node_local = None, False
    if trainer.is_deepspeed_enabled:
        sharded = "deepspeed"
        config = getattr(trainer.args.hf_deepspeed_config, "config", None) or {}
        node_local = bool(config.get("checkpoint", {}).get("use_node_local_storage", False))
    elif trainer.is_fsdp_enabled:
        plugin: Any = trainer.accelerator.state.fsdp_plugin
        sharded = "fsdp full" if "FULL_STATE_DICT" in str(plugin.state_dict_type) else "fsdp"
    return {
        "save_on_each_node": trainer.args.save_on_each_node,
        "sharded": sharded,
        "node_local_storage": node_local,
    }
