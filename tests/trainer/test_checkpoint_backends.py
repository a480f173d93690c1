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
"""Saving and resuming with every backend on two processes: FSDP, DeepSpeed, adapters, and TRL's trainer.

One launch of `scripts/backend_cases.py` for each backend goes through its cases; these are the verdicts. On the CPU with
gloo everywhere, and with NCCL where two GPUs are present.
"""

import glob
import os
import shutil
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock
from parameterized import parameterized, parameterized_class

from transformers.testing_utils import TestCasePlus
from transformers.trainer_checkpoint.backends import blame, staying_in_step
from transformers.trainer_checkpoint.board import FOREIGN_FAILURE_EXIT_CODE
from transformers.trainer_checkpoint.layout import STAGING_DIR
from transformers.trainer_checkpoint.verification import verify


SCRIPTS = Path(__file__).parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from backend_cases import BACKENDS, LOST, cases, faults  # noqa: E402
from rank_cases import SPACE, digest_tree  # noqa: E402
from rank_launch import Launch, environment, read_reports, run_bounded, torchrun  # noqa: E402


# Seconds within which a launch ends. Patience for a late rank is 600 s and the timeout of a collective 1,800 s.
BOUND = 500
# Seconds for DeepSpeed's own operation to be compiled, once.
COMPILING = 600
EXTENSIONS = Path(__file__).parents[2] / "build" / "torch_extensions"
SAVED = ["checkpoint-2", "checkpoint-4", "checkpoint-6"]

# Files that only this backend has, of both ranks where each rank writes its own; `{step}` is the step.
OWN_FILES = {
    "ddp": {"model.safetensors", "optimizer.pt"},
    "fsdp2-full": {"pytorch_model_fsdp.bin", "optimizer.bin", "model.safetensors"},
    "fsdp2-sharded": {
        *(f"{folder}/{name}" for folder in ("pytorch_model_fsdp_0", "optimizer_0") for name in (".metadata",)),
        *(f"{folder}/__{r}_0.distcp" for folder in ("pytorch_model_fsdp_0", "optimizer_0") for r in (0, 1)),
    },
    "zero1": {
        "latest",
        "global_step{step}/mp_rank_00_model_states.pt",
        *(f"global_step{{step}}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)),
    },
    "zero3": {
        "latest",
        *(f"global_step{{step}}/zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in (0, 1)),
        *(f"global_step{{step}}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)),
    },
    "lora": {"adapter_model.safetensors", "adapter_config.json", "optimizer.pt"},
    "lora-named": {"adapter_model.safetensors", "other/adapter_model.safetensors", "optimizer.pt"},
}
OWN_FILES["fsdp1-full"], OWN_FILES["fsdp1-sharded"] = OWN_FILES["fsdp2-full"], OWN_FILES["fsdp2-sharded"]
OWN_FILES["zero2"], OWN_FILES["zero3-not-gathered"] = OWN_FILES["zero1"], OWN_FILES["zero3"]
OWN_FILES["lora-zero3"] = {*OWN_FILES["zero3"], "adapter_model.safetensors"}

# Files whose loss shows without a manifest too, because the others tell of them.
TELLING = {
    "sharded": {"__0_0.distcp", "__1_0.distcp", ".metadata"},
    "zero": {"latest", "_optim_states.pt", "_model_states.pt"},
}


def compile_deepspeed() -> None:
    """Compile what DeepSpeed compiles at its first use. A killed build leaves a lock on which all later ones wait."""
    EXTENSIONS.mkdir(parents=True, exist_ok=True)
    code = (
        "from deepspeed.accelerator import get_accelerator as g; g().create_op_builder('ShareMemCommBuilder').load()"
    )
    with FileLock(EXTENSIONS / ".building", timeout=2 * COMPILING):
        if not glob.glob(str(EXTENSIONS / "*" / "*.so")):
            for left in glob.glob(str(EXTENSIONS / "*" / "lock")):
                os.unlink(left)
            status, text = run_bounded([sys.executable, "-c", code], environment(**cpu_variables()), COMPILING)
            if status != 0:
                raise AssertionError(f"DeepSpeed could not be compiled, it needs g++ and ninja:\n{text[-3000:]}")


def cpu_variables() -> dict[str, str]:
    binaries = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(EXTENSIONS), "PATH": binaries}


def launch(folder: Path, backend: str, device: str, *more: str) -> Launch:
    variables = {}
    if device == "cpu":
        variables = cpu_variables()
        if BACKENDS[backend].stage is not None:
            compile_deepspeed()
    arguments = ["--folder", str(folder), "--backend", backend, "--device", device, *more]
    return torchrun("backend_cases.py", arguments, folder, patience=BOUND, **variables)


@pytest.fixture(scope="class")
def backend_launch(request, tmp_path_factory):
    """What both ranks saw, as `cls.seen`, and where, as `cls.folder`."""
    backend, device = request.cls.backend, request.cls.device
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip(f"NCCL needs 2 GPUs, one for each process; {torch.cuda.device_count()} are present")
    folder = tmp_path_factory.mktemp(f"{backend}-{device}")
    done = launch(folder, backend, device)
    if done.code != 0:
        raise AssertionError(f"It ended with {done.code}:\n{done.text[-3000:]}\n{done.logs[0][-6000:]}")
    request.cls.folder, request.cls.seen = folder, read_reports(folder, 2)
    yield
    shutil.rmtree(folder)


@pytest.mark.slow
@parameterized_class(("backend", "device"), [(backend, device) for device in ("cpu", "cuda") for backend in BACKENDS])
@pytest.mark.usefixtures("backend_launch")
class BackendTest(TestCasePlus):
    backend: str
    device: str
    folder: Path
    seen: list[dict]

    def of_both(self, name: str) -> list[dict]:
        return [seen[name] for seen in self.seen]

    def test_it_is_the_backend_that_was_asked_for(self):
        """On the CPU, accelerate turns FSDP2 into DDP without a word."""
        backend = BACKENDS[self.backend]
        kind = "FSDP" if backend.fsdp else "DEEPSPEED" if backend.stage else "MULTI"
        for seen in self.of_both("reference"):
            self.assertIn(kind, seen["type"])

    def test_every_ranks_files_are_in_every_checkpoint(self):
        for step, found in self.seen[0]["reference"]["checkpoints"].items():
            own = {name.format(step=step) for name in OWN_FILES[self.backend]}
            everywhere = {"rng_state_0.pth", "rng_state_1.pth", "trainer_state.json", "scheduler.pt"}
            self.assertLessEqual(own | everywhere, set(found["files"]))
            self.assertLessEqual({"model", "optimizer", "rng", "trainer"}, set(found["state"]))
            self.assertEqual((found["world_size"], found["problems"], found["damages"]), (2, [], []))
        self.assertEqual(sorted(os.listdir(self.folder / "reference")), SAVED)

    def test_it_resumes_bit_for_bit(self):
        # edit: keep-deepspeed-load-error
        reference = self.of_both("reference")
        for rank, seen in enumerate(self.of_both("resume")):
            self.assertNotIn("error", seen, seen.get("text"))
            self.assertEqual(seen["from"], str(self.folder / "resume" / "checkpoint-4"))
            self.assertEqual(seen["step"], 6)
            self.assertEqual(seen["losses"][:5], reference[rank]["losses"][:5])
            if self.backend != "fsdp1-sharded":
                self.assertEqual(seen["losses"], reference[rank]["losses"])
                self.assertEqual(seen["weights"], reference[rank]["weights"])

    def test_fsdp1_sharded_resumes_with_a_fresh_optimizer(self):
        """What accelerate 1.15 can: it loads no optimizer state there, without a word, and the weights go other ways.

        When this fails, accelerate has learned it, and the exception above can go.
        """
        if self.backend == "fsdp1-sharded" and self.device == "cpu":
            self.assertNotEqual(self.seen[0]["resume"]["weights"], self.seen[0]["reference"]["weights"])

    def test_one_file_less_and_it_is_passed_over(self):
        sealed = self.seen[0]["less"]["sealed"]
        self.assertEqual(sealed.pop(""), "checkpoint-6")
        self.assertGreater(len(sealed), 5)
        self.assertEqual(set(sealed.values()), {"checkpoint-4"}, sealed)

    def test_without_a_manifest_a_ranks_file_less_shows_by_the_others(self):
        bare = self.seen[0]["less"]["bare"]
        self.assertEqual(bare.pop(""), "checkpoint-6")
        telling = {end for kind, ends in TELLING.items() if kind in self.backend for end in ends}
        for name, newest in bare.items():
            if name == "trainer_state.json" or name.endswith(tuple(telling) or ("\0",)):
                self.assertEqual(newest, "checkpoint-4", name)

    def test_a_rank_that_fails_in_a_writer_fails_all_alike(self):
        # edit: keep-fsdp-model-error
        known = faults(self.backend, BACKENDS[self.backend])
        names = [name for name in cases(self.backend, BACKENDS[self.backend]) if name.startswith("fault-")]
        self.assertGreater(len(names), 0)
        reference = self.of_both("reference")
        for name in names:
            fault, writer = known[name.removeprefix("fault-")]
            with self.subTest(name):
                found = self.of_both(name)
                for rank, seen in enumerate(found):
                    self.assertNotIn("error", seen, seen.get("text"))
                    self.assertEqual([error["error"][0] for error in seen["errors"]], ["CheckpointSaveError"])
                    (error,) = seen["errors"]
                    self.assertEqual(error["text"], found[0]["errors"][0]["text"])
                    self.assertEqual(list(error["failures"]), [str(fault.rank)])
                    self.assertIn(f"rank {fault.rank}: {writer}", error["text"])
                    self.assertIn(SPACE, error["text"])
                    self.assertNotIn(STAGING_DIR, " ".join(error["chain"]))
                    self.assertEqual([line for line in seen["heard"] if STAGING_DIR in line], [])
                    # With `on_save_error="warn"` all went on, with the same weights, and the next save is good.
                    self.assertEqual((seen["step"], seen["weights"]), (6, reference[rank]["weights"]))
                    self.assertEqual((seen["left"], seen["problems"]), (["checkpoint-2", "checkpoint-6"], []))
                same = [file for file in found[0]["first"] if file.endswith((".safetensors", ".distcp", ".pth"))]
                before = digest_tree(str(self.folder / "reference" / "checkpoint-2"))
                self.assertGreater(len(same), 1)
                self.assertEqual({f: found[0]["first"][f] for f in same}, {f: before[f] for f in same})

    def test_a_ranks_file_that_disappears_fails_the_save(self):
        part = next((file for kind, file in LOST.items() if kind in self.backend), None)
        if part is None:
            self.assertEqual(self.backend, "ddp")  # it has a test class of its own
            return
        found = self.of_both("loss")
        self.assertEqual(len(found[0]["lost"]), 1, "no such file was written")
        for seen in found:
            self.assertEqual(seen.get("error", [None])[0], "CheckpointSaveError", seen)
            self.assertEqual(seen["text"], found[0]["text"])
            self.assertIn(found[0]["lost"][0], seen["text"])
            self.assertEqual([name for name in seen["left"] if name != STAGING_DIR], ["checkpoint-2"])

    def test_no_staging_path_reaches_a_log(self):
        for name in ("reference", "resume"):
            for seen in self.of_both(name):
                self.assertEqual([line for line in seen["heard"] if STAGING_DIR in line], [], name)


@pytest.mark.slow
class ForeignCollectiveTest(TestCasePlus):
    """A rank fails while the others are inside a collective of another library, where nothing can wake them."""

    @parameterized.expand(
        [
            ("fsdp2-full", "gather", "saving: ValueError"),
            ("fsdp2-sharded", "optimizer", "save_fsdp_model: ValueError"),
            ("zero2", "engine", "_save_optimizer_and_scheduler: ValueError"),
            ("zero3", "override", "saving: ValueError"),
        ]
    )
    def test_the_end_is_bounded_and_the_cause_is_in_every_log(self, backend, where, writer):
        folder = Path(self.get_auto_remove_tmp_dir())
        done = launch(folder, backend, "cpu", "--foreign", where)
        self.assertNotEqual(done.code, 0)
        self.assertIn(f"exitcode  : {FOREIGN_FAILURE_EXIT_CODE} ", done.text)
        for rank, log in enumerate(done.logs):
            self.assertIn(f"{writer}: a state that cannot be told", log, f"rank {rank}")
            self.assertNotIn('Traceback (most recent call last):\n  File "<string>"', log)
        self.assertIn("Rank 1 failed while the other ranks were waiting for it inside a collective", done.logs[1])
        self.assertIn("Rank 1 has failed while a checkpoint is being saved", done.logs[0])
        run = folder / "foreign"
        self.assertEqual([name for name in sorted(os.listdir(run)) if name != STAGING_DIR], ["checkpoint-2"])
        self.assertEqual(verify(str(run / "checkpoint-2"), level="full").problems, ())


class BlameTest(unittest.TestCase):
    """Which errors leave the others waiting, told from where they come from."""

    def trainer(self, **kind) -> SimpleNamespace:
        kinds = {"is_fsdp_enabled": False, "is_deepspeed_enabled": False} | kind
        return SimpleNamespace(args=SimpleNamespace(process_index=1), **kinds)

    def raised_by(self, module: str, code: str) -> BaseException:
        """The error that `code` raises as a function of `module`."""
        namespace = {"__name__": module, "torch": torch}
        exec(f"def work():\n    {code}", namespace)
        try:
            namespace["work"]()
        except Exception as error:  # `assertRaises` would take the traceback away
            return error
        self.fail("nothing was raised")

    @parameterized.expand(
        [
            ("accelerates_file", "accelerate.utils.fsdp_utils", "torch.save({}, '/')", "save_fsdp_model", False),
            (
                "the_trainers_file",
                "transformers.trainer",
                "torch.save({}, '/')",
                "_save_optimizer_and_scheduler",
                False,
            ),
            ("a_users_file", "users_override", "torch.save({}, '/')", "_save_optimizer_and_scheduler", True),
            ("accelerates_gathering", "accelerate.utils.fsdp_utils", "1 / 0", "save_fsdp_model", True),
            ("an_override", "users_override", "1 / 0", "saving", True),
            ("a_writer_without_collectives", "users_override", "1 / 0", "_save_rng_state", False),
        ]
    )
    def test_fsdp(self, _, module, code, writer, waiting):
        error = self.raised_by(module, code)
        found = blame(self.trainer(is_fsdp_enabled=True), writer, error)
        self.assertEqual((found.leaves_others_waiting, found.cause), (waiting, error))
        # With plain DDP nobody waits for anybody while a checkpoint is written.
        self.assertFalse(blame(self.trainer(), writer, error).leaves_others_waiting)

    def test_a_model_that_was_sharded_when_it_was_loaded_is_gathered_in_save(self):
        trainer = self.trainer(is_distributed_loading_by_transformers=True)
        self.assertTrue(blame(trainer, "_save", ValueError()).leaves_others_waiting)
        self.assertFalse(blame(self.trainer(is_fsdp_enabled=True), "_save", ValueError()).leaves_others_waiting)

    def test_an_error_that_torch_has_told_every_rank(self):
        from torch.distributed.checkpoint.api import CheckpointException

        own, others = OSError(28, SPACE), OSError(5, "Input/output error")
        found = blame(self.trainer(is_fsdp_enabled=True), "saving", CheckpointException("", {1: (own, None)}))
        self.assertEqual((found.cause, found.leaves_others_waiting, found.told_by_another), (own, False, False))
        found = blame(self.trainer(is_fsdp_enabled=True), "saving", CheckpointException("", {0: (others, None)}))
        self.assertEqual((found.cause, found.leaves_others_waiting, found.told_by_another), (others, False, True))


class DeepSpeedEngineTest(unittest.TestCase):
    """What is put around DeepSpeed's engine for the length of a save, with a stand-in for it."""

    def engine(self, decoupled: bool, done: list[str]) -> SimpleNamespace:
        writer = SimpleNamespace(
            is_decoupled=lambda: decoupled,
            save=lambda state_dict, path: done.append(f"save {path}"),
            commit=lambda info: done.append("commit"),
        )
        engine = SimpleNamespace(checkpoint_engine=writer)

        def save_checkpoint(path: str) -> None:
            engine.checkpoint_engine.save({}, os.path.join(path, "zero.pt"))
            if not decoupled:
                engine.checkpoint_engine.commit(None)

        engine.save_checkpoint = save_checkpoint
        engine._commit_decoupled_checkpoint = lambda: done.append("wait for its process")
        return engine

    def staying(self, engine: SimpleNamespace, alone: bool = False):
        self.kept, self.accounts = [], []
        transaction = SimpleNamespace(
            ranks=SimpleNamespace(alone=alone),
            writing="/out/_staging/checkpoint-4",
            keep=lambda what, error: self.kept.append((what, error)),
            account_for=self.accounts.append,
        )
        return staying_in_step(SimpleNamespace(is_deepspeed_enabled=True, deepspeed=engine), transaction)

    def test_a_process_that_writes_for_the_engine_is_waited_for(self):
        """Otherwise it writes on into a directory that has been renamed."""
        for decoupled, expected in ((True, "wait for its process"), (False, "commit")):
            done: list[str] = []
            engine = self.engine(decoupled, done)
            before = engine.checkpoint_engine
            with self.staying(engine):
                engine.save_checkpoint("/out/_staging/checkpoint-4")
            self.assertEqual(done, ["save /out/_staging/checkpoint-4/zero.pt", expected])
            self.assertEqual(self.accounts, ["zero.pt"])
            self.assertEqual(self.kept, [])
            self.assertIs(engine.checkpoint_engine, before)

    def test_an_error_is_kept_and_alone_it_is_raised(self):
        error = OSError(28, SPACE)

        def broken(state_dict, path):
            raise error

        for alone in (False, True):
            engine = self.engine(False, [])
            engine.checkpoint_engine.save = broken
            with self.staying(engine, alone):
                if alone:
                    with self.assertRaises(OSError):
                        engine.save_checkpoint("/out/_staging/checkpoint-4")
                else:
                    engine.save_checkpoint("/out/_staging/checkpoint-4")
            self.assertEqual(self.kept, [] if alone else [("DeepSpeed's zero.pt", error)])


@pytest.mark.slow
class SupervisedFineTuningTest(TestCasePlus):
    """TRL's SFTTrainer overrides `_save_checkpoint`, for the model card."""

    def trainer(self, out: str, **arguments):
        from datasets import Dataset
        from tiny_training import tiny_model
        from trl import SFTConfig, SFTTrainer

        rows = torch.randint(0, 32, (24, 8), generator=torch.Generator().manual_seed(1)).tolist()
        defaults = {"max_steps": 6, "save_steps": 2, "logging_steps": 1, "per_device_train_batch_size": 4}
        args = SFTConfig(
            output_dir=out, use_cpu=True, report_to="none", seed=3, learning_rate=1e-2, bf16=False, max_length=8,
            disable_tqdm=True, **{**defaults, **arguments}
        )  # fmt: skip
        return SFTTrainer(
            model=tiny_model(0.2),
            args=args,
            train_dataset=Dataset.from_dict({"input_ids": rows}),
            processing_class=tiny_tokenizer(),
        )

    def test_it_saves_and_resumes(self):
        from tiny_training import losses

        out = self.get_auto_remove_tmp_dir()
        reference = self.trainer(out)
        self.assertNotEqual(type(reference)._save_checkpoint.__qualname__, "Trainer._save_checkpoint")
        reference.train()
        self.assertEqual(sorted(name for name in os.listdir(out) if name.startswith("checkpoint")), SAVED)
        self.assertFalse(os.path.exists(os.path.join(out, STAGING_DIR)))
        for name in SAVED:
            self.assertEqual(verify(os.path.join(out, name), level="full").problems, ())
        self.assertIn("README.md", os.listdir(out), "what the override itself writes")
        shutil.rmtree(os.path.join(out, "checkpoint-6"))
        again = self.trainer(out)
        again.train(resume_from_checkpoint=True)
        self.assertEqual(losses(again), losses(reference))


def tiny_tokenizer():
    """A tokenizer of 32 words that needs no download."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(30)} | {"<eos>": 30, "<unk>": 31}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>", unk_token="<unk>")
