"""Which attempt is current and whether its gang may start: the number of reads of etcd, and how old a result may be."""

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
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.status import Phase
from services.core.domain.tokens import LearnerIdentity
from services.core.ports.status_store import Entry
from services.metrics.attempts import Attempts
from services.metrics.reports import STALE, UNCHANGED, WRITTEN, Reports, status_of
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.waiting import until

JOB = "j0"


class CountedStore(MemoryStatusStore):
    """Counts reads; until ``answering`` is set, a read has its result but does not return it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.answering = asyncio.Event()
        self.answering.set()

    async def get(self, key: str) -> Entry | None:
        self.reads += 1
        entry = await super().get(key)
        await self.answering.wait()
        return entry

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


async def test_concurrent_checks_of_one_job_share_one_read(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1, 1000)
    answers = await asyncio.gather(*(attempts.may_go(learner(rank)) for rank in range(1000)))
    assert set(answers) == {(True, False)}
    assert store.reads == 1


async def test_a_report_of_an_earlier_attempt_is_stale_though_the_watch_is_late(store: CountedStore) -> None:
    attempts = Attempts(store)
    reports = Reports(store, attempts)
    former, newer = learner(attempt=1), learner(attempt=2)
    await store.announce(1)
    following = asyncio.create_task(attempts.follow())
    await until(lambda: attempts.cached(JOB) is not None)
    following.cancel()  # what comes later is not in the view
    await asyncio.wait({following})
    await store.announce(2)
    assert await reports.write(newer, status(newer, Phase.WAITING)) == WRITTEN
    assert await reports.write(former, status(former, Phase.STORED)) == STALE


async def test_a_check_never_gets_the_result_of_a_read_that_began_earlier(
    store: CountedStore, attempts: Attempts
) -> None:
    await store.announce(1)
    store.answering.clear()
    early = asyncio.create_task(attempts.current(learner()))
    await until(lambda: store.reads == 1)
    await store.announce(2)  # the running read has read attempt 1
    late = [asyncio.create_task(attempts.current(learner())) for _ in range(10)]
    store.answering.set()
    assert (await early).number == 1
    assert {attempt.number for attempt in await asyncio.gather(*late)} == {2}
    assert store.reads == 2


async def test_cancelling_one_check_does_not_cancel_the_others(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1)
    store.answering.clear()
    cancelled, other = (asyncio.create_task(attempts.current(learner())) for _ in range(2))
    await until(lambda: store.reads == 1)
    cancelled.cancel()
    store.answering.set()
    assert (await other).number == 1


async def test_beats_after_the_start_read_nothing_from_etcd(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1)
    reports, me = Reports(store, attempts), learner()
    assert await reports.write(me, status(me)) == WRITTEN
    assert await attempts.may_go(me) == (True, True)
    await until(lambda: attempts.cached(JOB) is not None)
    reads = store.reads
    for _ in range(100):
        assert await attempts.may_go(me) == (True, True)
        assert await reports.write(me, status(me)) == UNCHANGED
    assert store.reads == reads


async def test_each_permission_to_start_reads_the_attempt_again(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1, 2)
    reports = Reports(store, attempts)
    for rank in range(2):
        await reports.write(learner(rank), status(learner(rank)))
    assert await attempts.may_go(learner(0)) == (True, True)
    reads = store.reads
    assert await attempts.may_go(learner(1)) == (True, True)
    assert store.reads == reads + 1


async def test_no_learner_starts_if_a_helper_of_the_gang_gave_up(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1, 2)
    reports, me, other = Reports(store, attempts), learner(0), learner(1)
    await reports.write(me, status(me))
    gave_up = replace(status(other, Phase.STORED), reason="DataStoreDenied")
    assert await reports.write(other, gave_up) == WRITTEN
    assert await attempts.may_go(me) == (True, False)


async def test_no_learner_starts_if_another_of_its_gang_was_stopped_and_etcd_has_lost_the_stop(
    store: CountedStore, attempts: Attempts
) -> None:
    await store.announce(1, 2)
    reports, me, other = Reports(store, attempts), learner(0), learner(1)
    stopped = Exit(time=1, signal=15, stop_cause="halt")
    assert await reports.write(other, replace(status(other, Phase.STORED), exit=stopped)) == WRITTEN
    await reports.write(me, status(me))
    assert await attempts.may_go(me) == (True, False)


async def test_a_newer_attempt_withdraws_the_permission_to_start(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1)
    me = learner()
    await Reports(store, attempts).write(me, status(me))
    assert await attempts.may_go(me) == (True, True)
    await store.announce(2)
    await until(lambda: (attempt := attempts.cached(JOB)) is not None and attempt.number == 2)
    assert await attempts.may_go(me) == (False, False)


async def test_no_learner_is_ended_when_etcd_loses_everything(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1)
    me, reports = learner(), Reports(store, attempts)
    await reports.write(me, status(me, Phase.PROCESSING))
    assert await attempts.may_go(me) == (True, True)
    store.forget()
    await until(lambda: attempts.cached(JOB) is None)
    with pytest.raises(Unavailable):
        await attempts.may_go(me)
    with pytest.raises(Unavailable):
        await reports.write(me, status(me, Phase.PROCESSING))
    await store.announce(1)
    assert await reports.write(me, status(me, Phase.PROCESSING)) == WRITTEN
    assert await attempts.may_go(me) == (True, True)


async def test_state_of_a_removed_job_is_dropped(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1)
    me = learner()
    await Reports(store, attempts).write(me, status(me))
    assert await attempts.may_go(me) == (True, True)
    await store.delete_prefix(f"/jobs/{JOB}/")
    await until(lambda: attempts.cached(JOB) is None)
    assert not attempts.is_started(me)


@pytest.mark.parametrize("value", ["", "null", "[]", '{"attempt": "x"}', '{"attempt": 1}', "[" * 60_000])
async def test_a_malformed_value_is_treated_as_missing(store: CountedStore, attempts: Attempts, value: str) -> None:
    await store.put(f"/jobs/{JOB}/attempt", value)
    await store.put(f"/jobs/{JOB}/learners/worker-0", value)
    await store.announce(1, job="j1")
    with pytest.raises(Unavailable):
        await attempts.may_go(learner())
    await until(lambda: attempts.cached("j1") is not None)  # the view is still updated
    await store.announce(1)
    assert await Reports(store, attempts).write(learner(), status(learner())) == WRITTEN


async def test_a_report_is_refused_if_a_newer_attempt_begins_while_it_is_written(
    store: CountedStore, attempts: Attempts
) -> None:
    await store.announce(1)
    reports, me = Reports(store, attempts), learner()
    store.answering.clear()
    slow = asyncio.create_task(reports.write(me, status(me)))
    await until(lambda: store.reads == 1)
    await store.announce(2)
    store.answering.set()
    assert await slow == STALE
    assert await store.list(f"/jobs/{JOB}/learners/") == []


async def test_a_long_message_keeps_its_end(store: CountedStore, attempts: Attempts) -> None:
    await store.announce(1)
    me = learner()
    await Reports(store, attempts).write(me, status(me, message="x" * 50_000 + "the cause"))
    (entry,) = await store.list(f"/jobs/{JOB}/learners/")
    assert json.loads(entry.value)["message"].endswith("the cause")
    assert len(entry.value) < 4_000


def test_a_learner_may_report_only_for_itself() -> None:
    me = learner()
    assert status_of(me, json.dumps(dump(status(me))).encode()) == status(me)
    for other in (learner(rank=1), learner(attempt=2)):
        with pytest.raises(PermissionDenied):
            status_of(me, json.dumps(dump(status(other))).encode())
    with pytest.raises(InvalidRequest):
        status_of(me, b"{}")


async def test_a_gang_starts_although_etcd_lost_everything_during_a_report(
    store: CountedStore, attempts: Attempts
) -> None:
    """The reply comes after the view was emptied; the new revisions are far below the one in the reply."""
    reports, written, replying = Reports(store, attempts), asyncio.Event(), asyncio.Event()
    put_while = store.put_while

    async def with_late_reply(*args: Any, **kwargs: Any) -> int | None:
        revision = await put_while(*args, **kwargs)
        written.set()
        await replying.wait()
        return revision

    for _ in range(50):
        await store.announce(1)
    store.put_while = with_late_reply  # type: ignore[method-assign]
    writing = asyncio.create_task(reports.write(learner(), status(learner(), Phase.DOWNLOADING, seq=1)))
    await written.wait()
    store.forget()
    await until(lambda: attempts.cached(JOB) is None)
    replying.set()
    await writing
    store.put_while = put_while  # type: ignore[method-assign]
    await store.announce(1)
    assert await reports.write(learner(), status(learner(), Phase.DOWNLOADING, seq=1)) == WRITTEN
    assert await reports.write(learner(), status(learner(), Phase.READY, seq=2)) == WRITTEN
    assert await attempts.may_go(learner()) == (True, True)


async def test_a_status_under_another_learner_s_key_does_not_make_the_gang_ready(
    store: CountedStore, attempts: Attempts
) -> None:
    await store.announce(1, 2)
    reports, first, second = Reports(store, attempts), learner(0), learner(1)
    await reports.write(first, status(first))
    await store.put(f"/jobs/{JOB}/learners/forged", json.dumps(dump(status(second))))
    await store.announce(1, job="j1")
    await until(lambda: attempts.cached("j1") is not None)  # the view has seen the forged status
    assert await attempts.may_go(first) == (True, False)
    assert await reports.write(second, status(second)) == WRITTEN
    assert await attempts.may_go(first) == (True, True)


async def test_a_report_with_text_that_no_store_takes_is_written_with_escapes(
    store: CountedStore, attempts: Attempts
) -> None:
    await store.announce(1)
    document = {**dump(status(learner())), "message": "a\x00b\ud800", "extra": {"\x00": ["\udcff"]}}
    reported = status_of(learner(), json.dumps(document).encode())
    assert await Reports(store, attempts).write(learner(), reported) == WRITTEN
    (entry,) = await store.list(f"/jobs/{JOB}/learners/")
    written = json.loads(entry.value)
    assert written["message"] == r"a\x00b\ud800"
    assert written["extra"] == {r"\x00": [r"\xff"]}
