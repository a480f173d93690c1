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
"""Which checkpoint is the newest, which can be trusted, and what is said of the others."""

import itertools
import os
import random
import shutil
import sys
import unittest
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parameterized import parameterized

from transformers.testing_utils import CaptureLogger, TestCasePlus
from transformers.trainer_checkpoint import discovery
from transformers.trainer_checkpoint.discovery import (
    Found,
    find_checkpoints,
    in_order,
    newest_complete_checkpoint,
    sorted_checkpoints,
)
from transformers.trainer_checkpoint.disk import retire
from transformers.trainer_checkpoint.layout import KEEP_NAME, MANIFEST_NAME, SENTINEL_NAME
from transformers.trainer_checkpoint.manifest import Head, ListRecord, Part, read_head
from transformers.trainer_utils import get_last_checkpoint, sort_checkpoints
from transformers.utils import logging

from .checkpoint_layouts import (
    DAMAGES,
    copy,
    make_sealed,
    make_stock,
    seal,
    write_json,
    write_text,
)


def meanwhile(
    module: ModuleType, name: str, act: Callable[[], object], *, after: bool = False
) -> AbstractContextManager[object]:
    """Before the function `name` of `module` is called for the first time, or after that, `act` happens once."""
    real, acts = getattr(module, name), [act]

    def watched(*args, **kwargs):
        if acts and not after:
            acts.pop()()
        result = real(*args, **kwargs)
        if acts:
            acts.pop()()
        return result

    return mock.patch.object(module, name, watched)


def rotate(run_dir: Path, old: int, new: int | None = None, sequence: int = 9) -> None:
    """What a training does beside a reader: publish a newer checkpoint, and take an old one out of use."""
    if new is not None:
        make_sealed(run_dir, new, sequence)
    retire(run_dir, run_dir / f"checkpoint-{old}", "0a" * 8, durable=False)


def seal_again(path: Path) -> None:
    head = read_head(path)
    seal(path, head.sequence, step=head.step, nonce=head.nonce, sealing=head.sealing + 1)


class RunDirectoryTestCase(TestCasePlus):
    def setUp(self):
        super().setUp()
        self.out = Path(self.get_auto_remove_tmp_dir())

    def path(self, step: int) -> str:
        return str(self.out / f"checkpoint-{step}")

    def names(self, **kwargs) -> list[str]:
        return [found.name for found in find_checkpoints(self.out, **kwargs)]

    def log_of_the_search(self) -> tuple[str | None, str]:
        with CaptureLogger(logging.get_logger("transformers.trainer_checkpoint.discovery")) as log:
            newest = get_last_checkpoint(self.out)
        return newest, log.out


# ---- The order ----


class OrderTest(RunDirectoryTestCase):
    # edit: get-last-checkpoint, sort-checkpoints
    def test_sequence_numbers_decide_and_not_steps_or_times(self):
        make_sealed(self.out, 300, 1)
        make_sealed(self.out, 20, 2)
        os.utime(self.path(300), (2_000_000_000, 2_000_000_000))
        self.assertEqual(self.names(), ["checkpoint-300", "checkpoint-20"])
        self.assertEqual(get_last_checkpoint(self.out), self.path(20))
        for use_mtime in (False, True):
            self.assertEqual(sort_checkpoints(str(self.out), use_mtime=use_mtime), [self.path(300), self.path(20)])

    def test_without_manifests_steps_decide(self):
        for step in (100, 20, 3):
            make_stock(self.out, step)
        os.utime(self.path(3), (2_000_000_000, 2_000_000_000))
        self.assertEqual(self.names(), ["checkpoint-3", "checkpoint-20", "checkpoint-100"])
        self.assertEqual(get_last_checkpoint(self.out), self.path(100))

    def test_one_without_a_manifest_is_older_than_a_sealed_one_that_saw_it(self):
        make_stock(self.out, 700)
        make_sealed(self.out, 10, 1, saw=("checkpoint-700",))
        self.assertEqual(self.names(), ["checkpoint-700", "checkpoint-10"])

    def test_one_without_a_manifest_is_newer_than_a_sealed_one_that_did_not_see_it(self):
        make_sealed(self.out, 700, 1)
        make_stock(self.out, 10)
        self.assertEqual(self.names(), ["checkpoint-700", "checkpoint-10"])

    def test_one_between_two_sealed_ones(self):
        make_sealed(self.out, 10, 1)
        make_stock(self.out, 20)
        make_sealed(self.out, 30, 2, saw=("checkpoint-20",))
        make_stock(self.out, 40)
        self.assertEqual(self.names(), [f"checkpoint-{step}" for step in (10, 20, 30, 40)])

    def test_a_restored_old_copy_does_not_become_the_newest(self):
        make_stock(self.out, 20)
        make_sealed(self.out, 30, 1, saw=("checkpoint-20",))
        make_stock(self.out, 10)
        self.assertEqual(self.names(), [f"checkpoint-{step}" for step in (10, 20, 30)])

    def test_a_copy_under_another_name_has_the_place_of_its_content(self):
        original = make_sealed(self.out, 20, 1)
        make_sealed(self.out, 25, 2)
        copy(original, self.path(30))
        found = find_checkpoints(self.out, check="all")
        self.assertEqual([one.name for one in found], ["checkpoint-30", "checkpoint-20", "checkpoint-25"])
        self.assertEqual([one.step for one in found], [20, 20, 25])
        self.assertEqual(found[0].note, "holds the checkpoint of step 20 under another name")
        self.assertTrue(found[0].complete)

    def test_only_names_of_checkpoints_count(self):
        make_sealed(self.out, 20, 1)
        for name in ("checkpoint-final-keep", "checkpoint-100-merged", "checkpoint-٣", "checkpoint-", "_staging"):
            copy(self.out / "checkpoint-20", self.out / name)
        copy(self.out / "checkpoint-20", self.out / "checkpoint-30\n")
        write_text(self.out / "checkpoint-50", "a file")
        self.assertEqual(self.names(), ["checkpoint-20"])
        self.assertEqual(sort_checkpoints(str(self.out)), [self.path(20)])

    def test_a_link_to_a_checkpoint_counts(self):
        elsewhere = make_sealed(self.out / "elsewhere", 20, 1)
        os.symlink(elsewhere, self.path(20))
        self.assertEqual(get_last_checkpoint(self.out), self.path(20))


class SortedTest(RunDirectoryTestCase):
    def setUp(self):
        super().setUp()
        for step in (10, 20, 30):
            make_stock(self.out, step)

    def sorted(self, best=None, **kwargs) -> list[int]:
        paths = sort_checkpoints(str(self.out), best_model_checkpoint=best, **kwargs)
        return [int(path.rpartition("-")[2]) for path in paths]

    def test_the_best_one_comes_before_the_last(self):
        self.assertEqual(self.sorted(self.path(10)), [20, 10, 30])
        self.assertEqual(self.sorted(self.path(20)), [10, 20, 30])
        self.assertEqual(self.sorted(self.path(30)), [10, 20, 30])
        self.assertEqual(self.sorted(self.path(99)), [10, 20, 30])

    def test_the_best_one_is_found_however_its_path_is_written(self):
        link = self.out.parent / f"{self.out.name}-link"
        os.symlink(self.out, link)
        self.addCleanup(os.unlink, link)
        written = [os.path.relpath(self.path(10)), f"{self.out}/./checkpoint-10/", str(link / "checkpoint-10")]
        for best in [*written, Path(written[0])]:
            self.assertEqual(self.sorted(best), [20, 10, 30], best)

    def test_another_prefix(self):
        for name in ("model-2", "model-10", "model-1x", "model-x"):
            (self.out / name).mkdir()
        self.assertEqual(
            sort_checkpoints(str(self.out), "model"), [str(self.out / "model-2"), str(self.out / "model-10")]
        )
        self.assertEqual(sort_checkpoints(str(self.out), "mod*"), [])

    def test_relative_and_empty_directories(self):
        here = os.getcwd()
        self.addCleanup(os.chdir, here)
        os.chdir(self.out)
        self.assertEqual(sort_checkpoints("."), ["checkpoint-10", "checkpoint-20", "checkpoint-30"])
        self.assertEqual(sort_checkpoints("./"), ["checkpoint-10", "checkpoint-20", "checkpoint-30"])
        os.mkdir("empty")
        self.assertEqual(sort_checkpoints("empty"), [])
        self.assertEqual(sort_checkpoints("nowhere"), [])

    def test_empty_checkpoint_directories_are_sorted_too(self):
        (self.out / "checkpoint-15").mkdir()
        self.assertEqual(self.sorted(), [10, 15, 20, 30])


def found(name: str, head: Head | None) -> Found:
    step = head.step if head is not None else int(name.rpartition("-")[2])
    return Found(name, name, step, head, None, None, False)


def head(step: int, sequence: int, saw=()) -> Head:
    return Head(
        step, sequence, "0" * 16, 1, ("model", "trainer"), "crc32", ListRecord("", 0, "", 0, 0), saw=tuple(saw)
    )


@st.composite
def run_directories(draw) -> list[Found]:
    """A few checkpoints as wild as they come: equal numbers, copies, `saw` that contradict each other."""
    numbers = draw(st.lists(st.integers(0, 12), unique=True, max_size=8))
    names = [f"checkpoint-{number}" for number in numbers]
    result = []
    for name in names:
        if draw(st.booleans()):
            saw = draw(st.lists(st.sampled_from(names), unique=True, max_size=4))
            result.append(found(name, head(draw(st.integers(0, 12)), draw(st.integers(1, 4)), saw)))
        else:
            result.append(found(name, None))
    return result


class OrderPropertyTest(unittest.TestCase):
    @given(run_directories(), st.randoms(use_true_random=False))
    @settings(max_examples=300, deadline=None)
    def test_it_is_one_order_whatever_the_listing(self, checkpoints, rng):
        shuffled = list(checkpoints)
        rng.shuffle(shuffled)
        ordered = in_order(checkpoints)
        self.assertEqual(ordered, in_order(shuffled))
        self.assertEqual(ordered, in_order(ordered))
        self.assertCountEqual(ordered, checkpoints)

    @given(run_directories())
    @settings(max_examples=300, deadline=None)
    def test_the_three_rules(self, checkpoints):
        ordered = in_order(checkpoints)
        place = {one.name: at for at, one in enumerate(ordered)}
        sealed = [one for one in ordered if one.head is not None]
        unsealed = [one for one in ordered if one.head is None]
        self.assertEqual([one.head.sequence for one in sealed], sorted(one.head.sequence for one in sealed))
        self.assertEqual([one.step for one in unsealed], sorted(one.step for one in unsealed))
        for one, other in itertools.product(unsealed, sealed):
            if one.name in other.head.saw:
                self.assertLess(place[one.name], place[other.name])
            elif place[one.name] < place[other.name]:
                # Only because that one, or an older sealed one, saw it or one of a higher step.
                seen = {name for s in sealed if place[s.name] <= place[other.name] for name in s.head.saw}
                self.assertTrue(any(u.name in seen for u in unsealed if u.step >= one.step))

    @given(st.data())
    @settings(max_examples=200, deadline=None)
    def test_what_really_happened_is_the_order(self, data):
        """Saves by this library and by another version, in any mix and with any steps that only grow per version."""
        there: list[Found] = []
        stock_step = 0
        for sequence, ours in enumerate(data.draw(st.lists(st.booleans(), max_size=8)), 1):
            taken = {one.name for one in there}
            if ours:
                number = data.draw(st.integers(0, 50).filter(lambda n: f"checkpoint-{n}" not in taken))
                saw = [one.name for one in there if one.head is None]
                there.append(found(f"checkpoint-{number}", head(number, sequence, saw)))
            else:
                stock_step += 1
                while f"checkpoint-{stock_step}" in taken:
                    stock_step += 1
                there.append(found(f"checkpoint-{stock_step}", None))
        self.assertEqual(in_order(random.Random(0).sample(there, len(there))), there)

    def test_an_order_by_step_would_break_them(self):
        """The guard of the tests above: an order by the steps in the names is another one."""
        there = [found("checkpoint-30", head(30, 1)), found("checkpoint-20", head(20, 2))]
        self.assertNotEqual(sorted(there, key=lambda one: one.step), in_order(there))


class OrderOnDiskPropertyTest(RunDirectoryTestCase):
    @given(st.permutations([10, 20, 30, 40]), st.lists(st.integers(0, 2**31), min_size=4, max_size=4))
    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    def test_times_and_the_order_of_making_change_nothing(self, steps, times):
        run = self.out / "run"
        shutil.rmtree(run, ignore_errors=True)
        for step in steps:
            if step % 20:
                make_sealed(run, step, step, saw=("checkpoint-20",) if step == 30 else ())
            else:
                make_stock(run, step)
        for name, time in zip(sorted(os.listdir(run)), times):
            os.utime(run / name, (time, time))
            os.utime(run / name / "trainer_state.json", (time, time))
        names = [one.name for one in find_checkpoints(run)]
        self.assertEqual(names, [f"checkpoint-{step}" for step in (10, 20, 30, 40)])


# ---- The newest complete one ----


class NewestTest(RunDirectoryTestCase):
    def setUp(self):
        super().setUp()
        for sequence, step in enumerate((10, 20, 30), 1):
            make_sealed(self.out, step, sequence)

    def test_nothing_wrong_nothing_said(self):
        self.assertEqual(self.log_of_the_search(), (self.path(30), ""))

    def test_one_warning_names_each_directory_and_the_reason(self):
        DAMAGES["missing"](self.out / "checkpoint-30" / "model.safetensors")
        DAMAGES["truncated"](self.out / "checkpoint-20" / "model.safetensors")
        newest, log = self.log_of_the_search()
        self.assertEqual(newest, self.path(10))
        self.assertIn("checkpoint-30: model.safetensors is missing; ", log)
        self.assertIn("checkpoint-20: model.safetensors has ", log)
        self.assertIn(f"The newest complete one is {self.path(10)}.", log)
        self.assertEqual(log.count("Passing over"), 1)

    def test_none_good_is_an_error(self):
        for step in (10, 20, 30):
            DAMAGES["missing"](self.out / f"checkpoint-{step}" / "model.safetensors")
        with self.assertLogs("transformers.trainer_checkpoint.discovery", "ERROR") as log:
            self.assertIsNone(newest_complete_checkpoint(self.out))
        self.assertEqual(len(log.output), 1)
        for step in (10, 20, 30):
            self.assertIn(f"checkpoint-{step}: model.safetensors is missing", log.output[0])
        self.assertIn("starts from zero", log.output[0])

    def test_no_checkpoints_is_no_error(self):
        empty = self.out / "empty"
        empty.mkdir()
        self.out = empty
        self.assertEqual(self.log_of_the_search(), (None, ""))

    @parameterized.expand(
        [
            ("empty manifest", b"", "is empty"),
            ("torn manifest", b'{"format": 1, "step"', "is not JSON"),
            ("list", b"[]", "not an object"),
            ("no manifest of ours", b'{"a": 1}', "no format number"),
            ("newer", b'{"format": 999}', "newer version"),
            ("altered", None, "altered or damaged"),
        ]
    )
    def test_a_manifest_that_cannot_be_used(self, _, data, reason):
        file = self.out / "checkpoint-30" / MANIFEST_NAME
        file.write_bytes(file.read_bytes().replace(b'"sequence": 3', b'"sequence": 9') if data is None else data)
        newest, log = self.log_of_the_search()
        self.assertEqual(newest, self.path(20))
        self.assertIn(f"checkpoint-30: {MANIFEST_NAME} ", log)
        self.assertIn(reason, log)

    def test_the_list_of_files(self):
        for damage in DAMAGES.values():
            path = copy(self.out / "checkpoint-30", self.path(40))
            seal(path, 4, step=40)
            damage(next(path.glob("checkpoint-files.*")))
            newest, log = self.log_of_the_search()
            self.assertEqual(newest, self.path(30))
            self.assertIn("checkpoint-40: checkpoint-files.1.json ", log)
            shutil.rmtree(path)

    @parameterized.expand([("sealed", True), ("without manifest", False)])
    def test_the_sentinel_disqualifies(self, _, sealed):
        if not sealed:
            make_stock(self.out, 40)
        step = 30 if sealed else 40
        write_text(Path(self.path(step)) / SENTINEL_NAME, "")
        newest, log = self.log_of_the_search()
        self.assertEqual(newest, self.path(20 if sealed else 30))
        self.assertIn(f"checkpoint-{step}: {SENTINEL_NAME} is there: the save was interrupted", log)

    def test_an_empty_directory_is_passed_over(self):
        os.mkdir(self.path(40))
        newest, log = self.log_of_the_search()
        self.assertEqual(newest, self.path(30))
        self.assertIn("checkpoint-40: trainer_state.json is missing", log)

    def test_a_model_without_training_state_is_passed_over_and_not_called_damaged(self):
        path = make_sealed(self.out, 40, 4)
        (path / "trainer_state.json").unlink()
        seal(path, 4, step=40)
        newest, log = self.log_of_the_search()
        self.assertEqual(newest, self.path(30))
        self.assertIn("saved without the state of the Trainer (model only); it can be loaded by path", log)
        checkpoint = find_checkpoints(self.out, check="all")[-1]
        self.assertTrue(checkpoint.complete)
        self.assertFalse(checkpoint.resumable)

    def test_a_part_of_a_checkpoint_says_so(self):
        path = make_sealed(self.out, 40, 4)
        seal(path, 4, step=40, part=Part(1, 2, (8, 9)))
        newest, log = self.log_of_the_search()
        self.assertEqual(newest, self.path(40))
        self.assertIn("part 2 of 2: the share of rank(s) 8, 9", log)

    def test_reads_heads_and_no_weights_and_no_lists_of_older_ones(self):
        opened = []
        watching = True
        run_dir = str(self.out)

        def hook(event, args):
            if watching and event == "open" and isinstance(args[0], str) and args[0].startswith(run_dir):
                opened.append(os.path.relpath(args[0], run_dir))

        sys.addaudithook(hook)
        get_last_checkpoint(self.out)
        watching = False
        heads = {f"checkpoint-{step}/{MANIFEST_NAME}" for step in (10, 20, 30)}
        self.assertEqual(set(opened), heads | {"checkpoint-30/checkpoint-files.1.json"})

    def test_a_checkpoint_that_cannot_be_looked_at(self):
        real = discovery.read_head

        def refuse(path):
            if path.endswith("checkpoint-30"):
                raise PermissionError(13, "Permission denied", path)
            return real(path)

        with mock.patch.object(discovery, "read_head", refuse):
            newest, log = self.log_of_the_search()
        self.assertEqual(newest, self.path(20))
        self.assertIn(f"checkpoint-30: {MANIFEST_NAME} cannot be read (Permission denied)", log)

    def test_pins(self):
        write_text(Path(self.path(20)) / KEEP_NAME, "")
        self.assertEqual([one.pinned for one in find_checkpoints(self.out)], [False, True, False])
        self.assertEqual(self.log_of_the_search(), (self.path(30), ""))


class WhileATrainingSavesTest(RunDirectoryTestCase):
    """A good checkpoint is under its name the whole time; which one, changes while somebody looks."""

    @parameterized.expand([("listed", "_directories", True), ("heads_read", "compare", False)])
    def test_the_only_one_is_rotated_away(self, _, name, after):
        make_sealed(self.out, 30, 1)
        with meanwhile(discovery, name, lambda: rotate(self.out, 30, 40), after=after):
            self.assertEqual(self.log_of_the_search(), (self.path(40), ""))

    def test_one_without_a_manifest_is_rotated_away(self):
        make_stock(self.out, 30)
        with meanwhile(discovery, "check_unsealed", lambda: rotate(self.out, 30, 40)):
            self.assertEqual(self.log_of_the_search(), (self.path(40), ""))

    def test_while_a_damaged_one_is_looked_at(self):
        make_sealed(self.out, 10, 1)
        DAMAGES["missing"](make_sealed(self.out, 30, 2) / "model.safetensors")
        with meanwhile(discovery, "compare", lambda: rotate(self.out, 10, 40)):
            newest, log = self.log_of_the_search()
        self.assertEqual(newest, self.path(40))
        self.assertEqual(log, "")

    def test_it_is_not_listed_for_ever(self):
        make_sealed(self.out, 10, 1)
        real, steps = discovery._directories, iter(range(10, 1000, 10))

        def listed(*args):
            entries = real(*args)
            step = next(steps)
            rotate(self.out, step, step + 10, sequence=step)
            return entries

        with mock.patch.object(discovery, "_directories", listed):
            self.assertEqual(self.log_of_the_search(), (None, ""))
        self.assertEqual(next(steps), 10 + 10 * discovery.LOOKS)
        self.assertEqual(get_last_checkpoint(self.out), self.path(10 + 10 * discovery.LOOKS))

    @parameterized.expand([("order", "_directories", True), ("all", "_directories", True), ("all", "compare", False)])
    def test_what_is_gone_is_not_in_the_answer(self, check, name, after):
        for step in (10, 20, 30):
            make_sealed(self.out, step, step)
        with meanwhile(discovery, name, lambda: rotate(self.out, 10), after=after):
            found = find_checkpoints(self.out, check=check)
        self.assertEqual(
            [(one.name, one.problem) for one in found], [("checkpoint-20", None), ("checkpoint-30", None)]
        )

    def test_nor_is_it_sorted(self):
        make_sealed(self.out, 10, 1)
        with meanwhile(discovery, "_directories", lambda: rotate(self.out, 10, 20), after=True):
            self.assertEqual(sort_checkpoints(str(self.out)), [self.path(20)])

    def test_sealed_again(self):
        make_sealed(self.out, 20, 1)
        path = make_sealed(self.out, 30, 2)
        with meanwhile(discovery, "compare", lambda: seal_again(path)):
            self.assertEqual(self.log_of_the_search(), (self.path(30), ""))
        self.assertTrue((path / "checkpoint-files.2.json").exists())

    def test_the_list_before_goes_while_the_files_are_listed(self):
        make_sealed(self.out, 30, 1)
        error = FileNotFoundError(2, "No such file or directory", "checkpoint-files.1.json")
        real = discovery.disk.walk_files
        with mock.patch.object(discovery.disk, "walk_files", side_effect=[error, real(self.path(30))]):
            self.assertEqual(self.log_of_the_search(), (self.path(30), ""))

    def test_another_one_takes_its_name(self):
        make_sealed(self.out, 20, 1)
        make_sealed(self.out, 30, 2)

        def replace():
            rotate(self.out, 30)
            path = make_sealed(self.out, 30, 3)
            write_text(path / "README.md", "# A model card\n")
            write_json(path / "trainer_state.json", {"global_step": 30, "epoch": 1.0})
            seal(path, 3, step=30)

        with meanwhile(discovery, "compare", replace):
            self.assertEqual(self.log_of_the_search(), (self.path(30), ""))

    def test_one_that_was_listed_before(self):
        path = make_sealed(self.out, 30, 1)
        (found,) = find_checkpoints(self.out, check="order")
        rotate(self.out, 30)
        self.assertEqual(discovery.look_closely(found).problem, discovery.GONE)
        self.assertTrue(discovery.is_gone(path))

    def test_damage_is_looked_at_once(self):
        DAMAGES["missing"](make_sealed(self.out, 30, 1) / "model.safetensors")
        with mock.patch.object(discovery, "compare", wraps=discovery.compare) as compare:
            self.assertIn("model.safetensors is missing", self.log_of_the_search()[1])
        compare.assert_called_once()


class LevelTest(RunDirectoryTestCase):
    def setUp(self):
        super().setUp()
        for sequence, step in enumerate((10, 20, 30, 40), 1):
            make_sealed(self.out, step, sequence)
        for step in (10, 40):
            DAMAGES["missing"](self.out / f"checkpoint-{step}" / "model.safetensors")

    @parameterized.expand(
        [
            ("order", [False, False, False, False], [True, True, True, True]),
            ("stat", [False, False, True, True], [True, True, True, False]),
            ("all", [True, True, True, True], [False, True, True, False]),
        ]
    )
    def test_how_closely_is_looked(self, check, checked, complete):
        result = find_checkpoints(self.out, check=check)
        self.assertEqual([one.checked for one in result], checked)
        self.assertEqual([one.complete for one in result], complete)

    def test_an_unknown_level(self):
        with self.assertRaisesRegex(ValueError, "'everything'"):
            find_checkpoints(self.out, check="everything")


# ---- After the seal ----


class ModifiedTest(RunDirectoryTestCase):
    def setUp(self):
        super().setUp()
        self.checkpoint = make_sealed(self.out, 20, 1)
        write_text(self.checkpoint / "README.md", "# card")
        write_json(self.checkpoint / "tokenizer_config.json", {"a": 1})
        seal(self.checkpoint, 1)

    def look(self) -> Found:
        return find_checkpoints(self.out)[0]

    @parameterized.expand(["README.md", "config.json", "tokenizer_config.json"])
    def test_edited_text_is_a_note(self, name):
        write_text(self.checkpoint / name, '{"a": "something longer than before, and readable"}')
        self.assertTrue(self.look().complete)
        self.assertEqual(self.look().note, f"modified after the seal: {name}")
        newest, log = self.log_of_the_search()
        self.assertEqual(newest, self.path(20))
        self.assertIn("modified after the seal", log)

    @parameterized.expand(["config.json", "tokenizer_config.json"])
    def test_text_that_no_longer_reads_is_damage(self, name):
        write_text(self.checkpoint / name, '{"a": "torn')
        self.assertIn("does not read as JSON", self.look().problem)

    @parameterized.expand([("empty", b""), ("zeros", bytes(30)), ("no text", b"\xff\xfe\xfa and so on")])
    def test_a_card_that_no_longer_reads_is_damage(self, _, data):
        (self.checkpoint / "README.md").write_bytes(data)
        self.assertTrue(self.look().problem.startswith("README.md has "))

    @parameterized.expand(["trainer_state.json", "model.safetensors"])
    def test_state_of_another_size_is_damage_even_if_it_reads(self, name):
        if name.endswith(".json"):
            write_json(self.checkpoint / name, {"global_step": 2000000})
        else:
            shutil.copy(make_sealed(self.out / "other", 1, 1) / name, self.checkpoint / name)
            with open(self.checkpoint / name, "ab") as file:
                file.write(b"\0")
        self.assertTrue(self.look().problem.startswith(f"{name} has "))

    @parameterized.expand(["ema.safetensors", "notes.txt", "plots/loss.png"])
    def test_an_added_file_is_a_note(self, name):
        (self.checkpoint / name).parent.mkdir(exist_ok=True)
        write_text(self.checkpoint / name, "new")
        self.assertEqual(self.look().problem, None)
        self.assertEqual(self.look().note, f"added after the seal: {name}")

    @parameterized.expand(["optimizer.pt", "model.safetensors.index.json", "x/adapter_model.bin", "optimizer_0/y"])
    def test_an_added_file_that_would_be_loaded_instead_is_refused(self, name):
        (self.checkpoint / name).parent.mkdir(exist_ok=True)
        write_text(self.checkpoint / name, "new")
        self.assertEqual(self.look().problem, f"{name} was put there after the seal, and loading would read it")

    def test_added_weights_that_loading_never_reaches_are_a_note(self):
        """As DeepSpeed's recovery script and conversions by hand leave them beside what was sealed."""
        write_text(self.checkpoint / "pytorch_model.bin", "new")
        self.assertEqual(self.look().problem, None)
        self.assertEqual(self.look().note, "added after the seal: pytorch_model.bin")

    def test_added_weights_in_place_of_sealed_ones_are_refused(self):
        (self.checkpoint / "model.safetensors").rename(self.checkpoint / "model-00001-of-00001.safetensors")
        write_json(self.checkpoint / "model.safetensors.index.json", {"weight_map": {}})
        seal(self.checkpoint, 1)
        self.assertEqual(self.look().problem, None)
        for name, problem in (
            ("pytorch_model.bin", "pytorch_model.bin was put there after the seal, and loading would read it"),
            ("pytorch_model-00001-of-00001.bin", None),
        ):
            write_text(self.checkpoint / name, "new")
            self.assertEqual(self.look().problem, problem)
            (self.checkpoint / name).unlink()

    @parameterized.expand([".nfs0001", "KEEP", ".DS_Store", "checkpoint-manifest.json.tmp-checkpoint"])
    def test_what_nobody_needs_to_hear_of(self, name):
        write_text(self.checkpoint / name, "")
        self.assertEqual((self.look().problem, self.look().note), (None, None))

    def test_sealed_again_it_is_good(self):
        write_json(self.checkpoint / "trainer_state.json", {"global_step": 2000000})
        seal(self.checkpoint, 1)
        self.assertEqual((self.look().problem, self.look().note), (None, None))

    def test_without_its_manifest_it_is_judged_by_structure(self):
        write_json(self.checkpoint / "trainer_state.json", {"global_step": 2000000})
        (self.checkpoint / MANIFEST_NAME).unlink()
        self.assertEqual((self.look().problem, self.look().head), (None, None))

    def test_links_that_leave_the_checkpoint(self):
        outside = self.out / "outside"
        (self.checkpoint / "model.safetensors").rename(outside)
        os.symlink(outside, self.checkpoint / "model.safetensors")
        self.assertIn("leads out of the checkpoint, which is refused", self.look().problem)

    def test_a_manifest_that_is_a_link_out(self):
        (self.checkpoint / MANIFEST_NAME).rename(self.out / "m")
        os.symlink("../m", self.checkpoint / MANIFEST_NAME)
        self.assertIn(f"{MANIFEST_NAME} is a link that leads out", self.look().problem)

    def test_a_directory_that_became_a_link(self):
        (self.checkpoint / "sub").mkdir()
        write_text(self.checkpoint / "sub" / "x.bin", "x")
        seal(self.checkpoint, 1)
        (self.checkpoint / "sub").rename(self.out / "sub")
        os.symlink(self.out / "sub", self.checkpoint / "sub")
        self.assertIn("sub/x.bin is not a file inside the checkpoint", self.look().problem)

    def test_a_file_that_became_a_directory(self):
        (self.checkpoint / "model.safetensors").unlink()
        (self.checkpoint / "model.safetensors").mkdir()
        self.assertIn("model.safetensors is not a file inside the checkpoint", self.look().problem)

    def test_a_pipe_does_not_block(self):
        (self.checkpoint / "model.safetensors").unlink()
        os.mkfifo(self.checkpoint / "model.safetensors")
        self.assertEqual(self.look().problem, "model.safetensors is not a regular file")
        (self.checkpoint / MANIFEST_NAME).unlink()
        os.mkfifo(self.checkpoint / MANIFEST_NAME)
        self.assertEqual(self.look().problem, f"{MANIFEST_NAME} is not a regular file")


# ---- Bad input ----


class BadDirectoryTest(RunDirectoryTestCase):
    def test_not_there(self):
        with self.assertRaisesRegex(FileNotFoundError, "no such directory.*nowhere"):
            get_last_checkpoint(self.out / "nowhere")

    def test_a_url(self):
        with self.assertRaisesRegex(FileNotFoundError, "looks like a URL.*s3://bucket/run"):
            get_last_checkpoint("s3://bucket/run")

    def test_a_file(self):
        write_text(self.out / "file", "")
        with self.assertRaisesRegex(NotADirectoryError, "a directory is expected here"):
            get_last_checkpoint(self.out / "file")

    def test_not_readable(self):
        with mock.patch("os.scandir", side_effect=PermissionError(13, "Permission denied", str(self.out))):
            for call in (get_last_checkpoint, find_checkpoints, sorted_checkpoints):
                with self.assertRaises(PermissionError):
                    call(self.out)

    def test_thousands_of_other_files(self):
        for number in range(3000):
            (self.out / f"events.{number}").touch()
        make_sealed(self.out, 20, 1)
        self.assertEqual(get_last_checkpoint(self.out), self.path(20))

    def test_thousands_of_missing_files_are_told_shortly(self):
        path = make_sealed(self.out, 20, 1)
        for number in range(2000):
            (path / f"{number}.bin").write_bytes(b"x")
        seal(path, 1)
        for number in range(2000):
            (path / f"{number}.bin").unlink()
        problem = find_checkpoints(self.out)[0].problem
        self.assertIn("and 1995 more", problem)
        self.assertLess(len(problem), 300)


if __name__ == "__main__":
    unittest.main()
