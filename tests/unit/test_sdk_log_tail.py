"""The last lines of a log whose tail is longer than a page (limited in bytes, too), or than one search finds."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from tests.testbed.scripted_http import Answer, Request, json_answer, scripted
from weft import Client

NEWEST = 12
ON_A_PAGE = 2
COMMON = {"attempt": 1, "role": "worker", "rank": 0, "stream": "stdout", "time": "2026-11-21T13:20:00.123Z"}


def answer(request: Request, before: int) -> Answer:
    """As the platform: a page of the last ``tail`` lines after ``after``, with two lines at most."""
    query = {name: int(values[0]) for name, values in parse_qs(urlsplit(request.path).query).items()}
    first = max(query.get("after", 0), NEWEST - query.get("tail", NEWEST)) + 1
    numbers = list(range(first, NEWEST + 1))[: min(query.get("limit", NEWEST), ON_A_PAGE)]
    lines = [{**COMMON, "seq": number, "text": f"line {number}"} for number in numbers]
    return json_answer({"lines": lines, "next": numbers[-1], "more": numbers[-1] < NEWEST})


def test_the_last_lines_are_there_when_the_tail_is_longer_than_a_page() -> None:
    with scripted(answer) as server, Client(server.url, "weft_k_s") as client:
        lines = [line.text for line in client.jobs.logs("j1", tail=5)]
    assert lines == [f"line {number}" for number in range(8, 13)]


def searched(request: Request, before: int) -> Answer:
    """A search that gets through five lines before its time is over."""
    query = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
    last = int(query.get("before", NEWEST + 1)) - 1
    first = max(1, last - 4)
    lines = [
        {**COMMON, "seq": number, "text": f"line {number}"} for number in range(first, last + 1) if number % 3 == 0
    ]
    more = {"previous": first, "partial": True} if first > 1 else {"previous": None, "partial": False}
    return json_answer({"lines": lines[-int(query["tail"]) :], "next": NEWEST, "more": False, **more})


def test_a_search_that_stopped_for_its_time_is_continued_to_the_beginning() -> None:
    with scripted(searched) as server, Client(server.url, "weft_k_s") as client:
        lines = [line.text for line in client.jobs.logs("j1", tail=100, search="3")]
    assert lines == [f"line {number}" for number in (3, 6, 9, 12)]


def test_a_tail_has_no_more_lines_than_were_wanted() -> None:
    with scripted(answer) as server, Client(server.url, "weft_k_s") as client:
        assert [line.text for line in client.jobs.logs("j1", tail=1)] == ["line 12"]
        assert list(client.jobs.logs("j1", tail=0)) == []
