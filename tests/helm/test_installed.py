"""The chart installed on two nodes: trained on, upgraded, rolled back, uninstalled. The tests run in this order."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.helm.installation import NAMESPACE, RELEASE, Installation
from tests.waiting import eventually

SERVICES = ("api", "lcm", "guardian", "worker")


def _pods(installed: Installation, component: str = "") -> list[dict[str, Any]]:
    """Those that are not being deleted."""
    of_component = f",app.kubernetes.io/component={component}" if component else ""
    selector = f"app.kubernetes.io/instance={RELEASE}{of_component}"
    listed = json.loads(installed.kubectl("get", "pods", f"--selector={selector}", "--output=json"))["items"]
    return [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def test_all_pods_are_ready_in_a_namespace_of_pod_security_restricted(installed: Installation) -> None:
    pods = [pod for pod in _pods(installed) if pod["status"]["phase"] != "Succeeded"]
    assert len(pods) == 9
    for pod in pods:
        assert all(status["ready"] for status in pod["status"]["containerStatuses"]), pod["metadata"]["name"]
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node-1", "node-2"}


def test_two_learners_train_on_the_installed_platform(installed: Installation) -> None:
    output = installed.helm("test", RELEASE, "--logs", "--timeout=10m")
    assert "2 learners trained" in output


def test_conformance_says_what_passes_and_what_this_cluster_lacks(installed: Installation) -> None:
    command = ["exec", "deployment/weft-lcm", "--container=lcm", "--", "sh", "-c", "weft conformance -o json || true"]
    checks = {entry["check"]: entry for entry in json.loads(installed.kubectl(*command))["checks"]}
    verdicts = {name: entry["verdict"] for name, entry in checks.items()}
    # The test cluster's network enforces no policy, and its GPUs are numbers without devices.
    assert verdicts == {
        "versions": "pass", "kubernetes version": "pass", "job store": "pass", "object store": "pass", "rights": "pass",
        "gang": "pass", "two learners": "pass", "clocks": "pass", "walls": "fail", "gpu": "fail",
        "job store fail-over": "not applicable", "broker": "not applicable",
    }, checks  # fmt: skip
    assert all(entry["fix"] for entry in checks.values() if entry["verdict"] == "fail")
    assert "etcd" in checks["walls"]["detail"]


def test_no_secret_is_in_a_variable_or_a_command_of_a_container(installed: Installation) -> None:
    selector = f"--selector=app.kubernetes.io/instance={RELEASE}"
    made = json.loads(installed.kubectl("get", "secrets", selector, "--output=json"))["items"]
    values = {
        base64.b64decode(value).decode(errors="replace")
        for secret in made
        for key, value in secret["data"].items()
        if not key.endswith((".crt", ".json", ".pem"))
    }
    assert len(values) > 20
    for pod in _pods(installed):
        shown = json.dumps([[entry.get(part) for part in ("env", "command", "args")] for entry in _containers(pod)])
        assert not [value for value in values if value and value.strip() in shown], pod["metadata"]["name"]


def test_the_rights_of_the_keys_job_are_gone_and_no_service_may_read_its_secrets(installed: Installation) -> None:
    left = installed.kubectl("get", "serviceaccounts,roles,rolebindings,jobs", "--output=name")
    assert "keys" not in left
    for service in ("api", "metrics", "worker", "stores"):
        account = f"system:serviceaccount:{NAMESPACE}:weft-{service}"
        for verb, kind in (("get", "secrets"), ("create", "pods"), ("list", "nodes")):
            assert not _may(installed, account, verb, kind), (service, verb, kind)
    for service in ("lcm", "guardian"):
        account = f"system:serviceaccount:{NAMESPACE}:weft-{service}"
        assert _may(installed, account, "list", "nodes")
        assert not any(_may(installed, account, "list", kind) for kind in ("secrets", "clusterroles"))


def _may(installed: Installation, account: str, verb: str, kind: str) -> bool:
    """In any namespace."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": account, "resourceAttributes": {"verb": verb, "resource": kind, "namespace": NAMESPACE}},
    }
    answer = json.loads(installed.kubectl("create", "--filename=-", "--output=json", text=json.dumps(review)))
    return bool(answer["status"]["allowed"])


def test_upgrade_with_more_replicas_keeps_every_key_and_trains(installed: Installation) -> None:
    before = _secrets(installed)
    installed.upgrade("--set=api.replicas=2,guardian.replicas=2,worker.replicas=2")
    assert {service: len(_pods(installed, service)) for service in SERVICES} == {
        "api": 2, "lcm": 1, "guardian": 2, "worker": 2,
    }  # fmt: skip
    assert _secrets(installed) == before
    assert "2 learners trained" in installed.helm("test", RELEASE, "--logs", "--timeout=10m")


def _secrets(installed: Installation) -> dict[str, Any]:
    selector = f"--selector=app.kubernetes.io/instance={RELEASE},app.kubernetes.io/managed-by=weft-keys"
    listed = json.loads(installed.kubectl("get", "secrets", selector, "--output=json"))["items"]
    return {secret["metadata"]["name"]: secret["data"] for secret in listed}


def test_rollback_brings_the_replicas_of_before(installed: Installation) -> None:
    installed.helm("rollback", RELEASE, "1", "--wait", "--timeout=10m")
    eventually(lambda: [len(_pods(installed, service)) for service in SERVICES] == [1, 1, 1, 1])


def test_uninstall_keeps_volumes_keys_and_learners_namespaces_and_nothing_else(installed: Installation) -> None:
    named = installed.kubectl("api-resources", "--namespaced", "--verbs=list,delete", "--output=name").split()
    kinds = ",".join(name for name in named if not name.startswith("events"))
    before = _secrets(installed)
    installed.helm("uninstall", RELEASE, "--wait", "--timeout=5m")
    kept = [f"PersistentVolumeClaim data-weft-{store}-0" for store in ("etcd", "metrics", "mongodb", "rabbitmq", "s3")]
    kept += [f"Secret {name}" for name in before] + ["Pod weft-test-training"]
    # Pods and their endpoints end a little later.
    eventually(lambda: installed.objects(kinds) == sorted(kept))
    assert installed.objects("clusterroles,clusterrolebindings") == []
    installed.kubectl("get", "namespace", "weft-tenant-default")
