"""Measures how soon hardware is free after a learner's process ends, and how soon the next job runs on it.

    python -m bench.release [--runs 25] [--quick]

The platform has one core, and each job needs it. All jobs are submitted at once: each can start only after the one
before it is released. A learner prints the time when it starts and when it ends:

* exit -> released: from the end of the process to ``released`` in the job's document. Its output and an empty result
  are stored in between: the release always follows the upload.
* exit -> next job runs: from that end to the start of the next job's process. This includes release, admission and a
  whole start.
* kill -> released: from before the request to ``released``; nothing is stored.
"""

from __future__ import annotations

import argparse
import time
from datetime import datetime
from itertools import pairwise

from bench.own_platform import own_platform
from bench.report import Row, show
from weft import Client
from weft._job import Job

SPEC = {"name": "release", "resources": {"cpus": 1, "memory": "64MiB"}}
SPEAK_TWICE = "date +%s%N; sleep 0.2; date +%s%N"
WARMING = 2
WAIT_S = 120.0


def chain(client: Client, count: int) -> tuple[list[float], list[float]]:
    """Runs ``count`` jobs in a row. Returns (exit -> released, exit -> next job runs) in milliseconds."""
    jobs = [client.jobs.submit({**SPEC, "command": SPEAK_TWICE}) for _ in range(count)]
    released: list[float] = []
    stamps: list[tuple[int, int]] = []
    for job in jobs:
        job.wait(timeout=WAIT_S)
        first, last = (int(line.text) for line in job.logs())
        stamps.append((first, last))
        released.append(_released(job) - last / 1e6)
    stamps.sort()  # in the order in which the platform ran them
    return released, [(after[0] - before[1]) / 1e6 for before, after in pairwise(stamps)]


def killed(client: Client) -> float:
    """Returns milliseconds from the kill of a running job to its release."""
    job = client.jobs.submit({**SPEC, "command": "echo; exec sleep 600"})
    next(iter(job.logs(follow=True)))
    began = time.time_ns()
    job.kill()
    return _released(job.wait(timeout=WAIT_S)) - began / 1e6


def _released(job: Job) -> float:
    """Returns the time of release in Unix milliseconds."""
    return datetime.fromisoformat(job.document["released"]).timestamp() * 1e3


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=25, help="jobs in the row, and kills (default: 25)")
    parser.add_argument("--quick", action="store_true", help="eight of each")
    args = parser.parse_args()
    count = 8 if args.quick else args.runs
    with own_platform({"WEFT_NODE_CPUS": "1"}) as (_, client):
        chain(client, WARMING)
        released, next_runs = chain(client, count)
        kills = [killed(client) for _ in range(count)]
    rows = [
        Row("exit -> released", released, promised="<= 1000"),
        Row("exit -> next job runs", next_runs),
        Row("kill -> released", kills, promised="<= 1000"),
    ]
    show("release: the process ends -> its hardware is free", rows)


if __name__ == "__main__":
    main()
