"""Which attempt is current, and may its gang go: how many questions reach etcd, and how old an answer may be."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from services.core.domain.codec import dump
from services.core.domain.errors import InvalidRequest, PermissionDenied, Unavailable
from services.core.domain.learner import LearnerStatus
from services.core.domain.status import Phase
from services.core.domain.tokens import LearnerIdentity
from services.core.ports.status_store import Entry
from services.metrics.attempts import Attempts
from services.metrics.reports import STALE, UNCHANGED, WRITTEN, Reports, status_of
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.waiting import until

JOB = "j0"


class CountedStore(MemoryStatusStore):
    """Counts reads; while the gate is closed, they have read and do not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def get(self, key: str) -> Entry | None:
        self.reads += 1
        found = await super().get(key)
        await self.gate.wait()
        return found

    async def announce(self, attempt: int, learners: int = 1, *, job: str = JOB) -> None:
        await self.put(f"/jobs/{job}/attempt", json.dumps({"attempt": attempt, "learners": learners}))


@pytest.fixture
def store() -> CountedStore:
    return CountedStore()


@pytest.fixture
async def attempts(store: CountedStore) -> AsyncGenerator[Attempts]:
    made = Attempts(store)
    following = asyncio.create_task(made.follow())
    yield made
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following


def learner(rank: int = 0, attempt: int = 1, job: str = JOB) -> LearnerIdentity:
    return LearnerIdentity(job, "t", attempt, "worker", rank, f"worker-{rank}")


def status(of: LearnerIdentity, phase: Phase = Phase.READY, seq: int = 1, message: str = "") -> LearnerStatus:
    return LearnerStatus(
        name=of.name, role=of.role, rank=of.rank, attempt=of.attempt, seq=seq, phase=phase, message=message
    )


async def test_questions_that_wait_together_share_one_read(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1, 1000)
    answers = await asyncio.gather(*(attempts.may_go(learner(rank)) for rank in range(1000)))
    assert set(answers) == {(True, False)}
    assert store.reads == 1


async def test_a_question_is_not_answered_by_a_read_that_began_before_it(
    store: CountedStore, attempts: Attempts
) -> None:
    await store.announce(1)
    store.gate.clear()
    early = asyncio.create_task(attempts.current(learner()))
    await until(lambda: store.reads == 1)
    await store.announce(2)  # the read that runs has seen attempt 1
    late = [asyncio.create_task(attempts.current(learner())) for _ in range(10)]
    store.gate.set()
    assert (await early).number == 1
    assert {one.number for one in await asyncio.gather(*late)} == {2}
    assert store.reads == 2


async def test_who_asked_and_left_takes_nobody_s_answer_along(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1)
    store.gate.clear()
    left, stays = (asyncio.create_task(attempts.current(learner())) for _ in range(2))
    await until(lambda: store.reads == 1)
    left.cancel()
    store.gate.set()
    assert (await stays).number == 1


async def test_once_told_to_go_beats_cost_etcd_nothing(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1)
    reports, me = Reports(store, attempts), learner()
    assert await reports.write(me, status(me)) == WRITTEN
    assert await attempts.may_go(me) == (True, True)
    await until(lambda: attempts.known(JOB) is not None)
    reads = store.reads
    for _ in range(100):
        assert await attempts.may_go(me) == (True, True)
        assert await reports.write(me, status(me)) == UNCHANGED
    assert store.reads == reads


async def test_each_learner_s_first_go_is_read_afresh(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1, 2)
    reports = Reports(store, attempts)
    for rank in range(2):
        await reports.write(learner(rank), status(learner(rank)))
    assert await attempts.may_go(learner(0)) == (True, True)
    reads = store.reads
    assert await attempts.may_go(learner(1)) == (True, True)
    assert store.reads == reads + 1


async def test_nobody_goes_where_a_helper_has_given_up(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1, 2)
    reports, me, other = Reports(store, attempts), learner(0), learner(1)
    await reports.write(me, status(me))
    gave_up = replace(status(other, Phase.STORED), reason="DataStoreDenied")
    assert await reports.write(other, gave_up) == WRITTEN
    assert await attempts.may_go(me) == (True, False)


async def test_a_newer_attempt_ends_the_former_one_s_go(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1)
    me = learner()
    await Reports(store, attempts).write(me, status(me))
    assert await attempts.may_go(me) == (True, True)
    await store.announce(2)
    await until(lambda: (known := attempts.known(JOB)) is not None and known.number == 2)
    assert await attempts.may_go(me) == (False, False)


async def test_an_etcd_that_lost_everything_ends_nobody(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1)
    me, reports = learner(), Reports(store, attempts)
    await reports.write(me, status(me, Phase.PROCESSING))
    assert await attempts.may_go(me) == (True, True)
    store.forget()
    await until(lambda: attempts.known(JOB) is None)
    with pytest.raises(Unavailable):
        await attempts.may_go(me)
    with pytest.raises(Unavailable):
        await reports.write(me, status(me, Phase.PROCESSING))
    await store.announce(1)
    assert await reports.write(me, status(me, Phase.PROCESSING)) == WRITTEN
    assert await attempts.may_go(me) == (True, True)


async def test_a_job_that_is_over_is_not_remembered(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1)
    me = learner()
    await Reports(store, attempts).write(me, status(me))
    assert await attempts.may_go(me) == (True, True)
    await store.delete_prefix(f"/jobs/{JOB}/")
    await until(lambda: attempts.known(JOB) is None)
    assert not attempts.was_told(me)


@pytest.mark.parametrize("value", ["", "null", "[]", '{"attempt": "x"}', '{"attempt": 1}', "[" * 60_000])
async def test_a_malformed_value_is_as_if_it_were_not_there(
    store: CountedStore, attempts: Attempts, value: str
) -> None:
    await store.put(f"/jobs/{JOB}/attempt", value)
    await store.put(f"/jobs/{JOB}/learners/worker-0", value)
    await store.announce(1, job="j1")
    with pytest.raises(Unavailable):
        await attempts.may_go(learner())
    await until(lambda: attempts.known("j1") is not None)  # the view goes on
    await store.announce(1)
    assert await Reports(store, attempts).write(learner(), status(learner())) == WRITTEN


async def test_a_report_that_was_overtaken_while_it_was_written_is_refused(
    store: CountedStore, attempts: Attempts
) -> None:
    await store.announce(1)
    reports, me = Reports(store, attempts), learner()
    store.gate.clear()
    slow = asyncio.create_task(reports.write(me, status(me)))
    await until(lambda: store.reads == 1)
    await store.announce(2)
    store.gate.set()
    assert await slow == STALE
    assert await store.list(f"/jobs/{JOB}/learners/") == []


async def test_a_long_message_keeps_its_end(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1)
    me = learner()
    await Reports(store, attempts).write(me, status(me, message="x" * 50_000 + "the cause"))
    (entry,) = await store.list(f"/jobs/{JOB}/learners/")
    assert json.loads(entry.value)["message"].endswith("the cause")
    assert len(entry.value) < 4_000


def test_a_report_is_of_the_learner_who_sends_it() -> None:
    me = learner()
    assert status_of(me, json.dumps(dump(status(me))).encode()) == status(me)
    for other in (learner(rank=1), learner(attempt=2)):
        with pytest.raises(PermissionDenied):
            status_of(me, json.dumps(dump(status(other))).encode())
    with pytest.raises(InvalidRequest):
        status_of(me, b"{}")


async def test_a_report_that_etcd_took_just_before_it_forgot_everything_does_not_keep_its_gang_from_going(
    store: CountedStore, attempts: Attempts
) -> None:
    """Its answer comes after the view was emptied; revisions begin anew, far below it."""
    reports, asked, answered = Reports(store, attempts), asyncio.Event(), asyncio.Event()
    take = store.put_while

    async def taken_and_then_forgotten(*args: Any, **kwargs: Any) -> int | None:
        revision = await take(*args, **kwargs)
        asked.set()
        await answered.wait()
        return revision

    for _ in range(50):
        await store.announce(1)
    store.put_while = taken_and_then_forgotten  # type: ignore[method-assign]
    writing = asyncio.create_task(reports.write(learner(), status(learner(), Phase.DOWNLOADING, seq=1)))
    await asked.wait()
    store.forget()
    await until(lambda: attempts.known(JOB) is None)
    answered.set()
    await writing
    store.put_while = take  # type: ignore[method-assign]
    await store.announce(1)
    assert await reports.write(learner(), status(learner(), Phase.DOWNLOADING, seq=1)) == WRITTEN
    assert await reports.write(learner(), status(learner(), Phase.READY, seq=2)) == WRITTEN
    assert await attempts.may_go(learner()) == (True, True)
