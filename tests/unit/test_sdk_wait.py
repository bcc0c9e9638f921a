"""`wait` while the platform is away."""

from __future__ import annotations

import time

import pytest

from tests.testbed.scripted_http import Answer, Request, json_answer, scripted
from weft import Client, ConnectionFailed, Unavailable
from weft._wire import FIRST_RETRY_FOR_S

JOB = {"id": "j1", "name": "digits", "status": "PROCESSING", "at_rest": False, "created": "2026-11-21T13:20:00.123Z"}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft._http.RETRY_FOR_S", 0.0)  # each request is tried once
    monkeypatch.setattr("weft._jobs._LONGEST_POLL_S", 0.01)


def away() -> Answer:
    return json_answer({"code": "unavailable", "detail": "a store is away"}, 503)


@pytest.mark.parametrize("failure", [away(), Answer(200, b"x" * 50, cut_after=10)], ids=["503", "cut"])
def test_wait_outlives_a_platform_that_is_away_for_longer_than_a_request_is_retried(failure: Answer) -> None:
    def answer(_request: Request, n: int) -> Answer:
        return failure if 1 <= n <= 5 else json_answer({**JOB, "at_rest": n > 5})

    with scripted(answer) as server, Client(server.url, "weft_k_s") as client:
        assert client.jobs.wait("j1").at_rest
    assert len(server.requests) == 7


def test_wait_gives_up_a_platform_that_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft._jobs.RETRY_FOR_S", 0.05)
    with (
        scripted(lambda _request, _n: away()) as server,
        Client(server.url, "weft_k_s") as client,
        pytest.raises(Unavailable, match="a store is away"),
    ):
        client.jobs.wait("j1")
    assert len(server.requests) > 2


def test_wait_keeps_its_timeout_while_the_platform_is_away() -> None:
    began = time.monotonic()
    with (
        scripted(lambda _request, _n: away()) as server,
        Client(server.url, "weft_k_s") as client,
        pytest.raises(Unavailable),
    ):
        client.jobs.wait("j1", timeout=0.2)
    assert 0.2 <= time.monotonic() - began < 30


def test_wait_for_a_job_of_a_platform_that_never_answered_fails_soon() -> None:
    with scripted(lambda _request, _n: json_answer(JOB)) as server:
        url = server.url
    began = time.monotonic()
    with Client(url, "weft_k_s") as client, pytest.raises(ConnectionFailed, match="nothing answers"):
        client.jobs.wait("j1")
    assert time.monotonic() - began < 10 * FIRST_RETRY_FOR_S


def test_wait_at_an_address_that_is_no_platform_fails_at_once() -> None:
    page = Answer(200, b"<html>")
    with (
        scripted(lambda _request, _n: page) as server,
        Client(server.url, "weft_k_s") as client,
        pytest.raises(Unavailable, match="is this the address of a Weft platform"),
    ):
        client.jobs.wait("j1")
    assert len(server.requests) == 1
