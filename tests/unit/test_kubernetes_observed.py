"""What the Kubernetes adapter makes of pods, nodes and the texts of a real cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from services.core.adapters.kubernetes import guardian_jobs, names, nodes, reasons
from services.core.adapters.kubernetes.observed import (
    Context,
    StopMark,
    never_created,
    observe,
    removals,
    removed,
    vanished,
)
from services.core.adapters.kubernetes.options import KubernetesOptions
from services.core.domain.codec import dump
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.startup import Span
from services.core.domain.status import Phase
from tests.testbed.kubernetes.learner_pods import (
    DISRUPTED,
    ENDED,
    ENDED_MS,
    NOW,
    RUNNING,
    STARTED,
    Document,
    deleted,
    ended,
    pod,
    record,
    report,
)

MARK = StopMark(attempt=1, generation=2, cause="halt", grace_ms=1000, time=ENDED_MS - 5000)
OPTIONS = KubernetesOptions(helper_image="h", learner_image="l", entry_script="", addresses={})


@pytest.mark.parametrize(
    ("document", "learner_report", "state"),
    [
        (pod(gated=True), None, "inert"),
        (pod(), None, "starting"),
        (pod(RUNNING, {"waiting": {"reason": "PodInitializing"}}), None, "starting"),
        (pod(RUNNING, {"waiting": {"reason": "ImagePullBackOff"}}), report(Phase.DOWNLOADING), "starting"),
        (pod(RUNNING, RUNNING), report(Phase.DOWNLOADING), "waiting"),
        (pod(RUNNING, RUNNING), STARTED, "running"),
        (pod(RUNNING, RUNNING), report(Phase.STORING, exit=Exit(time=1, code=0)), "exited"),
        (pod(RUNNING, ended(0, record(code=0))), STARTED, "exited"),
    ],
)
def test_state_of_a_learner(document: Document, learner_report: LearnerStatus | None, state: str) -> None:
    process = observe(document, Context(now=NOW, report=learner_report))
    assert (process.name, process.attempt, process.state, process.node) == ("worker-0", 1, state, "n1")
    assert (process.cpus, process.memory, process.gpus) == (1.5, 7, 2)


@pytest.mark.parametrize(
    ("learner", "mark", "end"),
    [
        (ended(0, record(code=0)), None, (0, None, "", False)),
        (ended(3, record(code=3)), None, (3, None, "", False)),
        (ended(139, record(signal=11)), None, (None, 11, "", False)),
        (ended(139, record(code=139)), None, (139, None, "", False)),
        (ended(9, record(code=9, stop_cause="halt")), MARK, (9, None, "halt", False)),
        # A stop cause that the platform has not given is not believed.
        (ended(1, record(code=1, stop_cause="halt")), None, (1, None, "", False)),
        (ended(1, record(code=1, stop_cause="lunch")), MARK, (1, None, "", False)),
        # A record that does not agree with the kubelet's is not believed, nor is text of the user's code.
        (ended(1, record(code=0)), None, (1, None, "", False)),
        (ended(1, record(code=0, lost=True)), None, (1, None, "", False)),
        (ended(1, "all is well"), None, (1, None, "", False)),
        (ended(1, "[" * 9_000), None, (1, None, "", False)),
        (ended(137, "", "OOMKilled"), None, (None, 9, "", True)),
        (ended(1, record(code=1), "OOMKilled"), None, (1, None, "", True)),
        (ended(137, ""), MARK, (None, 9, "halt", False)),
    ],
)
def test_end_is_the_kubelets_record(learner: Document, mark: StopMark | None, end: tuple[object, ...]) -> None:
    process = observe(pod(RUNNING, learner), Context(now=NOW, report=STARTED, mark=mark))
    assert process.exit is not None
    assert (process.exit.code, process.exit.signal, process.exit.stop_cause, process.exit.oom) == end
    assert (process.exit.time, process.exit.lost) == (ENDED_MS, False)


@pytest.mark.parametrize(
    "learner",
    [
        ended(137, "The container could not be located when the pod was terminated", "ContainerStatusUnknown"),
        ended(255, "", "Unknown"),
    ],
)
def test_learner_whose_machine_has_restarted_is_lost_and_costs_its_job_no_retry(learner: Document) -> None:
    process = observe(pod(RUNNING, learner, phase="Failed"), Context(now=NOW, report=STARTED))
    assert (process.state, process.exit) == ("exited", Exit(time=ENDED_MS, lost=True))


CREATED, BOUND = "2027-01-15T07:59:00Z", "2027-01-15T07:59:20Z"
CREATED_MS, BOUND_MS = ENDED_MS - 50_000, ENDED_MS - 30_000


@pytest.mark.parametrize(
    ("helper", "learner", "bound", "startup"),
    [
        (None, None, "False", {"schedule": Span(began=CREATED_MS)}),
        (None, None, "True", {"schedule": Span(began=CREATED_MS, ended=BOUND_MS), "image": Span(began=BOUND_MS)}),
        (
            RUNNING,
            {"waiting": {"reason": "ImagePullBackOff"}},
            "True",
            {"schedule": Span(began=CREATED_MS, ended=BOUND_MS), "image": Span(began=BOUND_MS)},
        ),
        (
            RUNNING,
            RUNNING,
            "True",
            {"schedule": Span(began=CREATED_MS, ended=BOUND_MS), "image": Span(began=BOUND_MS, ended=ENDED_MS)},
        ),
    ],
)
def test_start_up_of_a_pod_is_read_from_its_conditions_and_containers(
    helper: Document | None, learner: Document | None, bound: str, startup: dict[str, Span]
) -> None:
    conditions = [{"type": "PodScheduled", "status": bound, "lastTransitionTime": BOUND}]
    document = pod(helper, learner, conditions=conditions)
    document["metadata"]["creationTimestamp"] = CREATED
    assert observe(document, Context(now=NOW)).startup == startup


def test_an_inert_pod_has_no_start_up() -> None:
    document = pod(gated=True)
    document["metadata"]["creationTimestamp"] = CREATED
    assert observe(document, Context(now=NOW)).startup == {}


def test_report_counts_until_the_container_has_ended() -> None:
    claimed = report(Phase.STORED, exit=Exit(time=5, code=0), times={"PROCESSING": 3})
    waiting = observe(pod(RUNNING, RUNNING), Context(now=NOW, report=claimed))
    assert (waiting.exit, waiting.started, waiting.stored) == (Exit(time=5, code=0), 3, True)
    over = observe(pod(RUNNING, ended(2, record(code=2))), Context(now=NOW, report=claimed))
    assert over.exit is not None
    assert over.exit.code == 2


def test_running_pod_without_a_report_contradicts_no_earlier_one() -> None:
    assert not observe(pod(RUNNING, RUNNING), Context(now=NOW)).readable
    assert observe(pod(RUNNING, RUNNING), Context(now=NOW, report=STARTED)).readable
    assert observe(pod(RUNNING, ended(0, record(code=0))), Context(now=NOW)).readable
    assert observe(pod(gated=True), Context(now=NOW)).readable


def test_stored_is_known_from_the_helpers_own_end_when_the_status_store_has_lost_it() -> None:
    helper = ended(0, {"phase": "STORED", "reason": "", "message": ""}, "Completed")
    assert observe(pod(helper, ended(0, record(code=0))), Context(now=NOW)).stored


def test_learner_that_was_stopped_before_its_start_has_ended_without_a_run() -> None:
    marked = pod(gated=True, annotations={names.STOP: json.dumps(dump(MARK))})
    for process in (observe(marked, Context(now=NOW, mark=MARK)), never_created("worker-0", 1, MARK)):
        assert (process.state, process.run, process.started) == ("exited", 0, None)
        assert process.exit == Exit(time=MARK.time, signal=15, stop_cause="halt")
    assert never_created("worker-0", 1, None).state == "inert"


def test_learner_whose_pod_a_stop_has_deleted_was_ended_by_the_stop_and_is_not_lost() -> None:
    owner = {"metadata": {"annotations": {names.REMOVED: json.dumps({"worker-0": ENDED_MS})}}}
    assert removals(owner) == {"worker-0": ENDED_MS}
    silent = removed("worker-0", 1, ENDED_MS, MARK, None)
    assert (silent.state, silent.run, silent.exit) == ("exited", 0, Exit(time=ENDED_MS, signal=15, stop_cause="halt"))
    ran = removed("worker-0", 1, ENDED_MS, MARK, report(Phase.PROCESSING, times={"PROCESSING": 3}))
    assert (ran.run, ran.started, ran.stored, ran.exit) == (1, 3, False, silent.exit)
    end = Exit(time=5, code=9, stop_cause="halt")
    stored = removed("worker-0", 1, ENDED_MS, MARK, report(Phase.STORED, exit=end, times={"PROCESSING": 3}))
    assert (stored.exit, stored.stored) == (end, True)


@pytest.mark.parametrize("damaged", ["[1]", '{"worker-0": "soon"}', "no JSON"])
def test_damaged_list_of_deleted_pods_names_none(damaged: str) -> None:
    assert removals({"metadata": {"annotations": {names.REMOVED: damaged}}}) == {}


def test_learner_that_was_stopped_while_it_waited_never_started() -> None:
    stopped = pod(RUNNING, ended(143, record(signal=15, stop_cause="halt")))
    process = observe(stopped, Context(now=NOW, mark=MARK))
    assert (process.run, process.started) == (0, None)


def test_learner_that_starts_while_its_halt_deletes_the_pod_is_halted_and_has_not_run() -> None:
    document = deleted(ended(143, record(signal=15)), after_s=1)
    process = observe(document, Context(now=NOW, mark=MARK, removed=True))
    assert process.exit == Exit(time=ENDED_MS, signal=15, stop_cause="halt")
    assert (process.run, process.started) == (0, None)


@pytest.mark.parametrize(
    ("after_s", "context"),
    [
        (-1, Context(now=NOW, report=STARTED)),
        (1, Context(now=NOW, report=STARTED, mark=MARK)),
        (-1, Context(now=NOW, report=STARTED, mark=MARK, removed=True)),
    ],
)
def test_end_before_a_stop_has_deleted_the_pod_is_the_learners_own(after_s: float, context: Context) -> None:
    process = observe(deleted(ended(1, record(code=1)), after_s=after_s), context)
    assert process.exit == Exit(time=ENDED_MS, code=1)


def test_stronger_stops_override_weaker_ones() -> None:
    kill = StopMark(attempt=1, generation=2, cause="kill", grace_ms=0, time=0)
    shorter = StopMark(attempt=1, generation=2, cause="peer", grace_ms=10, time=0)
    assert [stop.overrides(MARK) for stop in (kill, shorter, MARK)] == [True, True, False]
    assert not shorter.overrides(kill)


# Texts as Kubernetes 1.31 to 1.36 and containerd 1.7 and 2 have written them.
PULL = 'failed to pull and unpack image "x/y:1": failed to resolve reference "x/y:1": '
BLOCKED = [
    (
        "Unschedulable",
        False,
        pod(
            conditions=[
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. "
                    "preemption: 0/2 nodes are available.",
                }
            ]
        ),
    ),
    ("", False, pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}])),
    (
        "ImagePullFailed",
        True,
        pod(RUNNING, {"waiting": {"reason": "ErrImagePull", "message": f"{PULL}x/y:1: not found"}}),
    ),
    (
        "ImagePullFailed",
        False,
        pod(
            RUNNING,
            {
                "waiting": {
                    "reason": "ImagePullBackOff",
                    "message": f'Back-off pulling image "x/y:1": ErrImagePull: {PULL}failed to do '
                    'request: Head "https://x/v2/y/manifests/1": dial tcp 127.0.0.1:9: connect: connection refused',
                }
            },
        ),
    ),
    (
        "ImagePullFailed",
        True,
        pod(
            RUNNING,
            {
                "waiting": {
                    "reason": "InvalidImageName",
                    "message": 'Failed to apply default image tag "X:/y": couldn\'t parse it',
                }
            },
        ),
    ),
    (
        "ImagePullFailed",
        True,
        pod(
            {
                "waiting": {
                    "reason": "ErrImageNeverPull",
                    "message": 'Container image "h" is not present with pull policy of Never',
                }
            }
        ),
    ),
    (
        "ConfigMissing",
        True,
        pod({"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}}),
    ),
    (
        "ConfigMissing",
        False,
        pod(
            {
                "waiting": {
                    "reason": "CreateContainerConfigError",
                    "message": "failed to sync secret cache: timed out waiting for the condition",
                }
            }
        ),
    ),
    (
        "ImageUnusable",
        True,
        pod(
            RUNNING,
            {
                "waiting": {
                    "reason": "CreateContainerError",
                    "message": "failed to generate container spec: no command specified",
                }
            },
        ),
    ),
]


@pytest.mark.parametrize(("reason", "final", "document"), BLOCKED)
def test_what_blocks_a_pod_is_named(reason: str, final: bool, document: Document) -> None:  # noqa: FBT001
    process = observe(document, Context(now=NOW))
    assert (process.blocked, process.blocked_for_good) == (reason, final)
    if reason:
        assert process.blocked_message.endswith(reasons.ADVICE[reasons.PodReason(reason)])


@pytest.mark.parametrize(
    ("reason", "event", "message"),
    [
        ("MountFailed", "FailedMount", 'MountVolume.SetUp failed for volume "token" : secret "weft-j1-1" not found'),
        ("MountFailed", "FailedAttachVolume", "AttachVolume.Attach failed for volume: rpc error: code = NotFound"),
        (
            "SandboxFailed",
            "FailedCreatePodSandBox",
            "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox",
        ),
        ("", "BackOff", "Back-off restarting failed container"),
    ],
)
def test_what_only_events_tell_is_named(reason: str, event: str, message: str) -> None:
    creating = pod(
        {"waiting": {"reason": "PodInitializing"}}, {"waiting": {"reason": "PodInitializing"}}, phase="Pending"
    )
    warnings = [{"reason": event, "message": message, "lastTimestamp": ENDED}]
    process = observe(creating, Context(now=NOW, events=warnings))
    assert process.blocked == reason


LOST = [
    ("Evicted", pod(phase="Failed", reason="Evicted", message="The node was low on resource: ephemeral-storage.")),
    (
        "Evicted",
        pod(
            RUNNING,
            ended(143, record(signal=15)),
            phase="Failed",
            reason="Evicted",
            message='Usage of EmptyDir volume "private" exceeds the limit "100Gi".',
        ),
    ),
    ("Evicted", pod(RUNNING, RUNNING, conditions=[{**DISRUPTED, "reason": "EvictionByEvictionAPI"}])),
    ("Preempted", pod(RUNNING, RUNNING, conditions=[{**DISRUPTED, "reason": "PreemptionByScheduler"}])),
    ("NodeLost", pod(RUNNING, RUNNING, conditions=[{**DISRUPTED, "reason": "DeletionByTaintManager"}])),
    (
        "NodeLost",
        pod(phase="Failed", reason="Terminated", message="Pod was terminated in response to imminent node shutdown."),
    ),
    (
        "NodeRefused",
        pod(
            phase="Failed",
            reason="OutOfcpu",
            message="Pod was rejected: Node didn't have enough "
            "resource: cpu, requested: 1500, used: 1900, capacity: 2000",
        ),
    ),
    (
        "NodeRefused",
        pod(
            phase="Failed",
            reason="UnexpectedAdmissionError",
            message="Pod was rejected: Allocate "
            "failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu",
        ),
    ),
    (
        "PodDeadlineExceeded",
        pod(
            phase="Failed",
            reason="DeadlineExceeded",
            message="Pod was active on the node longer than the specified deadline",
        ),
    ),
]


@pytest.mark.parametrize("volume", ["job", "tmp", "runs", "shm"])
@pytest.mark.parametrize("conditions", [[], [{**DISRUPTED, "reason": "TerminationByKubelet"}]], ids=["", "disrupted"])
def test_learner_that_fills_its_volume_has_failed_and_is_not_tried_again_for_ever(
    volume: str, conditions: list[Document]
) -> None:
    text = f'Usage of EmptyDir volume "{volume}" exceeds the limit "100Gi". '
    document = pod(RUNNING, ended(137), phase="Failed", reason="Evicted", message=text, conditions=conditions)
    process = observe(document, Context(now=NOW))
    assert process.exit is not None
    assert (process.reason, process.exit.lost, process.exit.signal) == ("DiskExceeded", False, 9)
    assert process.exit.disk_exceeded == text
    assert process.message.endswith("the bound is WEFT_KUBERNETES_SCRATCH")


@pytest.mark.parametrize(("reason", "document"), LOST)
def test_end_by_the_cluster_is_lost_with_its_reason(reason: str, document: Document) -> None:
    process = observe(document, Context(now=NOW))
    assert process.exit is not None
    assert (process.reason, process.exit.lost, process.state) == (reason, True, "exited")
    assert process.message.endswith(reasons.ADVICE[reasons.PodReason(reason)])


def test_image_without_a_shell_is_the_jobs_own_failure() -> None:
    no_shell = 'failed to create containerd task: exec: "/bin/sh": stat /bin/sh: no such file or directory'
    process = observe(pod(RUNNING, ended(128, no_shell, "StartError"), phase="Failed"), Context(now=NOW))
    assert (process.reason, process.started, process.exit) == ("ImageUnusable", None, Exit(time=ENDED_MS, code=128))
    assert "the image needs /bin/sh" in process.message


def test_learner_on_a_node_that_is_not_reached_is_lost_unless_it_had_ended() -> None:
    gone = observe(pod(RUNNING, RUNNING), Context(now=NOW, report=STARTED, node_lost=True))
    assert (gone.reason, gone.exit, gone.can_store) == ("NodeLost", Exit(time=NOW, lost=True), False)
    over = observe(pod(RUNNING, ended(0, record(code=0))), Context(now=NOW, report=STARTED, node_lost=True))
    assert over.exit == Exit(time=ENDED_MS, code=0)


@pytest.mark.parametrize(
    ("document", "learner_report", "may_have_started"),
    [
        (pod(gated=True), None, False),
        (pod(), None, False),
        (pod(RUNNING, RUNNING), report(Phase.READY), True),
        (pod(RUNNING, RUNNING), report(Phase.DOWNLOADING), True),
        (pod(RUNNING, RUNNING), None, True),
        (deleted(RUNNING, after_s=1), None, True),
        # A kubelet writes that a container runs after it has started it.
        (pod(RUNNING, {"waiting": {"reason": "PodInitializing"}}), report(Phase.DOWNLOADING), False),
        (pod(RUNNING, {"waiting": {"reason": "PodInitializing"}}), report(Phase.READY), True),
        (pod(RUNNING, {"waiting": {"reason": "PodInitializing"}}), None, True),
        # The start, or the end, is recorded.
        (pod(RUNNING, RUNNING), STARTED, False),
        (pod(RUNNING, RUNNING), report(Phase.STORING, exit=Exit(time=1, signal=15, stop_cause="halt")), False),
        (pod(RUNNING, ended(143, record(signal=15, stop_cause="halt"))), None, False),
        (pod(RUNNING, RUNNING, phase="Failed"), None, False),
    ],
)
def test_a_learner_may_have_started_while_its_containers_run_and_its_end_is_not_recorded(
    document: Document, learner_report: LearnerStatus | None, *, may_have_started: bool
) -> None:
    context = Context(now=NOW, report=learner_report)
    assert observe(document, context).may_have_started is may_have_started
    assert not observe(document, replace(context, node_lost=True)).may_have_started


def test_results_of_a_pod_that_has_ended_are_not_waited_for() -> None:
    running = pod(RUNNING, ended(0, record(code=0)))
    assert observe(running, Context(now=NOW, report=STARTED)).can_store
    over = pod(ended(137, reason="Unknown"), ended(137, reason="Unknown"), phase="Failed")
    assert not observe(over, Context(now=NOW, report=STARTED)).can_store


def test_every_reason_has_advice() -> None:
    assert {*reasons.ADVICE} == {*reasons.PodReason}


def node(name: str = "n1", **fields: Any) -> Document:
    conditions = fields.pop("conditions", [{"type": "Ready", "status": "True"}])
    room = {"cpu": "15500m", "memory": "64Gi", "nvidia.com/gpu": "8"}
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": fields,
        "status": {"allocatable": room, "conditions": conditions},
    }


def container(cpu: str, gpus: str = "0", **fields: Any) -> Document:
    return {"resources": {"requests": {"cpu": cpu, "memory": "1Gi", "nvidia.com/gpu": gpus}}, **fields}


def test_capacity_is_what_others_leave() -> None:
    sidecar = container("250m", restartPolicy="Always")
    other = {
        "metadata": {},
        "spec": {"nodeName": "n1", "containers": [container("1", "2")], "initContainers": [sidecar]},
    }
    own_labels = names.tenant_labels("acme", OPTIONS.installation) | {names.JOB: "j1"}
    own = {**other, "metadata": {"namespace": "weft-acme", "labels": own_labels}}
    of_another = {"namespace": "weft-acme", "labels": {**own_labels, names.INSTANCE: "second"}}
    another_installation = {**other, "metadata": of_another}
    over = {**other, "status": {"phase": "Succeeded"}}
    pending = {**other, "spec": {**other["spec"], "nodeName": None}}
    used = [nodes.usage(entry, OPTIONS) for entry in (other, own, another_installation, over, pending)]
    (machine,) = nodes.capacity([node()], used, OPTIONS)
    assert (machine.cpus, machine.memory, machine.gpus) == (13.0, 60 * 2**30, 4)
    assert (machine.gpu_type, machine.ready, machine.labels["weft.dev/isolation"]) == (
        "NVIDIA-A100-SXM4-80GB",
        True,
        "pod",
    )


def test_devices_of_a_node_are_those_of_the_operators_list_that_others_leave() -> None:
    options = replace(OPTIONS, devices=("rdma/hca", "example.org/fpga"))
    machine = node()
    machine["status"]["allocatable"] |= {"rdma/hca": "4", "smarter-devices/fuse": "20"}
    taking = {"requests": {"rdma/hca": "1", "smarter-devices/fuse": "1"}}
    other = {"metadata": {}, "spec": {"nodeName": "n1", "containers": [{"resources": taking}]}}
    (left,) = nodes.capacity([machine], [nodes.usage(other, options)], options)
    assert left.devices == (("rdma/hca", 3),)
    (unlisted,) = nodes.capacity([machine], [nodes.usage(other, OPTIONS)], OPTIONS)
    assert unlisted.devices == ()


def test_guardian_in_a_pod_of_its_own_reduces_capacity_because_no_admission_counts_it() -> None:
    labels = guardian_jobs.job_labels(OPTIONS.installation) | {names.GUARDED: "j1"}
    guardian = {"metadata": {"labels": labels}, "spec": {"nodeName": "n1", "containers": [container("1")]}}
    (machine,) = nodes.capacity([node()], [nodes.usage(guardian, OPTIONS)], OPTIONS)
    assert machine.cpus == 14.5


def test_initial_containers_count_as_the_scheduler_counts_them() -> None:
    spec = {"nodeName": "n1", "containers": [container("1")], "initContainers": [container("4")]}
    usage = nodes.usage({"metadata": {}, "spec": spec}, OPTIONS)
    assert usage is not None
    assert usage.cpus == 4


@pytest.mark.parametrize(
    ("fields", "ready"),
    [
        ({}, True),
        ({"unschedulable": True}, False),
        ({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}, True),
        ({"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}, False),
        ({"taints": [{"key": "dedicated", "effect": "PreferNoSchedule"}]}, True),
        ({"conditions": [{"type": "Ready", "status": "Unknown"}]}, False),
    ],
)
def test_node_is_ready_if_learners_may_be_placed_on_it(fields: Document, ready: bool) -> None:  # noqa: FBT001
    (machine,) = nodes.capacity([node(**fields)], [], OPTIONS)
    assert machine.ready == ready


def test_pressure_of_a_node_is_said_in_words() -> None:
    full = [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "True"}]
    (machine,) = nodes.capacity([node(conditions=full)], [], OPTIONS)
    assert machine.pressure == "its disk is almost full"


@pytest.mark.parametrize(
    ("text", "number"),
    [("4", 4), ("1500m", 1.5), ("16Gi", 2**34), ("1.5Gi", 1.5 * 2**30), ("2k", 2000), ("1e3", 1000), ("100M", 10**8)],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: str, number: float) -> None:
    assert nodes.parse_quantity(text) == pytest.approx(number)


def test_learner_whose_pod_vanished_from_an_activated_attempt_is_lost_in_the_run_that_was_made_last() -> None:
    labels = {names.ATTEMPT: "3"}
    owner = {"metadata": {"labels": labels, "annotations": {names.RUNS: json.dumps({"worker-1": 2})}}}
    lost = [vanished(name, owner, now=ENDED_MS) for name in ("worker-0", "worker-1")]
    assert [(process.attempt, process.planned_run, process.exit) for process in lost] == [
        (3, 1, Exit(time=ENDED_MS, lost=True)),
        (3, 2, Exit(time=ENDED_MS, lost=True)),
    ]
    damaged = {"metadata": {"labels": labels, "annotations": {names.RUNS: "[1]"}}}
    assert vanished("worker-1", damaged, now=ENDED_MS).planned_run == 1


def test_report_of_an_earlier_run_says_nothing_of_the_pod_of_a_later_one() -> None:
    later = pod(RUNNING, RUNNING, annotations={names.RUN: "2"})
    end = Exit(time=5, code=3)
    earlier = report(Phase.STORED, exit=end, times={"PROCESSING": 3})
    process = observe(later, Context(now=ENDED_MS, report=earlier))
    assert (process.planned_run, process.exit, process.started, process.stored) == (2, None, None, False)
    process = observe(later, Context(now=ENDED_MS, report=replace(earlier, run=2)))
    assert (process.run, process.exit, process.started, process.stored) == (2, end, 3, True)
