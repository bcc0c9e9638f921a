"""`weft login`: which key is stored, for which address."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.scripted_http import Answer, Request, Scripted, json_answer, scripted
from weft._cli.main import run
from weft._profile import Config, Profile, read_config, write_config

KEY = "weft_k_s"


def answer(request: Request, _number: int) -> Answer:
    if request.path != "/v1/whoami":
        return json_answer({"code": "not-found", "detail": "nothing is here"}, 404)
    if request.headers.get("authorization") != f"Bearer {KEY}":
        return json_answer({"code": "unauthenticated", "detail": "unknown key"}, 401)
    return json_answer({"user": "ada", "tenant": "vision", "scope": "user"})


@pytest.fixture(autouse=True)
def no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("WEFT_URL", "WEFT_KEY", "WEFT_PROFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def platform() -> Iterator[Scripted]:
    with scripted(answer) as server:
        yield server


@pytest.mark.parametrize("key", ["--key-stdin", "--key=", "--key= "])
@pytest.mark.parametrize("typed", ["", "\n", " \n"])
def test_an_empty_key_does_not_replace_the_stored_one(
    platform: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str, typed: str
) -> None:
    """As of `echo "$KEY" | weft login URL --key-stdin` where KEY is not set: no command shows a key again."""
    write_config(Config("mine", {"mine": Profile("mine", platform.url, KEY)}))
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert run(["login", platform.url, key, "--name", "mine"]) == 2
    assert "the key is empty" in capsys.readouterr().err
    assert read_config().profiles["mine"].key == KEY


def test_an_empty_standard_input_is_not_replaced_by_the_key_of_another_platform(
    platform: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEFT_KEY", "weft_of_another_platform")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run(["login", platform.url, "--key-stdin"]) == 2
    assert "the key is empty" in capsys.readouterr().err
    assert platform.requests == []


def test_the_key_of_standard_input_is_stored_without_its_line_break(
    platform: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{KEY}\n"))
    assert run(["login", platform.url, "--key-stdin"]) == 0
    assert "as ada" in capsys.readouterr().out
    config = read_config()
    assert config.profiles[config.current].key == KEY


@pytest.mark.parametrize(("url", "code"), [("", 0), ("https://production", 2)])
def test_the_key_of_the_environment_is_used_unless_it_is_for_another_address(
    platform: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str, code: int
) -> None:
    monkeypatch.setenv("WEFT_URL", url)
    monkeypatch.setenv("WEFT_KEY", KEY)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run(["login", platform.url]) == code
    assert len(platform.requests) == (code == 0)
    capsys.readouterr()
