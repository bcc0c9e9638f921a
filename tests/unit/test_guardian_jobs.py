"""A Guardian of its own for each job: launched, replaced and removed by the lcm; a pool of one job ends with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.guardian_jobs import job_name, read_template, render
from services.core.adapters.kubernetes.manifests import Accounts, documents
from services.core.adapters.kubernetes.options import KubernetesOptions
from services.core.bootstrap.kubernetes import guardian_launcher
from services.core.domain.errors import InvalidRequest, StaleFence
from services.core.domain.status import Desired, Status
from services.core.runtime.settings import Settings
from services.lcm.guardian_jobs import GuardianJobs
from services.lcm.instrumentation import Instrumentation
from tests.testbed.control_plane import WHOLE_LIFE, ControlPlane, Process

TEMPLATE: Mapping[str, Any] = {
    "metadata": {
        "labels": {"app.kubernetes.io/component": "guardian", "weft.dev/job": "wrong"},
        "annotations": {"a": "b"},
    },
    "spec": {
        "serviceAccountName": "weft-guardian",
        "restartPolicy": "Always",
        "tolerations": [{"key": "special", "operator": "Exists"}],
        "securityContext": {"runAsUser": 10001, "runAsNonRoot": False},
        "containers": [
            {
                "name": "guardian",
                "image": "weft/platform:1",
                "securityContext": {"privileged": True},
                "env": [{"name": "WEFT_GUARDED_JOB", "value": "another"}, {"name": "WEFT_HOME", "value": "/var"}],
            }
        ],
        "initContainers": [{"name": "wait", "image": "x", "securityContext": {"capabilities": {"add": ["ALL"]}}}],
    },
}


class Launcher:
    """A GuardianLauncher of the virtual control plane: starts pools of one job, as a Kubernetes Job starts pods."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.guardians: dict[str, Process] = {}
        self.launches: list[str] = []

    async def launched(self) -> Mapping[str, bool]:
        return {job_id: not process.tasks[0].done() for job_id, process in self.guardians.items()}

    async def launch(self, job_id: str) -> None:
        if job_id not in self.guardians:
            self.launches.append(job_id)
            self.guardians[job_id] = await self._plane.start_pool(guarded_job=job_id, place=job_id)

    async def remove(self, job_id: str) -> None:
        if process := self.guardians.pop(job_id, None):
            await self._plane.stop(process)

    async def crash(self, job_id: str) -> None:
        """kill -9 of the Guardian's process; the kubelet starts it again in the same pod."""
        await self._plane.kill(self.guardians[job_id])
        self.guardians[job_id] = await self._plane.start_pool(guarded_job=job_id, place=job_id)

    async def close(self) -> None: ...


@pytest.fixture
async def launcher(plane: ControlPlane) -> Launcher:
    launcher = Launcher(plane)
    await plane.start_lcm(launcher=launcher)
    return launcher


@pytest.mark.looptime(noop_cycles=0)
async def test_each_job_has_a_guardian_of_its_own_that_is_gone_after_its_release(
    plane: ControlPlane, launcher: Launcher
) -> None:
    job_ids = [await plane.submit() for _ in range(2)]
    for job_id in job_ids:
        await plane.rested(job_id)
        assert await plane.path(job_id) == WHOLE_LIFE
        await plane.until(lambda job: job.id not in launcher.guardians, job_id)
    assert sorted(launcher.launches) == sorted(job_ids)
    assert await plane.leftovers() == []


@pytest.mark.looptime(noop_cycles=0)
async def test_crashed_guardian_goes_on_in_its_pod_without_disturbing_the_learners(
    plane: ControlPlane, launcher: Launcher
) -> None:
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=None)
    before = await plane.reached(job_id, Status.PROCESSING)
    await launcher.crash(job_id)
    after = await plane.until(lambda job: job.guardian.term > before.guardian.term, job_id)
    assert (after.attempt.number, after.status) == (before.attempt.number, Status.PROCESSING)
    await plane.set_desired(job_id, Desired.KILL)
    assert (await plane.rested(job_id)).status is Status.KILLED
    assert launcher.launches == [job_id]


@pytest.mark.looptime(noop_cycles=0)
async def test_guardian_guards_its_own_job_only(plane: ControlPlane) -> None:
    await plane.start_lcm()
    other = await plane.submit()
    job_id = await plane.submit()
    pool = await plane.start_pool(guarded_job=job_id)
    await plane.rested(job_id)
    await plane.until(lambda _: pool.tasks[0].done(), job_id)
    assert (await plane.job(other)).guardian.term == 0
    assert (await plane.job(other)).status is Status.PENDING


@pytest.mark.looptime(noop_cycles=0)
async def test_job_that_is_admitted_again_gets_another_guardian(plane: ControlPlane, launcher: Launcher) -> None:
    job_id = await plane.submit(retries={"max": 1, "backoff": "30s"})
    plane.helpers.fate(job_id, code=1)
    job = await plane.rested(job_id, within_s=120)
    assert (job.status, job.counters.retries, job.attempt.number) == (Status.FAILED, 1, 2)
    await plane.until(lambda job: job.id not in launcher.guardians, job_id)
    assert launcher.launches == [job_id, job_id]


@pytest.mark.looptime(noop_cycles=0)
async def test_guardian_that_has_ended_while_its_job_holds_hardware_is_replaced(
    plane: ControlPlane, launcher: Launcher
) -> None:
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=None)
    before = await plane.reached(job_id, Status.PROCESSING)
    launcher.guardians[job_id].stopping.set()  # the Job has failed: its pod crashed too often
    after = await plane.until(lambda job: job.guardian.term > before.guardian.term, job_id)
    assert (after.attempt.number, launcher.launches) == (1, [job_id, job_id])


@pytest.mark.looptime(noop_cycles=0)
async def test_lcm_that_does_not_lead_launches_no_guardian(plane: ControlPlane) -> None:
    await plane.start_lcm()
    job_id = await plane.submit()
    await plane.reached(job_id, Status.PENDING)
    launcher = Launcher(plane)
    guardians = GuardianJobs(plane.jobs, launcher, Instrumentation(CollectorRegistry()))
    with pytest.raises(StaleFence):
        await guardians.reconcile((await plane.jobs.dispatcher()).term - 1)
    assert launcher.launches == []


@pytest.mark.looptime(noop_cycles=0)
async def test_running_guardian_of_a_job_that_holds_nothing_is_removed_at_the_second_round(
    plane: ControlPlane,
) -> None:
    job_id = await plane.submit()  # no lcm: it stays QUEUED
    launcher = Launcher(plane)
    guardians = GuardianJobs(plane.jobs, launcher, Instrumentation(CollectorRegistry()))
    # It cannot reach its stores, so it does not notice.
    launcher.guardians[job_id] = await plane.start_pool(guarded_job="")
    term = (await plane.jobs.dispatcher()).term
    await guardians.reconcile(term)
    assert job_id in launcher.guardians
    await guardians.reconcile(term)
    assert launcher.guardians == {}


def test_guardians_pod_is_the_template_hardened_with_its_job() -> None:
    before = yaml.safe_dump(dict(TEMPLATE))
    document = render(TEMPLATE, "j01m81m6wwmrnwpzxnhp31z", namespace="weft", installation="mine")
    assert yaml.safe_dump(dict(TEMPLATE)) == before
    assert document["metadata"]["name"] == "mine-j01m81m6wwmrnwpzxnhp31z"
    assert len(document["metadata"]["name"]) <= 63
    pod = document["spec"]["template"]
    assert pod["metadata"]["labels"][names.GUARDED] == "j01m81m6wwmrnwpzxnhp31z"
    assert pod["metadata"]["annotations"] == {"a": "b"}
    component = "app.kubernetes.io/component"
    assert document["metadata"]["labels"][component] == "guardian-job"
    assert pod["metadata"]["labels"][component] == "guardian", "network policies select it by the template's labels"
    spec = pod["spec"]
    assert (spec["restartPolicy"], spec["serviceAccountName"]) == ("OnFailure", "weft-guardian")
    assert spec["securityContext"] == {
        "runAsUser": 10001,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in (*spec["containers"], *spec["initContainers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert spec["containers"][0]["env"] == [
        {"name": "WEFT_HOME", "value": "/var"},
        {"name": "WEFT_GUARDED_JOB", "value": "j01m81m6wwmrnwpzxnhp31z"},
    ]
    tolerated = {toleration["key"]: toleration.get("tolerationSeconds") for toleration in spec["tolerations"]}
    assert tolerated == {
        "special": None,
        "node.kubernetes.io/not-ready": 5,
        "node.kubernetes.io/unreachable": 5,
    }


def test_guardians_pod_is_no_learner_of_its_job() -> None:
    """With the label of learners, its node and namespace were taken for the job's, which then never started."""
    document = render(TEMPLATE, "j01m81m6wwmrnwpzxnhp31z", namespace="weft", installation="mine")
    for metadata in (document["metadata"], document["spec"]["template"]["metadata"]):
        assert names.JOB not in metadata["labels"]


@pytest.mark.parametrize("text", ["", "spec: {}", "spec: {containers: []}", "spec: {containers: x}", "[", "- x"])
def test_file_without_a_pod_template_is_refused_with_the_setting(tmp_path: Path, text: str) -> None:
    file = tmp_path / "template.yaml"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=r"WEFT_KUBERNETES_GUARDIAN_TEMPLATE: .*template.yaml"):
        read_template(file)


def test_name_of_a_guardians_job_refuses_what_is_no_id() -> None:
    with pytest.raises(InvalidRequest):
        job_name("../x", "mine")


def test_lcm_may_make_guardians_jobs_only_where_each_job_has_a_guardian_of_its_own() -> None:
    accounts = Accounts.of("mine", "weft")
    options = KubernetesOptions(helper_image="h", learner_image="l", entry_script="", addresses={})

    def rules(options: KubernetesOptions) -> list[Any]:
        return [
            (document["kind"], document["metadata"]["namespace"], rule["resources"], rule["verbs"])
            for document in documents(options, accounts)
            for rule in document.get("rules", ())
            if "batch" in rule.get("apiGroups", ())
        ]

    assert rules(options) == []
    in_jobs = replace(options, guardian_namespace="guardians")
    assert rules(in_jobs) == [("Role", "guardians", ["jobs"], ["create", "get", "list", "delete"])]
    (binding,) = (
        document
        for document in documents(in_jobs, accounts)
        if (document["kind"], document["metadata"].get("namespace")) == ("RoleBinding", "guardians")
    )
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "mine-lcm", "namespace": "weft"}]


def test_launcher_needs_the_template_the_namespace_and_a_kubernetes_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_pods = Settings(home=tmp_path, cluster="kubernetes")
    assert guardian_launcher(in_pods) is None
    monkeypatch.setenv("WEFT_KUBERNETES_GUARDIAN_LAUNCHER", "job")
    with pytest.raises(InvalidRequest, match="WEFT_CLUSTER=kubernetes"):
        guardian_launcher(Settings(home=tmp_path))
    with pytest.raises(InvalidRequest, match=r"GUARDIAN_TEMPLATE and WEFT_KUBERNETES_GUARDIAN_NAMESPACE"):
        guardian_launcher(in_pods)
    (tmp_path / "template.yaml").write_text(yaml.safe_dump(dict(TEMPLATE)))
    monkeypatch.setenv("WEFT_KUBERNETES_GUARDIAN_TEMPLATE", str(tmp_path / "template.yaml"))
    monkeypatch.setenv("WEFT_KUBERNETES_GUARDIAN_NAMESPACE", "guardians")
    assert guardian_launcher(in_pods) is not None
