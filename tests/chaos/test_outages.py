"""The control plane is down for long, or etcd loses all keys: learners continue and their lines are kept."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain.errors import Unavailable
from tests.chaos.gangs import DONE_S, all_run, folders, kill_control_plane, learners, step_failures
from tests.chaos.takeover import SMALL
from tests.promises import Promise
from tests.testbed.platform import Platform
from tests.waiting import eventually, tries_within, until
from weft import Client
from weft._job import Job

PRINTS = """
  n=0
  while [ ! -e "$JOB_STATE_DIR/end" ]; do n=$((n + 1)); echo "{\\"step\\": $n, \\"loss\\": 1.5}"; sleep 0.05; done
  echo "said $n"
"""
BACK_S = 30.0


@pytest.mark.promise("R7")
@pytest.mark.timeout(1200)
def test_learners_continue_and_lose_no_line_while_the_control_plane_is_down(
    weft_up: Platform, client: Client, promise: Promise
) -> None:
    away_s = promise.n(short=5, long=600)
    spec = {"name": "prints", "command": PRINTS, "learners": 2, "resources": SMALL}
    job = client.jobs.submit(spec)
    eventually(lambda: all_run(weft_up, [job], 2), DONE_S)
    before = learners(weft_up, job)
    kill_control_plane(weft_up)
    began = time.monotonic()
    outputs = [folder / "runs" / "1" / "stdout" for folder in folders(weft_up, job)]
    sizes = [path.stat().st_size for path in outputs]
    eventually(lambda: time.monotonic() - began > away_s, away_s + 10)
    eventually(lambda: all(path.stat().st_size > size for path, size in zip(outputs, sizes, strict=True)))
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
        assert not step_failures(job, rank, int(last.removeprefix("said ")), last)
    promise.kept(lines, f"lines and points, of two learners while the control plane was down for {away_s} s")


@pytest.mark.promise("R15")
@pytest.mark.timeout(1200)
async def test_learners_continue_and_etcd_is_refilled_after_it_lost_all_keys(
    weft_up: Platform, client: Client, promise: Promise
) -> None:
    count = promise.n(short=5, long=100)
    spec = {"name": "runs", "command": "exec sleep 3600", "resources": SMALL}
    jobs = [await asyncio.to_thread(client.jobs.submit, spec) for _ in range(count)]
    await until(lambda: all_run(weft_up, jobs, 1), DONE_S + count)
    status, took = EtcdStatusStore(weft_up.home.address("etcd")), 0.0
    try:
        await until(lambda: has_all_keys(status, jobs), DONE_S)
        before = [learners(weft_up, job) for job in jobs]
        for stopwatch in tries_within(BACK_S, most=3):
            etcd = weft_up.kill("etcd")
            with stopwatch:
                await until(lambda: weft_up.again("etcd", etcd))  # noqa: B023 - in this round only
                await until(lambda: has_all_keys(status, jobs))
            took = stopwatch.took_s
    finally:
        await status.close()
    assert [learners(weft_up, job) for job in jobs] == before
    for job in jobs:
        await asyncio.to_thread(job.kill)
    for job in jobs:
        await asyncio.to_thread(job.wait, DONE_S)
        assert (job.status, job.attempt) == ("KILLED", 1)
    promise.kept(count, "running jobs when etcd lost all keys")
    promise.saw(f"all of {count} jobs in etcd again after {took:.1f} s, promised {BACK_S:g} s")


async def has_all_keys(status: EtcdStatusStore, jobs: list[Job]) -> bool:
    """True if etcd has the members, the leader, and each job's attempt and learner phase."""
    try:
        entries = {entry.key: entry.value for entry in await status.list("/")}
    except Unavailable:
        return False
    services = {Path(key).parts[2] for key in entries if key.startswith("/members/")}
    attempts = {f"/jobs/{job.id}/attempt" for job in jobs}
    phases = [json.loads(entries.get(f"/jobs/{job.id}/learners/worker-0", "{}")).get("phase") for job in jobs]
    return (
        {"lcm", "guardian", "metrics"} <= services
        and "/lcm/leader" in entries
        and attempts <= entries.keys()
        and phases == ["PROCESSING"] * len(jobs)
    )
