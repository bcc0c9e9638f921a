"""The job that makes keys, on a real API server: it never replaces what opens stored data."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from services.core.adapters.kubernetes.api import Api
from services.core.domain.errors import Conflict
from services.local.cluster_keys import ClusterSecrets, run
from tests.helm.installation import Installation
from tests.testbed.kubernetes.kubectl import Kubectl

T = TypeVar("T")
NAMES = ("api", "guardian", "mongodb")
HOSTS = {name: f"weft-{name}.keys.svc.cluster.local" for name in (*NAMES, "lcm", "metrics", "node", "worker", "etcd")}


class Keys:
    """The command, in a namespace without the rest of the chart."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl = Kubectl(kubectl.program, kubectl.kubeconfig, namespace)
        self._namespace = namespace

    def run(self, *volumes: str) -> list[str]:
        return self.call(lambda cluster: run(cluster, HOSTS, NAMES, volumes=volumes))

    def run_twice_at_once(self) -> list[list[str]]:
        async def both(cluster: ClusterSecrets) -> list[list[str]]:
            return await asyncio.gather(*(run(cluster, HOSTS, NAMES) for _ in range(2)))

        return self.call(both)

    def call(self, command: Callable[[ClusterSecrets], Awaitable[T]]) -> T:
        async def call() -> T:
            api = Api(self.kubectl.kubeconfig)
            try:
                return await command(ClusterSecrets(api, self._namespace, "weft", "weft"))
            finally:
                await api.close()

        return asyncio.run(call())

    def secrets(self) -> dict[str, dict[str, str]]:
        listed = json.loads(self.kubectl("get", "secrets", "--output=json"))["items"]
        return {secret["metadata"]["name"]: secret["data"] for secret in listed}

    def remove(self, name: str) -> None:
        self.kubectl("delete", "secret", name)


@pytest.fixture
def keys(new_cluster: Installation) -> Keys:
    namespace = f"keys-{uuid.uuid4().hex[:8]}"
    kubectl = new_cluster.cluster.kubectl
    kubectl.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    return Keys(kubectl, namespace)


def test_a_second_run_writes_nothing_and_a_lost_copy_of_a_service_is_written_again(keys: Keys) -> None:
    assert keys.run() == ["installation", *NAMES]
    before = keys.secrets()
    assert keys.run() == []
    keys.remove("weft-api")
    assert keys.run() == ["api"]
    assert keys.secrets() == before


def test_two_runs_at_the_same_time_leave_one_set_of_keys(keys: Keys) -> None:
    keys.run_twice_at_once()
    made = keys.secrets()
    kept = base64.b64decode(made["weft-installation"]["secret.master-key"])
    assert base64.b64decode(made["weft-api"]["master-key"]) == kept
    assert keys.run() == []


def test_an_upgrade_after_the_loss_of_the_installations_secret_keeps_the_last_copies(keys: Keys) -> None:
    keys.run()
    keys.remove("weft-installation")
    before = keys.secrets()
    with pytest.raises(Conflict, match=r"weft-installation is gone, .*Secret weft-api.*Nothing was changed"):
        keys.run()
    assert keys.secrets() == before


def test_new_keys_are_not_made_where_a_volume_has_data_of_an_installation(keys: Keys) -> None:
    resources = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": resources, "storageClassName": "none"}
    metadata = {"name": "data-weft-mongodb-0"}
    keys.kubectl.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    with pytest.raises(Conflict, match=r"PersistentVolumeClaim data-weft-mongodb-0\. Nothing was changed"):
        keys.run("data-weft-metrics-0", "data-weft-mongodb-0")
    assert "weft-installation" not in keys.secrets()


def test_a_change_between_read_and_write_is_not_overwritten(keys: Keys) -> None:
    keys.run()
    keys.kubectl("patch", "secret", "weft-guardian", "--type=merge", '--patch={"data": {"identity": "YQ=="}}')

    async def write_what_was_read_before(cluster: ClusterSecrets) -> None:
        before = await cluster.read("guardian")
        keys.kubectl("patch", "secret", "weft-guardian", "--type=merge", '--patch={"data": {"identity": "Yg=="}}')
        await cluster.write("guardian", {"identity": b"c"}, before)

    with pytest.raises(Conflict):
        keys.call(write_what_was_read_before)
    assert keys.secrets()["weft-guardian"]["identity"] == "Yg=="
