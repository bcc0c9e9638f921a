"""`weft usage`: the table, its forms for programs, and what it asks the platform for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.testbed.scripted_http import Answer, Request, json_answer, signed_in
from weft._cli.main import run

USERS: list[dict[str, Any]] = [
    {"tenant": "vision", "user": "grace", "jobs": 1200, "gpu_hours": 12345.678, "cpu_hours": 5.0},
    {"tenant": "acme", "user": "ada", "jobs": 2, "gpu_hours": 0.5, "cpu_hours": 8.25},
]
CSV = "since,until,tenant,user,jobs,gpu_hours,cpu_hours\nS,U,acme,\x1b[31mada,2,0.5,8.25\n"


class Platform:
    """What the platform has, and the parameters of each request for the use."""

    def __init__(self) -> None:
        self.scope = "admin"
        self.users = USERS
        self.unreadable = 0
        self.requests: list[dict[str, list[str]]] = []

    def answer(self, request: Request, _number: int) -> Answer:
        parts = urlsplit(request.path)
        if parts.path == "/v1/whoami":
            return json_answer({"user": "u", "tenant": "t", "scope": self.scope})
        assert parts.path == "/v1/usage"
        params = parse_qs(parts.query)
        self.requests.append(params)
        if params.get("format") == ["csv"]:
            return Answer(200, CSV.encode(), {"Content-Type": "text/csv; charset=utf-8"})
        window = {"since": "2026-11-01T00:00:00.000Z", "until": "2026-11-26T08:30:00.000Z"}
        return json_answer({**window, "users": self.users, "unreadable": self.unreadable})


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    platform = Platform()
    with signed_in(platform.answer):
        monkeypatch.setenv("TZ", "UTC")
        yield platform


@pytest.mark.usefixtures("platform")
def test_usage_is_a_table_with_aligned_numbers_and_a_total(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["usage"]) == 0
    head, empty, *table = capsys.readouterr().out.splitlines()
    assert (" to " in head, empty) == (True, "")
    assert table == [
        "TENANT  USER    JOBS  GPU-HOURS  CPU-HOURS",
        "vision  grace  1,200  12,345.68       5.00",
        "acme    ada        2       0.50       8.25",
        "total          1,202  12,346.18      13.25",
    ]


def test_an_administrator_sees_all_tenants_and_others_their_own(
    platform: Platform, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["usage"]) == 0
    assert run(["usage", "--tenant", "acme"]) == 0
    platform.scope = "user"
    assert run(["usage"]) == 0
    assert platform.requests == [{"tenant": ["*"]}, {"tenant": ["acme"]}, {}]
    capsys.readouterr()


def test_the_window_is_named_by_days_or_by_times(platform: Platform, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["usage", "--since", "90d", "--until", "2026-11-01T00:00:00+00:00"]) == 0
    [params] = platform.requests
    assert abs(datetime.fromisoformat(params["since"][0]) - (datetime.now(UTC) - timedelta(days=90))).seconds < 600
    assert params["until"] == ["2026-11-01T00:00:00.000Z"]
    assert run(["usage", "--since", "lately"]) == 2
    assert "'lately' is no time" in capsys.readouterr().err


@pytest.mark.usefixtures("platform")
def test_usage_prints_json_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["usage", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["users"] == USERS
    assert run(["usage", "-o", "name"]) == 0
    assert capsys.readouterr().out == "vision/grace\nacme/ada\n"


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("form", [["--csv"], ["-o", "csv"]])
def test_usage_prints_the_platforms_csv_as_it_is(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["usage", *form]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (CSV, "")
    assert run(["usage", "--csv", "--json"]) == 2


@pytest.mark.usefixtures("platform")
def test_csv_on_a_terminal_sends_it_no_control_sequences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run(["usage", "--csv"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_an_empty_window_says_what_to_do_and_unreadable_jobs_are_reported(
    platform: Platform, capsys: pytest.CaptureFixture[str]
) -> None:
    platform.users, platform.unreadable = [], 3
    assert run(["usage"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert "no job held hardware in this time; `weft usage --since 90d`" in err
    assert "not counted: 3" in err
