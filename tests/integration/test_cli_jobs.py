"""Commands about jobs, as a user types them; the jobs run nowhere: there is an api and no more."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from tests.testbed.answers import check_type
from tests.testbed.api import SPEC, Api, running_api
from tests.testbed.terminal import Terminal


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    with capture_logs():  # the log of the api, and no part of an answer
        async with running_api(tmp_path) as api:
            yield api


@pytest.fixture
def weft(api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(api, monkeypatch, capsys)


async def test_last_is_never_the_job_before_the_one_that_was_deleted(api: Api, weft: Terminal) -> None:
    before, last = await api.submit(), await api.submit({**SPEC, "name": "the-last"})
    assert (await weft("show", "@last", "-o", "name")).out.strip() == last["id"]
    assert (await weft("delete", "@last", "--kill", "--yes")).code == 0
    for command in ("show", "kill", "delete"):
        refused = await weft(command, "@last")
        assert (refused.code, refused.out) == (4, "")
        assert f"@last is the-last ({last['id']}), and it was deleted" in refused.err
    assert (await weft("list", "-o", "name")).out.split() == [before["id"]]
    await api.submit({**SPEC, "name": "after-that"})
    assert "after-that" in (await weft("show", "@last")).out


async def test_list_of_deleted_jobs_shows_when_they_were_deleted(api: Api) -> None:
    kept, deleted = await api.submit(), await api.submit()
    assert (await api.admin.delete(f"/v1/jobs/{deleted['id']}?kill=true")).status_code == 204
    assert [job["id"] for job in (await api.admin.get("/v1/jobs")).json()["jobs"]] == [kept["id"]]
    listed = (await api.admin.get("/v1/jobs?deleted=true")).json()["jobs"]
    assert [(job["id"], "deleted" in job) for job in listed] == [(deleted["id"], True), (kept["id"], False)]


async def test_a_list_that_ends_early_says_so_and_goes_on_at_next(api: Api, weft: Terminal) -> None:
    ids = [(await api.submit())["id"] for _ in range(25)][::-1]
    listed = await weft("list")
    assert "these are the newest 20; --all shows all" in listed.err
    assert len(listed.out.splitlines()) == 21
    first = await weft("list", "-o", "json")
    assert ([job["id"] for job in first.json["jobs"]], first.json["next"]) == (ids[:20], ids[19])
    assert json.loads(first.err) == {"note": "these are the newest 20; --all shows all, -n N more of them"}
    rest = await weft("list", "-o", "json", "--after", first.json["next"])
    assert ([job["id"] for job in rest.json["jobs"]], rest.json["next"], rest.err) == (ids[20:], None, "")
    for words in (["-o", "name"], ["-n", "25", "-o", "name"], ["--all", "-o", "name"]):
        whole = await weft("list", *words)
        assert (whole.out.split(), whole.err) == (ids, "")
    assert (await weft("list", "-o", "name", "-n", "3")).out.split() == ids[:3]


async def test_errors_are_json_for_programs(api: Api, weft: Terminal) -> None:
    unknown = await weft("show", "nobody", "-o", "json")
    error = json.loads(unknown.err)
    check_type("Error", error["error"])
    assert (unknown.code, unknown.out, error["error"]["code"], error["error"]["exit_code"]) == (4, "", "not-found", 4)
    usage = await weft("show", "--nonsense", "--output=json")
    assert (usage.code, json.loads(usage.err)["error"]["code"]) == (2, "usage")
    several = await weft("kill", "a", "b", "--yes", "--json")
    assert [json.loads(line)["error"]["code"] for line in several.err.splitlines()] == ["not-found"] * 2
    as_yaml = await weft("show", "nobody", "-o", "yaml")
    assert yaml.safe_load(as_yaml.err)["error"]["code"] == "not-found"


async def test_events_have_the_same_json_as_the_api(api: Api, weft: Terminal) -> None:
    job = await api.submit()
    events = (await weft("events", job["id"], "-o", "json")).json
    assert events == (await api.admin.get(f"/v1/jobs/{job['id']}/history")).json()
    assert (events["events"][0]["from"], events["events"][0]["to"], events["events"][0]["time"][-1]) == (
        None, "QUEUED", "Z",
    )  # fmt: skip
