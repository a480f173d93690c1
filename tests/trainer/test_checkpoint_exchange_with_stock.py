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
"""There and back: a checkpoint of this library is resumed by a release without it, and the other way round.

Whole trainings in processes of their own. The release is the one that the patch set is made for; where its sources are
not at hand, `STOCK_TRANSFORMERS` names a directory that holds a `transformers` without these modules.
"""

import json
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

import pytest
from parameterized import parameterized_class

from transformers.testing_utils import TestCasePlus, get_torch_dist_unique_port
from transformers.trainer_checkpoint import list_checkpoints
from transformers.trainer_checkpoint.inspection import explain
from transformers.trainer_checkpoint.layout import MANIFEST_NAME
from transformers.trainer_checkpoint.verification import GOOD, UNVERIFIED


SCRIPT = Path(__file__).parent / "scripts" / "tiny_training.py"
# A launch takes some 10 s on an idle machine (seconds).
PATIENCE = 300


def stock() -> str | None:
    """The directory with the release's `transformers`, or `None` where it is not known."""
    if "STOCK_TRANSFORMERS" in os.environ:
        return os.environ["STOCK_TRANSFORMERS"]
    try:
        from upstream import pinned_release
    except ImportError:
        return None
    return str(pinned_release().root)


@pytest.mark.slow
@unittest.skipUnless(stock(), "needs STOCK_TRANSFORMERS, a directory with a release's `transformers`")
@parameterized_class(
    [{"processes": 1}, {"processes": 2}], class_name_func=lambda c, n, p: f"{c.__name__}{p['processes']}"
)
class ExchangeTest(TestCasePlus):
    processes: int

    def setUp(self):
        super().setUp()
        self.folder = self.get_auto_remove_tmp_dir()
        self.expected = self.train("whole", steps=8)

    def train(self, name: str, *, steps: int, of: str | None = None, resume: str | None = None) -> list:
        """A training of `steps` steps, saved at every second, by this library or by the one in `of`. Its losses."""
        command = [sys.executable]
        if self.processes > 1:
            command += ["-m", "torch.distributed.run", "--nproc_per_node", str(self.processes)]
            command += ["--master_port", str(get_torch_dist_unique_port())]
        file = os.path.join(self.folder, f"{name}.losses")
        command += [str(SCRIPT), "--output_dir", self.path(name), "--losses", file, "--dropout", "0.1", "--size", "64"]
        command += f"--max_steps {steps} --lr_scheduler_type constant --save_steps 2 --logging_steps 1".split()
        command += "--per_device_train_batch_size 4 --learning_rate 1e-2 --seed 3 --use_cpu True".split()
        command += "--ddp_find_unused_parameters False --report_to none --disable_tqdm True".split()
        if resume is not None:
            command += ["--resume_from_checkpoint", resume]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        if of is not None:
            environment["PYTHONPATH"] = of
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", env=environment, timeout=PATIENCE
        )
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        return json.loads(Path(file).read_text(encoding="utf-8"))

    def path(self, *names: str) -> str:
        return os.path.join(self.folder, *names)

    def assert_sealed(self, run: str, sealed: dict[int, bool]) -> None:
        """The steps of the checkpoints in `run`, and whether each has a manifest."""
        found = {info.step: info.sealed for info in list_checkpoints(self.path(run), level="full")}
        self.assertEqual(found, sealed)
        for step, has_manifest in sealed.items():
            there = os.path.exists(self.path(run, f"checkpoint-{step}", MANIFEST_NAME))
            self.assertEqual(there, has_manifest, f"checkpoint-{step}")

    def test_from_stock_and_back(self):
        self.train("run", steps=4, of=stock())
        self.assert_sealed("run", {2: False, 4: False})
        losses = self.train("run", steps=6, resume="True")
        self.assertEqual(losses, self.expected[:6])
        self.assert_sealed("run", {2: False, 4: False, 6: True})
        losses = self.train("run", steps=8, resume="True", of=stock())
        self.assertEqual(losses, self.expected)
        self.assert_sealed("run", {2: False, 4: False, 6: True, 8: False})
        # What stock saved last is the newest for us too, and nothing speaks against any of them.
        self.assertEqual(explain(self.path("run")).chosen, self.path("run", "checkpoint-8"))
        verdicts = {info.step: info.verdict for info in list_checkpoints(self.path("run"), level="full")}
        self.assertEqual(verdicts, {2: UNVERIFIED, 4: UNVERIFIED, 6: GOOD, 8: UNVERIFIED})

    def test_stock_takes_a_path_and_does_not_see_leftovers(self):
        self.train("run", steps=6)
        self.assert_sealed("run", {2: True, 4: True, 6: True})
        # As a killed save and a killed rotation leave them.
        os.makedirs(self.path("run", "_staging"))
        os.rename(self.path("run", "checkpoint-6"), self.path("run", "_staging", "checkpoint-6"))
        os.makedirs(self.path("run", "_trash"))
        os.rename(self.path("run", "checkpoint-2"), self.path("run", "_trash", f"checkpoint-2.{'0' * 16}"))
        shutil.copytree(self.path("run"), self.path("copy"))
        self.assertEqual(self.train("run", steps=6, resume="True", of=stock()), self.expected[:6])
        path = self.path("copy", "checkpoint-4")
        self.assertEqual(self.train("copy", steps=6, resume=path, of=stock()), self.expected[:6])


if __name__ == "__main__":
    unittest.main()
