"""The control plane is away for long, or etcd forgets everything: learners go on, and what they say is kept."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain.errors import Unavailable
from tests.chaos.gangs import DONE_S, all_run, folders, kill_control_plane, learners, wrong_steps
from tests.chaos.takeover import SMALL
from tests.promises import Promise
from tests.testbed.platform import Platform
from tests.waiting import eventually, tries_within, until
from weft import Client
from weft._job import Job

TALKS = """
  n=0
  while [ ! -e "$JOB_STATE_DIR/end" ]; do n=$((n + 1)); echo "{\\"step\\": $n, \\"loss\\": 1.5}"; sleep 0.05; done
  echo "said $n"
"""
BACK_S = 30.0


@pytest.mark.promise("R7")
@pytest.mark.timeout(1200)
def test_a_control_plane_that_is_away_for_long_touches_no_learner_and_loses_no_line(
    weft_up: Platform, client: Client, promise: Promise
) -> None:
    away_s = promise.n(short=5, long=600)
    spec = {"name": "talks", "command": TALKS, "learners": 2, "resources": SMALL}
    job = client.jobs.submit(spec)
    eventually(lambda: all_run(weft_up, [job], 2), DONE_S)
    before = learners(weft_up, job)
    kill_control_plane(weft_up)
    began = time.monotonic()
    said = [folder / "runs" / "1" / "stdout" for folder in folders(weft_up, job)]
    sizes = [path.stat().st_size for path in said]
    eventually(lambda: time.monotonic() - began > away_s, away_s + 10)
    assert all(path.stat().st_size > size for path, size in zip(said, sizes, strict=True))
    weft_up.up()
    assert learners(weft_up, job) == before
    for folder in folders(weft_up, job):
        (folder / "job" / "end").touch()
    job.wait(DONE_S)
    assert (job.status, job.attempt, job.message) == ("COMPLETED", 1, "")
    lines = 0
    for rank in (0, 1):
        (last,) = [line.text for line in job.logs(rank=rank, tail=1)]
        lines += int(last.removeprefix("said "))
        assert not wrong_steps(job, rank, int(last.removeprefix("said ")), last)
    promise.kept(lines, f"lines and points, of two learners whose control plane was away for {away_s} s")


@pytest.mark.promise("R15")
@pytest.mark.timeout(1200)
async def test_an_etcd_that_forgets_everything_touches_no_learner_and_knows_all_again(
    weft_up: Platform, client: Client, promise: Promise
) -> None:
    count = promise.n(short=5, long=100)
    spec = {"name": "runs", "command": "exec sleep 3600", "resources": SMALL}
    jobs = [await asyncio.to_thread(client.jobs.submit, spec) for _ in range(count)]
    await until(lambda: all_run(weft_up, jobs, 1), DONE_S + count)
    status, took = EtcdStatusStore(weft_up.home.address("etcd")), 0.0
    try:
        await until(lambda: knows_all(status, jobs), DONE_S)
        before = [learners(weft_up, job) for job in jobs]
        for stopwatch in tries_within(BACK_S, most=3):
            etcd = weft_up.kill("etcd")
            with stopwatch:
                await until(lambda: weft_up.again("etcd", etcd))  # noqa: B023 - in this round only
                await until(lambda: knows_all(status, jobs))
            took = stopwatch.took_s
    finally:
        await status.close()
    assert [learners(weft_up, job) for job in jobs] == before
    for job in jobs:
        await asyncio.to_thread(job.kill)
    for job in jobs:
        await asyncio.to_thread(job.wait, DONE_S)
        assert (job.status, job.attempt) == ("KILLED", 1)
    promise.kept(count, "running jobs when etcd forgot everything")
    promise.saw(f"all of {count} jobs known again after {took:.1f} s, promised {BACK_S:g} s")


async def knows_all(status: EtcdStatusStore, jobs: list[Job]) -> bool:
    """Whether everything that etcd is for is in it: who lives, who leads, which attempts and learners there are."""
    try:
        there = {entry.key: entry.value for entry in await status.list("/")}
    except Unavailable:
        return False
    services = {Path(key).parts[2] for key in there if key.startswith("/members/")}
    attempts = {f"/jobs/{job.id}/attempt" for job in jobs}
    phases = [json.loads(there.get(f"/jobs/{job.id}/learners/worker-0", "{}")).get("phase") for job in jobs]
    return (
        {"lcm", "guardian", "metrics"} <= services and "/lcm/leader" in there and attempts <= there.keys()
        and phases == ["PROCESSING"] * len(jobs)
    )  # fmt: skip
