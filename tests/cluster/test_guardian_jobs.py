"""A Kubernetes Job for each Guardian, on the real Job controller and kubelet, with the rights of `weft manifests`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import Api
from services.core.adapters.kubernetes.cluster import KubernetesCluster
from services.core.adapters.kubernetes.guardian_jobs import KubernetesGuardianJobs, render
from services.core.domain.errors import Unavailable
from services.core.ports.cluster import Observation
from tests.testbed.kubernetes.accounts import NAMESPACE, Installed, install
from tests.testbed.kubernetes.cluster import Cluster
from tests.testbed.kubernetes.images import TINY_IMAGE
from tests.testbed.kubernetes.kubectl import Kubectl
from tests.testbed.kubernetes.options import OPTIONS
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.waiting import until

JOB = "j01m81m6wwmrnwpzxnhp31z"
GUARDED_OPTIONS = replace(OPTIONS, installation="guarded", namespace_prefix="guarded-", guardian_namespace=NAMESPACE)
_GUARDIAN = """\
echo "guards $WEFT_GUARDED_JOB"
if [ ! -e /home/crashed ]; then touch /home/crashed; exit 1; fi
until [ -e /home/released ]; do sleep 0.1; done
"""
"""Crashes once, as a process with a bug does, and ends when its job is released."""
TEMPLATE: dict[str, Any] = {
    "spec": {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsUser": 65534, "fsGroup": 65534},
        "containers": [
            {
                "name": "guardian",
                "image": TINY_IMAGE,
                "command": ["/bin/sh", "-c", _GUARDIAN],
                "volumeMounts": [{"name": "home", "mountPath": "/home"}],
            }
        ],
        "volumes": [{"name": "home", "emptyDir": {}}],
    },
}


@pytest.fixture(scope="module")
def installed(testbed_cluster: Cluster) -> Installed:
    return install(testbed_cluster, GUARDED_OPTIONS)


@pytest.fixture
async def launcher(installed: Installed) -> AsyncIterator[KubernetesGuardianJobs]:
    launcher = KubernetesGuardianJobs(Api(installed.lcm), TEMPLATE, namespace=NAMESPACE, installation="guarded")
    try:
        yield launcher
    finally:
        await launcher.close()


def _pods(cluster: Cluster) -> list[dict[str, Any]]:
    return cluster.objects("/api/v1/pods", selector=f"{names.GUARDED}={JOB},app.kubernetes.io/instance=guarded")


async def _launched(launcher: KubernetesGuardianJobs) -> Mapping[str, bool] | None:
    """None while the rights, which were just granted, are not in force."""
    try:
        return await launcher.launched()
    except Unavailable:
        return None


async def _learners_of_the_job(installed: Installed) -> tuple[Sequence[str], Observation]:
    """Jobs that have learners, and those of this job, as its Guardian sees them. Its own pod is no learner."""
    cluster = KubernetesCluster(Api(installed.guardian), GUARDED_OPTIONS, MemoryStatusStore())
    try:
        return await cluster.jobs(), await cluster.observe(JOB)
    finally:
        await cluster.close()


async def test_crashed_guardian_is_started_again_in_its_pod_until_its_job_is_released(
    testbed_cluster: Cluster, installed: Installed, launcher: KubernetesGuardianJobs
) -> None:
    async def is_launched(expected: Mapping[str, bool]) -> None:
        async def shown() -> bool:
            return await _launched(launcher) == expected

        try:
            await until(shown)
        except AssertionError as late:
            raise AssertionError(f"{await _launched(launcher)}, not {expected}: {_pods(testbed_cluster)}") from late

    await is_launched({})
    await launcher.launch(JOB)
    await launcher.launch(JOB)  # a repeated call
    await is_launched({JOB: True})
    states: list[object] = []

    def restarted() -> bool:
        pods = _pods(testbed_cluster)
        states[:] = [pod["status"] for pod in pods]
        containers = [pod["status"].get("containerStatuses", [{}])[0] for pod in pods]
        return [container.get("restartCount") for container in containers] == [1] and (
            "running" in containers[0]["state"]
        )

    try:
        await until(restarted)
    except AssertionError as late:
        raise AssertionError(states) from late
    (pod,) = _pods(testbed_cluster)
    name = pod["metadata"]["name"]
    (container,) = pod["spec"]["containers"]
    await until(lambda: testbed_cluster.log(NAMESPACE, name, container["name"]) == f"guards {JOB}\n")
    await is_launched({JOB: True})
    assert await _learners_of_the_job(installed) == ([], Observation(learners=[], attempts=[]))
    testbed_cluster.kubectl("--namespace", NAMESPACE, "exec", name, "--", "touch", "/home/released")
    await is_launched({JOB: False})
    await launcher.launch(JOB)  # it has ended: the lcm removes it first
    await is_launched({JOB: False})
    await launcher.remove(JOB)
    await launcher.remove(JOB)
    await is_launched({})
    await until(lambda: _pods(testbed_cluster) == [])


def test_guardians_pod_is_admitted_by_restricted_pod_security(kubectl: Kubectl) -> None:
    pod = render(TEMPLATE, JOB, namespace=kubectl.namespace, installation="guarded")["spec"]["template"]
    kubectl.create({"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {"name": "guardian"}}, dry_run=True)


async def test_no_other_account_may_make_the_job_of_a_guardian(installed: Installed) -> None:
    for kubeconfig in (installed.guardian, installed.services):
        launcher = KubernetesGuardianJobs(Api(kubeconfig), TEMPLATE, namespace=NAMESPACE, installation="guarded")
        try:
            with pytest.raises(Unavailable, match="forbidden"):
                await launcher.launch(JOB)
        finally:
            await launcher.close()
