"""A Kubernetes Job for each Guardian, as in FfDL's paper (docs/adr/0025-a-kubernetes-job-per-guardian.md).

The operator gives the pod as a template: that of the guardian's Deployment. What the platform depends on is rendered
here and wins over the template: the job's id, restarts, and a pod that Pod Security ``restricted`` admits. The
kubelet starts a crashed Guardian again in its pod; the Job's controller replaces the pod of a lost node.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import Api, collection
from services.core.adapters.kubernetes.pods import lost_node_tolerations
from services.core.domain.errors import Duplicate, InvalidRequest

Document = dict[str, Any]
GUARDED_JOB: Final = "WEFT_GUARDED_JOB"
_COMPONENT: Final = "guardian-job"
_CRASHES: Final = 20
"""Then the Job fails, and the lcm makes another one: its pod may be on a machine where no Guardian can run."""


def render(template: Mapping[str, Any], job_id: str, *, namespace: str, installation: str) -> Document:
    """The Job that guards a job of the platform. ``template``: a pod template, ``{metadata, spec}``."""
    pod = copy.deepcopy({name: template[name] for name in ("metadata", "spec") if name in template})
    guarded = {names.GUARDED: names.checked(job_id)}
    labels = job_labels(installation) | guarded
    metadata = pod.setdefault("metadata", {})
    # The template's own labels stay: network policies select Guardians by them.
    metadata["labels"] = {**labels, **metadata.get("labels", {}), **guarded}
    metadata["labels"].pop(names.JOB, None)  # learners are selected by it
    spec: Document = pod["spec"]
    spec["restartPolicy"] = "OnFailure"
    spec["tolerations"] = [*spec.get("tolerations", []), *lost_node_tolerations()]
    spec["securityContext"] = {
        **spec.get("securityContext", {}),
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        container["securityContext"] = {
            **container.get("securityContext", {}),
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    first = spec["containers"][0]
    others = [variable for variable in first.get("env", ()) if variable.get("name") != GUARDED_JOB]
    first["env"] = [*others, {"name": GUARDED_JOB, "value": job_id}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job_name(job_id, installation), "namespace": namespace, "labels": labels},
        "spec": {"backoffLimit": _CRASHES, "completions": 1, "parallelism": 1, "template": pod},
    }


def job_name(job_id: str, installation: str) -> str:
    """The name of the Kubernetes Job. Raises InvalidRequest for an id that cannot be part of one."""
    return f"{installation}-{names.checked(job_id)}"


def job_labels(installation: str) -> dict[str, str]:
    """Of all Guardians' Jobs of an installation."""
    return {
        names.MANAGED_BY: names.WEFT,
        names.INSTANCE: installation,
        "app.kubernetes.io/component": _COMPONENT,
    }


def read_template(file: Path) -> Document:
    """Reads a pod template. Raises InvalidRequest for a file that has none."""
    try:
        template = yaml.safe_load(file.read_text())
        containers = template["spec"]["containers"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise InvalidRequest(f"WEFT_KUBERNETES_GUARDIAN_TEMPLATE: {file} has no pod template: {error!r}") from error
    if not isinstance(containers, list) or not containers:
        raise InvalidRequest(f"WEFT_KUBERNETES_GUARDIAN_TEMPLATE: the pod of {file} has no container")
    return dict(template)


class KubernetesGuardianJobs:
    """A GuardianLauncher."""

    def __init__(self, api: Api, template: Mapping[str, Any], *, namespace: str, installation: str) -> None:
        self._api, self._template = api, template
        self._namespace, self._installation = namespace, installation

    async def launched(self) -> Mapping[str, bool]:
        selector = ",".join(f"{name}={value}" for name, value in job_labels(self._installation).items())
        jobs, _ = await self._api.list(collection("Job", self._namespace), selector=selector)
        return {
            job["metadata"]["labels"][names.GUARDED]: not _has_ended(job)
            for job in jobs
            if names.GUARDED in job["metadata"]["labels"]
        }

    async def launch(self, job_id: str) -> None:
        document = render(self._template, job_id, namespace=self._namespace, installation=self._installation)
        try:
            await self._api.create(collection("Job", self._namespace), document)
        except Duplicate:  # of an earlier call
            return

    async def remove(self, job_id: str) -> None:
        await self._api.delete(collection("Job", self._namespace, job_name(job_id, self._installation)))

    async def close(self) -> None:
        await self._api.close()


def _has_ended(job: Mapping[str, Any]) -> bool:
    """True if it is complete or has failed, or is being deleted."""
    conditions = job.get("status", {}).get("conditions") or ()
    ended = any(entry["type"] in {"Complete", "Failed"} and entry["status"] == "True" for entry in conditions)
    return ended or bool(job["metadata"].get("deletionTimestamp"))
