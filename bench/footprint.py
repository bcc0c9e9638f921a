"""Measures the memory and processor time of a waiting job and of a running one.

    python -m bench.footprint [--waiting 6000] [--live 600] [--real 8] [--quick]

* waiting: jobs that wait for hardware, inserted into the job store of a whole platform. Resident memory of the LCM (and
  of the other services) is read at several numbers of jobs, after the LCM has decided on all: the slope is the cost of
  one job. The first jobs grow pools that later ones reuse, so the slope of the second half is given too.
* live, memory: real Guardians (``services.guardian``) in this process over ports in memory, with simulated learners
  that run. Memory that Python has allocated (tracemalloc), minus what remains once the guardian service is gone:
  stores, learners and helpers are not counted.
* idle: processor time of each process of a platform without jobs, and how often its threads wake up. The second hardly
  depends on other load of the machine.
* live, processor: processor time of the guardian process with a few real, quiet jobs, minus its time without jobs, over
  the same number of seconds; the same for the LCM and the metrics service.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import tempfile
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import structlog

from bench.own_platform import SMALL, own_platform
from bench.report import Row, show, wakeups
from services.core.adapters.sqlite.jobs import SqliteJobStore
from services.core.domain.spec import dump_spec, parse_spec
from services.core.ports.cluster import Node
from tests.documents import a_job
from tests.testbed.control_plane import ControlPlane
from tests.testbed.platform import Platform
from weft import Client

STEPS = 4
SETTLE_S = 8.0
QUIET_S = 30.0
COUNTED = ("lcm", "guardian", "metrics")
"""Services whose time is compared with that of live jobs."""
ALL = (*COUNTED, "api", "node", "worker", "supervisor", "etcd")


def resident_kib(platform: Platform, service: str) -> float:
    """Returns the resident memory of the service's process."""
    status = Path(f"/proc/{platform.process(service).pid}/status").read_text()
    return float(status.partition("VmRSS:")[2].split()[0])


def cpu_seconds(platform: Platform, service: str) -> float:
    """Returns the processor seconds that the service's process has used."""
    fields = Path(f"/proc/{platform.process(service).pid}/stat").read_text().rpartition(")")[2].split()
    return float(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def enqueue(platform: Platform, count: int) -> None:
    """Inserts ``count`` jobs that do not fit now, as the api would write them."""
    spec = dump_spec(parse_spec({"name": "waits", "command": "true", "resources": {"cpus": 1, "memory": "64MiB"}}))
    store = await SqliteJobStore.open(platform.home / "jobs.sqlite")
    for _ in range(count):
        await store.insert(a_job(at=time.time_ns() // 1_000_000, spec=dict(spec)))
    await store.close()


def waiting(count: int) -> list[Row]:
    """Returns the slopes, in KiB per job."""
    resident: dict[str, list[float]] = {service: [] for service in ("lcm", "guardian", "api")}
    with own_platform({"WEFT_NODE_CPUS": "1"}) as (platform, client):
        client.jobs.submit({"name": "holds", "command": "exec sleep 3600", "resources": {"cpus": 1, "memory": "64MiB"}})
        time.sleep(SETTLE_S)
        for step in range(STEPS + 1):
            if step:
                asyncio.run(enqueue(platform, count // STEPS))
                time.sleep(SETTLE_S)
            for service, samples in resident.items():
                samples.append(resident_kib(platform, service))
    half = STEPS // 2
    rows = []
    for service, samples in resident.items():
        promised = "<= 4" if service == "lcm" else ""
        rows.append(Row(f"{service}, per waiting job", [(samples[-1] - samples[0]) / count], "KiB", promised))
        later = (samples[-1] - samples[half]) / (count * (STEPS - half) / STEPS)
        rows.append(Row(f"{service}, of the second half", [later], "KiB"))
    return rows


async def live_memory(count: int) -> float:
    """Returns KiB per live job of real Guardians over ports in memory."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    nodes = (Node(name="local", cpus=4.0 * count, memory=10**15, gpus=0),)
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as home:
        plane = ControlPlane(Path(home), nodes=nodes)
        await plane.start_lcm()
        pool = await plane.start_pool()
        jobs = [await plane.submit(learners=2) for _ in range(count)]
        for job in jobs:
            plane.helpers.fate(job, run_s=None)
        for job in jobs:
            await plane.running(job, within_s=600)
        await asyncio.sleep(SETTLE_S)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        await plane.kill(pool)
        del pool
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        await plane.close()
    return (before - after) / 1024 / count


def live_cpu(count: int, seconds: float) -> list[Row]:
    """Returns cores per live job of a whole platform."""
    with own_platform({"WEFT_NODE_CPUS": str(max(4, count))}) as (platform, client):
        time.sleep(SETTLE_S)
        idle, woken = _used(platform, seconds)
        jobs = [
            client.jobs.submit({"name": "quiet", "command": "exec sleep 3600", "resources": SMALL})
            for _ in range(count)
        ]
        _until_running(client, {job.id for job in jobs})
        time.sleep(SETTLE_S)
        busy, _ = _used(platform, seconds)
    rows = [Row("all services, idle", [sum(idle.values()) / seconds], "cores", "<= 0.01")]
    rows += [Row(f"{service}, idle", [idle[service] / seconds], "cores") for service in ALL]
    rows.append(Row("all services, idle: wake-ups", [sum(woken.values()) / seconds], "per s"))
    rows += [Row(f"{service}, idle: wake-ups", [woken[service] / seconds], "per s") for service in ALL]
    for service in COUNTED:
        promised = "<= 0.001" if service == "guardian" else ""
        cores = (busy[service] - idle[service]) / seconds / count
        rows.append(Row(f"{service}, more per live job", [cores], "cores", promised))
    return rows


def _used(platform: Platform, seconds: float) -> tuple[dict[str, float], dict[str, int]]:
    """Returns processor seconds and wake-ups of each service during the next ``seconds``."""
    pids = {service: platform.process(service).pid for service in ALL}
    cpu_s, woken = ({service: cpu_seconds(platform, service) for service in ALL}, _wakeups(pids))
    time.sleep(seconds)
    return (
        {service: cpu_seconds(platform, service) - cpu_s[service] for service in ALL},
        {service: number - woken[service] for service, number in _wakeups(pids).items()},
    )


def _wakeups(pids: Mapping[str, int]) -> dict[str, int]:
    return {service: wakeups(pid) for service, pid in pids.items()}


def _until_running(client: Client, ids: set[str]) -> None:
    deadline = time.monotonic() + 120
    while {job.id for job in client.jobs.list() if job.status == "PROCESSING"} < ids:
        if time.monotonic() > deadline:
            raise RuntimeError("not all of the jobs run")
        time.sleep(0.2)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=6_000, help="waiting jobs (default: 6000)")
    parser.add_argument("--live", type=int, default=600, help="live jobs with simulated learners (default: 600)")
    parser.add_argument("--real", type=int, default=8, help="live jobs with real learners (default: 8)")
    parser.add_argument("--quick", action="store_true", help="a sixth of everything")
    args = parser.parse_args()
    if args.quick:
        args.waiting, args.live, args.real = 1_000, 100, 3
    rows = waiting(args.waiting)
    tracemalloc.start()
    memory_kib = asyncio.run(live_memory(args.live))
    tracemalloc.stop()
    rows.append(Row("guardian, per live job (simulated learners)", [memory_kib], "KiB", "<= 200"))
    rows += live_cpu(args.real, QUIET_S / 3 if args.quick else QUIET_S)
    show(f"footprint: {args.waiting} jobs that wait, {args.live} and {args.real} that run", rows)


if __name__ == "__main__":
    main()
