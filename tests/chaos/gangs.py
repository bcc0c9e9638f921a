"""Watches jobs' learners from the outside: their folders, processes, lines and points."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from services.core.runtime.processes import ProcessIdentity, identify, read_live_process, send_signal, wait_gone
from services.local.layout import ETCD, PROGRAMS
from tests.testbed.platform import Platform
from tests.waiting import HANG_S, eventually
from weft._job import Job

SERVICES = [ETCD.name, *(program.name for program in PROGRAMS)]
STEP = '{{"step": {}, "loss": 1.5}}'
DONE_S = 2 * HANG_S


def folders(platform: Platform, job: Job) -> list[Path]:
    """Returns the folders of the first attempt's learners, by rank."""
    return sorted((platform.home / "node" / job.id / "1").glob("worker-*"))


def helpers(platform: Platform, job: Job) -> list[ProcessIdentity]:
    """Returns the living helper processes of the job."""
    return [
        process
        for folder in folders(platform, job)
        if (process := read_live_process(folder / "helper.json")) is not None
    ]


def learners(platform: Platform, job: Job) -> dict[str, ProcessIdentity | None]:
    """Returns learner name -> process of its command; None if it has ended."""
    return {name: identify(pid) for name, pid in platform.learner_pids(job.id).items()}


def all_run(platform: Platform, jobs: Iterable[Job], count: int) -> bool:
    """True if each job has exactly ``count`` learners, all running."""
    return all(
        list(learners(platform, job).values()).count(None) == 0 and len(learners(platform, job)) == count
        for job in jobs
    )


def kill_helpers(platform: Platform, job: Job) -> int:
    """Kills the job's helpers and waits for their replacements. Returns the number killed."""
    killed = 0
    for folder in folders(platform, job):
        helper = eventually(partial(read_live_process, folder / "helper.json"), DONE_S)
        assert helper is not None
        killed += send_signal(helper, signal.SIGKILL)
        eventually(partial(_has_other_helper, folder, helper), DONE_S)
    return killed


def _has_other_helper(folder: Path, old_helper: ProcessIdentity) -> bool:
    return read_live_process(folder / "helper.json") not in {None, old_helper}


def kill_control_plane(platform: Platform, *also: ProcessIdentity) -> int:
    """Kills the supervisor and all services; nothing restarts them. Returns the number of processes killed."""
    processes = [read_live_process(platform.home / "run" / f"{name}.json") for name in ["supervisor", *SERVICES]]
    dead = [process for process in processes if process is not None] + list(also)
    for process in dead:
        send_signal(process, signal.SIGKILL)
    assert all(wait_gone(process, HANG_S) for process in dead)
    return len(dead)


def step_failures(job: Job, rank: int, count: int, last: str) -> str:
    """Describes the first difference from the expected lines and points (``STEP`` 1 to count, then ``last``); or ""."""
    lines = [line.text for line in job.logs(rank=rank)]
    if lines != [*(STEP.format(step) for step in range(1, count + 1)), last]:
        return f"rank {rank}: {len(lines)} lines, not {count + 1} in order"
    steps = [point.step for point in job.points() if point.rank == rank]
    return "" if steps == list(range(1, count + 1)) else f"rank {rank}: {len(steps)} points, not {count} in order"
