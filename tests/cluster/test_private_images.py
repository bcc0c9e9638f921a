"""Images of a private registry: a node's containerd pulls them with the tenant's own credentials, or says why not."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import Api, Document, collection
from services.core.adapters.kubernetes.options import GangMethod
from services.core.domain.plan import AttemptPlan
from services.core.ports.cluster import LearnerProcess
from tests.testbed.gangs import await_exit, learner, start, teardown
from tests.testbed.kubernetes.accounts import Installed
from tests.testbed.kubernetes.cluster import Cluster as Machines
from tests.testbed.kubernetes.images import write_private_image
from tests.testbed.kubernetes.kubectl import KubectlError
from tests.testbed.kubernetes.options import OPTIONS
from tests.testbed.kubernetes.registries import private_registry
from tests.testbed.kubernetes.stand_in import AnnouncingCluster, StandIn, pods_of, standing_in
from tests.testbed.kubernetes.tenants_secret import PASSWORD, TenantsSecret
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.testbed.node import plan
from tests.waiting import until

# Bound to a node: only this one reaches the registry.
BOUND: Final = replace(OPTIONS, gang=GangMethod.GATES)


@pytest.fixture(scope="module")
def registry(testbed_cluster: Machines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    archive = write_private_image(tmp_path_factory.mktemp("images"))
    node = testbed_cluster.nodes[0].machine.pid
    with private_registry(node, archive, username="ada", password=PASSWORD) as address:
        yield address


@pytest.fixture
def secret(registry: str, request: pytest.FixtureRequest) -> TenantsSecret:
    return TenantsSecret(f"{registry}/private/{request.node.name[5:25].replace('_', '-')}x:1")


@pytest.fixture
async def cluster(
    testbed_cluster: Machines, accounts: Installed, api: Api, secret: TenantsSecret
) -> AsyncGenerator[AnnouncingCluster]:
    """With the service account of the guardian."""
    status = MemoryStatusStore()
    lcm = AnnouncingCluster(Api(accounts.lcm), BOUND, status)
    client = AnnouncingCluster(Api(accounts.guardian), BOUND, status, lcm=lcm, credentials=secret)
    await client.prepare("t")
    async with standing_in(StandIn(api, testbed_cluster, BOUND, status)):
        yield client
    await client.close()


def a_gang(secret: TenantsSecret, command: str = "exit 0") -> AttemptPlan:
    full = plan([command])
    only = replace(full.learners[0], cpus=0.05, memory=2**26, node="node-1")
    return replace(full, learners=(only,), image=secret.image, image_pull_secret="registry")


def secret_path(gang: AttemptPlan) -> str:
    namespace = names.namespace_of(gang.tenant, BOUND.namespace_prefix)
    return collection("Secret", namespace, f"weft-{gang.job}-{gang.attempt}-pull")


async def objects(api: Api, gang: AttemptPlan, kind: str) -> list[Document]:
    namespace = names.namespace_of(gang.tenant, BOUND.namespace_prefix)
    items, _ = await api.list(collection(kind, namespace), selector=names.of_job(gang.job, BOUND.installation))
    return list(items)


async def test_learner_trains_in_an_image_that_only_the_tenants_secret_can_pull(
    cluster: AnnouncingCluster, api: Api, secret: TenantsSecret
) -> None:
    gang = a_gang(secret)
    await start(cluster, gang)
    assert (await await_exit(cluster, gang)).ok
    made: Any = await api.get(secret_path(gang))
    (owner,) = await objects(api, gang, "ConfigMap")
    assert made["type"] == "kubernetes.io/dockerconfigjson"
    assert made["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]
    (pod,) = (await pods_of(api, BOUND, gang.job)).values()
    assert {"name": made["metadata"]["name"]} in pod["spec"]["imagePullSecrets"]
    encoded = made["data"][".dockerconfigjson"]
    for document in (owner, pod):
        text = json.dumps(document)
        assert encoded not in text
        assert PASSWORD not in text
    for step in cluster.steps():  # as the Guardian that takes over
        await cluster.do(step, gang)
    assert secret.calls == 1
    await teardown(cluster, gang)
    assert await objects(api, gang, "Secret") == []
    assert await objects(api, gang, "ConfigMap") == []


async def test_wrong_password_is_reported_with_the_name_of_the_secret_and_without_its_value(
    cluster: AnnouncingCluster, api: Api, secret: TenantsSecret
) -> None:
    secret.password = "canary-that-is-wrong"
    gang = a_gang(secret)
    await start(cluster, gang)

    async def refused() -> LearnerProcess | None:
        process = await learner(cluster, gang)
        return process if process.blocked == "ImagePullFailed" else None

    process = await until(refused)
    assert process is not None
    assert process.blocked_for_good
    assert "the secret 'registry' of image_pull_secret" in process.blocked_message
    assert "canary" not in process.blocked_message
    await teardown(cluster, gang)
    assert await objects(api, gang, "Secret") == []


async def test_secret_that_was_made_late_is_removed_with_its_owner(
    cluster: AnnouncingCluster, api: Api, secret: TenantsSecret
) -> None:
    gang = a_gang(secret, "exec sleep 1000")
    await cluster.do("reserve", gang)
    made: Any = await api.get(secret_path(gang))
    await teardown(cluster, gang)
    late = {name: value for name, value in made["metadata"].items() if name not in {"uid", "resourceVersion"}}
    await api.create(secret_path(gang).rpartition("/")[0], {**made, "metadata": late})

    async def gone() -> bool:
        return await objects(api, gang, "Secret") == []

    await until(gone)


async def test_learners_account_may_not_read_the_secret(
    testbed_cluster: Machines, cluster: AnnouncingCluster, secret: TenantsSecret
) -> None:
    gang = a_gang(secret, "exec sleep 1000")
    await cluster.do("reserve", gang)
    namespace = names.namespace_of(gang.tenant, BOUND.namespace_prefix)
    account = f"--as=system:serviceaccount:{namespace}:default"
    kubectl = replace(testbed_cluster.kubectl, namespace=namespace)
    with pytest.raises(KubectlError, match="Forbidden"):
        kubectl("get", "secret", secret_path(gang).rpartition("/")[2], account)
    await teardown(cluster, gang)
