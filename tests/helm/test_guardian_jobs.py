"""`guardian.launcher: job` on the test cluster: real Guardians in Kubernetes Jobs, of the platform's image."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest
import yaml

from services.core.adapters.kubernetes.guardian_jobs import render
from tests.helm.installation import NAMESPACE, RELEASE, Installation
from tests.helm.ticking import LONG_S, Ticking
from tests.testbed.kubernetes.kubectl import KubectlError, Object
from tests.waiting import eventually

_LCM = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-lcm"


@pytest.fixture(scope="module")
def in_jobs(installed: Installation) -> Iterator[Installation]:
    """Afterwards the pool guards all jobs again."""
    installed.upgrade("--set=guardian.launcher=job")
    yield installed
    installed.upgrade()


def _jobs(installed: Installation) -> list[Object]:
    selector = "--selector=app.kubernetes.io/component=guardian-job"
    items: list[Object] = json.loads(installed.kubectl("get", "jobs", selector, "--output=json"))["items"]
    return items


def test_job_of_two_learners_completes_although_the_pod_of_its_guardian_is_killed(
    in_jobs: Installation, trained: Installation
) -> None:
    """Before, no job started: the Guardian's own pod was taken for a learner of the job."""
    eventually(lambda: [job["metadata"]["name"] for job in _deployments(in_jobs)] == ["weft-lcm"], LONG_S)
    ticking = Ticking(trained, 1, learners=2)
    (job,) = _jobs(in_jobs)
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == f"{RELEASE}-guardian"
    in_jobs.kill_pod("guardian", LONG_S)
    ticking.end()
    eventually(lambda: (_jobs(in_jobs), in_jobs.pods("guardian")) == ([], {}), LONG_S)


def _deployments(installed: Installation) -> list[Object]:
    """Of the lcm and the guardian."""
    wanted = "--selector=app.kubernetes.io/component in (lcm,guardian)"
    items: list[Object] = json.loads(installed.kubectl("get", "deployments", wanted, "--output=json"))["items"]
    return items


def _of_another_service(pod: Object) -> None:
    pod["volumes"].append({"name": "x", "secret": {"secretName": f"{RELEASE}-installation"}})


def _in_a_projected_volume(pod: Object) -> None:
    source = {"secret": {"name": f"{RELEASE}-s3"}}
    pod["volumes"].append({"name": "x", "projected": {"sources": [source]}})


def _in_a_variable(pod: Object) -> None:
    reference = {"secretKeyRef": {"name": f"{RELEASE}-s3", "key": "secret-key"}}
    pod["containers"][0]["env"].append({"name": "X", "valueFrom": reference})


def _of_the_node(pod: Object) -> None:
    pod["volumes"].append({"name": "x", "hostPath": {"path": "/"}})


def _another_image(pod: Object) -> None:
    pod["initContainers"][0]["image"] = "weft/helper:1"


def _another_account(pod: Object) -> None:
    pod["serviceAccountName"] = f"{RELEASE}-lcm"


def _privileged(pod: Object) -> None:
    pod["containers"][0]["securityContext"] = {"privileged": True}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (_of_another_service, "spec.template.spec.volumes"),
        (_in_a_projected_volume, "spec.template.spec.volumes"),
        (_in_a_variable, "spec.template.spec.volumes"),
        (_of_the_node, "spec.template.spec.volumes"),
        (_another_image, "not the account or the image"),
        (_another_account, "not the account or the image"),
        (_privileged, "Pod Security restricted"),
    ],
)
def test_lcm_makes_no_other_job_than_that_of_a_guardian(
    in_jobs: Installation, change: Callable[[Object], None], field: str
) -> None:
    template = yaml.safe_load(in_jobs.kubectl.get("configmap", f"{RELEASE}-guardian")["data"]["pod.yaml"])
    document = render(template, "j01m81m6wwmrnwpzxnhp31z", namespace=NAMESPACE, installation=RELEASE)
    _try_as_lcm(in_jobs, document)
    change(document["spec"]["template"]["spec"])
    with pytest.raises(KubectlError, match=re.escape(field)):
        _try_as_lcm(in_jobs, document)


def _try_as_lcm(installed: Installation, document: Object) -> None:
    installed.kubectl("create", "--filename=-", "--dry-run=server", f"--as={_LCM}", text=json.dumps(document))


def test_lcm_removes_no_job_of_others(in_jobs: Installation) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "any"}]}}
    document = render(template, "j01m81m6wwmrnwpzxnhp31z", namespace=NAMESPACE, installation=RELEASE)
    document["metadata"] |= {"name": "of-an-operator", "labels": {"app": "backup"}}
    document["spec"] |= {"suspend": True}
    in_jobs.kubectl.create(document)
    try:
        with pytest.raises(KubectlError, match="not those of a Guardian"):
            in_jobs.kubectl("delete", "job", "of-an-operator", f"--as={_LCM}")
    finally:
        in_jobs.kubectl("delete", "job", "of-an-operator")
