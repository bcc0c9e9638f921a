"""Names, labels and annotations of everything that an attempt has in the cluster.

Names are deterministic, so a repeated step finds what an earlier one has made. A tenant's name that is no valid
namespace is replaced by a digest of it; the label and annotation say which tenant it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from services.core.domain.errors import InvalidRequest
from services.core.domain.plan import AttemptPlan, LearnerPlan

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
WEFT: Final = "weft"
INSTANCE: Final = "app.kubernetes.io/instance"
"""The installation: one cluster may serve several."""
JOB: Final = "weft.dev/job"
ATTEMPT: Final = "weft.dev/attempt"
LEARNER: Final = "weft.dev/learner"
ROLE: Final = "weft.dev/role"
RANK: Final = "weft.dev/rank"
TENANT: Final = "weft.dev/tenant"
GUARDED: Final = "weft.dev/guarded-job"
"""Of a Guardian's Kubernetes Job and pod: the job that it guards. ``JOB`` would make the pod a learner's."""
TERM: Final = "weft.dev/term"
"""Annotation of the owner and of inert pods: the highest term that has acted on the attempt."""
ACTIVATED: Final = "weft.dev/activated"
"""Annotation of the owner: its pods may have been activated, so one that is missing may have run."""
STOP: Final = "weft.dev/stop"
"""Annotation of the owner and of pods that have not started: the stop mark, as JSON."""
REMOVED: Final = "weft.dev/removed"
"""Annotation of the owner: the pods that a stop has deleted, as JSON ``{learner: Unix ms}``."""
PROBE: Final = "probe"
"""In place of a job's id: the pod that tries the cluster before the first job. Ids of jobs are longer."""
PULLED_WITH: Final = "weft.dev/image-pull-secret"
"""Annotation of the owner and the pods: the tenant's secret with which the image is pulled, by its name for users."""
PULL_SECRET: Final = "weft-pull"  # noqa: S105 - the name of an object
"""The Secret in a tenant's namespace with the operator's credentials of registries."""
RUN: Final = "weft.dev/run"
"""Annotation of a pod: which start of its learner within the attempt it is."""
RUNS: Final = "weft.dev/runs"
"""Annotation of the owner: the pods of later runs that may have been created, as JSON ``{learner: run}``."""
KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Label of Kueue's: the LocalQueue. https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods"""
KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
"""Label of Kueue's: pods with the same value are admitted together."""
KUEUE_SCHEDULING_GATE: Final = "kueue.x-k8s.io/admission"
"""Scheduling gate that Kueue adds to new pods and lifts when it admits their group."""
KUEUE_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
"""Annotation of Kueue's: how many pods the group has."""
SIZE: Final = "weft.dev/size"
"""Annotation of a pod: what its learner holds of its node, as JSON ``{cpus, memory, gpus, devices}``."""
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_ENCODED: Final = re.compile(r".*-x[0-9a-f]{12}")
_DIGEST: Final = 12
"""Hexadecimal digits of a namespace's digest."""
_MOST: Final = 63
"""Characters of a namespace, a label and a host name."""


def namespace_of(tenant: str, prefix: str) -> str:
    """The namespace of a tenant: ``<prefix><tenant>``, or with a digest where that is no valid name."""
    name = f"{prefix}{tenant}"
    if _NAME.fullmatch(name) and not _ENCODED.fullmatch(name):
        return name
    digest = hashlib.sha256(tenant.encode()).hexdigest()[:_DIGEST]
    readable = re.sub(r"[^a-z0-9]+", "-", tenant.lower())[: _MOST - len(prefix) - 14].strip("-")
    return f"{prefix}{readable or 'tenant'}-x{digest}"


def is_encoded(namespace: str) -> bool:
    """True if the namespace has a digest in place of its tenant's name."""
    return _ENCODED.fullmatch(namespace) is not None


def is_of_tenant(document: Mapping[str, Any], prefix: str) -> bool:
    """True if an object with a tenant's labels is in this tenant's namespace.

    A user who may make pods in another namespace can give them any labels, e.g. with the copy of a learner's pod.
    """
    space, tenant = str(document["metadata"].get("namespace", "")), label(document, TENANT)
    if space == namespace_of(tenant, prefix):
        return True
    # The label may be a digest, too, of which the namespace has the beginning.
    return space.startswith(prefix) and is_encoded(space) and space.endswith(f"-x{tenant[:_DIGEST]}")


def checked(job: str) -> str:
    """Returns the id. Raises InvalidRequest for one that cannot be part of a name."""
    if not _NAME.fullmatch(job) or len(job) > 40:
        raise InvalidRequest(f"{job!r} cannot be the name of a job in a cluster")
    return job


def attempt_name(job: str, attempt: int) -> str:
    """The name of the owner, the Secret, the network policy, the gang object and the headless Service."""
    return f"weft-{job}-{attempt}"


def pull_secret(owner: str) -> str:
    """The name of the Secret with the tenant's own credentials of the image's registry. ``owner``: the attempt's."""
    return f"{owner}-pull"


def pod_name(plan: AttemptPlan, learner: LearnerPlan) -> str:
    """The name of a learner's pod."""
    return f"{attempt_name(plan.job, plan.attempt)}-{learner.name}"


def host_of(plan: AttemptPlan, learner: str) -> str:
    """The name by which learners of the attempt reach this one; the headless Service makes it."""
    return f"{learner}.{attempt_name(plan.job, plan.attempt)}"


def attempt_labels(plan: AttemptPlan, installation: str) -> dict[str, str]:
    """The labels of every object of the attempt."""
    own = {JOB: plan.job, ATTEMPT: str(plan.attempt), "app.kubernetes.io/name": "learner"}
    return own | tenant_labels(plan.tenant, installation)


def tenant_labels(tenant: str, installation: str) -> dict[str, str]:
    """The labels of a tenant's objects. A tenant's name that is no valid label is replaced by a digest."""
    shown = tenant if _LABEL.fullmatch(tenant) else hashlib.sha256(tenant.encode()).hexdigest()[:32]
    return {TENANT: shown, MANAGED_BY: WEFT, INSTANCE: installation}


def learner_labels(plan: AttemptPlan, learner: LearnerPlan, installation: str) -> dict[str, str]:
    """The labels of a learner's pod."""
    own = {LEARNER: learner.name, ROLE: learner.role, RANK: str(learner.rank)}
    return attempt_labels(plan, installation) | own


def ours(installation: str) -> str:
    """Selects everything that this installation has made."""
    return f"{MANAGED_BY}={WEFT},{INSTANCE}={installation}"


def of_jobs(installation: str) -> str:
    """Selects what belongs to a job of this installation."""
    return f"{ours(installation)},{JOB},{JOB}!={PROBE}"


def of_job(job: str, installation: str) -> str:
    """Selects what belongs to a job."""
    return f"{ours(installation)},{JOB}={job}"


def gang_selector(plan: AttemptPlan) -> dict[str, str]:
    """Selects the pods of the attempt, within the tenant's namespace."""
    return {JOB: plan.job, ATTEMPT: str(plan.attempt), MANAGED_BY: WEFT}


def label(document: Mapping[str, Any], name: str) -> str:
    """The label of an object; empty without."""
    return str((document["metadata"].get("labels") or {}).get(name, ""))


def annotation(document: Mapping[str, Any], name: str) -> str:
    """The annotation of an object; empty without."""
    return str((document["metadata"].get("annotations") or {}).get(name, ""))


def attempt_of(document: Mapping[str, Any]) -> int:
    """The attempt that the object belongs to; 0 if its label is no number."""
    text = label(document, ATTEMPT)
    return int(text) if text.isdigit() and len(text) < 10 else 0


def run_of(pod: Mapping[str, Any]) -> int:
    """The run of its learner that the pod is; 1 if it names none."""
    text = annotation(pod, RUN)
    return int(text) if text.isdigit() and len(text) < 10 else 1


def term_of(document: Mapping[str, Any]) -> int:
    """The highest term that has acted on the object's attempt; 0 if it names none."""
    text = annotation(document, TERM)
    return int(text) if text.isdigit() and len(text) < 20 else 0
