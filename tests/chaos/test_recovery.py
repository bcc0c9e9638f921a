"""Every part of the platform is killed, in turn and all at once, while two gangs train undisturbed."""

from __future__ import annotations

import signal

import pytest

from tests.chaos.gangs import (
    DONE_S,
    all_run,
    folders,
    helpers,
    kill_control_plane,
    kill_helpers,
    learners,
    step_failures,
)
from tests.chaos.takeover import PARTS, SILENCE_S, SMALL, measuring
from tests.promises import Promise
from tests.testbed.platform import Platform
from tests.waiting import eventually
from weft import Client
from weft._job import Job

TRAINS = """
  n=0
  while [ ! -e "$JOB_STATE_DIR/end" ]; do n=$((n + 1)); echo "{\\"step\\": $n, \\"loss\\": 1.5}"; sleep 0.1; done
  echo "said $n"
"""


def end_and_check(platform: Platform, job: Job) -> int:
    """Ends the learners, checks that each line and point is stored once and in order, and returns their number."""
    for folder in folders(platform, job):
        (folder / "job" / "end").touch()
    job.wait(DONE_S)
    assert (job.status, job.attempt, job.message) == ("COMPLETED", 1, "")
    entries = 0
    for rank in (0, 1):
        (last,) = [line.text for line in job.logs(rank=rank, tail=1)]
        count = int(last.removeprefix("said "))
        assert not step_failures(job, rank, count, last)
        entries += 2 * count + 1
    return entries


@pytest.mark.promise("R6")
@pytest.mark.timeout(1200)
def test_gangs_complete_in_attempt_1_with_the_same_processes_though_every_part_is_killed(
    weft_up: Platform, client: Client, promise: Promise
) -> None:
    spec = {"name": "trains", "command": TRAINS, "learners": 2, "resources": SMALL}
    jobs = [client.jobs.submit(spec) for _ in range(2)]
    eventually(lambda: all_run(weft_up, jobs, 2), DONE_S)
    before = [learners(weft_up, job) for job in jobs]
    rounds, kills = promise.n(short=1, long=20), 0
    times: dict[str, list[float]] = {part.name: [] for part in PARTS}
    for _ in range(rounds):
        with measuring(weft_up) as bench:
            for part in PARTS:
                times[part.name].append(part.measure(bench))
        worker = weft_up.kill("worker")
        eventually(lambda old_worker=worker: weft_up.again("worker", old_worker), DONE_S)  # type: ignore[misc]
        kills += len(PARTS) + 1 + sum(kill_helpers(weft_up, job) for job in jobs)
        assert [learners(weft_up, job) for job in jobs] == before
        kills += kill_control_plane(weft_up, *(helper for job in jobs for helper in helpers(weft_up, job)))
        weft_up.up()
        assert [learners(weft_up, job) for job in jobs] == before
    entries = sum(end_and_check(weft_up, job) for job in jobs)
    promise.kept(
        kills, f"kills while two gangs of two ran: attempt 1, the same processes, {entries:,} lines and points"
    )
    for part in PARTS:
        worst, middle = max(times[part.name]), sorted(times[part.name])[rounds // 2]
        promised = "" if part.crash_s is None else f", promised {part.crash_s:g} s"
        promise.saw(f"{part.name} killed -> works again: p50 {middle:.2f} s, worst of {rounds} {worst:.2f} s{promised}")


@pytest.mark.promise("R6")
@pytest.mark.timeout(1200)
def test_stopped_part_is_ended_and_started_again(weft_up: Platform, promise: Promise) -> None:
    rounds = promise.n(short=1, long=5)
    watched = [part for part in PARTS if part.can_be_silent]
    if rounds == 1:  # each further part takes as long again
        watched = [part for part in watched if part.name == "guardian"]
    times: dict[str, list[float]] = {part.name: [] for part in watched}
    with measuring(weft_up) as bench:
        bench.sign = signal.SIGSTOP
        for _ in range(rounds):
            for part in watched:
                times[part.name].append(part.measure(bench))
    promise.kept(rounds * len(watched), "stopped parts, each of which works again")
    for name, seconds in times.items():
        promise.saw(f"{name} stopped -> works again: worst of {rounds} {max(seconds):.2f} s, promised {SILENCE_S:g} s")
