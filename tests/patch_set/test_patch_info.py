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
Which build this is, and what its users are told about newer releases.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.cli import _cli_utils, _output

import transformers
from edit_file import read_edits
from transformers.cli import transformers as command_line
from transformers.trainer_checkpoint import patch_info as module
from transformers.trainer_checkpoint.patch_info import describe, hint_at_update, patch_info, patch_set_version
from upstream import read_pins

from .helpers import SECONDS


PINS = read_pins()
NEWER = "5.24.1"


def test_this_build():
    info = patch_info()
    assert (info.version, info.upstream, info.patch_set) == (PINS.full_version, PINS.version, PINS.patch_set)
    assert [edit.id for edit in info.edits] == [edit.id for edits in read_edits().values() for edit in edits]
    assert transformers.__version__ == PINS.version
    assert patch_set_version() == PINS.full_version
    text = describe()
    for edit in info.edits:
        assert edit.id in text and edit.why in text and edit.file in text


def test_source_tree_is_not_built(tmp_path, monkeypatch):
    assert patch_info(tmp_path / "_patch_set.json") is None
    monkeypatch.setattr(module, "DATA_FILE", tmp_path / "_patch_set.json")
    assert patch_set_version() is None
    assert "not built" in describe() and str(tmp_path) in describe()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": "1", "edits": [{}]}', '{"edits": 1}'])
def test_damaged_data_file_is_an_error_that_names_it(text, tmp_path):
    path = tmp_path / "_patch_set.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        patch_info(path)
    assert "install the patch set again" in str(caught.value)


# ---- The hint ----


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The Hub library's parts that the hint uses: what was asked of the index, and what was shown."""

    class Hub:
        latest: str | None = NEWER
        asked: list[str] = []
        shown: list[str] = []
        stock: list[str] = []
        marker = tmp_path / "home" / ".check_for_update_done"

    hub = Hub()
    hub.asked, hub.shown, hub.stock = [], [], []

    def fetch(library):
        hub.asked.append(library)
        if isinstance(hub.latest, Exception):
            raise hub.latest
        return hub.latest

    monkeypatch.setattr(_cli_utils, "_fetch_latest_pypi_version", fetch)
    monkeypatch.setattr(_output.out, "hint", lambda message: hub.shown.append(message))
    monkeypatch.setattr("huggingface_hub.check_cli_update", lambda library: hub.stock.append(library))
    monkeypatch.setattr(constants, "CHECK_FOR_UPDATE_DONE_PATH", str(hub.marker))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_UPDATE_CHECK", False)
    return hub


def test_newer_release_never_sends_users_back_to_stock(hub):
    # edit: hint-at-update
    hint_at_update()
    assert hub.asked == ["transformers"] and hub.stock == []
    (message,) = hub.shown
    assert NEWER in message and PINS.version in message and "wait for a patch set" in message
    assert "pip install" not in message and "To update" not in message


@pytest.mark.parametrize("latest", ["5.24.0", "5.9.9", "5.24.0rc1", "4.99.0", "not a version", None])
def test_release_that_is_not_newer_is_no_news(latest, hub):
    """Compared as versions: as texts each of these differs from the distribution's own version."""
    hub.latest = latest
    hint_at_update()
    assert hub.asked == ["transformers"] and hub.shown == []


def test_not_more_than_once_a_day(hub):
    hint_at_update()
    hint_at_update()
    assert len(hub.asked) == 1
    yesterday = os.stat(hub.marker).st_mtime - module.SECONDS_BETWEEN_UPDATE_CHECKS - 1
    os.utime(hub.marker, (yesterday, yesterday))
    hint_at_update()
    assert len(hub.asked) == 2


def test_switched_off(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_UPDATE_CHECK", True)
    hint_at_update()
    assert not hub.asked and not hub.shown and not hub.stock and not hub.marker.exists()


def test_a_failure_is_silent(hub, capsys):
    hub.latest = OSError("no network")
    hint_at_update()
    assert hub.asked and not hub.shown
    assert capsys.readouterr() == ("", "")


def test_marker_that_cannot_be_written_is_silent(hub, capsys):
    hub.marker.parent.parent.joinpath("home").write_text("a file", encoding="utf-8")
    hint_at_update()
    assert not hub.shown and capsys.readouterr() == ("", "")


def test_unbuilt_tree_leaves_the_hint_to_the_hub_library(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "DATA_FILE", tmp_path / "_patch_set.json")
    hint_at_update()
    assert hub.stock == ["transformers"] and not hub.asked


def test_damaged_data_file_does_not_stop_a_command(hub, tmp_path, monkeypatch):
    path = tmp_path / "_patch_set.json"
    path.write_text("{", encoding="utf-8")
    monkeypatch.setattr(module, "DATA_FILE", path)
    hint_at_update()
    assert not hub.shown and not hub.stock


def test_the_command_line_gives_our_hint(hub, monkeypatch):
    # edit: hint-at-update
    # edit: import-update-hint
    monkeypatch.setattr(command_line, "app", lambda: None)
    command_line.main()
    assert len(hub.shown) == 1 and not hub.stock


def test_command_without_a_network(tmp_path):
    """The whole command, with a proxy that nobody listens on."""
    environment = {**os.environ, "HF_HOME": str(tmp_path)}
    environment.update(dict.fromkeys(("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"), "http://127.0.0.1:9"))
    environment.pop("HF_HUB_DISABLE_UPDATE_CHECK", None)
    result = subprocess.run(
        [sys.executable, "-m", "transformers.cli.transformers", "version"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == PINS.version and "new version" not in result.stderr


def test_data_file_holds_no_time_and_no_place():
    path = Path(module.__file__).parent.parent / "_patch_set.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    assert set(data) == {
        "patch_set", "version", "upstream", "upstream_record_sha256", "edits_digest", "files", "edits",
    }  # fmt: skip
    assert str(Path.home()) not in path.read_text(encoding="utf-8")
