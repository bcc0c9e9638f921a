"""Measures the delay from a change of a job's status until a follower has read it.

    python -m bench.status_latency [--jobs 40] [--quick]

From the time in the change itself (PROCESSING: the start of the learner's process by its shim's record; STORING: its
end) until the line of ``GET /v1/jobs/ID/events`` is read. This covers helper, metrics service, etcd, Guardian, job
document and the api's poll of it, so the poll interval (WEFT_FOLLOW_POLL_S) is part of the delay. One short job after
another on the whole platform, each followed from its submission to its end.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx2

from bench.own_platform import SMALL, own_platform
from bench.report import Row, show

SPEC = {"name": "status", "command": "sleep 0.3", "resources": SMALL}
WARMING = 2
ORDER = ("PENDING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED")


def events(api: httpx2.Client, job: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (event, data) of the job's stream as they arrive, to its end."""
    with api.stream("GET", f"/v1/jobs/{job}/events", headers={"Accept": "text/event-stream"}) as answer:
        name = ""
        for line in answer.iter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)
                if name == "end":
                    return


def followed(api: httpx2.Client) -> dict[str, float]:
    """Runs one job. Returns status -> milliseconds from its time to its arrival."""
    made = api.post("/v1/jobs", json=SPEC)
    made.raise_for_status()
    late: dict[str, float] = {}
    for name, data in events(api, made.json()["id"]):
        if name == "history":
            late[data["to"]] = time.time() * 1000 - datetime.fromisoformat(data["time"]).timestamp() * 1000
    return late


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=40, help="followed one after the other (default: 40)")
    parser.add_argument("--quick", action="store_true", help="eight")
    args = parser.parse_args()
    delays_by_status: dict[str, list[float]] = defaultdict(list)
    with own_platform() as (platform, _):
        headers = {"Authorization": f"Bearer {platform.key}"}
        with httpx2.Client(base_url=platform.url, headers=headers, trust_env=False, timeout=60) as api:
            for _ in range(WARMING):
                followed(api)
            for _ in range(8 if args.quick else args.jobs):
                for status, late in followed(api).items():
                    delays_by_status[status].append(late)
    every = [late for status in ORDER for late in delays_by_status[status]]
    rows = [Row("any change -> follower", every, promised="p99 <= 250")]
    rows += [Row(status, delays_by_status[status]) for status in ORDER]
    show("status_latency: a job's status changes -> its follower has read the change", rows)


if __name__ == "__main__":
    main()
