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
"""A training that loses a rank in the middle of a save and is started again by the elastic agent. Under torchrun with
one restart:

    rank_restart.py --folder F

On disk afterwards: `F/out`, the run directory, and `F/rank<r>.json` of the second attempt, with a reference run beside.
"""

import argparse
import faulthandler
import json
import os
import signal
import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).parent))

from rank_cases import FAILS_AT, PATIENCE, Now, seen_of  # noqa: E402
from rank_losses import POINTS  # noqa: E402
from tiny_training import leave, tiny_trainer  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    if attempt == 0 and rank == 1:
        POINTS["between-the-votes"](lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    trainer = tiny_trainer(str(folder / "out"), dropout=0.2)
    trainer.add_callback(Now())
    trainer.train(resume_from_checkpoint=True if attempt else None)
    assert attempt == 1, f"rank 1 was not killed at step {FAILS_AT}"
    reference = tiny_trainer(str(folder / "reference"), dropout=0.2)
    reference.train()
    found = {
        **seen_of(trainer),
        "attempt": attempt,
        "from": trainer._safe_checkpoints.resumed_from,
        "reference": seen_of(reference),
    }
    with open(folder / f"rank{rank}.json", "w", encoding="utf-8") as file:
        json.dump(found, file)
    leave()


if __name__ == "__main__":
    main()
