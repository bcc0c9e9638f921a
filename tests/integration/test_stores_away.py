"""R13: a store away is an answer in time (503, and when to try again), a look at what was known, and soon forgotten."""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw
import httpx2
import pytest

from services.core.domain.errors import Unavailable
from tests.promises import Promise
from tests.testbed.api import SPEC, Api, running_api
from tests.testbed.proxy import Proxy, proxied
from tests.waiting import until

STARTS = 5
ANSWER_S = 30.0
"""Two questions to a store that says nothing, five seconds each; on a machine that may be very busy."""
BACK_S = 5.0


@asynccontextmanager
async def on_mongo(home: Path, uri: str) -> AsyncGenerator[tuple[Api, Proxy]]:
    """The api, and the line between it and its stores. One that finds its store too slow is started again."""
    address = urlsplit(uri).netloc
    async with proxied(address) as line, AsyncExitStack() as stack:
        yield await begun(stack, home, uri.replace(address, line.address)), line


async def begun(stack: AsyncExitStack, home: Path, uri: str) -> Api:
    for again in range(STARTS):
        with suppress(Unavailable):
            return await stack.enter_async_context(running_api(home / str(again), job_store=uri, key_cache_s=0.1))
    raise AssertionError(f"its store was too slow for {STARTS} starts")


async def shown(api: Api, path: str) -> bool:
    return (await api.admin.get(path)).status_code == 200


async def timed(asked: Any) -> tuple[httpx2.Response, float]:
    began = time.monotonic()
    answer: httpx2.Response = await asked
    return answer, time.monotonic() - began


def refused(answer: httpx2.Response) -> None:
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable"), answer.text
    assert 1 <= int(answer.headers["Retry-After"]) <= 30


@pytest.mark.promise("R13")
@pytest.mark.timeout(3600)
async def test_while_the_job_store_is_away_the_api_answers_in_time_and_recovers_with_it(
    promise: Promise, mongo_uri: str, tmp_path: Path
) -> None:
    n = promise.n(short=2, long=40)
    chance, kinds, slowest, recoveries = random.Random(13), Counter[str](), 0.0, list[float]()
    async with on_mongo(tmp_path, mongo_uri) as (api, line):
        acknowledged = [str(await until(lambda: accepted(api)))]
        for number in range(n):
            kind = "cut" if number % 2 == 0 else "silent"
            kinds[kind] += 1
            for path in (f"/v1/jobs/{acknowledged[-1]}", "/v1/jobs", "/v1/frameworks"):
                assert await until(lambda path=path: shown(api, path))  # type: ignore[misc]
            if kind == "cut":
                line.cut()
            else:
                line.freeze()
            asked = [
                timed(api.admin.post("/v1/jobs", json=SPEC)),
                timed(api.admin.get(f"/v1/jobs/{chance.choice(acknowledged)}/history")),
                timed(api.admin.get("/v1/frameworks")),
                timed(api.admin.get(f"/v1/jobs/{acknowledged[-1]}")),
                timed(api.admin.get("/v1/jobs")),
            ]
            answers = await asyncio.gather(*asked)
            slowest = max(slowest, *(seconds for _, seconds in answers))
            submit, history, frameworks, one, page = (answer for answer, _ in answers)
            assert frameworks.status_code == 200
            if kind == "cut":
                refused(submit)
                refused(history)
                for seen in (one, page):
                    assert seen.status_code == 200
                    assert int(seen.headers["Age"]) >= 0, "it is marked as what was known before"
            else:  # another line may be found in time
                assert all(answer.status_code in {200, 201, 503} for answer, _ in answers)
                if submit.status_code == 201:
                    acknowledged.append(submit.json()["id"])
            line.mend()
            began = time.monotonic()
            made = await until(lambda: accepted(api))
            recoveries.append(time.monotonic() - began)
            acknowledged.append(str(made))
        for job in acknowledged:
            assert await until(lambda job=job: shown(api, f"/v1/jobs/{job}"))  # type: ignore[misc]
    assert slowest < ANSWER_S
    promise.kept(n, "outages of the job store: 503 in time, what was known is shown with its age, none lost")
    promise.saw(f"slowest answer {slowest:.1f} s; back after at most {max(recoveries):.1f} s (promised: {BACK_S:.0f})")


async def accepted(api: Api) -> str:
    made = await api.admin.post("/v1/jobs", json=SPEC)
    if made.status_code == 503:
        return ""
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


async def test_a_file_that_somebody_else_has_locked_refuses_changes_in_time_and_is_read_all_the_same(
    tmp_path: Path,
) -> None:
    async with running_api(tmp_path) as api:
        job = (await api.submit())["id"]
        other = apsw.Connection(str(tmp_path / "jobs.sqlite"))
        other.execute("BEGIN IMMEDIATE")
        try:
            answers = await asyncio.gather(
                timed(api.admin.post("/v1/jobs", json=SPEC)), timed(api.admin.get(f"/v1/jobs/{job}"))
            )
            refused(answers[0][0])
            assert answers[1][0].status_code == 200
            assert all(seconds < ANSWER_S for _, seconds in answers)
        finally:
            other.execute("ROLLBACK")
            other.close()
        assert await until(lambda: accepted(api))


async def test_a_full_disk_refuses_new_jobs_with_its_reason_and_loses_none(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        acknowledged = [(await api.submit())["id"]]
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        large = {**SPEC, "env": {f"V{number}": "x" * 2_000 for number in range(30)}}
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
            made = await api.admin.post("/v1/jobs", json=large)
            while made.status_code == 201:
                acknowledged.append(made.json()["id"])
                made = await api.admin.post("/v1/jobs", json=large)
            assert (made.status_code, made.json()["code"]) == (507, "no-space")
            assert int(made.headers["Retry-After"]) >= 1
            assert (await api.admin.get(f"/v1/jobs/{acknowledged[0]}")).status_code == 200
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert await until(lambda: accepted(api))
        for job in acknowledged:
            assert (await api.admin.get(f"/v1/jobs/{job}")).status_code == 200
