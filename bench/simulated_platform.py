"""A whole platform whose learners are pods on simulated nodes, for many jobs at once."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from bench.own_platform import SMALL, ending_cleanly
from bench.simulated_cluster import TUNED_SCHEDULER
from tests.testbed.kubernetes.cluster import Cluster, cluster
from tests.testbed.kubernetes.platform_in_pods import platform_on_simulated_nodes
from tests.testbed.platform import Platform
from weft import Client
from weft._job import Job

GPUS: Final = 8
"""Of each simulated node."""
_SUBMITTERS: Final = 16
"""Connections that submit at once."""
_LIVE: Final = ("QUEUED", "PENDING", "DOWNLOADING", "PROCESSING", "STORING")
_POLL_S: Final = 5.0
_TIMEOUT_S: Final = 900.0


@contextmanager
def simulated_platform(
    gpus: int, *, gang: str = "auto", tuned: bool = False, low_share: bool = False
) -> Generator[tuple[Cluster, Platform, Client]]:
    """A platform, as `weft up --cluster kubernetes` starts it, on so many GPUs, and the helpers of all pods.

    ``gang``: as ``WEFT_KUBERNETES_GANG``. ``tuned``: the scheduler has the settings that the operator guide recommends.
    ``low_share``: control plane and helpers take little of this machine's processors (``Cluster.lower_share``).
    """
    nodes, flags = math.ceil(gpus / GPUS), TUNED_SCHEDULER if tuned else ()
    with (
        ending_cleanly(),
        cluster(nodes=0, simulated_nodes=nodes, gpus=GPUS, scheduler_flags=flags) as machines,
        platform_on_simulated_nodes(
            machines, name="bench", settings={"WEFT_KUBERNETES_GANG": gang}, low_share=low_share
        ) as running,
        Client(running.url, running.key) as client,
    ):
        yield machines, running, client


@dataclass(frozen=True)
class Life:
    """Of one job; seconds since the moment at which it was due."""

    due_s: float
    """Since the beginning."""
    acknowledged_s: float
    """Its submit has returned."""
    started_s: float
    """Its learner runs."""
    ended_s: float
    """It is COMPLETED, and everything it held is given back."""


def submit_all(client: Client, due: Sequence[float], *, train_s: float) -> list[Life]:
    """Submits a job of one learner at each of these moments (seconds from now), and waits for their ends.

    RuntimeError if one does not complete in its first attempt.
    """
    spec: dict[str, Any] = {"name": "bench", "command": f"sleep {train_s:g}", "resources": {**SMALL, "gpus": 1}}
    began_s, began = time.monotonic(), time.time()

    def submit(due_s: float) -> tuple[float, float, Job]:
        time.sleep(max(0.0, began_s + due_s - time.monotonic()))
        job = client.jobs.submit(spec)
        return due_s, time.monotonic() - began_s - due_s, job

    with ThreadPoolExecutor(_SUBMITTERS) as threads:
        submitted = list(threads.map(submit, due))
    slowest_s = max(acknowledged_s for _, acknowledged_s, _ in submitted)
    print(f"  {len(due)} submitted, each acknowledged within {slowest_s:.2f} s", file=sys.stderr, flush=True)
    _await_ends(client, len(due), train_s)
    return [_life(job, due_s, acknowledged_s, began + due_s) for due_s, acknowledged_s, job in submitted]


def _await_ends(client: Client, count: int, train_s: float) -> None:
    """Looks rarely: that is not part of what is measured."""
    began_s = time.monotonic()
    while live := Counter(job.status for job in client.jobs.list(status=_LIVE)):
        after_s = time.monotonic() - began_s
        states = ", ".join(f"{number} {status}" for status, number in sorted(live.items()))
        print(f"  {after_s:4.0f} s: {states}", file=sys.stderr, flush=True)
        if after_s > train_s + _TIMEOUT_S:
            raise RuntimeError(f"{live.total()} of {count} jobs have not ended after {after_s:.0f} s")
        time.sleep(_POLL_S)


def _life(job: Job, due_s: float, acknowledged_s: float, due: float) -> Life:
    at = {event.to: event.time.timestamp() - due for event in job.history()}
    if "COMPLETED" not in at or job.refresh().attempt != 1:
        raise RuntimeError(f"job {job.id} is {job.status} in attempt {job.attempt}: {job.reason} {job.message}")
    return Life(due_s, acknowledged_s, at["PROCESSING"], at["COMPLETED"])
