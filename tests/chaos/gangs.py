"""Jobs whose learners a test watches from the outside: their folders, their processes, what they have said."""

from __future__ import annotations

import signal
from collections.abc import Iterable
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
    """Of its learners in the first attempt, by rank."""
    return sorted((platform.home / "node" / job.id / "1").glob("worker-*"))


def helpers(platform: Platform, job: Job) -> list[ProcessIdentity]:
    """Those that live now."""
    return [
        found for folder in folders(platform, job) if (found := read_live_process(folder / "helper.json")) is not None
    ]


def learners(platform: Platform, job: Job) -> dict[str, ProcessIdentity | None]:
    """The processes of its commands; None for one that has ended."""
    return {name: identify(pid) for name, pid in platform.learner_pids(job.id).items()}


def all_run(platform: Platform, jobs: Iterable[Job], count: int) -> bool:
    """Whether each of them has so many learners that run."""
    return all(
        list(learners(platform, job).values()).count(None) == 0 and len(learners(platform, job)) == count
        for job in jobs
    )


def kill_helpers(platform: Platform, job: Job) -> int:
    """Returns once others have taken their places; how many there were."""
    killed = 0
    for folder in folders(platform, job):
        helper = eventually(lambda at=folder: read_live_process(at / "helper.json"), DONE_S)  # type: ignore[misc]
        assert helper is not None
        killed += send_signal(helper, signal.SIGKILL)
        eventually(lambda at=folder, it=helper: read_live_process(at / "helper.json") not in {None, it}, DONE_S)  # type: ignore[misc]
    return killed


def kill_control_plane(platform: Platform, *also: ProcessIdentity) -> int:
    """Supervisor and services, at once; nobody starts them again. How many processes."""
    noted = [read_live_process(platform.home / "run" / f"{name}.json") for name in ["supervisor", *SERVICES]]
    dead = [one for one in noted if one is not None] + list(also)
    for process in dead:
        send_signal(process, signal.SIGKILL)
    assert all(wait_gone(process, HANG_S) for process in dead)
    return len(dead)


def wrong_steps(job: Job, rank: int, count: int, last: str) -> str:
    """What is wrong with the lines and points that a learner has said (``STEP`` 1 to count, then ``last``); or ""."""
    lines = [line.text for line in job.logs(rank=rank)]
    if lines != [*(STEP.format(step) for step in range(1, count + 1)), last]:
        return f"rank {rank}: {len(lines)} lines, not {count + 1} in order"
    steps = [point.step for point in job.points() if point.rank == rank]
    return "" if steps == list(range(1, count + 1)) else f"rank {rank}: {len(steps)} points, not {count} in order"
