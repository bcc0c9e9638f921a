"""What the operator reads while a probe pod tries the cluster before the first job."""

from __future__ import annotations

import json
from pathlib import Path

from services.core.adapters.kubernetes import tenants
from services.core.adapters.kubernetes.api import Api
from services.core.adapters.kubernetes.probe import Check, probe
from tests.testbed.kubernetes.learner_pods import RUNNING, Document, ended, pod
from tests.testbed.kubernetes.options import OPTIONS
from tests.testbed.scripted_http import Answer, Request, json_answer
from tests.unit.test_kubernetes_api import serving, status

_REPORT = ended(0, {"checks": [["answer", ""]]})
_STARTING: Document = {"waiting": {"reason": "PodInitializing"}}
_LIFE = (pod() | {"spec": {}}, pod(), pod(RUNNING, _STARTING), pod(_REPORT, _STARTING), pod(_REPORT, RUNNING))
"""The pod as it is read, one time after the other."""


async def test_operator_reads_each_step_of_the_probe_pod(tmp_path: Path) -> None:
    states = iter(_LIFE)
    is_there = False

    def answer(request: Request, _: int) -> Answer:
        nonlocal is_there
        path = request.path.partition("?")[0]
        if request.method == "POST":
            is_there = is_there or path.endswith("/pods")
            document = json.loads(request.body)
            return json_answer(document | {"metadata": document["metadata"] | {"uid": "u", "resourceVersion": "1"}})
        if path.endswith("-probe-0"):
            is_there = is_there and request.method != "DELETE"
        if request.method != "GET":
            return json_answer({})
        if "/configmaps/" in path:
            return status(404, "no such ConfigMap")
        if "/pods/" not in path:
            return json_answer(tenants.namespace("t", OPTIONS))
        return json_answer(next(states)) if is_there else status(404, "no such pod")

    messages: list[str] = []
    with serving(tmp_path / "k", answer):
        api = Api(tmp_path / "k")
        checks = await probe(api, OPTIONS, tenant="t", urls=[], report=messages.append)
        await api.close()
    assert checks == [Check(name="image"), Check(name="metrics")]
    assert messages == [
        "checking the cluster with a pod in weft-t",
        "waiting for a node",
        f"n1 fetches {OPTIONS.helper_image}",
        f"n1 has {OPTIONS.helper_image}; the pod tries to reach this machine",
        f"n1 fetches {OPTIONS.learner_image}",
    ]
