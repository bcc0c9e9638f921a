"""Simulated nodes, by kwok (sigs.k8s.io/kwok): objects that report as nodes do, and whose pods run in name only."""

from __future__ import annotations

from typing import Any


def nodes(count: int, *, gpus: int, tainted: bool) -> list[dict[str, Any]]:
    """Returns node objects.

    ``tainted``: only pods that tolerate ``kwok.x-k8s.io/node`` are placed there, because there are real nodes beside.
    """
    return [_node(number, gpus, tainted=tainted) for number in range(count)]


def _node(number: int, gpus: int, *, tainted: bool) -> dict[str, Any]:
    name = f"simulated-{number:04}"
    amounts = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
    taints = [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "nvidia.com/gpu.product": "Simulated-GPU",
                "type": "kwok",
            },
        },
        "spec": {"taints": taints if tainted else []},
        "status": {"allocatable": amounts, "capacity": amounts},
    }
