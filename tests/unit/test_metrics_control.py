"""What helpers of pods hear of their learner: start, stop, and that another attempt is current."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from services.core.adapters.folder.objects import FolderObjectStore
from services.core.domain.codec import dump
from services.core.domain.errors import InvalidRequest, NotFound, PermissionDenied, StaleFence, Unavailable
from services.core.domain.learner import LearnerStatus
from services.core.domain.status import Phase
from services.core.domain.status_keys import attempt_key, learner_key, stop_key
from services.core.domain.tokens import LearnerIdentity
from services.metrics.attempts import Attempts, Stop
from services.metrics.control import Control, Desired
from services.metrics.following import Notifier
from services.metrics.object_calls import ObjectCalls
from services.metrics.signing import Signing
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.waiting import until

JOB = "j0"
OWN = f"tenants/t/jobs/{JOB}/attempts/1/results/worker-0/model"


class Platform:
    """etcd, and the metrics service's view of it."""

    def __init__(self) -> None:
        self.etcd = MemoryStatusStore()
        self.stopping = asyncio.Event()
        changes = Notifier()
        self.attempts = Attempts(self.etcd, changes.notify)
        self.control = Control(self.attempts, changes, self.stopping, 10.0)

    async def announce(self, attempt: int, learners: int = 1) -> None:
        await self.etcd.put(attempt_key(JOB), json.dumps({"attempt": attempt, "learners": learners}))

    async def ready(self, rank: int) -> None:
        name = f"worker-{rank}"
        status = LearnerStatus(name=name, role="worker", rank=rank, attempt=1, seq=1, phase=Phase.READY)
        await self.etcd.put(learner_key(JOB, name), json.dumps(dump(status)))

    async def stop(self, attempt: int = 1, *, generation: int = 2, cause: str = "halt", grace_ms: int = 500) -> None:
        mark = {"attempt": attempt, "generation": generation, "cause": cause, "grace_ms": grace_ms, "time": 1}
        await self.etcd.put(stop_key(JOB), json.dumps(mark))


@pytest.fixture
async def platform() -> AsyncGenerator[Platform]:
    made = Platform()
    following = asyncio.create_task(made.attempts.follow())
    yield made
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following


def learner(rank: int = 0, attempt: int = 1) -> LearnerIdentity:
    return LearnerIdentity(JOB, "t", attempt, "worker", rank, f"worker-{rank}")


async def test_heartbeat_with_lines_is_answered_without_etcd_once_the_learner_may_run(platform: Platform) -> None:
    assert platform.control.cached(learner()) is None
    await platform.announce(1)
    await platform.ready(0)
    assert platform.control.cached(learner()) is None  # its start needs a read of etcd
    assert (await platform.control.read(learner())).go
    assert platform.control.cached(learner()) == Desired(current=True, go=True, stop=None)
    await platform.stop()
    await until(lambda: platform.control.cached(learner()) == Desired(True, True, Stop(1, 2, "halt", 500)))
    await platform.announce(2)
    await until(lambda: platform.control.cached(learner()) is None)  # a read says that it is not current


async def test_helper_hears_at_once_of_go_and_stop(platform: Platform) -> None:
    await platform.announce(1, learners=2)
    async with aclosing(platform.control.follow(learner())) as changes:
        assert await anext(changes) == Desired(current=True, go=False, stop=None)
        await platform.ready(0)
        await platform.ready(1)
        assert await anext(changes) == Desired(current=True, go=True, stop=None)
        await platform.stop()
        assert await anext(changes) == Desired(current=True, go=True, stop=Stop(1, 2, "halt", 500))
        await platform.stop(generation=3, cause="kill", grace_ms=0)
        assert (await anext(changes)).stop == Stop(1, 3, "kill", 0)


async def test_stop_that_was_written_before_the_helper_called_is_its_first_answer(platform: Platform) -> None:
    await platform.announce(1)
    await platform.stop()
    await until(lambda: platform.attempts.stop(learner()))
    async with aclosing(platform.control.follow(learner())) as changes:
        assert (await anext(changes)).stop == Stop(1, 2, "halt", 500)


async def test_stop_of_an_earlier_attempt_stops_no_learner_of_the_next(platform: Platform) -> None:
    await platform.announce(2)
    await platform.stop(attempt=1)
    await until(lambda: platform.attempts.cached(JOB))
    assert (await platform.control.read(learner(attempt=2))).stop is None


async def test_learner_of_a_replaced_attempt_hears_that_it_is_not_current(platform: Platform) -> None:
    await platform.announce(1)
    async with aclosing(platform.control.follow(learner())) as changes:
        assert (await anext(changes)).current
        await platform.announce(2)
        assert not (await anext(changes)).current


@pytest.mark.parametrize(
    "value",
    [
        "",
        "[]",
        '{"attempt": 1}',
        '{"attempt": 1, "generation": 1, "cause": "whim", "grace_ms": 1}',
        '{"attempt": 1, "generation": 1, "cause": "halt", "grace_ms": -1}',
        '{"attempt": "x"}',
    ],
)
async def test_malformed_stop_stops_nothing_and_the_next_one_counts(platform: Platform, value: str) -> None:
    await platform.announce(1)
    await platform.etcd.put(stop_key(JOB), value)
    await platform.ready(0)
    async with aclosing(platform.control.follow(learner())) as changes:
        assert (await anext(changes)).stop is None
        await platform.stop()
        assert await until(lambda: platform.attempts.stop(learner())) == Stop(1, 2, "halt", 500)


async def test_stop_is_gone_with_the_jobs_keys(platform: Platform) -> None:
    await platform.announce(1)
    await platform.stop()
    await until(lambda: platform.attempts.stop(learner()))
    await platform.etcd.delete_prefix(f"/jobs/{JOB}/")
    await until(lambda: platform.attempts.stop(learner()) is None)


async def test_stream_ends_as_unavailable_when_the_service_stops(platform: Platform) -> None:
    await platform.announce(1)
    async with aclosing(platform.control.follow(learner())) as changes:
        await anext(changes)
        platform.stopping.set()
        with pytest.raises(Unavailable):
            await anext(changes)


async def chunks(*parts: bytes) -> AsyncGenerator[bytes]:
    for part in parts:
        yield part


async def joined(stream: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in stream])


@pytest.fixture
async def objects(platform: Platform, tmp_path: Path) -> ObjectCalls:
    await platform.announce(1)
    await until(lambda: platform.attempts.cached(JOB))
    return ObjectCalls(Signing(platform.attempts, None), FolderObjectStore.make(tmp_path / "objects"))


async def test_objects_of_a_learner_in_a_pod_go_through_the_metrics_service(objects: ObjectCalls) -> None:
    await objects.put(learner(), OWN, chunks(b"", b"mod", b"el"), 5)
    assert await objects.size(learner(), OWN) == 5
    assert await joined(objects.get(learner(), OWN, 0)) == b"model"
    assert await joined(objects.get(learner(), OWN, 3)) == b"el"
    assert await objects.size(learner(), f"{OWN}2") is None
    with pytest.raises(NotFound):
        await joined(objects.get(learner(), f"{OWN}2", 0))


async def test_object_whose_upload_breaks_off_does_not_exist(objects: ObjectCalls) -> None:
    with pytest.raises(InvalidRequest):
        await objects.put(learner(), OWN, chunks(b"mod"), 5)
    assert await objects.size(learner(), OWN) is None


async def test_learner_moves_no_object_of_another_one(objects: ObjectCalls) -> None:
    with pytest.raises(PermissionDenied):
        await objects.put(learner(1), OWN, chunks(b"x"), 1)
    with pytest.raises(PermissionDenied):
        await joined(objects.get(learner(1), OWN, 0))
    with pytest.raises(PermissionDenied):
        await objects.size(learner(1), OWN)


async def test_learner_of_a_replaced_attempt_stores_nothing_any_more(objects: ObjectCalls, platform: Platform) -> None:
    await platform.announce(2)
    with pytest.raises(StaleFence):
        await objects.put(learner(), OWN, chunks(b"model"), 5)


async def test_platform_with_signed_urls_moves_no_bytes_itself(platform: Platform) -> None:
    none = ObjectCalls(Signing(platform.attempts, None), None)
    assert not none.are_served
    with pytest.raises(InvalidRequest):
        await none.size(learner(), OWN)
