"""Measures the time from a submit until the learner's process runs, warm, by stages.

    python -m bench.start_latency [--runs 40] [--framework numpy] [--quick]

From before the call of ``client.jobs.submit`` to a time stamp that the learner prints first. One job after the other,
each killed once it has printed. Two kinds of jobs:

* command: a shell command, no code, no framework;
* with code and framework: code that the platform has already, in an environment that is built already (by a first job,
  which is not counted; ``--framework ''`` leaves this kind out).

The stages come from the history (admitted), the guardian's log (claimed), and the modification times of the files in
the learner's folder (docs/adr/0002-one-machine.md). File times come from the kernel's coarse clock, so a stage is exact
to 4 ms. Shim and helper start in parallel.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.own_platform import SMALL, own_platform
from bench.report import Row, show
from tests.testbed.platform import Platform
from weft import Client
from weft._job import Job

WARMING = 3
"""Jobs before the first that counts: connections are made, modules and pages are in memory."""
POLL_S = 0.005
STATUS_POLL_S = 2.0
WAIT_S = 30.0
FIRST_BUILD_S = 1800.0
PRINT_TIME = "date +%s%N; exec sleep 600"
FILES = {
    "learner.json": "reserved (learner.json)",
    "shim.json": "shim is up",
    "active": "activated",
    "helper.json": "helper is up",
    "prepared.json": "code and environment ready",
    "go": "start permitted",
    "runs/1/start.json": "forked",
}
Marks = dict[str, float]


def one_start(platform: Platform, client: Client, spec: Mapping[str, Any], *, timeout_s: float = WAIT_S) -> Marks:
    """Milliseconds from before the submit to each stage of one job's start."""
    began = time.time_ns()
    job = client.jobs.submit(spec)
    marks: Marks = {"acknowledged": (time.time_ns() - began) / 1e6}
    folder = platform.home / "node" / job.id / "1" / "worker-0"
    first_line = _first_line(job, folder / "runs" / "1" / "stdout", timeout_s)
    for name, stage in FILES.items():
        marks[stage] = ((folder / name).stat().st_mtime_ns - began) / 1e6
    for event in job.history():
        if event.to == "PENDING":
            marks["admitted"] = _since(began, event.time)
    job.kill()
    marks["claimed by a Guardian"] = _since(began, _claimed(platform, job.id))
    marks["the learner prints"] = (int(first_line) - began) / 1e6
    job.wait(timeout=WAIT_S)
    return marks


def _first_line(job: Job, path: Path, timeout_s: float) -> str:
    """Returns the learner's first line, read from its file: a follower would change the measurement."""
    deadline = time.monotonic() + timeout_s
    next_status_poll = time.monotonic() + STATUS_POLL_S
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text.splitlines()[0]
        if time.monotonic() > next_status_poll:
            next_status_poll = time.monotonic() + STATUS_POLL_S
            if job.refresh().at_rest:
                break
        time.sleep(POLL_S)
    raise RuntimeError(f"the learner has printed nothing: {job.refresh().status} {job.reason} {job.message}")


def _claimed(platform: Platform, job: str) -> datetime:
    for line in (platform.home / "logs" / "guardian.log").read_text().splitlines():
        entry = json.loads(line)
        if entry.get("event") == "job.claimed" and entry["job"] == job:
            return datetime.fromisoformat(entry["timestamp"])
    raise LookupError(f"the guardian's log has no claim of {job}")


def _since(began_ns: int, moment: datetime) -> float:
    return moment.timestamp() * 1e3 - began_ns / 1e6


@contextmanager
def kinds(framework: str) -> Generator[dict[str, dict[str, Any]]]:
    """Yields kind of job -> spec."""
    specs: dict[str, dict[str, Any]] = {"command": {"name": "start", "command": PRINT_TIME, "resources": SMALL}}
    with tempfile.TemporaryDirectory(prefix="weft-bench-code-") as code:
        Path(code, "print.sh").write_text(f"{PRINT_TIME}\n")
        if framework:
            more = {"command": "sh print.sh", "code": code, "framework": framework}
            specs[f"with code and {framework}"] = {**specs["command"], **more}
        yield specs


def stages(runs: list[Marks]) -> list[str]:
    """Returns the median of each stage in order of time, and its difference to the stage before."""
    medians = sorted((statistics.median(marks[stage] for marks in runs), stage) for stage in runs[0])
    lines, last = [f"{'at':>6}  {'+':>5}  stage (medians, ms)"], 0.0
    for at, stage in medians:
        lines.append(f"{at:6.0f}  {at - last:5.0f}  {stage}")
        last = at
    return lines


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help="starts of each kind (default: 40)")
    parser.add_argument("--framework", default="numpy", help="of the second kind (default: numpy)")
    parser.add_argument("--quick", action="store_true", help="ten starts, without a framework")
    args = parser.parse_args()
    count = 10 if args.quick else args.runs
    with own_platform() as (platform, client), kinds("" if args.quick else args.framework) as specs:
        for spec in specs.values():
            for _ in range(WARMING):
                one_start(platform, client, spec, timeout_s=FIRST_BUILD_S)
        runs: dict[str, list[Marks]] = {kind: [] for kind in specs}
        for _ in range(count):
            for kind, spec in specs.items():
                runs[kind].append(one_start(platform, client, spec))
    rows = [
        Row(kind, [marks["the learner prints"] for marks in starts], promised="p50 <= 300")
        for kind, starts in runs.items()
    ]
    notes = [line for kind, starts in runs.items() for line in ("", f"{kind}:", *stages(starts))]
    show("start_latency: submit -> the learner's process runs, warm", rows, notes=[*notes, ""])


if __name__ == "__main__":
    main()
