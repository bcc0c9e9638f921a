"""What the shell completes without a platform. With one: tests/integration/test_api_lists.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from services.core.domain.status import Status
from weft._cli.call import Call
from weft._cli.completion import STATUSES
from weft._cli.main import weft
from weft._profile import Config, Profile, write_config


def completed(*words: str) -> list[str]:
    """What is offered for the last word."""
    shell = BashComplete(weft, {"obj": Call()}, "weft", "_WEFT_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.fixture(autouse=True)
def _no_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("WEFT_URL", "WEFT_KEY", "WEFT_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def test_fields_of_a_spec_are_completed() -> None:
    assert completed("train", "-h", "retries.") == ["retries.backoff", "retries.max", "retries.on"]
    assert completed("train", "--set", "resources.gpu") == ["resources.gpu_type=", "resources.gpus="]


def test_statuses_are_completed_in_any_case() -> None:
    assert completed("list", "--status", "ha") == ["HALTING", "HALTED"]
    assert set(STATUSES) == {status.value for status in Status} - {"RESUMED"}  # only an entry of histories


def test_profiles_are_completed() -> None:
    profiles = {name: Profile(url="http://127.0.0.1:9", key="k", name=name) for name in ("here", "home", "work")}
    write_config(Config("here", profiles))
    for words in (("show", "--profile"), ("profile",), ("logout",)):
        assert completed(*words, "h") == ["here", "home"]


@pytest.mark.parametrize(
    "words",
    [
        ("show", ""),
        ("logs", "j"),
        ("metrics", "a", "-m", ""),
        ("kill", "a", "b"),
        ("secret", "delete", ""),
        ("wait", "--group", ""),
    ],
)
def test_nothing_is_offered_where_no_platform_answers(words: tuple[str, ...]) -> None:
    assert completed(*words) == []
    write_config(Config("gone", {"gone": Profile(url="http://127.0.0.1:9", key="k", name="gone")}))
    assert completed(*words) == []
