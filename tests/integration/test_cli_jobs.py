"""Commands about jobs, as a user types them; the jobs run nowhere: there is an api and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

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
