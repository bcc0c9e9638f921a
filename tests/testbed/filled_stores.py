"""The stores of a stopped platform, filled with examples of everything, and their whole content as one value.

For code that works on stores alone (backup, restore): no service is needed to fill or to compare them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from services.core.domain.codec import dump
from services.core.domain.job import Claim, Job, admitted, advanced, moved
from services.core.domain.status import Status
from services.core.ports.job_store import DispatcherDoc, JobQuery
from services.core.ports.metric_store import Batch, LineQuery, LogLine, Point, PointQuery, SourceId
from services.core.ports.record_store import Record
from services.core.runtime.settings import Settings
from services.core.use_cases.jobs import all_jobs, copy_history, history
from services.local.backup.stores import TENANTS, Stores, opened
from services.local.layout import prepare
from tests.documents import NOW, a_job

T = TypeVar("T")
SECRETS = {"key-pepper": os.urandom(32), "wandb": b"canary-" + os.urandom(16).hex().encode(), "ä/b": b""}
ADMIN_KEY = b"weft_k0123456789abcdefghijkm_" + os.urandom(32).hex().encode()


@contextmanager
def environment(home: Path, more: Mapping[str, str] | None = None) -> Generator[Settings]:
    """Sets the variables as in an operator's shell, and restores them afterwards."""
    values = {"WEFT_HOME": str(home), **(more or {})}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield Settings()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def with_stores(home: Path, more: Mapping[str, str], use: Callable[[Stores], Awaitable[T]], *, writing: bool) -> T:
    """Opens the stores of this home and returns the result of ``use``."""

    async def body(settings: Settings) -> T:
        async with opened(settings, writing=writing) as stores:
            return await use(stores)

    with environment(home, more) as settings:
        prepare(settings.installation)
        return asyncio.run(body(settings))


def jobs() -> list[Job]:
    """Returns jobs of every kind: waiting, running, just ended and still holding hardware, at rest, deleted."""
    waiting = a_job()
    at_work = admitted(a_job(), placement={"worker-0": "n"}, dispatcher_term=7, now=NOW)
    running = advanced(at_work, Status.PROCESSING, actor="guardian", now=NOW)
    running = replace(running, guardian=Claim(term=3, nonce="n", holder="m1"))
    ending = moved(replace(running, **_own(a_job())), Status.COMPLETED, actor="guardian", now=NOW)
    ended = replace(ending, **_own(a_job()), released=NOW + 1, guardian=Claim(term=3))
    deleted = replace(ended, **_own(a_job()), deleted=NOW + 2)
    return [waiting, running, ending, ended, deleted]


def _own(job: Job) -> dict[str, Any]:
    return {"id": job.id, "idem": job.idem}


async def fill(stores: Stores, *, files: Sequence[int] = (0, 2**18, 5 * 2**19)) -> None:
    """Fills the stores. ``files``: sizes in bytes."""
    for place, job in enumerate(jobs()):
        stored = await stores.jobs.insert(job)
        if place % 2:
            await copy_history(stores.jobs, stored)
        await _metrics(stores, job.id, place)
    prior = await stores.jobs.dispatcher()
    await stores.jobs.replace_dispatcher(prior, DispatcherDoc(term=9, holder="m1", rev=prior.rev))
    for number in range(3):
        body = {"name": f"n{number}", "né": [1, None, 2.5]}
        await stores.records.insert(Record(kind="keys", id=f"k{number}", body=body, index={"tenant": "acme"}))
    await stores.records.insert(Record(kind="answers", id="acme/ada/x", body={}, index={}))
    secrets = await stores.secrets()
    for name, value in SECRETS.items():
        await secrets.put(name, value)
    await stores.installation.put("admin-key", ADMIN_KEY)
    await stores.installation.put("identity-lcm", b"of this platform alone")
    for number, size in enumerate(files):
        key = f"{TENANTS}acme/jobs/j{number}/attempts/1/results/worker-0/{'very-long-' * 12}{number}.bin"
        await stores.objects.put(key, _bytes(size))
    await stores.objects.put(f"{TENANTS}acme/code/Zähl werk", _bytes(17))


async def _bytes(size: int) -> AsyncIterator[bytes]:
    while size > 0:
        chunk = os.urandom(min(size, 2**20))
        size -= len(chunk)
        yield chunk


async def _metrics(stores: Stores, job_id: str, place: int) -> None:
    for attempt in range(1, place + 1):
        source = SourceId(attempt, "worker", place, 1, "stdout")
        lines = [LogLine(at * 10, NOW + at, f"line {at} \x00\n ä", partial=at == 3) for at in range(200)]
        points = [
            Point(at * 10, NOW + at, "loss", at, float("nan") if at == 2 else at / 7, {"a": "b"}) for at in (1, 2)
        ]
        usage = Point(0, NOW, "system/memory", None, 2.0**30, {"weft": "usage"})
        await stores.metrics.append(job_id, [Batch(replace(source, source="usage"), 0, 1, (), [usage])])
        await stores.metrics.append(job_id, [Batch(source, 0, 2_000, lines, points, final=attempt == 1)])
        more = replace(source, source="metrics.jsonl")
        await stores.metrics.append(job_id, [Batch(more, 0, 5, (), [Point(0, NOW, "acc", None, float("inf"))])])


async def contents(stores: Stores) -> dict[str, Any]:
    """Returns all that users of the platform may see: description -> value."""
    content: dict[str, Any] = {}
    async for job in all_jobs(stores.jobs, JobQuery(deleted=True)):
        content[f"job {job.id}"] = dump(replace(job, rev=0, history_tail=()))
        for event in await history(stores.jobs, job):
            content[f"event {job.id} {event.seq}"] = dump(event)
        extent = await stores.metrics.extent(job.id)
        content[f"sources {job.id}"] = sorted(map(repr, extent.sources))
        for line in await stores.metrics.lines(job.id, LineQuery(), limit=10**6):
            content[f"line {job.id} {line.seq}"] = line
        for point in await stores.metrics.points(job.id, PointQuery(usage=True), limit=10**6):
            content[f"point {job.id} {point.seq}"] = repr(point)  # NaN is not itself
    for kind in await stores.records.kinds():
        for record in await stores.records.find(kind, {}):
            if kind != "secrets":
                content[f"record {kind} {record.id}"] = (dict(record.body), dict(record.index))
    secrets = await stores.secrets()
    for name in await secrets.names():
        content[f"secret {name}"] = await secrets.get(name)
    content["secret of the admin"] = await stores.installation.get("admin-key")
    for meta in await stores.objects.list(TENANTS):
        digest = hashlib.sha256()
        async for chunk in stores.objects.get(meta.key):
            digest.update(chunk)
        content[f"file {meta.key}"] = (meta.size, digest.hexdigest())
    return content
