"""Tricks of many requests."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.hostile.arena import Arena
from tests.hostile.sending import (
    is_refusal,
    request,
    spec_with,
)
from tests.hostile.trick import Trick, judge, of_request
from tests.waiting import HANG_S
from weft._job import Job


@of_request("load")
def searches_back_track(arena: Arena) -> Iterator[str]:
    """Regular expressions that take for ever, in eight searches at once, while others use the api."""
    job = arena.submit({"name": "lines", "command": "for n in $(seq 200); do printf 'a%.0s' $(seq 200); echo b; done"})
    yield from judge(arena, job, finishes=False, reads=False)
    patterns = [
        "(a+)%2B$",
        "(a|aa)*c",
        "(a*)*d",
        "((a+)%2B)%2B$",
        "(.*a){25}",
        "(a{1,1000}){1,1000}",
        "%5B",
        "(?P<x>a)(%3FP=x)",
    ]
    with ThreadPoolExecutor(8) as threads:
        searches = [
            threads.submit(request, arena, "GET", f"/v1/jobs/{job.id}/logs?search={pattern}") for pattern in patterns
        ]
        began = time.monotonic()
        arena.victim.jobs.get(arena.vault.id)
        if (took := time.monotonic() - began) > 20:
            yield f"another user waited {took:.0f} s"
        for pattern, search in zip(patterns, searches, strict=True):
            if (status := search.result()[0]) not in {200, 400, 422, 429}:
                yield f"search {pattern}: {status}"


@of_request("load")
def verbs_come_in_storms(arena: Arena) -> Iterator[str]:
    """Halt, resume, kill and delete, fifty at once and in any order, on one job."""
    job = arena.submit({"name": "storm", "command": "sleep 60"})
    verbs = ["halt", "resume", "kill", "halt", "resume"] * 10
    with ThreadPoolExecutor(8) as threads:
        answers = threads.map(lambda verb: request(arena, "POST", f"/v1/jobs/{job.id}/{verb}")[0], verbs)
        wrong = [status for status in answers if not (200 <= status < 300 or 400 <= status < 500)]
    if wrong:
        yield f"statuses {wrong}"
    yield from _end_of_storm(job)


def _end_of_storm(job: Job) -> Iterator[str]:
    job.kill()
    job.wait(HANG_S)
    if job.status != "KILLED":
        yield f"the killed job is {job.status}"


@of_request("load")
def submissions_come_in_storms(arena: Arena) -> Iterator[str]:
    """Sixty jobs at once, half of them with one idempotency key; the victim's next job is not starved."""
    body = json.dumps(spec_with(command="sleep 30")).encode()

    def submit(number: int) -> tuple[int, bytes]:
        key = {"Idempotency-Key": "storm"} if number % 2 else {}
        return request(arena, "POST", "/v1/jobs", body, {"Content-Type": "application/json", **key})

    with ThreadPoolExecutor(8) as threads:
        answers = [*threads.map(submit, range(60))]
    made = {str(json.loads(text)["id"]) for status, text in answers if status in {200, 201}}
    arena.jobs.update(made)
    for status, text in answers:
        if status not in {200, 201} and not is_refusal(status):
            yield f"{status} {text[:200]!r}"
    for job_id in made:
        arena.attacker.jobs.kill(job_id)
    for job_id in made:
        arena.attacker.jobs.wait(job_id, timeout=HANG_S)
    if len(made) > 31:
        yield f"one idempotency key made {len(made) - 30} jobs"


TRICKS: Final[tuple[Trick, ...]] = (
    searches_back_track,
    verbs_come_in_storms,
    submissions_come_in_storms,
)
