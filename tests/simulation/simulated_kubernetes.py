"""The cluster behind the simulated API server: scheduler, kubelets, controllers of nodes and garbage, and its checker.

A pod's process and helper are those of ``LearnerSimulator``. What a pod is on its node, and what the API server knows
of it, are two things here: a kubelet writes the status later, and one that is cut off writes nothing, while its
processes go on.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from services.core.adapters.kubernetes import names
from services.core.domain.errors import WeftError
from services.core.ports.cluster import Node
from services.metrics.attempts import Stop
from tests.documents import a_learner
from tests.simulation.api_server import (
    CONFIG_MAPS,
    NODES,
    POD_GROUPS,
    PODS,
    Answer,
    ApiServer,
    Document,
    Key,
    refusal,
)
from tests.simulation.pod_checker import PodChecker
from tests.simulation.pod_documents import (
    affinity_of,
    containers,
    is_gated,
    key_of,
    path_of,
    record_of_end,
    store_timeout_s,
)
from tests.simulation.simulated_api import PortCall
from tests.testbed.memory.cluster import Blocked, MemoryLearner

_RELAY_S: Final = 0.25
"""A helper learns so often whether its learner is to stop."""
_EVICTION_S: Final = 5.0
"""The toleration of learners' pods: they are deleted so long after the loss of their node is known."""
_SCHEDULE_S: Final = 1.0
_COLLECT_S: Final = 0.5
_DELETED: Final = "deleted"
"""Stop cause of a process that the kubelet ends because its pod is deleted. No record names it."""
_UNREACHABLE: Final = "node.kubernetes.io/unreachable"


@dataclass(eq=False)
class PodLearner(MemoryLearner):
    """A learner in a pod."""

    key: Key = ("", "")
    uid: str = ""
    running: bool = False
    """Its containers run, or have run."""
    ended: bool = False
    """Its containers have ended."""
    grace_s: float | None = None
    """The shortest grace period of its deletion that its kubelet knows."""
    sync: Callable[[PodLearner], None] = lambda _: None
    """Called after each change."""

    def notify(self) -> None:
        super().notify()
        self.sync(self)


class SimulatedKubernetes:
    """The cluster of one seed. It has the parts of ``MemoryCluster`` that learners and faults use."""

    def __init__(
        self,
        nodes: Sequence[Node],
        checker: PodChecker,
        chance: random.Random,
        *,
        now_ms: Callable[[], int],
        native_gangs: bool,
    ) -> None:
        self._checker, self._chance, self.now_ms, self._native_gangs = checker, chance, now_ms, native_gangs
        self.server = ApiServer(now_ms, native_gangs=native_gangs)
        self.server.on_change, self.server.admit = self._on_change, self._admit
        self.on_spawn: Callable[[MemoryLearner], None] = lambda _: None
        self.on_gone: Callable[[MemoryLearner], None] = lambda _: None
        self.on_start: Callable[[MemoryLearner], None] = lambda _: None
        self.on_end: Callable[[MemoryLearner], None] = lambda _: None
        self.on_cut_off: Callable[[MemoryLearner], None] = lambda _: None
        self.stop_of: Callable[[MemoryLearner], Awaitable[Stop | None]]
        """What the metrics service says to the learner's helper."""
        self.silence: Callable[[MemoryLearner], None]
        """Its helper reports nothing any more."""
        self.end_helper: Callable[[MemoryLearner], None]
        """Its helper ends."""
        self.cut_off: Callable[[MemoryLearner], None]
        """Its helper does not reach the platform for a while."""
        self.on_next_bound: Callable[[str], None] = lambda _: None
        """Called with the job of the next pod that is bound."""
        self.blocked: dict[tuple[str, int], Blocked] = {}
        self.hides_activation = False
        self.departs = False
        """Its scheduler takes another node than the preferred one where it can, as for rules of its own."""
        self.pace = 1.0
        """Images that are pulled from now on take this share of their time."""
        self.start_s: float | None = None
        """Seconds from the binding of a pod to the start of its containers; None: by chance."""
        self._nodes = {node.name: node for node in nodes}
        self._learners: dict[str, PodLearner] = {}
        """By the pod's uid, as long as the pod or its processes exist."""
        self._lost: dict[str, bool] = {}
        """Nodes that the control plane does not reach -> whether their processes go on."""
        self._lost_at: dict[str, float] = {}
        self._refusals: set[tuple[str, str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        for node in nodes:
            room = {"cpu": str(node.cpus), "memory": str(node.memory), "nvidia.com/gpu": str(node.gpus)}
            ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": room}
            document: Document = {"metadata": {"name": node.name, "labels": {}}, "spec": {}, "status": ready}
            self.server.put(NODES, ("", node.name), document)
        for work in (self._keep_scheduling(), self._keep_collecting()):
            self._background(work)

    # --- what the simulation does with it ------------------------------------------------

    def steps(self) -> Sequence[str]:
        return ("reserve", "learners", "activate")

    def refuse(self, step: str, error: WeftError, *, attempt: int, job: str) -> None:
        """The tenant's quota refuses objects of this step."""
        self._refusals.add((step, job, attempt))

    def notify(self, job_id: str) -> None:
        """Nothing: changes come to the services through watches."""

    def leftovers(self) -> list[str]:
        """Returns the objects of jobs that exist."""
        return [
            f"{collection.rpartition('/')[2]} {key[1]}"
            for collection, key, document in self.server.everything()
            if names.label(document, names.JOB)
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(_raise_error)

    def _later(self, least_s: float, most_s: float, work: Callable[..., None], *args: Any) -> None:
        asyncio.get_running_loop().call_later(self._chance.uniform(least_s, most_s), work, *args)

    # --- changes of objects -----------------------------------------------------------------

    def _admit(self, collection: str, document: Document, call: PortCall | None) -> Answer | None:
        """The quota: of an attempt that is refused in a step, the step's objects of one learner, or its Secret."""
        job, attempt = names.label(document, names.JOB), names.attempt_of(document)
        kinds = {"reserve": "/secrets", "learners": "/pods", "activate": "/pods"}
        for step, refused_job, refused_attempt in self._refusals:
            is_meant = (refused_job, refused_attempt) == (job, attempt) and collection.endswith(kinds[step])
            if is_meant and (collection != PODS or names.label(document, names.RANK) == "0"):
                return refusal(403, "Forbidden", f"{document['metadata']['name']} is forbidden: exceeded quota: weft")
        return None

    def _on_change(
        self, collection: str, before: Document | None, after: Document | None, call: PortCall | None
    ) -> None:
        if collection == PODS:
            self._on_pod(before, after, call)
        elif collection == CONFIG_MAPS and before is not None:
            self._on_owner(before, after, call)

    def _on_owner(self, before: Document, after: Document | None, call: PortCall | None) -> None:
        if after is None:
            for learner in self._of(names.label(before, names.JOB)):
                pod = self._pod(learner)
                if pod is not None and is_gated(pod) and not self._is_owned(pod):
                    self._checker.orphaned(learner)
        elif call is not None and names.annotation(before, names.STOP) != names.annotation(after, names.STOP):
            learners = [learner for learner in self._of(call.job) if learner.attempt == call.attempt]
            alive = [learner.name for learner in learners if learner.state in {"running", "waiting"}]
            self._checker.stop_marked(call.job, call.attempt, call.term, call.cause, alive)

    def _on_pod(self, before: Document | None, after: Document | None, call: PortCall | None) -> None:
        if before is None:
            assert after is not None
            self._on_created(after)
            return
        learner = self._learners.get(before["metadata"]["uid"])
        if learner is None:
            return
        if after is None:
            self._check_deletion(learner, call)
            self._on_removed(learner)
            return
        if is_gated(before) and not is_gated(after):
            pair = (call.attempt, call.term) if call is not None else None
            term = names.term_of(before)
            self._checker.activated(learner, pair, term=term, stopped=bool(names.annotation(after, names.STOP)))
            self._later(0.005, 0.1, self._schedule)
        if (grace_s := after["metadata"].get("deletionGracePeriodSeconds")) is not None and (
            learner.grace_s is None or grace_s < learner.grace_s
        ):
            self._check_deletion(learner, call)
            self._later(0.005, 0.2, self._end_pod, learner, grace_s)

    def _check_deletion(self, learner: PodLearner, call: PortCall | None) -> None:
        if call is not None and call.name == "teardown":
            self._checker.deleted(learner, call.attempt, call.term)
        elif call is not None and call.name == "do":
            self._checker.replaced(learner)

    def _on_created(self, pod: Document) -> None:
        metadata = pod["metadata"]
        job, attempt = names.label(pod, names.JOB), names.attempt_of(pod)
        plan = a_learner(
            names.label(pod, names.LEARNER),
            rank=int(names.label(pod, names.RANK)),
            node="",
            run=names.run_of(pod),
            **json.loads(names.annotation(pod, names.SIZE)),
        )
        cluster: Any = self
        learner = PodLearner(plan, job, attempt, cluster, key=key_of(pod), uid=metadata["uid"], sync=self._sync)
        self._learners[metadata["uid"]] = learner
        self._checker.made(learner, owned=self._is_owned(pod))
        if not is_gated(pod):
            self._checker.activated(learner, None, term=0, stopped=False)

    def _on_removed(self, learner: PodLearner) -> None:
        """The pod is gone from the API server. On a node that is cut off its processes go on."""
        survives = learner.running and not learner.ended
        if survives and learner.plan.node in self._lost:
            self._checker.died(learner)  # as far as anything can be known
        elif survives:
            self._later(0.1, 1.0, self._kill_removed, learner)
        else:
            self._learners.pop(learner.uid, None)
            learner.ended = True
        self.on_gone(learner)

    def _kill_removed(self, learner: PodLearner) -> None:
        """Its pod was removed by force: the kubelet sees it later, and ends what runs."""
        self._learners.pop(learner.uid, None)
        if not learner.ended:
            learner.stop(_DELETED, 0)
            learner.ended = True

    def _of(self, job: str) -> list[PodLearner]:
        return [learner for learner in self._learners.values() if learner.job == job]

    def _pod(self, learner: PodLearner) -> Document | None:
        """The learner's pod; None if it is gone."""
        pod = self.server.objects(PODS).get(learner.key)
        return pod if pod is not None and pod["metadata"]["uid"] == learner.uid else None

    def _is_owned(self, document: Document) -> bool:
        """True if its owner, if it has one, exists."""
        references = document["metadata"].get("ownerReferences") or ()
        living = {owner["metadata"]["uid"] for owner in self.server.objects(CONFIG_MAPS).values()}
        return all(reference["uid"] in living for reference in references)

    # --- the scheduler ----------------------------------------------------------------------

    async def _keep_scheduling(self) -> None:
        while True:
            await asyncio.sleep(_SCHEDULE_S)
            self._schedule()

    def _schedule(self) -> None:
        """Binds pods that fit: each by itself, those of a native gang all or none."""
        waiting: dict[str, list[Document]] = {}
        for pod in self.server.objects(PODS).values():
            if pod["spec"].get("nodeName") or is_gated(pod) or pod["metadata"].get("deletionTimestamp"):
                continue
            group = pod["spec"].get("schedulingGroup", {}).get("podGroupName", "")
            waiting.setdefault(group or pod["metadata"]["name"], []).append(pod)
        for group, pods in waiting.items():
            least = 1
            if pods[0]["spec"].get("schedulingGroup"):
                document = self.server.objects(POD_GROUPS).get((pods[0]["metadata"]["namespace"], group))
                if document is None:
                    continue
                least = document["spec"]["schedulingPolicy"]["gang"]["minCount"] - self._bound(group)
            places = self._places(pods) if len(pods) >= least else None
            for pod in pods:
                if places is not None:
                    self._bind(pod, places[pod["metadata"]["name"]])
                elif len(pods) >= least:
                    self._mark_unschedulable(pod)

    def _bound(self, group: str) -> int:
        """How many pods of a gang are bound."""
        return sum(
            pod["spec"].get("schedulingGroup", {}).get("podGroupName") == group and bool(pod["spec"].get("nodeName"))
            for pod in self.server.objects(PODS).values()
        )

    def _places(self, pods: Sequence[Document]) -> Mapping[str, str] | None:
        """Pod -> node for all of them; None where one does not fit."""
        free = {name: [node.cpus, node.gpus] for name, node in self._nodes.items() if name not in self._lost_at}
        for learner in self._learners.values():
            if learner.plan.node in free and self._pod(learner) is not None:
                free[learner.plan.node][0] -= learner.plan.cpus
                free[learner.plan.node][1] -= learner.plan.gpus
        places: dict[str, str] = {}
        for pod in pods:
            plan = self._learners[pod["metadata"]["uid"]].plan
            required, preferred = affinity_of(pod)
            candidates = [name for name in free if not required or name == required]
            candidates.sort(key=lambda name: (name == preferred) is self.departs)
            fits = [name for name in candidates if free[name][0] >= plan.cpus and free[name][1] >= plan.gpus]
            if not fits:
                return None
            places[pod["metadata"]["name"]] = fits[0]
            free[fits[0]][0] -= plan.cpus
            free[fits[0]][1] -= plan.gpus
        return places

    def _bind(self, pod: Document, node: str) -> None:
        learner = self._learners[pod["metadata"]["uid"]]
        learner.plan = replace(learner.plan, node=node)
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.server.timestamp()}
        status = {"conditions": [bound], **containers("waiting", {"reason": "PodInitializing"})}
        self.server.change(PODS, learner.key, {"spec": {"nodeName": node}, "status": status})
        self._checker.bound(learner)
        on_bound, self.on_next_bound = self.on_next_bound, lambda _: None
        on_bound(learner.job)
        if node in self._lost:
            self._checker.learner_lost(learner)
        if self.start_s is not None:
            self._later(self.start_s, self.start_s, self._start_containers, learner)
            return
        pulls_s = self.pace * self._chance.choice([0.3, 0.3, 0.6, 3.0])
        self._later(0.02, pulls_s, self._start_containers, learner)

    def _mark_unschedulable(self, pod: Document) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}
        if (pod.get("status") or {}).get("conditions") != [condition]:
            self.server.change(PODS, key_of(pod), {"status": {"conditions": [condition]}})

    # --- kubelets ----------------------------------------------------------------------------

    def _start_containers(self, learner: PodLearner) -> None:
        pod = self._pod(learner)
        if pod is None or pod["metadata"].get("deletionTimestamp") or learner.plan.node in self._lost or learner.ended:
            return
        learner.running = learner.active = True
        self._write_status(learner, "Running", containers("running", {"startedAt": self.server.timestamp()}))
        self.on_spawn(learner)
        self._background(self._relay_stops(learner))

    async def _relay_stops(self, learner: PodLearner) -> None:
        """Does what a helper does with a stop that the metrics service relays."""
        while learner.exit is None and not learner.ended:
            await asyncio.sleep(_RELAY_S)
            stop = await self.stop_of(learner)
            if stop is not None and not learner.ended:
                learner.stop(stop.cause, stop.grace_ms)

    def _sync(self, learner: PodLearner) -> None:
        """After a change of the process or the helper: ends the containers once all is stored, or it takes too long."""
        if learner.exit is None or learner.ended:
            return
        if learner.exit.lost:
            self._shut_down(learner)
        elif learner.stored:
            self._later(0.01, 0.2, self._end_containers, learner)
        else:
            store_s = store_timeout_s(self._pod(learner))
            asyncio.get_running_loop().call_later(store_s, self._end_containers, learner)

    def _end_containers(self, learner: PodLearner) -> None:
        """The containers end with the record of the process."""
        if learner.ended or learner.exit is None:
            return
        learner.ended = True
        self.end_helper(learner)
        exited = learner.exit
        recorded = replace(exited, stop_cause="") if exited.stop_cause == _DELETED else exited
        state = {
            "exitCode": recorded.shell_code,
            "message": json.dumps(record_of_end(recorded)),
            "startedAt": self.server.timestamp(),
            "finishedAt": self.server.timestamp(),
        }
        report = {"phase": "STORED", "reason": learner.reason, "message": learner.message} if learner.stored else {}
        ended = containers("terminated", state, helper={"exitCode": 0, "message": json.dumps(report)})
        self._write_status(learner, "Succeeded" if recorded.shell_code == 0 else "Failed", ended)
        self._finish_deletion(learner)

    def _shut_down(self, learner: PodLearner) -> None:
        """Its node shuts down: the pod's status says so, and nobody knows how its process ended."""
        if learner.ended:
            return
        learner.ended = True
        self.end_helper(learner)
        ended = containers("terminated", {"exitCode": 137, "reason": "ContainerStatusUnknown"})
        self._write_status(learner, "Failed", ended, reason="Terminated", message="the node is shut down")
        self._finish_deletion(learner)

    def _end_pod(self, learner: PodLearner, grace_s: float) -> None:
        """A pod is deleted: its kubelet, if the server reaches it, ends its containers within the grace period."""
        if learner.plan.node in self._lost or (learner.grace_s is not None and learner.grace_s <= grace_s):
            return
        learner.grace_s = grace_s
        if not learner.running or learner.ended:
            learner.ended = True
            self._finish_deletion(learner)
            return
        if learner.exit is None:
            self.silence(learner)
            learner.stop(_DELETED, round(1000 * min(grace_s, 1.0)))
        asyncio.get_running_loop().call_later(grace_s, self._kill_pod, learner)

    def _kill_pod(self, learner: PodLearner) -> None:
        if not learner.ended and learner.plan.node not in self._lost:
            if learner.exit is None:
                learner.stop(_DELETED, 0)
            self._end_containers(learner)

    def _finish_deletion(self, learner: PodLearner) -> None:
        """Removes the pod if it is deleted and its containers have ended."""
        pod = self._pod(learner)
        if pod is None:
            self._learners.pop(learner.uid, None)
            self.on_gone(learner)
        elif pod["metadata"].get("deletionTimestamp"):
            self._later(0.01, 0.3, self._confirm_deletion, learner)

    def _confirm_deletion(self, learner: PodLearner) -> None:
        if self._pod(learner) is not None and learner.plan.node not in self._lost:
            self.server.remove(PODS, learner.key)

    def _write_status(self, learner: PodLearner, phase: str, statuses: Document, **reason: str) -> None:
        """Writes the status of a pod, unless its node is cut off: then it is written when the node returns."""
        pod = self._pod(learner)
        if pod is None or learner.plan.node in self._lost:
            return
        kept = [entry for entry in pod["status"]["conditions"] if entry["type"] != "Ready"]
        ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
        status = {"phase": phase, "conditions": [*kept, ready], **statuses, **reason}
        self.server.change(PODS, learner.key, {"status": status})
        if phase != "Running":
            self._checker.recorded(learner)

    # --- nodes ---------------------------------------------------------------------------------

    def lose_node(self, name: str, *, cut_off: bool) -> None:
        """The control plane does not reach the node any more. ``cut_off``: its processes go on."""
        if name in self._lost:
            return
        self._lost[name] = cut_off
        for learner in list(self._learners.values()):
            if learner.plan.node == name and not learner.ended:
                self._checker.learner_lost(learner)
                if cut_off:
                    self.cut_off(learner)
                elif learner.running:
                    learner.ended = True
                    self.end_helper(learner)
                    self._checker.died(learner)
        self._later(0.5, 2.0, self._notice_loss, name)

    def _notice_loss(self, name: str) -> None:
        """The node's controller: the node is tainted, its pods are not ready, and are evicted later."""
        if name not in self._lost or name in self._lost_at:
            return
        self._lost_at[name] = asyncio.get_running_loop().time()
        taints = [{"key": _UNREACHABLE, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
        conditions = [{"type": "Ready", "status": "Unknown"}]
        self.server.change(NODES, ("", name), {"spec": {"taints": taints}, "status": {"conditions": conditions}})
        for pod in self._pods_on(name):
            kept = [entry for entry in pod["status"]["conditions"] if entry["type"] != "Ready"]
            ready = {"type": "Ready", "status": "False"}
            self.server.change(PODS, key_of(pod), {"status": {"conditions": [*kept, ready]}})
        asyncio.get_running_loop().call_later(_EVICTION_S, self._evict_from, name, self._lost_at[name])

    def _evict_from(self, name: str, since: float) -> None:
        if self._lost_at.get(name) != since:
            return
        for pod in self._pods_on(name):
            disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
            self.server.change(PODS, key_of(pod), {"status": {"conditions": [*pod["status"]["conditions"], disrupted]}})
            self.server.handle("DELETE", path_of(pod), {}, {}, "", None)

    def return_node(self, name: str) -> None:
        """The node is reached again. Of pods that were deleted meanwhile it ends what goes on."""
        cut_off = self._lost.pop(name, None)
        self._lost_at.pop(name, None)
        if cut_off is None:
            return
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.server.change(NODES, ("", name), {"spec": {"taints": None}, "status": ready})
        for learner in list(self._learners.values()):
            if learner.plan.node == name:
                self._return_pod(learner, cut_off=cut_off)

    def _return_pod(self, learner: PodLearner, *, cut_off: bool) -> None:
        """What its kubelet does with a pod when it reaches the server again."""
        pod, learner.grace_s = self._pod(learner), None
        if pod is None:  # removed without it
            if learner.exit is None and cut_off:
                learner.stop(_DELETED, 0)
            learner.ended = True
            self._finish_deletion(learner)
        elif not cut_off and learner.running:
            ended = containers("terminated", {"exitCode": 137, "reason": "ContainerStatusUnknown"})
            learner.ended = True
            self._write_status(learner, "Failed", ended)
            self._finish_deletion(learner)
        elif (grace_s := pod["metadata"].get("deletionGracePeriodSeconds")) is not None:
            self._end_pod(learner, grace_s)
        elif not learner.running:
            self._later(0.02, 0.6, self._start_containers, learner)
        elif learner.ended and learner.exit is not None:
            learner.ended = False  # it has ended meanwhile: the status is written now
            self._end_containers(learner)
        else:
            self._write_status(learner, "Running", containers("running", {"startedAt": self.server.timestamp()}))

    def _pods_on(self, node: str) -> list[Document]:
        return [pod for pod in self.server.objects(PODS).values() if pod["spec"].get("nodeName") == node]

    def lose_learner(self, learner: MemoryLearner) -> None:
        """Somebody removes the pod by force, and its kubelet ends its processes at once."""
        assert isinstance(learner, PodLearner)
        self._checker.learner_lost(learner)
        self._checker.died(learner)
        learner.ended = True
        self.server.remove(PODS, learner.key)

    # --- garbage -------------------------------------------------------------------------------

    async def _keep_collecting(self) -> None:
        """Removes what belongs to no living owner, and gang objects that no pod needs any more."""
        while True:
            await asyncio.sleep(_COLLECT_S)
            for collection, key, document in list(self.server.everything()):
                if not self._is_owned(document) and self._chance.random() < 0.5:
                    deletes = (
                        f"{collection.rpartition('/')[0]}/namespaces/{key[0]}/{collection.rpartition('/')[2]}/{key[1]}"
                    )
                    self.server.handle("DELETE", deletes, {}, {}, "", None)
            for key, group in list(self.server.objects(POD_GROUPS).items()):
                if group["metadata"].get("deletionTimestamp") and not self._members(key[1]):
                    self.server.remove(POD_GROUPS, key)

    def _members(self, group: str) -> bool:
        pods = self.server.objects(PODS).values()
        return any(pod["spec"].get("schedulingGroup", {}).get("podGroupName") == group for pod in pods)


def _raise_error(task: asyncio.Task[None]) -> None:
    """Raises the error of a controller: it is a bug of the simulation."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise AssertionError("a simulated controller is broken") from error
