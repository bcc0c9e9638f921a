"""A pod that is started before the first job, to find what would keep every job from running.

It is rendered as a learner's, without fences: it belongs to no job, and the services ignore it (``names.PROBE``). Its
helper tries the ways to the platform (services/helper/probe.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from services.core.adapters.kubernetes import names, objects, pods, reasons, tenants
from services.core.adapters.kubernetes.api import Api, Document, collection, gather, path_of
from services.core.adapters.kubernetes.entry_scripts import EntryScripts
from services.core.adapters.kubernetes.observed import container_state
from services.core.adapters.kubernetes.options import GangMethod, KubernetesOptions
from services.core.domain.codec import MALFORMED
from services.core.domain.errors import AdmissionDenied, NotFound, Unavailable, WeftError
from services.core.domain.plan import AttemptPlan, LearnerPlan
from services.core.runtime.pod_layout import HELPER_CONTAINER, LEARNER_CONTAINER, PROBE_VARIABLE

T = TypeVar("T")
_POLL_S: Final = 0.25
_START_S: Final = 180.0
"""For the node, the images and the helper: an image may be large."""
_LEFT: Final = ("Secret", "NetworkPolicy", "ConfigMap")
_CPUS: Final = 0.05
_MEMORY: Final = 2**26
Report = Callable[[str], None]

_NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("name", "connection", "certificate", "answer"), "metrics"),
    "objects": "object store",
}
_FIXES: Final[Mapping[str, str]] = {
    "name": "give an address, or a name that the cluster resolves: weft up --advertise HOST",
    "connection": "open the port in the firewall (WEFT_LEARNERS_PORT), or give another address of this machine: "
    "weft up --advertise HOST; WEFT_KUBERNETES_EGRESS must contain it",
    "certificate": "advertise the host by which pods reach this machine: weft up --advertise HOST",
    "answer": "see the log of the metrics service",
    "objects": "the endpoint of the object store must be reachable from pods, and within WEFT_KUBERNETES_EGRESS",
}
_PULL: Final = (
    "push the image to a registry that the nodes reach (weft up --registry HOST/PATH); a private one needs "
    "WEFT_KUBERNETES_PULL_SECRET_FILE or WEFT_KUBERNETES_PULL_SECRETS"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    """access | pod | image | metrics | object store."""
    problem: str = ""
    """Empty: it works."""
    fix: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem


async def probe(
    api: Api, options: KubernetesOptions, *, tenant: str, urls: Sequence[str], report: Report
) -> list[Check]:
    """Starts the pod in the tenant's namespace, waits for its report, and removes it.

    ``urls``: signed ones of an object that does not exist, in the object store. ``report``: called with each step.
    """
    space = names.namespace_of(tenant, options.namespace_prefix)
    try:
        report(f"checking the cluster with a pod in {space}")
        await tenants.prepare(api, tenant, options)
        await _remove(api, space)
        try:
            await _create(api, options, tenant, urls)
            return await _follow(api, options, space, report)
        finally:
            await asyncio.shield(_remove(api, space))
    except AdmissionDenied as error:
        return [Check(name="access", problem=str(error), fix="apply the output of `weft manifests` for these settings")]
    except WeftError as error:
        rights = "check the kubeconfig, and the rights of its account: `weft manifests`"
        return [Check(name="access", problem=str(error), fix=rights)]


def _plan(tenant: str) -> AttemptPlan:
    learner = LearnerPlan(
        name="probe-0",
        role="probe",
        rank=0,
        command="true",
        cpus=_CPUS,
        memory=_MEMORY,
        gpus=0,
        node="",
        token="probe",  # noqa: S106 - refused by every service
    )
    return AttemptPlan(
        job=names.PROBE,
        tenant=tenant,
        attempt=1,
        term=1,
        learners=(learner,),
        distribution="none",
        framework="",
        code_digest="",
        inputs=(),
        grace=0,
        store_timeout=0,
        checkpoint_keep=1,
    )


async def _create(api: Api, options: KubernetesOptions, tenant: str, urls: Sequence[str]) -> None:
    plan = _plan(tenant)
    await _allowed(partial(EntryScripts(api, options).ensure, tenant))
    owner = objects.owner(plan, options)
    uid = (await _created(api, owner))["metadata"]["uid"]
    for document in objects.owned(plan, options, uid):
        await _created(api, document)
    pod = pods.pod(plan, plan.learners[0], options, uid, gang=GangMethod.GATES)
    pod["spec"]["initContainers"][0]["env"].append({"name": PROBE_VARIABLE, "value": json.dumps({"urls": list(urls)})})
    present = await _created(api, pod)
    await api.patch(path_of(pod), pods.activation(present, plan.learners[0], options, gang=GangMethod.GATES))


async def _created(api: Api, document: Document) -> Document:
    return await _allowed(partial(api.create, path_of(document, of_collection=True), document))


async def _allowed(call: Callable[[], Awaitable[T]]) -> T:
    """Its result. New rights of the account take effect within a second: until then it is called again."""
    for last in (False, False, False, True):
        try:
            return await call()
        except Unavailable:
            if last:
                raise
            await asyncio.sleep(_POLL_S)
    raise AssertionError  # not reached


async def _follow(api: Api, options: KubernetesOptions, space: str, report: Report) -> list[Check]:
    path = collection("Pod", space, _pod_name())
    deadline = asyncio.get_running_loop().time() + _START_S
    reported_text = ""
    while True:
        pod = await api.get(path)
        problem = reasons.not_started(pod)
        text = _step(pod, options) if problem is None else f"{problem.reason}: {problem.text}"
        if text != reported_text:
            report(text)
            reported_text = text
        late = asyncio.get_running_loop().time() > deadline
        if problem is not None and (problem.final or late or problem.reason is reasons.PodReason.IMAGE_PULL_FAILED):
            return [_blocked(problem)]
        tried = _reported(pod)
        if tried is not None and _has_image(pod):
            return [Check(name="image"), *tried]
        if late:
            fix = f"kubectl get events -n {space}"
            return [Check(name="pod", problem=f"not ready after {_START_S:.0f} s: {text}", fix=fix)]
        await asyncio.sleep(_POLL_S)


def _pod_name() -> str:
    return f"{names.attempt_name(names.PROBE, 1)}-probe-0"


def _step(pod: Document, options: KubernetesOptions) -> str:
    """What the pod waits for, for people."""
    if not pod["spec"].get("nodeName"):
        return "waiting for a node"
    node = pod["spec"]["nodeName"]
    if _reported(pod) is not None:
        return f"{node} fetches {options.learner_image}"
    if container_state(pod, HELPER_CONTAINER, "running") is not None:
        return f"{node} has {options.helper_image}; the pod tries to reach this machine"
    return f"{node} fetches {options.helper_image}"


def _blocked(problem: reasons.Problem) -> Check:
    if problem.reason is reasons.PodReason.IMAGE_PULL_FAILED:
        return Check(name="image", problem=problem.text, fix=_PULL)
    return Check(name="pod", problem=f"{problem.reason}: {problem.text}", fix=problem.advice)


def _has_image(pod: Document) -> bool:
    """Whether the learner's container has its image: it runs, or has run."""
    return any(container_state(pod, LEARNER_CONTAINER, state) is not None for state in ("running", "terminated"))


def _reported(pod: Document) -> list[Check] | None:
    """The helper's report; None before it. The kubelet starts a helper that has ended again."""
    for container in (pod.get("status") or {}).get("initContainerStatuses") or ():
        ends: list[Any] = [container.get(key, {}).get("terminated") for key in ("state", "lastState")]
        for end in ends:
            if end is not None and (checks := _parsed(str(end.get("message", "")))) is not None:
                return checks
            if end is not None:
                return [Check(name="pod", problem=f"the helper ended with {end.get('exitCode')}", fix="see its log")]
    return None


def _parsed(message: str) -> list[Check] | None:
    try:
        tried = json.loads(message)["checks"]
    except MALFORMED:
        return None
    return [
        Check(name=_NAMES[name], problem=problem, fix=_FIXES[name] if problem else "")
        for name, problem in tried
        if name in _NAMES
    ]


async def _remove(api: Api, space: str) -> None:
    """Removes this probe and what is left of an earlier one. Returns when the pod is gone."""
    pod = collection("Pod", space, _pod_name())
    await api.delete(pod, grace_s=0)
    name = names.attempt_name(names.PROBE, 1)
    await gather([api.delete(collection(kind, space, name)) for kind in _LEFT])
    while True:
        try:
            await api.get(pod)
        except NotFound:
            return
        await asyncio.sleep(_POLL_S)
