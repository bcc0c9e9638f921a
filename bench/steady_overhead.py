"""Measures how much the platform's processes slow a training while it runs.

    python -m bench.steady_overhead [--stops 300] [--window 1] [--load 0] [--pods] [--quick] [--python PATH]

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

``--pods``: the learners are pods of the test bed's Kubernetes (as root), one on each of two nodes of this machine.
Their helpers and entry scripts are stopped together with the services; the cluster's own programs go on. With
``--nodes-only`` the services go on, too: in a real cluster they mostly run on other machines than the learners.

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
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.overhead import JOB_TIMEOUT_S, LEARNERS, job_spec, processes_of
from bench.own_platform import ending_cleanly, own_platform
from bench.report import Row, mean_interval, show
from services.node.processes import send_to_all
from tests.testbed.kubernetes.cluster import cluster, say_to_stderr
from tests.testbed.kubernetes.framework_image import load_framework_image
from tests.testbed.kubernetes.platform_in_pods import load_helper_image, platform_in_pods
from tests.testbed.platform import Platform
from weft import Client
from weft._job import Job

STEPS = 10_000_000
"""More than it trains before it is ended."""
EVERY = 5_000
"""Steps from checkpoint to checkpoint."""
RUNNING = 3
"""The platform runs for so many windows after each in which it is stopped."""
WARM_S = 10.0
HELPER = b"services.helper"
ENTRY = b"/entry.sh"
"""Parts of the command lines of a learner's helper, and of the first process of its container in a pod."""
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


@contextmanager
def pods_platform() -> Generator[tuple[Platform, Client]]:
    """A platform whose learners are pods, with the image of the example's framework."""
    with ending_cleanly(), cluster(nodes=2) as machines:
        helper = load_helper_image(machines, say_to_stderr)
        images = json.dumps({"jax-0.10": load_framework_image(machines, "jax", say_to_stderr)})
        settings = {"WEFT_KUBERNETES_FRAMEWORK_IMAGES": images}
        with (
            platform_in_pods(machines, helper, name="bench", settings=settings) as running,
            Client(running.url, running.key) as client,
        ):
            yield running, client


def stopped_processes(platform: Platform, args: argparse.Namespace) -> set[int]:
    """Pids of the services and helpers, of pods with their entry scripts."""
    services = set() if args.nodes_only else set(processes_of(platform))
    if not args.pods:
        return services
    in_pods = _pids_with(HELPER, ENTRY)
    time.sleep(0.5)
    return services | (in_pods & _pids_with(HELPER, ENTRY))  # not those that an entry script forks


def _pids_with(*parts: bytes) -> set[int]:
    pids: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            command = (folder / "cmdline").read_bytes()
            pids |= {int(folder.name)} if any(part in command for part in parts) else set()
    return pids


def train(client: Client, steps: int, python: Path | None) -> None:
    """A job that is not measured: it builds the environment, or fills caches."""
    job = client.jobs.submit(job_spec(steps, python)).wait(JOB_TIMEOUT_S)
    if job.status != "COMPLETED":
        raise RuntimeError(f"the job is {job.status}: {job.reason} {job.message}")


def rates(platform: Platform, client: Client, args: argparse.Namespace, load: list[int]) -> list[tuple[float, float]]:
    """Steps per second around each stop: (while the platform is stopped, while it runs).

    ``load``: pids of more processes that are stopped with it.
    """
    job = client.jobs.submit(job_spec(STEPS, args.python, f"--every {EVERY}"))
    try:
        while "loss" not in client.jobs.progress(job.id)["latest"]:
            time.sleep(0.5)
        time.sleep(WARM_S)
        own = stopped_processes(platform, args)
        pids = [*own, *load]
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
        if own - stopped_processes(platform, args):
            raise RuntimeError("a process of the platform has ended: its successor was not stopped")
        if job.refresh().attempt != 1 or job.status != "PROCESSING":
            raise RuntimeError(f"the job did not train all the time: {job.status}, attempt {job.attempt}")
    finally:
        job.kill()
        job.wait(60)
    steps = step_times(job)
    half = RUNNING * args.window / 2
    return [
        (_rate(steps, (began, ended)), _rate(steps, (began - half, began), (ended, ended + half)))
        for began, ended in stops
    ]


def step_times(job: Job) -> list[float]:
    """Unix seconds of all steps, as the first learner has reported them."""
    return sorted(point.time.timestamp() for point in job.points(name="loss"))


def _rate(steps: list[float], *periods: tuple[float, float]) -> float:
    counted = sum(bisect.bisect(steps, ended) - bisect.bisect(steps, began) for began, ended in periods)
    return counted / sum(ended - began for began, ended in periods)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=300, help="of the platform (default: 300, 20 minutes)")
    parser.add_argument("--window", type=float, default=1.0, help="seconds (default: 1; leases last for some seconds)")
    parser.add_argument("--load", type=float, default=0, help="percent of a core that another program uses")
    parser.add_argument("--pods", action="store_true", help="learners are pods (as root)")
    parser.add_argument("--nodes-only", action="store_true", help="with --pods: the services are not stopped")
    parser.add_argument("--quick", action="store_true", help="10 stops: shows that it works, no more")
    parser.add_argument("--python", type=Path, help="an interpreter that has the example's packages")
    args = parser.parse_args()
    if args.nodes_only and not args.pods:
        parser.error("--nodes-only needs --pods: without pods, learners are on the machine of the services")
    with pods_platform() if args.pods else own_platform() as (platform, client):
        train(client, 20, args.python)
        with loaded(args.load) as load:
            measured = rates(platform, client, args, load)
    overhead = [math.log(stopped / runs) * 100 for stopped, runs in measured]
    low, high = mean_interval(overhead)
    note = f"the mean overhead is {statistics.mean(overhead):.2f} %, and lies in {low:.2f} to {high:.2f} % (95 %)"
    period = (1 + RUNNING) * args.window
    place = " in pods" if args.pods else ""
    what = "the software on its nodes" if args.nodes_only else "the platform"
    show(
        f"steady overhead: digits x {LEARNERS}{place}, {what} stopped for {args.window:g} s of {period:g}",
        [
            Row(f"{what} is stopped", [rate for rate, _ in measured], "steps/s"),
            Row(f"{what} runs", [rate for _, rate in measured], "steps/s"),
            Row("overhead", overhead, "%", "<= 1"),
        ],
        notes=[note],
    )


if __name__ == "__main__":
    main()
