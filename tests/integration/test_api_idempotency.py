"""Every POST under an Idempotency-Key acts once, despite lost answers, concurrent requests and later changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.api.idempotency import KEPT_MS, KIND, IdempotencyKeys
from services.api.rest.app import create_routes
from services.api.rest.permissions import routes_of
from services.core.adapters.system_clock import SystemClock
from services.core.domain.errors import IdempotencyMismatch, Unavailable
from services.core.domain.job import KEPT_APPLIED_KEYS
from tests.testbed.api import SPEC, Api, running_api
from tests.testbed.memory import MemoryRecordStore
from tests.testbed.proxy import proxied
from tests.waiting import until
from weft import AsyncClient


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running_api(tmp_path) as api:
        yield api


@dataclass
class Post:
    """A request to one route, and another one to the same route. ``{job}`` stands for a job's id."""

    body: Any = None
    other: Any = None
    other_path: str = ""
    first: tuple[str, ...] = ()
    """Changes of the job before the request."""


POSTS = {
    "/v1/jobs": Post(SPEC, {**SPEC, "name": "other"}),
    "/v1/jobs/{job_id}/halt": Post(other_path="/v1/jobs/{job}/kill"),
    "/v1/jobs/{job_id}/resume": Post(other_path="/v1/jobs/{job}/halt", first=("halt",)),
    "/v1/jobs/{job_id}/kill": Post(other_path="/v1/jobs/{job}/halt"),
    "/v1/jobs/{job_id}/clone": Post({"set": {"env.SEED": "1"}}, {"set": {"env.SEED": "2"}}),
    "/v1/keys": Post({"name": "a"}, {"name": "b"}),
}
WITHOUT = {"/v1/session", "/v1/session/codes"}
"""Each answer is a new credential of short life, whose text is stored nowhere: a lost one is replaced by another."""


async def test_every_post_replays_under_its_key_and_refuses_another_request(api: Api) -> None:
    posts = sorted(route.path for route in routes_of(create_routes()) if "POST" in (route.methods or ()))
    assert posts == sorted({*POSTS, *WITHOUT})
    for path, post in POSTS.items():
        job = (await api.submit())["id"]
        for verb in post.first:
            assert (await api.admin.post(f"/v1/jobs/{job}/{verb}")).status_code == 202
        key = {"Idempotency-Key": f"key-of-{path}"}
        url = path.replace("{job_id}", job)
        made = await api.admin.post(url, json=post.body, headers=key)
        assert made.is_success, made.text
        assert "idempotency-replayed" not in made.headers
        again = await api.admin.post(url, json=post.body, headers=key)
        assert (again.status_code, again.json()) == (made.status_code, made.json())
        assert again.headers["idempotency-replayed"] == "true"
        other = await api.admin.post(
            post.other_path.replace("{job}", job) or url, json=post.other or post.body, headers=key
        )
        assert (other.status_code, other.json()["code"]) == (422, "idempotency-mismatch"), path
        for bad in ("", "a b", "x" * 256):
            refused = await api.admin.post(url, json=post.body, headers={"Idempotency-Key": bad})
            assert (refused.status_code, refused.json()["code"]) == (400, "invalid-request"), (path, bad)


async def test_a_repeated_halt_after_a_resume_does_not_halt_the_job_again(api: Api) -> None:
    job = (await api.submit())["id"]
    halt, resume = {"Idempotency-Key": "h"}, {"Idempotency-Key": "r"}
    assert (await api.admin.post(f"/v1/jobs/{job}/halt", headers=halt)).json()["status"] == "HALTED"
    assert (await api.admin.post(f"/v1/jobs/{job}/resume", headers=resume)).json()["status"] == "QUEUED"
    late = await api.admin.post(f"/v1/jobs/{job}/halt", headers=halt)
    assert (late.status_code, late.json()["status"]) == (202, "QUEUED")
    twice = await api.admin.post(f"/v1/jobs/{job}/resume", headers=resume)  # without a key this is a 409
    assert (twice.status_code, twice.json()["generation"]) == (202, 3)
    assert (await api.admin.post(f"/v1/jobs/{job}/resume")).status_code == 409
    assert (await api.admin.post(f"/v1/jobs/{job}/halt", headers={"Idempotency-Key": "h2"})).json()["generation"] == 4


async def test_a_halt_that_changed_nothing_is_replayed_too(api: Api) -> None:
    job = (await api.submit())["id"]
    await api.admin.post(f"/v1/jobs/{job}/halt", headers={"Idempotency-Key": "first"})
    await api.admin.post(f"/v1/jobs/{job}/halt", headers={"Idempotency-Key": "second"})
    await api.admin.post(f"/v1/jobs/{job}/resume")
    late = await api.admin.post(f"/v1/jobs/{job}/halt", headers={"Idempotency-Key": "second"})
    assert late.json()["status"] == "QUEUED"


async def test_keys_replay_after_many_later_changes_and_the_document_stays_small(api: Api) -> None:
    job = (await api.submit())["id"]
    applied_keys = [("halt", "resume")[number % 2] for number in range(3 * KEPT_APPLIED_KEYS)]
    for number, verb in enumerate(applied_keys):
        answer = await api.admin.post(f"/v1/jobs/{job}/{verb}", headers={"Idempotency-Key": f"k{number}"})
        assert answer.status_code == 202, answer.text
    stored = await api.store.get(job)
    assert stored is not None
    assert len(stored.applied_keys) == KEPT_APPLIED_KEYS
    for number, verb in enumerate(applied_keys):
        again = await api.admin.post(f"/v1/jobs/{job}/{verb}", headers={"Idempotency-Key": f"k{number}"})
        assert (again.status_code, again.headers.get("idempotency-replayed")) == (202, "true")
        assert again.json()["generation"] == len(applied_keys) + 1


async def test_sixteen_concurrent_resumes_under_one_key_over_two_processes_make_one_change(tmp_path: Path) -> None:
    async with running_api(tmp_path) as first, running_api(tmp_path) as second:
        for turn in range(5):
            job = (await first.submit())["id"]
            await first.admin.post(f"/v1/jobs/{job}/halt")
            answers = await asyncio.gather(
                *(
                    api.admin.post(f"/v1/jobs/{job}/resume", headers={"Idempotency-Key": f"race-{turn}"})
                    for api in (first, second)
                    for _ in range(8)
                )
            )
            assert [answer.status_code for answer in answers] == [202] * 16
            assert ["idempotency-replayed" in answer.headers for answer in answers].count(False) == 1
            events = (await first.admin.get(f"/v1/jobs/{job}/history")).json()["events"]
            assert [event["to"] for event in events] == ["QUEUED", "HALTED", "RESUMED", "QUEUED"]


async def test_a_repeated_submit_finds_its_job_although_the_limits_were_lowered(tmp_path: Path) -> None:
    spec, key = {**SPEC, "learners": 3}, {"Idempotency-Key": "k"}
    async with running_api(tmp_path) as api:
        job = await api.submit(spec, headers=key)
    async with running_api(tmp_path, max_learners=2) as api:
        assert (await api.submit(spec, headers=key))["id"] == job["id"]
        assert (await api.admin.post("/v1/jobs", json=spec)).status_code == 400


async def test_a_repeated_submit_finds_its_job_although_its_secret_was_deleted(api: Api) -> None:
    store = {"id": "photos", "type": "s3", "url": "s3://photos", "secret": "s3"}
    spec, key = {**SPEC, "data_stores": [store]}, {"Idempotency-Key": "k"}
    values = {"access_key": "a", "secret_key": "b"}
    assert (await api.admin.put("/v1/secrets/s3", json={"values": values})).status_code == 200
    job = await api.submit(spec, headers=key)
    assert (await api.admin.delete("/v1/secrets/s3")).status_code == 204
    assert (await api.submit(spec, headers=key))["id"] == job["id"]
    assert (await api.admin.post("/v1/jobs", json=spec)).status_code == 400


async def test_a_repeated_clone_finds_its_copy_although_the_source_was_deleted(api: Api) -> None:
    source, key = (await api.submit())["id"], {"Idempotency-Key": "k"}
    url, changes = f"/v1/jobs/{source}/clone", {"name": "copy"}
    copy = (await api.admin.post(url, json=changes, headers=key)).json()
    assert (await api.admin.delete(f"/v1/jobs/{source}", params={"kill": "true"})).status_code == 204
    again = await api.admin.post(url, json=changes, headers=key)
    assert (again.status_code, again.json()["id"]) == (201, copy["id"]), again.text
    assert again.headers["idempotency-replayed"] == "true"
    other = await api.admin.post(url, json={"name": "other"}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency-mismatch")
    for headers in ({}, {"Idempotency-Key": "new"}):
        assert (await api.admin.post(url, json=changes, headers=headers)).status_code == 404
    async with api.client(await api.key("ada", "acme")) as ada:
        assert (await ada.post(url, json=changes, headers=key)).status_code == 404


async def test_two_users_may_use_the_same_key(api: Api) -> None:
    made = set[str]()
    for user in ("ada", "bob"):
        async with api.client(await api.key(user, "acme")) as client:
            answer = await client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "same"})
            made.add(answer.json()["id"])
            halted = await client.post(f"/v1/jobs/{answer.json()['id']}/halt", headers={"Idempotency-Key": "same"})
            assert (halted.status_code, halted.json()["status"]) == (202, "HALTED")
    assert len(made) == 2


async def test_a_replay_answers_the_text_of_an_api_key_that_is_stored_nowhere(api: Api) -> None:
    texts = set[str]()
    for _ in range(2):
        made = await api.admin.post("/v1/keys", json={"name": "ci"}, headers={"Idempotency-Key": "ci-key"})
        texts.add(made.json()["key"])
    [text] = texts
    secret = text.rpartition("_")[2].encode()
    files = [path for path in api.settings.home.rglob("*") if path.is_file()]
    assert any(path.name.startswith("records.sqlite") for path in files)
    assert [path for path in files if secret in path.read_bytes()] == []


async def test_sdk_retries_of_lost_answers_change_nothing_twice(api: Api) -> None:
    posts = 0

    def every_other(request: bytes) -> bool:
        nonlocal posts
        posts += request.startswith(b"POST ")
        return request.startswith(b"POST ") and posts % 2 == 1

    async with proxied(api.url.removeprefix("http://")) as way:
        way.loses_answer_to = every_other
        async with AsyncClient(f"http://{way.address}", api.admin_key) as client:
            jobs = [await client.jobs.submit({**SPEC, "name": f"job-{number}"}) for number in range(5)]
            for job in jobs:
                await job.halt()
                await job.resume()  # alone, a second one is refused
                await job.kill()
            there = [job async for job in client.jobs.list()]
            assert {job.id for job in there} == {job.id for job in jobs}
            for job in there:
                events = [event.to for event in await job.history()]
                assert events == ["QUEUED", "HALTED", "RESUMED", "QUEUED", "KILLED"]
    assert posts == 2 * 4 * 5


class Later(SystemClock):
    """The machine's clock plus ``by_ms``."""

    by_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.by_ms


async def test_idempotency_keys_expire_after_seven_days_and_are_swept_by_pages() -> None:
    records, clock = MemoryRecordStore(), Later()
    keys = IdempotencyKeys(records, clock)
    for number in range(25):
        await keys.bind(f"{number:064}", "a halt")
        await keys.mark_done(f"{number:064}")
    assert await keys.is_done(f"{7:064}")
    with pytest.raises(IdempotencyMismatch):
        await keys.bind(f"{7:064}", "a kill")
    clock.by_ms = KEPT_MS - 60_000
    assert [await keys.sweep(limit=10) for _ in range(3)] == [0, 0, 0]
    clock.by_ms = KEPT_MS
    assert not await keys.is_done(f"{7:064}")
    await keys.bind(f"{7:064}", "a kill")
    assert not await keys.is_done(f"{7:064}")
    assert [await keys.sweep(limit=10) for _ in range(3)] == [9, 10, 5]
    assert [record.id for record in await records.find(KIND, {})] == [f"{7:064}"]


async def test_sweeping_of_expired_keys_continues_after_a_store_outage() -> None:
    class Away(MemoryRecordStore):
        reads = 0

        async def find(self, kind: str, index: Any, *, after: str | None = None, limit: int = 1000) -> Any:
            self.reads += 1
            if self.reads == 2:
                raise Unavailable("the store is away")
            return await super().find(kind, index, after=after, limit=limit)

    records, clock = Away(), Later()
    keys = IdempotencyKeys(records, clock)
    for number in range(25):
        await keys.bind(f"{number:064}", "a halt")
    clock.by_ms = KEPT_MS
    sweeping = asyncio.create_task(keys.keep_swept(every_s=0.001, limit=10))
    try:
        await until(lambda: records.reads > 4)
        assert await MemoryRecordStore.find(records, KIND, {}) == []
    finally:
        sweeping.cancel()
