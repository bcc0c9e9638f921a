"""Logs, metrics and live streams through the api, over the real metrics service."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog.testing

from services.api import access_end
from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain.job import moved, released
from services.core.domain.status import Status
from services.core.gen.weft.v1 import metrics_pb2 as pb
from tests.testbed.api import Api
from tests.testbed.etcd import Etcd
from tests.testbed.learner_telemetry import Learner, api_over
from tests.testbed.metrics import Helper, MetricsProcess, running
from tests.waiting import HANG_S, until


@dataclass
class Event:
    name: str
    id: int | None
    data: Any


async def events(client: httpx2.AsyncClient, path: str, **options: Any) -> AsyncGenerator[Event]:
    """The events of a stream until its connection ends."""
    headers = {"Accept": "text/event-stream", **options.pop("headers", {})}
    async with client.stream("GET", path, headers=headers, timeout=HANG_S, **options) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                yield Event(fields["event"], int(fields["id"]) if "id" in fields else None, json.loads(fields["data"]))
                fields = {}


async def whole(client: httpx2.AsyncClient, path: str, **options: Any) -> list[Event]:
    return [event async for event in events(client, path, **options)]


class Reading:
    """A follower in the background."""

    def __init__(self, client: httpx2.AsyncClient, path: str, **options: Any) -> None:
        self.events_read: list[Event] = []
        self.task = asyncio.create_task(self._read(client, path, options))

    async def _read(self, client: httpx2.AsyncClient, path: str, options: dict[str, Any]) -> None:
        async for event in events(client, path, **options):
            self.events_read.append(event)

    @property
    def texts(self) -> list[str]:
        return [event.data["text"] for event in self.events_read if event.name == "line"]

    async def has(self, condition: Callable[["Reading"], bool]) -> None:
        await until(lambda: condition(self))


async def test_log_lines_are_paged_and_filtered(api: Api, learner: Learner) -> None:
    await learner.write_lines(*(f"line {number}" for number in range(1, 11)))
    url = f"/v1/jobs/{learner.job}/logs"
    first = (await api.admin.get(url, params={"limit": 4})).json()
    assert [line["text"] for line in first["lines"]] == ["line 1", "line 2", "line 3", "line 4"]
    assert (first["next"], first["more"]) == (4, True)
    rest = (await api.admin.get(url, params={"after": first["next"], "limit": 6})).json()
    assert [line["seq"] for line in rest["lines"]] == [5, 6, 7, 8, 9, 10]
    assert (rest["next"], rest["more"]) == (10, False)
    line = rest["lines"][0]
    assert (line["attempt"], line["role"], line["rank"], line["run"], line["stream"]) == (1, "worker", 0, 1, "stdout")
    assert line["time"].endswith("Z")
    last = (await api.admin.get(url, params={"tail": 2})).json()
    assert [line["seq"] for line in last["lines"]] == [9, 10]
    assert (last["previous"], last["partial"]) == (9, False)
    before = (await api.admin.get(url, params={"tail": 10, "before": last["previous"], "order": "time"})).json()
    assert [line["seq"] for line in before["lines"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert before["previous"] is None
    by_time = (await api.admin.get(url, params={"order": "time", "limit": 6})).json()
    assert (by_time["next"], by_time["more"], len(by_time["lines"])) == (6, True, 6)
    assert (await api.admin.get(url, params={"tail": 0})).json()["lines"] == []
    matching = (await api.admin.get(url, params={"search": "line [13]$"})).json()
    assert [line["text"] for line in matching["lines"]] == ["line 1", "line 3"]
    assert (await api.admin.get(url, params={"rank": 1})).json()["lines"] == []
    assert (await api.admin.get(url, params={"stream": "stderr"})).json()["lines"] == []
    assert (await api.admin.get(url, params={"until": "2020-01-01T00:00:00Z"})).json()["lines"] == []
    assert len((await api.admin.get(url, params={"since": "2020-01-01T00:00:00+01:00"})).json()["lines"]) == 10


async def test_a_log_of_any_length_is_saved_as_a_file_by_one_request_with_the_cookie_of_a_session(
    api: Api, learner: Learner
) -> None:
    """The dashboard collected all pages of a log in the memory of the browser."""
    for batch in range(3):
        await learner.write_lines(*(f"line {batch}-{number} é" for number in range(500)))
    url = f"/v1/jobs/{learner.job}/logs"
    stored = (await api.admin.get(url, params={"limit": 10_000})).json()["lines"]
    lines = [f"{line['time']} worker-0 stdout {line['text']}" for line in stored]
    same_site = {"sec-fetch-site": "same-origin"}
    async with api.client(None) as browser:
        await browser.post("/v1/session", json={"key": api.admin_key}, headers=same_site)
        file = await browser.get(url, params={"download": True, "limit": 1}, headers=same_site)
        assert file.headers["content-disposition"] == f"attachment; filename={learner.job}.log"
        assert file.headers["content-type"] == "text/plain; charset=utf-8"
        assert file.text.splitlines() == lines
        assert (await browser.get(url, params={"download": True}, headers={"sec-fetch-site": "cross-site"})).is_error
    by_time = await api.admin.get(url, params={"download": True, "order": "time", "search": "line 1-"})
    assert by_time.text.splitlines() == lines[500:1000]
    some = await api.admin.get(url, params={"download": True, "after": 3, "before": 6})
    assert some.text.splitlines() == lines[3:5]
    none = await api.admin.get(url, params={"download": True, "rank": 1})
    assert (none.status_code, none.content) == (200, b"")
    for wrong in ({"tail": 1}, {"search": "("}):
        assert (await api.admin.get(url, params={"download": True, **wrong})).status_code == 400


@pytest.mark.parametrize(
    "params",
    [
        {"search": "("},
        {"since": "yesterday"},
        {"limit": 0},
        {"tail": -1},
        {"rank": "x"},
        {"after": -1},
        {"order": "sideways"},
    ],
)
async def test_invalid_log_parameters_are_refused_before_a_stream_begins(
    api: Api, learner: Learner, params: dict[str, Any]
) -> None:
    for follow in ("false", "true"):
        refused = await api.admin.get(f"/v1/jobs/{learner.job}/logs", params={**params, "follow": follow})
        assert (refused.status_code, refused.headers["content-type"]) == (400, "application/problem+json"), follow


async def test_metrics_are_answered_as_pages_and_as_curves(api: Api, learner: Learner) -> None:
    await learner.write_points(0.9, math.nan, math.inf, -math.inf, 0.1)
    url = f"/v1/jobs/{learner.job}/metrics"
    page = (await api.admin.get(url)).json()
    assert [point["value"] for point in page["points"]] == [0.9, "NaN", "Infinity", "-Infinity", 0.1]
    assert (page["next"], page["more"]) == (5, False)
    assert (await api.admin.get(url, params={"name": "other"})).json()["points"] == []
    reply = (await api.admin.get(url, params={"series": "true"})).json()
    [curve] = reply["series"]
    assert reply["through"] == learner.points
    assert (curve["name"], curve["steps"], curve["values"][0]) == ("loss", [0, 1, 2, 3, 4], 0.9)
    assert (curve["attempts"], len(curve["times"])) == ([1] * 5, 5)
    progress = (await api.admin.get(f"/v1/jobs/{learner.job}/progress")).json()
    assert (progress["points"], progress["progress"], progress["latest"]["loss"]["value"]) == (5, None, 0.1)


async def test_usage_of_the_hardware_is_in_the_progress_and_among_the_metrics_by_name(
    api: Api, learner: Learner
) -> None:
    await learner.write_points(0.9)
    values = {"system/cpu": (1.5, 0.25), "system/memory": (100.0, 700.0)}
    points = [
        pb.MetricPoint(offset=offset, time_ms=1000 + offset, name=name, value=value, context={"weft": "usage"})
        for name, pair in values.items()
        for offset, value in enumerate(pair)
    ]
    source = learner.helper.source("usage")
    await learner.helper.append(pb.SourceBatch(source=source, start=0, end=2, points=points))
    url = f"/v1/jobs/{learner.job}"
    progress = (await api.admin.get(f"{url}/progress")).json()
    assert list(progress["latest"]) == ["loss"]
    assert progress["usage"] == [
        {
            "rank": 0,
            "cpus": 0.25,
            "max_cpus": 1.5,
            "memory": 700,
            "max_memory": 700,
            "gpus": None,
            "max_gpus": None,
            "gpu_memory": None,
            "max_gpu_memory": None,
        }
    ]
    every = (await api.admin.get(f"{url}/metrics", params={"series": "true"})).json()
    assert [curve["name"] for curve in every["series"]] == ["loss"]
    named = (await api.admin.get(f"{url}/metrics", params={"series": "true", "name": "system/cpu"})).json()
    assert [(curve["values"], curve["context"]) for curve in named["series"]] == [([1.5, 0.25], {"weft": "usage"})]


async def test_a_list_has_the_thinned_curve_of_the_first_metric(api: Api, learner: Learner) -> None:
    values = [step / 1000 for step in range(1000)]
    values[500] = -7.0
    await learner.write_points(*values)
    await learner.write_points(0.5, name="acc")
    silent = (await api.submit())["id"]
    params: dict[str, str | int] = {"metrics": "loss,acc", "curve_points": 40, "fields": "metrics"}
    jobs = {job["id"]: job["metrics"] for job in (await api.admin.get("/v1/jobs", params=params)).json()["jobs"]}
    loss, acc = jobs[learner.job]
    assert 20 <= len(loss["curve"]) <= 45
    assert (loss["curve"][0], min(loss["curve"]), loss["curve"][-1]) == (0.0, -7.0, 0.999)
    assert "curve" not in acc
    assert jobs[silent] == []
    assert (await api.admin.get("/v1/jobs", params={**params, "limit": 101})).status_code == 400


async def test_a_log_stream_has_each_line_once_and_the_end_last(api: Api, learner: Learner) -> None:
    await learner.write_lines("before")
    reading = Reading(api.admin, f"/v1/jobs/{learner.job}/logs")
    await reading.has(lambda reader: reader.texts == ["before"])
    await learner.write_lines("first", "second")
    await reading.has(lambda reader: len(reader.texts) == 3)
    assert not reading.task.done()
    await learner.write_lines("third")
    await learner.complete_and_release()
    await asyncio.wait_for(reading.task, HANG_S)
    assert reading.texts == ["before", "first", "second", "third"]
    assert [event.id for event in reading.events_read] == [1, 2, 3, 4, None]
    assert reading.events_read[-1].name == "end"
    assert reading.events_read[-1].data == {
        "id": learner.job,
        "status": "COMPLETED",
        "reason": "",
        "message": "",
        "exit_code": None,
        "at_rest": True,
        "deleted": False,
    }


async def test_a_log_stream_ends_only_after_the_hardware_is_released(api: Api, learner: Learner) -> None:
    reading = Reading(api.admin, f"/v1/jobs/{learner.job}/logs")
    await api.change(
        learner.job, lambda document: moved(document, Status.COMPLETED, actor="guardian", now=document.updated)
    )
    await learner.write_lines("a helper was still shipping")
    await reading.has(lambda reader: len(reader.texts) == 1)
    assert not reading.task.done()
    await api.change(learner.job, lambda document: released(document, now=document.updated))
    await asyncio.wait_for(reading.task, HANG_S)
    assert reading.events_read[-1].name == "end"


async def test_a_log_stream_resumes_exactly_after_last_event_id(api: Api, learner: Learner) -> None:
    await learner.write_lines(*(str(number) for number in range(1, 3001)))
    await learner.complete_and_release()
    url = f"/v1/jobs/{learner.job}/logs"
    taken: list[Event] = []
    while not taken or taken[-1].name != "end":
        last = next((event.id for event in reversed(taken) if event.id), None)
        async with aclosing(events(api.admin, url, headers={"Last-Event-ID": str(last)} if last else {})) as stream:
            count = 0
            async for event in stream:
                taken.append(event)
                count += 1
                if count == 700:  # the connection is cut
                    break
    assert [event.id for event in taken[:-1]] == [*range(1, 3001)]
    assert [event.data["text"] for event in taken[:-1]] == [str(number) for number in range(1, 3001)]
    rest = await whole(api.admin, url, params={"after": 2998})
    assert [event.id for event in rest] == [2999, 3000, None]
    for wrong in ("x", "-1", "9" * 40, "1.5"):
        refused = await api.admin.get(url, headers={"Last-Event-ID": wrong, "Accept": "text/event-stream"})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (400, "/header/last-event-id")


async def test_a_log_stream_with_tail_begins_with_the_last_lines(api: Api, learner: Learner) -> None:
    await learner.write_lines(*(str(number) for number in range(1, 101)))
    reading = Reading(api.admin, f"/v1/jobs/{learner.job}/logs", params={"tail": 2})
    none = Reading(api.admin, f"/v1/jobs/{learner.job}/logs", params={"tail": 0, "start": "true"})
    await reading.has(lambda reader: reader.texts == ["99", "100"])
    await none.has(lambda reader: bool(reader.events_read))  # it has found the end of the log
    await learner.write_lines("101")
    await reading.has(lambda reader: reader.texts == ["99", "100", "101"])
    await none.has(lambda reader: reader.texts == ["101"])
    await learner.complete_and_release()
    await asyncio.gather(reading.task, none.task)
    resumed = await whole(api.admin, f"/v1/jobs/{learner.job}/logs", params={"tail": 1, "after": 98})
    assert [event.id for event in resumed] == [99, 100, 101, None]


async def test_a_log_stream_with_tail_that_is_cut_before_its_first_line_loses_no_line(
    api: Api, learner: Learner
) -> None:
    url = f"/v1/jobs/{learner.job}/logs"
    await learner.write_lines(*(str(number) for number in range(1, 101)))
    tokens: dict[int, int] = {}
    for tail in (0, 2):
        async with aclosing(events(api.admin, url, params={"tail": tail, "start": "true"})) as stream:
            first = await anext(stream)
        assert (first.name, first.data) == ("start", {"seq": first.id})
        assert first.id is not None
        tokens[tail] = first.id
    assert tokens == {0: 100, 2: 98}
    await learner.write_lines("101", "102", "103")
    await learner.complete_and_release()
    for tail, token in tokens.items():
        headers = {"Last-Event-ID": str(token)}
        rest = await whole(api.admin, url, params={"tail": tail, "start": "true"}, headers=headers)
        assert [event.name for event in rest] == ["start", *["line"] * (103 - token), "end"]
        assert [event.id for event in rest] == [token, *range(token + 1, 104), None]
    assert "start" not in {event.name for event in await whole(api.admin, url, params={"tail": 2})}


async def test_a_filtered_log_stream_ends_with_the_job(api: Api, learner: Learner) -> None:
    await learner.write_lines("a", "b", "a", "c")
    reading = Reading(api.admin, f"/v1/jobs/{learner.job}/logs", params={"search": "a"})
    await reading.has(lambda reader: [event.id for event in reader.events_read] == [1, 3])
    await learner.write_lines("c", "a", "c")
    await learner.complete_and_release()
    await asyncio.wait_for(reading.task, HANG_S)
    assert [event.id for event in reading.events_read] == [1, 3, 6, None]


async def test_a_metrics_stream_has_each_point_once_and_the_end_last(api: Api, learner: Learner) -> None:
    reading = Reading(api.admin, f"/v1/jobs/{learner.job}/metrics", params={"name": "loss"})
    await learner.write_points(0.5, math.nan)
    await reading.has(lambda reader: [event.data["value"] for event in reader.events_read] == [0.5, "NaN"])
    await learner.complete_and_release()
    await asyncio.wait_for(reading.task, HANG_S)
    assert [(event.name, event.id) for event in reading.events_read] == [("point", 1), ("point", 2), ("end", None)]


async def test_an_event_stream_has_the_history_and_each_change(api: Api, learner: Learner) -> None:
    reading = Reading(api.admin, f"/v1/jobs/{learner.job}/events")
    await reading.has(lambda reader: reader.events_read[-1:] != [] and reader.events_read[-1].name == "status")
    assert [event.data["to"] for event in reading.events_read if event.name == "history"] == [
        "QUEUED",
        "PENDING",
        "PROCESSING",
    ]
    await api.admin.post(f"/v1/jobs/{learner.job}/halt")
    await reading.has(lambda reader: reader.events_read[-1].data.get("desired") == "halt")
    await learner.complete_and_release()
    await asyncio.wait_for(reading.task, HANG_S)
    assert [event.id for event in reading.events_read if event.name == "history"] == [1, 2, 3, 4]
    assert "spec" not in next(event.data for event in reading.events_read if event.name == "status")
    assert reading.events_read[-1].name == "end"
    again = await whole(api.admin, f"/v1/jobs/{learner.job}/events", headers={"Last-Event-ID": "3"})
    assert [event.name for event in again] == ["history", "status", "end"]


async def test_the_stream_of_a_deleted_job_ends(api: Api, learner: Learner) -> None:
    reading = Reading(api.admin, f"/v1/jobs/{learner.job}/events")
    await reading.has(lambda reader: bool(reader.events_read))
    await learner.complete_and_release()
    assert (await api.admin.delete(f"/v1/jobs/{learner.job}")).status_code == 204
    await asyncio.wait_for(reading.task, HANG_S)
    assert reading.events_read[-1].name == "end"


async def test_a_hundred_streams_of_one_job_share_one_poll_and_leave_no_task_behind(api: Api, learner: Learner) -> None:
    limits = httpx2.Limits(max_connections=200)
    async with api.client(api.admin_key, limits=limits) as client:
        readers = [Reading(client, f"/v1/jobs/{learner.job}/events") for _ in range(100)]
        await until(lambda: all(reader.events_read for reader in readers))
        polls = [task for task in asyncio.all_tasks() if "Watcher._feed" in repr(task.get_coro())]
        assert len(polls) == 1
        await learner.complete_and_release()
        await asyncio.gather(*(reader.task for reader in readers))
    await until(lambda: not [task for task in asyncio.all_tasks() if "Watcher._feed" in repr(task.get_coro())])
    assert {reader.events_read[-1].name for reader in readers} == {"end"}
    await until(lambda: "weft_followers 0.0" in api.measured())


async def test_a_disconnected_stream_is_closed_without_warnings(api: Api, learner: Learner) -> None:
    with structlog.testing.capture_logs() as logs:
        for path in ("events", "logs?follow=true", "metrics?follow=true"):
            await learner.write_lines("something")
            await learner.write_points(1.0)
            async with aclosing(events(api.admin, f"/v1/jobs/{learner.job}/{path}")) as stream:
                await anext(stream)
                await until(lambda: "weft_followers 1.0" in api.measured())
            await until(lambda: "weft_followers 0.0" in api.measured())
    assert [entry for entry in logs if entry["log_level"] in {"warning", "error"}] == []


@pytest.mark.parametrize("path", ["events", "logs?follow=true", "metrics?follow=true"])
async def test_a_silent_live_stream_ends_when_its_key_is_revoked(
    api: Api, learner: Learner, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(access_end, "CHECK_S", 0.05)
    made = (await api.admin.post("/v1/keys", json={"name": "laptop"})).json()
    async with api.client(made["key"]) as client:
        reading = Reading(client, f"/v1/jobs/{learner.job}/{path}")
        await until(lambda: "weft_followers 1.0" in api.measured())
        await api.admin.delete(f"/v1/keys/{made['id']}")
        await reading.has(lambda reader: reader.events_read[-1:] != [] and reader.events_read[-1].name == "error")
        problem = reading.events_read[-1].data
        assert (problem["status"], problem["code"]) == (401, "unauthenticated")
        await until(lambda: "weft_followers 0.0" in api.measured())


async def test_a_live_stream_that_never_pauses_ends_when_its_key_is_revoked(
    api: Api, learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_end, "CHECK_S", 0.05)
    made = (await api.admin.post("/v1/keys", json={"name": "laptop"})).json()

    async def write() -> None:
        while True:
            await learner.write_lines("line")

    writing = asyncio.create_task(write())
    async with api.client(made["key"]) as client:
        reading = Reading(client, f"/v1/jobs/{learner.job}/logs?follow=true")
        await reading.has(lambda reader: len(reader.events_read) > 3)
        await api.admin.delete(f"/v1/keys/{made['id']}")
        await reading.has(lambda reader: reader.events_read[-1].name == "error")
    assert reading.events_read[-1].data["code"] == "unauthenticated"
    writing.cancel()
    await asyncio.wait({writing})


async def test_a_silent_stream_gets_keep_alive_comments(tmp_path: Path, metrics: MetricsProcess) -> None:
    async with api_over(tmp_path, metrics.address, keepalive_s=0.05) as api:
        job = (await api.submit())["id"]
        async with api.admin.stream("GET", f"/v1/jobs/{job}/logs", params={"follow": "true"}) as answer:
            comments = 0
            async for line in answer.aiter_lines():
                comments += line.startswith(":")
                if comments == 4:
                    break


async def test_a_stopping_service_cuts_streams_without_an_end(tmp_path: Path, metrics: MetricsProcess) -> None:
    async with api_over(tmp_path, metrics.address) as api:
        job = (await api.submit())["id"]
        reading = Reading(api.admin, f"/v1/jobs/{job}/events")
        await reading.has(lambda reader: len(reader.events_read) == 2)
        api.stopping.set()
        await asyncio.wait_for(reading.task, HANG_S)
        assert [event.name for event in reading.events_read] == ["history", "status"]


async def test_while_metrics_is_away_pages_answer_503_and_streams_wait(tmp_path: Path, etcd: Etcd) -> None:
    with running(tmp_path / "metrics", etcd.address) as service:
        async with api_over(tmp_path / "home", service.address) as api:
            job = (await api.submit())["id"]
            status = EtcdStatusStore(etcd.address, timeout_s=HANG_S)
            await status.put(f"/jobs/{job}/attempt", json.dumps({"attempt": 1, "learners": 1}))
            helper = Helper(service, job)
            learner = Learner(api, job, helper)
            await learner.write_lines("one", "two")
            reading = Reading(api.admin, f"/v1/jobs/{job}/logs")
            await reading.has(lambda reader: len(reader.texts) == 2)
            service.kill()
            away = await api.admin.get(f"/v1/jobs/{job}/logs")
            assert (away.status_code, away.json()["code"]) == (503, "unavailable")
            assert away.headers["retry-after"]
            assert not reading.task.done()
            service.start()
            await learner.write_lines("three")
            await reading.has(lambda reader: len(reader.texts) == 3)
            await api.admin.post(f"/v1/jobs/{job}/kill")
            await asyncio.wait_for(reading.task, HANG_S)
            assert [event.id for event in reading.events_read] == [1, 2, 3, None]
            await helper.close()
            await status.close()
