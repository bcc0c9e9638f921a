"""GPU-hours by tenant and user: whose jobs count, for which time, and the CSV file."""

from __future__ import annotations

import csv
import io
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from services.core.domain.job import Job, admitted, moved, released, removed
from services.core.domain.status import Status
from tests.documents import a_job
from tests.testbed.api import Api
from weft import AsyncClient, PermissionDenied

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SPEC: dict[str, Any] = {"name": "digits", "command": "true", "resources": {"gpus": 2, "cpus": 4}}
HALF: dict[str, Any] = {"name": "half", "command": "true", "resources": {"gpus": 0.5, "cpus": 1}}


def now_ms() -> int:
    return round(time.time() * 1000)


def text_of(ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))


async def held(
    api: Api, hours: float, *, ago: float, spec: dict[str, Any] = SPEC, running: bool = False, **fields: Any
) -> Job:
    """A job that was admitted so many hours ago and held its hardware for some hours; ``running``: it still does."""
    begin = now_ms() - round(ago * HOUR_MS)
    end = begin + round(hours * HOUR_MS)
    job = await api.store.insert(a_job(at=begin, spec=spec, **fields))
    job = await api.store.replace(job, admitted(job, placement={"worker-0": "n1"}, dispatcher_term=1, now=begin))
    if running:
        return job
    return await api.store.replace(job, released(moved(job, Status.KILLED, actor="test", now=end), now=end))


async def again(api: Api, job: Job, hours: float, *, ago: float) -> Job:
    """The job after one more attempt."""
    begin = now_ms() - round(ago * HOUR_MS)
    end = begin + round(hours * HOUR_MS)
    job = await api.store.replace(job, admitted(job, placement={"worker-0": "n2"}, dispatcher_term=2, now=begin))
    return await api.store.replace(job, released(moved(job, Status.KILLED, actor="test", now=end), now=end))


async def usage(client: httpx2.AsyncClient, **params: Any) -> list[tuple[str, str, int, float, float]]:
    """(tenant, user, jobs, GPU-hours, CPU-hours) of each line of the answer."""
    answer = await client.get("/v1/usage", params=params)
    assert answer.status_code == 200, answer.text
    entries = answer.json()["users"]
    return [
        (entry["tenant"], entry["user"], entry["jobs"], round(entry["gpu_hours"], 2), round(entry["cpu_hours"], 2))
        for entry in entries
    ]


def rounded(hours: float) -> float:
    """As the answer has it."""
    return round(hours, 4)


async def test_hours_are_added_by_tenant_and_user_and_the_most_come_first(api: Api) -> None:
    await held(api, 3, ago=10)
    await held(api, 2, ago=5, spec=HALF)
    await held(api, 1, ago=5, user="grace")
    await held(api, 8, ago=20, tenant="vision", user="grace")
    assert await usage(api.admin, tenant="*") == [
        ("vision", "grace", 1, 16.0, 32.0),
        ("acme", "ada", 2, 7.0, 14.0),
        ("acme", "grace", 1, 2.0, 4.0),
    ]
    assert await usage(api.admin, tenant="acme") == [("acme", "ada", 2, 7.0, 14.0), ("acme", "grace", 1, 2.0, 4.0)]
    assert await usage(api.admin) == []  # the administrator's own tenant


async def test_a_user_sees_the_own_tenant_only(api: Api) -> None:
    await held(api, 1, ago=2)
    await held(api, 1, ago=2, tenant="vision", user="grace")
    async with api.client(await api.key("hopper", "vision")) as hopper:
        assert await usage(hopper) == [("vision", "grace", 1, 2.0, 4.0)]
        assert await usage(hopper, tenant="vision") == [("vision", "grace", 1, 2.0, 4.0)]
        for tenant in ("acme", "*"):
            assert (await hopper.get("/v1/usage", params={"tenant": tenant})).status_code == 403
            as_file = await hopper.get("/v1/usage", params={"tenant": tenant, "format": "csv"})
            assert as_file.status_code == 403


async def test_all_attempts_count_and_the_time_in_the_queue_does_not(api: Api) -> None:
    job = await held(api, 2, ago=30)
    queued = replace(job, state=replace(job.state, status=Status.QUEUED), finished=None)
    await api.store.delete(job.id)
    job = await api.store.insert(queued)
    await again(api, job, 3, ago=20)
    assert await usage(api.admin, tenant="acme") == [("acme", "ada", 1, 10.0, 20.0)]


async def test_a_job_that_runs_counts_until_now_and_only_within_the_window(api: Api) -> None:
    job = await held(api, 0, ago=50, running=True)
    assert job.attempt.admitted is not None
    answer = (await api.admin.get("/v1/usage", params={"tenant": "acme"})).json()
    [entry], hours = answer["users"], (now_ms() - job.attempt.admitted) / HOUR_MS
    assert (entry["tenant"], entry["user"], entry["jobs"]) == ("acme", "ada", 1)
    assert 100 <= entry["gpu_hours"] <= rounded(2 * hours)
    assert 200 <= entry["cpu_hours"] <= rounded(4 * hours)
    since, until = text_of(now_ms() - 30 * HOUR_MS), text_of(now_ms() - 20 * HOUR_MS)
    assert await usage(api.admin, tenant="acme", since=since, until=until) == [("acme", "ada", 1, 20.0, 40.0)]


async def test_the_window_is_the_last_thirty_days_unless_it_is_named(api: Api) -> None:
    job = await held(api, 2, ago=24 * 30 + 1)  # one of the two hours is in the window
    await held(api, 2, ago=24 * 40, user="grace")
    assert job.released is not None
    answer = (await api.admin.get("/v1/usage", params={"tenant": "acme"})).json()
    [entry], hours = answer["users"], (job.released - (now_ms() - 30 * DAY_MS)) / HOUR_MS
    assert (entry["tenant"], entry["user"], entry["jobs"]) == ("acme", "ada", 1)
    assert rounded(2 * hours) <= entry["gpu_hours"] <= 2  # the window moves on while it is read
    assert rounded(4 * hours) <= entry["cpu_hours"] <= 4
    since = text_of(now_ms() - 41 * DAY_MS)
    assert len(await usage(api.admin, tenant="acme", since=since)) == 2
    answer = (await api.admin.get("/v1/usage", params={"until": "2026-01-31T00:00:00Z"})).json()
    assert (answer["since"], answer["until"]) == ("2026-01-01T00:00:00.000Z", "2026-01-31T00:00:00.000Z")


async def test_a_window_ends_now_at_the_latest(api: Api) -> None:
    await held(api, 0, ago=1, running=True)
    answer = (await api.admin.get("/v1/usage", params={"tenant": "*", "until": "2999-01-01T00:00:00Z"})).json()
    assert answer["until"] < "2999"
    assert [round(entry["gpu_hours"], 1) for entry in answer["users"]] == [2.0]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"since": "yesterday"}, "a time is written as"),
        ({"until": "10:00"}, "a time is written as"),
        ({"since": "2999-01-01T00:00:00Z"}, "the window is empty"),
        ({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "the window is empty"),
        ({"since": "2020-01-01T00:00:00Z"}, "a window has at most 366 days"),
        ({"format": "xlsx"}, "format"),
        ({"tenant": "No Name"}, "a name has 1 to 63"),
    ],
)
async def test_a_wrong_window_is_refused_with_what_to_do(api: Api, params: dict[str, str], message: str) -> None:
    answer = await api.admin.get("/v1/usage", params=params)
    assert answer.status_code == 400
    assert message in answer.json()["detail"]
    assert answer.json()["errors"][0]["pointer"] == f"/query/{next(iter(params))}"


async def test_deleted_jobs_count_and_damaged_ones_are_reported(api: Api) -> None:
    """A user who deleted a job lowered the GPU-hours of the month."""
    job = await held(api, 1, ago=2)
    await api.store.replace(job, removed(job, actor="user:ada", now=now_ms()))
    damaged = await held(api, 1, ago=2, user="grace")
    await api.store.replace(damaged, replace(damaged, spec={"roles": {"worker": {"count": -3}}}))
    answer = (await api.admin.get("/v1/usage", params={"tenant": "*"})).json()
    assert [(entry["user"], entry["jobs"]) for entry in answer["users"]] == [("ada", 1)]
    assert answer["unreadable"] == 1


async def test_a_csv_file_has_a_line_for_each_user_and_the_window_on_each_line(api: Api) -> None:
    await held(api, 3, ago=10)
    await held(api, 0.5, ago=10, user="grace")
    params = {"tenant": "*", "since": "2026-01-01T00:00:00Z", "format": "csv"}
    params |= {"since": text_of(now_ms() - 20 * HOUR_MS), "until": text_of(now_ms())}
    answer = await api.admin.get("/v1/usage", params=params)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    named = f"weft-usage-{params['since'][:10]}-{params['until'][:10]}.csv"
    assert answer.headers["content-disposition"] == f"attachment; filename={named}"
    window = [params[name].replace("Z", ".000Z") for name in ("since", "until")]
    assert list(csv.reader(io.StringIO(answer.text))) == [
        ["since", "until", "tenant", "user", "jobs", "gpu_hours", "cpu_hours"],
        [*window, "acme", "ada", "1", "6.0", "12.0"],
        [*window, "acme", "grace", "1", "1.0", "2.0"],
    ]


async def test_the_accept_header_chooses_csv_and_the_parameter_wins(api: Api) -> None:
    accepting = {"Accept": "text/csv"}
    by_header = await api.admin.get("/v1/usage", headers=accepting)
    assert by_header.headers["content-type"].startswith("text/csv")
    by_parameter = await api.admin.get("/v1/usage", params={"format": "json"}, headers=accepting)
    assert by_parameter.headers["content-type"] == "application/json"
    assert by_parameter.headers["vary"] == by_header.headers["vary"] == "Accept"


async def test_the_client_reads_the_same_as_values_and_as_csv(api: Api) -> None:
    await held(api, 3, ago=10)
    since, until = datetime.now(UTC) - timedelta(hours=12), datetime.now(UTC) - timedelta(hours=8)
    async with AsyncClient(api.url, api.admin_key) as client:
        answer = await client.usage(since=since, until=until, tenant="acme")
        text = await client.usage_csv(since=since, until=until, tenant="acme")
        with pytest.raises(PermissionDenied):
            async with AsyncClient(api.url, await api.key("grace", "vision")) as other:
                await other.usage_csv(tenant="acme")
    [entry] = answer["users"]
    assert entry["gpu_hours"] == pytest.approx(4, abs=0.01)  # until two hours after its admission
    [line] = csv.DictReader(io.StringIO(text))
    assert {name: line[name] for name in ("since", "until")} == {name: answer[name] for name in ("since", "until")}
    assert (line["user"], float(line["gpu_hours"])) == ("ada", entry["gpu_hours"])


async def test_no_name_in_the_csv_file_is_a_formula_or_breaks_a_line(api: Api) -> None:
    """Names of keys are checked; those of documents that were restored or repaired by hand may be anything."""
    names = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", ' ="x"', "\tx", 'a,"b"', "two\nlines", "plain"]
    for name in names:
        await held(api, 1, ago=2, tenant=name, user=name)
    answer = await api.admin.get("/v1/usage", params={"tenant": "*", "format": "csv"})
    lines = list(csv.reader(io.StringIO(answer.text)))
    assert {len(line) for line in lines} == {7}
    unchanged = {'a,"b"', "two\nlines", "plain"}
    expected = {name if name in unchanged else f"'{name}" for name in names}
    assert {line[2] for line in lines[1:]} == {line[3] for line in lines[1:]} == expected
