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
"""Cases of saving and resuming with one backend on several processes. Under torchrun:

    backend_cases.py --folder F --backend B [--device cpu|cuda] [--cases NAME ...]

trains once for reference, saving at steps 2, 4 and 6, and then goes through the cases of that backend. On disk
afterwards: `F/rank<r>.json`, what this rank saw of each case.
"""

import argparse
import contextlib
import faulthandler
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock


sys.path.insert(0, str(Path(__file__).parent))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from rank_cases import FAILS_AT, SPACE, Now, describe_error, digest_tree, heard  # noqa: E402
from rank_losses import quicken  # noqa: E402
from tiny_training import Tokens, leave, losses, tiny_model  # noqa: E402

from transformers import Trainer, TrainingArguments  # noqa: E402
from transformers.trainer_checkpoint import transaction  # noqa: E402
from transformers.trainer_checkpoint.board import StatusBoard  # noqa: E402
from transformers.trainer_checkpoint.manifest import read_entries, read_head  # noqa: E402
from transformers.trainer_checkpoint.structure import check_structure  # noqa: E402
from transformers.trainer_checkpoint.trainer_glue import TrainerCheckpoints  # noqa: E402
from transformers.trainer_checkpoint.transaction import SaveTransaction  # noqa: E402
from transformers.trainer_checkpoint.verification import verify  # noqa: E402
from transformers.trainer_utils import get_last_checkpoint  # noqa: E402


# Seconds after which a launch that hangs shows where and ends itself.
PATIENCE = 480
# Seconds for which a rank waits that left the others in a collective.
GRACE = 3.0
UNTOLD = "a state that cannot be told"


# ---- Backends ----


@dataclass(frozen=True)
class Backend:
    """A way to spread a training over processes.

    Args:
        fsdp (`dict[str, Any]`, *optional*):
            FSDP's configuration.
        stage (`int`, *optional*):
            DeepSpeed's ZeRO stage.
        zero (`dict[str, Any]`, *optional*):
            More of its ZeRO configuration.
        adapters (`tuple[str, ...]`, *optional*):
            Names of LoRA adapters that the model gets.
    """

    fsdp: dict[str, Any] | None = None
    stage: int | None = None
    zero: dict[str, Any] = field(default_factory=dict)
    adapters: tuple[str, ...] = ()

    def arguments(self) -> dict[str, Any]:
        if self.fsdp is not None:
            return {"fsdp": True, "fsdp_config": dict(self.fsdp)}
        if self.stage is not None:
            auto = ("gradient_accumulation_steps", "gradient_clipping", "train_batch_size")
            config: dict[str, Any] = dict.fromkeys((*auto, "train_micro_batch_size_per_gpu"), "auto")
            return {"deepspeed": {**config, "zero_optimization": {"stage": self.stage, **self.zero}}}
        return {}

    def model(self) -> Any:
        model = tiny_model(0.2)
        if not self.adapters:
            return model
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(11)
        for name in self.adapters:
            config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
            if name == self.adapters[0]:
                model = get_peft_model(model, config, adapter_name=name)
            else:
                model.add_adapter(name, config)
        return model


def _fsdp(version: int, kind: str) -> Backend:
    config: dict[str, Any] = {"version": version, "state_dict_type": f"{kind}_STATE_DICT"}
    if version == 1:
        config["sync_module_states"] = False
    return Backend(fsdp=config)


GATHERING = {"stage3_gather_16bit_weights_on_model_save": True}
BACKENDS = {
    "ddp": Backend(),
    "fsdp2-full": _fsdp(2, "FULL"),
    "fsdp2-sharded": _fsdp(2, "SHARDED"),
    "fsdp1-full": _fsdp(1, "FULL"),
    "fsdp1-sharded": _fsdp(1, "SHARDED"),
    "zero1": Backend(stage=1),
    "zero2": Backend(stage=2),
    "zero3": Backend(stage=3, zero=GATHERING),
    "zero3-not-gathered": Backend(stage=3),
    "lora": Backend(adapters=("default",)),
    "lora-named": Backend(adapters=("default", "other")),
    "lora-zero3": Backend(stage=3, zero=GATHERING, adapters=("default",)),
}


# ---- Cases ----


@dataclass
class Context:
    folder: Path
    backend: Backend
    device: str
    rank: int
    world_size: int

    def trainer(self, out: str, cls: type[Trainer] = Trainer, **arguments: Any) -> Trainer:
        args = TrainingArguments(
            output_dir=str(self.folder / out),
            use_cpu=self.device == "cpu",
            max_steps=6,
            save_steps=2,
            logging_steps=1,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            report_to="none",
            disable_tqdm=True,
            seed=3,
            **{**self.backend.arguments(), **arguments},
        )
        return cls(model=self.backend.model(), args=args, train_dataset=Tokens(24), callbacks=[Now()])


def weights(trainer: Trainer) -> str:
    """Digest of this rank's weights, or of its part of them."""
    import hashlib

    digest = hashlib.sha256()
    for name, value in sorted(trainer.model_wrapped.named_parameters()):
        value = value.to_local() if hasattr(value, "to_local") else getattr(value, "ds_tensor", value)
        digest.update(name.encode() + value.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def seen_of(trainer: Trainer) -> dict[str, Any]:
    return {"losses": losses(trainer), "weights": weights(trainer), "step": trainer.state.global_step}


def run_reference(context: Context) -> dict[str, Any]:
    """Save, and look at what is there."""
    with heard() as lines:
        trainer = context.trainer("reference")
        trainer.train()
    found: dict[str, Any] = {**seen_of(trainer), "checkpoints": {}, "heard": lines}
    dist.barrier()
    for step in (2, 4, 6):
        path = str(context.folder / "reference" / f"checkpoint-{step}")
        head = read_head(path)
        found["checkpoints"][str(step)] = {
            "files": sorted(read_entries(path, head)),
            "state": list(head.state),
            "world_size": head.world_size,
            "problems": [str(problem) for problem in verify(path, level="full").problems],
            "damages": check_structure(path, world_size=context.world_size),
        }
    found["type"] = str(trainer.accelerator.distributed_type)
    return found


def run_resume(context: Context) -> dict[str, Any]:
    """Go on from step 4."""
    _copy_run(context, "resume", 6)
    trainer = context.trainer("resume")
    with heard() as lines:
        try:
            trainer.train(resume_from_checkpoint=True)
        except BaseException as error:
            return describe_error(error)
    return {**seen_of(trainer), "from": trainer._safe_checkpoints.resumed_from, "heard": lines}


def _copy_run(context: Context, out: str, without: int) -> None:
    if context.rank == 0:
        shutil.copytree(context.folder / "reference", context.folder / out)
        shutil.rmtree(context.folder / out / f"checkpoint-{without}")
    dist.barrier()


def run_less(context: Context) -> dict[str, Any]:
    """Each file away in turn: which checkpoint is then the newest good one, with the manifests and without."""
    found: dict[str, Any] = {}
    if context.rank == 0:
        run = context.folder / "less"
        shutil.copytree(context.folder / "reference", run)
        newest = run / "checkpoint-6"
        names = sorted(read_entries(str(newest), read_head(str(newest))))
        for kind in ("sealed", "bare"):
            if kind == "bare":
                for manifest in [*run.glob("*/checkpoint-manifest.json"), *run.glob("*/checkpoint-files.*.json")]:
                    manifest.unlink()
            found[kind] = {}
            for name in names:
                (newest / name).rename(context.folder / "away")
                found[kind][name] = os.path.basename(get_last_checkpoint(str(run)) or "")
                (context.folder / "away").rename(newest / name)
            found[kind][""] = os.path.basename(get_last_checkpoint(str(run)) or "")
    dist.barrier()
    return found


@dataclass
class Fault:
    """Where a save goes wrong at step 4.

    Args:
        where (`str`):
            Part of the path of a file that cannot be written, or the name of something else in `patch`.
        rank (`int`):
            On which rank.
    """

    where: str
    rank: int

    def patches(self, rank: int) -> list[Any]:
        if rank != self.rank:
            return []
        if self.where == "dcp metadata":
            from torch.distributed.checkpoint.filesystem import FileSystemWriter

            return [mock.patch.object(FileSystemWriter, "finish", self._instead(FileSystemWriter.finish))]
        if self.where.startswith("dcp "):
            from torch.distributed.checkpoint.filesystem import FileSystemWriter

            def write(writer: Any, *args: Any, **kwargs: Any) -> Any:
                if Now.step == FAILS_AT and os.path.basename(str(writer.path)) == self.where[4:]:
                    raise OSError(28, SPACE, str(writer.path))
                return real_write(writer, *args, **kwargs)

            real_write = FileSystemWriter.write_data
            return [mock.patch.object(FileSystemWriter, "write_data", write)]
        if self.where == "latest":

            def opening(path: Any, *args: Any, **kwargs: Any) -> Any:
                if Now.step == FAILS_AT and os.path.basename(str(path)) == "latest":
                    raise OSError(28, SPACE, str(path))
                return open(path, *args, **kwargs)

            return [mock.patch("deepspeed.runtime.engine.open", opening, create=True)]
        if self.where == "recovery script":
            from deepspeed.runtime import engine

            return [mock.patch.object(engine, "copyfile", self._instead(engine.copyfile))]
        if self.where in ("create", "commit"):
            from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

            real = getattr(TorchCheckpointEngine, self.where)
            return [mock.patch.object(TorchCheckpointEngine, self.where, self._instead(real))]
        if self.where == "weights":
            from safetensors import torch as safetensors_torch

            from transformers import modeling_utils

            real_save = safetensors_torch.save_file
            target = modeling_utils if hasattr(modeling_utils, "safe_save_file") else safetensors_torch
            name = "safe_save_file" if target is modeling_utils else "save_file"
            return [mock.patch.object(target, name, self._instead(real_save))]

        # Below `torch.save`, as an error of the disk comes.
        openers = ("_open_zipfile_writer", "_open_file_like")
        return [mock.patch.object(torch.serialization, name, self._refusing(name)) for name in openers]

    def _refusing(self, name: str) -> Callable:
        real = getattr(torch.serialization, name)

        def opening(path: Any, *mode: str) -> Any:
            if Now.step == FAILS_AT and self.where in str(path):
                raise OSError(28, SPACE, str(path))
            return real(path, *mode)

        return opening

    def _instead(self, real: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            if Now.step == FAILS_AT:
                raise OSError(28, SPACE)
            return real(*args, **kwargs)

        return call


def run_fault(context: Context, out: str, fault: Fault) -> dict[str, Any]:
    """Fail at step 4, and only warn of it: the training goes on, with the same weights and a good save at step 6."""
    errors: list[dict[str, Any]] = []
    real = TrainerCheckpoints._failed

    def failed(self: TrainerCheckpoints, transaction: Any, error: Any) -> None:
        errors.append(describe_error(error))
        real(self, transaction, error)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(TrainerCheckpoints, "_failed", failed))
        for patch in fault.patches(context.rank):
            stack.enter_context(patch)
        lines = stack.enter_context(heard())
        trainer = context.trainer(out, on_save_error="warn")
        try:
            trainer.train()
            found = seen_of(trainer)
        except BaseException as error:
            found = describe_error(error)
    dist.barrier()
    path = context.folder / out
    found["errors"] = errors
    found["left"] = sorted(os.listdir(path))
    found["heard"] = [line for line in lines if not line.startswith("DEBUG")]
    found["problems"] = [
        str(problem) for name in found["left"] for problem in verify(str(path / name), level="full").problems
    ]
    found["first"] = digest_tree(str(path / "checkpoint-2")) if context.rank == 0 else None
    return found


def run_loss(context: Context, out: str, part: str) -> dict[str, Any]:
    """A file of rank 1 disappears after everybody has written."""
    real = SaveTransaction._flush
    lost: list[str] = []

    def flush(self: SaveTransaction) -> Any:
        if self.step == FAILS_AT and context.rank == 0:
            for file in sorted(Path(self.writing).rglob("*")):
                if part in file.name and not lost:
                    file.unlink()
                    lost.append(file.name)
        return real(self)

    with mock.patch.object(SaveTransaction, "_flush", flush):
        try:
            context.trainer(out).train()
            found: dict[str, Any] = {}
        except BaseException as error:
            found = describe_error(error)
    dist.barrier()
    return {**found, "lost": lost, "left": sorted(os.listdir(context.folder / out))}


class BrokenOverride(Trainer):
    """Fails before it comes to what the others are already in."""

    def _save_checkpoint(self, model, trial):
        if self.state.global_step == FAILS_AT and self.args.process_index == 1:
            raise ValueError(UNTOLD)
        super()._save_checkpoint(model, trial)


def run_foreign(context: Context, where: str) -> dict[str, Any]:
    """Rank 1 fails before or inside a collective of the backend, in which the others then wait for it."""
    trainer = context.trainer("foreign", cls=BrokenOverride if where == "override" else Trainer)
    if where == "gather":
        owner, name = trainer.accelerator, "get_state_dict"
    elif where == "optimizer":
        from accelerate.utils import fsdp_utils as owner

        name = "_get_model_state_dict"
    elif where == "engine":
        from deepspeed.runtime.engine import DeepSpeedEngine as owner

        name = "module_state_dict"
    with contextlib.ExitStack() as stack:
        if context.rank == 1 and where != "override":
            real = getattr(owner, name)

            def broken(*args: Any, **kwargs: Any) -> Any:
                if Now.step == FAILS_AT:
                    raise ValueError(UNTOLD)
                return real(*args, **kwargs)

            stack.enter_context(mock.patch.object(owner, name, broken))
        trainer.train()
    return seen_of(trainer)


# What fails in each backend, and on which rank: with the writer that the error names.
def faults(name: str, backend: Backend) -> dict[str, tuple[Fault, str]]:
    rng = {f"rng_state-{rank}": (Fault(f"rng_state_{rank}.pth", rank), "_save_rng_state") for rank in (0, 1)}
    common = {**rng, "training_args": (Fault("training_args.bin", 0), "_save")}
    if backend.fsdp is not None and "full" in name:
        return {
            **common,
            "weights": (Fault("weights", 0), "_save"),
            "model": (Fault("pytorch_model_fsdp.bin", 0), "save_fsdp_model"),
            "optimizer": (Fault("optimizer.bin", 0), "_save_optimizer_and_scheduler"),
            "scheduler": (Fault("scheduler.pt", 0), "_save_optimizer_and_scheduler"),
        }
    if backend.fsdp is not None:
        return {
            **rng,
            **{f"model-{rank}": (Fault("dcp pytorch_model_fsdp_0", rank), "save_fsdp_model") for rank in (0, 1)},
            **{f"optimizer-{r}": (Fault("dcp optimizer_0", r), "_save_optimizer_and_scheduler") for r in (0, 1)},
            "metadata": (Fault("dcp metadata", 0), "save_fsdp_model"),
            "scheduler": (Fault("scheduler.pt", 0), "_save_optimizer_and_scheduler"),
        }
    if backend.stage is not None:
        model_ranks = (0, 1) if backend.stage == 3 else (0,)
        return {
            **common,
            **{f"model-{rank}": (Fault("model_states.pt", rank), "DeepSpeed's ") for rank in model_ranks},
            **{f"optimizer-{rank}": (Fault("optim_states.pt", rank), "DeepSpeed's ") for rank in (0, 1)},
            **{
                f"{what}-{rank}": (Fault(what, rank), f"DeepSpeed's {what}")
                for what in ("create", "commit")
                for rank in (0, 1)
            },
            "recovery script": (Fault("recovery script", 0), "DeepSpeed's recovery script"),
            "latest": (Fault("latest", 0), "DeepSpeed's latest"),
        }
    return {**common, "weights": (Fault("weights", 0), "_save")}


# A file of rank 1 that is lost after the first vote.
LOST = {"sharded": "__1_0.distcp", "zero": "zero_pp_rank_1_", "full": "rng_state_1", "lora": "rng_state_1"}
FULL_SET = ("fsdp2-full", "fsdp2-sharded", "zero2", "zero3")


def cases(name: str, backend: Backend) -> dict[str, Callable[[Context], dict[str, Any]]]:
    found: dict[str, Callable[[Context], dict[str, Any]]] = {
        "reference": run_reference,
        "resume": run_resume,
        "less": run_less,
    }
    for what, (fault, _) in faults(name, backend).items():
        if name in FULL_SET or what in ("model", "model-1", "optimizer-0", "optimizer", "rng_state-1"):
            found[f"fault-{what}"] = lambda context, what=what, fault=fault: run_fault(context, f"fault-{what}", fault)
    for part, file in LOST.items():
        if part in name:
            found["loss"] = lambda context, file=file: run_loss(context, "loss", file)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--backend", choices=BACKENDS, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cases", nargs="*")
    parser.add_argument("--foreign", choices=("gather", "override", "optimizer", "engine"))
    options = parser.parse_args()
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    backend = BACKENDS[options.backend]
    if options.device == "cpu" and backend.fsdp is not None:
        import backend_fsdp_on_cpu

        backend_fsdp_on_cpu.enable()
    quicken(StatusBoard)
    transaction.FOREIGN_COLLECTIVE_GRACE = GRACE
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    context = Context(options.folder, backend, options.device, rank, world_size)
    if options.foreign:
        run_foreign(context, options.foreign)
        leave()
    found = {}
    for name, run in cases(options.backend, backend).items():
        if options.cases and name not in options.cases:
            continue
        started = time.monotonic()
        found[name] = run(context)
        dist.barrier()
        print(f"{name}: {time.monotonic() - started:.2f} s", flush=True)
    with open(options.folder / f"rank{rank}.json", "w", encoding="utf-8") as file:
        json.dump(found, file)
    leave()


if __name__ == "__main__":
    main()
