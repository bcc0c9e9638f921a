"""Pods for tests of a cluster: one container that runs a shell script, admitted by Pod Security ``restricted``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def script_pod(
    name: str,
    image: str,
    script: str,
    *,
    labels: Mapping[str, str] | None = None,
    limits: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Returns the pod. ``limits``: also what it requests. ``spec``: more of its spec."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65534,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "command": ["/bin/sh", "-c", script],
                    "resources": {"limits": dict(limits or {})},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
            **spec,
        },
    }


def headless_service(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Returns a Service by which the pods with these labels and subdomain ``name`` get names, also unready ones."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"clusterIP": "None", "selector": dict(labels), "publishNotReadyAddresses": True},
    }
