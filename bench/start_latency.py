"""How soon after a submit the learner's process runs, warm; and where the time goes.

    python -m bench.start_latency [--runs 40] [--framework numpy] [--quick]

Measured from before the call of ``client.jobs.submit`` to a time stamp that the learner itself takes as its first act.
One job after the other, each killed once it has spoken. Two kinds of jobs:

* command: a shell command, no code, no framework;
* with code and framework: a folder of code that the platform has already, in an environment that is built already (by a
  first job, which is not counted; ``--framework ''`` leaves this kind out).

The stages come from what each process leaves behind: the history (admitted), the guardian's log (claimed), and the
times of the files in the learner's folder (docs/adr/0002-one-machine.md). Those are the kernel's coarse clock's, so a
stage is exact to 4 ms. Shim and helper start side by side.
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
LOOK_S = 0.005
ASK_S = 2.0
PATIENCE_S = 30.0
FIRST_BUILD_S = 1800.0
SPEAK = "date +%s%N; exec sleep 600"
FILES = {
    "learner.json": "reserved (learner.json)",
    "shim.json": "shim is up",
    "active": "activated",
    "helper.json": "helper is up",
    "prepared.json": "code and environment there",
    "go": "let go",
    "runs/1/start.json": "forked",
}
Marks = dict[str, float]


def one_start(platform: Platform, client: Client, spec: Mapping[str, Any], *, patience_s: float = PATIENCE_S) -> Marks:
    """Milliseconds from before the submit to each stage of one job's start."""
    began = time.time_ns()
    job = client.jobs.submit(spec)
    marks: Marks = {"acknowledged": (time.time_ns() - began) / 1e6}
    folder = platform.home / "node" / job.id / "1" / "worker-0"
    said = _first_line(job, folder / "runs" / "1" / "stdout", patience_s)
    for name, stage in FILES.items():
        marks[stage] = ((folder / name).stat().st_mtime_ns - began) / 1e6
    for event in job.history():
        if event.to == "PENDING":
            marks["admitted"] = _since(began, event.time)
    job.kill()
    marks["claimed by a Guardian"] = _since(began, _claimed(platform, job.id))
    marks["the learner's first act"] = (int(said) - began) / 1e6
    job.wait(timeout=PATIENCE_S)
    return marks


def _first_line(job: Job, path: Path, patience_s: float) -> str:
    """Read where it is written: a follower would take part in what is measured."""
    deadline = time.monotonic() + patience_s
    ask = time.monotonic() + ASK_S
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text.splitlines()[0]
        if time.monotonic() > ask:
            ask = time.monotonic() + ASK_S
            if job.refresh().at_rest:
                break
        time.sleep(LOOK_S)
    raise RuntimeError(f"the learner has not spoken: {job.refresh().status} {job.reason} {job.message}")


def _claimed(platform: Platform, job: str) -> datetime:
    for line in (platform.home / "logs" / "guardian.log").read_text().splitlines():
        entry = json.loads(line)
        if entry.get("event") == "job.claimed" and entry["job"] == job:
            return datetime.fromisoformat(entry["timestamp"])
    raise LookupError(f"the guardian's log says nothing of {job}")


def _since(began_ns: int, moment: datetime) -> float:
    return moment.timestamp() * 1e3 - began_ns / 1e6


@contextmanager
def kinds(framework: str) -> Generator[dict[str, dict[str, Any]]]:
    """Kind of job -> its spec."""
    specs: dict[str, dict[str, Any]] = {"command": {"name": "start", "command": SPEAK, "resources": SMALL}}
    with tempfile.TemporaryDirectory(prefix="weft-bench-code-") as code:
        Path(code, "speak.sh").write_text(f"{SPEAK}\n")
        if framework:
            more = {"command": "sh speak.sh", "code": code, "framework": framework}
            specs[f"with code and {framework}"] = {**specs["command"], **more}
        yield specs


def stages(runs: list[Marks]) -> list[str]:
    """The median of each stage, in order of time, and what it adds."""
    medians = sorted((statistics.median(one[stage] for one in runs), stage) for stage in runs[0])
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
                one_start(platform, client, spec, patience_s=FIRST_BUILD_S)
        runs: dict[str, list[Marks]] = {kind: [] for kind in specs}
        for _ in range(count):
            for kind, spec in specs.items():
                runs[kind].append(one_start(platform, client, spec))
    rows = [
        Row(kind, [one["the learner's first act"] for one in each], promised="p50 <= 300")
        for kind, each in runs.items()
    ]
    notes = [line for kind, each in runs.items() for line in ("", f"{kind}:", *stages(each))]
    show("start_latency: submit -> the learner's process runs, warm", rows, notes=[*notes, ""])


if __name__ == "__main__":
    main()
