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
Builds the patched `transformers`: upstream's release, which the build environment has as a requirement, with our
modules and edits on top. Everything else about the distribution is upstream's.
"""

import shutil
import sys
from pathlib import Path

from setuptools import Command, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel


ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "utils"))

from assemble import assemble, read_metadata, split_requirements  # noqa: E402
from edit_file import EditError  # noqa: E402
from upstream import UpstreamError, installed_release, read_pins, verify  # noqa: E402


PINS = read_pins()
# The directory keeps the generated metadata out of the source tree, where it would look like an installed package.
EGG_BASE = ROOT / "build" / "egg"


def fail(error: Exception):
    """End the build with the text of an error that says what to do, without a traceback in front of it."""
    sys.exit(f"\nThe patched transformers was not built.\n{error}\n")


class AssemblePackage(build_py):
    """Puts the whole patched package into `build_lib` instead of collecting files from the source tree."""

    def run(self):
        try:
            assemble(RELEASE, Path(self.build_lib))
        except EditError as error:
            fail(error)

    def get_source_files(self):
        return []

    def get_outputs(self, include_bytecode=1):
        return sorted(str(path) for path in Path(self.build_lib).rglob("*") if path.is_file())


class WheelWithBothLicences(bdist_wheel):
    """Adds upstream's licence file beside ours to the wheel's metadata."""

    def egg2dist(self, egginfo_path, distinfo_path):
        super().egg2dist(egginfo_path, distinfo_path)
        distinfo = Path(distinfo_path)
        (distinfo / "licenses" / "upstream").mkdir(parents=True, exist_ok=True)
        added = ""
        for licence in sorted((RELEASE.dist_info / "licenses").iterdir()):
            shutil.copyfile(licence, distinfo / "licenses" / "upstream" / licence.name)
            added += f"License-File: upstream/{licence.name}\n"
        metadata = distinfo / "METADATA"
        text = metadata.read_text(encoding="utf-8")
        ours = "License-File: LICENSE\n"
        if text.count(ours) != 1:
            raise SystemExit(f"{metadata}: expected one line `{ours.strip()}`, found {text.count(ours)}")
        metadata.write_text(text.replace(ours, ours + added), encoding="utf-8")


class NoEditableInstall(editable_wheel):
    """Refuses `pip install -e`, which would see only our modules: the linked tree is there for that."""

    def run(self):
        fail(
            Exception(
                "An editable install cannot hold upstream's files. For a `transformers` that follows your changes:\n"
                "  make link                          (into .venv)\n"
                "  make link PY=/path/to/venv/bin/python"
            )
        )


try:
    RELEASE = installed_release()
    verify(RELEASE, PINS)
except UpstreamError as error:
    fail(error)

UPSTREAM_METADATA = read_metadata(RELEASE)
REQUIREMENTS, EXTRAS = split_requirements(UPSTREAM_METADATA)
ENTRY_POINTS = (RELEASE.dist_info / "entry_points.txt").read_text(encoding="utf-8")
EGG_BASE.mkdir(parents=True, exist_ok=True)

COMMANDS: dict[str, type[Command]] = {
    "build_py": AssemblePackage,
    "bdist_wheel": WheelWithBothLicences,
    "editable_wheel": NoEditableInstall,
}

setup(
    name=PINS.name,
    version=PINS.full_version,
    description=f"{UPSTREAM_METADATA['Summary'].strip()} With crash-safe Trainer checkpoints.",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    url=UPSTREAM_METADATA["Home-page"],
    author=UPSTREAM_METADATA["Author"],
    author_email=UPSTREAM_METADATA["Author-email"],
    license=UPSTREAM_METADATA["License"],
    license_files=["LICENSE"],
    keywords=UPSTREAM_METADATA["Keywords"],
    classifiers=UPSTREAM_METADATA.get_all("Classifier"),
    python_requires=UPSTREAM_METADATA["Requires-Python"],
    install_requires=[*REQUIREMENTS, *PINS.requires],
    extras_require=EXTRAS,
    entry_points=ENTRY_POINTS,
    packages=["transformers"],
    package_dir={"": "src"},
    zip_safe=False,
    cmdclass=COMMANDS,
    options={"egg_info": {"egg_base": str(EGG_BASE)}},
)
