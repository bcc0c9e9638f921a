"""The Cluster port on Kubernetes. What each part does is in its module (see the package)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from services.core.adapters.kubernetes import gangs, names, nodes, observed, tenants
from services.core.adapters.kubernetes.api import Api, Document, collection, gather
from services.core.adapters.kubernetes.changes import Changes
from services.core.adapters.kubernetes.fences import Fences
from services.core.adapters.kubernetes.observation_cache import ObservationCache, Reading
from services.core.adapters.kubernetes.observed import Context, StopMark
from services.core.adapters.kubernetes.options import GangMethod, KubernetesOptions
from services.core.adapters.kubernetes.places import NODES, PODS, Places
from services.core.adapters.kubernetes.provision import STEPS, Provision
from services.core.adapters.kubernetes.reflector import Reflector
from services.core.adapters.kubernetes.removal import Removal, lost_nodes
from services.core.domain.codec import MALFORMED, load
from services.core.domain.errors import NotFound
from services.core.domain.learner import LearnerStatus
from services.core.domain.plan import AttemptPlan
from services.core.domain.status_keys import learners_prefix
from services.core.ports.cluster import LearnerProcess, Node, Observation
from services.core.ports.pull_credentials import PullCredentials
from services.core.ports.status_store import StatusStore
from services.core.runtime.pod_layout import LEARNER_CONTAINER, PLAN_FILE

_EVENTS: Final = "/api/v1/events"
_WARNINGS: Final = "type=Warning,involvedObject.kind=Pod"
_SYNC_S: Final = 20.0
_PREPARED_S: Final = 600.0
"""What is in a tenant's namespace is checked again after so long."""
_CREATING: Final = ("ContainerCreating", "PodInitializing")


class KubernetesCluster:
    """Create it inside the event loop that uses it. Connects with the first call."""

    def __init__(
        self,
        api: Api,
        options: KubernetesOptions,
        status: StatusStore,
        *,
        credentials: PullCredentials | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """``status``: for fences, stops, and the helpers' reports. The caller closes it.

        ``credentials``: of the images of jobs, closed with this; None in a service that provisions nothing.
        """
        self._credentials = credentials
        self._api, self._options, self._status, self._now_ms = api, options, status, now_ms
        self._places = Places(api, options)
        self._method: GangMethod | None = None
        self._fences = Fences(status)
        self._provision = Provision(api, options, self._fences, self.gang_method, credentials)
        self._removal = Removal(api, options, status, fences=self._fences, places=self._places, now_ms=now_ms)
        self._capacity: tuple[Reflector, Reflector] | None = None
        """Of nodes, and of what pods take of them."""
        self._watched: Reflector | None = None
        """The job of each pod, while ``watch`` runs."""
        self._cache = ObservationCache(self._is_current, lambda: asyncio.get_running_loop().time())
        self._tasks: set[asyncio.Task[None]] = set()
        self._prepared: dict[str, float] = {}

    async def gang_method(self) -> GangMethod:
        """How this cluster places all pods of a gang or none."""
        if self._method is None:
            self._method = await gangs.gang_method(self._api, self._options)
        return self._method

    async def prepare(self, tenant: str) -> None:
        now = asyncio.get_running_loop().time()
        is_recent = now - self._prepared.get(tenant, -_PREPARED_S) < _PREPARED_S
        if is_recent and await tenants.is_there(self._api, tenant, self._options):
            return
        await tenants.prepare(self._api, tenant, self._options)
        self._prepared[tenant] = now

    async def capacity(self) -> Sequence[Node]:
        if self._capacity is None:
            of_nodes = Reflector(self._api, NODES)
            of_pods = Reflector(self._api, PODS, keep=lambda pod: nodes.usage(pod, self._options))
            self._capacity = of_nodes, of_pods
            self._tasks |= {asyncio.create_task(reflector.run()) for reflector in self._capacity}
        await gather([reflector.synced(_SYNC_S) for reflector in self._capacity])
        of_nodes, of_pods = self._capacity
        return nodes.capacity(of_nodes.objects.values(), of_pods.objects.values(), self._options)

    def steps(self) -> Sequence[str]:
        return STEPS

    async def do(self, step: str, plan: AttemptPlan) -> None:
        self._places.learn(plan.job, names.namespace_of(plan.tenant, self._options.namespace_prefix))
        with self._cache.writing(plan.job):
            try:
                await self._provision.do(step, plan)
            except NotFound:
                self._method = None  # perhaps an upgrade of the cluster has removed the API of gang objects: look again
                raise

    async def observe(self, job_id: str, *, cached: bool = False) -> Observation:
        if cached and (kept := self._cache.get(job_id, observed.relevant(await self._reports(job_id)))) is not None:
            return kept
        with self._cache.reading(job_id) as reading:
            return await self._read(job_id, reading)

    async def _read(self, job_id: str, reading: Reading) -> Observation:
        namespace = self._places.learned(job_id)
        # Another process may have started the job while no watch followed the pods, or since the watch is silent.
        if namespace is None and (not self._is_current() or await self._fences.has_acted(job_id)):
            namespace = await self._places.find(job_id)
        if namespace is None:
            return Observation(learners=[], attempts=[])
        selector = names.of_job(job_id, self._options.installation)
        pods, _ = await self._api.list(collection("Pod", namespace), selector=selector)
        # After the pods: an owner says that a stop deletes a pod, and a report says how its learner ended, before the
        # pod is gone.
        owners, reports = await gather([self._places.owners(namespace, job_id), self._reports(job_id)])
        marks = {names.attempt_of(owner): StopMark.of(owner) for owner in owners}
        removed = {(names.attempt_of(owner), name) for owner in owners for name in observed.removals(owner)}
        lost = await lost_nodes(self._api, {str(pod["spec"]["nodeName"]) for pod in pods if _may_be_lost(pod)})
        warnings = await self._warnings(namespace) if any(_is_being_created(pod) for pod in pods) else {}
        now = self._now_ms()
        learners = [
            observed.observe(
                pod,
                Context(
                    now=now,
                    report=reports.get((names.attempt_of(pod), names.label(pod, names.LEARNER))),
                    mark=marks.get(names.attempt_of(pod)),
                    removed=(names.attempt_of(pod), names.label(pod, names.LEARNER)) in removed,
                    node_lost=pod["spec"].get("nodeName") in lost,
                    events=warnings.get(pod["metadata"]["uid"], ()),
                ),
            )
            for pod in pods
        ]
        for owner in owners:
            learners += _removed(owner, {(entry.attempt, entry.name) for entry in learners}, reports)
            learners += await self._without_pod(owner, {(entry.attempt, entry.name) for entry in learners}, selector)
        attempts = {names.attempt_of(document) for document in (*pods, *owners)}
        if not attempts:
            self._places.forget_owners(job_id)
        observation = Observation(learners=learners, attempts=sorted(attempts))
        # A node or a warning, which end no entry, change only what is observed of the pods that are excluded here.
        if 0 < len(pods) == len(learners) and not any(_may_be_lost(pod) or _is_being_created(pod) for pod in pods):
            self._cache.keep(job_id, reading, observation, observed.relevant(reports))
        return observation

    async def stop(self, job_id: str, *, attempt: int, term: int, generation: int, cause: str, grace_ms: int) -> None:
        self._provision.forget(job_id)
        with self._cache.writing(job_id):
            await self._removal.stop(
                job_id, attempt=attempt, term=term, generation=generation, cause=cause, grace_ms=grace_ms
            )

    async def teardown(self, job_id: str, *, attempt: int, term: int) -> None:
        self._provision.forget(job_id)
        with self._cache.writing(job_id):
            await self._removal.teardown(job_id, attempt=attempt, term=term)

    async def jobs(self, *, cached: bool = False) -> Sequence[str]:
        watched = self._watched
        if not cached or watched is None or not watched.current:
            return sorted(await self._places.jobs())
        with_pods = {*watched.objects.values()} - {""}
        return sorted(with_pods | await self._places.without_pods(with_pods, asyncio.get_running_loop().time()))

    async def watch(self) -> AsyncGenerator[str]:
        changes = Changes()
        ours = {"labelSelector": names.of_jobs(self._options.installation)}

        def on_pod(pod: Document) -> None:
            job = self._places.learn_from(pod)
            if not job:
                return  # an empty id would stand for all jobs
            self._places.forget_old(pods.objects.values())
            self._cache.invalidate(job)
            changes.add(job)

        def on_list() -> None:
            self._cache.invalidate_all()
            for place, job in pods.objects.items():
                if job:
                    self._places.learn(job, place[0])
            changes.add("")

        def on_event(event: Document) -> None:
            # While the pods are not listed, an event is not needed: after the list, the reader looks at all jobs.
            if self._is_current() and (job := _job_of(str(event["involvedObject"].get("name")))):
                changes.add(job)

        pods = Reflector(self._api, PODS, query=ours, keep=self._places.job_of, on_change=on_pod, on_list=on_list)
        warnings = Reflector(
            self._api, _EVENTS, query={"fieldSelector": _WARNINGS}, keep=lambda _: None, on_change=on_event
        )
        tasks = [asyncio.create_task(reflector.run()) for reflector in (pods, warnings)]
        self._watched = pods
        try:
            while True:
                yield await changes.next()
        finally:
            self._watched = None
            await _cancel(tasks)

    async def ping(self) -> None:
        await self._api.get("/version")

    async def close(self) -> None:
        await _cancel(self._tasks)
        await self._removal.close()
        if self._credentials is not None:
            await self._credentials.close()
        await self._api.close()

    def _is_current(self) -> bool:
        return self._watched is not None and self._watched.current

    async def _reports(self, job_id: str) -> Mapping[tuple[int, str], LearnerStatus]:
        """The helpers' reports by attempt and learner. Malformed ones are left out; the Guardian quarantines them."""
        reports: dict[tuple[int, str], LearnerStatus] = {}
        for entry in await self._status.list(learners_prefix(job_id)):
            with suppress(*MALFORMED):
                report = load(LearnerStatus, json.loads(entry.value))
                reports[report.attempt, report.name] = report
        return reports

    async def _warnings(self, namespace: str) -> Mapping[str, list[Document]]:
        """Warnings about pods by the pod's uid."""
        events, _ = await self._api.list(f"/api/v1/namespaces/{namespace}/events", query={"fieldSelector": _WARNINGS})
        by_pod: dict[str, list[Document]] = {}
        for event in events:
            by_pod.setdefault(str(event["involvedObject"].get("uid")), []).append(event)
        return by_pod

    async def _without_pod(self, owner: Document, present: set[tuple[int, str]], selector: str) -> list[LearnerProcess]:
        """The learners of an attempt that have no pod: not yet, or, if none of the gang has one any more, lost.

        Of a gang whose other pods are there the Guardian sees itself which learners are gone.
        """
        attempt, namespace = names.attempt_of(owner), owner["metadata"]["namespace"]
        activated = bool(names.annotation(owner, names.ACTIVATED))
        if activated:
            if any(number == attempt for number, _ in present):
                return []
            # The pods were listed before the owner: they may have been created and activated in between.
            pods, _ = await self._api.list(collection("Pod", namespace), selector=selector)
            if any(names.attempt_of(pod) == attempt for pod in pods):
                return []
        path = collection("ConfigMap", namespace, owner["metadata"]["name"])
        try:
            plan = json.loads((await self._api.get(path))["data"][PLAN_FILE])
            gang = [f"{role['role']}-{index}" for role in plan["roles"] for index in range(int(role["count"]))]
        except (NotFound, *MALFORMED):
            return []
        missing = [name for name in gang if (attempt, name) not in present]
        if activated:
            return [observed.vanished(name, owner, now=self._now_ms()) for name in missing]
        return [observed.never_created(name, attempt, StopMark.of(owner)) for name in missing]


def _removed(
    owner: Document, present: set[tuple[int, str]], reports: Mapping[tuple[int, str], LearnerStatus]
) -> list[LearnerProcess]:
    """The learners whose pods a stop has deleted, and which are gone."""
    attempt, mark = names.attempt_of(owner), StopMark.of(owner)
    if mark is None:
        return []
    return [
        observed.removed(name, attempt, time, mark, reports.get((attempt, name)))
        for name, time in observed.removals(owner).items()
        if (attempt, name) not in present
    ]


async def _cancel(tasks: Collection[asyncio.Task[None]]) -> None:
    """Returns when they have ended, and their connections are closed."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _may_be_lost(pod: Document) -> bool:
    """True if the cluster says that a pod is not ready although its containers are running."""
    status = pod.get("status") or {}
    conditions: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    unready = any(condition["type"] == "Ready" and condition["status"] == "False" for condition in conditions)
    runs = observed.container_state(pod, LEARNER_CONTAINER, "terminated") is None
    return bool(pod["spec"].get("nodeName")) and unready and runs and status.get("phase") != "Failed"


def _is_being_created(pod: Document) -> bool:
    """True if its containers wait for something that only events name."""
    waiting = observed.container_state(pod, LEARNER_CONTAINER, "waiting")
    return waiting is not None and waiting.get("reason") in _CREATING


def _job_of(pod: str) -> str:
    """The job's id in the name of a pod; empty for the pods of others."""
    parts = pod.split("-")
    return parts[1] if len(parts) > 3 and parts[0] == names.WEFT and parts[1] != names.PROBE else ""
