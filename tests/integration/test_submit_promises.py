"""Promises of a submit: one job per key (R2), and an acknowledged job is never lost (R1)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.promises import Promise
from tests.testbed.api import a_zip
from tests.testbed.api_process import ApiProcess, api_processes
from tests.testbed.mongo import Mongo
from tests.testbed.proxy import proxied
from tests.waiting import until

CUT = 0.3
RACERS = 16
AT_ONCE = 12
"""Number of submitters; each sends one submit after the other."""
SLOW = 503
"""The answer while the job store does not answer in time. It promises nothing."""
Fault = Callable[[], Coroutine[None, None, None]]


@pytest.fixture
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "sqlite":
        return {}
    return {"WEFT_JOB_STORE": request.getfixturevalue("mongo_uri")}


class Cuts:
    """For a proxy: loses the answers to a share of the submits after they were carried out."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.submits = self.cut = 0

    def __call__(self, request: bytes) -> bool:
        if not request.startswith(b"POST /v1/jobs "):
            return False
        self.submits += 1
        lost = self._random.random() < CUT
        self.cut += lost
        return lost


async def submitted(client: httpx2.AsyncClient, name: str, key: str) -> str:
    """The job's id; repeats the submit under its key as long as answers are lost, or the store is too slow."""
    while True:
        try:
            made = await client.post("/v1/jobs", json={"name": name, "command": "x"}, headers={"Idempotency-Key": key})
        except httpx2.TransportError:
            continue
        if made.status_code == SLOW:
            continue
        assert made.status_code == 201, made.text
        return str(made.json()["id"])


async def answered(client: httpx2.AsyncClient, path: str, **params: str | int) -> httpx2.Response:
    """The first answer that the job store had time for."""

    async def answer() -> httpx2.Response | None:
        response = await client.get(path, params=params)
        return None if response.status_code == SLOW else response

    response = await until(answer)
    assert response is not None
    return response


async def listed(client: httpx2.AsyncClient) -> AsyncGenerator[dict[str, Any]]:
    after: str | None = None
    while True:
        page = (
            await answered(client, "/v1/jobs", limit=500, fields="name", **({"after": after} if after else {}))
        ).json()
        for job in page["jobs"]:
            yield job
        after = page["next"]
        if after is None:
            return


@pytest.mark.promise("R2")
@pytest.mark.parametrize("environment", ["sqlite", "mongodb"], indirect=True)
async def test_one_key_makes_one_job_despite_lost_answers_and_sixteen_concurrent_submits(
    tmp_path: Path, environment: dict[str, str], promise: Promise, request: pytest.FixtureRequest
) -> None:
    n = promise.n(short=300 if environment else 500, long=20_000)  # the stand-in is the slower one
    numbers = iter(range(n))
    answers: dict[str, set[str]] = {}
    async with AsyncExitStack() as stack:
        apis = await stack.enter_async_context(api_processes(tmp_path, 2, environment))
        headers = {"Authorization": f"Bearer {await apis[0].key()}"}
        cuts = [Cuts(seed) for seed in (1, 2)]
        clients: list[httpx2.AsyncClient] = []
        for api, loses in zip(apis, cuts, strict=True):
            proxy = await stack.enter_async_context(proxied(api.address))
            proxy.loses_answer_to = loses
            clients.append(
                await stack.enter_async_context(
                    httpx2.AsyncClient(base_url=f"http://{proxy.address}", headers=headers, timeout=60, trust_env=False)
                )
            )

        async def submitter() -> None:
            for number in numbers:
                # Every twentieth key has concurrent submits over both processes.
                racers = RACERS if number % 20 == 0 else 1
                name = f"job-{number}"
                ids = await asyncio.gather(
                    *(submitted(clients[(number + racer) % 2], name, f"key-{number}") for racer in range(racers))
                )
                answers[name] = set(ids)

        await asyncio.gather(*(submitter() for _ in range(AT_ONCE)))
        async with httpx2.AsyncClient(base_url=apis[0].url, headers=headers, timeout=60, trust_env=False) as direct:
            there = [(str(job["name"]), str(job["id"])) async for job in listed(direct)]
    assert Counter(name for name, _ in there) == Counter(f"job-{number}" for number in range(n))
    assert {name: {job} for name, job in there} == answers
    submits, cut = sum(cut_answers.submits for cut_answers in cuts), sum(cut_answers.cut for cut_answers in cuts)
    assert cut > 0.2 * submits
    store = request.node.callspec.id
    promise.kept(n, f"keys, one job each ({store}, two api processes)")
    promise.saw(
        f"{cut:,} of {submits:,} answers cut after the commit; {len(range(0, n, 20)):,} keys raced for by {RACERS}"
    )


@dataclass
class Acknowledged:
    """Every submit that was answered with 201: job -> the code that was sent with it."""

    jobs: dict[str, bytes] = field(default_factory=dict)
    unanswered: int = 0
    """Submits without a 201; they promise nothing."""
    there: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the api answers; submitters pause while it starts."""

    async def more_than(self, count: int) -> None:
        await until(lambda: len(self.jobs) > count, timeout=300)


async def submitting(url: str, headers: dict[str, str], acknowledged: Acknowledged, *, n: int, worker: int) -> None:
    """One submit after the other, each with code of its own, until ``n`` are acknowledged in all."""
    number = 0
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
        while len(acknowledged.jobs) < n:
            number += 1
            code = a_zip({"train.py": f"print({worker}, {number})\n"})
            files = {"spec": ("spec", b"name: x\ncommand: 'true'\n", "application/yaml"), "code": ("c", code, "x/zip")}
            try:
                made = await client.post("/v1/jobs", files=files)
            except httpx2.TransportError:
                acknowledged.unanswered += 1
                await acknowledged.there.wait()
                continue
            if made.status_code != 201:
                assert made.status_code in {500, SLOW}, made.text
                acknowledged.unanswered += 1
                continue
            acknowledged.jobs[made.json()["id"]] = code


def killing(api: ApiProcess, acknowledged: Acknowledged) -> Fault:
    async def api_killed() -> None:
        acknowledged.there.clear()
        await asyncio.to_thread(api.kill)
        api.spawn()
        await api.ready()
        acknowledged.there.set()

    return api_killed


async def all_found(api: ApiProcess, headers: dict[str, str], acknowledged: Acknowledged) -> None:
    """Every acknowledged job exists, is QUEUED and has its code."""
    pending = iter(acknowledged.jobs.items())

    async def look(client: httpx2.AsyncClient) -> None:
        for job, code in pending:
            answer = await answered(client, f"/v1/jobs/{job}")
            assert (answer.status_code, answer.json().get("status")) == (200, "QUEUED"), job
            assert (await answered(client, f"/v1/jobs/{job}/artifacts/code.zip")).content == code, job

    async with httpx2.AsyncClient(base_url=api.url, headers=headers, timeout=60, trust_env=False) as client:
        await asyncio.gather(*(look(client) for _ in range(4)))


async def under_kills(
    api: ApiProcess, faults: Sequence[Fault], *, acknowledged: Acknowledged, n: int, kills: int
) -> Counter[str]:
    """Submits while the faults happen one after the other, spread evenly over the submits."""
    headers = {"Authorization": f"Bearer {await api.key()}"}
    happened = Counter[str]()
    acknowledged.there.set()

    async def hurt() -> None:
        for number in range(kills):
            goal = n * number // kills
            await acknowledged.more_than(goal)
            fault = faults[number % len(faults)]
            await fault()  # its submitters go on meanwhile
            happened[fault.__name__.replace("_", " ")] += 1

    hurting = asyncio.create_task(hurt())
    await asyncio.gather(*(submitting(api.url, headers, acknowledged, n=n, worker=worker) for worker in range(AT_ONCE)))
    await hurting
    await all_found(api, headers, acknowledged)
    return happened


@pytest.mark.promise("R1")
async def test_an_acknowledged_submit_survives_repeated_kills_of_the_api(tmp_path: Path, promise: Promise) -> None:
    n, acknowledged = promise.n(short=300, long=20_000), Acknowledged()
    kills = n // 30 if n <= 300 else n // 20
    async with api_processes(tmp_path, 1) as [api]:
        happened = await under_kills(api, [killing(api, acknowledged)], acknowledged=acknowledged, n=n, kills=kills)
    promise.kept(len(acknowledged.jobs), f"acknowledged submits with code, sqlite, {dict(happened)}")
    promise.saw(f"{acknowledged.unanswered:,} submits were not acknowledged meanwhile (sqlite)")


@pytest.mark.promise("R1")
async def test_an_acknowledged_submit_survives_outages_of_mongodb_and_its_network(
    tmp_path: Path, own_mongo: Mongo, promise: Promise
) -> None:
    n, acknowledged = promise.n(short=150, long=20_000), Acknowledged()
    kills = n // 25 if n <= 150 else n // 20
    async with proxied(own_mongo.address) as way:
        environment = {"WEFT_JOB_STORE": f"mongodb://{way.address}/weft"}
        async with api_processes(tmp_path, 1, environment) as [api]:

            async def mongodb_killed() -> None:
                await asyncio.to_thread(own_mongo.kill)
                await asyncio.to_thread(own_mongo.start)

            async def way_cut() -> None:
                way.cut()
                way.mend()

            async def answer_lost() -> None:
                way.lose_answer_to(b"insert")

            faults = [killing(api, acknowledged), mongodb_killed, way_cut, answer_lost]
            happened = await under_kills(api, faults, acknowledged=acknowledged, n=n, kills=kills)
    promise.kept(len(acknowledged.jobs), f"acknowledged submits with code, mongodb, {dict(happened)}")
    promise.saw(f"{acknowledged.unanswered:,} submits were not acknowledged meanwhile (mongodb)")
