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
"""Checkpoints of every layout that a Trainer leaves, made by the real writers, and ways to damage a file."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from transformers.trainer_checkpoint.digest import DEFAULT_ALGORITHM, digest_files
from transformers.trainer_checkpoint.disk import walk_files
from transformers.trainer_checkpoint.layout import FILE_LIST_PATTERN, MANIFEST_NAME, UNLISTED_NAMES
from transformers.trainer_checkpoint.manifest import FileEntry, Head, ListRecord, draw_nonce, write_manifest
from transformers.trainer_checkpoint.structure import state_inside


TENSORS = {"a": torch.arange(2000.0), "b": torch.ones(300), "c": torch.zeros(40, 40)}


# ---- Writing ----


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def trainer_files(path: Path, step: int, ranks: int = 1, optimizer: bool = True) -> None:
    """What the Trainer itself writes beside the weights."""
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / "trainer_state.json", {"global_step": step, "epoch": 1.0, "log_history": [{"loss": 1.5}]})
    write_json(path / "config.json", {"model_type": "gpt2", "transformers_version": "5.24.0"})
    write_text(path / "README.md", "# A model card\n")
    torch.save({"output_dir": "out"}, path / "training_args.bin")
    if optimizer:
        torch.save({"state": dict(TENSORS), "param_groups": [{"lr": 0.1}]}, path / "optimizer.pt")
        torch.save({"last_epoch": step}, path / "scheduler.pt")
        for rank in range(ranks):
            name = "rng_state.pth" if ranks == 1 else f"rng_state_{rank}.pth"
            torch.save({"cpu": torch.get_rng_state(), "python": (3, (1, 2), None)}, path / name)


def single_safetensors(path: Path, step: int) -> None:
    trainer_files(path, step)
    save_file(TENSORS, path / "model.safetensors", metadata={"format": "pt"})


def sharded(path: Path, step: int, stem: str, suffix: str, save: Callable) -> None:
    trainer_files(path, step)
    shards = {key: f"{stem}-{i:05d}-of-00003.{suffix}" for i, key in enumerate(sorted(TENSORS), 1)}
    for key, shard in shards.items():
        save({key: TENSORS[key]}, path / shard)
    write_json(path / f"{stem}.{suffix}.index.json", {"metadata": {"total_size": 1}, "weight_map": shards})


def sharded_safetensors(path: Path, step: int) -> None:
    sharded(path, step, "model", "safetensors", save_file)


def sharded_bin(path: Path, step: int) -> None:
    sharded(path, step, "pytorch_model", "bin", torch.save)


def single_bin(path: Path, step: int) -> None:
    trainer_files(path, step)
    torch.save(TENSORS, path / "pytorch_model.bin")


def legacy_bin(path: Path, step: int) -> None:
    trainer_files(path, step)
    torch.save(TENSORS, path / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def model_only(path: Path, step: int) -> None:
    trainer_files(path, step, optimizer=False)
    save_file(TENSORS, path / "model.safetensors")


def adapter(path: Path, step: int) -> None:
    trainer_files(path, step)
    (path / "config.json").unlink()
    save_file({"lora_A": TENSORS["a"]}, path / "adapter_model.safetensors")
    write_json(path / "adapter_config.json", {"peft_type": "LORA", "r": 8})


def named_adapters(path: Path, step: int) -> None:
    trainer_files(path, step)
    (path / "config.json").unlink()
    for name in ("first", "second"):
        (path / name).mkdir()
        save_file({"lora_A": TENSORS["a"]}, path / name / "adapter_model.safetensors")
        write_json(path / name / "adapter_config.json", {"peft_type": "LORA", "r": 8})


def two_ranks(path: Path, step: int) -> None:
    trainer_files(path, step, ranks=2)
    save_file(TENSORS, path / "model.safetensors")


def fsdp_full(path: Path, step: int) -> None:
    trainer_files(path, step, ranks=2)
    (path / "optimizer.pt").rename(path / "optimizer.bin")
    torch.save(TENSORS, path / "pytorch_model_fsdp.bin")


def fsdp_sharded(path: Path, step: int) -> None:
    trainer_files(path, step, ranks=2)
    (path / "optimizer.pt").unlink()
    for folder in ("pytorch_model_fsdp_0", "optimizer_0"):
        # Two files, as two ranks leave them.
        writer = dcp.FileSystemWriter(path / folder, single_file_per_rank=False, thread_count=2)
        dcp.save(dict(TENSORS), storage_writer=writer, no_dist=True)


def zero(path: Path, step: int, stage: int) -> None:
    trainer_files(path, step, ranks=2)
    (path / "optimizer.pt").unlink()
    (path / "scheduler.pt").unlink()
    folder = path / f"global_step{step}"
    folder.mkdir()
    write_text(path / "latest", folder.name)
    write_text(path / "zero_to_fp32.py", "print('recover')\n")
    partitions = 2 if stage == 3 else [2, 2]
    for rank in range(2):
        torch.save(
            {"optimizer_state_dict": {"zero_stage": stage, "partition_count": partitions, "state": TENSORS["a"]}},
            folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        )
        if stage == 3:
            torch.save({"module": TENSORS}, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    if stage != 3:
        torch.save({"module": TENSORS}, folder / "mp_rank_00_model_states.pt")
        save_file(TENSORS, path / "model.safetensors")


def zero_2(path: Path, step: int) -> None:
    zero(path, step, 2)


def zero_3(path: Path, step: int) -> None:
    zero(path, step, 3)


def xla(path: Path, step: int) -> None:
    trainer_files(path, step, ranks=2)
    (path / "optimizer.pt").unlink()
    torch.save(TENSORS, path / "pytorch_model.bin")
    for rank in range(2):
        torch.save({"optimizer": {}, "shard_metadata": {}}, path / f"rank{rank}-of-2-optimizer.pt")


# Name of a layout: how it is made, and what is inside.
FULL_STATE = ("model", "optimizer", "scheduler", "rng", "trainer")
LAYOUTS: dict[str, tuple[Callable[[Path, int], None], tuple[str, ...]]] = {
    "single safetensors": (single_safetensors, FULL_STATE),
    "sharded safetensors": (sharded_safetensors, FULL_STATE),
    "single bin": (single_bin, FULL_STATE),
    "sharded bin": (sharded_bin, FULL_STATE),
    "older torch format": (legacy_bin, FULL_STATE),
    "save_only_model": (model_only, ("model", "trainer")),
    "adapter": (adapter, FULL_STATE),
    "named adapters": (named_adapters, FULL_STATE),
    "two ranks": (two_ranks, FULL_STATE),
    "fsdp full": (fsdp_full, FULL_STATE),
    "fsdp sharded": (fsdp_sharded, FULL_STATE),
    "zero 2": (zero_2, ("model", "optimizer", "rng", "trainer")),
    "zero 3": (zero_3, ("model", "optimizer", "rng", "trainer")),
    "xla": (xla, FULL_STATE),
}


def make(path: str | os.PathLike, step: int = 20, layout: str = "single safetensors") -> Path:
    """A checkpoint without a manifest, as the library leaves it without our modules."""
    LAYOUTS[layout][0](Path(path), step)
    return Path(path)


def seal(
    path: str | os.PathLike,
    sequence: int,
    *,
    step: int = 20,
    saw: tuple[str, ...] = (),
    world_size: int = 1,
    **fields: object,
) -> Head:
    """Give the checkpoint at `path` a manifest over all that is in it, in place of one it has."""
    for name in os.listdir(path):
        if name == MANIFEST_NAME or FILE_LIST_PATTERN.match(name):
            os.unlink(os.path.join(path, name))
    names = [name for name, _ in walk_files(path) if name not in UNLISTED_NAMES]
    entries = {name: FileEntry(*found) for name, found in digest_files(path, names).items()}
    head = Head(
        step=step,
        sequence=sequence,
        nonce=draw_nonce(),
        world_size=world_size,
        state=state_inside(path),
        algorithm=DEFAULT_ALGORITHM,
        files=ListRecord("", 0, "", 0, 0),
        saw=saw,
        writer={"transformers": "5.24.0"},
    )
    for name, value in fields.items():
        object.__setattr__(head, name, value)
    return write_manifest(path, head, entries, durable=False)


def make_sealed(run_dir: str | os.PathLike, step: int, sequence: int, **kwargs: object) -> Path:
    """`<run_dir>/checkpoint-<step>`, sealed; small."""
    path = Path(run_dir) / f"checkpoint-{step}"
    path.mkdir(parents=True)
    write_json(path / "trainer_state.json", {"global_step": step})
    write_json(path / "config.json", {"model_type": "gpt2"})
    save_file({"a": TENSORS["b"] * step}, path / "model.safetensors")
    seal(path, sequence, step=step, **kwargs)
    return path


def make_stock(run_dir: str | os.PathLike, step: int) -> Path:
    """`<run_dir>/checkpoint-<step>` without a manifest; small."""
    path = Path(run_dir) / f"checkpoint-{step}"
    path.mkdir(parents=True)
    write_json(path / "trainer_state.json", {"global_step": step})
    save_file({"a": TENSORS["b"]}, path / "model.safetensors")
    return path


# ---- Damaging ----


def missing(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def truncated(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) * 2 // 3])


def bit_flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


def zeroed_block(file: Path) -> None:
    data = bytearray(file.read_bytes())
    start = len(data) // 3
    length = min(64, len(data) - start)
    data[start : start + length] = bytes(length)
    file.write_bytes(data)


def all_zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


DAMAGES = {
    "missing": missing,
    "empty": empty,
    "truncated": truncated,
    "bit flipped": bit_flipped,
    "zeroed block": zeroed_block,
    "all zero": all_zero,
}


def copy(source: Path, target: str | os.PathLike) -> Path:
    shutil.copytree(source, target)
    return Path(target)
