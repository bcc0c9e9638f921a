"""Twenty kinds of failure, provoked on real kubelets: each has its own reason and says what to do.

Several are provoked at once. The cluster's own objects are read until they show a failure; the adapter, read after each
hint of its watch as a Guardian does, must name it soon after. What cannot be provoked here is in docs/limits.md;
tests/unit/test_kubernetes_observed.py has its texts.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import Api, Document
from services.core.adapters.kubernetes.options import GangMethod, KubernetesOptions
from services.core.domain.errors import Unavailable, WeftError, row
from services.core.domain.failure import describe_failure, failed
from services.core.domain.plan import AttemptPlan
from services.core.ports.cluster import Observation
from services.guardian.observed_state import merge
from tests.testbed.gangs import start
from tests.testbed.kubernetes.cluster import Cluster as Machines
from tests.testbed.kubernetes.kubectl import Kubectl, KubectlError
from tests.testbed.kubernetes.options import OPTIONS
from tests.testbed.kubernetes.pods import script_pod
from tests.testbed.kubernetes.stand_in import AnnouncingCluster, StandIn, pods_of, standing_in
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.testbed.node import plan
from tests.waiting import HANG_S, eventually, in_thread, until

# Of an installation without admission policies: failures are provoked that they refuse.
_OPTIONS: Final = replace(OPTIONS, installation="failures", namespace_prefix="failures-")

FOREVER: Final = "exec sleep 1000"
STUBBORN: Final = "trap '' TERM; while :; do sleep 0.1; done"
_POLL_S: Final = 0.2
_AT_ONCE: Final = 8
"""More would measure how busy the API server is."""
KNOWN_S: Final = 2.0
"""The platform knows of a failure so many seconds after the cluster."""
Say = Callable[[str], None]
Alter = Callable[[Document], None]


class Webhook(Api):
    """An API server whose operator has a webhook that alters pods."""

    def __init__(self, machines: Machines, alter: Alter) -> None:
        super().__init__(machines.kubeconfig)
        self._alter = alter

    async def create(self, path: str, document: Document) -> Document:
        if document["kind"] == "Pod":
            document = json.loads(json.dumps(document))
            self._alter(document)
        return await super().create(path, document)


@dataclass(frozen=True)
class Outcome:
    """What a user reads of a failure."""

    reason: str
    message: str
    delay_s: float = 0.0
    """Between the cluster's own objects and the adapter's hint."""


@dataclass(frozen=True)
class Case:
    """One kind of failure."""

    reason: str
    says: tuple[str, ...]
    """Parts of the message: what happened, and what to do."""
    shows: str = ""
    """What the pod or its events contain once the cluster knows; empty: a call is refused."""
    command: str = FOREVER
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of the plan's learner."""
    grace: int = 1_000
    """Milliseconds that a command gets to end: so long its pod is there."""
    image: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    alter: Alter = lambda _: None
    objects: Callable[[str], list[Document]] = lambda _: []
    """What the operator or another user has made before, in this namespace."""
    then: Callable[[Scene, AttemptPlan], Awaitable[None]] | None = None
    """What happens to the learner once it runs."""


@dataclass
class Scene:
    machines: Machines
    api: Api
    cluster: AnnouncingCluster
    namespace: str

    @property
    def kubectl(self) -> Kubectl:
        return replace(self.machines.kubectl, namespace=self.namespace)

    async def pod(self, gang: AttemptPlan) -> Document | None:
        return (await pods_of(self.api, _OPTIONS, gang.job)).get("worker-0")

    async def node_of(self, gang: AttemptPlan) -> str:
        """Where its learner is."""
        pod = await self.pod(gang)
        assert pod is not None
        return str(pod["spec"]["nodeName"])


# --- what happens to learners that run ------------------------------------------------------------


async def evicted_by_api(scene: Scene, gang: AttemptPlan) -> None:
    pod = names.pod_name(gang, gang.learners[0])
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    await scene.api.create(f"/api/v1/namespaces/{scene.namespace}/pods/{pod}/eviction", eviction)


async def deleted_by_somebody(scene: Scene, gang: AttemptPlan) -> None:
    pod = names.pod_name(gang, gang.learners[0])
    await asyncio.to_thread(scene.kubectl, "delete", "pod", pod, "--grace-period=20", "--wait=false")


async def deleted_by_force(scene: Scene, gang: AttemptPlan) -> None:
    pod = names.pod_name(gang, gang.learners[0])
    await asyncio.to_thread(scene.kubectl, "delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")


async def preempted(scene: Scene, gang: AttemptPlan) -> None:
    """A pod of a higher priority wants all GPUs of the learner's node."""
    selector = {"kubernetes.io/hostname": await scene.node_of(gang)}
    gpus = {"nvidia.com/gpu": "4"}
    pod = script_pod("urgent", _OPTIONS.learner_image, FOREVER, limits=gpus, nodeSelector=selector)
    pod["spec"]["priorityClassName"] = "urgent"
    scene.kubectl.create(pod)


# --- what an operator's webhook changes -----------------------------------------------------------


def learner_container(pod: Document) -> Document:
    containers: list[Document] = pod["spec"]["containers"]
    return containers[0]


def missing_configuration(pod: Document) -> None:
    learner_container(pod)["envFrom"] = [{"configMapRef": {"name": "site-settings"}}]


def never_pulled(pod: Document) -> None:
    learner_container(pod)["imagePullPolicy"] = "Never"


def other_shell(pod: Document) -> None:
    learner_container(pod)["command"][0] = "/bin/no-such-shell"


def limited_in_time(pod: Document) -> None:
    pod["spec"]["activeDeadlineSeconds"] = 3


def missing_volume(pod: Document) -> None:
    pod["spec"]["volumes"].append({"name": "site", "persistentVolumeClaim": {"claimName": "site-data"}})


def missing_secret(pod: Document) -> None:
    pod["spec"]["volumes"].append({"name": "site", "secret": {"secretName": "site-token"}})
    learner_container(pod)["volumeMounts"].append({"name": "site", "mountPath": "/site"})


# --- what the operator has made -------------------------------------------------------------------


def a_quota(namespace: str) -> list[Document]:
    return [_object("ResourceQuota", namespace, {"hard": {"requests.cpu": "10m"}})]


def a_limit_range(namespace: str) -> list[Document]:
    return [_object("LimitRange", namespace, {"limits": [{"type": "Container", "max": {"cpu": "20m"}}]})]


def a_policy(namespace: str) -> list[Document]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    policy = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": selector},
        "validations": [{"expression": "false", "message": "no pods of this department today"}],
    }
    group = "admissionregistration.k8s.io/v1"
    return [
        _object("ValidatingAdmissionPolicy", "", policy, group),
        _object(
            "ValidatingAdmissionPolicyBinding", "", {"policyName": "operator", "validationActions": ["Deny"]}, group
        ),
    ]


def a_runtime_class(_: str) -> list[Document]:
    document = _object("RuntimeClass", "", {}, "node.k8s.io/v1")
    del document["spec"]
    return [document | {"handler": "no-such-handler"}]


def a_priority(_: str) -> list[Document]:
    document = _object("PriorityClass", "", {}, "scheduling.k8s.io/v1")
    del document["spec"]
    document["metadata"]["name"] = "urgent"
    return [document | {"value": 1_000_000}]


def _object(kind: str, namespace: str, spec: Document, group: str = "v1") -> Document:
    metadata = {"name": "operator"} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": spec}


NO_GANG: Final = {"gang": GangMethod.GATES}
CASES: Final[dict[str, Case]] = {
    "registry away": Case(
        "ImagePullFailed",
        ("127.0.0.1:9", "check the image's name and tag"),
        "ErrImagePull",
        image="127.0.0.1:9/none:1",
    ),
    "name of no image": Case(
        "ImagePullFailed", ("couldn't parse image", "check the image's name"), "InvalidImageName", image="A:B:C"
    ),
    "image that the node may not pull": Case(
        "ImagePullFailed",
        ("not present with pull policy of Never", "may pull it"),
        "ErrImageNeverPull",
        image="testbed.invalid/none:1",
        alter=never_pulled,
    ),
    "image without the program": Case(
        "ImageUnusable", ("no such file", "the image needs /bin/sh"), '"StartError"', alter=other_shell
    ),
    "too few GPUs": Case(
        "Unschedulable",
        ("2 Insufficient nvidia.com/gpu", "ask for less"),
        "Insufficient nvidia.com/gpu",
        fields={"gpus": 5},
        options=NO_GANG,
    ),
    "too little memory": Case(
        "Unschedulable",
        ("2 Insufficient memory", "ask for less"),
        "Insufficient memory",
        fields={"memory": 2**50},
        options=NO_GANG,
    ),
    "too few CPUs": Case(
        "Unschedulable",
        ("2 Insufficient cpu", "ask for less"),
        "Insufficient cpu",
        fields={"cpus": 5000},
        options=NO_GANG,
    ),
    "no GPU of this type": Case(
        "Unschedulable",
        ("affinity", "have nodes added"),
        "node affinity",
        fields={"gpus": 1, "gpu_type": "Other"},
        options=NO_GANG,
    ),
    "claim of a volume that is not there": Case(
        "Unschedulable",
        ('persistentvolumeclaim "site-data" not found',),
        "site-data",
        alter=missing_volume,
        options=NO_GANG,
    ),
    "runtime that the node does not have": Case(
        "SandboxFailed",
        ("no-such-handler", "the node cannot start containers"),
        "FailedCreatePodSandBox",
        options={"runtime_class": "operator"},
        objects=a_runtime_class,
    ),
    "volume that cannot be mounted": Case(
        "MountFailed",
        ('secret "site-token" not found', "a volume cannot be mounted"),
        "FailedMount",
        alter=missing_secret,
    ),
    "configuration that is not there": Case(
        "ConfigMissing",
        ('configmap "site-settings" not found', "submit the job again"),
        "CreateContainerConfigError",
        alter=missing_configuration,
    ),
    "quota": Case("QuotaExceeded", ("exceeded quota", "requests.cpu"), objects=a_quota),
    "limit range": Case("AdmissionDenied", ("maximum cpu usage per Container",), objects=a_limit_range),
    "policy of the operator": Case("AdmissionDenied", ("no pods of this department today",), objects=a_policy),
    "exit code": Case("ExitCode", ("worker-0 exited with code 3", "see its log"), '"exitCode": 3', "exit 3"),
    "signal": Case("Signalled", ("ended by SIGSEGV", "see its log"), '"exitCode": 139', "kill -SEGV $$"),
    "program that is not there": Case(
        "ExitCode", ("exited with code 127", "see its log"), '"exitCode": 127', "no-such-program"
    ),
    "memory": Case(
        "OOMKilled",
        ("ran out of memory", "raise resources.memory"),
        '"exitCode": 137',
        "tail /dev/zero",
        fields={"memory": 2**26},
    ),
    "eviction": Case(
        "Evicted",
        ("Eviction API", "tell the operator"),
        "EvictionByEvictionAPI",
        STUBBORN,
        grace=20_000,
        then=evicted_by_api,
    ),
    "preemption": Case(
        "Preempted",
        ("preempt", "it is tried again"),
        "PreemptionByScheduler",
        STUBBORN,
        grace=20_000,
        fields={"gpus": 1},
        options=NO_GANG,
        objects=a_priority,
        then=preempted,
    ),
    "deadline of the cluster": Case(
        "PodDeadlineExceeded",
        ("active on the node longer", "limits how long pods run"),
        '"DeadlineExceeded"',
        alter=limited_in_time,
    ),
    "deletion": Case(
        "PodDeleted",
        ("somebody has deleted the pod", "it is tried again"),
        "gone",
        STUBBORN,
        grace=20_000,
        then=deleted_by_somebody,
    ),
    "deletion by force": Case("LearnerLost", ("disappeared",), "gone", then=deleted_by_force),
}


async def answered(call: Callable[[], Awaitable[None]]) -> None:
    """Calls again, as the platform does, while the API server does not answer."""
    async with asyncio.timeout(HANG_S):
        while True:
            with suppress(Unavailable):
                return await call()
            await asyncio.sleep(_POLL_S)


class Provoked:
    """Provokes one case. ``run`` returns what the user reads."""

    def __init__(self, machines: Machines, api: Api, case: Case, number: int) -> None:
        self._machines, self._api, self._case = machines, api, case
        self._tenant = f"failure{number}"
        self._options: KubernetesOptions = replace(_OPTIONS, **dict(case.options))

    async def run(self, status: MemoryStatusStore, hints: dict[str, asyncio.Event]) -> Outcome:
        cluster = AnnouncingCluster(Webhook(self._machines, self._case.alter), self._options, status)
        try:
            return await self._outcome(cluster, hints)
        finally:
            await cluster.close()

    async def _outcome(self, cluster: AnnouncingCluster, hints: dict[str, asyncio.Event]) -> Outcome:
        case = self._case
        await answered(lambda: cluster.prepare(self._tenant))
        namespace = names.namespace_of(self._tenant, self._options.namespace_prefix)
        scene = Scene(self._machines, self._api, cluster, namespace)
        objects = case.objects(namespace)
        gang = plan([case.command], tenant=self._tenant)
        fields = {"cpus": 0.05, "memory": 2**26, "node": "", **case.fields}
        gang = replace(gang, image=case.image, grace=case.grace, learners=(replace(gang.learners[0], **fields),))
        hints[gang.job] = asyncio.Event()
        try:
            if objects:
                await asyncio.to_thread(scene.kubectl.create, *objects)
            if not case.shows:
                await asyncio.to_thread(eventually, lambda: _is_refused(scene.kubectl, case.says[0]))
            return await self._observed(scene, gang, hints[gang.job]) if case.shows else await _refused(cluster, gang)
        finally:
            await answered(lambda: cluster.teardown(gang.job, attempt=1, term=2))
            for document in (entry for entry in objects if "namespace" not in entry["metadata"]):
                name = document["metadata"]["name"]
                await asyncio.to_thread(scene.kubectl, "delete", document["kind"], name, "--wait=false")
            await self._api.delete(f"/api/v1/namespaces/{namespace}")

    async def _observed(self, scene: Scene, gang: AttemptPlan, hint: asyncio.Event) -> Outcome:
        await answered(lambda: start(scene.cluster, gang))
        if self._case.then is not None:
            await until(lambda: _runs(scene, gang))
            then = self._case.then
            await answered(lambda: then(scene, gang))
        named = asyncio.create_task(self._named(scene, gang, hint))
        async with asyncio.timeout(HANG_S):
            while not await self._is_known(scene, gang):  # noqa: ASYNC110 - read apart from the adapter's watches
                await asyncio.sleep(_POLL_S)
        known_at = asyncio.get_running_loop().time()
        outcome, named_at = await named
        return replace(outcome, delay_s=max(0.0, named_at - known_at))

    async def _named(self, scene: Scene, gang: AttemptPlan, hint: asyncio.Event) -> tuple[Outcome, float]:
        """What the adapter says of the failure, and when it first did: as a Guardian, it looks after each hint."""
        outcome = Outcome("", "")
        with suppress(TimeoutError):
            async with asyncio.timeout(HANG_S):
                while outcome.reason != self._case.reason:
                    await hint.wait()
                    hint.clear()
                    try:
                        outcome = _outcome(await scene.cluster.observe(gang.job))
                    except Unavailable:
                        hint.set()
        return outcome, asyncio.get_running_loop().time()

    async def _is_known(self, scene: Scene, gang: AttemptPlan) -> bool:
        """Whether the cluster's own objects show the failure."""
        with suppress(Unavailable):
            return await self._shows(scene, gang)
        return False

    async def _shows(self, scene: Scene, gang: AttemptPlan) -> bool:
        pod = await scene.pod(gang)
        if pod is None or self._case.shows == "gone":
            return pod is None
        events, _ = await self._api.list(
            f"/api/v1/namespaces/{scene.namespace}/events", query={"fieldSelector": "type=Warning"}
        )
        return self._case.shows in json.dumps([pod["status"], events])


async def _runs(scene: Scene, gang: AttemptPlan) -> bool:
    """Whether its learner runs, as far as the API server answers."""
    with suppress(Unavailable):
        return [process.state for process in (await scene.cluster.observe(gang.job)).learners] == ["running"]
    return False


def _is_refused(kubectl: Kubectl, text: str) -> bool:
    """Whether the API server refuses a pod with this text.

    It admits pods until it has read a policy or a limit range, and until a controller has counted what a quota is for.
    """
    try:
        kubectl.create(script_pod("any", _OPTIONS.learner_image, FOREVER, limits={"cpu": "50m"}), dry_run=True)
    except KubectlError as error:
        return text in str(error)
    return False


async def _refused(cluster: AnnouncingCluster, gang: AttemptPlan) -> Outcome:
    try:
        await answered(lambda: start(cluster, gang))
    except WeftError as error:
        return Outcome("".join(word.capitalize() for word in row(error).code.split("-")), str(error))
    return Outcome("", "nothing was refused")


def _outcome(observed: Observation) -> Outcome:
    """The reason and the text that a Guardian derives from this observation; empty if nothing is wrong."""
    (process,) = observed.learners
    if process.blocked:
        return Outcome(process.blocked, process.blocked_message)
    learner = merge({"worker-0": 0}, 1, {}, observed).get("worker-0")
    if learner is None or not failed(learner):
        return Outcome("", process.state)
    return Outcome(*describe_failure(learner))


async def provoke_all(machines: Machines) -> dict[str, Outcome]:
    """What the user reads of each kind of failure."""
    status, hints = MemoryStatusStore(), dict[str, asyncio.Event]()
    async with AsyncExitStack() as stack:
        api = Api(machines.kubeconfig)
        stack.push_async_callback(api.close)
        await stack.enter_async_context(standing_in(StandIn(api, machines, _OPTIONS, status)))
        watching = AnnouncingCluster(Api(machines.kubeconfig), _OPTIONS, status)
        stack.push_async_callback(watching.close)

        async def follow() -> None:
            async for job in watching.watch():
                for known in [job] if job else list(hints):
                    if known in hints:
                        hints[known].set()

        task = asyncio.create_task(follow())
        cases = [Provoked(machines, api, case, number) for number, case in enumerate(CASES.values())]
        few = asyncio.Semaphore(_AT_ONCE)

        async def run(case: Provoked) -> Outcome:
            async with few:
                return await case.run(status, hints)

        results = await asyncio.gather(*map(run, cases), return_exceptions=True)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return {
        name: result if isinstance(result, Outcome) else Outcome("", repr(result))
        for name, result in zip(CASES, results, strict=True)
    }


@pytest.fixture(scope="module")
def outcomes(testbed_cluster: Machines) -> dict[str, Outcome]:
    return in_thread(lambda: provoke_all(testbed_cluster))


@pytest.mark.parametrize("name", CASES)
async def test_failure_is_named_with_what_to_do(name: str, outcomes: dict[str, Outcome]) -> None:
    case, outcome = CASES[name], outcomes[name]
    assert outcome.reason == case.reason, outcome.message
    for part in case.says:
        assert part in outcome.message


async def test_failures_are_known_two_seconds_after_the_cluster_knows(
    outcomes: dict[str, Outcome], announce: Say
) -> None:
    delays = [outcomes[name].delay_s for name, case in CASES.items() if case.shows]
    announce(f"cluster -> platform: median {statistics.median(delays):.2f} s, longest {max(delays):.2f} s")
    assert statistics.median(delays) < KNOWN_S
