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
"""The real save protocol on real files, without a training and without torch: small enough to be stopped at each step.

Every file it writes is one that the structural checks understand. `content(tag)` differs from tag to tag, also in the
set of files, so that a mix of two saves can be told from either.
"""

import io
import json
import os
import zipfile

import numpy as np
from safetensors.numpy import save as safetensors_bytes

from transformers.trainer_checkpoint.layout import TEMPORARY_SUFFIX
from transformers.trainer_checkpoint.ranks import Alone, Ranks
from transformers.trainer_checkpoint.transaction import Published, RunDirectory, SaveTransaction


def torch_like(text: str) -> bytes:
    """A zip archive as `torch.save` writes one, as far as a check that never unpickles can see."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        # `ZipInfo` has a fixed date; a plain name would take today's.
        archive.writestr(zipfile.ZipInfo("archive/data.pkl"), text)
    return buffer.getvalue()


def content(tag: str, step: int, shards: int = 1) -> dict[str, bytes]:
    """Relative path to bytes of the checkpoint `tag`."""
    files = {
        "config.json": json.dumps({"tag": tag}).encode(),
        "optimizer.pt": torch_like(f"optimizer {tag}"),
        "scheduler.pt": torch_like(f"scheduler {tag}"),
        "rng_state.pth": torch_like(f"rng {tag}"),
        "trainer_state.json": json.dumps({"global_step": step, "tag": tag}).encode(),
    }
    weights = {f"w{i}": np.full((8,), i + len(tag), dtype=np.float32) for i in range(4)}
    if shards == 1:
        files["model.safetensors"] = safetensors_bytes(weights)
    else:
        names = {f"w{i}": f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i in range(4)}
        for name in set(names.values()):
            files[name] = safetensors_bytes({k: v for k, v in weights.items() if names[k] == name})
        files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": names}).encode()
    return files


def write_files(directory: str, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


def save(
    run_dir: str,
    step: int,
    files: dict[str, bytes],
    *,
    ranks: Ranks | None = None,
    durable: bool = True,
    in_place: str | None = None,
    run: RunDirectory | None = None,
) -> Published | None:
    """Save `files` as step `step` the way the Trainer does, and give the run directory up unless `run` is given."""
    own = run or RunDirectory(run_dir, ranks or Alone(), durable=durable)
    transaction = SaveTransaction(own, step, in_place=in_place)
    try:
        transaction.open()
        try:
            write_files(transaction.writing, files)
        except Exception as error:
            transaction.keep("writing", error)
        return transaction.commit()
    finally:
        if run is None:
            own.close()


def read_files(checkpoint: str) -> dict[str, bytes]:
    """What a checkpoint consists of, without our own manifest."""
    found = {}
    for parent, _, names in os.walk(checkpoint):
        for name in names:
            path = os.path.join(parent, name)
            if not name.startswith(("checkpoint-manifest", "checkpoint-files")) and not name.endswith(
                TEMPORARY_SUFFIX
            ):
                with open(path, "rb") as file:
                    found[os.path.relpath(path, checkpoint)] = file.read()
    return found
