"""`weft wait` for several jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.testbed.scripted_http import Answer, Request, json_answer, signed_in
from weft._cli.main import run

A, B, C = (f"j{letter * 22}" for letter in "abc")


class Platform:
    """Its jobs come to rest, or are deleted (None), at their third reading."""

    def __init__(self) -> None:
        self.ends: dict[str, str | None] = {}
        self.readings: dict[str, int] = {}

    def answer(self, request: Request, _number: int) -> Answer:
        id_ = request.path.rpartition("/")[2]
        self.readings[id_] = self.readings.get(id_, 0) + 1
        job: dict[str, Any] = {"id": id_, "name": id_[:2], "status": "PROCESSING", "at_rest": False}
        if self.readings[id_] > 2:
            if (status := self.ends[id_]) is None:
                return json_answer({"code": "not-found", "detail": f"there is no job {id_}"}, 404)
            job |= {"status": status, "at_rest": True}
        return json_answer(job)


@pytest.fixture
def platform() -> Iterator[Platform]:
    platform = Platform()
    with signed_in(platform.answer):
        yield platform


@pytest.mark.parametrize(("end_of_last", "code"), [("COMPLETED", 4), ("FAILED", 100)])
def test_jobs_are_waited_for_although_another_is_deleted_meanwhile(
    platform: Platform, capsys: pytest.CaptureFixture[str], end_of_last: str, code: int
) -> None:
    """It ended at the deletion, while other jobs still ran, and without a word about them."""
    platform.ends = {A: "COMPLETED", B: None, C: end_of_last}
    assert run(["wait", A, B, C, "-o", "json"]) == code
    out, err = capsys.readouterr()
    assert [(job["id"], job["status"]) for job in json.loads(out)["jobs"]] == [(A, "COMPLETED"), (C, end_of_last)]
    assert f"there is no job {B}" in json.loads(err)["error"]["message"]


def test_a_single_job_that_is_deleted_is_an_error_alone(platform: Platform, capsys: pytest.CaptureFixture[str]) -> None:
    platform.ends = {A: None}
    assert run(["wait", A, "-o", "json"]) == 4
    assert capsys.readouterr().out == ""
