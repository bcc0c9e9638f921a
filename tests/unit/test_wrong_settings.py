"""A wrong setting is an error that names it, and says what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.core.domain.errors import InvalidRequest
from services.core.runtime.kubernetes_settings import KubernetesSettings
from services.core.runtime.settings import Settings
from services.local.layout import PROGRAMS, Program
from services.local.settings import LocalSettings
from services.node.settings import NodeSettings
from weft._cli.main import run


def test_all_wrong_settings_are_named_with_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_PORT", "http")
    monkeypatch.setenv("WEFT_LOG_LEVEL", "loud")
    with pytest.raises(InvalidRequest) as refused:
        LocalSettings()
    assert "WEFT_PORT=http: Input should be a valid integer" in refused.value.message
    assert "WEFT_LOG_LEVEL=loud: Input should be 'debug', 'info'" in refused.value.message
    assert "pydantic" not in refused.value.message


def test_a_list_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_KUBERNETES_DEVICES", "rdma/hca")
    with pytest.raises(InvalidRequest, match="WEFT_KUBERNETES_DEVICES: write it as JSON"):
        KubernetesSettings()


def test_a_value_that_may_be_a_password_is_not_shown() -> None:
    no_text: Any = b"\xff hidden"
    with pytest.raises(InvalidRequest) as refused:
        Settings(s3_secret_key=no_text)
    assert "WEFT_S3_SECRET_KEY: " in refused.value.message
    assert "hidden" not in refused.value.message


@pytest.mark.parametrize(
    ("settings", "name"), [(LocalSettings, "WEFT_SILENCE_S"), (NodeSettings, "WEFT_NODE_HELPER_SILENCE_S")]
)
def test_a_silence_in_which_an_idle_process_would_count_as_hung_is_refused(
    settings: type[Settings], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "0.5")
    with pytest.raises(InvalidRequest, match=rf"{name}=0\.5: .*at least 2"):
        settings()


@pytest.mark.parametrize("command", [["doctor"], ["master-key"]], ids=lambda words: words[0])
def test_a_command_says_which_setting_is_wrong(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("WEFT_LOG_LEVEL", "loud")
    assert run([*command, "--home", str(tmp_path / "home")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("weft: wrong settings: WEFT_LOG_LEVEL=loud: Input should be 'debug'")
    assert "fault of weft" not in error


def started(module: str, home: Path) -> tuple[int, str]:
    """Exit code and log of a process that does not get as far as to serve."""
    environment = {**os.environ, "WEFT_HOME": str(home), "WEFT_LOG_LEVEL": "loud"}
    words = [sys.executable, "-P", "-m", module]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stderr


def whys(log: str) -> list[str]:
    return [str(json.loads(line).get("why")) for line in log.splitlines()]


@pytest.mark.slow
def test_the_log_of_the_supervisor_says_which_setting_is_wrong(tmp_path: Path) -> None:
    """`weft up` shows it. Before, it was the last line of a trace."""
    code, log = started("services.local.supervisor", tmp_path)
    assert code == 1
    (why,) = whys(log)
    assert "WEFT_LOG_LEVEL=loud: " in why


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_log_of_a_service_says_which_setting_is_wrong(program: Program, tmp_path: Path) -> None:
    code, log = started(program.argv[-1], tmp_path)
    assert code == 1
    (why,) = whys(log)
    assert "WEFT_LOG_LEVEL=loud: " in why
