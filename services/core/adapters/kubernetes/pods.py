"""The pods of learners: pure functions of the plan and the operator's options.

A pod is created inert, behind a scheduling gate. Activation lifts the gates by patches that carry uid and
resourceVersion, so a patch that was decided on an older state fails. Every pod satisfies Pod Security ``restricted``:
no root, no capabilities, the runtime's seccomp filter, no service-account token. Requests equal limits.

The helper is a native sidecar: it starts before the learner's container and ends after it.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Final

from services.core.adapters.kubernetes import entry_scripts, names
from services.core.adapters.kubernetes.objects import pulled_with, with_owner
from services.core.adapters.kubernetes.options import GangMethod, KubernetesOptions
from services.core.adapters.kubernetes.pod_rules import is_allowed_image, pull_secrets
from services.core.domain.errors import InvalidRequest
from services.core.domain.plan import AttemptPlan, ClusterValues, Folder, LearnerPlan, fill
from services.core.runtime import pod_layout as layout
from services.core.runtime.learner_folder import JOB_FOLDER, JOB_FOLDERS

Document = dict[str, Any]
_SECONDS_TO_END: Final = 10
"""Beyond grace and store_timeout: for the entry process and the helper to end."""
_LOST_AFTER_S: Final = 5
"""A pod is evicted so long after its node's loss is known: the Guardian starts another attempt meanwhile."""
_CONTROL_BYTES: Final = 2**28
"""Of the volume for control files and the SDK."""
_MOST_TERMINATION_S: Final = 7 * 86_400
_FILE_FACTOR: Final = 2
"""A file may be so many times as large as the learner's volume or memory, so that the kubelet can still see the excess
and evict the pod with a reason. A file with holes takes less than its size."""


def pod(
    plan: AttemptPlan, learner: LearnerPlan, options: KubernetesOptions, owner_uid: str, *, gang: GangMethod
) -> Document:
    """The inert pod of a learner. Raises InvalidRequest for a learner that this cluster cannot run."""
    group = names.attempt_name(plan.job, plan.attempt)
    end_s = math.ceil((plan.grace + plan.store_timeout) / 1000) + _SECONDS_TO_END
    size = {
        "cpus": learner.cpus + options.helper_cpus,
        "memory": learner.memory + options.helper_memory,
        "gpus": learner.gpus,
        **({"devices": dict(learner.devices)} if learner.devices else {}),
    }
    spec: Document = {
        "schedulingGates": [{"name": layout.SCHEDULING_GATE}],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": min(end_s, _MOST_TERMINATION_S),
        "hostname": learner.name,
        "subdomain": group,
        "securityContext": _pod_security(plan, options),
        "initContainers": [_helper(plan, learner, options)],
        "containers": [_learner(plan, learner, options)],
        "volumes": _volumes(plan, learner, options),
        "tolerations": _tolerations(options, learner),
    }
    own = [names.pull_secret(group)] if plan.image_pull_secret else []
    if secrets := [*own, *pull_secrets(options)]:
        spec["imagePullSecrets"] = [{"name": name} for name in secrets]
    if options.runtime_class:
        spec["runtimeClassName"] = options.runtime_class
    if scheduler := options.schedulers.get(plan.placement, options.scheduler):
        spec["schedulerName"] = scheduler
    if plan.priority in options.priority_classes:
        spec["priorityClassName"] = options.priority_classes[plan.priority]
    if gang is GangMethod.NATIVE:
        spec["schedulingGroup"] = {"podGroupName": group}
    if gang is not GangMethod.GATES and (
        affinity := {**node_affinity(learner, options, node=""), **preferred_node(learner)}
    ):
        spec["affinity"] = {"nodeAffinity": affinity}
    in_kueue = gang is GangMethod.KUEUE
    document: Document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.pod_name(plan, learner),
            "namespace": names.namespace_of(plan.tenant, options.namespace_prefix),
            "labels": names.learner_labels(plan, learner, options.installation)
            | ({names.KUEUE_QUEUE: options.kueue_queue, names.KUEUE_GROUP: group} if in_kueue else {}),
            "annotations": {
                names.TERM: str(plan.term),
                names.SIZE: json.dumps(size),
                names.RUN: str(learner.run),
                **pulled_with(plan),
            }
            | ({names.KUEUE_COUNT: str(len(plan.learners))} if in_kueue else {}),
        },
        "spec": spec,
    }
    return with_owner(document, plan, owner_uid)


def activation(present: Document, learner: LearnerPlan, options: KubernetesOptions, *, gang: GangMethod) -> Document:
    """The merge patch that lifts Weft's gate of this pod as it is now, and binds it to the learner's node with GATES.

    Otherwise the scheduler chooses the nodes, and prefers the learner's. A gate of Kueue's stays: Kueue lifts it.
    """
    others = [
        entry for entry in present["spec"].get("schedulingGates") or () if entry["name"] != layout.SCHEDULING_GATE
    ]
    spec: Document = {"schedulingGates": others or None}
    if gang is GangMethod.GATES and (affinity := node_affinity(learner, options, node=learner.node)):
        spec["affinity"] = {"nodeAffinity": affinity}
    return {"metadata": _metadata_of_patch(present), "spec": spec}


def annotated(present: Document, **annotations: str) -> Document:
    """The merge patch that sets annotations of this object as it is now. An older patch fails afterwards."""
    return {"metadata": {**_metadata_of_patch(present), "annotations": annotations}}


def _metadata_of_patch(present: Document) -> Document:
    """The metadata of a patch that applies to this state of the object only, and clears its ``managedFields``.

    Weft reads no managedFields. They are half of a pod's size, and the API server computes them anew at each change of
    a pod that has them, also of its status. An entry that is empty clears them (Kubernetes, "Server-Side Apply").
    """
    state = {name: present["metadata"][name] for name in ("uid", "resourceVersion")}
    return {**state, "managedFields": [{}]}


def node_affinity(learner: LearnerPlan, options: KubernetesOptions, *, node: str) -> Document:
    """Node affinity with nodes of its GPU type and, unless ``node`` is empty, with this node; empty: with none."""
    term: Document = {}
    if learner.gpu_type and learner.gpus:
        label = {"key": options.gpu_label, "operator": "In", "values": [learner.gpu_type]}
        term["matchExpressions"] = [label]
    if node:
        term["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    if not term:
        return {}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}


def preferred_node(learner: LearnerPlan) -> Document:
    """Prefers the node that the dispatcher chose by the job's placement policy; the scheduler may take another."""
    if not learner.node:
        return {}
    preference = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [learner.node]}]}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": preference}]}


def user_id(tenant: str, options: KubernetesOptions) -> int:
    """The user id of a tenant's pods: the same on each node, within the operator's range."""
    return options.uid_first + int(hashlib.sha256(tenant.encode()).hexdigest()[:12], 16) % options.uid_count


def image_of(plan: AttemptPlan, options: KubernetesOptions) -> str:
    """The image of the learners. Raises InvalidRequest for one that the operator has not allowed, or has not named."""
    if plan.image and not is_allowed_image(plan.image, options):
        places = ", ".join(options.images)
        raise InvalidRequest(f"this cluster does not run the image {plan.image}; images here begin with {places}")
    if plan.image:
        return plan.image
    if not plan.framework:
        return options.learner_image
    image = options.library_images.of_id(plan.framework)
    if not image:
        raise InvalidRequest(
            f"this cluster has no image of {plan.framework}; name one with `image:`, or the operator sets"
            " WEFT_KUBERNETES_FRAMEWORK_REGISTRY or WEFT_KUBERNETES_FRAMEWORK_IMAGES"
        )
    return image


def _pod_security(plan: AttemptPlan, options: KubernetesOptions) -> Document:
    user = user_id(plan.tenant, options)
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
        # Else the kubelet would set the group of each file of a large claim, at each start of a pod.
        **({"fsGroupChangePolicy": "OnRootMismatch"} if plan.output is not None else {}),
    }


def _container_security() -> Document:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        # What a container writes beside its volumes is the node's disk, without a bound.
        "readOnlyRootFilesystem": True,
    }


def _helper(plan: AttemptPlan, learner: LearnerPlan, options: KubernetesOptions) -> Document:
    size = {"cpu": _cpus(options.helper_cpus), "memory": str(options.helper_memory)}
    return {
        "name": layout.HELPER_CONTAINER,
        "image": options.helper_image,
        "imagePullPolicy": "IfNotPresent",
        "restartPolicy": "Always",
        "env": [
            {"name": layout.LEARNER_VARIABLE, "value": learner.name},
            {"name": layout.RUN_VARIABLE, "value": str(learner.run)},
            *({"name": name, "value": value.replace("$", "$$")} for name, value in options.helper_variables.items()),
        ],
        "resources": {"requests": size, "limits": size},
        "securityContext": _container_security(),
        "volumeMounts": [
            _mount("plan", layout.PLAN, read_only=True),
            _mount("token", layout.TOKEN, read_only=True),
            _mount("private", layout.PRIVATE),
            _mount("control", layout.CONTROL),
            _mount("runs", layout.RUNS, read_only=True),
            _learners_folder(),
            _mount("job", layout.JOB_VOLUME),
            _mount("helper-tmp", "/tmp"),  # noqa: S108 - the container's own
            *_claim_mounts(plan),
            *([_mount(layout.RESULTS_VOLUME, layout.RESULTS)] if plan.output is not None else []),
        ],
    }


def _learner(plan: AttemptPlan, learner: LearnerPlan, options: KubernetesOptions) -> Document:
    size = {"cpu": _cpus(learner.cpus), "memory": str(learner.memory)}
    if learner.gpus:
        size[options.gpu_resource] = str(_whole_gpus(learner))
    size |= _devices(learner, options)
    mounts = [
        _mount("control", layout.CONTROL, read_only=True),
        _mount("runs", layout.RUNS),
        _mount("entry", layout.ENTRY, read_only=True),
        _learners_folder(),
        *(_mount("tmp", place) for place in layout.TEMPORARY),
        *_claim_mounts(plan),
    ]
    return {
        "name": layout.LEARNER_CONTAINER,
        "image": image_of(plan, options),
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", f"{layout.ENTRY}/{layout.ENTRY_FILE}"],
        "env": [
            {"name": name, "value": value.replace("$", "$$")}  # the kubelet expands $(NAME)
            for name, value in environment(plan, learner, options).items()
        ],
        "resources": {"requests": size, "limits": size},
        "securityContext": _container_security(),
        "volumeMounts": mounts + ([_mount("shm", "/dev/shm")] if learner.shm else []),  # noqa: S108 - as above
    }


def environment(plan: AttemptPlan, learner: LearnerPlan, options: KubernetesOptions) -> dict[str, str]:
    """The variables of the learner's container: the user's, Weft's, and those of the entry script."""
    folders = {folder: f"{layout.JOB}/{name}" for folder, name in JOB_FOLDERS.items()}
    values = ClusterValues(
        address_of=lambda name: names.host_of(plan, name),
        port_of=lambda _: options.port,
        interface=options.interface,
        folders={**folders, Folder.JOB_STATE: layout.JOB, Folder.SDK: layout.SDK},
        gpu_count=math.ceil(learner.gpus),
    )
    return {
        **learner.env,
        **fill({**plan.variables, **learner.variables}, values),
        layout.LEARNER_VARIABLE: learner.name,
        layout.COMMAND_VARIABLE: learner.command,
        layout.GRACE_VARIABLE: str(math.ceil(plan.grace / 1000)),
        layout.STORE_TIMEOUT_VARIABLE: str(math.ceil(plan.store_timeout / 1000)),
        layout.FILE_BYTES_VARIABLE: str(_FILE_FACTOR * max(options.scratch, learner.memory, learner.shm)),
    }


def _volumes(plan: AttemptPlan, learner: LearnerPlan, options: KubernetesOptions) -> list[Document]:
    name = names.attempt_name(plan.job, plan.attempt)
    files = [layout.PLAN_FILE, layout.ADDRESSES_FILE] + ([layout.AUTHORITY_FILE] if options.authority else [])
    token = {"secretName": name, "items": [{"key": learner.name, "path": layout.TOKEN_FILE}], "defaultMode": 0o440}
    volumes: list[Document] = [
        {"name": "plan", "configMap": {"name": name, "items": [{"key": file, "path": file} for file in files]}},
        {
            "name": "entry",
            "configMap": {
                "name": entry_scripts.name_of(options),
                "items": [{"key": layout.ENTRY_FILE, "path": layout.ENTRY_FILE}],
            },
        },
        {"name": "token", "secret": token},
        {"name": "private", "emptyDir": {"sizeLimit": str(options.scratch)}},
        {"name": "control", "emptyDir": {"sizeLimit": str(_CONTROL_BYTES)}},
        {"name": "runs", "emptyDir": {"sizeLimit": str(options.scratch)}},
        {"name": "job", "emptyDir": {"sizeLimit": str(options.scratch)}},
        {"name": "tmp", "emptyDir": {"sizeLimit": str(options.scratch)}},
        {"name": "helper-tmp", "emptyDir": {"sizeLimit": str(options.scratch)}},
    ]
    volumes += [
        {"name": volume, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        for volume, claim in claims(plan).items()
        if volume != layout.RESULTS_VOLUME
    ]
    if plan.output is not None:
        claim = {"claimName": plan.output.location}
        volumes.append({"name": layout.RESULTS_VOLUME, "persistentVolumeClaim": claim})
    if learner.shm:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(learner.shm)}})
    return volumes


def claims(plan: AttemptPlan) -> dict[str, str]:
    """The claims of the job's inputs by the name of their volume. They are of the tenant's namespace.

    A claim that results are stored on, too, is one volume: a kubelet need not mount a claim twice.
    """
    named = sorted({entry.location for entry in plan.inputs if entry.type == "pvc"})
    written = plan.output.location if plan.output is not None else None
    return {
        layout.RESULTS_VOLUME if claim == written else f"data-{number}": claim for number, claim in enumerate(named)
    }


def _claim_mounts(plan: AttemptPlan) -> list[Document]:
    return [_mount(volume, f"{layout.VOLUMES}/{claim}", read_only=True) for volume, claim in claims(plan).items()]


def _tolerations(options: KubernetesOptions, learner: LearnerPlan) -> list[Document]:
    """A lost node's pods end soon. Nodes with GPUs are mostly tainted with the name of the resource."""
    return lost_node_tolerations() + ([{"key": options.gpu_resource, "operator": "Exists"}] if learner.gpus else [])


def lost_node_tolerations() -> list[Document]:
    """A pod is removed ``_LOST_AFTER_S`` after the loss of its node is known. Kubernetes' default is five minutes."""
    return [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _LOST_AFTER_S,
        }
        for state in ("not-ready", "unreachable")
    ]


def _mount(volume: str, path: str, *, read_only: bool = False) -> Document:
    return {"name": volume, "mountPath": path} | ({"readOnly": True} if read_only else {})


def _learners_folder() -> Document:
    """In both containers: the kubelet then makes the folder with the helper's, which runs before the learner's."""
    return {**_mount("job", layout.JOB), "subPath": JOB_FOLDER}


def _cpus(cpus: float) -> str:
    return f"{math.ceil(cpus * 1000)}m"


def _devices(learner: LearnerPlan, options: KubernetesOptions) -> dict[str, str]:
    """Limits of the learner's devices. Raises InvalidRequest for one that the operator does not list."""
    unlisted = sorted({*learner.devices} - {*options.devices})
    if unlisted:
        listed = ", ".join(options.devices) or "none"
        raise InvalidRequest(
            f"this cluster gives no {unlisted[0]} to learners; devices here: {listed} (WEFT_KUBERNETES_DEVICES)"
        )
    return {name: str(count) for name, count in sorted(learner.devices.items())}


def _whole_gpus(learner: LearnerPlan) -> int:
    if learner.gpus != int(learner.gpus):
        raise InvalidRequest(
            f"{learner.name} wants {learner.gpus:g} of a GPU, and this cluster gives whole GPUs only; write gpus: 1"
        )
    return int(learner.gpus)
