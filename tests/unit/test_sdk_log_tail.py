"""The last lines of a log whose tail is longer than a page, which is limited in bytes, too."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from tests.testbed.scripted_http import Answer, Request, json_answer, scripted
from weft import Client

NEWEST = 12
ON_A_PAGE = 2


def answer(request: Request, before: int) -> Answer:
    """As the platform: a page of the last ``tail`` lines after ``after``, with two lines at most."""
    query = {name: int(values[0]) for name, values in parse_qs(urlsplit(request.path).query).items()}
    first = max(query.get("after", 0), NEWEST - query.get("tail", NEWEST)) + 1
    numbers = list(range(first, NEWEST + 1))[: min(query["limit"], ON_A_PAGE)]
    common = {"attempt": 1, "role": "worker", "rank": 0, "stream": "stdout", "time": "2026-11-21T13:20:00.123Z"}
    lines = [{"seq": number, "text": f"line {number}", **common} for number in numbers]
    return json_answer({"lines": lines, "next": numbers[-1], "more": numbers[-1] < NEWEST})


def test_the_last_lines_are_there_when_the_tail_is_longer_than_a_page() -> None:
    with scripted(answer) as server, Client(server.url, "weft_k_s") as client:
        lines = [line.text for line in client.jobs.logs("j1", tail=5)]
    assert lines == [f"line {number}" for number in range(8, 13)]


def test_a_tail_has_no_more_lines_than_were_wanted() -> None:
    with scripted(answer) as server, Client(server.url, "weft_k_s") as client:
        assert [line.text for line in client.jobs.logs("j1", tail=1)] == ["line 12"]
        assert list(client.jobs.logs("j1", tail=0)) == []
