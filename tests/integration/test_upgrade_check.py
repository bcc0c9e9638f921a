"""The check before an upgrade of the chart, on a real job store: it names the jobs that this version cannot read."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from services.core.adapters.mongo import MongoJobStore
from services.core.domain.codec import dump
from services.core.domain.errors import Unavailable
from services.core.domain.job import SCHEMA, Job
from services.local.chart_hooks import REFUSED
from services.local.upgrade_check import check_store, main
from tests.documents import a_job
from tests.testbed.job_stores import OnMongo


async def _fill(uri: str, jobs: list[Job], planted: dict[str, str]) -> None:
    world = OnMongo(uri)
    store = await world.another()
    for job in jobs:
        await store.insert(job)
    for job_id, text in planted.items():
        await world.plant(job_id, text)
    await world.close()


def _content(uri: str) -> dict[str, Any]:
    with MongoClient[dict[str, Any]](uri) as client:
        database = client.get_default_database()
        names = sorted(database.list_collection_names())
        return {name: ([*database[name].find()], database[name].index_information()) for name in names}


def _run(uri: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The command, as the pod of the chart runs it."""
    (folder / "stores").mkdir()
    (folder / "stores" / "mongodb-uri").write_text(f"{uri}\n")
    monkeypatch.setenv("WEFT_POD_HOSTS", "weft-{}.system.svc")
    monkeypatch.setattr(sys, "argv", ["upgrade_check"])
    return main(folder)


def test_a_store_whose_jobs_can_all_be_read_passes_and_is_not_changed(
    mongo_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newer_field = a_job()
    text = json.dumps({**dump(newer_field), "field_of_a_later_version": {"kept": 1}})
    asyncio.run(_fill(mongo_uri, [a_job(), newer_field, a_job(deleted=1)], {newer_field.id: text}))
    before = _content(mongo_uri)
    assert _run(mongo_uri, tmp_path, monkeypatch) == 0
    assert "can read all jobs" in capsys.readouterr().out
    assert _content(mongo_uri) == before


def test_jobs_that_this_version_cannot_read_are_named_with_what_to_do(
    mongo_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [a_job() for _ in range(600)]  # more than a page
    later, removed = jobs[3], jobs[-1]
    planted = {later.id: json.dumps({**dump(later), "schema": SCHEMA + 1})}
    planted[removed.id] = json.dumps({**dump(removed), "deleted": 1, "state": "gone"})
    asyncio.run(_fill(mongo_uri, jobs, planted))
    before = _content(mongo_uri)
    assert _run(mongo_uri, tmp_path, monkeypatch) == REFUSED
    message = capsys.readouterr().err
    assert "cannot read 2 jobs" in message
    assert f"{later.id}: job {later.id} was written by a newer Weft (schema {SCHEMA + 1}" in message
    assert f"{removed.id}: the document of job {removed.id} cannot be read" in message
    assert "Nothing was changed" in message
    assert "--set upgrades.checkJobs=false" in message
    assert _content(mongo_uri) == before


def test_an_empty_database_passes_and_stays_empty(mongo_uri: str) -> None:
    asyncio.run(check_store(mongo_uri))
    assert _content(mongo_uri) == {}


def test_a_store_that_does_not_answer_is_no_reason_to_upgrade_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.core.adapters.mongo.connection.TIMEOUT_S", 0.2)
    with pytest.raises(Unavailable, match=r"cannot be read: MongoDB does not answer.*Nothing was changed"):
        asyncio.run(check_store("mongodb://127.0.0.1:1/weft", within_s=0.0))


def test_a_job_that_is_rewritten_keeps_the_fields_of_a_later_version(mongo_uri: str) -> None:
    """As after a rollback: the document and its parts are written again by this version."""

    async def rewritten() -> dict[str, Any]:
        job = a_job()
        document = dump(job)
        document["later"] = document["state"]["later"] = document["attempt"]["later"] = {"nested": [1]}
        await _fill(mongo_uri, [job], {job.id: json.dumps(document)})
        store = await MongoJobStore.open(mongo_uri)
        present = await store.get(job.id)
        assert present is not None
        await store.replace(present, present)
        await store.close()
        with MongoClient[dict[str, Any]](mongo_uri) as client:
            stored = client.get_default_database()["jobs"].find_one({"_id": job.id})
        assert stored is not None
        assert stored["rev"] == 2
        return dict(stored["job"])

    stored = asyncio.run(rewritten())
    assert [part["later"] for part in (stored, stored["state"], stored["attempt"])] == [{"nested": [1]}] * 3
