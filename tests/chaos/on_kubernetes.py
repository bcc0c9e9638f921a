"""``make chaos ON=kubernetes``: the platform with pods as learners, while the cluster's own processes are killed.

Kubelets, containerd, the scheduler, the controller manager, the API server and the platform's services are killed under
a load of jobs, and the API server refuses a fifth of all requests. Afterwards the auditor judges each job as on one
machine, and an independent witness of the API server judges the pods.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from services.core.runtime.processes import read_live_process
from tests.chaos.auditor import judge_jobs
from tests.chaos.faults import Undo
from tests.chaos.load import Load, wait_over
from tests.chaos.run import OVER_S, DelayedUndo, Outcome, await_load, kept_logs, sleep_until
from tests.chaos.schedule import Fault, Kind, schedule_of
from tests.testbed.kubernetes.cluster import Cluster, cluster
from tests.testbed.kubernetes.fault_proxy import fault_proxy
from tests.testbed.kubernetes.kubectl import KubectlError
from tests.testbed.kubernetes.node import Node
from tests.testbed.kubernetes.platform_in_pods import load_helper_image, platform_in_pods
from tests.testbed.kubernetes.processes import Process
from tests.testbed.kubernetes.watcher import Watcher, watching
from tests.testbed.platform import Platform
from weft import Client

NAME: Final = "chaos"
SHARE: Final = 0.2
"""Of the requests of the platform that the API server refuses, all the time."""
LEFT_S: Final = 30.0
"""So long after the end of the last job nothing of any may be left in the cluster."""
GAP_S: Final = 3.0
_CONTROL_PLANE: Final = ("kube-apiserver", "kube-scheduler", "kube-controller-manager")
_ON_NODES: Final = ("kubelet", "containerd")
KINDS: Final = (
    Kind("kill", ("lcm", "guardian", "metrics", "api")),
    # Shorter than the grace period after which the cluster takes a silent node for lost.
    Kind("kill one of", _ON_NODES, (0.2, 3.0), weight=2),
    Kind("kill server", _CONTROL_PLANE, (0.2, 3.0), weight=2),
)


class ClusterFaults:
    """``begin`` injects a fault and returns its undo."""

    def __init__(self, machines: Cluster, platform: Platform) -> None:
        self.counts: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self._machines, self._platform = machines, platform

    def begin(self, fault: Fault) -> Undo | None:
        if fault.kind == "kill":
            self._kill_service(fault)
            return None
        nodes = self._machines.nodes
        node = nodes[int(fault.share * len(nodes))] if fault.kind == "kill one of" else None
        machine = node.machine if node is not None else self._machines.machines[0]
        process = machine.server(fault.victim)
        if process is None or not process.alive:  # another fault has ended it, which will start it again
            self.missed[f"{fault.kind} {fault.victim}"] += 1
            return None
        process.kill()
        self.counts[f"{fault.kind} {fault.victim}"] += 1
        return lambda: self._start(fault.victim, node)

    def _kill_service(self, fault: Fault) -> None:
        process = read_live_process(self._platform.home / "run" / f"{fault.victim}.json")
        if process is None:
            self.missed[f"kill {fault.victim}"] += 1
            return
        living = Process.of(process.pid)
        if living is not None:
            living.kill()
        self.counts[f"kill {fault.victim}"] += 1

    def _start(self, server: str, node: Node | None) -> None:
        control_plane = self._machines.control_plane
        if node is not None:
            {"kubelet": node.start_kubelet, "containerd": node.start_containerd}[server]()
            return
        {
            "kube-apiserver": control_plane.start_apiserver,
            "kube-scheduler": control_plane.start_scheduler,
            "kube-controller-manager": control_plane.start_controller_manager,
        }[server]()


def run(seed: int, count: int, *, say: Callable[[str], None], progress: Callable[[str], None]) -> Outcome:
    """Runs the seed and audits it. KeyboardInterrupt leaves nothing running."""
    plan = schedule_of(KINDS, random.Random(f"cluster faults {seed}"), count, gap_s=GAP_S)
    for fault in plan:
        say(str(fault))
    outcome = Outcome(seed)
    with ExitStack() as stack:
        machines = stack.enter_context(cluster(nodes=2, say=say))
        proxy = stack.enter_context(fault_proxy(machines.kubeconfig, seed=seed))
        witness = stack.enter_context(watching(machines.kubeconfig))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-chaos-")))
        image = load_helper_image(machines, say)
        settings = {"WEFT_HELPER_DRAIN_S": "600", "WEFT_PEER_GRACE_S": "1"}
        platform = stack.enter_context(
            platform_in_pods(
                machines, image, name=NAME, kubeconfig=proxy.kubeconfig(folder / "kubeconfig"), settings=settings
            )
        )
        stack.enter_context(kept_logs(platform, outcome))
        client = stack.enter_context(Client(platform.url, platform.key))
        faults = ClusterFaults(machines, platform)
        proxy.share = SHARE
        with Load(client, seed, live=2, resources={"cpus": 0.2, "memory": "64MiB"}) as load:
            await_load(lambda: load.all_stay and load.other_runs, load)
            _play(plan, faults, load, progress)
            load.close()
            for owned in load.staying:
                _end(machines, owned.job.id)
            outcome.over_s = wait_over(
                load, timeout_s=OVER_S, say=lambda: progress(f"{load.over}/{len(load.owned)} over")
            )
            outcome.retried_requests = load.unanswered
            judge_jobs(client, load.owned, _allowed(load, faults), outcome.verdict)
        _judge_pods(witness, faults.counts["kill server kube-apiserver"], outcome)
        outcome.faults, outcome.missed = faults.counts + proxy.injected, faults.missed
        outcome.judged = True
    return outcome


def _play(plan: Sequence[Fault], faults: ClusterFaults, load: Load, progress: Callable[[str], None]) -> None:
    """Injects every fault at its time, and undoes those that last."""
    began = time.monotonic()
    pending: list[DelayedUndo] = []
    try:
        for number, fault in enumerate(plan, start=1):
            sleep_until(began + fault.at_s, load)
            progress(f"{number}/{len(plan)} faults, {load.over}/{len(load.owned)} jobs over: {fault}")
            undo = faults.begin(fault)
            if undo is not None:
                pending.append(DelayedUndo(fault.for_s, undo))
    finally:
        for undone in pending:
            undone.now()
    for undone in pending:
        if undone.failure is not None:
            raise undone.failure


def _end(machines: Cluster, job: str) -> None:
    """Ends the commands of a job that stays. A pod that is just replaced is ended with the next call."""
    kubectl = machines.kubectl
    listed = kubectl("get", "pods", "--all-namespaces", f"--selector=weft.dev/job={job}", "--output=name")
    for pod in listed.split():
        with suppress(KubectlError):
            kubectl(f"--namespace={NAME}-default", "exec", pod, "--container=learner", "--", "touch", "/weft/job/end")


def _allowed(load: Load, faults: ClusterFaults) -> dict[str, int]:
    """Job -> attempts that may fail. A kubelet that starts late on a busy machine loses its node's learners."""
    of_nodes = sum(count for what, count in faults.counts.items() if what.endswith(_ON_NODES))
    return {owned.job.id: of_nodes for owned in load.owned}


def _judge_pods(witness: Watcher, restarts: int, outcome: Outcome) -> None:
    """``restarts``: of the API server, which keeps no changes from before."""
    verdict = outcome.verdict
    verdict.failures += [f"two attempts at one moment: {overlap}" for overlap in witness.overlaps]
    verdict.counts["changes of pods"] = witness.changes
    verdict.must(witness.gaps <= restarts, f"the witness has missed changes {witness.gaps} times")
    try:
        outcome.clean_s = witness.wait_clean(LEFT_S)
    except AssertionError as error:
        verdict.failures.append(str(error))
