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
"""Checkpoints without a manifest: recognised in every layout, and disqualified by positive evidence only."""

import io
import os
import pickle
import unittest
import zipfile
from pathlib import Path

import torch
from parameterized import parameterized
from safetensors.torch import save_file

from transformers.testing_utils import TestCasePlus
from transformers.trainer_checkpoint.discovery import check_unsealed, find_checkpoints, look_at
from transformers.trainer_checkpoint.disk import walk_files
from transformers.trainer_checkpoint.layout import SENTINEL_NAME
from transformers.trainer_checkpoint.structure import (
    check_structure,
    expected_rank_files,
    state_inside,
    told_world_size,
)
from transformers.trainer_checkpoint.verification import DAMAGED, UNVERIFIED, verify

from .checkpoint_layouts import DAMAGES, LAYOUTS, TENSORS, copy, make, write_json, write_text


def evidence(path: Path) -> list[str]:
    return [str(problem) for problem in check_unsealed(str(path))]


# What each damage to each file gives away without a manifest, told from the name of the file and the damage. `None`:
# nothing, because the file is not needed, or because only a digest could tell. Otherwise a part of the text.
def expected(layout: str, name: str, damage: str) -> str | None:
    base = os.path.basename(name)
    if damage == "missing":
        if (
            base == "trainer_state.json"
            or "-of-0000" in base
            or base.endswith((".index.json", ".metadata", ".distcp"))
        ):
            return "is missing"
        if layout.startswith(("zero", "xla")) and base.startswith(
            ("rng_state", "rank", "bf16_zero", "zero_pp", "latest")
        ):
            return "is missing"
        return "none of the model" if base == "mp_rank_00_model_states.pt" else None
    if damage == "empty":
        return None if base.endswith((".md", ".py")) else "is empty"
    if base.endswith((".md", ".py")):
        return None
    if damage == "truncated":
        if base == "pytorch_model.bin" and layout == "older torch format":
            return None
        if base == "latest":
            return "missing or empty"
        return "is not JSON" if base.endswith(".json") else "is cut off" if not base.endswith("tensors") else "bytes"
    if damage == "all zero":
        return ""
    return None


class LayoutTest(TestCasePlus):
    @parameterized.expand(LAYOUTS)
    def test_a_whole_checkpoint_shows_no_evidence_and_its_state_is_recognised(self, layout):
        path = make(Path(self.get_auto_remove_tmp_dir()) / "checkpoint-20", 20, layout)
        self.assertEqual(evidence(path), [])
        self.assertEqual(state_inside(path), LAYOUTS[layout][1])
        self.assertEqual(state_inside(name for name, _ in walk_files(path)), LAYOUTS[layout][1])
        found = look_at(path)
        self.assertTrue(found.complete and found.resumable)
        self.assertEqual(verify(path).verdict, UNVERIFIED)

    @parameterized.expand(LAYOUTS)
    def test_each_damage_to_each_file_is_seen_as_far_as_it_can_be(self, layout):
        root = Path(self.get_auto_remove_tmp_dir())
        whole = make(root / "whole", 20, layout)
        for name, _ in walk_files(whole):
            for damage, apply in DAMAGES.items():
                wanted = expected(layout, name, damage)
                with self.subTest(file=name, damage=damage):
                    path = copy(whole, root / name.replace("/", "-") / damage / "checkpoint-20")
                    apply(path / name)
                    seen = "; ".join(evidence(path))
                    if wanted is not None:
                        self.assertIn(wanted, seen)
                        self.assertTrue(seen)
                        self.assertFalse(look_at(path).complete)
                    elif damage in ("missing", "empty", "truncated"):
                        self.assertEqual(seen, "")
                    if seen:
                        self.assertEqual(verify(path).verdict, DAMAGED)

    @parameterized.expand(["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin", "pytorch_model.bin"])
    def test_a_full_verification_finds_a_zeroed_block_by_torchs_own_checksums(self, name):
        path = make(Path(self.get_auto_remove_tmp_dir()) / "checkpoint-20", 20, "single bin")
        DAMAGES["zeroed block"](path / name)
        self.assertEqual([problem.file for problem in verify(path).problems], [name])
        self.assertEqual(verify(path, "size").problems, ())

    def test_a_file_written_without_checksums_is_not_called_damaged(self):
        path = make(Path(self.get_auto_remove_tmp_dir()) / "checkpoint-20", 20)
        torch.serialization.set_crc32_options(False)
        try:
            torch.save({"state": TENSORS}, path / "optimizer.pt")
        finally:
            torch.serialization.set_crc32_options(True)
        self.assertEqual(verify(path).problems, ())


class EvidenceTest(TestCasePlus):
    def setUp(self):
        super().setUp()
        self.path = make(Path(self.get_auto_remove_tmp_dir()) / "checkpoint-20", 20)

    def remake(self, layout: str) -> None:
        self.path = make(self.path.parent / layout / "checkpoint-20", 20, layout)

    def test_the_sentinel(self):
        write_text(self.path / SENTINEL_NAME, "")
        self.assertEqual(evidence(self.path), [f"{SENTINEL_NAME} is there: the save was interrupted"])
        # A checkpoint that is being sealed in place has it.
        self.assertEqual(check_structure(self.path), [])

    @parameterized.expand(
        ["notes.pt", "README.md", ".gitkeep", "events.log", "data.bin", "chat_template.jinja", "notes.json"]
    )
    def test_a_file_that_may_be_empty(self, name):
        (self.path / name).write_bytes(b"")
        self.assertEqual(evidence(self.path), [])

    @parameterized.expand(
        ["merges.txt", "vocab.json", "adapter_model.safetensors", "rng_state.pth", "latest", "generation_config.json"]
    )
    def test_a_file_that_may_not_be_empty(self, name):
        (self.path / name).write_bytes(b"")
        self.assertEqual(evidence(self.path), [f"{name} is empty"])

    def test_an_unknown_layout_with_a_state_file_is_complete(self):
        path = self.path.parent / "other"
        path.mkdir()
        write_json(path / "trainer_state.json", {"global_step": 20})
        (path / "weights.npz").write_bytes(b"\0\1\2")
        (path / "stuff.bin").write_bytes(bytes(100))
        (path / "sub").mkdir()
        (path / "sub" / "anything").write_bytes(b"")
        self.assertEqual(evidence(path), [])

    @parameterized.expand([("list", "[]"), ("text", '"x"'), ("no number", '{"global_step": "x"}'), ("torn", '{"glo')])
    def test_a_trainer_state_that_is_none(self, _, text):
        write_text(self.path / "trainer_state.json", text)
        self.assertTrue(evidence(self.path)[0].startswith("trainer_state.json "))

    def test_an_index_that_names_a_shard_outside(self):
        self.remake("sharded safetensors")
        for shard in ("../model.safetensors", "/etc/passwd", "..\\x", ""):
            write_json(self.path / "model.safetensors.index.json", {"weight_map": {"a": shard}})
            self.assertIn("not a plain path inside the checkpoint", evidence(self.path)[0])

    def test_an_index_without_a_map(self):
        self.remake("sharded safetensors")
        write_json(self.path / "model.safetensors.index.json", {"metadata": {}})
        self.assertIn("has no `weight_map`", evidence(self.path)[0])

    def test_shards_of_an_older_layout_beside_a_whole_file_are_no_evidence(self):
        save_file(TENSORS, self.path / "model-00001-of-00002.safetensors")
        self.assertEqual(evidence(self.path), [])

    @parameterized.expand(
        [
            ("too long a header", (1 << 40).to_bytes(8, "little") + b"{}"),
            ("negative", b"\xff" * 40),
            ("not JSON", (4).to_bytes(8, "little") + b"abcd"),
            ("a list", (2).to_bytes(8, "little") + b"[]"),
            ("no offsets", (9).to_bytes(8, "little") + b'{"a": {}}'),
            ("short", b"\x01\x00"),
            ("deep", (200_000).to_bytes(8, "little") + b"[" * 200_000),
        ]
    )
    def test_a_header_that_is_none(self, _, data):
        (self.path / "model.safetensors").write_bytes(data)
        self.assertTrue(evidence(self.path)[0].startswith("model.safetensors has "))

    def test_a_safetensors_file_that_is_too_long(self):
        with open(self.path / "model.safetensors", "ab") as file:
            file.write(b"\0")
        self.assertIn("and its header says", evidence(self.path)[0])

    def test_a_torch_file_that_lost_bytes_at_its_start(self):
        data = (self.path / "optimizer.pt").read_bytes()
        # zipfile alone would forgive it: it looks for the directory from the end.
        (self.path / "optimizer.pt").write_bytes(data[:200] + data[264:])
        self.assertTrue(zipfile.is_zipfile(self.path / "optimizer.pt"))
        self.assertIn("optimizer.pt is damaged", evidence(self.path)[0])

    def test_nothing_is_unpickled(self):
        class Bomb:
            def __reduce__(self):
                return (os.mkdir, (str(trap),))

        trap = self.path.parent / "executed"
        self.remake("zero 2")
        data = pickle.dumps(Bomb(), protocol=2) + b"X\x0f\0\0\0partition_countq\x00M\x02\0."
        (self.path / "dcp").mkdir()
        (self.path / "dcp" / ".metadata").write_bytes(data)
        (self.path / "training_args.bin").write_bytes(data)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("archive/data.pkl", data)
        states = self.path / "global_step20" / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
        states.write_bytes(buffer.getvalue())
        check_structure(self.path)
        verify(self.path)
        told_world_size(self.path)
        self.assertFalse(trap.exists())

    def test_dcp_that_names_a_file_that_is_empty(self):
        self.remake("fsdp sharded")
        (self.path / "optimizer_0" / "__0_0.distcp").write_bytes(b"")
        self.assertEqual(
            evidence(self.path), ["optimizer_0/__0_0.distcp is empty, and optimizer_0/.metadata names it"]
        )

    def test_dcp_of_a_rank_that_had_nothing_to_write(self):
        self.remake("fsdp sharded")
        (self.path / "optimizer_0" / "__1_0.distcp").write_bytes(b"")
        self.assertEqual(evidence(self.path), [])

    def test_deepspeed_latest_without_its_folder(self):
        self.remake("zero 2")
        write_text(self.path / "latest", "global_step40")
        self.assertEqual(evidence(self.path), ["global_step40 is missing or empty, and latest names it"])

    def test_deepspeed_latest_that_leads_outside(self):
        self.remake("zero 2")
        write_text(self.path / "latest", "../other")
        self.assertIn("not a plain path inside the checkpoint", evidence(self.path)[0])

    def test_deepspeed_that_says_itself_how_many_ranks_there_were(self):
        self.remake("zero 3")
        for name, _ in list(walk_files(self.path)):
            if "rank_1" in name or "rng_state" in name:
                (self.path / name).unlink()
        seen = evidence(self.path)
        self.assertEqual(
            seen,
            [
                "global_step20/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt is missing",
                "global_step20/zero_pp_rank_1_mp_rank_00_model_states.pt is missing",
            ],
        )

    def test_deepspeed_that_shards_within_a_part_of_the_ranks(self):
        self.remake("zero 3")
        for rank in (2, 3):
            torch.save({}, self.path / f"rng_state_{rank}.pth")
        self.assertEqual(told_world_size(self.path), 4)
        self.assertEqual(evidence(self.path), [])

    def test_a_gap_among_the_ranks(self):
        self.remake("two ranks")
        (self.path / "rng_state_1.pth").rename(self.path / "rng_state_2.pth")
        self.assertEqual(evidence(self.path), ["rng_state_1.pth is missing"])
        self.assertEqual(check_structure(self.path), ["rng_state_1.pth is missing"])

    def test_the_disk_of_a_later_node_holds_later_ranks_only(self):
        self.remake("two ranks")
        for rank in (0, 1):
            (self.path / f"rng_state_{rank}.pth").rename(self.path / f"rng_state_{rank + 8}.pth")
        self.assertIsNone(told_world_size(self.path))
        self.assertEqual(evidence(self.path), [])

    def test_a_number_of_ranks_out_of_this_world_is_not_counted_up_to(self):
        self.remake("two ranks")
        (self.path / "rng_state_99999999999999999999.pth").write_bytes(b"\x80\x02.")
        self.assertEqual(evidence(self.path), [])

    def test_links(self):
        outside = self.path.parent / "outside.bin"
        outside.write_bytes(b"\x80\x02.")
        os.symlink(outside, self.path / "inside.bin")
        os.symlink("nowhere", self.path / "dangling.bin")
        os.symlink("optimizer.pt", self.path / "same.pt")
        self.assertEqual(
            evidence(self.path),
            [
                "dangling.bin is a link that leads nowhere (No such file or directory)",
                "inside.bin is a link that leads out of the checkpoint, which is refused",
            ],
        )

    def test_the_links_of_the_hubs_cache_may_be_followed(self):
        cache = self.path.parent / "models--a--b"
        path = copy(self.path, cache / "snapshots" / "0123" / "checkpoint-20")
        (cache / "blobs").mkdir()
        for name in ("model.safetensors", "trainer_state.json"):
            (path / name).rename(cache / "blobs" / name)
            os.symlink(f"../../../blobs/{name}", path / name)
        self.assertEqual(evidence(path), [])
        DAMAGES["truncated"](cache / "blobs" / "model.safetensors")
        self.assertTrue(evidence(path)[0].startswith("model.safetensors has "))

    def test_a_directory_that_is_not_there(self):
        with self.assertRaises(FileNotFoundError):
            check_structure(self.path / "no")
        with self.assertRaises(NotADirectoryError):
            check_structure(self.path / "config.json")

    def test_several_at_once_are_all_named(self):
        DAMAGES["truncated"](self.path / "model.safetensors")
        DAMAGES["empty"](self.path / "optimizer.pt")
        seen = evidence(self.path)
        self.assertEqual([text.split()[0] for text in seen], ["model.safetensors", "optimizer.pt"])

    def test_thousands_of_files(self):
        (self.path / "many").mkdir()
        for number in range(3000):
            (self.path / "many" / f"{number}.txt").write_bytes(b"")
        self.assertEqual(evidence(self.path), [])

    def test_looking_changes_nothing(self):
        self.remake("zero 2")
        before = [(name, info.st_size, info.st_mtime_ns) for name, info in walk_files(self.path)]
        find_checkpoints(self.path.parent, check="all")
        verify(self.path)
        self.assertEqual([(name, info.st_size, info.st_mtime_ns) for name, info in walk_files(self.path)], before)


class RankFilesTest(TestCasePlus):
    @parameterized.expand(
        [
            ("alone", ["rng_state.pth"], 1, []),
            ("no state at all", ["model.safetensors"], 4, []),
            ("all there", ["rng_state_0.pth", "rng_state_1.pth"], 2, []),
            ("the last is missing", ["rng_state_0.pth"], 2, ["rng_state_1.pth"]),
            ("the first is missing", ["rng_state_1.pth"], 2, ["rng_state_0.pth"]),
            ("xla", ["rank0-of-2-optimizer.pt"], 2, ["rank1-of-2-optimizer.pt"]),
            (
                "zero",
                ["global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt"],
                2,
                ["global_step5/zero_pp_rank_1_mp_rank_00_optim_states.pt"],
            ),
            (
                "zero with two model-parallel ranks",
                [f"global_step5/zero_pp_rank_0_mp_rank_0{mp}_optim_states.pt" for mp in (0, 1)],
                4,
                [f"global_step5/zero_pp_rank_1_mp_rank_0{mp}_optim_states.pt" for mp in (0, 1)],
            ),
        ]
    )
    def test_what_is_missing(self, _, names, world_size, missing):
        self.assertEqual(expected_rank_files(names, world_size), missing)

    @parameterized.expand([("two ranks", 2), ("xla", 2), ("zero 2", 2), ("zero 3", 2), ("single bin", None)])
    def test_how_many_ranks_there_were(self, layout, ranks):
        path = make(Path(self.get_auto_remove_tmp_dir()) / "checkpoint-20", 20, layout)
        self.assertEqual(told_world_size(path), ranks)
        self.assertEqual(check_structure(path, world_size=ranks), [])

    def test_the_number_in_zeros_own_files_counts_for_more_than_the_number_of_ranks(self):
        path = make(Path(self.get_auto_remove_tmp_dir()) / "checkpoint-20", 20, "zero 3")
        self.assertEqual(expected_rank_files(path, 4), ["rng_state_2.pth", "rng_state_3.pth"])


if __name__ == "__main__":
    unittest.main()
