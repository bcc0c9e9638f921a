"""Documents of a learner's pod as an API server has them, for tests without one."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, Final

from services.core.adapters.kubernetes import names
from services.core.domain.learner import LearnerStatus
from services.core.domain.status import Phase

Document = dict[str, Any]
NOW: Final = 1_800_000_000_000
ENDED: Final = "2027-01-15T07:59:50Z"
ENDED_MS: Final = NOW - 10_000
RUNNING: Final[Document] = {"running": {"startedAt": ENDED}}
DISRUPTED: Final[Document] = {"type": "DisruptionTarget", "status": "True", "reason": "", "message": ""}


def pod(helper: Document | None = None, learner: Document | None = None, **fields: Any) -> Document:
    """``fields``: gated, annotations, and of the status."""
    gated, annotations = fields.pop("gated", False), fields.pop("annotations", {})
    status: Document = {"phase": "Running", **fields}
    if helper is not None:
        status["initContainerStatuses"] = [{"name": "helper", "image": "h", "state": helper}]
    if learner is not None:
        status["containerStatuses"] = [{"name": "learner", "image": "l", "state": learner}]
    return {
        "metadata": {
            "name": "weft-j1-1-worker-0",
            "uid": "u",
            "labels": {names.LEARNER: "worker-0", names.ATTEMPT: "1", names.JOB: "j1"},
            "annotations": {names.SIZE: '{"cpus": 1.5, "memory": 7, "gpus": 2}', **annotations},
        },
        "spec": {"nodeName": "n1"} | ({"schedulingGates": [{"name": "weft.dev/gang"}]} if gated else {}),
        "status": status,
    }


def ended(code: int, message: object = "", reason: str = "Error") -> Document:
    text = message if isinstance(message, str) else json.dumps(message)
    return {
        "terminated": {"exitCode": code, "reason": reason, "finishedAt": ENDED, "startedAt": ENDED, "message": text}
    }


def record(**fields: Any) -> Document:
    """The entry script's record."""
    return {
        "schema": 1,
        "time": ENDED_MS,
        "code": None,
        "signal": None,
        "stop_cause": "",
        "lost": False,
        "run": 1,
        **fields,
    }


def report(phase: Phase, **fields: Any) -> LearnerStatus:
    return LearnerStatus(name="worker-0", role="worker", rank=0, attempt=1, seq=1, phase=phase, **fields)


def deleted(end: Document, *, after_s: float) -> Document:
    """A pod that was deleted so long before its container ended."""
    document = pod(RUNNING, end)
    until = datetime.fromisoformat(ENDED) + timedelta(seconds=1 - after_s)
    return {
        **document,
        "metadata": {
            **document["metadata"],
            "deletionTimestamp": until.isoformat(),
            "deletionGracePeriodSeconds": 1,
        },
    }


STARTED: Final = report(Phase.PROCESSING, times={"PROCESSING": ENDED_MS - 60_000})
