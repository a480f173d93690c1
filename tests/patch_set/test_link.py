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
The linked tree and the check in front of every test run: a change shows without a rebuild, and whatever is stale or
unpatched is refused with the command that puts it right.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from assemble import DATA_FILE, our_files
from edit_file import read_edits
from freshness import staleness
from link import build_tree, plan_links
from upstream import pinned_release, read_pins

from .helpers import SECONDS


RELEASE = pinned_release()
EDITED = {target.removeprefix("src/") for target in read_edits()}


@pytest.fixture
def tree(tmp_path) -> Path:
    build_tree(RELEASE, tmp_path / "tree")
    return tmp_path / "tree"


def utils_of(repository: Path, code: str, **environment) -> subprocess.CompletedProcess:
    """Run code against the utils of a copy of the repository, whose downloads are this one's."""
    (repository / "build").mkdir(exist_ok=True)
    cache = repository / "build" / "upstream"
    if not cache.is_symlink():
        cache.symlink_to(RELEASE.root.parent)
    environment = {**os.environ, "PYTHONPATH": str(repository / "utils"), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, timeout=SECONDS, env=environment
    )


LINK = "import sys; from pathlib import Path; from link import main; sys.exit(main(sys.argv[1:]))"
STALE = "from pathlib import Path; from freshness import staleness; print(staleness(Path('build/dev')))"


# ---- The tree ----


def test_tree_equals_the_wheel(tree, wheel):
    for path in [*RELEASE.package_files(), *our_files(), DATA_FILE]:
        assert (tree / path).read_bytes() == (wheel / path).read_bytes(), path


def test_only_generated_files_are_copies(tree):
    assert {
        path.relative_to(tree).as_posix() for path in (tree / "transformers").rglob("*") if path.is_file() and not path.is_symlink()
    } == {*EDITED, DATA_FILE}  # fmt: skip
    assert (tree / "transformers" / "models").is_symlink()
    assert (tree / "transformers" / "trainer_checkpoint").is_symlink()


def test_hidden_files_are_no_modules(tree):
    assert not [path for path in our_files() if "/." in path or "__pycache__" in path]


def test_second_run_touches_nothing(tree):
    def times():
        return {path: path.lstat().st_mtime_ns for path in tree.rglob("*")}

    before = times()
    build_tree(RELEASE, tree)
    assert times() == before


def test_what_no_longer_belongs_is_removed(tree):
    package = tree / "transformers"
    (package / "left_over.py").write_text("x = 1\n", encoding="utf-8")
    (package / "old_package").mkdir()
    (package / "old_package" / "module.py").write_text("x = 1\n", encoding="utf-8")
    (package / "dangling.py").symlink_to(tree / "nowhere")
    (package / "trainer.py").write_text("x = 1\n", encoding="utf-8")
    (package / "activations.py").unlink()
    (package / "activations.py").write_text("x = 1\n", encoding="utf-8")
    (package / "__pycache__").mkdir()
    build_tree(RELEASE, tree)
    assert staleness(tree) is None
    names = {path.name for path in package.iterdir()}
    assert not names & {"left_over.py", "old_package", "dangling.py"}
    assert {"__pycache__", "activations.py", "trainer.py"} <= names


def test_directory_with_files_of_both_is_no_link():
    links = plan_links(RELEASE, {"transformers/cli/transformers.py": b"", DATA_FILE: b""})
    assert "transformers/cli" not in links and "transformers/cli/chat.py" in links
    assert "transformers/models" in links and "transformers/trainer.py" in links


# ---- Freshness ----


def test_fresh_tree(tree):
    assert staleness(tree) is None


def test_wheel_is_fresh(wheel):
    assert staleness(wheel) is None


def test_nothing_installed():
    message = staleness(None)
    assert "No transformers is installed" in message and f"make link PY={sys.executable}" in message


def test_unpatched_is_refused():
    message = staleness(RELEASE.root)
    assert "is not patched" in message and "make link PY=" in message


@pytest.mark.parametrize("what", ["digest", "edited file", "missing file", "module"])
def test_stale_is_refused(what, tree):
    data_file = tree / DATA_FILE
    if what == "digest":
        data = json.loads(data_file.read_text(encoding="utf-8"))
        data_file.write_text(json.dumps({**data, "edits_digest": "0" * 64}), encoding="utf-8")
    elif what == "edited file":
        with (tree / "transformers" / "trainer.py").open("a", encoding="utf-8") as file:
            file.write("x = 1\n")
    elif what == "missing file":
        (tree / "transformers" / "trainer.py").unlink()
    else:
        link = tree / "transformers" / "trainer_checkpoint"
        link.unlink()
        link.mkdir()
    message = staleness(tree)
    assert message is not None and "make link PY=" in message
    expected = {"digest": "changed since", "module": "as it is now"}.get(what, "trainer.py is not the file")
    assert expected in message


def test_a_change_of_an_edit_is_stale_until_the_next_link(repository):
    assert utils_of(repository, LINK).returncode == 0
    assert utils_of(repository, STALE).stdout.strip() == "None"
    path = repository / "edits" / "src" / "transformers" / "trainer_callback.py.toml"
    path.write_text(
        path.read_text(encoding="utf-8").replace("after_publish(self)", "after_all(self)"), encoding="utf-8"
    )
    assert "changed since" in utils_of(repository, STALE).stdout
    assert utils_of(repository, LINK).returncode == 0
    assert utils_of(repository, STALE).stdout.strip() == "None"
    callback = repository / "build" / "dev" / "transformers" / "trainer_callback.py"
    assert "return after_all(self)(" in callback.read_text(encoding="utf-8")


def test_a_change_of_a_module_shows_without_a_link(repository):
    assert utils_of(repository, LINK).returncode == 0
    module = repository / "src" / "transformers" / "trainer_checkpoint" / "brand_new.py"
    module.write_text("VALUE = 1\n", encoding="utf-8")
    code = "import sys; sys.path.insert(0, 'build/dev'); from transformers.trainer_checkpoint import brand_new as m; print(m.VALUE)"
    assert utils_of(repository, code).stdout.strip() == "1"
    module.write_text("VALUE = 200\n", encoding="utf-8")
    assert utils_of(repository, code).stdout.strip() == "200"
    assert utils_of(repository, STALE).stdout.strip() == "None"


def test_a_run_against_upstream_is_refused(repository, tmp_path):
    """The whole way: pytest with the released package in front ends before it collects anything."""
    (repository / "tests" / "test_nothing.py").write_text("def test():\n    print('ran')\n", encoding="utf-8")
    command = (
        "import sys, pytest; sys.exit(pytest.main(['-q', '-s', '-p', 'no:cacheprovider', 'tests/test_nothing.py']))"
    )
    paths = os.pathsep.join([str(RELEASE.root), str(repository / "utils")])
    result = utils_of(repository, command, PYTHONPATH=paths)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "is not patched" in result.stderr and "ran" not in result.stdout
    assert utils_of(repository, LINK).returncode == 0
    paths = os.pathsep.join([str(repository / "build" / "dev"), str(repository / "utils")])
    result = utils_of(repository, command, PYTHONPATH=paths)
    assert result.returncode == 0 and "ran" in result.stdout, result.stdout + result.stderr


# ---- An environment ----


@pytest.fixture
def environment(tmp_path) -> Path:
    """An empty virtual environment, as its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=SECONDS)
    return tmp_path / "venv" / "bin" / "python"


def test_linked_environment(environment, repository):
    result = utils_of(repository, LINK.replace("sys.argv[1:]", f"['--python', {str(environment)!r}]"))
    assert result.returncode == 0, result.stderr
    code = (
        "import importlib.metadata as m, importlib.util as u; d = m.distribution('transformers'); "
        "print(d.version); print(u.find_spec('transformers').origin); print(len(d.requires)); "
        "print([e.value for e in d.entry_points])"
    )
    shown = subprocess.run([environment, "-c", code], capture_output=True, text=True, timeout=SECONDS).stdout.split(
        "\n"
    )
    assert shown[0] == read_pins().full_version
    assert Path(shown[1]).is_relative_to(repository / "build" / "dev")
    assert int(shown[2]) > len(read_pins().requires)
    assert shown[3] == "['transformers.cli.transformers:main']"
    # A second time, and after the number of the patch set went up.
    pins = repository / "UPSTREAM.toml"
    pins.write_text(pins.read_text(encoding="utf-8").replace("number = 1", "number = 2"), encoding="utf-8")
    for _ in range(2):
        result = utils_of(repository, LINK.replace("sys.argv[1:]", f"['--python', {str(environment)!r}]"))
        assert result.returncode == 0, result.stderr
    shown = subprocess.run([environment, "-c", code], capture_output=True, text=True, timeout=SECONDS).stdout.split(
        "\n"
    )
    assert shown[0] == "5.24.0+staged.2"


def test_environment_with_another_transformers_is_refused(environment, repository):
    (site,) = (environment.parents[1] / "lib").glob("python*/site-packages")
    (site / "transformers").mkdir()
    arguments = LINK.replace("sys.argv[1:]", f"['--python', {str(environment)!r}]")
    result = utils_of(repository, arguments)
    assert result.returncode != 0 and "pip uninstall --yes transformers" in result.stderr
    (site / "transformers").rmdir()
    other = site / "transformers-5.24.0.dist-info"
    other.mkdir()
    (other / "INSTALLER").write_text("pip\n", encoding="utf-8")
    result = utils_of(repository, arguments)
    assert result.returncode != 0 and "describes another transformers" in result.stderr
    assert other.is_dir()


def test_python_outside_of_an_environment_is_refused(repository):
    result = utils_of(repository, LINK.replace("sys.argv[1:]", f"['--python', {os.path.realpath(sys.executable)!r}]"))
    assert result.returncode != 0
    assert "is not in a virtual environment" in result.stderr
