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
The built distribution: what is in it, what its metadata says, and which builds are refused.
"""

import email.parser
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from apply_edits import NOTICE
from assemble import DATA_FILE, our_files, read_metadata, split_requirements
from edit_file import ROOT, read_edits
from upstream import UpstreamError, pinned_release, read_pins, read_record, read_release, verify

from .helpers import SECONDS, build


RELEASE = pinned_release()
PINS = read_pins()
EDITED = {target.removeprefix("src/") for target in read_edits()}


def metadata_of(directory: Path):
    (path,) = directory.glob("*.dist-info")
    return email.parser.HeaderParser().parsestr((path / "METADATA").read_text(encoding="utf-8"))


def small_upstream(directory: Path, version: str = PINS.version) -> Path:
    """The release's metadata and files in a directory of the test's own, as links where nothing is changed."""
    name = f"transformers-{version}.dist-info"
    shutil.copytree(RELEASE.dist_info, directory / name)
    for path in RELEASE.package_files():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).symlink_to(RELEASE.root / path)
    return directory


# ---- The wheel ----


def test_files_of_the_wheel(wheel):
    found = {path.relative_to(wheel).as_posix() for path in (wheel / "transformers").rglob("*") if path.is_file()}
    assert found == {*RELEASE.package_files(), *our_files(), DATA_FILE}
    for path in RELEASE.package_files():
        same = (wheel / path).read_bytes() == (RELEASE.root / path).read_bytes()
        assert same == (path not in EDITED), path
    for path in our_files():
        assert (wheel / path).read_bytes() == (ROOT / "src" / path).read_bytes()
    with_notice = {
        path for path in found if path.endswith(".py") and NOTICE in (wheel / path).read_text(encoding="utf-8")
    }
    assert with_notice == EDITED


def test_version_of_the_wheel(wheel):
    assert metadata_of(wheel)["Version"] == "5.24.0+staged.1" == PINS.full_version
    assert '__version__ = "5.24.0"' in (wheel / "transformers" / "__init__.py").read_text(encoding="utf-8")


def test_metadata_is_upstreams(wheel):
    upstream, ours = read_metadata(RELEASE), metadata_of(wheel)
    for key in ("Name", "Requires-Python", "License", "Author", "Author-email", "Keywords", "Home-page"):
        assert ours[key] == upstream[key], key
    assert ours.get_all("Classifier") == upstream.get_all("Classifier")
    assert set(ours.get_all("Provides-Extra")) == set(upstream.get_all("Provides-Extra"))

    def requirements(metadata):
        return sorted(str(Requirement(line)) for line in metadata.get_all("Requires-Dist"))

    assert requirements(ours) == sorted([*requirements(upstream), *(str(Requirement(line)) for line in PINS.requires)])
    (dist_info,) = wheel.glob("*.dist-info")
    assert (dist_info / "entry_points.txt").read_text(encoding="utf-8").split() == (
        RELEASE.dist_info / "entry_points.txt"
    ).read_text(encoding="utf-8").split()


def test_licences_of_both_are_in_the_wheel(wheel):
    (dist_info,) = wheel.glob("*.dist-info")
    assert metadata_of(wheel).get_all("License-File") == ["LICENSE", "upstream/LICENSE"]
    assert (dist_info / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    theirs = (RELEASE.dist_info / "licenses" / "LICENSE").read_bytes()
    assert (dist_info / "licenses" / "upstream" / "LICENSE").read_bytes() == theirs
    record = (dist_info / "RECORD").read_text(encoding="utf-8")
    assert f"{dist_info.name}/licenses/upstream/LICENSE,sha256=" in record


def test_record_of_the_wheel(wheel):
    (dist_info,) = wheel.glob("*.dist-info")
    verify_files = read_record((dist_info / "RECORD").read_text(encoding="utf-8"))
    assert set(verify_files) == {
        path.relative_to(wheel).as_posix() for path in wheel.rglob("*") if path.is_file() and path.name != "RECORD"
    }


def test_markers_of_requirements_survive():
    message = email.message_from_string(
        "Requires-Dist: a>=1\n"
        'Requires-Dist: b; python_version < "3.13"\n'
        "Provides-Extra: x\n"
        'Requires-Dist: c<2,>=1; extra == "x"\n'
        'Requires-Dist: d; sys_platform == "linux" and extra == "x"\n'
        "Requires-Dist: e; (sys_platform == 'linux' or os_name == 'nt') and extra == 'x'\n"
        "Provides-Extra: empty\n"
    )
    always, extras = split_requirements(message)
    assert always == ["a>=1", 'b; python_version < "3.13"']
    assert extras == {
        "x": ["c<2,>=1", 'd; sys_platform == "linux"', "e; sys_platform == 'linux' or os_name == 'nt'"],
        "empty": [],
    }


def test_the_wheel_says_what_it_is(wheel):
    """`python -m transformers.trainer_checkpoint` out of the wheel, without torch being imported for it."""
    code = (
        "import sys; from transformers.trainer_checkpoint.patch_info import describe, patch_info; "
        "print(patch_info().version); print(describe()); print('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd="/", capture_output=True, text=True, timeout=SECONDS, env=environment
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == PINS.full_version and lines[-1] == "False"
    assert all(any(f" {edit.id} (" in line for line in lines) for edits in read_edits().values() for edit in edits)


# ---- The sdist ----


def test_sdist_builds_the_same_package(repository, tmp_path, wheel):
    result = build(repository, "build_sdist", tmp_path / "sdist")
    assert result.returncode == 0, result.stderr
    (path,) = (tmp_path / "sdist").glob("transformers-5.24.0+staged.1.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    assert not (source / "src" / "transformers" / "trainer.py").exists()
    result = build(source, "prepare_metadata_for_build_wheel", tmp_path / "metadata")
    assert result.returncode == 0, result.stderr
    ours, theirs = metadata_of(tmp_path / "metadata"), metadata_of(wheel)
    assert ours.items() == theirs.items()
    code = "from assemble import assemble; from upstream import *; assemble(pinned_release(), Path('built'))"
    environment = {**os.environ, "PYTHONPATH": str(source / "utils")}
    (source / "build").mkdir(exist_ok=True)
    (source / "build" / "upstream").symlink_to(RELEASE.root.parent)
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=SECONDS, env=environment
    )
    assert result.returncode == 0, result.stderr
    for file in sorted((wheel / "transformers").rglob("*")):
        if file.is_file():
            assert (source / "built" / file.relative_to(wheel)).read_bytes() == file.read_bytes(), file


# ---- Refusals ----


def test_patched_upstream_is_refused(repository, tmp_path, wheel):
    """What `--no-build-isolation` gives in an environment that has the patched package."""
    result = build(repository, "build_wheel", tmp_path / "out", upstream=wheel)
    assert result.returncode != 0 and not list((tmp_path / "out").iterdir())
    assert "transformers 5.24.0+staged.1 is already patched" in result.stderr
    assert "pip uninstall transformers" in result.stderr and "Traceback" not in result.stderr


def test_other_version_of_upstream_is_refused(repository, tmp_path):
    upstream = small_upstream(tmp_path / "upstream", "5.23.0")
    result = build(repository, "build_wheel", tmp_path / "out", upstream=upstream)
    assert result.returncode != 0 and not list((tmp_path / "out").iterdir())
    assert "found transformers 5.23.0, but UPSTREAM.toml pins 5.24.0" in result.stderr


@pytest.mark.parametrize("change", ["edited", "missing"])
def test_changed_file_of_upstream_is_refused(change, repository, tmp_path):
    upstream = small_upstream(tmp_path / "upstream")
    file = upstream / "transformers" / "activations.py"
    file.unlink()
    if change == "edited":
        file.write_bytes((RELEASE.root / "transformers" / "activations.py").read_bytes() + b"\n")
    result = build(repository, "build_wheel", tmp_path / "out", upstream=upstream)
    assert result.returncode != 0 and not list((tmp_path / "out").iterdir())
    word = "was changed" if change == "edited" else "is missing"
    assert f"{file} {word}: RECORD of transformers 5.24.0 lists it" in result.stderr


def test_other_record_is_refused(repository, tmp_path):
    """A release that is whole by its own RECORD, but is not the one that was reviewed."""
    upstream = small_upstream(tmp_path / "upstream")
    record = upstream / RELEASE.dist_info.name / "RECORD"
    lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
    dropped = [line for line in lines if not line.startswith("transformers/activations.py,")]
    assert len(dropped) == len(lines) - 1
    record.write_text("".join(dropped), encoding="utf-8")
    verify(read_release(record.parent))
    result = build(repository, "build_wheel", tmp_path / "out", upstream=upstream)
    assert result.returncode != 0
    assert f"UPSTREAM.toml pins {PINS.record_sha256}" in result.stderr


def test_missing_upstream_is_refused(repository, tmp_path):
    """Not even an `.egg-info` of our own, which has the same name, may be taken for upstream."""
    (tmp_path / "empty" / "transformers.egg-info").mkdir(parents=True)
    (tmp_path / "empty" / "transformers.egg-info" / "PKG-INFO").write_text("Name: transformers\nVersion: 5.24.0\n")
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p and 'build/dev' not in p]; "
        f"sys.path.insert(0, {str(tmp_path / 'empty')!r}); sys.path.insert(0, 'utils'); import upstream\n"
        "try: upstream.installed_release()\n"
        "except upstream.UpstreamError as error: print(error)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, timeout=SECONDS
    )
    assert "transformers 5.24.0 is not installed here" in result.stdout, result.stdout + result.stderr


def test_edit_that_does_not_fit_stops_the_build(repository, tmp_path):
    path = repository / "edits" / "src" / "transformers" / "trainer_callback.py.toml"
    text = path.read_text(encoding="utf-8")
    assert "self.call_event" in text
    path.write_text(text.replace("self.call_event", "self.call_events"), encoding="utf-8")
    result = build(repository, "build_wheel", tmp_path / "out")
    assert result.returncode != 0 and not list((tmp_path / "out").iterdir())
    assert "edit `on-save-after-publish`: anchor lost" in result.stderr and "Traceback" not in result.stderr


def test_module_at_a_path_of_upstream_is_refused(repository, tmp_path):
    (repository / "src" / "transformers" / "trainer.py").write_text("x = 1\n", encoding="utf-8")
    result = build(repository, "build_wheel", tmp_path / "out")
    assert result.returncode != 0
    assert "our modules only at paths that upstream does not have" in result.stderr


def test_editable_install_is_refused(repository, tmp_path):
    result = build(repository, "build_editable", tmp_path / "out")
    assert result.returncode != 0
    assert "make link" in result.stderr and "Traceback" not in result.stderr


def test_installers_rows_are_not_part_of_the_digest():
    """pip and uv rewrite RECORD; the release in it stays the same."""
    record = (RELEASE.dist_info / "RECORD").read_text(encoding="utf-8")
    name = RELEASE.dist_info.name
    added = [f"{name}/INSTALLER,sha256=x,4", f"{name}/REQUESTED,,", "../../../bin/transformers,sha256=x,1"]
    added += ["transformers/__pycache__/trainer.cpython-311.pyc,,", f"{name}/direct_url.json,sha256=x,9"]
    assert read_record("\n".join(added) + "\n" + record) == RELEASE.rows
    assert len(RELEASE.rows) == len(re.findall(r",sha256=", record))


def test_verified_release_passes():
    verify(RELEASE, PINS)
    with pytest.raises(UpstreamError, match="already patched"):
        verify(replace(RELEASE, version="5.24.0+staged.1"), PINS)
