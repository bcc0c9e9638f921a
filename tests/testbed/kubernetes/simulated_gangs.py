"""Many gangs on simulated nodes: placed and started as the platform does, and where the cluster has put their pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from services.core.adapters.kubernetes.api import Api, Document
from services.core.adapters.kubernetes.options import GangMethod
from services.core.adapters.kubernetes.places import PODS
from services.core.domain.errors import Unavailable
from services.core.domain.plan import AttemptPlan
from services.core.domain.sizes import Size
from services.core.runtime.retry import Backoff
from services.lcm.scheduling.placement import Gang, all_free, pieces, place, subtract
from tests.testbed.cluster_rules import FOREVER
from tests.testbed.gangs import teardown
from tests.testbed.kubernetes.cluster import Cluster as Machines
from tests.testbed.kubernetes.options import OPTIONS
from tests.testbed.kubernetes.stand_in import AnnouncingCluster
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.testbed.node import plan
from tests.waiting import until

_JOB: Final = "weft.dev/job"
_LATE_S: Final = 600.0


class CountingApi(Api):
    """Counts what it writes, by method."""

    writes = 0

    async def _request(self, method: str, path: str, **options: Any) -> Document:
        self.writes += method != "GET"
        return await super()._request(method, path, **options)


@dataclass
class Gangs:
    """Of one process, as of one Guardian pool."""

    api: CountingApi
    cluster: AnnouncingCluster
    _present: list[AttemptPlan] = field(default_factory=list)

    async def place(self, count: int, learners: int, placement: str = "pack") -> list[AttemptPlan]:
        """Jobs of ``learners`` learners with a GPU each, placed by the dispatcher's rules one after the other.

        Returns those that fit; then ``count`` were admitted at most.
        """
        await until(self._all_ready, _LATE_S)
        free = all_free(await self.cluster.capacity())
        admitted: list[AttemptPlan] = []
        for _ in range(count):
            gang = gang_of_pods(learners)
            sizes = tuple((entry.name, Size(1, entry.cpus, entry.memory), None) for entry in gang.learners)
            wanted = Gang(learners=sizes, placement=placement, gpu_type="", framework="", max_pending=None)
            nodes = place(wanted, free)
            if nodes is None:
                break
            free = subtract(free, pieces(wanted, nodes))
            placed = tuple(replace(entry, node=nodes[entry.name]) for entry in gang.learners)
            admitted.append(replace(gang, learners=placed))
        return admitted

    async def _all_ready(self) -> bool:
        """A new node keeps its taint for a moment after it is Ready."""
        return all(node.ready for node in await self.cluster.capacity())

    async def start(self, gangs: Sequence[AttemptPlan]) -> None:
        """All at once; a step that the API server does not answer in time is repeated, as by a Guardian."""
        self._present += gangs
        await asyncio.gather(*(self._start(gang) for gang in gangs))

    async def _start(self, gang: AttemptPlan) -> None:
        for step in self.cluster.steps():
            await _repeated(partial(self.cluster.do, step, gang))

    async def remove(self) -> None:
        """All that were started."""
        await asyncio.gather(*(_repeated(partial(teardown, self.cluster, gang)) for gang in self._present))
        self._present.clear()

    async def bound(self) -> Mapping[str, list[str]]:
        """Job -> the nodes of its bound pods, one entry for each pod."""
        listed, _ = await self.api.list(PODS, selector=_JOB)
        result: dict[str, list[str]] = {}
        for pod in listed:
            nodes = result.setdefault(pod["metadata"]["labels"][_JOB], [])
            if pod["spec"].get("nodeName"):
                nodes.append(pod["spec"]["nodeName"])
        return result

    async def await_whole(self, count: int, learners: int) -> Mapping[str, list[str]]:
        """Returns ``bound`` once so many gangs are bound as a whole."""

        async def reached() -> Mapping[str, list[str]] | None:
            bound = await self.bound()
            whole = sum(len(nodes) == learners for nodes in bound.values())
            return bound if whole >= count else None

        result = await until(reached, _LATE_S)
        assert result is not None
        return result


def gang_of_pods(learners: int) -> AttemptPlan:
    """A new job, not placed."""
    gang = plan([FOREVER] * learners, gpus=1)
    small = tuple(replace(entry, cpus=0.1, memory=2**26, node="") for entry in gang.learners)
    return replace(gang, learners=small)


async def _repeated(call: Callable[[], Awaitable[None]]) -> None:
    backoff = Backoff()
    while True:
        try:
            return await call()
        except Unavailable:
            await backoff.wait()


def bound_in_part(bound: Mapping[str, list[str]], learners: int) -> list[str]:
    """Jobs of which some pods are bound and some are not."""
    return [job for job, nodes in bound.items() if len(nodes) not in {0, learners}]


@asynccontextmanager
async def gangs_on(machines: Machines, method: GangMethod) -> AsyncGenerator[Gangs]:
    """A process that starts gangs by this method."""
    api = CountingApi(machines.kubeconfig)
    cluster = AnnouncingCluster(api, replace(OPTIONS, gang=method), MemoryStatusStore())
    await cluster.prepare("t")
    try:
        gangs = Gangs(api, cluster)
        yield gangs
        await gangs.remove()
    finally:
        await cluster.close()
