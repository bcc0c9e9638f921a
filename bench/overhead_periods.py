"""Measures the overhead of the platform on a training by short periods: platform and bare processes in turn.

    python -m bench.overhead_periods [--pairs 150] [--period 2] [--quick] [--python PATH]

The training of ``bench.overhead`` runs twice: as a job, and as bare processes. They take turns: while the job trains,
the bare processes are stopped (SIGSTOP); while those train, the job is, and the whole platform with it. The two periods
of a pair lie within a few seconds, so a machine whose speed changes over minutes affects both alike: many short pairs
tell a percent where a few long runs (``bench.overhead``) do not.

* overhead: steps per second of the bare processes / of the job - 1, for each pair. The promise is about its median,
  which is printed with its 95 % interval (order statistics; no assumption on the distribution).
* Steps are counted from the metrics file of the first learner. The first tenths of a second after a change count for
  neither: the processes find their caches cold.
* Where the job's learners have control groups for the processor, the bare processes get groups beside them with the
  same weights. Without, the kernel would share the cores out differently, by a multiple of the overhead.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.overhead import EXAMPLE, LEARNERS, job_spec, on_platform
from bench.own_platform import own_platform
from bench.report import Row, processes_naming, show
from tests.testbed.platform import Platform
from tests.waiting import eventually
from weft import Client
from weft._learner import METRICS_FILE

ENDLESS = 100_000_000
"""Steps: more than are trained."""
WARM_STEPS = 200
SETTLE_S = 0.3
TAIL_BYTES = 4096
_WEIGHTS = ("cpu.shares", "cpu.weight")
"""The files of a control group that say its part of the processor: cgroup v1, v2."""


class Training:
    """One of the two trainings: which processes to stop, and how far it is."""

    def __init__(self, processes: Callable[[], Iterable[int]], metrics: Path) -> None:
        self._processes = processes
        self._metrics = metrics

    def step(self) -> int:
        """The last step that the first learner has reported; 0 before its first."""
        try:
            with self._metrics.open("rb") as file:
                file.seek(max(0, self._metrics.stat().st_size - TAIL_BYTES))
                lines = file.read().rpartition(b"\n")[0].splitlines()[1:]
        except FileNotFoundError:
            return 0
        return max((json.loads(line)["step"] or 0 for line in lines), default=0)

    def stop(self) -> None:
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, what: signal.Signals) -> None:
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, what)

    def rate(self, seconds: float) -> float:
        """Lets it train for a period, and returns its steps per second."""
        self.go_on()
        try:
            time.sleep(SETTLE_S)
            first, began = self.step(), time.monotonic()
            time.sleep(seconds)
            return (self.step() - first) / (time.monotonic() - began)
        finally:
            self.stop()


@contextmanager
def as_job(platform: Platform, client: Client, python: Path | None) -> Generator[Training]:
    """The training as a job, at its first steps. With the job, the whole platform is stopped."""
    job = client.jobs.submit(job_spec(ENDLESS, python) | {"max_runtime": "24h"})
    folder = platform.home / "node" / job.id
    first = eventually(lambda: min(folder.glob(f"*/*/**/{METRICS_FILE}"), default=None))
    assert first is not None
    training = Training(lambda: {*processes_naming(platform.home.root), *platform.processes_of(job.id)}, first)
    try:
        yield training
    finally:
        training.go_on()
        job.kill()
        job.wait(timeout=60)


@contextmanager
def as_bare_processes(python: Path, groups: Sequence[Path]) -> Generator[Training]:
    """The same training by ``bench.bare``, its learners in these control groups, if any, in turn."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-bare-") as state:
        arguments = ["--example", EXAMPLE, f"--state={state}", f"--python={python}", "--quiet"]
        command = [sys.executable, "-m", "bench.bare", *arguments, "--", f"--steps={ENDLESS}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        training = Training(lambda: processes_naming(Path(state)), Path(state, "learner-1", "state", METRICS_FILE))
        try:
            for number, group in enumerate(groups, 1):
                own = Path(state, f"learner-{number}")
                for pid in eventually(lambda own=own: processes_naming(own)):  # type: ignore[misc]
                    (group / "cgroup.procs").write_text(str(pid))
            yield training
        finally:
            training.go_on()
            process.terminate()
            process.wait(timeout=60)


@contextmanager
def groups_beside(pids: Iterable[int]) -> Generator[list[Path]]:
    """Yields new control groups for the processor, one beside that of each process, with its weight.

    None if the processes are in no groups of their own.
    """
    made: list[Path] = []
    try:
        for pid in pids:
            own = _group(pid)
            if own is None or own == _group(os.getpid()):
                break
            group = own.with_name(f"{own.name}-bare")
            group.mkdir()
            made.append(group)
            for name in _WEIGHTS:
                if (own / name).exists():
                    (group / name).write_text((own / name).read_text())
        yield made
    finally:
        for group in made:
            eventually(lambda group=group: not (group / "cgroup.procs").read_text())  # type: ignore[misc]
            group.rmdir()


def _group(pid: int) -> Path | None:
    """The process's control group for the processor; None where there are no such groups."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        place = Path("/sys/fs/cgroup" + ("" if not controllers else "/cpu"), path.lstrip("/"))
        if (not controllers or "cpu" in controllers.split(",")) and any((place / name).exists() for name in _WEIGHTS):
            return place
    return None


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median, by order statistics: right for any distribution, from about ten values on."""
    ordered, count = sorted(values), len(values)
    away = math.floor(0.98 * math.sqrt(count))
    lower = max(0, (count - 1) // 2 - away)
    return ordered[lower], ordered[count - 1 - lower]


def measure(job: Training, bare: Training, pairs: int, period_s: float) -> list[tuple[float, float]]:
    """Returns steps per second of job and bare processes, for each pair. The order alternates: A B B A."""
    for training in (job, bare):
        training.go_on()
        eventually(lambda training=training: training.step() >= WARM_STEPS)  # type: ignore[misc]
        training.stop()
    rates: list[tuple[float, float]] = []
    for pair in range(pairs):
        if pair % 2:
            of_bare, of_job = bare.rate(period_s), job.rate(period_s)
        else:
            of_job, of_bare = job.rate(period_s), bare.rate(period_s)
        rates.append((of_job, of_bare))
        print(f"  {pair + 1} of {pairs}: job {of_job:.0f}, bare {of_bare:.0f} steps/s", flush=True)
    return rates


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=150, help="of periods (default: 150, ten minutes)")
    parser.add_argument("--period", type=float, default=2.0, metavar="S", help="seconds of training (default: 2)")
    parser.add_argument("--quick", action="store_true", help="ten pairs: shows that it works, no more")
    parser.add_argument("--python", type=Path, help="an interpreter that has the example's packages")
    args = parser.parse_args()
    pairs = 10 if args.quick else args.pairs
    # No service counts as dead for having been stopped a period long.
    with own_platform({"WEFT_LEASE_TTL_S": str(3 * args.period + 10)}) as (platform, client):
        on_platform(platform, client, 20, args.python)  # builds the environment and fills its compile caches
        python = args.python or next((platform.home / "cache" / "envs").glob("*/venv/bin/python"))
        with as_job(platform, client, args.python) as job:
            [running] = client.jobs.list(limit=1)
            learners = platform.learner_pids(running.id)
            with (
                groups_beside(learners[name] for name in sorted(learners)) as groups,
                as_bare_processes(python, groups) as bare,
            ):
                rates = measure(job, bare, pairs, args.period)
    overheads = [(of_bare / of_job - 1) * 100 for of_job, of_bare in rates]
    low, high = interval_of_median(overheads)
    show(
        f"overhead: {EXAMPLE} x {LEARNERS}, {pairs} pairs of {args.period:.1f} s, platform and bare processes in turn",
        [
            Row("bare", [of_bare for _, of_bare in rates], "steps/s"),
            Row("on the platform", [of_job for of_job, _ in rates], "steps/s"),
            Row("overhead of single pairs", overheads, "%"),
            Row("overhead", [statistics.median(overheads)], "%", "<= 1"),
        ],
        notes=[
            f"95 % interval of the median: {low:.2f} to {high:.2f} %",
            f"control groups of the bare processes: {len(groups) or 'none'}",
        ],
    )


if __name__ == "__main__":
    main()
