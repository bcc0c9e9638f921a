"""The start-up of a job as users see it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.api.startup import startup
from services.core.domain.job import Attempt, Job, State
from services.core.domain.startup import Span
from services.core.domain.status import Status

QUEUED = Job(
    id="j1",
    tenant="t",
    user="u",
    spec={},
    code_digest="",
    idem="",
    idem_digest="",
    created=1_000,
    updated=1_000,
    state=State(status=Status.QUEUED, since=1_000),
)
ADMITTED = replace(
    QUEUED, state=State(status=Status.PENDING, since=3_000), attempt=Attempt(number=1, queued=1_000, admitted=3_000)
)


def steps(job: Job) -> list[tuple[str, int, int | None]]:
    return [(str(step.step), int(step.began), None if step.ended is None else int(step.ended)) for step in startup(job)]


def with_steps(started: int | None = None, **spans: Span) -> Job:
    return replace(ADMITTED, attempt=replace(ADMITTED.attempt, started=started, startup=spans))


def test_a_job_that_was_never_admitted_has_its_time_in_the_queue() -> None:
    assert steps(QUEUED) == [("queue", 1_000, None)]
    killed = replace(QUEUED, state=State(status=Status.KILLED, since=2_000))
    assert steps(killed) == [("queue", 1_000, 2_000)]


def test_an_admitted_job_is_being_scheduled() -> None:
    assert steps(ADMITTED) == [("queue", 1_000, 3_000), ("schedule", 3_000, None)]


def test_on_one_machine_the_first_helper_that_fetches_ends_the_scheduling() -> None:
    job = with_steps(code=Span(began=3_500, ended=3_600), environment=Span(began=3_600))
    assert steps(job)[1:] == [("schedule", 3_000, 3_500), ("code", 3_500, 3_600), ("environment", 3_600, None)]


def test_a_gang_that_has_all_waits_for_its_launch() -> None:
    job = with_steps(code=Span(began=3_500, ended=3_600), data=Span(began=3_600, ended=9_000))
    assert steps(job)[-1] == ("launch", 9_000, None)


def test_pods_fetch_while_their_image_is_pulled() -> None:
    job = with_steps(
        schedule=Span(began=3_100, ended=4_000), image=Span(began=4_000), code=Span(began=5_000, ended=5_100)
    )
    assert steps(job)[1:] == [("schedule", 3_000, 4_000), ("image", 4_000, None), ("code", 5_000, 5_100)]


def test_the_first_metric_ends_the_start_up() -> None:
    job = with_steps(9_000, code=Span(began=3_500, ended=3_600), first_step=Span(began=9_000, ended=9_900))
    assert steps(job)[-2:] == [("launch", 3_600, 9_000), ("first_step", 9_000, 9_900)]


@pytest.mark.parametrize("attempt", [Attempt(number=1, admitted=3_000, started=4_000)])
def test_a_job_of_an_older_version_has_what_its_document_says(attempt: Attempt) -> None:
    job = replace(ADMITTED, attempt=attempt)
    assert steps(job) == [("queue", 1_000, 3_000), ("schedule", 3_000, 4_000), ("launch", 4_000, 4_000)]


def test_a_second_attempt_waited_since_the_end_of_the_first() -> None:
    job = replace(ADMITTED, attempt=Attempt(number=2, queued=50_000, admitted=60_000))
    assert steps(job)[0] == ("queue", 50_000, 60_000)
