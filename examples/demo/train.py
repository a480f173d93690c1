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
"""Trains a small Llama from scratch on the Python language reference, byte by byte, as any script with a Trainer would.

The text ships with Python (`pydoc_data.topics`), so nothing is downloaded. Any training argument can be given:

    torchrun --nproc_per_node 2 train.py --output_dir out --max_steps 24 --save_steps 8
    torchrun --nproc_per_node 2 train.py --output_dir out --max_steps 24 --save_steps 8 --resume_from_checkpoint True

With `KILL_IN_SAVE_OF_STEP=16` in the environment rank 0 kills itself in the middle of that save (`accident.py`).
"""

import os
from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
from torch.utils.data import Dataset

from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed
from transformers.trainer_callback import TrainerCallback


LENGTH = 128


@dataclass
class ScriptArguments:
    seed_of_weights: int = 7


class Reference(Dataset):
    """Pieces of `LENGTH` bytes, one after the other. A token is a byte."""

    def __init__(self):
        text = "\n".join(topics[name] for name in sorted(topics)).encode("utf-8")
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return len(self.tokens) // LENGTH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        piece = self.tokens[index * LENGTH : (index + 1) * LENGTH]
        return {"input_ids": piece, "labels": piece}


class OneLinePerStep(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step:2d}  loss {logs['loss']:.6f}", flush=True)


def main() -> None:
    options, args = HfArgumentParser((ScriptArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(options.seed_of_weights)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        attention_dropout=0.1,
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config), args=args, train_dataset=Reference(), callbacks=[OneLinePerStep()]
    )
    if "KILL_IN_SAVE_OF_STEP" in os.environ and args.process_index == 0:
        import accident

        accident.arrange(f"checkpoint-{os.environ['KILL_IN_SAVE_OF_STEP']}")
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint == "True" or args.resume_from_checkpoint)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
