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
"""Starting the ranks of a training from a test, and being sure that none is left afterwards."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil


SCRIPTS = Path(__file__).parent
# Seconds for which processes that were told to end are waited for.
ENDING = 20


@dataclass
class Launch:
    """How a launch ended.

    Args:
        code (`int`):
            Exit status of the launcher.
        logs (`list[str]`):
            What each rank wrote to its standard output and error; of all attempts, where there were several.
        text (`str`):
            What the launcher itself wrote.
    """

    code: int
    logs: list[str]
    text: str


def free_port() -> int:
    """A port that nobody has at the moment."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **extra}


def torchrun(
    script: str,
    arguments: list[str],
    folder: Path,
    *,
    ranks: int = 2,
    restarts: int = 0,
    patience: float = 300,
    **extra: str,
) -> Launch:
    """Run `script` on `ranks` processes under torchrun.

    Args:
        script (`str`):
            Name of a script in this directory.
        arguments (`list[str]`):
            Its command line.
        folder (`Path`):
            Gets the logs of the ranks.
        ranks, restarts (`int`, *optional*, defaults to 2 and 0):
            Number of processes, and how often they are started again when one of them fails.
        patience (`float`, *optional*, defaults to 300):
            Seconds after which the launch is ended. It is below every timeout of a collective and above what a healthy
            launch takes on a slow machine.
        extra (`str`):
            Environment variables.

    Raises:
        `AssertionError`: it did not end by itself.
    """
    logs = folder / "logs"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    command += ["--max-restarts", str(restarts), "--log-dir", str(logs), "--redirects", "3", str(SCRIPTS / script)]
    code, text = run_bounded([*command, *arguments], environment(**extra), patience)
    return Launch(code, [read_logs(logs, rank) for rank in range(ranks)], text)


def read_logs(logs: Path, rank: int) -> str:
    return "".join(
        path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(logs.rglob("std*.log"))
        if path.parent.name == str(rank)
    )


def run_bounded(command: list[str], env: dict[str, str], patience: float) -> tuple[int, str]:
    """Exit status and output of `command`. Whatever it has started is gone afterwards, in whichever session it is."""
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
    )
    try:
        output = process.communicate(timeout=patience)[0]
    except subprocess.TimeoutExpired as error:
        end_with_descendants(process.pid)
        output = process.communicate(timeout=ENDING)[0]
        raise AssertionError(f"{command} did not end within {patience:g} s:\n{output[-6000:]}") from error
    finally:
        if process.poll() is None:
            end_with_descendants(process.pid)
    return process.returncode, output


def end_with_descendants(pid: int) -> None:
    """SIGKILL a process and all that it started, and see that none is left."""
    try:
        parent = psutil.Process(pid)
        processes = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    left = psutil.wait_procs(processes, timeout=ENDING)[1]
    assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE], left


def read_reports(folder: Path, ranks: int) -> list[dict]:
    """What each rank wrote with `rank_cases.report` and its like."""
    return [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]
