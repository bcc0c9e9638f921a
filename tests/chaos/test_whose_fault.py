"""A full disk, a package index or a data store that is away, in the middle of many jobs: none fails for it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from services.core.domain.outages import Outage
from tests.chaos.gangs import DONE_S
from tests.chaos.outside_world import PACKAGE, OutsideWorld, outside_world
from tests.chaos.takeover import SMALL
from tests.promises import Promise
from tests.testbed.mounts import small_disk
from tests.testbed.platform import Platform, empty_platform
from tests.waiting import eventually
from weft import Client
from weft._job import Job

AWAY = {Outage.INDEX_UNAVAILABLE, Outage.DATA_STORE_UNAVAILABLE}


def quick(count: int) -> dict[str, str]:
    """Settings of a platform that takes so many jobs at once. Those that wait are not all tried again each second."""
    return {"WEFT_NODE_CPUS": "64", "WEFT_OUTAGE_BACKOFF_S": str(max(1, count // 3))}


@contextmanager
def platform_beside(world: OutsideWorld, count: int) -> Generator[Client]:
    """A platform whose package index this is, and whose jobs may read data from it."""
    environment = {
        **quick(count),
        "UV_DEFAULT_INDEX": f"{world.url}/simple",
        "UV_HTTP_RETRIES": "0",
        "WEFT_HTTP_ALLOW": "127.0.0.1",
    }
    with empty_platform(environment) as running:
        running.up()
        with Client(running.url, running.key) as client:
            yield client


def code(folder: Path, requirement: str) -> Path:
    folder.mkdir()
    (folder / "requirements.txt").write_text(f"{requirement}\n")
    return folder


def submit(client: Client, world: OutsideWorld, number: int, folder: Path) -> Job:
    """A job that needs a package of its own, or a data file of its own."""
    spec: dict[str, Any] = {"name": f"job-{number}", "resources": SMALL, "retries": {"max": 0}}
    if number % 2:
        package = code(folder / str(number), f"{PACKAGE.replace('_', '-')}==1.{number}")
        spec["command"] = f"python -c 'import {PACKAGE}; print({PACKAGE}.version)'"
        return client.jobs.submit(spec, code=package)
    spec["command"] = f"cat $DATA_DIR/web/{number} > /dev/null && echo read"
    spec["data_stores"] = [{"id": "web", "type": "http", "url": f"{world.url}/data/{number}"}]
    spec["inputs"] = [{"store": "web"}]
    return client.jobs.submit(spec)


@pytest.mark.promise("R13")
@pytest.mark.timeout(3600)
def test_no_job_fails_while_package_index_and_data_store_are_away_and_all_complete_once_they_are_back(
    tmp_path: Path, promise: Promise
) -> None:
    count = promise.n(short=6, long=100)
    with outside_world(serves=count // 2) as world, platform_beside(world, count) as client:
        jobs = [submit(client, world, number, tmp_path) for number in range(count)]
        states = eventually(lambda: waiting_for_the_world(jobs), DONE_S + 10 * count)
        assert states["COMPLETED"] <= count // 2
        waiting = next(job for job in jobs if job.status == "QUEUED")
        assert waiting.reason in AWAY
        explained = eventually(lambda: explanation_of_a_wait(waiting), DONE_S)
        assert any("by itself" in hint for hint in explained["hints"])
        world.come_back()
        for job in jobs:
            job.wait(DONE_S + 10 * count)
        assert failures(jobs) == []
        assert Counter(job.status for job in jobs) == {"COMPLETED": count}
        assert {job.document["counters"]["retries"] for job in jobs} == {0}
        assert world.refused
        wrong = client.jobs.submit(
            {"name": "wrong", "command": "true", "resources": SMALL}, code=code(tmp_path / "wrong", "no-such-package")
        ).wait(DONE_S)
        history = wrong.history()
        assert (wrong.status, wrong.reason) == ("FAILED", "EnvironmentFailed"), history
        assert not [event for event in history if event.reason in AWAY], history
    promise.kept(count, "jobs during an outage of package index and data store")


def explanation_of_a_wait(job: Job) -> dict[str, Any]:
    """Why the job waits for its next attempt; empty while that attempt runs: it ends as the last one."""
    explained = job.explain()
    return explained if "trying again" in explained["summary"] else {}


def failures(jobs: list[Job]) -> list[str]:
    """Why jobs failed."""
    return [f"{job.name}: {job.reason}: {job.document['message']}" for job in jobs if job.status == "FAILED"]


def waiting_for_the_world(jobs: list[Job]) -> Counter[str]:
    """The number of jobs by status once each has completed or waits for the index or the store; else none."""
    states = Counter(job.refresh().status for job in jobs)
    assert failures(jobs) == []
    stuck = [job for job in jobs if job.status == "QUEUED" and job.reason in AWAY]
    return states if len(stuck) + states["COMPLETED"] == len(jobs) else Counter()


@pytest.mark.promise("R13")
@pytest.mark.timeout(3600)
@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can be mounted by root only")
def test_no_job_fails_while_the_learners_disk_is_full_and_all_complete_once_there_is_room(promise: Promise) -> None:
    count = promise.n(short=6, long=100)
    bounds = {**quick(count), "WEFT_DISK_FREE_PERCENT": "10"}
    with empty_platform(bounds) as running, small_disk(running.home / "node", "size=64m"):
        try:
            with_full_disk(running, count)
        finally:
            running.down()
    promise.kept(count, "jobs while the disk of their machine was full")


def with_full_disk(running: Platform, count: int) -> None:
    running.up()
    filler = running.home / "node" / ".filler"
    with Client(running.url, running.key) as client:
        held = 'echo up; until [ -e "$JOB_STATE_DIR/end" ]; do sleep 0.1; done'
        first = [client.jobs.submit({"name": "runs", "command": held, "resources": SMALL}) for _ in range(count // 2)]
        eventually(lambda: all(runs(job) for job in first), DONE_S + 5 * count)
        with filler.open("wb") as file:
            fill(file.fileno())
        later = [client.jobs.submit({"name": "waits", "command": "true", "resources": SMALL}) for _ in range(count)]
        eventually(
            lambda: all(job.refresh().document.get("pending_reason") == "WaitingForDisk" for job in later), DONE_S
        )
        eventually(lambda: "almost full" in later[0].explain()["summary"], DONE_S)
        assert {job.refresh().status for job in first} == {"PROCESSING"}
        filler.unlink()
        for job in first:
            (folder,) = (running.home / "node" / job.id).glob("*/worker-0/job")
            (folder / "end").touch()
        for job in [*first, *later]:
            job.wait(DONE_S + 5 * count)
        assert Counter(job.status for job in [*first, *later]) == {"COMPLETED": len(first) + count}


def runs(job: Job) -> bool:
    """True once it has printed a line, and its status, which follows, says that it runs."""
    return next(iter(job.logs()), None) is not None and job.refresh().status == "PROCESSING"


def fill(descriptor: int) -> None:
    """Writes until the file system has no space."""
    block = bytes(2**20)
    while block:
        try:
            os.write(descriptor, block)
        except OSError:
            block = block[: len(block) // 2]
