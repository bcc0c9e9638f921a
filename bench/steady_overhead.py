"""Measures how much the platform's processes slow a training while it runs.

    python -m bench.steady_overhead [--stops 300] [--window 1] [--load 0] [--quick] [--python PATH]

examples/digits trains on two learners, with logs and metrics on: about a hundred steps a second, a point reported in
each, all cores busy. In one second of four all processes of the platform (services, etcd, helpers, shims) are stopped
(SIGSTOP), then they go on (SIGCONT). The steps of each such second are compared with those of the three seconds around
it, a half of them before it and a half after it, by the time stamps of the points. What the platform has to do for the
seconds in which it was stopped, it does in those in which it runs: its cost is counted in full, and up to a third more.

* overhead: steps per second while the platform is stopped, in relation to steps per second while it runs (the logarithm
  of the ratio: noise of both then cancels out). The promise is about its mean; the note below the table says in which
  interval it lies with a confidence of 95 %.

``--load 20`` shows what the measurement can see: a program that computes for 20 % of the time, in steps of 20 ms, is
stopped and goes on together with the platform.

The training saves a checkpoint every 5,000 steps: one each second, as by default, waits for the disk and hides all
else. What storing checkpoints costs is measured by ``bench.checkpoints``.

Neighbouring seconds of one training differ less than two trainings do: ``bench.overhead`` compares whole runs, which
also have the start and the end of a job, and needs a machine whose speed is constant to show a percent.
"""

from __future__ import annotations

import argparse
import bisect
import json
import math
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from bench.overhead import LEARNERS, job_spec, on_platform, processes_of
from bench.own_platform import own_platform
from bench.report import Row, mean_interval, show
from services.node.processes import send_to_all
from tests.testbed.platform import Platform
from weft import Client

STEPS = 10_000_000
"""More than it trains before it is ended."""
EVERY = 5_000
"""Steps from checkpoint to checkpoint."""
RUNNING = 3
"""The platform runs for so many windows after each in which it is stopped."""
WARM_S = 10.0
LOAD = """
import sys, time
share = float(sys.argv[1]) / 100
while True:
    until = time.monotonic() + 0.02 * share
    while time.monotonic() < until:
        pass
    time.sleep(0.02 * (1 - share))
"""


@contextmanager
def stoppable(pids: list[int]) -> Generator[None]:
    """The processes go on at the end in every case."""
    try:
        yield
    finally:
        send_to_all(pids, signal.SIGCONT)


@contextmanager
def loaded(percent: float) -> Generator[list[int]]:
    """Yields the pid of a program that computes for this share of the time; none for 0."""
    if not percent:
        yield []
        return
    with subprocess.Popen([sys.executable, "-c", LOAD, str(percent)]) as program:
        try:
            yield [program.pid]
        finally:
            program.kill()


def rates(platform: Platform, client: Client, args: argparse.Namespace, load: list[int]) -> list[tuple[float, float]]:
    """Steps per second around each stop: (while the platform is stopped, while it runs).

    ``load``: pids of more processes that are stopped with it.
    """
    job = client.jobs.submit(job_spec(STEPS, args.python, f"--every {EVERY}"))
    try:
        while len(platform.learner_pids(job.id)) < LEARNERS:
            time.sleep(0.5)
        time.sleep(WARM_S)
        pids = processes_of(platform) + load
        stops: list[tuple[float, float]] = []
        with stoppable(pids):
            for _ in range(10 if args.quick else args.stops):
                time.sleep(RUNNING * args.window)
                began = time.time()
                send_to_all(pids, signal.SIGSTOP)
                time.sleep(args.window)
                stops.append((began, time.time()))  # before it goes on: then the platform does first what is due
                send_to_all(pids, signal.SIGCONT)
            time.sleep(RUNNING * args.window)
        steps = step_times(platform, job.id)
        if set(pids) - set(load) - set(processes_of(platform)):
            raise RuntimeError("a process of the platform has ended: its successor was not stopped")
        if job.refresh().attempt != 1 or job.status != "PROCESSING":
            raise RuntimeError(f"the job did not train all the time: {job.status}, attempt {job.attempt}")
    finally:
        job.kill()
        job.wait(60)
    half = RUNNING * args.window / 2
    return [
        (_rate(steps, (began, ended)), _rate(steps, (began - half, began), (ended, ended + half)))
        for began, ended in stops
    ]


def step_times(platform: Platform, job: str) -> list[float]:
    """Unix seconds of all steps, as the first learner has reported them."""
    files = (platform.home / "node" / job).glob("*/*/job/**/metrics.jsonl")
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted(line["time_ms"] / 1000 for line in lines if "loss" in line["values"])


def _rate(steps: list[float], *periods: tuple[float, float]) -> float:
    counted = sum(bisect.bisect(steps, ended) - bisect.bisect(steps, began) for began, ended in periods)
    return counted / sum(ended - began for began, ended in periods)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=300, help="of the platform (default: 300, 20 minutes)")
    parser.add_argument("--window", type=float, default=1.0, help="seconds (default: 1; leases last for some seconds)")
    parser.add_argument("--load", type=float, default=0, help="percent of a core that another program uses")
    parser.add_argument("--quick", action="store_true", help="10 stops: shows that it works, no more")
    parser.add_argument("--python", type=Path, help="an interpreter that has the example's packages")
    args = parser.parse_args()
    with own_platform() as (platform, client):
        on_platform(platform, client, 20, args.python)  # builds the environment and fills its compile caches
        with loaded(args.load) as load:
            measured = rates(platform, client, args, load)
    overhead = [math.log(stopped / runs) * 100 for stopped, runs in measured]
    low, high = mean_interval(overhead)
    note = f"the mean overhead is {statistics.mean(overhead):.2f} %, and lies in {low:.2f} to {high:.2f} % (95 %)"
    period = (1 + RUNNING) * args.window
    show(
        f"steady overhead: digits x {LEARNERS}, its platform stopped for {args.window:g} s of {period:g}",
        [
            Row("the platform is stopped", [rate for rate, _ in measured], "steps/s"),
            Row("the platform runs", [rate for _, rate in measured], "steps/s"),
            Row("overhead", overhead, "%", "<= 1"),
        ],
        notes=[note],
    )


if __name__ == "__main__":
    main()
