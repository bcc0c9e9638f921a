"""The chart installed on two nodes: trained on, upgraded, rolled back. The tests run in this order."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

from services.core.adapters.kubernetes.manifests import Right, rights
from services.local.conformance import TOO_MUCH
from tests.helm.installation import NAMESPACE, RELEASE, Installation
from tests.waiting import eventually

SERVICES = ("api", "lcm", "guardian", "worker")


def _pods(installed: Installation, component: str = "") -> list[dict[str, Any]]:
    """Those that are not being deleted."""
    of_component = f",app.kubernetes.io/component={component}" if component else ""
    selector = f"app.kubernetes.io/instance={RELEASE}{of_component}"
    listed = json.loads(installed.kubectl("get", "pods", f"--selector={selector}", "--output=json"))["items"]
    return [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]


def _not_ready(installed: Installation) -> list[str]:
    return [
        pod["metadata"]["name"]
        for pod in _pods(installed)
        if pod["status"]["phase"] != "Succeeded"
        and not all(status["ready"] for status in pod["status"].get("containerStatuses", [{"ready": False}]))
    ]


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def test_all_pods_are_ready_in_a_namespace_of_pod_security_restricted(installed: Installation) -> None:
    # Of a busy machine, a probe may be late.
    eventually(lambda: not _not_ready(installed))
    pods = [pod for pod in _pods(installed) if pod["status"]["phase"] != "Succeeded"]
    assert len(pods) == 10, "two of them are shards of the metrics service"
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node-1", "node-2"}


def test_two_learners_train_on_the_installed_platform(installed: Installation) -> None:
    output = installed.run("test", RELEASE, "--logs", "--timeout=10m")
    assert "2 learners trained" in output


_READ_S3 = """
import configparser, weft
file = configparser.ConfigParser()
file.read("/var/lib/weft/home/s3-credentials")
keys = {name: file["default"]["aws_" + key] for name, key in
        {"access_key": "access_key_id", "secret_key": "secret_access_key"}.items()}
store = {"id": "d", "type": "s3", "url": "s3://photos", "endpoint": "http://weft-s3.weft-system.svc.cluster.local:7070",
         "secret": "photos"}
spec = {"name": "s3", "command": "cat $DATA_DIR/d/a.txt; env", "resources": {"cpus": 0.25, "memory": "64MiB"},
        "data_stores": [store], "inputs": [{"store": "d"}]}
with weft.Client("http://127.0.0.1:8080", open("/etc/weft/keys/admin-key").read().strip()) as client:
    client.secrets.set("photos", keys)
    job = client.jobs.submit(spec).wait(300)
    lines = [line.text for line in job.logs()]
    print(job.status, job.message, lines[:1], any(key in line for line in lines for key in keys.values()))
"""
"""Runs in the api's pod."""


def test_data_of_an_s3_store_is_read_with_a_secret_of_the_tenant(installed: Installation) -> None:
    make = "mkdir -p /data/objects/photos && echo from s3 > /data/objects/photos/a.txt"
    installed.kubectl("exec", f"{RELEASE}-s3-0", "--container=s3", "--", "sh", "-c", make)
    output = installed.kubectl("exec", f"deployment/{RELEASE}-api", "--container=api", "--", "python", "-c", _READ_S3)
    assert output == "COMPLETED  ['from s3'] False\n"


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


def test_the_rights_of_the_keys_job_are_gone_and_each_account_has_those_of_weft_manifests(
    installed: Installation,
) -> None:
    left = installed.kubectl("get", "serviceaccounts,roles,rolebindings,jobs", "--output=name")
    assert "keys" not in left
    tried = {right for role in ("lcm", "guardian", "learners") for right in rights(role, RELEASE)} | set(TOO_MUCH)
    given = {account: set(rights(account, RELEASE)) for account in ("lcm", "guardian")} | {"services": set[Right]()}
    assert _granted(installed, given, sorted(tried)) == given


def _granted(installed: Installation, accounts: Iterable[str], tried: Sequence[Right]) -> dict[str, set[Right]]:
    """Those of the rights that each account has, in all namespaces."""
    reviews = [_review(account, right) for account in accounts for right in tried]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews})
    output = "--output=jsonpath={.status.allowed}{'\\n'}"
    allowed = iter(installed.kubectl("create", "--filename=-", output, text=text).splitlines())
    return {account: {right for right in tried if next(allowed) == "true"} for account in accounts}


def _review(account: str, right: Right) -> dict[str, Any]:
    resource, _, part = right.resource.partition("/")
    attributes = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": part}
    user = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-{account}"
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": {**attributes, "name": right.name}},
    }


def test_upgrade_with_more_replicas_keeps_every_key(installed: Installation) -> None:
    before = installed.made_secrets()
    installed.upgrade("--set=api.replicas=2,guardian.replicas=2,worker.replicas=2")
    eventually(lambda: [len(_pods(installed, service)) for service in SERVICES] == [2, 1, 2, 2])
    assert installed.made_secrets() == before


def test_rollback_brings_the_replicas_of_before(installed: Installation) -> None:
    installed.run("rollback", RELEASE, "1", "--wait", "--timeout=10m")
    eventually(lambda: [len(_pods(installed, service)) for service in SERVICES] == [1, 1, 1, 1])
