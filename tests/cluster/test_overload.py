"""More gangs than the cluster has GPUs for, on simulated nodes: each is placed as a whole or not at all.

The default run is small. ``make promise R=R4 ARGS=tests/cluster/test_overload.py`` starts 37 gangs of 30 pods
on 800 GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from services.core.adapters.kubernetes.options import GangMethod
from tests.promises import Promise
from tests.testbed.kubernetes.cluster import Cluster, cluster
from tests.testbed.kubernetes.platform_in_pods import objects_left, platform_on_simulated_nodes
from tests.testbed.kubernetes.simulated_gangs import bound_in_part, gang_of_pods, gangs_on
from tests.waiting import HANG_S, eventually
from weft import Client

_GPUS: Final = 8
"""Of each simulated node."""
_LONG: Final = (37, 30, 100)
"""Gangs, pods of each, nodes."""
_SHORT: Final = (7, 8, 6)


@pytest.fixture(scope="module")
def simulated(testbed_programs: None, announce: Callable[[str], None]) -> Iterator[Cluster]:
    """Only simulated nodes: as many as the run needs."""
    nodes = (_LONG if os.environ.get("WEFT_PROMISE") else _SHORT)[2]
    with cluster(nodes=0, simulated_nodes=nodes, gpus=_GPUS, say=announce) as running:
        yield running


def size(promise: Promise) -> tuple[int, int, int]:
    """Gangs, pods of each, and how many gangs fit."""
    gangs, pods, nodes = _LONG if promise.n(short=0, long=1) else _SHORT
    return gangs, pods, nodes * _GPUS // pods


@pytest.mark.promise("R4")
async def test_scheduler_binds_whole_gangs_only_when_many_more_are_started_than_fit(
    simulated: Cluster, promise: Promise
) -> None:
    count, pods, fit = size(promise)
    async with gangs_on(simulated, GangMethod.NATIVE) as gangs:
        started = [gang_of_pods(pods) for _ in range(count)]
        await gangs.start(started)
        bound = await gangs.await_whole(fit, pods)
        await gangs.remove()
        assert bound_in_part(bound, pods) == []
        assert len(bound) == count
    promise.kept(count, f"gangs of {pods} pods by the native gang, {fit} fit: none is bound in part")


@pytest.mark.promise("R4")
async def test_dispatcher_places_whole_gangs_only_where_the_cluster_has_no_native_gangs(
    simulated: Cluster, promise: Promise
) -> None:
    count, pods, fit = size(promise)
    async with gangs_on(simulated, GangMethod.GATES) as gangs:
        placed = await gangs.place(count, pods)
        assert len(placed) == fit
        await gangs.start(placed)
        bound = await gangs.await_whole(fit, pods)
        await gangs.remove()
        chosen = {gang.job: sorted(entry.node for entry in gang.learners) for gang in placed}
        assert {job: sorted(nodes) for job, nodes in bound.items()} == chosen
    promise.kept(count, f"gangs of {pods} pods by gates, {fit} fit: none is bound in part")


@pytest.mark.promise("R4")
@pytest.mark.parametrize("method", [GangMethod.NATIVE, GangMethod.GATES], ids=str)
async def test_packed_jobs_share_nodes_and_spread_jobs_do_not(
    simulated: Cluster, promise: Promise, method: GangMethod
) -> None:
    """Nodes per job: one with pack, as many as there are pods with spread."""
    jobs, pods = (10, 8) if promise.n(short=0, long=1) else (2, 4)
    async with gangs_on(simulated, method) as gangs:
        for placement, nodes in (("pack", 1), ("spread", pods)):
            placed = await gangs.place(jobs, pods, placement)
            await gangs.start(placed)
            bound = await gangs.await_whole(jobs, pods)
            await gangs.remove()
            per_job = [len(set(entry)) for entry in bound.values()]
            used = {node for entry in bound.values() for node in entry}
            promise.saw(f"{method}, {placement}: {sorted(per_job)} nodes for jobs of {pods} pods, {len(used)} in all")
            assert per_job == [nodes] * jobs


@pytest.mark.promise("R4")
def test_jobs_that_are_submitted_at_once_all_run_and_leave_nothing(simulated: Cluster, promise: Promise) -> None:
    """``python -m bench.k8s_storm`` submits 2,000, and measures."""
    count = promise.n(short=30, long=300)
    with (
        platform_on_simulated_nodes(simulated, name="storm") as running,
        Client(running.url, running.key) as client,
        ThreadPoolExecutor(8) as threads,
    ):
        spec = {"name": "storm", "command": "sleep 1", "resources": {"cpus": 0.1, "memory": "64MiB", "gpus": 1}}
        jobs = list(threads.map(lambda _: client.jobs.submit(spec), range(count)))
        for job in jobs:
            assert (job.wait(HANG_S * 2).status, job.attempt) == ("COMPLETED", 1), job.message
        eventually(lambda: objects_left(simulated) == [])
    promise.kept(count, "jobs that are submitted at once on simulated nodes: all run, nothing is left")
