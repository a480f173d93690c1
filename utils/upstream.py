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
"""
Upstream's release: where it is, and whether every file in it is the file that was released.

`UPSTREAM.toml` pins one version by a digest over the rows of its wheel's RECORD. A wheel carries its RECORD, and an
installed distribution does too, with the installer's own rows added; the digest leaves those out, so that both answer.
"""

import argparse
import base64
import csv
import hashlib
import importlib.metadata
import io
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path


ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "UPSTREAM.toml"
CACHE = ROOT / "build" / "upstream"
VERIFIED = ".verified"

# What pip and uv add to a distribution's directory when they install it.
INSTALLER_FILES = frozenset({"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json", "uv_build.json"})


class UpstreamError(Exception):
    """Upstream's release is not there, is another one, or is not as it was released. The text says what to do."""


@dataclass(frozen=True)
class Pins:
    """What `UPSTREAM.toml` says."""

    name: str
    version: str
    record_sha256: str
    patch_set: int
    requires: tuple[str, ...]

    @property
    def full_version(self) -> str:
        return f"{self.version}+staged.{self.patch_set}"


def read_pins(path: Path = PINS) -> Pins:
    """The pins of this repository."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    upstream, ours = data["upstream"], data["patch_set"]
    return Pins(
        upstream["name"], upstream["version"], upstream["record_sha256"], ours["number"], tuple(ours["requires"])
    )


@dataclass(frozen=True)
class Release:
    """
    A release on disk: `root` holds the package and `dist_info` its metadata; `rows` are the files the wheel was
    released with, with their digests as RECORD spells them.
    """

    root: Path
    dist_info: Path
    rows: dict[str, tuple[str, str]]
    version: str

    @property
    def record_sha256(self) -> str:
        lines = [f"{path},{digest},{size}\n" for path, (digest, size) in sorted(self.rows.items())]
        return hashlib.sha256("".join(lines).encode("utf-8")).hexdigest()

    def package_files(self) -> list[str]:
        """The released files of the package itself, `"transformers/trainer.py"` and so on."""
        return sorted(path for path in self.rows if path.startswith("transformers/"))


def read_record(text: str) -> dict[str, tuple[str, str]]:
    """The rows of a RECORD that came with the wheel, without those that an installer added."""
    rows = {}
    for path, digest, size in csv.reader(io.StringIO(text)):
        parent, _, name = path.rpartition("/")
        in_dist_info = parent.endswith(".dist-info")
        if path.startswith(("../", "/")) or name.endswith(".pyc") or (in_dist_info and name in INSTALLER_FILES):
            continue
        rows[path] = (digest, size)
    return rows


def read_release(dist_info: Path) -> Release:
    """The release whose metadata is in a `.dist-info` directory."""
    record = (dist_info / "RECORD").read_text(encoding="utf-8")
    name = dist_info.name.removesuffix(".dist-info")
    return Release(dist_info.parent, dist_info, read_record(record), name.rpartition("-")[2])


def verify(release: Release, pins: Pins | None = None) -> None:
    """
    Check a release.

    Args:
        release (`Release`):
            What to check.
        pins (`Pins`, *optional*):
            The release it has to be. Without it only the files are checked, against the release's own RECORD.

    Raises:
        `UpstreamError`: for another version, another RECORD, or a file that is missing or was changed.
    """
    where = f"{release.dist_info}"
    if "+staged" in release.version or (release.root / "transformers" / "_patch_set.json").exists():
        raise UpstreamError(
            f"{where}: transformers {release.version} is already patched, and a build has to start from the release.\n"
            "Install without --no-build-isolation, or uninstall it first: python -m pip uninstall transformers"
        )
    if pins is not None and release.version != pins.version:
        raise UpstreamError(
            f"{where}: found transformers {release.version}, but UPSTREAM.toml pins {pins.version}.\n"
            f"Install without --no-build-isolation, or first: python -m pip install transformers=={pins.version}"
        )
    if pins is not None and release.record_sha256 != pins.record_sha256:
        raise UpstreamError(
            f"{where}: the RECORD of transformers {release.version} has the digest {release.record_sha256}, but "
            f"UPSTREAM.toml pins {pins.record_sha256}.\nThis is not the release on the package index: reinstall it."
        )
    for path, (digest, _) in release.rows.items():
        algorithm, _, expected = digest.partition("=")
        try:
            content = (release.root / path).read_bytes()
        except FileNotFoundError:
            found = "is missing"
        else:
            now = base64.urlsafe_b64encode(hashlib.new(algorithm, content).digest()).rstrip(b"=").decode("ascii")
            if now == expected:
                continue
            found = "was changed"
        raise UpstreamError(
            f"{release.root / path} {found}: RECORD of transformers {release.version} lists it with {digest}.\n"
            f"Reinstall the release: python -m pip install --force-reinstall --no-deps transformers=={release.version}"
        )


def installed_release() -> Release:
    """
    The transformers installed for this interpreter, found without importing it.

    Raises:
        `UpstreamError`: when there is none.
    """
    pins = read_pins()
    for distribution in importlib.metadata.distributions(name=pins.name):
        # An egg-info of this repository's own build has the same name, and no RECORD.
        if distribution.read_text("RECORD") is not None:
            return read_release(Path(str(distribution._path)))
    raise UpstreamError(
        f"{pins.name} {pins.version} is not installed here, and the build starts from it.\n"
        f"Install without --no-build-isolation, or first: python -m pip install {pins.name}=={pins.version}"
    )


def download(version: str, cache: Path = CACHE) -> Release:
    """
    Another process's or an earlier call's copy of a release, or a fresh one from the package index.

    Args:
        version (`str`):
            The version.
        cache (`Path`, *optional*, defaults to `build/upstream`):
            Where copies are kept. `<cache>/<version>` appears whole, with every file checked against RECORD.

    Returns:
        `Release`: The unpacked wheel.

    Raises:
        `UpstreamError`: when the index has no such wheel or cannot be reached, or a file does not pass.
    """
    final = cache / version
    dist_info = final / f"transformers-{version}.dist-info"
    if (final / VERIFIED).is_file():
        return read_release(dist_info)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".download-") as temporary:
        command = [sys.executable, "-m", "pip", "download", f"transformers=={version}", "--no-deps", "--quiet"]
        command += ["--only-binary=:all:", "--dest", temporary]
        result = subprocess.run(command, capture_output=True, text=True, timeout=600)
        wheels = list(Path(temporary).glob("*.whl"))
        if result.returncode or len(wheels) != 1:
            raise UpstreamError(
                f"transformers {version} could not be downloaded:\n{result.stderr.strip()}\n"
                f"Try it by hand: {' '.join(command[:-1])} ."
            )
        unpacked = Path(temporary) / "unpacked"
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(unpacked)
        verify(read_release(unpacked / dist_info.name))
        (unpacked / VERIFIED).write_text("every file agrees with RECORD\n", encoding="utf-8")
        if final.exists() and not (final / VERIFIED).is_file():
            shutil.rmtree(final)
        try:
            os.rename(unpacked, final)
        except OSError:
            if not (final / VERIFIED).is_file():
                raise
    return read_release(dist_info)


def pinned_release(recheck: bool = False) -> Release:
    """
    The release that `UPSTREAM.toml` pins, from `build/upstream` or the package index.

    Args:
        recheck (`bool`, *optional*, defaults to `False`):
            Check every file once more, and not only RECORD.

    Raises:
        `UpstreamError`: when it cannot be had, or is not the pinned one.
    """
    pins = read_pins()
    release = download(pins.version)
    if recheck or release.record_sha256 != pins.record_sha256:
        verify(release, pins)
    return release


def released_tree() -> Path:
    """The directory that holds the pinned release's `transformers`."""
    return pinned_release().root


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fetch and check upstream's release.")
    parser.add_argument("--version", help="another version than the pinned one: only checked against its own RECORD")
    parser.add_argument("--digest", action="store_true", help="print the digest that UPSTREAM.toml pins")
    options = parser.parse_args(arguments)
    try:
        release = download(options.version) if options.version else pinned_release(recheck=True)
        verify(release)
    except UpstreamError as error:
        print(error, file=sys.stderr)
        return 1
    print(release.record_sha256 if options.digest else f"transformers {release.version}: {len(release.rows)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
