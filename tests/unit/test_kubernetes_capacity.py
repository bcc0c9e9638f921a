"""What pods of others leave of a node, as the scheduler counts it."""

from __future__ import annotations

from typing import Any

import pytest

from services.core.adapters.kubernetes import names, nodes
from services.core.adapters.kubernetes.options import KubernetesOptions

Document = dict[str, Any]
OPTIONS = KubernetesOptions(helper_image="h", learner_image="l", entry_script="", addresses={})


def node(**allocatable: str) -> Document:
    room = {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8", **allocatable}
    conditions = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": "n1"}, "spec": {}, "status": {"allocatable": room, "conditions": conditions}}


def requests(**amounts: str) -> Document:
    return {"resources": {"requests": amounts}}


def other(
    *containers: Document,
    phase: str = "Running",
    labels: Document | None = None,
    namespace: str = "default",
    **spec: Any,
) -> Document:
    """A pod on the node."""
    return {
        "metadata": {"namespace": namespace, "labels": labels or {}},
        "spec": {"nodeName": "n1", "containers": list(containers) or [{}], **spec},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("pod", "cpus", "gib"),
    [
        (other({}, {}, **requests(cpu="4", memory="8Gi")), 12, 56),
        (other(requests(cpu="1", memory="1Gi"), {}, **requests(cpu="4", memory="8Gi")), 12, 56),
        (other(requests(cpu="1", memory="1Gi"), {}, **requests(cpu="4")), 12, 63),
        (other(requests(cpu="1"), initContainers=[requests(cpu="3")], **requests(cpu="4")), 12, 64),
        (other({}, **requests(cpu="4", memory="8Gi"), overhead={"cpu": "250m", "memory": "1Gi"}), 11.75, 55),
        (other(requests(cpu="1"), resources={"limits": {"cpu": "4"}}), 15, 64),
        (other(requests(cpu="1"), resources=None), 15, 64),
    ],
    ids=["of the pod", "both", "of one resource", "with a start-up", "with an overhead", "no requests", "none"],
)
def test_request_of_a_whole_pod_reduces_capacity_like_those_of_its_containers(
    pod: Document, cpus: float, gib: int
) -> None:
    """A learner was pinned to a node that a pod with `spec.resources` filled, and stayed Unschedulable there."""
    (machine,) = nodes.capacity([node()], [nodes.usage(pod, OPTIONS)], OPTIONS)
    assert (machine.cpus, machine.memory) == (cpus, gib * 2**30)


def test_each_pod_of_others_takes_a_slot_also_without_requests() -> None:
    own = names.tenant_labels("acme", OPTIONS.installation) | {names.JOB: "j1"}
    pods = [other(), other(requests(cpu="1")), other(phase="Succeeded"), other(phase="Failed")]
    pods += [other(labels=own, namespace="weft-acme"), other(labels=own, namespace="weft-system")]
    (machine,) = nodes.capacity([node(pods="110")], [nodes.usage(pod, OPTIONS) for pod in pods], OPTIONS)
    assert machine.slots == 107, "labels make no learner of a pod in another namespace than its tenant's"


@pytest.mark.parametrize(("pods", "slots"), [("2", 0), ("1", 0), ("3", 1)])
def test_node_with_as_many_pods_as_it_may_have_has_no_slot(pods: str, slots: int) -> None:
    used = [nodes.usage(other(), OPTIONS) for _ in range(2)]
    (machine,) = nodes.capacity([node(pods=pods)], used, OPTIONS)
    assert machine.slots == slots


def test_node_that_names_no_number_of_pods_is_not_bounded_by_one() -> None:
    (machine,) = nodes.capacity([node()], [nodes.usage(other(), OPTIONS)], OPTIONS)
    assert machine.slots is None


def tainted(key: str, effect: str = "NoSchedule") -> Document:
    return {**node(), "spec": {"taints": [{"key": key, "value": "present", "effect": effect}]}}


@pytest.mark.parametrize(
    ("machine", "ready", "only_gpus"),
    [
        (node(), True, False),
        (tainted("nvidia.com/gpu"), True, True),
        (tainted("nvidia.com/gpu", "NoExecute"), True, True),
        (tainted("nvidia.com/gpu", "PreferNoSchedule"), True, False),
        (tainted("team"), False, False),
        (tainted("team", "PreferNoSchedule"), True, False),
    ],
)
def test_node_that_is_tainted_for_its_gpus_takes_learners_with_gpus_only(
    machine: Document, *, ready: bool, only_gpus: bool
) -> None:
    """A learner without GPUs was pinned to such a node, and stayed Unschedulable: it does not tolerate the taint."""
    (counted,) = nodes.capacity([machine], [], OPTIONS)
    assert (counted.ready, counted.only_gpus) == (ready, only_gpus)
