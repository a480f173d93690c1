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
"""The manifest: what is written is read back, and whatever else is there is refused with a clear error."""

import dataclasses
import json
import os
import string
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from parameterized import parameterized

from transformers.testing_utils import TestCasePlus
from transformers.trainer_checkpoint import digest, disk, manifest
from transformers.trainer_checkpoint.errors import ManifestError, NewerManifestError
from transformers.trainer_checkpoint.layout import FILE_LIST_PATTERN, MANIFEST_NAME
from transformers.trainer_checkpoint.manifest import (
    FORMAT,
    FileEntry,
    Head,
    ListRecord,
    Part,
    decode_head,
    encode_head,
    is_safe_name,
    read_entries,
    read_head,
    write_manifest,
)


counts = st.integers(0, 2**63)
positive = st.integers(1, 2**63)
# Whatever a text can hold that UTF-8 can, and what JSON can besides: names of files are not always text.
texts = st.text(max_size=20)
records = st.builds(
    ListRecord, st.integers(1, 99).map(lambda n: f"checkpoint-files.{n}.json"), counts, texts, counts, counts
)
parts = st.integers(1, 9).flatmap(
    lambda of: st.builds(Part, st.integers(0, of - 1), st.just(of), st.lists(counts, max_size=4).map(tuple))
)
heads = st.builds(
    Head,
    step=counts,
    sequence=positive,
    nonce=st.text("0123456789abcdef", min_size=16, max_size=16),
    world_size=positive,
    state=st.lists(texts, max_size=4).map(tuple),
    algorithm=texts,
    files=records,
    part=st.none() | parts,
    saw=st.lists(texts, max_size=4).map(tuple),
    sealing=positive,
    opened_at=texts,
    sealed_at=texts,
    writer=st.dictionaries(texts, texts | counts, max_size=4),
)
segments = st.text(string.ascii_letters + string.digits + ".-_ äß€", min_size=1, max_size=8).filter(
    lambda s: s not in (".", "..")
)
names = st.lists(segments, min_size=1, max_size=3).map("/".join).filter(is_safe_name)
listings = st.dictionaries(names, st.builds(FileEntry, counts, st.text("0123456789abcdef", max_size=32)), max_size=8)


def a_head(**changes) -> Head:
    head = Head(
        step=20,
        sequence=3,
        nonce="0123456789abcdef",
        world_size=2,
        state=("model", "optimizer", "trainer"),
        algorithm="crc32",
        files=ListRecord("checkpoint-files.1.json", 1, "0", 1, 1),
        saw=("checkpoint-10",),
        writer={"transformers": "5.24.0"},
    )
    return dataclasses.replace(head, **changes)


class HeadTest(unittest.TestCase):
    @given(heads)
    @settings(max_examples=300, deadline=None)
    def test_what_is_written_is_read_back(self, head):
        self.assertEqual(decode_head(encode_head(head), "x"), head)

    @given(heads)
    @settings(max_examples=50, deadline=None)
    def test_it_is_plain_json_in_ascii(self, head):
        fields = json.loads(encode_head(head).decode("ascii"))
        self.assertEqual(fields["step"], head.step)
        self.assertEqual(set(fields), {field.name for field in dataclasses.fields(Head)} | {"check"})

    @given(heads, st.data())
    @settings(max_examples=300, deadline=None)
    def test_one_flipped_bit_is_never_accepted(self, head, data):
        encoded = bytearray(encode_head(head))
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at] ^= 1 << data.draw(st.integers(0, 7))
        with self.assertRaises(ManifestError):
            decode_head(bytes(encoded), "x")

    @given(heads, st.data())
    @settings(max_examples=200, deadline=None)
    def test_a_torn_one_is_never_accepted(self, head, data):
        encoded = encode_head(head)
        end = data.draw(st.integers(0, len(encoded) - 1))
        for torn in (encoded[:end], encoded[:end] + bytes(len(encoded) - end), encoded[end:] if end else b""):
            with self.assertRaises(ManifestError):
                decode_head(torn, "x")

    @given(st.binary(max_size=300))
    @settings(max_examples=500, deadline=None)
    def test_any_bytes_give_a_manifest_error(self, data):
        with self.assertRaises(ManifestError) as caught:
            decode_head(data, "somewhere/checkpoint-manifest.json")
        self.assertTrue(str(caught.exception).startswith("somewhere/checkpoint-manifest.json "))

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        )
    )
    @settings(max_examples=300, deadline=None)
    def test_any_json_gives_a_manifest_error(self, value):
        with self.assertRaises(ManifestError):
            decode_head(json.dumps(value).encode("utf-8"), "x")

    @given(
        st.sampled_from([field.name for field in dataclasses.fields(Head)]),
        st.none()
        | st.booleans()
        | st.integers(-5, 5)
        | st.floats()
        | st.text(max_size=3)
        | st.lists(st.none(), max_size=2),
    )
    @settings(max_examples=500, deadline=None)
    def test_a_field_of_another_kind_is_refused_even_under_a_right_digest(self, name, value):
        fields = {**dataclasses.asdict(a_head()), name: value}
        body = json.dumps(fields, indent=1).removesuffix("\n}").encode("ascii")
        forged = body + manifest._CHECK_BEFORE + manifest._check(body) + manifest._CHECK_AFTER
        try:
            head = decode_head(forged, "x")
        except ManifestError:
            return
        # Accepted means usable: everything has the kind that others rely on.
        self.assertEqual(decode_head(encode_head(head), "x"), head)
        self.assertIsInstance(getattr(head, name), type(getattr(a_head(), name)) if name != "part" else type(None))

    @parameterized.expand(
        [
            ("a negative step", {"step": -1}),
            ("a step that is no number", {"step": "20"}),
            ("true for a number", {"step": True}),
            ("no sequence number", {"sequence": 0}),
            ("no ranks", {"world_size": 0}),
            ("another nonce", {"nonce": "0123"}),
            ("a nonce with a line end", {"nonce": "0123456789abcdef\n"}),
            ("a list with a path", {"files": ListRecord("../checkpoint-files.1.json", 1, "0", 1, 1)}),
            ("a list with a line end", {"files": ListRecord("checkpoint-files.1.json\n", 1, "0", 1, 1)}),
            ("a part beyond the last", {"part": Part(2, 2, ())}),
            ("state that is text", {"state": "model"}),
        ]
    )
    def test_a_field_that_makes_no_sense(self, _, changes):
        with self.assertRaisesRegex(ManifestError, f"field '{next(iter(changes))}'"):
            decode_head(encode_head(a_head(**changes)), "x")

    def test_a_newer_format_is_told_from_damage(self):
        with self.assertRaisesRegex(NewerManifestError, "newer version: update"):
            decode_head(encode_head(a_head(format=FORMAT + 1)), "x")

    @parameterized.expand(
        [("deep", b'{"a":' * 100_000), ("a number of many digits", b'{"format": ' + b"9" * 100_000 + b"}")]
    )
    def test_hostile_json(self, _, data):
        with self.assertRaises(ManifestError):
            decode_head(data, "x")


class ReadTest(TestCasePlus):
    def setUp(self):
        super().setUp()
        self.path = Path(self.get_auto_remove_tmp_dir())

    def test_no_manifest(self):
        self.assertIsNone(read_head(self.path))
        self.assertIsNone(read_head(self.path / "nowhere"))
        (self.path / "file").touch()
        self.assertIsNone(read_head(self.path / "file"))

    def test_an_empty_one(self):
        (self.path / MANIFEST_NAME).touch()
        with self.assertRaisesRegex(ManifestError, "is empty"):
            read_head(self.path)

    def test_a_directory_and_a_pipe(self):
        (self.path / MANIFEST_NAME).mkdir()
        with self.assertRaisesRegex(ManifestError, "not a regular file"):
            read_head(self.path)
        (self.path / MANIFEST_NAME).rmdir()
        os.mkfifo(self.path / MANIFEST_NAME)
        with self.assertRaisesRegex(ManifestError, "not a regular file"):
            read_head(self.path)

    def test_one_that_is_too_large_is_not_read(self):
        with open(self.path / MANIFEST_NAME, "wb") as file:
            file.truncate(manifest.MAX_HEAD_SIZE + 1)
        with mock.patch("os.read", side_effect=AssertionError("reads it")):
            with self.assertRaisesRegex(ManifestError, "larger than"):
                read_head(self.path)

    def test_one_that_cannot_be_read_is_not_called_damaged(self):
        with mock.patch("os.open", side_effect=PermissionError(13, "Permission denied")):
            with self.assertRaises(PermissionError):
                read_head(self.path)


class WriteTest(TestCasePlus):
    def setUp(self):
        super().setUp()
        self.path = Path(self.get_auto_remove_tmp_dir())

    @given(listings, st.sampled_from(sorted(digest.ALGORITHMS)))
    @settings(max_examples=100, deadline=None)
    def test_what_is_written_is_read_back(self, entries, algorithm):
        with tempfile.TemporaryDirectory() as path:
            head = write_manifest(path, a_head(algorithm=algorithm), entries, durable=False)
            self.assertEqual(read_head(path), head)
            self.assertEqual(read_entries(path, head), entries)
            self.assertEqual(head.files.count, len(entries))
            self.assertEqual(head.files.bytes, sum(entry.size for entry in entries.values()))
            self.assertTrue(head.sealed_at)
            self.assertEqual(sorted(os.listdir(path)), sorted([MANIFEST_NAME, head.files.name]))

    def test_the_list_of_an_earlier_sealing_goes(self):
        write_manifest(self.path, a_head(), {"a": FileEntry(1, "0")}, durable=True)
        write_manifest(self.path, a_head(sealing=2), {"b": FileEntry(2, "1")}, durable=True)
        self.assertEqual(sorted(os.listdir(self.path)), ["checkpoint-files.2.json", MANIFEST_NAME])
        self.assertEqual(set(read_entries(self.path, read_head(self.path))), {"b"})

    @parameterized.expand([1, 2, 3, 4])
    def test_an_error_at_any_write_leaves_the_earlier_sealing_whole(self, number):
        """Two files are put in place, each by a write and a rename."""
        write_manifest(self.path, a_head(), {"a": FileEntry(1, "0")}, durable=True)
        calls = []

        def fail(real):
            def wrapper(*args, **kwargs):
                calls.append(args)
                if len(calls) == number:
                    raise OSError(28, "No space left on device")
                return real(*args, **kwargs)

            return wrapper

        with (
            mock.patch.object(disk, "flush_descriptor", fail(disk.flush_descriptor)),
            mock.patch("os.replace", fail(os.replace)),
            self.assertRaises(OSError),
        ):
            write_manifest(self.path, a_head(sealing=2), {"b": FileEntry(2, "1")}, durable=True)
        self.assertEqual(set(read_entries(self.path, read_head(self.path))), {"a"})

    def test_the_head_is_written_last(self):
        written = []
        real = disk.write_whole
        with mock.patch.object(disk, "write_whole", lambda path, *a, **k: (written.append(path), real(path, *a, **k))):
            write_manifest(self.path, a_head(), {}, durable=True)
        self.assertEqual([os.path.basename(path) for path in written], ["checkpoint-files.1.json", MANIFEST_NAME])


class ListTest(TestCasePlus):
    def setUp(self):
        super().setUp()
        self.path = Path(self.get_auto_remove_tmp_dir())
        self.head = write_manifest(self.path, a_head(), {"a/b.bin": FileEntry(1, "0")}, durable=False)
        self.list = self.path / self.head.files.name

    def forge(self, data: bytes) -> Head:
        """A head that vouches for `data` as the list: what somebody who wants to do harm can make."""
        self.list.write_bytes(data)
        record = dataclasses.replace(
            self.head.files, size=len(data), digest=digest.digest_bytes(data, self.head.algorithm)
        )
        return dataclasses.replace(self.head, files=record)

    def test_it_is_missing(self):
        self.list.unlink()
        with self.assertRaisesRegex(ManifestError, "is missing, the list of files"):
            read_entries(self.path, self.head)

    def test_it_has_another_size(self):
        self.list.write_bytes(b"{}")
        with self.assertRaisesRegex(ManifestError, "has 2 bytes, and the manifest says"):
            read_entries(self.path, self.head)

    @given(st.data())
    @settings(max_examples=100, deadline=None)
    def test_one_flipped_bit(self, data):
        whole = self.list.read_bytes()
        changed = bytearray(whole)
        changed[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        self.list.write_bytes(changed)
        try:
            with self.assertRaises(ManifestError):
                read_entries(self.path, self.head)
        finally:
            self.list.write_bytes(whole)

    @parameterized.expand(
        ["/etc/passwd", "../x", "a/../../x", "a//b", "a/./b", "", ".", "..", "C:/x", "C:x", "a\\b", "a\0b", "a/"]
    )
    def test_a_path_that_leaves_the_checkpoint(self, name):
        self.assertFalse(is_safe_name(name))
        head = self.forge(json.dumps({"files": {name: [1, "0"]}}).encode("ascii"))
        with self.assertRaisesRegex(ManifestError, "not a plain path inside the checkpoint"):
            read_entries(self.path, head)

    @given(st.text(max_size=20))
    @settings(max_examples=300, deadline=None)
    def test_a_safe_name_stays_inside(self, name):
        if is_safe_name(name):
            root = os.path.abspath("root")
            self.assertTrue(os.path.normpath(os.path.join(root, name)).startswith(root + os.sep))

    @parameterized.expand(
        [("a list", b"[]"), ("no files", b"{}"), ("files in a list", b'{"files": []}'), ("none", b"")]
    )
    def test_another_shape(self, _, data):
        with self.assertRaises(ManifestError):
            read_entries(self.path, self.forge(data))

    @parameterized.expand(["null", "[]", "[1]", '["1", "0"]', '[-1, "0"]', "[1, 0]", '[true, "0"]', '[1, "0", 2]'])
    def test_an_entry_of_another_shape(self, entry):
        with self.assertRaisesRegex(ManifestError, r"not \[size, digest\]"):
            read_entries(self.path, self.forge(f'{{"files": {{"a": {entry}}}}}'.encode("ascii")))

    @given(st.binary(max_size=200))
    @settings(max_examples=200, deadline=None)
    def test_any_bytes_give_a_manifest_error(self, data):
        whole = self.list.read_bytes()
        try:
            with self.assertRaises(ManifestError):
                read_entries(self.path, self.forge(data))
        finally:
            self.list.write_bytes(whole)

    def test_digests_of_an_unknown_kind_do_not_prevent_reading(self):
        head = dataclasses.replace(self.head, algorithm="sha1024")
        self.assertEqual(read_entries(self.path, head), {"a/b.bin": FileEntry(1, "0")})
        self.assertFalse(manifest.known_algorithm(head))

    def test_its_name_fits_the_pattern(self):
        self.assertTrue(FILE_LIST_PATTERN.match(self.head.files.name))
        for name in ("checkpoint-files.json", "checkpoint-files.x.json", "checkpoint-files.1.json\n", "x"):
            self.assertFalse(FILE_LIST_PATTERN.match(name))


if __name__ == "__main__":
    unittest.main()
