"""What the simulated scheduler and kubelets read of pods, and the statuses that they write: pure functions."""

from __future__ import annotations

from services.core.domain.learner import Exit
from services.core.runtime.pod_layout import HELPER_CONTAINER, LEARNER_CONTAINER, STORE_TIMEOUT_VARIABLE
from tests.simulation.api_server import Document, Key


def key_of(document: Document) -> Key:
    return document["metadata"].get("namespace", ""), document["metadata"]["name"]


def path_of(pod: Document) -> str:
    namespace, name = key_of(pod)
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def is_gated(pod: Document) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def affinity_of(pod: Document) -> tuple[str, str]:
    """(required node, preferred node) of a pod; empty for none."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [{}])[0]
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [{}])[0].get("preference", {})
    first, second = (
        fields[0]["values"][0] if (fields := term.get("matchFields")) else "" for term in (required, preferred)
    )
    return first, second


def containers(state: str, fields: Document, *, helper: Document | None = None) -> Document:
    """The statuses of both containers."""
    of_helper = {state: fields if helper is None else helper}
    return {
        "initContainerStatuses": [{"name": HELPER_CONTAINER, "state": of_helper}],
        "containerStatuses": [{"name": LEARNER_CONTAINER, "state": {state: fields}}],
    }


def record_of_end(exited: Exit) -> Document:
    """What the entry process writes of an end."""
    fields = ("time", "code", "signal", "stop_cause", "lost", "oom")
    return {"schema": 1, "run": 1} | {name: getattr(exited, name) for name in fields}


def store_timeout_s(pod: Document | None) -> float:
    if pod is None:
        return 0.0
    variables = {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}
    return float(variables[STORE_TIMEOUT_VARIABLE])
