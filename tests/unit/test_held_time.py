"""For how long jobs held hardware, within a window."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.held_time import HOUR_MS, KEPT_PERIODS, HeldJob, HeldPeriod, HeldTotal, with_period
from services.core.domain.job import Job, admitted, moved, released, set_desired
from services.core.domain.status import Desired, Status
from tests.documents import NOW, a_job

TIMES = st.integers(0, 1000)


def a_held_job(
    admitted: int | None = 100, released: int | None = 200, *before: tuple[int, int], gpus: float = 1.0
) -> HeldJob:
    """A job that held its hardware in these periods."""
    periods: tuple[HeldPeriod, ...] = ()
    for began, ended in before:
        periods = with_period(periods, began, ended)
    return HeldJob(
        id="j1",
        tenant="acme",
        user="ada",
        ended=False,
        gpus=gpus,
        cpus=2.0,
        admitted=admitted,
        released=released,
        held_before=periods,
    )


def admit(job: Job, *, now: int) -> Job:
    return admitted(job, placement={}, dispatcher_term=1, now=now)


def give_back(job: Job, to: Status, *, now: int) -> Job:
    """The job after its attempt has ended in this status; its hardware is gone five milliseconds later."""
    return released(moved(job, to, actor="test", now=now), now=now + 5)


def periods_of(job: Job) -> list[tuple[int, int, int]]:
    return [(period.began - NOW, period.ended - NOW, period.held) for period in job.held_before]


@pytest.mark.parametrize(
    ("since", "until", "held"),
    [
        (0, 1000, 100),  # all of it
        (100, 200, 100),
        (150, 1000, 50),  # cut at the beginning
        (0, 130, 30),  # cut at the end
        (120, 130, 10),  # longer than the window
        (0, 100, 0),  # before: the end of the window does not belong to it
        (200, 300, 0),  # after
        (300, 200, 0),
    ],
)
def test_only_the_time_within_the_window_counts(since: int, until: int, held: int) -> None:
    assert a_held_job(100, 200).held_ms(since=since, until=until, now=9999) == held
    assert a_held_job(None, None, (100, 200)).held_ms(since=since, until=until, now=9999) == held


def test_a_job_that_still_runs_counts_until_now() -> None:
    job = a_held_job(100, None)
    assert job.held_ms(since=0, until=500, now=300) == 200
    assert job.held_ms(since=0, until=250, now=300) == 150


def test_a_job_that_was_never_admitted_held_nothing() -> None:
    assert a_held_job(None, None).held_ms(since=0, until=500, now=500) == 0


def test_all_attempts_count_and_the_time_between_them_does_not() -> None:
    job = a_held_job(700, 800, (100, 200), (300, 450))
    assert job.held_ms(since=0, until=1000, now=1000) == 100 + 150 + 100
    assert job.held_ms(since=150, until=750, now=1000) == 50 + 150 + 50
    assert job.held_ms(since=200, until=300, now=1000) == 0


@given(
    TIMES,
    st.none() | TIMES,
    st.lists(st.tuples(TIMES, TIMES), max_size=5),
    TIMES,
    TIMES,
    TIMES,
)
def test_no_order_of_times_gives_a_negative_sum_or_more_than_was_held(
    began: int, ended: int | None, before: list[tuple[int, int]], since: int, until: int, now: int
) -> None:
    held = a_held_job(began, ended, *before).held_ms(since=since, until=until, now=now)
    lengths = sum(max(0, end - begin) for begin, end in before)
    assert 0 <= held <= lengths + max(0, (now if ended is None else ended) - began)


@given(st.lists(st.tuples(TIMES, TIMES), max_size=5), TIMES, TIMES, TIMES)
def test_two_windows_that_meet_have_together_what_their_union_has(
    before: list[tuple[int, int]], first: int, second: int, third: int
) -> None:
    since, middle, until = sorted((first, second, third))
    job = a_held_job(10, 990, *before)
    parts = job.held_ms(since=since, until=middle, now=0) + job.held_ms(since=middle, until=until, now=0)
    assert parts == pytest.approx(job.held_ms(since=since, until=until, now=0))


def test_a_clock_that_was_set_back_makes_a_period_empty() -> None:
    assert with_period((), 200, 100) == (HeldPeriod(began=200, ended=200, held=0),)
    assert a_held_job(200, 100).held_ms(since=0, until=500, now=500) == 0
    assert a_held_job(200, None).held_ms(since=0, until=500, now=100) == 0


def test_a_document_keeps_few_periods_and_merges_those_that_are_closest() -> None:
    periods: tuple[HeldPeriod, ...] = ()
    for number in range(KEPT_PERIODS):
        periods = with_period(periods, number * 100, number * 100 + 10)
    assert [period.held for period in periods] == [10] * KEPT_PERIODS
    last = KEPT_PERIODS * 100
    longer = with_period(periods, last - 85, last)
    assert len(longer) == KEPT_PERIODS
    assert longer[:-1] == periods[:-1]
    assert longer[-1] == HeldPeriod(began=last - 100, ended=last, held=95)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=3 * KEPT_PERIODS))
def test_merging_loses_no_time(attempts: list[tuple[int, int]]) -> None:
    periods: tuple[HeldPeriod, ...] = ()
    time = 0
    for pause, length in attempts:
        periods = with_period(periods, time + pause, time + pause + length)
        time += pause + length
    assert len(periods) <= KEPT_PERIODS
    assert sum(period.within(0, time) for period in periods) == pytest.approx(sum(length for _, length in attempts))


def test_a_merged_period_that_the_window_cuts_counts_in_proportion() -> None:
    merged = HeldPeriod(began=100, ended=200, held=40)
    assert merged.within(0, 150) == 20
    assert merged.within(0, 1000) == 40


def test_an_admission_records_when_the_attempt_before_held_hardware() -> None:
    job = give_back(admit(a_job(), now=NOW), Status.QUEUED, now=NOW + 10)
    assert job.held_before == ()
    job = give_back(admit(job, now=NOW + 100), Status.QUEUED, now=NOW + 120)
    assert periods_of(job) == [(0, 15, 15)]
    assert periods_of(admit(job, now=NOW + 200)) == [(0, 15, 15), (100, 125, 25)]


def test_a_job_that_was_halted_and_resumed_keeps_the_time_before_the_halt() -> None:
    job = admit(a_job(), now=NOW)
    job = set_desired(job, Desired.HALT, actor="user:ada", now=NOW + 1)
    job = give_back(moved(job, Status.HALTING, actor="test", now=NOW + 2), Status.HALTED, now=NOW + 10)
    job = admit(set_desired(job, Desired.RUN, actor="user:ada", now=NOW + 500), now=NOW + 600)
    assert periods_of(job) == [(0, 15, 15)]


def test_an_attempt_of_an_older_version_without_its_times_adds_no_period() -> None:
    job = give_back(admit(a_job(), now=NOW), Status.QUEUED, now=NOW + 10)
    without = replace(job, attempt=replace(job.attempt, admitted=None))
    assert admit(without, now=NOW + 100).held_before == ()


def test_a_total_counts_fractions_of_gpus_and_only_jobs_that_held_something() -> None:
    total = HeldTotal()
    total.add(a_held_job(gpus=0.25), 2 * HOUR_MS)
    total.add(a_held_job(gpus=8), 0)
    total.add(a_held_job(gpus=0), HOUR_MS)
    assert (total.jobs, total.gpu_hours, total.cpu_hours) == (2, 0.5, 6.0)
