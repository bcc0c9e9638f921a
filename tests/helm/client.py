"""A client in a pod of the cluster, which uses the platform beside an upgrade (``client_in_pod``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.helm.installation import NAMESPACE, RELEASE, Installation
from tests.helm.ticking import LONG_S
from tests.waiting import eventually

Observed = dict[str, Any]
_SOURCE: Final = Path(__file__).with_name("client_in_pod.py")


@contextmanager
def client(installed: Installation) -> Generator[Callable[[], Observed]]:
    """Yields what ends the client, and returns what it observed: requests, errors, jobs, not completed, followed."""
    _start(installed)
    try:
        yield lambda: _end(installed)
    finally:
        installed.kubectl("delete", "pod", "client", "--grace-period=0", "--force")


def _start(installed: Installation) -> None:
    """As the pod of `helm test`, with another command."""
    (text,) = (
        text for text in installed.helm("get", "hooks", RELEASE).split("---\n") if "templates/tests/training" in text
    )
    pod = installed.kubectl("create", "--dry-run=client", "--filename=-", "--output=json", text=text)
    document = json.loads(pod)
    document["metadata"] = {"name": "client", "labels": document["metadata"]["labels"]}
    (container,) = document["spec"]["containers"]
    url = f"http://{RELEASE}-api.{NAMESPACE}.svc.cluster.local:8080"
    container["command"] = ["python", "-c", _SOURCE.read_text(), url]
    installed.kubectl.create(document)
    installed.kubectl.wait_phase("Running", "client")


def _end(installed: Installation) -> Observed:
    installed.kubectl("exec", "client", "--", "touch", "/tmp/end")
    eventually(lambda: installed.kubectl.get("pod", "client")["status"]["phase"] in {"Succeeded", "Failed"}, LONG_S)
    log = installed.kubectl.log("client")
    try:
        observed: Observed = json.loads(log.splitlines()[-1])
    except (IndexError, ValueError):
        raise AssertionError(log) from None
    return observed
