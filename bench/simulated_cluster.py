"""Ways to get many pods into a cluster of simulated nodes: Weft's adapter, native gangs by hand, plain pods, Jobs.

All run against the same API server, scheduler and controller manager, one after the other, with pods of the same
containers, requests and labels. A watch of its own counts pods. The scheduler's own metrics say how often it tried
pods, and how often it wrote: on a busy machine these counts say more than times.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.report import Row
from services.core.adapters.kubernetes.api import Api, Document
from services.core.adapters.kubernetes.options import GangMethod
from services.core.adapters.kubernetes.places import PODS
from services.core.adapters.kubernetes.reflector import Reflector
from tests.testbed.kubernetes.cluster import Cluster
from tests.testbed.kubernetes.simulated_gangs import gangs_on

NAMESPACE: Final = "weft-t"
_MARK: Final = "bench.weft.dev/way"
_JOBS: Final = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
_TIMEOUT_S: Final = 900.0
_TRIES: Final = re.compile(r"^scheduler_schedule_attempts_total\{.*\} (\S+)$", re.MULTILINE)
_SCHEDULER_WRITES: Final = re.compile(
    r'^rest_client_requests_total\{.*method="(?:POST|PATCH|PUT|DELETE)".*\} (\S+)$', re.MULTILINE
)
TUNED_SCHEDULER: Final = (
    "--kube-api-qps=1000",
    "--kube-api-burst=2000",
    "--feature-gates=NominatedNodeNameForExpectation=false",
)
"""What the operator guide recommends ("Learners on Kubernetes"), as flags. A configuration file has the first two as
``clientConnection``."""
_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_GROUPS: Final = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{NAMESPACE}/podgroups"


@dataclass
class Count:
    """Of pods in the cluster, kept current by a watch."""

    pods: Reflector

    @property
    def created(self) -> int:
        return len(self.pods.objects)

    @property
    def bound(self) -> int:
        return sum(bool(node) for node in self.pods.objects.values())

    async def reach(self, count: Callable[[], int], target: int, cause: asyncio.Future[Any] | None = None) -> float:
        """Returns the time (monotonic) at which the count reached the target. Raises the error of ``cause``."""
        deadline = time.monotonic() + _TIMEOUT_S
        while count() != target:
            if cause is not None and cause.done():
                cause.result()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{count()} of {target} pods after {_TIMEOUT_S:.0f} s")
            await asyncio.sleep(0.005)
        return time.monotonic()


@asynccontextmanager
async def counting(kubeconfig: Path) -> AsyncGenerator[Count]:
    """Counts the pods of all namespaces."""
    api = Api(kubeconfig)
    reflector = Reflector(api, PODS, keep=lambda pod: pod["spec"].get("nodeName", ""))
    task = asyncio.create_task(reflector.run())
    try:
        await reflector.synced(_TIMEOUT_S)
        yield Count(reflector)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()


@dataclass(frozen=True)
class Result:
    """Seconds from the first call."""

    created_s: float
    bound_s: float
    writes_per_job: float
    tries_per_pod: float = 0
    """Of the scheduler; 1: each pod was bound with its first try."""
    scheduler_writes_per_pod: float = 0
    """Bindings and events included, of which each pod has one."""


async def measure(machines: Cluster, count: Count, way: str, jobs: int, pods: int) -> Result:
    """One of ``WAYS``, from an empty cluster, which is empty again afterwards."""
    before = await asyncio.to_thread(_scheduler_counts, machines)
    result = await WAYS[way](machines, count, jobs, pods)
    after = await asyncio.to_thread(_scheduler_counts, machines)
    tries, writes = ((late - early) / (jobs * pods) for early, late in zip(before, after, strict=True))
    return replace(result, tries_per_pod=tries, scheduler_writes_per_pod=writes)


def _scheduler_counts(machines: Cluster) -> tuple[float, float]:
    """How often the scheduler has tried a pod, and how often it has written to the API server."""
    text = machines.control_plane.scheduler_metrics()
    return (
        sum(float(number) for number in _TRIES.findall(text)),
        sum(float(number) for number in _SCHEDULER_WRITES.findall(text)),
    )


def _of_weft(method: GangMethod) -> Callable[[Cluster, Count, int, int], Awaitable[Result]]:
    async def run(machines: Cluster, count: Count, jobs: int, pods: int) -> Result:
        async with gangs_on(machines, method) as gangs:
            await gangs.cluster.gang_method()
            placed = await gangs.place(jobs, pods)
            if len(placed) != jobs:
                raise RuntimeError(f"{len(placed)} of {jobs} jobs fit on the nodes")
            before, began = gangs.api.writes, time.monotonic()
            starting = asyncio.create_task(gangs.start(placed))
            created = await count.reach(lambda: count.created, jobs * pods, starting)
            bound = await count.reach(lambda: count.bound, jobs * pods, starting)
            await starting
            writes = gangs.api.writes - before
            await gangs.remove()
            await count.reach(lambda: count.created, 0)
        return Result(created - began, bound - began, writes / jobs)

    return run


async def _by_hand(machines: Cluster, count: Count, jobs: int, pods: int, *, gangs: bool) -> Result:
    """The same number of pods without Weft and owners. ``gangs``: with a PodGroup for each job, as native gangs."""
    api = Api(machines.kubeconfig)
    names = [f"by-hand-{job}" for job in range(jobs)]

    async def create(name: str) -> None:
        if gangs:
            await api.create(_GROUPS, _pod_group(name, pods))
        created = (_numbered_pod(name, number, in_group=gangs) for number in range(pods))
        await asyncio.gather(*(api.create(_PODS, pod) for pod in created))

    began = time.monotonic()
    creating = asyncio.gather(*(create(name) for name in names))
    created = await count.reach(lambda: count.created, jobs * pods, creating)
    bound = await count.reach(lambda: count.bound, jobs * pods, creating)
    await creating
    paths = [f"{_PODS}/{name}-{number}" for name in names for number in range(pods)]
    await asyncio.gather(*(api.delete(path, grace_s=0) for path in paths))
    if gangs:
        await asyncio.gather(*(api.delete(f"{_GROUPS}/{name}") for name in names))
    await count.reach(lambda: count.created, 0)
    await api.close()
    return Result(created - began, bound - began, pods + gangs)


async def _kubernetes_jobs(machines: Cluster, count: Count, jobs: int, pods: int) -> Result:
    """Kubernetes' own Job objects: the controller manager creates the pods, at its default rate."""
    api = Api(machines.kubeconfig)
    began = time.monotonic()
    await asyncio.gather(*(api.create(_JOBS, _job(f"job-{job}", pods)) for job in range(jobs)))
    created = await count.reach(lambda: count.created, jobs * pods)
    bound = await count.reach(lambda: count.bound, jobs * pods)
    await asyncio.gather(*(api.delete(f"{_JOBS}/job-{job}") for job in range(jobs)))
    await count.reach(lambda: count.created, 0)
    await api.close()
    return Result(created - began, bound - began, 1)


def _pod(name: str, mark: str = "plain") -> dict[str, Any]:
    size = {"cpu": "110m", "memory": "96Mi", "nvidia.com/gpu": "1"}
    container = {
        "name": "learner",
        "image": "none",
        "resources": {"requests": size, "limits": size},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"restartPolicy": "Never", "securityContext": security, "containers": [container]}
    return {"metadata": {"name": name, "labels": {_MARK: mark}}, "spec": spec}


def _pod_group(name: str, pods: int) -> dict[str, Any]:
    spec = {"schedulingPolicy": {"gang": {"minCount": pods}}}
    return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def _numbered_pod(job: str, number: int, *, in_group: bool) -> dict[str, Any]:
    pod = _pod(f"{job}-{number}")
    if in_group:
        pod["spec"]["schedulingGroup"] = {"podGroupName": job}
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def _job(name: str, pods: int, mark: str = "job") -> dict[str, Any]:
    template = {"metadata": {"labels": {_MARK: mark}}, "spec": _pod(name)["spec"]}
    spec = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def bound_without_weft(machines: Cluster, due: Sequence[float]) -> tuple[list[float], list[float]]:
    """``_delays_until_bound`` of plain pods, and of Kubernetes' Jobs, where no platform has made the namespace."""
    machines.kubectl.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    plain = asyncio.run(_delays_until_bound(machines, due, as_jobs=False))
    return plain, asyncio.run(_delays_until_bound(machines, due, as_jobs=True))


async def _delays_until_bound(machines: Cluster, due: Sequence[float], *, as_jobs: bool) -> list[float]:
    """For each pod, the seconds from the moment at which it is due until it is bound.

    ``due``: seconds from now. Without Weft: plain pods, or one of Kubernetes' Jobs for each. Nothing is left.
    """
    bound_s: dict[str, float] = {}

    def note(pod: Document) -> None:
        if pod["spec"].get("nodeName"):
            bound_s.setdefault(pod["metadata"]["labels"][_MARK], time.monotonic())

    def note_all() -> None:
        for pod in pods.objects.values():
            note(pod)

    api = Api(machines.kubeconfig)
    pods = Reflector(api, _PODS, on_change=note, on_list=note_all)
    watching = asyncio.create_task(pods.run())
    began_s = time.monotonic()

    async def create(name: str, due_s: float) -> None:
        await asyncio.sleep(began_s + due_s - time.monotonic())
        if as_jobs:
            await api.create(_JOBS, _job(name, 1, mark=name))
        else:
            await api.create(_PODS, {"apiVersion": "v1", "kind": "Pod", **_pod(name, mark=name)})

    names = {f"alone-{number}": due_s for number, due_s in enumerate(due)}
    try:
        await pods.synced(_TIMEOUT_S)
        await asyncio.gather(*(create(name, due_s) for name, due_s in names.items()))
        async with asyncio.timeout(_TIMEOUT_S):
            while len(bound_s) < len(names):  # noqa: ASYNC110 - pods are noted by a watch
                await asyncio.sleep(0.01)
        if as_jobs:
            await asyncio.gather(*(api.delete(f"{_JOBS}/{name}") for name in names))
        else:
            await asyncio.gather(*(api.delete(f"{_PODS}/{name}", grace_s=0) for name in names))
        async with asyncio.timeout(_TIMEOUT_S):
            while pods.objects:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.1)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await api.close()
    return [bound_s[name] - began_s - due_s for name, due_s in names.items()]


WAYS: Final[dict[str, Callable[[Cluster, Count, int, int], Awaitable[Result]]]] = {
    "Weft, native gangs": _of_weft(GangMethod.NATIVE),
    "Weft, gates": _of_weft(GangMethod.GATES),
    "native gangs": partial(_by_hand, gangs=True),
    "plain pods": partial(_by_hand, gangs=False),
    "Kubernetes Jobs": _kubernetes_jobs,
}


def scheduler_rows(results: Mapping[str, Sequence[Result]]) -> list[Row]:
    """What each way costs the scheduler."""
    rows = [
        Row(f"{way}: scheduler's tries per pod", [result.tries_per_pod for result in measured], "")
        for way, measured in results.items()
    ]
    return rows + [
        Row(f"{way}: scheduler's writes per pod", [result.scheduler_writes_per_pod for result in measured], "")
        for way, measured in results.items()
    ]


async def measure_all(
    machines: Cluster, ways: Sequence[str], *, jobs: int, pods: int, runs: int
) -> dict[str, list[Result]]:
    """Each way ``runs`` times, in turn."""
    results: dict[str, list[Result]] = {way: [] for way in ways}
    async with counting(machines.kubeconfig) as count:
        for _ in range(runs):
            for way in ways:
                results[way].append(await measure(machines, count, way, jobs, pods))
                print(f"  {way}: {results[way][-1]}", file=sys.stderr, flush=True)
    return results
