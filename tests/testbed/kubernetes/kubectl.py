"""kubectl for tests: on the test cluster, or on anybody's with whatever its kubeconfig demands."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.waiting import HANG_S

Object = dict[str, Any]
_NOT_STARTED: Final = (
    "waiting to start",
    "is not assigned to",
    "could not find the requested resource",  # its node's kubelet has not heard of the pod
    "is not available",  # the kubelet has not begun with it
)
"""In what is answered for the log of a container that has not started."""


class KubectlError(RuntimeError):
    """kubectl's own complaint."""


@dataclass(frozen=True)
class Kubectl:
    program: Path
    kubeconfig: Path
    namespace: str = "default"

    def __call__(self, *arguments: str, text: str = "") -> str:
        """Returns the output. Raises KubectlError if it fails. ``text``: for --filename=-."""
        options = [f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}"]
        done = subprocess.run(
            [self.program, *options, *arguments], input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def create(self, *objects: Mapping[str, object], dry_run: bool = False) -> None:
        """``dry_run``: the API server validates and admits them, and stores nothing."""
        documents = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        options = ("--dry-run=server",) if dry_run else ()
        self("create", "--filename=-", *options, text=json.dumps(documents))

    def get(self, kind: str, name: str) -> Object:
        """Raises KubectlError if there is none."""
        document: Object = json.loads(self("get", kind, name, "--output=json"))
        return document

    def list(self, kind: str) -> list[Object]:
        listed: list[Object] = json.loads(self("get", kind, "--output=json"))["items"]
        return listed

    def wait(self, condition: str, *names: str) -> None:
        """Waits for objects, e.g. ``wait("condition=Ready", "node/node-1")``. Raises KubectlError after two minutes."""
        self("wait", f"--for={condition}", f"--timeout={HANG_S:.0f}s", *names)

    def wait_phase(self, phase: str, *pods: str) -> None:
        self.wait(f"jsonpath={{.status.phase}}={phase}", *(f"pod/{pod}" for pod in pods))

    def log(self, pod: str) -> str:
        """Empty as long as its container has not started."""
        try:
            return self("logs", pod)
        except KubectlError as error:
            if any(text in str(error) for text in _NOT_STARTED):
                return ""
            raise


def condition(document: Object, kind: str) -> Object:
    """Returns a condition of an object's status; empty if it has none of this kind."""
    conditions: list[Object] = document.get("status", {}).get("conditions") or []
    return next((entry for entry in conditions if entry["type"] == kind), {})
