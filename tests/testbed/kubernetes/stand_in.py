"""Plays what a platform does for pods: announces attempts, relays stops, and writes the helpers' reports.

The helpers are ``stand_in.sh``. They cannot reach a service of the test, so their reports are read from their logs, and
stops are written into their control volumes by kubectl.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import Api, Document, collection
from services.core.adapters.kubernetes.cluster import KubernetesCluster
from services.core.adapters.kubernetes.observed import container_state
from services.core.adapters.kubernetes.options import KubernetesOptions
from services.core.adapters.kubernetes.places import PODS
from services.core.domain.codec import dump, load
from services.core.domain.errors import Unavailable, WeftError
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.plan import AttemptPlan
from services.core.domain.status import Phase
from services.core.domain.status_keys import attempt_key, learner_key, stop_key
from services.core.ports.cluster import Node
from services.core.ports.pull_credentials import PullCredentials
from services.core.ports.status_store import StatusStore
from services.core.runtime.pod_layout import CONTROL, HELPER_CONTAINER
from tests.testbed.kubernetes.cluster import Cluster
from tests.testbed.kubernetes.kubectl import KubectlError
from tests.waiting import until

_POLL_S: Final = 0.1
_CONTROL: Final = f"cat > {CONTROL}/stop.tmp && mv {CONTROL}/stop.tmp {CONTROL}/stop.json && echo written"


class AnnouncingCluster(KubernetesCluster):
    """Announces each attempt before its first step, as its Guardian does."""

    def __init__(
        self,
        api: Api,
        options: KubernetesOptions,
        status: StatusStore,
        *,
        lcm: KubernetesCluster | None = None,
        credentials: PullCredentials | None = None,
    ) -> None:
        """``lcm``: with the lcm's rights, which prepares tenants and reads the capacity; None: ``api`` has them."""
        super().__init__(api, options, status, credentials=credentials)
        self._store, self._lcm = status, lcm
        self._announced: dict[str, int] = {}

    async def prepare(self, tenant: str) -> None:
        if self._lcm is None:
            await super().prepare(tenant)
            return
        await self._lcm.prepare(tenant)
        await until(lambda: self._has_rights(tenant))

    async def _has_rights(self, tenant: str) -> bool:
        """Whether the API server knows what the lcm has granted: it reads bindings after they are made."""
        try:
            await self._api.list(collection("ConfigMap", names.namespace_of(tenant, self._options.namespace_prefix)))
        except Unavailable:
            return False
        return True

    async def capacity(self) -> Sequence[Node]:
        return await (super().capacity() if self._lcm is None else self._lcm.capacity())

    async def close(self) -> None:
        await super().close()
        if self._lcm is not None:
            await self._lcm.close()

    async def do(self, step: str, plan: AttemptPlan) -> None:
        if plan.attempt > self._announced.get(plan.job, 0):
            self._announced[plan.job] = plan.attempt
            await self._store.put(attempt_key(plan.job), json.dumps({"attempt": plan.attempt, "learners": 1}))
        await super().do(step, plan)


@dataclass
class StandIn:
    """``obeys``: stops are relayed. False plays helpers that are cut off."""

    api: Api
    machines: Cluster
    options: KubernetesOptions
    status: StatusStore
    obeys: bool = True
    _reports: dict[str, LearnerStatus] = field(default_factory=dict)
    """By the pod's uid."""
    _stopped: dict[str, str] = field(default_factory=dict)
    """By the pod's uid: the last stop that was relayed."""

    async def run(self) -> None:
        """Relays until cancelled."""
        selector = names.of_jobs(self.options.installation)
        while True:
            try:
                pods, _ = await self.api.list(PODS, selector=selector)
                with_helper = [pod for pod in pods if container_state(pod, HELPER_CONTAINER, "waiting") is None]
                await asyncio.gather(*(self._relay(pod) for pod in with_helper if _has_helper(pod)))
            except WeftError:
                pass  # a pod that is just removed, or an API server that a test has killed
            await asyncio.sleep(_POLL_S)

    async def _relay(self, pod: Document) -> None:
        if self.obeys and container_state(pod, HELPER_CONTAINER, "running") is not None:
            await self._relay_stop(pod)
        log = await self.log(pod, HELPER_CONTAINER)
        report = _report(pod, log[: log.rfind("\n") + 1].splitlines())  # the last line may be cut off
        uid = pod["metadata"]["uid"]
        if report is not None and self._reports.get(uid) != report:
            self._reports[uid] = report
            job = names.label(pod, names.JOB)
            await self.status.put(learner_key(job, report.name), json.dumps(dump(report)))

    async def _relay_stop(self, pod: Document) -> None:
        entry = await self.status.get(stop_key(names.label(pod, names.JOB)))
        uid = pod["metadata"]["uid"]
        if entry is None or self._stopped.get(uid) == entry.value:
            return
        of_this = json.loads(entry.value)["attempt"] == names.attempt_of(pod)
        if of_this and await self.execute(pod, HELPER_CONTAINER, _CONTROL, text=entry.value):
            self._stopped[uid] = entry.value

    async def log(self, pod: Document, container: str) -> str:
        """Empty if it cannot be read, mostly as the pod is gone."""
        metadata = pod["metadata"]
        return await asyncio.to_thread(self.machines.log, metadata["namespace"], metadata["name"], container)

    async def execute(self, pod: Document, container: str, script: str, *, text: str = "") -> str:
        """Runs a shell script in a container. Returns its output."""
        metadata = pod["metadata"]
        command = ("exec", "-i", metadata["name"], f"--container={container}", "--", "sh", "-c", script)
        return await self.kubectl_in(metadata["namespace"], *command, text=text)

    async def kubectl_in(self, namespace: str, *arguments: str, text: str = "") -> str:
        """The output; empty if kubectl fails, mostly as the pod is gone."""
        try:
            return await asyncio.to_thread(replace(self.machines.kubectl, namespace=namespace), *arguments, text=text)
        except KubectlError:
            return ""


@asynccontextmanager
async def standing_in(stand_in: StandIn) -> AsyncGenerator[StandIn]:
    """It relays within the context. Raises what has ended it early: the learners after that look as if they hung."""
    task = asyncio.create_task(stand_in.run())
    try:
        yield stand_in
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def pods_of(api: Api, options: KubernetesOptions, job: str) -> dict[str, Document]:
    """The pods of a job by their learners' names."""
    pods, _ = await api.list(PODS, selector=names.of_job(job, options.installation))
    return {names.label(pod, names.LEARNER): pod for pod in pods}


def _has_helper(pod: Document) -> bool:
    return any(container_state(pod, HELPER_CONTAINER, state) is not None for state in ("running", "terminated"))


def _report(pod: Document, lines: Sequence[str]) -> LearnerStatus | None:
    """The report of a helper that has printed these lines; None before its learner has started or ended."""
    records: dict[str, Any] = {}
    for line in lines:
        kind, _, record = line.partition(" ")
        records[kind] = json.loads(record) if record else {}
    if not records:
        return None
    end = None
    if "exit" in records:
        fields = {name: value for name, value in records["exit"].items() if name not in {"schema", "run"}}
        end = load(Exit, fields)
    times = {Phase.PROCESSING.value: records["start"]["time"]} if "start" in records else {}
    phase = Phase.STORED if "stored" in records else Phase.STORING if end is not None else Phase.PROCESSING
    return LearnerStatus(
        name=names.label(pod, names.LEARNER),
        role=names.label(pod, names.ROLE),
        rank=int(names.label(pod, names.RANK)),
        attempt=names.attempt_of(pod),
        run=names.run_of(pod),
        seq=len(records),
        phase=phase,
        times=times,
        exit=end,
    )
