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
"""The demo: a training is killed in the middle of a save and resumed, with the patch set and with the stock release.

    bash examples/demo/run.sh

Five launches of `train.py`, two processes each, and what is on disk in between. Everything that is shown is what the
programs printed; what is left out is in the log files. Exit code 0: everything it says is so.
"""

import argparse
import filecmp
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text


HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "utils"))

from upstream import pinned_release, read_pins  # noqa: E402


STEPS, EVERY, KILLED_AT = 24, 8, 16
ARGUMENTS = (
    f"--use_cpu --max_steps {STEPS} --save_steps {EVERY} --logging_steps 1 --per_device_train_batch_size 8 "
    "--learning_rate 3e-3 --seed 3 --ddp_find_unused_parameters False --report_to none --disable_tqdm True "
    "--log_level info"
).split()
# A launch takes some 10 s on two cores that have nothing else to do; this is for machines that have (seconds).
PATIENCE = 300

# What a reader wants to see of a log: what is saved and resumed from, the accident, and the error at the end.
SHOWN = re.compile(
    r"rank 0: SIGKILL|Saving checkpoint to|Checkpoint saved to|Resuming from|Passed over|Published|Removed what"
    # Not the connection that a survivor lost: that is no news after a kill.
    r"|(?!RuntimeError: .*Connection closed by peer)[A-Z][A-Za-z]*Error: "
)
# Stock says no more than this of a save.
SHOWN_OF_STOCK = re.compile(rf"Saving model checkpoint to|{SHOWN.pattern}")
STEP = re.compile(r"step +(\d+)  loss ([0-9.]+)$")
LONGEST = 104


@dataclass(frozen=True)
class Launch:
    """How a launch ended, and everything it printed."""

    code: int
    text: str

    @property
    def killed(self) -> bool:
        """Whether torchrun saw a process end by SIGKILL."""
        return self.code != 0 and "Signal 9 (SIGKILL)" in self.text


class ClaimError(Exception):
    """Something that the demo says is not so."""


class Demo:
    """What is shown, and whether it is what it should be.

    Args:
        console (`Console`):
            Where to show it.
    """

    def __init__(self, console: Console):
        self.console = console

    def title(self, text: str) -> None:
        self.console.print()
        self.console.rule(Text(text, style="bold"), align="left", style="blue")

    def say(self, text: str, style: str = "") -> None:
        # On a terminal lines are the terminal's to break; an image has a fixed width.
        self.console.print(Text(text, style=style), soft_wrap=not self.console.record)

    def check(self, holds: bool, text: str, style: str = "bold green") -> None:
        """Say whether a claim holds. Raises `ClaimError` for one that does not: what follows would make no sense."""
        self.say(f"{'yes' if holds else 'NO '}  {text}", style if holds else "bold red")
        if not holds:
            raise ClaimError(text)

    # ---- Running things ----

    def train(self, output_dir: str, *, stock: bool = False, kill: bool = False, resume: bool = False) -> Launch:
        """Launch `train.py` on two processes and show what matters of what it prints, while it prints it."""
        options = ["--output_dir", output_dir, *(["--resume_from_checkpoint", "True"] if resume else [])]
        self.say(f"$ torchrun --nproc_per_node 2 train.py {' '.join(options)} ...", "bold")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        if stock:
            environment["PYTHONPATH"] = str(pinned_release().root)
        if kill:
            environment["KILL_IN_SAVE_OF_STEP"] = str(KILLED_AT)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        process = subprocess.Popen(
            [*command, str(HERE / "train.py"), *options, *ARGUMENTS],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            start_new_session=True,
        )
        watchdog = threading.Timer(PATIENCE, os.killpg, (process.pid, signal.SIGKILL))
        watchdog.start()
        try:
            text = self._show(process.stdout, SHOWN_OF_STOCK if stock else SHOWN)
            code = process.wait(timeout=PATIENCE)
        finally:
            watchdog.cancel()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        with open(f"{output_dir}.log", "a", encoding="utf-8") as file:
            file.write(text)
        return Launch(code, text)

    def _show(self, lines: Iterable[str], shown: re.Pattern[str]) -> str:
        """Show those of `lines` that matter, each once: every rank prints its own traceback. Returns all of them."""
        everything = []
        steps: list[tuple[str, str]] = []
        seen: set[str] = set()

        def show_steps() -> None:
            if steps:
                (first, loss), (last, last_loss) = steps[0], steps[-1]
                self.say(f"  steps {first} to {last}: loss {loss} ... {last_loss}")
                steps.clear()

        for line in lines:
            everything.append(line)
            text = re.sub(r"^\[(?:transformers|rank\d)\]:? ", "", line.strip())
            step = STEP.match(text)
            if step:
                steps.append((step[1], step[2]))
            elif shown.match(text) and text not in seen:
                seen.add(text)
                show_steps()
                wrong = "Error" in text or "SIGKILL" in text
                cut = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
                self.say(f"  {cut}", "red" if wrong else "green" if text.startswith("Checkpoint saved") else "")
        show_steps()
        return "".join(everything)

    def explain(self, output_dir: str) -> None:
        """What the library's own command says of a run directory."""
        self.say(f"$ transformers checkpoints explain {output_dir}", "bold")
        command = [sys.executable, "-m", "transformers.cli.transformers", "checkpoints", "explain", output_dir]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE)
        for line in (done.stdout or done.stderr).splitlines():
            self.say(f"  {line}")

    def list(self, output_dir: str) -> None:
        self.say(f"$ ls {output_dir}", "bold")
        self.say(f"  {'  '.join(sorted(os.listdir(output_dir)))}")


def losses(output_dir: str) -> list[tuple[int, float]]:
    """Step and loss of every step, as the last checkpoint of a finished run holds them."""
    state = json.loads(Path(output_dir, f"checkpoint-{STEPS}", "trainer_state.json").read_text(encoding="utf-8"))
    return [(entry["step"], entry["loss"]) for entry in state["log_history"] if "loss" in entry]


def same_file(name: str, one: str, other: str) -> bool:
    paths = [Path(output_dir, f"checkpoint-{STEPS}", name) for output_dir in (one, other)]
    return filecmp.cmp(*paths, shallow=False)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a training in the middle of a save, and resume it.")
    parser.add_argument("--record", type=Path, metavar="FILE.svg", help="also write what was shown as an image")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "demo", help="where to work; default: build/demo"
    )
    options = parser.parse_args()
    record = options.record.resolve() if options.record else None
    # The width of the image, whatever terminal it is made in.
    demo = Demo(Console(record=record is not None, highlight=False, width=112 if record else None))
    for name in ("whole", "patched", "stock"):
        shutil.rmtree(options.folder / name, ignore_errors=True)
        (options.folder / f"{name}.log").unlink(missing_ok=True)
    options.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(options.folder)
    try:
        tell(demo)
    except ClaimError:
        demo.say(f"The whole logs are in {options.folder}.")
        return 1
    demo.say("")
    demo.say(f"Directories and whole logs: {os.path.relpath(os.getcwd(), ROOT)}", "dim")
    if record is not None:
        write_image(demo.console, record, f"make demo: transformers {read_pins().full_version}")
    return 0


def tell(demo: Demo) -> None:
    """The whole story, in the working directory. Raises `ClaimError`."""
    release = read_pins().version

    demo.title("1  A training that nobody disturbs")
    demo.say(f"A small Llama learns the Python language reference: {STEPS} steps, saved every {EVERY}, two processes.")
    demo.check(demo.train("whole").code == 0, "it finished")

    demo.title(f"2  The same, killed in the middle of the save of step {KILLED_AT}")
    demo.check(demo.train("patched", kill=True).killed, "a process was killed, and torchrun ended the other one")
    demo.list("patched")
    demo.explain("patched")

    demo.title("3  Resumed")
    resumed = demo.train("patched", resume=True)
    demo.check(resumed.code == 0 and f"(step {EVERY}, digests verified" in resumed.text, "it went on and finished")
    same = losses("patched") == losses("whole")
    demo.check(
        same, f"the losses of all {STEPS} steps are those of the training that nobody disturbed, digit for digit"
    )
    for name, what in (("model.safetensors", "weights"), ("optimizer.pt", "moments of the optimizer")):
        demo.check(same_file(name, "patched", "whole"), f"the final {what} are the same, byte for byte")
    demo.list("patched")

    demo.title(f"4  Stock transformers {release}, the same accident")
    sad = "bold yellow"
    demo.check(demo.train("stock", stock=True, kill=True).killed, "a process was killed at the same place", sad)
    demo.list("stock")
    resumed = demo.train("stock", stock=True, resume=True)
    torn = f"checkpoint-{KILLED_AT}/trainer_state.json"
    demo.check(resumed.code != 0 and torn in resumed.text, "it picks the torn checkpoint and does not resume", sad)
    demo.say("What the patched library says of that directory, which it did not write:")
    demo.explain("stock")


def write_image(console: Console, path: Path, title: str) -> None:
    """The recording as an SVG file that loads nothing from elsewhere: rich's own names a font server."""
    image = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", console.export_svg(title=title), flags=re.DOTALL)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(image, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
