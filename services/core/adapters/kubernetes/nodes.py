"""Nodes and the pods of others -> the capacity for learners: pure.

Pods of others, and of Guardians, reduce the capacity of their node, also the number of pods that it may have. This
installation's learners do not, because the dispatcher computes what is free from unreleased admissions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.options import KubernetesOptions
from services.core.domain.sizes import Devices, as_devices
from services.core.ports.cluster import ISOLATION_LABEL, Node

Document = Mapping[str, Any]
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL: Final = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_LOST_TAINT: Final = "node.kubernetes.io/unreachable"
_PRESSURES: Final = {
    "MemoryPressure": "it is short of memory",
    "DiskPressure": "its disk is almost full",
    "PIDPressure": "it has too many processes",
    "NetworkUnavailable": "its network is not set up",
}


@dataclass(frozen=True, slots=True)
class Usage:
    """What a pod of others takes of its node."""

    node: str
    cpus: float
    memory: float
    gpus: float
    devices: Devices = ()


def parse_quantity(text: object) -> float:
    """The number of a quantity, e.g. ``1500m``, ``16Gi``, ``4``. Raises ValueError for other text."""
    word = str(text)
    for suffix, factor in {**_BINARY, **_DECIMAL}.items():
        if word.endswith(suffix):
            return float(word.removesuffix(suffix)) * factor
    return float(word)


def usage(pod: Document, options: KubernetesOptions) -> Usage | None:
    """What a pod takes of its node; None for learners of this installation, and for a pod that has ended.

    A pod without requests takes a pod slot.
    """
    node = pod["spec"].get("nodeName")
    phase = (pod.get("status") or {}).get("phase")
    own = (names.label(pod, names.MANAGED_BY), names.label(pod, names.INSTANCE)) == (names.WEFT, options.installation)
    own = own and names.is_of_tenant(pod, options.namespace_prefix)
    if not node or (own and names.label(pod, names.JOB)) or phase in {"Succeeded", "Failed"}:
        return None
    cpus, memory, gpus = (_requested(pod["spec"], resource) for resource in ("cpu", "memory", options.gpu_resource))
    devices = as_devices({name: int(_requested(pod["spec"], name)) for name in options.devices})
    return Usage(node, cpus, memory, gpus, devices)


def _requested(spec: Document, resource: str) -> float:
    """As the scheduler counts: all containers and sidecars together, or the largest step of the start-up.

    A request of the pod itself takes the place of both. It is no smaller, or the API server refuses the pod.
    """

    def of(container_or_pod: Document) -> float:
        resources = container_or_pod.get("resources") or {}
        return parse_quantity((resources.get("requests") or {}).get(resource, "0"))

    sidecars = largest = 0.0
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars += of(container)
        largest = max(largest, sidecars + (0 if container.get("restartPolicy") == "Always" else of(container)))
    together = sidecars + sum(of(container) for container in spec["containers"])
    overhead = parse_quantity((spec.get("overhead") or {}).get(resource, "0"))
    return max(together, largest, of(spec)) + overhead


def is_lost(node: Document) -> bool:
    """True if the cluster has heard nothing of the node for its grace period, or has it no more."""
    taints = node["spec"].get("taints") or ()
    return any(taint["key"] == _LOST_TAINT for taint in taints)


def capacity(nodes: Iterable[Document], pods: Iterable[Usage | None], options: KubernetesOptions) -> list[Node]:
    """All nodes by name, with what others leave of them."""
    taken: dict[str, list[Usage]] = defaultdict(list)
    for entry in pods:
        if entry is not None:
            taken[entry.node].append(entry)
    result = [_node(node, taken[node["metadata"]["name"]], options) for node in nodes]
    return sorted(result, key=lambda node: node.name)


def _node(node: Document, taken: Iterable[Usage], options: KubernetesOptions) -> Node:
    taken = list(taken)
    status, labels = node.get("status") or {}, node["metadata"].get("labels") or {}
    room = status.get("allocatable") or {}
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    gpus = parse_quantity(room.get(options.gpu_resource, "0")) - sum(entry.gpus for entry in taken)
    devices = {name: int(parse_quantity(room.get(name, "0"))) for name in options.devices}
    for name, count in (held for entry in taken for held in entry.devices):
        devices[name] = max(0, devices[name] - count)
    pods = room.get("pods")
    pressure = "; ".join(text for kind, text in _PRESSURES.items() if conditions.get(kind) == "True")
    return Node(
        name=node["metadata"]["name"],
        cpus=max(0.0, parse_quantity(room.get("cpu", "0")) - sum(entry.cpus for entry in taken)),
        memory=max(0, int(parse_quantity(room.get("memory", "0")) - sum(entry.memory for entry in taken))),
        gpus=max(0, int(gpus)),
        gpu_type=str(labels.get(options.gpu_label, "")),
        devices=as_devices(devices),
        slots=max(0, int(parse_quantity(pods)) - len(taken)) if pods is not None else None,
        ready=conditions.get("Ready") == "True" and not _refuses(node, options),
        only_gpus=any(taint["key"] == options.gpu_resource for taint in _hard_taints(node)),
        pressure=pressure,
        labels={**labels, ISOLATION_LABEL: "pod"},
    )


def _refuses(node: Document, options: KubernetesOptions) -> bool:
    """True if no learner may be placed on it: it is cordoned, or has a taint that no learner tolerates."""
    if node["spec"].get("unschedulable"):
        return True
    return any(taint["key"] != options.gpu_resource for taint in _hard_taints(node))


def _hard_taints(node: Document) -> list[Document]:
    """The taints that keep pods away. Learners with GPUs tolerate the one of the GPUs' resource."""
    return [taint for taint in node["spec"].get("taints") or () if taint["effect"] != "PreferNoSchedule"]
