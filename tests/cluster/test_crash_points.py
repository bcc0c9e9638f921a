"""A Guardian's process that dies, or pauses, at each of its requests to the API server: all of a gang or nothing.

The learners fit on no node, so that an activated pod stays without one: no kubelet takes part.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pytest

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import Api, Document, collection
from services.core.adapters.kubernetes.observed import is_gated
from services.core.domain.errors import WeftError
from services.core.domain.plan import AttemptPlan
from tests.testbed.cluster_rules import FOREVER
from tests.testbed.gangs import start, teardown
from tests.testbed.kubernetes.cluster import Cluster as Machines
from tests.testbed.kubernetes.cut_api import CutApi, Died
from tests.testbed.kubernetes.options import OPTIONS
from tests.testbed.kubernetes.stand_in import AnnouncingCluster
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.testbed.node import plan

_KINDS: Final = ("Pod", "ConfigMap", "Secret", "Service", "NetworkPolicy")
_MOST_REQUESTS: Final = 40
"""More than a start of two learners takes."""


@dataclass
class Scene:
    machines: Machines
    status: MemoryStatusStore
    api: Api
    guardians: list[AnnouncingCluster] = field(default_factory=list)

    def guardian(self, api: Api | None = None) -> AnnouncingCluster:
        """Another process. The fixture closes it."""
        self.guardians.append(AnnouncingCluster(api or Api(self.machines.kubeconfig), OPTIONS, self.status))
        return self.guardians[-1]

    async def left(self, gang: AttemptPlan) -> list[Document]:
        """All objects of the job."""
        selector = names.of_job(gang.job, OPTIONS.installation)
        lists = await asyncio.gather(*(self.api.list(collection(kind, "weft-t"), selector=selector) for kind in _KINDS))
        return [item for items, _ in lists for item in items]

    async def pods(self, gang: AttemptPlan) -> Sequence[Document]:
        selector = names.of_job(gang.job, OPTIONS.installation)
        return (await self.api.list(collection("Pod", "weft-t"), selector=selector))[0]


@pytest.fixture
async def scene(testbed_cluster: Machines) -> AsyncGenerator[Scene]:
    api = Api(testbed_cluster.kubeconfig)
    prepared = Scene(testbed_cluster, MemoryStatusStore(), api)
    await prepared.guardian().prepare("t")
    yield prepared
    for guardian in prepared.guardians:
        await guardian.close()
    await api.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_successor_of_a_process_that_died_at_any_request_starts_the_whole_gang(
    scene: Scene,
    after: bool,  # noqa: FBT001
) -> None:
    successor = scene.guardian()
    for at in range(_MOST_REQUESTS):
        gang, api = plan([FOREVER] * 2, gpus=100), CutApi(scene.machines.kubeconfig, at, after=after)
        first = scene.guardian(api)
        died = await _dies(first, gang)
        await start(successor, replace(gang, term=2))
        pods = await scene.pods(gang)
        assert [is_gated(pod) for pod in pods] == [False] * 2, f"died at request {at}"
        assert {names.term_of(pod) for pod in pods} <= {1, 2}
        await teardown(successor, replace(gang, term=2))
        assert await scene.left(gang) == [], f"died at request {at}"
        if not died:
            break
    else:
        pytest.fail(f"a start takes more than {_MOST_REQUESTS} requests")
    assert at > 10


async def test_request_that_arrives_after_the_attempt_was_undone_activates_nothing(scene: Scene) -> None:
    successor = scene.guardian()
    for at in range(_MOST_REQUESTS):
        gang, api = plan([FOREVER] * 2, gpus=100), CutApi(scene.machines.kubeconfig, at)
        api.holds = True
        first = scene.guardian(api)
        late = asyncio.create_task(start(first, gang))
        held = asyncio.create_task(api.is_held.wait())
        await asyncio.wait({late, held}, return_when=asyncio.FIRST_COMPLETED)
        if not api.is_held.is_set():
            held.cancel()
            await late
            await teardown(successor, replace(gang, term=2))
            break
        await teardown(successor, replace(gang, term=2))
        api.go_on.set()
        (outcome,) = await asyncio.gather(late, return_exceptions=True)
        assert isinstance(outcome, WeftError), f"held at request {at}: {outcome!r}"
        assert all(is_gated(pod) for pod in await scene.pods(gang)), f"held at request {at}"
        await teardown(successor, replace(gang, term=3))  # as the LCM's collector, which finds what is left
        assert await scene.left(gang) == [], f"held at request {at}"
    else:
        pytest.fail(f"a start takes more than {_MOST_REQUESTS} requests")
    assert at > 10


async def test_objects_that_the_cluster_writes_meanwhile_keep_no_gang_from_starting(scene: Scene) -> None:
    for at in range(_MOST_REQUESTS):
        gang, api = plan([FOREVER] * 2, gpus=100), CutApi(scene.machines.kubeconfig, at)
        api.holds = True
        starting = asyncio.create_task(start(scene.guardian(api), gang))
        held = asyncio.create_task(api.is_held.wait())
        await asyncio.wait({starting, held}, return_when=asyncio.FIRST_COMPLETED)
        held.cancel()
        for pod in await scene.pods(gang):  # as the scheduler, which writes a condition of each new pod
            touch = {"metadata": {"annotations": {"scheduled.example/at": str(at)}}}
            await scene.api.patch(collection("Pod", "weft-t", pod["metadata"]["name"]), touch)
        api.go_on.set()
        await starting
        assert [is_gated(pod) for pod in await scene.pods(gang)] == [False] * 2, f"written at request {at}"
        await teardown(scene.guardian(), gang)
        if not api.is_held.is_set():
            break
    else:
        pytest.fail(f"a start takes more than {_MOST_REQUESTS} requests")
    assert at > 10


async def _dies(cluster: AnnouncingCluster, gang: AttemptPlan) -> bool:
    """Starts the gang. True if the process died meanwhile."""
    try:
        await start(cluster, gang)
    except Died:
        return True
    return False
