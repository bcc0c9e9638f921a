"""Measures the delay from a learner's report of a point until a follower has it.

    python -m bench.metrics_stream [--points 400] [--learners 2] [--quick]

A learner prints one JSON object twenty times a second, with the time it did so as its value; the SDK follows the job's
points through the api. Measured from that time stamp until the follower has the point: learner, its file, helper,
metrics service (with its fsyncs), api, server-sent event. On the whole platform; with ``--learners 2`` and more all of
them report at once, and every point of all is followed.
"""

from __future__ import annotations

import argparse
import time

from bench.own_platform import SMALL, own_platform
from bench.report import Row, show
from weft import Client

SAY = 'echo "{{\\"step\\": $n, \\"sent\\": $(date +%s%N)}}"'
SPEAK = f"n=0; while [ $n -lt {{points}} ]; do n=$((n+1)); {SAY}; sleep 0.05; done"
WARMING = 20


def followed(client: Client, *, points: int, learners: int) -> list[float]:
    """Returns the delay of each point in milliseconds, without the first WARMING points."""
    command = SPEAK.format(points=points + WARMING)
    job = client.jobs.submit({"name": "stream", "command": command, "learners": learners, "resources": SMALL})
    late: list[float] = []
    for point in job.points(follow=True, name="sent"):
        now = time.time_ns()
        if point.step is not None and point.step > WARMING:
            late.append((now - point.value) / 1e6)
    return late


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=400, help="of each learner (default: 400)")
    parser.add_argument("--learners", type=int, default=2, help="that report at once in the second row (default: 2)")
    parser.add_argument("--quick", action="store_true", help="a hundred points of each")
    args = parser.parse_args()
    count = 100 if args.quick else args.points
    with own_platform() as (_, client):
        alone = followed(client, points=count, learners=1)
        together = followed(client, points=count, learners=args.learners)
    rows = [
        Row("one learner", alone, promised="p99 <= 200"),
        Row(f"{args.learners} learners", together, promised="p99 <= 200"),
    ]
    show("metrics_stream: a learner reports a point -> the follower of its job has it", rows)


if __name__ == "__main__":
    main()
