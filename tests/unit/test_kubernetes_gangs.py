"""How gangs are placed on a cluster that changes while the platform runs."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from services.core.adapters.kubernetes import objects, pods
from services.core.adapters.kubernetes.api import Api
from services.core.adapters.kubernetes.cluster import KubernetesCluster
from services.core.adapters.kubernetes.options import GangMethod
from services.core.domain.errors import NotFound
from services.core.domain.status_keys import attempt_key
from tests.documents import a_learner, a_plan
from tests.testbed.kubernetes.options import OPTIONS
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.testbed.scripted_http import Answer, Request, json_answer
from tests.unit.test_kubernetes_api import listed, serving, status

GROUP = "/apis/scheduling.k8s.io/v1alpha2"


async def test_gangs_are_placed_by_the_dispatcher_once_an_upgrade_has_removed_the_api_of_gang_objects(
    tmp_path: Path,
) -> None:
    """Each attempt of every job waited for its timeout, and jobs were FAILED, until the guardian was started again."""
    plan = a_plan(a_learner(memory=2**26))
    own = {"uid": "u1", "resourceVersion": "1"}
    owner, pod = objects.owner(plan, OPTIONS), pods.pod(plan, plan.learners[0], OPTIONS, "u1", gang=GangMethod.NATIVE)
    for document in (owner, pod):
        document["metadata"] |= own
    is_upgraded = threading.Event()

    def answer(request: Request, _: int) -> Answer:
        path = urlsplit(request.path).path
        if path.startswith(GROUP) and is_upgraded.is_set():
            return status(404, "the server could not find the requested resource", "NotFound")
        if path == GROUP:
            return json_answer({"resources": [{"name": "podgroups"}]})
        if path.endswith("/pods"):
            return listed(pod, version=1)
        return json_answer(owner)

    store = MemoryStatusStore()
    await store.put(attempt_key("j"), json.dumps({"attempt": 1, "learners": 1}))
    with serving(tmp_path / "k", answer):
        cluster = KubernetesCluster(Api(tmp_path / "k"), OPTIONS, store)
        assert await cluster.gang_method() is GangMethod.NATIVE
        is_upgraded.set()
        with pytest.raises(NotFound):
            await cluster.do("activate", plan)
        assert await cluster.gang_method() is GangMethod.GATES
        await cluster.do("activate", plan)
        await cluster.close()
