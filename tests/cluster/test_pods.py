"""What Weft needs of every cluster: pods under Pod Security ``restricted``, logs, exit codes, stable names."""

from __future__ import annotations

import pytest

from tests.testbed.kubernetes.access import Access
from tests.testbed.kubernetes.kubectl import Kubectl, KubectlError
from tests.testbed.kubernetes.pods import headless_service, script_pod
from tests.waiting import eventually


def test_pod_runs_under_restricted_pod_security_and_its_log_is_read(access: Access, kubectl: Kubectl) -> None:
    kubectl.create(script_pod("hello", access.image, "echo hello from user $(id -u)"))
    kubectl.wait_phase("Succeeded", "hello")
    assert kubectl.log("hello") == "hello from user 65534\n"


def test_restricted_pod_security_refuses_a_pod_of_root(access: Access, kubectl: Kubectl) -> None:
    pod = script_pod("root", access.image, "id", securityContext={"runAsUser": 0})
    with pytest.raises(KubectlError, match='violates PodSecurity "restricted'):
        kubectl.create(pod)


def test_exit_code_of_a_failed_container_is_reported(access: Access, kubectl: Kubectl) -> None:
    kubectl.create(script_pod("fails", access.image, "exit 42"))
    kubectl.wait_phase("Failed", "fails")
    assert _end(kubectl, "fails")["exitCode"] == 42


def test_container_over_its_memory_limit_is_reported_as_oom_killed(access: Access, kubectl: Kubectl) -> None:
    kubectl.create(script_pod("hungry", access.image, "tail /dev/zero", limits={"memory": "32Mi"}))
    kubectl.wait_phase("Failed", "hungry")
    end = _end(kubectl, "hungry")
    assert (end["reason"], end["exitCode"]) == ("OOMKilled", 137)


def test_pods_reach_each_other_by_headless_names_on_different_nodes(access: Access, kubectl: Kubectl) -> None:
    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"job": "gang"}}, "topologyKey": "kubernetes.io/hostname"}
            ]
        }
    }
    script = """
        mkdir /tmp/served && cd /tmp/served && echo rank-%d > rank && httpd -p 8080 -h /tmp/served
        until wget -q -O - http://worker-%d.gang:8080/rank 2> /dev/null; do sleep 0.1; done
        sleep 600
    """
    learners = [
        script_pod(
            f"worker-{rank}",
            access.image,
            script % (rank, 1 - rank),
            labels={"job": "gang"},
            affinity=apart,
            hostname=f"worker-{rank}",
            subdomain="gang",
        )
        for rank in range(2)
    ]
    kubectl.create(headless_service("gang", {"job": "gang"}), *learners)
    eventually(lambda: [kubectl.log(f"worker-{rank}") for rank in range(2)] == ["rank-1\n", "rank-0\n"])
    assert len({kubectl.get("pod", f"worker-{rank}")["spec"]["nodeName"] for rank in range(2)}) == 2


def _end(kubectl: Kubectl, pod: str) -> dict[str, object]:
    end: dict[str, object] = kubectl.get("pod", pod)["status"]["containerStatuses"][0]["state"]["terminated"]
    return end
