"""A variable that looks like a setting, and is none, is named: what it was to bound is not bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.core.runtime.home import Home
from services.core.runtime.processes import identify, write_process_file
from services.local.commands import changed_settings
from services.local.doctor import examine
from services.local.unknown_settings import unknown_settings


def test_a_misspelled_setting_is_named_with_the_one_that_is_meant() -> None:
    environ = {"WEFT_NODE_DISC": "10GB", "WEFT_COLOUR": "red", "WEFT_NODE_MEMORY": "8GB", "PATH": "/bin"}
    assert unknown_settings(environ) == ["WEFT_COLOUR", "WEFT_NODE_DISC (WEFT_NODE_DISK?)"]


@pytest.mark.parametrize(
    "name",
    ["WEFT_URL", "WEFT_KEY", "WEFT_HOME", "WEFT_KUBERNETES_EGRESS", "WEFT_HELPER_DRAIN_S", "WEFT_FAILPOINTS"],
)
def test_variables_with_an_effect_are_not_named(name: str) -> None:
    assert unknown_settings({name: "x"}) == []


def test_the_file_of_settings_is_read_too(tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_text("# WEFT_COMMENT=1\nWEFT_BROKER_URI=amqp://u:p@h\nexport WEFT_PORT=8080\n")
    assert unknown_settings({"WEFT_SETTINGS_FILE": str(file)}) == ["WEFT_BROKER_URI (WEFT_BROKER_URL?)"]
    assert unknown_settings({"WEFT_SETTINGS_FILE": str(tmp_path / "absent")}) == []


def test_doctor_warns_of_a_variable_that_is_no_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_NODE_DISC", "10GB")
    (check,) = [check for check in examine(Home(tmp_path)) if check["check"] == "settings"]
    assert check["ok"]
    assert "warning: no settings, and without effect: WEFT_NODE_DISC (WEFT_NODE_DISK?)" in check["detail"]


def test_no_restart_is_advised_for_a_variable_that_is_no_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, process = Home(tmp_path), identify(os.getpid())
    assert process is not None
    (tmp_path / "run").mkdir()
    write_process_file(home / "run" / "supervisor.json", process)  # this process, whose environment lacks both
    monkeypatch.setenv("WEFT_NODE_DISK", "10GB")
    monkeypatch.setenv("WEFT_NODE_DISC", "10GB")
    assert changed_settings(home, {}) == ["WEFT_NODE_DISK=10GB"]
