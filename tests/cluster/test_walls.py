"""What the API server refuses: rights of the service accounts, admission policies, and tenants towards each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
import pytest_asyncio

from services.core.adapters.kubernetes import entry_scripts, names, objects, pods, tenants
from services.core.adapters.kubernetes.api import Api, Document, collection, path_of
from services.core.adapters.kubernetes.entry_scripts import EntryScripts
from services.core.adapters.kubernetes.options import GangMethod
from services.core.domain.errors import (
    AdmissionDenied,
    Duplicate,
    InvalidRequest,
    ResourceExhausted,
    Unavailable,
    WeftError,
)
from services.core.runtime import pod_layout
from tests.testbed.kubernetes.accounts import install, kubeconfig
from tests.testbed.kubernetes.cluster import Cluster
from tests.testbed.kubernetes.forbidden import Request, never, of_any, only_for_guardian, only_for_lcm
from tests.testbed.kubernetes.hostile_pods import (
    OPTIONS,
    TENANT,
    friendly_pod,
    friendly_service,
    hostile_pods,
    leaving_pods,
    older_pod,
    plan,
)
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
SPACE: Final = names.namespace_of(TENANT, OPTIONS.namespace_prefix)
ALONE: Final = "alone-with-the-policies"
"""A namespace with the labels of a tenant's, and without Pod Security."""


@dataclass(frozen=True)
class Walls:
    admin: Api
    lcm: Api
    guardian: Api
    services: Api
    learner: Api
    """The account of the tenant's pods."""
    other_learner: Api
    """The account of another tenant's pods."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def walls(testbed_cluster: Cluster) -> AsyncGenerator[Walls]:
    """The lcm has prepared two tenants under its own account."""
    installed = install(testbed_cluster, OPTIONS)
    async with AsyncExitStack() as stack:

        def connected(path: Any) -> Api:
            api = Api(path)
            stack.push_async_callback(api.close)
            return api

        admin, lcm = connected(testbed_cluster.kubeconfig), connected(installed.lcm)
        await until(lambda: _policies_act(admin))
        for tenant in (TENANT, "other"):
            await tenants.prepare(lcm, tenant, OPTIONS)
        learners = [
            connected(kubeconfig(testbed_cluster, f"walls-{tenant}", "default")) for tenant in (TENANT, "other")
        ]
        walls = Walls(admin, lcm, connected(installed.guardian), connected(installed.services), *learners)
        await until(lambda: _may(walls.guardian, Request("GET", f"/api/v1/namespaces/{SPACE}/pods")))
        yield walls


async def _policies_act(admin: Api) -> bool:
    """True once they refuse a pod in a namespace without Pod Security. Makes what hostile pods refer to."""
    labels = names.tenant_labels(TENANT, OPTIONS.installation)
    scheduling, nodes = "/apis/scheduling.k8s.io/v1/priorityclasses", "/apis/node.k8s.io/v1/runtimeclasses"
    for path, document in (
        ("/api/v1/namespaces", {"metadata": {"name": ALONE, "labels": labels}}),
        (scheduling, {"metadata": {"name": "walls-high"}, "value": 5}),
        (scheduling, {"metadata": {"name": "other"}, "value": 5}),
        (nodes, {"metadata": {"name": "other"}, "handler": "other"}),
        (f"/api/v1/namespaces/{ALONE}/serviceaccounts", {"metadata": {"name": "other"}}),
        (f"/api/v1/namespaces/{ALONE}/serviceaccounts", {"metadata": {"name": "default"}}),
    ):
        with suppress(Duplicate):
            await admin.create(path, document)
    bare = {"metadata": {"name": "bare"}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    return "ValidatingAdmissionPolicy" in await refusal(admin, bare, ALONE)


async def refusal(api: Api, pod: Document, namespace: str) -> str:
    """Why the API server does not create the pod; empty: it would. Creates nothing."""
    document = {**pod, "metadata": {**pod["metadata"], "namespace": namespace}}
    try:
        await _answered(lambda: api.create(f"{collection('Pod', namespace)}?dryRun=All", document))
    except WeftError as error:
        return str(error)
    return ""


async def _answered(call: Callable[[], Awaitable[object]]) -> None:
    """Calls again while the API server does not answer: many calls at once may take a busy one too long."""
    async with asyncio.timeout(HANG_S):
        while True:
            try:
                await call()
            except Unavailable as error:
                if "does not answer" not in str(error):
                    raise
            else:
                return


async def _may(api: Api, request: Request) -> bool:
    """Whether the request gets past rights and policies. Nothing is changed."""
    path = request.path
    if request.method != "GET":
        path += ("&" if "?" in path else "?") + "dryRun=All"
    content = "application/merge-patch+json" if request.method == "PATCH" else "application/json"
    try:
        await _answered(
            lambda: api._request(request.method, path, body=dict(request.body or {}) or None, content_type=content)
        )
    except WeftError as error:  # others: the server looked for the object, or at the document
        refused = (isinstance(error, Unavailable) and "forbidden" in str(error)) or (
            "ValidatingAdmissionPolicy '" in str(error)
        )
        return not refused
    return True


async def _allowed(api: Api, requests: Sequence[Request]) -> list[str]:
    results = await asyncio.gather(*(_may(api, request) for request in requests))
    return [request.name for request, allowed in zip(requests, results, strict=True) if allowed]


async def test_each_service_account_is_refused_more_than_forty_requests(walls: Walls) -> None:
    for_all = never(SPACE)
    forbidden = {
        "lcm": [*for_all, *only_for_guardian(SPACE)],
        "guardian": [*for_all, *only_for_lcm(SPACE)],
        "services": [*for_all, *of_any(SPACE)],
        "learner": [*for_all, *of_any(SPACE)],
    }
    assert min(len({request.name for request in requests}) for requests in forbidden.values()) >= 40
    for account, requests in forbidden.items():
        assert (account, await _allowed(getattr(walls, account), requests)) == (account, [])


async def test_requests_that_are_refused_to_one_account_are_those_of_another(walls: Walls) -> None:
    """Otherwise a request that nobody can make would count as refused."""
    for api, requests in ((walls.guardian, only_for_guardian(SPACE)), (walls.lcm, only_for_lcm(SPACE))):
        assert await _allowed(api, requests) == [request.name for request in requests]
    left = await _allowed(walls.admin, never(SPACE))
    assert left == [request.name for request in never(SPACE)]


async def test_two_tenants_cannot_touch_each_other_through_the_api(walls: Walls) -> None:
    other = names.namespace_of("other", OPTIONS.namespace_prefix)
    for learner, spaces in ((walls.learner, (SPACE, other)), (walls.other_learner, (other, SPACE))):
        for space in spaces:
            assert await _allowed(learner, of_any(space)) == []


async def test_rendered_pods_and_services_are_admitted_by_restricted_and_by_the_policies(walls: Walls) -> None:
    attempt = plan()
    for gang in (GangMethod.NATIVE, GangMethod.GATES):
        for learner in attempt.learners:
            pod = pods.pod(attempt, learner, OPTIONS, "3f1c6c5e-0000-4000-8000-000000000000", gang=gang)
            assert await refusal(walls.guardian, pod, SPACE) == ""
    service = friendly_service()
    await walls.guardian.create(f"{path_of(service, of_collection=True)}?dryRun=All", service)


async def test_secret_to_pull_images_with_is_in_the_tenants_namespace_and_the_guardian_cannot_remove_it(
    walls: Walls,
) -> None:
    path = collection("Secret", SPACE, names.PULL_SECRET)
    assert (await walls.admin.get(path))["type"] == "kubernetes.io/dockerconfigjson"
    of_installation = [{"name": names.PULL_SECRET}, {"name": "team-registry"}]
    assert friendly_pod()["spec"]["imagePullSecrets"][1:] == of_installation
    with pytest.raises(AdmissionDenied, match="what belongs to the tenant"):
        await walls.guardian.delete(path)


async def test_each_hostile_pod_is_refused_by_the_policies_alone(walls: Walls) -> None:
    assert await refusal(walls.admin, friendly_pod(), ALONE) == ""
    hostile = list(hostile_pods())
    assert len(hostile) >= 200
    reasons = await asyncio.gather(*(refusal(walls.admin, entry.pod(), ALONE) for entry in hostile))
    let_through = [
        (entry.name, reason)
        for entry, reason in zip(hostile, reasons, strict=True)
        if "ValidatingAdmissionPolicy 'walls-pods'" not in reason
    ]
    assert let_through == []


async def test_folder_outside_of_its_volume_is_refused(walls: Walls) -> None:
    for hostile in leaving_pods():
        assert "subPath" in await refusal(walls.admin, hostile.pod(), ALONE), hostile.name


async def test_pod_of_the_version_before_is_admitted_and_starts_while_an_upgrade_is_under_way(walls: Walls) -> None:
    attempt = plan("j01m81m6wwmrnwpzxnhp33a")
    owner = await walls.guardian.create(collection("ConfigMap", SPACE), objects.owner(attempt, OPTIONS))
    pod = older_pod(owner["metadata"]["uid"], attempt.job)
    present = await walls.guardian.create(collection("Pod", SPACE), pod)
    try:
        patch = pods.activation(present, attempt.learners[0], OPTIONS, gang=GangMethod.GATES)
        lifted = await walls.guardian.patch(path_of(pod), patch)
        assert not lifted["spec"].get("schedulingGates")
    finally:
        await walls.guardian.delete(path_of(pod), grace_s=0)
        await walls.guardian.delete(collection("ConfigMap", SPACE, owner["metadata"]["name"]))


async def test_entry_script_of_a_tenant_is_shared_and_immutable(walls: Walls) -> None:
    path = collection("ConfigMap", SPACE, entry_scripts.name_of(OPTIONS))
    for _ in range(2):
        await EntryScripts(walls.guardian, OPTIONS).ensure(TENANT)
    assert (await walls.guardian.get(path))["data"] == {pod_layout.ENTRY_FILE: OPTIONS.entry_script}
    with pytest.raises(InvalidRequest, match="immutable"):
        await walls.guardian.patch(path, {"data": {pod_layout.ENTRY_FILE: "exec /weft/job/evil"}})
    with pytest.raises(Unavailable, match="namespace is not there yet"):
        await EntryScripts(walls.admin, OPTIONS).ensure("tenant-without-namespace")


async def test_learners_do_not_run_a_script_that_somebody_else_has_put_in_the_place_of_the_entry_script(
    walls: Walls,
) -> None:
    """Its name is known: it is a digest of a public file."""
    options = replace(OPTIONS, entry_script="#!/bin/sh\n# of the next version\n")
    document = entry_scripts.config_map(TENANT, options)
    path = path_of(document)
    for forged in ({"data": {pod_layout.ENTRY_FILE: "exec /weft/job/evil"}}, {"immutable": False}):
        await walls.admin.create(path_of(document, of_collection=True), {**document, **forged})
        with pytest.raises(ResourceExhausted, match="is not of Weft; remove it"):
            await EntryScripts(walls.guardian, options).ensure(TENANT)
        await walls.admin.delete(path)
    scripts = EntryScripts(walls.guardian, options)
    await scripts.ensure(TENANT)
    await walls.admin.delete(path)
    await scripts.ensure(TENANT, anew=True)
    assert (await walls.guardian.get(path))["data"] == document["data"]


async def test_admitted_pod_cannot_be_changed_into_a_hostile_one(walls: Walls) -> None:
    attempt = plan("j01m81m6wwmrnwpzxnhp32a")
    owner = await walls.guardian.create(collection("ConfigMap", SPACE), objects.owner(attempt, OPTIONS))
    pod = pods.pod(attempt, attempt.learners[0], OPTIONS, owner["metadata"]["uid"], gang=GangMethod.GATES)
    await walls.guardian.create(collection("Pod", SPACE), pod)
    try:
        await _await_refusals(walls, path_of(pod), pod)
    finally:
        await walls.guardian.delete(path_of(pod), grace_s=0)
        await walls.guardian.delete(collection("ConfigMap", SPACE, owner["metadata"]["name"]))


async def _await_refusals(walls: Walls, path: str, pod: Document) -> None:
    learner, helper = pod["spec"]["containers"][0], pod["spec"]["initContainers"][0]
    debugger = {"name": "debugger", "image": learner["image"], "securityContext": learner["securityContext"]}
    changes: list[Document] = [
        {"spec": {"containers": [{**learner, "image": "testbed.invalid/other:1"}]}},
        {"spec": {"initContainers": [{**helper, "image": "testbed.invalid/other:1"}]}},
        {"spec": {"tolerations": [*pod["spec"]["tolerations"], {"operator": "Exists"}]}},
        {"spec": {"activeDeadlineSeconds": 5}},
        {"metadata": {"labels": {names.JOB: "jother"}}},
        {"metadata": {"labels": {names.TENANT: "other"}}},
        {"metadata": {"ownerReferences": []}},
    ]
    for change in changes:
        with pytest.raises(AdmissionDenied, match="ValidatingAdmissionPolicy 'walls-pods'"):
            await walls.guardian.patch(path, change)
    with pytest.raises(AdmissionDenied, match="a learner and its helper are all there is"):
        await walls.admin.patch(f"{path}/ephemeralcontainers", {"spec": {"ephemeralContainers": [debugger]}})
    await walls.guardian.patch(path, {"metadata": {"annotations": {names.TERM: "2"}}})


async def test_service_in_a_tenants_namespace_takes_no_address_of_others(walls: Walls) -> None:
    friendly = friendly_service()
    for fields in (
        {"externalIPs": ["192.0.2.1"]},
        {"clusterIP": ""},
        {"type": "NodePort", "clusterIP": ""},
        {"type": "ExternalName", "externalName": "metadata.internal", "clusterIP": ""},
        {"selector": {"app": "etcd"}},
    ):
        service = {**friendly, "spec": {**friendly["spec"], "ports": [{"port": 80}], **fields}}
        with pytest.raises(AdmissionDenied, match="not the headless Service of a gang"):
            await walls.guardian.create(f"{path_of(service, of_collection=True)}?dryRun=All", service)


async def test_api_server_finds_no_mistake_in_the_expressions_of_the_policies(walls: Walls) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    async def checked() -> bool:
        listed, _ = await walls.admin.list(path)
        policies = [policy for policy in listed if policy["metadata"]["name"].startswith("walls-")]
        assert len(policies) == 3
        states = [(policy.get("status") or {}, policy["metadata"]["generation"]) for policy in policies]
        assert not any((status.get("typeChecking") or {}).get("expressionWarnings") for status, _ in states)
        return all(status.get("observedGeneration") == generation for status, generation in states)

    await until(checked)
