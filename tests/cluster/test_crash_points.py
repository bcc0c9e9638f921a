"""A Guardian's process that dies, or pauses, at any of its requests to the API server: all of a gang or nothing.

Every request x {before the call, after it and before its answer, after the answer} x five shapes of jobs. The default
run tries some of them, chosen by a seed; ``make promise R=R4`` tries all. An independent witness of the API server says
which attempts were live and what is left.

The learners fit on no node, so that an activated pod stays without one: no kubelet takes part.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

import pytest

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import Api, Document, collection
from services.core.adapters.kubernetes.observed import is_gated
from services.core.domain.errors import WeftError
from services.core.domain.plan import AttemptPlan, Input
from tests.promises import Promise
from tests.testbed.cluster_rules import FOREVER
from tests.testbed.gangs import start, teardown
from tests.testbed.kubernetes.cluster import Cluster as Machines
from tests.testbed.kubernetes.cut_api import Cut, CutApi, Died, MortalStatus
from tests.testbed.kubernetes.options import OPTIONS
from tests.testbed.kubernetes.stand_in import AnnouncingCluster
from tests.testbed.kubernetes.tenants_secret import TenantsSecret
from tests.testbed.kubernetes.watcher import Watcher, watching
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.testbed.node import plan
from tests.waiting import HANG_S, until

_SEED: Final = 17
_NEVER: Final = 10**6
_ORPHANS_S: Final = 30.0
_DATA: Final = (
    Input(mount="digits", type="http", location="https://data.example/digits"),
    Input(mount="more", type="local", location="/srv/more", path="train"),
)
_IMAGE: Final = "registry.example/team/train:1"
GANGS: Final = ("1 learner", "4 learners", "PS and workers", "data stores", "private image")


@dataclass
class Scene:
    machines: Machines
    status: MemoryStatusStore
    api: Api
    witness: Watcher
    guardians: list[AnnouncingCluster] = field(default_factory=list)

    def guardian(self, api: Api | None = None) -> AnnouncingCluster:
        """Another process. The fixture closes it."""
        status = MortalStatus.of(self.status, api) if isinstance(api, CutApi) else self.status
        credentials = TenantsSecret(_IMAGE)
        self.guardians.append(
            AnnouncingCluster(api or Api(self.machines.kubeconfig), OPTIONS, status, credentials=credentials)
        )
        return self.guardians[-1]

    async def pods(self, gang: AttemptPlan) -> Sequence[Document]:
        """Of this attempt."""
        selector = names.of_job(gang.job, OPTIONS.installation)
        listed, _ = await self.api.list(collection("Pod", "weft-t"), selector=selector)
        return [pod for pod in listed if names.attempt_of(pod) == gang.attempt]

    async def wait_clean(self, gang: AttemptPlan, point: object) -> None:
        """Nothing of the job is left, as the witness sees it: not even what the garbage collector has to remove."""
        try:
            await asyncio.to_thread(self.witness.wait_clean, _ORPHANS_S, gang.job)
        except AssertionError as error:
            raise AssertionError(f"{point}: {error}") from None

    async def requests(self, shape: str) -> tuple[int, int]:
        """How many requests a start takes at least, and a teardown."""
        counted = await until(lambda: self._counted(shape))
        assert counted is not None
        return counted

    async def _counted(self, shape: str) -> tuple[int, int] | None:
        """None if the cluster had written a pod meanwhile: that start repeated a step, and others need not."""
        gang, api = gang_of(shape), CutApi(self.machines.kubeconfig, _NEVER)
        guardian = self.guardian(api)
        await start(guardian, gang)
        of_start, repeated = api.requests, api.conflicts > 0
        await teardown(guardian, gang)
        return None if repeated else (of_start, api.requests - of_start)


@dataclass(frozen=True)
class Point:
    shape: str
    at: int
    when: Cut

    def __str__(self) -> str:
        return f"{self.shape}, {self.when} {self.at}"


@pytest.fixture(scope="module")
def witness(testbed_cluster: Machines) -> Iterator[Watcher]:
    """Of all these tests. None of them lets two attempts of a job live at the same moment."""
    with watching(testbed_cluster.kubeconfig) as watcher:
        yield watcher
        watcher.catch_up()
        assert (watcher.overlaps, watcher.gaps) == ([], 0)


@pytest.fixture
async def scene(testbed_cluster: Machines, witness: Watcher) -> AsyncGenerator[Scene]:
    api = Api(testbed_cluster.kubeconfig)
    prepared = Scene(testbed_cluster, MemoryStatusStore(), api, witness)
    await prepared.guardian().prepare("t")
    yield prepared
    for guardian in prepared.guardians:
        await guardian.close()
    await api.close()


def gang_of(shape: str) -> AttemptPlan:
    """A new job of this shape."""
    count = {"1 learner": 1, "4 learners": 4, "PS and workers": 3, "data stores": 2, "private image": 1}[shape]
    gang = plan([FOREVER] * count, gpus=100)
    if shape == "data stores":
        return replace(gang, inputs=_DATA)
    if shape == "private image":
        return replace(gang, image=_IMAGE, image_pull_secret="registry")
    if shape == "PS and workers":
        server, *workers = gang.learners
        roles = [replace(entry, name=f"worker-{number}") for number, entry in enumerate(workers)]
        return replace(gang, learners=(replace(server, name="ps-0", role="ps"), *roles))
    return gang


def points(promise: Promise, requests: Mapping[str, int], whens: Sequence[Cut], *, short: int) -> list[Point]:
    """All in the long run, ``short`` of them by default."""
    all_points = [
        Point(shape, at, when) for shape, count in requests.items() for at, when in product(range(count), whens)
    ]
    count = min(promise.n(short=short, long=len(all_points)), len(all_points))
    return random.Random(_SEED).sample(all_points, count)


async def dies(call: Coroutine[object, object, None]) -> bool:
    """Awaits the call. True if the process died meanwhile."""
    try:
        await call
    except Died:
        return True
    return False


@pytest.mark.promise("R4")
async def test_process_that_dies_at_any_request_of_a_start_leaves_all_of_a_gang_or_nothing(
    scene: Scene, promise: Promise
) -> None:
    successor = scene.guardian()
    requests = {shape: (await scene.requests(shape))[0] for shape in GANGS}
    tried = points(promise, requests, list(Cut), short=14)
    for number, point in enumerate(tried):
        gang, api = gang_of(point.shape), CutApi(scene.machines.kubeconfig, point.at, point.when)
        assert await dies(start(scene.guardian(api), gang)) or api.dead, point
        gang = replace(gang, term=2)
        if number % 2:
            await start(successor, gang)
            pods = await scene.pods(gang)
            assert [is_gated(pod) for pod in pods] == [False] * len(gang.learners), point
            assert {names.term_of(pod) for pod in pods} <= {1, 2}
        await teardown(successor, gang)
        await scene.wait_clean(gang, point)
    promise.kept(len(tried), f"deaths in a start: requests {requests}, five shapes, three moments")


@pytest.mark.promise("R4")
async def test_process_that_dies_at_any_request_of_a_teardown_leaves_nothing(scene: Scene, promise: Promise) -> None:
    successor = scene.guardian()
    requests = {shape: (await scene.requests(shape))[1] for shape in GANGS}
    tried = points(promise, requests, list(Cut), short=8)
    for point in tried:
        gang, api = gang_of(point.shape), CutApi(scene.machines.kubeconfig, point.at, point.when)
        await start(successor, gang)
        await dies(teardown(scene.guardian(api), gang))
        await teardown(successor, replace(gang, term=2))
        await scene.wait_clean(gang, point)
    promise.kept(len(tried), f"deaths in a teardown: requests {requests}, five shapes, three moments")


@pytest.mark.promise("R3", "R4")
async def test_request_that_arrives_after_the_next_attempt_runs_activates_nothing_of_the_earlier_one(
    scene: Scene, promise: Promise
) -> None:
    """The late create: a paused Guardian's request arrives after its successor has undone the attempt."""
    successor = scene.guardian()
    requests = {shape: (await scene.requests(shape))[0] for shape in GANGS}
    tried = points(promise, requests, [Cut.BEFORE], short=8)
    for point in tried:
        gang, api = gang_of(point.shape), CutApi(scene.machines.kubeconfig, point.at)
        api.holds = True
        late = asyncio.create_task(start(scene.guardian(api), gang))
        await asyncio.wait_for(api.is_held.wait(), HANG_S)
        await teardown(successor, replace(gang, term=2))
        second = replace(gang, attempt=2, term=2)
        await start(successor, second)
        api.go_on.set()
        (outcome,) = await asyncio.gather(late, return_exceptions=True)
        assert isinstance(outcome, WeftError), f"{point}: {outcome!r}"
        assert all(is_gated(pod) for pod in await scene.pods(gang)), point
        assert [is_gated(pod) for pod in await scene.pods(second)] == [False] * len(gang.learners), point
        await teardown(successor, replace(second, term=3))  # as the LCM's collector, which finds what is left
        await scene.wait_clean(gang, point)
    promise.kept(len(tried), "late requests of an earlier attempt beside a live one, five shapes")


async def test_scheduler_sees_a_native_gang_only_once_all_its_gates_are_lifted(scene: Scene) -> None:
    """Else it tries the gang anew for each pod, fails until the last one, and writes down each failure."""
    gang, api = gang_of("4 learners"), CutApi(scene.machines.kubeconfig, _NEVER)
    guardian = scene.guardian(api)
    await start(guardian, gang)
    lifted = [at for at, (method, path) in enumerate(api.sent) if method == "PATCH" and "/pods/" in path]
    gang_object = [at for at, sent in enumerate(api.sent) if sent[0] == "POST" and sent[1].endswith("/podgroups")]
    assert len(lifted) >= 4, api.sent
    assert gang_object, api.sent
    assert max(lifted) < min(gang_object), api.sent
    await teardown(guardian, gang)


async def test_start_does_not_read_what_it_has_created(scene: Scene) -> None:
    """Where many jobs start together, each read delays all of them as much as a creation."""

    async def unrepeated() -> list[tuple[str, str]] | None:
        """The requests of a start; None if the cluster has written a pod meanwhile: then a step was repeated."""
        gang, api = gang_of("4 learners"), CutApi(scene.machines.kubeconfig, _NEVER)
        guardian = scene.guardian(api)
        await start(guardian, gang)
        sent, repeated = list(api.sent), api.conflicts > 0
        await teardown(guardian, gang)
        return None if repeated else sent

    sent = await until(unrepeated)
    assert sent is not None
    created = next(at for at, (method, _) in enumerate(sent) if method == "POST")
    activated = max(at for at, (method, _) in enumerate(sent) if method == "PATCH")
    assert [request for request in sent[created:activated] if request[0] == "GET"] == []


async def test_activated_pods_have_no_managed_fields(scene: Scene) -> None:
    """They were half of each pod, and the API server computed them anew at each change of its status."""
    gang, guardian = gang_of("4 learners"), scene.guardian(CutApi(scene.machines.kubeconfig, _NEVER))
    await start(guardian, gang)
    present = await scene.pods(gang)
    assert len(present) == 4
    assert [pod["metadata"].get("managedFields") for pod in present] == [None] * 4
    await teardown(guardian, gang)


async def test_objects_that_the_cluster_writes_meanwhile_keep_no_gang_from_starting(scene: Scene) -> None:
    requests, _ = await scene.requests("4 learners")
    for at in random.Random(_SEED).sample(range(requests), 8):
        gang, api = gang_of("4 learners"), CutApi(scene.machines.kubeconfig, at)
        api.holds = True
        starting = asyncio.create_task(start(scene.guardian(api), gang))
        await asyncio.wait_for(api.is_held.wait(), HANG_S)
        for pod in await scene.pods(gang):  # as the scheduler, which writes a condition of each new pod
            touch = {"metadata": {"annotations": {"scheduled.example/at": str(at)}}}
            await scene.api.patch(collection("Pod", "weft-t", pod["metadata"]["name"]), touch)
        api.go_on.set()
        await starting
        assert [is_gated(pod) for pod in await scene.pods(gang)] == [False] * 4, f"written at request {at}"
        await teardown(scene.guardian(), gang)
