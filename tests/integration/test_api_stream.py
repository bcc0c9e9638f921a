"""The one live stream of a page: the list, a job, points and lines in one connection, over the real metrics service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import httpx2
import pytest

from services.api import access_end
from services.api.use_cases import stream
from tests.testbed.api import SPEC, Api
from tests.testbed.learner_telemetry import Learner, api_over
from tests.testbed.metrics import MetricsProcess
from tests.waiting import HANG_S, until


@dataclass
class Event:
    name: str
    id: str
    data: Any


class Page:
    """A page that reads its stream."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = False

    def named(self, name: str) -> list[Any]:
        return [event.data for event in self.events if event.name == name]

    async def read(self, answer: httpx2.Response) -> None:
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields and not line:
                self.events.append(Event(fields["event"], fields.get("id", ""), json.loads(fields["data"])))
                fields = {}
        self.ended = True


@asynccontextmanager
async def page(client: httpx2.AsyncClient, last: str = "", **params: Any) -> AsyncGenerator[Page]:
    """A page with an open stream whose first event has come."""
    headers = {"Last-Event-ID": last} if last else {}
    shown = Page()
    async with client.stream("GET", "/v1/stream", params=params, headers=headers, timeout=HANG_S) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        reading = asyncio.create_task(shown.read(answer))
        try:
            await until(lambda: shown.events or reading.done())
            yield shown
        finally:
            reading.cancel()
            await asyncio.wait({reading})


async def refusal(client: httpx2.AsyncClient, last: str, **params: Any) -> tuple[int, str]:
    """Status and pointer of the answer to a wrong stream. A stream that begins has no pointer, and no end."""
    headers = {"Last-Event-ID": last}
    async with client.stream("GET", "/v1/stream", params=params, headers=headers, timeout=HANG_S) as answer:
        problem = json.loads(await answer.aread()) if answer.status_code >= 400 else {"errors": [{"pointer": ""}]}
        return answer.status_code, problem["errors"][0]["pointer"]


@pytest.fixture
async def api(tmp_path: Path, metrics: MetricsProcess) -> AsyncIterator[Api]:
    async with api_over(tmp_path, metrics.address, key_cache_s=0) as api:
        yield api


async def test_a_list_shows_new_changed_and_deleted_jobs(api: Api) -> None:
    async with page(api.admin, list="true") as shown:
        assert [(event.name, event.data) for event in shown.events] == [("ready", {"resumed": False})]
        job = (await api.submit())["id"]
        await until(lambda: [entry["status"] for entry in shown.named("job")] == ["QUEUED"])
        assert "spec" not in shown.named("job")[0]
        await api.admin.post(f"/v1/jobs/{job}/kill")
        await until(lambda: shown.named("job")[-1]["status"] == "KILLED")
        await api.admin.delete(f"/v1/jobs/{job}")
        await until(lambda: shown.named("left") == [{"id": job}])


async def test_a_list_shows_jobs_of_the_own_tenant_only(api: Api) -> None:
    async with (
        api.client(await api.key("ada", "acme")) as ada,
        page(ada, list="true") as own,
        page(api.admin, list="true", tenant="*") as every,
        page(api.admin, list="true", tenant="acme") as named,
    ):
        await api.submit()
        job = (await ada.post("/v1/jobs", json=SPEC)).json()["id"]
        await until(lambda: len(every.named("job")) == 2 and named.named("job") and own.named("job"))
        assert [entry["id"] for entry in own.named("job")] == [job]
        assert [entry["id"] for entry in named.named("job")] == [job]
        refused = await ada.get("/v1/stream", params={"list": "true", "tenant": "*"})
        assert refused.status_code == 403


async def test_a_filtered_list_shows_when_a_job_begins_and_ceases_to_match(api: Api) -> None:
    async with (
        page(api.admin, list="true", q="status=KILLED") as killed,
        page(api.admin, list="true", q="not status=KILLED") as other,
    ):
        job = (await api.submit())["id"]
        await until(lambda: killed.named("left") and other.named("job"))
        await api.admin.post(f"/v1/jobs/{job}/kill")
        await until(lambda: killed.named("job") and other.named("left"))
        assert [entry["status"] for entry in killed.named("job")] == ["KILLED"]


async def test_a_list_that_connects_again_gets_what_it_missed(api: Api) -> None:
    async with page(api.admin, list="true") as other:  # keeps the log of this process
        async with page(api.admin, list="true") as shown:
            known = (await api.submit())["id"]
            await until(lambda: shown.named("job"))
            last = shown.events[-1].id
        missed = (await api.submit())["id"]
        await until(lambda: len(other.named("job")) == 2)
        async with page(api.admin, last, list="true") as again:
            assert again.named("ready") == [{"resumed": True}]
            await until(lambda: missed in [entry["id"] for entry in again.named("job")])
            assert [entry["id"] for entry in again.named("job")] == [known, missed]  # the last one comes again


async def test_a_list_is_told_to_read_again_by_a_process_that_does_not_know_its_place(api: Api) -> None:
    async with page(api.admin, "c-999999999", list="true") as shown:
        assert shown.named("ready") == [{"resumed": False}]


async def test_one_stream_carries_the_list_a_job_its_points_and_its_lines(api: Api, learner: Learner) -> None:
    await learner.write_lines("before")
    await learner.write_points(9.0)
    job = learner.job
    async with page(api.admin, list="true", job=job, points=f"{job}:0", lines=job, name="loss") as shown:
        await until(lambda: len(shown.named("start")) == 2)
        await learner.write_lines("one", "two")
        await learner.write_points(0.5, float("nan"))
        await until(
            lambda: [line["text"] for lines in shown.named("lines") for line in lines["lines"]] == ["one", "two"]
        )
        await until(
            lambda: (
                [point["value"] for points in shown.named("points") for point in points["points"]] == [9.0, 0.5, "NaN"]
            )
        )
        await until(lambda: len(shown.named("history")) == 3)
        assert [entry["event"]["to"] for entry in shown.named("history")] == ["QUEUED", "PENDING", "PROCESSING"]
        assert {points["id"] for points in shown.named("points")} == {job}
        await learner.complete_and_release()
        await until(lambda: {end["part"] for end in shown.named("end")} == {"job", "points", "lines"})
        assert {end["end"]["status"] for end in shown.named("end")} == {"COMPLETED"}
        await api.submit()  # the stream goes on
        await until(lambda: len({entry["id"] for entry in shown.named("job")}) == 2)
        assert not shown.ended


async def test_a_page_that_connects_again_gets_each_line_and_point_once(api: Api, learner: Learner) -> None:
    params = {"points": learner.job, "lines": learner.job, "job": learner.job}
    async with page(api.admin, **params) as first:
        await until(lambda: len(first.named("start")) == 2)
        await learner.write_lines("one")
        await learner.write_points(1.0)
        await until(lambda: first.named("lines") and first.named("points") and len(first.named("history")) == 3)
        last = first.events[-1].id
    await learner.write_lines("two")
    await learner.write_points(2.0)
    async with page(api.admin, last, **params) as again:
        await until(lambda: again.named("lines") and again.named("points"))
        assert [line["text"] for lines in again.named("lines") for line in lines["lines"]] == ["two"]
        assert [point["value"] for points in again.named("points") for point in points["points"]] == [2.0]
        assert again.named("history") == []


async def test_a_job_that_is_resumed_is_shown_going_on(api: Api) -> None:
    job = (await api.submit())["id"]
    async with page(api.admin, job=job) as shown:
        await api.admin.post(f"/v1/jobs/{job}/halt")
        await until(lambda: shown.named("end"))
        await api.admin.post(f"/v1/jobs/{job}/resume")
        await until(lambda: [entry["event"]["to"] for entry in shown.named("history")][-2:] == ["RESUMED", "QUEUED"])
        await until(lambda: shown.named("job")[-1]["status"] == "QUEUED")
        await api.admin.post(f"/v1/jobs/{job}/kill")
        await until(lambda: len(shown.named("end")) == 2)
        await api.admin.delete(f"/v1/jobs/{job}")
        await until(lambda: shown.named("left") == [{"id": job}])


async def test_a_halted_job_that_is_killed_is_shown_as_killed(api: Api) -> None:
    """Its page showed it as HALTED until it was loaded anew: the job is at rest before and after."""
    job = (await api.submit())["id"]
    async with page(api.admin, job=job) as shown:
        await api.admin.post(f"/v1/jobs/{job}/halt")
        await until(lambda: shown.named("end"))
        await api.admin.post(f"/v1/jobs/{job}/kill")
        await until(lambda: shown.named("job")[-1]["status"] == "KILLED")
        await until(lambda: shown.named("history")[-1]["event"]["to"] == "KILLED")
        await until(lambda: shown.named("end")[-1]["end"]["status"] == "KILLED")
        await api.admin.delete(f"/v1/jobs/{job}")
        await until(lambda: shown.named("left") == [{"id": job}])
        assert [end["end"]["status"] for end in shown.named("end")] == ["HALTED", "KILLED"]


async def test_lines_and_points_go_on_after_a_halted_job_was_resumed(api: Api, learner: Learner) -> None:
    job = learner.job
    async with page(api.admin, job=job, points=f"{job}:0", lines=f"{job}:0") as shown:
        await learner.write_lines("before")
        await learner.write_points(1.0)
        await api.admin.post(f"/v1/jobs/{job}/halt")
        await learner.halt_and_release()
        await until(lambda: {end["part"] for end in shown.named("end")} == {"job", "points", "lines"})
        await api.admin.post(f"/v1/jobs/{job}/resume")
        await learner.write_lines("after")
        await learner.write_points(2.0)
        await until(
            lambda: [line["text"] for lines in shown.named("lines") for line in lines["lines"]] == ["before", "after"]
        )
        await until(
            lambda: [point["value"] for points in shown.named("points") for point in points["points"]] == [1.0, 2.0]
        )


async def test_a_stream_ends_with_the_session_it_was_opened_in(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_end, "CHECK_S", 0.05)
    async with api.client(None) as browser:
        session = (await browser.post("/v1/session", json={"key": await api.key("ada", "acme")})).json()
        async with page(browser, list="true") as shown:
            await api.admin.delete(f"/v1/keys/{session['id']}")
            await until(lambda: shown.ended)
            [problem] = shown.named("error")
            assert (problem["status"], problem["code"]) == (401, "unauthenticated")


@pytest.mark.parametrize(
    ("params", "status"),
    [
        ({"job": "j" + "0" * 22}, 404),
        ({"points": "j" + "0" * 22}, 404),
        ({"lines": "j" + "0" * 22}, 404),
        ({"points": "x"}, 400),
        ({"points": "{job}:x"}, 400),
        ({"points": "{job}:9007199254740992"}, 400),
        ({"lines": "{job}:9007199254740992"}, 400),
        ({"job": ["{job}"] * 21}, 400),
        ({"list": "maybe"}, 400),
    ],
)
async def test_a_wrong_stream_is_refused_before_it_begins(api: Api, params: dict[str, Any], status: int) -> None:
    job = (await api.submit())["id"]
    filled = {
        name: [text.format(job=job) for text in value] if isinstance(value, list) else value.format(job=job)
        for name, value in params.items()
    }
    refused = await api.admin.get("/v1/stream", params=filled)
    assert (refused.status_code, refused.headers["content-type"]) == (status, "application/problem+json")


BEYOND = "9007199254740992"
"""2**53"""


@pytest.mark.parametrize(
    "last",
    [
        "x",
        "c",
        "c-",
        "c--1",
        "c-1.",
        "c-99999999999999999999",
        "z-1",
        "c-1,",
        "p123-1",
        *(f"{part}-{BEYOND}" for part in ("c", "h0", "p0", "l0")),
    ],
)
async def test_an_id_of_no_stream_is_refused(api: Api, last: str) -> None:
    assert await refusal(api.admin, last, list="true") == (400, "/header/last-event-id")


async def test_a_page_that_connects_again_with_too_high_an_id_gets_no_internal_error(api: Api) -> None:
    job = (await api.submit())["id"]
    assert await refusal(api.admin, "h0-9007199254740993", job=job) == (400, "/header/last-event-id")
    async with page(api.admin, "h0-9007199254740991", job=job) as shown:
        await until(lambda: len(shown.events) > 1 or shown.ended)
        assert [event.name for event in shown.events][:2] == ["ready", "job"]


async def test_another_tenants_job_cannot_be_followed(api: Api) -> None:
    job = (await api.submit())["id"]
    async with api.client(await api.key("ada", "acme")) as ada:
        for part in ("job", "points", "lines"):
            assert (await ada.get("/v1/stream", params={part: job})).status_code == 404


async def test_a_job_with_damaged_metrics_ends_no_other_part_of_the_page(
    api: Api, learner: Learner, metrics: MetricsProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_DAMAGED_RETRY_S", 0.1)
    bad, good = learner.job, (await api.submit())["id"]
    await learner.write_points(1.0)
    index = metrics.home / "metrics" / bad / "index.sqlite"
    await asyncio.to_thread(metrics.stop)
    sound = index.read_bytes()
    index.write_bytes(b"no database" * 1000)
    metrics.start()
    params: dict[str, Any] = {
        "list": "true",
        "job": [bad, good],
        "points": [f"{bad}:0", f"{good}:0"],
        "lines": f"{bad}:0",
    }
    async with page(api.admin, **params) as shown:
        await until(lambda: len(shown.named("damaged")) == 2)
        assert {(damaged["part"], damaged["id"]) for damaged in shown.named("damaged")} == {
            ("points", bad),
            ("lines", bad),
        }
        await api.admin.post(f"/v1/jobs/{good}/kill")
        await until(lambda: "KILLED" in [job["status"] for job in shown.named("job") if job["id"] == good])
        assert not shown.named("error")
        replacement = index.with_name("repaired")
        replacement.write_bytes(sound)
        replacement.replace(index)
        await until(lambda: [point["value"] for points in shown.named("points") for point in points["points"]] == [1.0])
        assert len(shown.named("damaged")) == 2
        assert not shown.ended


async def test_a_job_whose_document_is_damaged_ends_no_other_part_of_the_page(
    api: Api, learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_DAMAGED_RETRY_S", 0.1)
    bad, good = learner.job, (await api.submit())["id"]
    jobs = apsw.Connection(str(tmp_path / "jobs.sqlite"))
    ((sound,),) = jobs.execute("SELECT doc FROM jobs WHERE id = ?", (bad,)).fetchall()
    damaged = json.dumps({**json.loads(str(sound)), "state": 3})
    jobs.execute("UPDATE jobs SET doc = ? WHERE id = ?", (damaged, bad))
    async with page(api.admin, job=[bad, good], points=bad) as shown:
        await until(lambda: {damaged["part"] for damaged in shown.named("damaged")} == {"job", "points"})
        await until(lambda: {history["id"] for history in shown.named("history")} == {good})
        jobs.execute("UPDATE jobs SET doc = ? WHERE id = ?", (sound, bad))
        await until(lambda: bad in [history["id"] for history in shown.named("history")])
        assert not shown.named("error")
    jobs.close()


async def test_a_page_goes_on_when_a_damaged_job_is_deleted(
    api: Api, learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_DAMAGED_RETRY_S", 0.1)
    jobs = apsw.Connection(str(tmp_path / "jobs.sqlite"))
    jobs.execute('UPDATE jobs SET doc = \'{"tenant": "default"}\' WHERE id = ?', (learner.job,))
    async with page(api.admin, job=learner.job, points=learner.job, list="true") as shown:
        await until(lambda: len(shown.named("damaged")) == 2)
        jobs.execute("DELETE FROM jobs WHERE id = ?", (learner.job,))
        await until(lambda: shown.named("left") == [{"id": learner.job}])
        added = (await api.submit())["id"]
        await until(lambda: [job["id"] for job in shown.named("job")] == [added])
        assert not shown.named("error")
    jobs.close()
