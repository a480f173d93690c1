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
"""What the search for a checkpoint adds to the start of a training at which nothing is wrong.

    python benchmarks/bench_resume.py [--checkpoints 10] [--rounds 9] [--folder DIR]
    torchrun --nproc_per_node 2 benchmarks/bench_resume.py

Everything between `train(resume_from_checkpoint=True)` and the path that is loaded: claiming the run directory, looking
for leftovers, listing, the agreement of the ranks, and comparing the chosen checkpoint with its manifest. The digests
are left out (`resume_verify="size"`): what they cost is a matter of size, and `bench_verification.py` has it. The aim is
50 ms. The first round comes with the imports of the modules that only resuming needs.
"""

import argparse
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist

from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return {"loss": self.layer(x).sum()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", help="where to make the run directory; a temporary folder by default")
    options = parser.parse_args()
    rank = int(os.environ.get("RANK", 0))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        args = TrainingArguments(
            output_dir=os.path.join(folder, "out"),
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            max_steps=options.checkpoints,
            save_steps=1,
            resume_verify="size",
        )
        if dist.is_initialized():
            shared = [args.output_dir]
            dist.broadcast_object_list(shared)
            args.output_dir = shared[0]

        def trainer() -> Trainer:
            return Trainer(model=Model(), args=args, train_dataset=[{"x": torch.ones(8)}] * 64)

        trainer().train()
        seconds = []
        for _ in range(options.rounds):
            resuming = trainer()._safe_checkpoints
            if dist.is_initialized():
                dist.barrier()
            start = time.perf_counter()
            with resuming.training():
                path = resuming.choose_checkpoint(True, None)
                seconds.append(time.perf_counter() - start)
            if path is None or not path.endswith(f"checkpoint-{options.checkpoints}"):
                raise SystemExit(f"{path} should have been the newest one")
        if dist.is_initialized():
            dist.barrier()
    if rank == 0:
        print(
            f"{dist.get_world_size() if dist.is_initialized() else 1} process(es), {options.checkpoints} checkpoints: "
            f"first {seconds[0] * 1e3:.1f} ms, then {statistics.median(seconds[1:]) * 1e3:.1f} ms (median), at most "
            f"{max(seconds[1:]) * 1e3:.1f} ms"
        )


if __name__ == "__main__":
    main()
