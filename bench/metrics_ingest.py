"""Measures how fast the metrics service stores lines and points, and how soon a follower has them.

    python -m bench.metrics_ingest [--entries 300000] [--batch 500] [--learners 4] [--quick]

Three measurements, each on an empty store in a temporary folder. All but "store" go through the real service as a
process, with gRPC and fsync:

* intake: learners send log lines, then metric points, as fast as they are acknowledged. Requests are made before the
  clock starts, so that the service is measured and not its load; both share this machine's cores.
* store: the same batches directly into the MetricStore, in this process.
* follow: from the moment a line is sent until a follower has it, at 50 lines/s, on an idle service and under load.

Promised (docs/performance.md): 100,000 lines/s and 50,000 points/s on two cores; follow p99 <= 200 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.own_platform import ending_cleanly
from bench.report import Row, show
from services.core.adapters.sqlite.metrics import SqliteMetricStore
from services.core.gen.weft.v1 import metrics_pb2 as pb
from services.metrics.rpc.messages import batch_of
from tests.testbed.metrics import Helper, MetricsProcess, Reader, job_id, running
from tests.testbed.server import free_address

LINE = "epoch 3 step {at:>7} loss=0.{at:06d} accuracy=0.9312 lr=0.001 12.3 samples/s eta 0:01:02"
NAMES = ("loss", "accuracy", "lr", "grad_norm", "samples_per_s")
FOLLOWED = 250
PACE_S = 0.02
PROMISED = {"lines": ">= 100", "points": ">= 50"}


@dataclass(frozen=True)
class Work:
    """Requests of each learner. They fit any job."""

    entries: int
    requests: list[list[pb.AppendRequest]]


def prepare(service: MetricsProcess, options: argparse.Namespace, make: Callable[[Helper, int, int], Any]) -> Work:
    """Makes the requests. ``make(helper, start, end)`` returns a batch of these entries."""
    per_learner = options.entries // options.learners
    requests = [
        [
            pb.AppendRequest(batches=[make(helper, at, min(at + options.batch, per_learner))])
            for at in range(0, per_learner, options.batch)
        ]
        for helper in (Helper(service, "j0", rank=rank) for rank in range(options.learners))
    ]
    return Work(per_learner * options.learners, requests)


def lines(helper: Helper, start: int, end: int) -> pb.SourceBatch:
    """Returns a batch of training progress lines."""
    return helper.lines(start, [LINE.format(at=at) for at in range(start, end)])


def points(helper: Helper, start: int, end: int) -> pb.SourceBatch:
    """Returns a batch of points of several metrics."""
    batch = helper.points(start, [1 / (1 + at) for at in range(start, end)])
    for place, point in enumerate(batch.points):
        point.name, point.step = NAMES[place % len(NAMES)], (start + place) // len(NAMES)
    return batch


def cpu_seconds(pid: int) -> float:
    """Returns the processor seconds that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return float(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def send(helper: Helper, requests: Sequence[pb.AppendRequest]) -> None:
    """Sends the requests in order, one at a time, as a helper does."""
    for request in requests:
        reply = await helper.once("Append", request)
        assert reply.committed[0] == request.batches[0].end


async def intake(service: MetricsProcess, work: Work) -> tuple[float, float]:
    """Returns (thousand entries per second, cores that the service used)."""
    job = job_id()
    helpers = [Helper(service, job, rank=rank) for rank in range(len(work.requests))]
    await asyncio.gather(*(helper.append() for helper in helpers))  # it is up
    cpu, began = cpu_seconds(service.pid), time.perf_counter()
    await asyncio.gather(*(send(helper, requests) for helper, requests in zip(helpers, work.requests, strict=True)))
    took, cpu = time.perf_counter() - began, cpu_seconds(service.pid) - cpu
    for helper in helpers:
        await helper.close()
    return work.entries / took / 1000, cpu / took


async def store_alone(work: Work, root: Path) -> float:
    """Returns thousand entries per second of the store without the service."""
    batches = [batch_of(message) for requests in work.requests for request in requests for message in request.batches]
    store = await SqliteMetricStore.open(root)
    began = time.perf_counter()
    for batch in batches:
        await store.append("j0", [batch])
    took = time.perf_counter() - began
    await store.close()
    return work.entries / took / 1000


async def follow(service: MetricsProcess) -> list[float]:
    """Returns milliseconds from before each line is sent until the follower has it."""
    job = job_id()
    helper, reader = Helper(service, job), Reader(service)
    await helper.append()
    sent: dict[int, float] = {}

    async def write() -> None:
        for at in range(FOLLOWED):
            batch = helper.lines(at, ["a line"])
            sent[at + 1] = time.perf_counter()
            await helper.append(batch)
            await asyncio.sleep(PACE_S)

    stream = reader.stream("FollowLines", pb.LinesRequest(job_id=job))
    writing = asyncio.create_task(write())
    delays: list[float] = []
    while len(delays) < FOLLOWED:
        reply = await stream.read()
        now = time.perf_counter()
        delays += [(now - sent[line.seq]) * 1000 for line in reply.lines]
    stream.cancel()
    await writing
    for client in (helper, reader):
        await client.close()
    return delays


async def follow_under_load(service: MetricsProcess, work: Work) -> list[float]:
    """As ``follow``, while learners of another job send as fast as they can."""
    following = asyncio.create_task(follow(service))
    while not following.done():
        await intake(service, work)
    return await following


async def measure(options: argparse.Namespace) -> list[Row]:
    """Runs all three measurements."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        # No etcd: intake must not depend on it.
        with running(Path(folder), free_address()) as service:
            work = {"lines": prepare(service, options, lines), "points": prepare(service, options, points)}
            rows.append(Row("line -> follower", await follow(service), promised="p99 <= 200"))
            for name, prepared in work.items():
                runs = [await intake(service, prepared) for _ in range(options.runs)]
                rows += [
                    Row(f"{name} taken in", [rate for rate, _ in runs], "thousand/s", PROMISED[name]),
                    Row(f"{name}: cores of the service", [cores for _, cores in runs], ""),
                ]
            rows.append(Row("line -> follower, under load", await follow_under_load(service, work["lines"])))
        for name, prepared in work.items():
            alone = [await store_alone(prepared, Path(folder) / f"store-{name}-{run}") for run in range(options.runs)]
            rows.append(Row(f"{name}: the store alone", alone, "thousand/s"))
    return rows


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=300_000, help="lines, and points, to send")
    parser.add_argument("--batch", type=int, default=500, help="in one request")
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3, help="of each intake (default: 3)")
    parser.add_argument("--quick", action="store_true", help="20,000 entries, two runs")
    args = parser.parse_args()
    if args.quick:
        args.entries, args.runs = 20_000, 2
    with ending_cleanly():
        rows = asyncio.run(measure(args))
    title = f"metrics_ingest: {args.entries} lines, then as many points, {args.batch} in a request"
    show(f"{title}, from {args.learners} learners at once", rows)


if __name__ == "__main__":
    main()
