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
"""Full verification against reading the same files and hashing them with xxh3, in one run and in turns.

    python benchmarks/bench_verification.py [--gigabytes 2] [--files 4] [--rounds 5] [--folder DIR]

The aim is 80 % of the speed of a loop that reads a file in pieces and hashes them, with as many threads as verification
uses; everything is in the page cache, so that the disk does not hide what verification itself costs.
"""

import argparse
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import xxhash

from transformers.trainer_checkpoint.digest import CHUNK_SIZE, THREADS, digest_files
from transformers.trainer_checkpoint.manifest import FileEntry, Head, ListRecord, draw_nonce, write_manifest
from transformers.trainer_checkpoint.verification import GOOD, SIZE, verify


def make(path: str, size: int, files: int) -> list[str]:
    os.mkdir(path)
    block = os.urandom(CHUNK_SIZE)
    names = [f"model-{number:05d}.bin" for number in range(1, files + 1)]
    for name in names:
        with open(os.path.join(path, name), "wb") as file:
            file.writelines(block for _ in range(size // files // CHUNK_SIZE))
    entries = {name: FileEntry(*found) for name, found in digest_files(path, names, "xxh3_128").items()}
    head = Head(
        step=1,
        sequence=1,
        nonce=draw_nonce(),
        world_size=1,
        state=("model", "trainer"),
        algorithm="xxh3_128",
        files=ListRecord("", 0, "", 0, 0),
    )
    write_manifest(path, head, entries, durable=False)
    return names


def read_and_hash(path: str) -> str:
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(CHUNK_SIZE))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def plain(path: str, names: list[str]) -> None:
    with ThreadPoolExecutor(min(THREADS, len(names))) as pool:
        list(pool.map(lambda name: read_and_hash(os.path.join(path, name)), names))


def verified(path: str, level: str = "full") -> None:
    if verify(path, level).verdict != GOOD:
        raise SystemExit("the checkpoint should have been good")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where to make the checkpoint; a temporary folder by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = os.path.join(folder, "checkpoint-1")
        names = make(path, int(options.gigabytes * 1e9), options.files)
        size = sum(os.path.getsize(os.path.join(path, name)) for name in names)
        speeds: dict[str, list[float]] = {"reading and hashing": [], "full verification": []}
        for _ in range(options.rounds):
            for what, call in (
                ("reading and hashing", lambda: plain(path, names)),
                ("full verification", lambda: verified(path)),
            ):
                start = time.perf_counter()
                call()
                speeds[what].append(size / (time.perf_counter() - start) / 1e9)
        for what, measured in speeds.items():
            print(f"{what:<22} {statistics.median(measured):6.2f} GB/s (best {max(measured):.2f})")
        ratio = statistics.median(b / a for a, b in zip(*speeds.values(), strict=True))
        print(f"verification reaches {ratio:.0%} of reading and hashing ({options.files} files, {THREADS} threads)")
        start = time.perf_counter()
        verified(path, SIZE)
        print(f"by size only: {(time.perf_counter() - start) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
