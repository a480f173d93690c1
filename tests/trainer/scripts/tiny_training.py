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
"""A training small enough for tests: a Llama of a few thousand parameters on fixed random tokens, on the CPU.

As a module it gives `tiny_trainer`. As a script it trains, with any training argument on the command line and

    --losses FILE     write [[step, loss], ...] there at the end (rank 0)
    --dropout P       attention dropout
    --kill AT         SIGKILL this process at the AT-th change of the disk below the output directory
    --kill_rank R     which rank that is (0)
    --count FILE      write the number of such changes there

and `--resume_from_checkpoint True` or a path.
"""

import json
import os
import sys
from typing import Any

import torch
from torch.utils.data import Dataset

from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


class Tokens(Dataset):
    def __init__(self, size: int, length: int = 8, vocabulary: int = 32):
        self.rows = torch.randint(0, vocabulary, (size, length), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index].clone()}


def tiny_model(dropout: float = 0.0) -> LlamaForCausalLM:
    set_seed(7)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=16,
            attention_dropout=dropout,
            tie_word_embeddings=False,
        )
    )


def tiny_trainer(output_dir: str, cls: type[Trainer] = Trainer, dropout: float = 0.0, **arguments: Any) -> Trainer:
    """A Trainer of `cls` that runs 6 steps and saves every 2, unless `arguments` say otherwise."""
    callbacks = arguments.pop("callbacks", None)
    size = arguments.pop("size", 24)
    defaults = {
        "use_cpu": True,
        "max_steps": 6,
        "save_steps": 2,
        "logging_steps": 1,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 3,
    }
    args = TrainingArguments(output_dir=output_dir, **{**defaults, **arguments})
    return cls(
        model=tiny_model(dropout), args=args, train_dataset=Tokens(size), eval_dataset=Tokens(8), callbacks=callbacks
    )


def losses(trainer: Trainer) -> list[tuple[int, float]]:
    return [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


def leave(code: int = 0) -> None:
    """End the process without torch's teardown, which aborts now and then after gloo was used."""
    import atexit
    import threading

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def take(name: str, default: str | None = None) -> str | None:
    """Take `--name value` out of the command line."""
    if f"--{name}" not in sys.argv:
        return default
    at = sys.argv.index(f"--{name}")
    value = sys.argv[at + 1]
    del sys.argv[at : at + 2]
    return value


def main() -> None:
    losses_file, count_file = take("losses"), take("count")
    kill, kill_rank = take("kill"), int(take("kill_rank", "0"))
    dropout, resume = float(take("dropout", "0")), take("resume_from_checkpoint")
    size = int(take("size", "24"))
    (args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
    trainer = Trainer(model=tiny_model(dropout), args=args, train_dataset=Tokens(size), eval_dataset=Tokens(8))
    operations = None
    if kill is not None or count_file is not None:
        from file_operations import FileOperations

        mine = args.process_index == kill_rank
        operations = FileOperations(args.output_dir, int(kill) if kill is not None and mine else None)
    trainer.train(resume_from_checkpoint=True if resume == "True" else resume)
    if args.process_index == 0 and losses_file is not None:
        with open(losses_file, "w", encoding="utf-8") as file:
            json.dump(losses(trainer), file)
    if operations is not None and count_file is not None and args.process_index == kill_rank:
        with open(count_file, "w", encoding="utf-8") as file:
            json.dump(operations.seen, file)
    leave()


if __name__ == "__main__":
    main()
