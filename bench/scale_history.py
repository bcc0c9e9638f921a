"""Measures what old jobs cost: two platforms, one with few ended jobs, one with a million, measured in turns.

    python -m bench.scale_history [--few 1000] [--many 1000000] [--seconds 60] [--calls 300] [--quick]

Each platform is started as `weft up` starts it, on SQLite, and runs one job to its end. Copies of that job's document,
with other ids and times of the last year, are then written to the job store. Both platforms run at the same time and
are measured in turns, so that other programs of the machine disturb both alike:

* idle: processor time of all processes of the platform over the same seconds.
* list, list of a status, show (a job from anywhere in the history), submit (a job that no node can hold) over HTTP.

The rows "ratio" divide the platform with many jobs by the one with few: for calls, the medians of each of ten turns.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import apsw
import httpx2

from bench.own_platform import SMALL, own_platform
from bench.report import Row, processes_naming, show
from services.core.domain.ids import make_id
from tests.testbed.platform import Platform
from weft import Client

SETTLE_S: Final = 20.0
TURNS: Final = 10
YEAR_MS: Final = 365 * 24 * 3600 * 1000
PAGE: Final = 2_000
"""Rows of a transaction while the store is filled: short enough for the services beside it."""
NEVER_FITS: Final = {"name": "waits", "command": "true", "resources": {"gpus": 1, "gpu_type": "nowhere"}}
PROMISED: Final = "<= 1.10"


@dataclass
class Side:
    """One of the two platforms, and what was measured of it."""

    title: str
    platform: Platform
    api: httpx2.Client
    ids: Sequence[str] = ()
    """Ids of some ended jobs."""
    idle: list[float] = field(default_factory=list)
    """Cores, of each turn."""
    calls: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds of each call, by its name."""

    def cpu_seconds(self) -> float:
        """Returns the processor seconds that the platform's processes have used."""
        total = 0
        for pid in processes_naming(self.platform.home.root):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    def get(self, name: str, path: str) -> None:
        """Times a GET."""
        self.timed(name, partial(self.api.get, path))

    def timed(self, name: str, call: Callable[[], httpx2.Response]) -> None:
        """Keeps the milliseconds of a call. Raises HTTPStatusError where it was refused."""
        began = time.perf_counter()
        response = call()
        took = (time.perf_counter() - began) * 1e3
        response.raise_for_status()
        self.calls.setdefault(name, []).append(took)


def ended_document(platform: Platform, client: Client, *, name: str = "ended") -> dict[str, Any]:
    """Runs one job and returns its document, once nothing more happens to it."""
    job_id = client.jobs.submit({"name": name, "command": "echo done", "resources": SMALL}).id
    connection = apsw.Connection(str(platform.home / "jobs.sqlite"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            row = connection.execute(
                "SELECT doc FROM jobs WHERE id = ? AND live = 0 AND tail = 0", (job_id,)
            ).fetchone()
            if row is not None:
                document: dict[str, Any] = json.loads(str(row[0]))
                return document
            time.sleep(0.1)
    finally:
        connection.close()
    raise RuntimeError("the first job has not ended")


def copies(document: dict[str, Any], count: int) -> Iterator[tuple[str, int, str, str]]:
    """Yields rows (id, rev, idem, doc) of ``count`` ended jobs, the oldest first."""
    original = document["id"]
    text = json.dumps({**document, "idem": original}, separators=(",", ":"))
    oldest = int(document["created"]) - YEAR_MS
    for number in range(count):
        job_id = make_id("j", now_ms=oldest + number * YEAR_MS // (count + 1), random_bits=number)
        yield job_id, int(document["rev"]), job_id, text.replace(original, job_id)


def fill(platform: Platform, document: dict[str, Any], count: int) -> list[str]:
    """Writes the copies beside the running services. Returns the ids of some of them."""
    connection = apsw.Connection(str(platform.home / "jobs.sqlite"))
    connection.set_busy_timeout(60_000)
    connection.pragma("synchronous", "OFF")  # this connection only: a benchmark that is killed is started again
    ids: list[str] = []
    rows = copies(document, count)
    while page := list(islice(rows, PAGE)):
        with connection:
            connection.executemany("INSERT INTO jobs(id, rev, idem, doc) VALUES (?, ?, ?, ?)", page)
        ids.append(page[random.randrange(len(page))][0])
    connection.close()
    return ids


def measure_idle(sides: Sequence[Side], *, seconds: float) -> None:
    """Measures the processor time of all sides over the same seconds."""
    before = [(side.cpu_seconds(), time.monotonic()) for side in sides]
    time.sleep(seconds)
    for side, (used, began) in zip(sides, before, strict=True):
        side.idle.append((side.cpu_seconds() - used) / (time.monotonic() - began))


def measure_calls(sides: Sequence[Side], *, calls: int) -> None:
    """Measures the calls of all sides, one by one."""
    for _ in range(calls):
        for side in random.sample(sides, len(sides)):
            job_id = random.choice(side.ids)
            side.get("list", "/v1/jobs")
            side.get("list COMPLETED", "/v1/jobs?status=COMPLETED")
            side.get("show", f"/v1/jobs/{job_id}")
            side.timed("submit", partial(side.api.post, "/v1/jobs", json=NEVER_FITS))


def ratios(few: Side, many: Side) -> list[Row]:
    """Returns the rows of the ratios, turn by turn."""
    rows = [Row("ratio: idle, of all seconds", [sum(many.idle) / sum(few.idle)], "x", PROMISED)]
    for name, values in few.calls.items():
        size = len(values) // len(few.idle)
        by_turn = [
            statistics.median(many.calls[name][turn * size : (turn + 1) * size])
            / statistics.median(values[turn * size : (turn + 1) * size])
            for turn in range(len(few.idle))
        ]
        rows.append(Row(f"ratio: {name}", by_turn, "x", PROMISED))
    return rows


def measure(few: int, many: int, *, seconds: float, calls: int) -> list[Row]:
    """Starts, fills and measures both platforms. Returns all rows."""
    with ExitStack() as stack:
        sides = []
        for count in (few, many):
            platform, client = stack.enter_context(own_platform())
            headers = {"Authorization": f"Bearer {platform.key}"}
            api = httpx2.Client(base_url=platform.url, headers=headers, trust_env=False, timeout=60)
            side = Side(f"{count:,} ended jobs", platform, stack.enter_context(api))
            document = ended_document(platform, client)
            began = time.monotonic()
            side.ids = fill(platform, document, count)
            print(f"{side.title}: stored in {time.monotonic() - began:.0f} s", flush=True)
            sides.append(side)
        time.sleep(SETTLE_S)
        turns = TURNS if calls >= TURNS else 1
        for _ in range(turns):
            measure_idle(sides, seconds=seconds / turns)
        for _ in range(turns):
            measure_calls(sides, calls=max(1, calls // turns))
    rows = [Row(f"idle, {side.title}", side.idle, "cores") for side in sides]
    rows += [Row(f"{name}, {side.title}", side.calls[name]) for name in sides[0].calls for side in sides]
    return rows + ratios(*sides)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=int, default=1_000, help="ended jobs of one platform (default: 1000)")
    parser.add_argument("--many", type=int, default=1_000_000, help="ended jobs of the other (default: 1000000)")
    parser.add_argument("--seconds", type=float, default=60, help="idle time that is measured (default: 60)")
    parser.add_argument("--calls", type=int, default=300, help="calls of each kind (default: 300)")
    parser.add_argument("--quick", action="store_true", help="50,000 jobs, 20 seconds, 100 calls")
    args = parser.parse_args()
    if args.quick:
        args.many, args.seconds, args.calls = 50_000, 20, 100
    rows = measure(args.few, args.many, seconds=args.seconds, calls=args.calls)
    show(f"scale_history: {args.many:,} ended jobs beside {args.few:,}, on SQLite", rows)


if __name__ == "__main__":
    main()
