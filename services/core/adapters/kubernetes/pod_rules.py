"""The form of every pod that Weft creates, checked on the rendered document before it is sent.

A mistake of the renderer, or of a plan that reached it, then never becomes a pod. The rules name all that may be in a
pod: what they do not name is a violation. The admission policies (manifest_files/policies.yaml) say the same to the API
server, independent of this module, and both are tried with the same hostile pods.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from services.core.adapters.kubernetes import entry_scripts, names
from services.core.adapters.kubernetes.nodes import parse_quantity
from services.core.adapters.kubernetes.options import GangMethod, KubernetesOptions
from services.core.domain.codec import MALFORMED
from services.core.domain.errors import AdmissionDenied
from services.core.runtime import pod_layout as layout
from services.core.runtime.learner_folder import JOB_FOLDER

Rule = Callable[[Any], bool]
_Mounts = Sequence[Mapping[str, Any]]
_LEARNERS_FOLDER: Final = {"name": "job", "mountPath": layout.JOB, "subPath": JOB_FOLDER}
_HELPER_MOUNTS: Final[_Mounts] = (
    {"name": "plan", "mountPath": layout.PLAN, "readOnly": True},
    {"name": "token", "mountPath": layout.TOKEN, "readOnly": True},
    {"name": "private", "mountPath": layout.PRIVATE},
    {"name": "control", "mountPath": layout.CONTROL},
    {"name": "runs", "mountPath": layout.RUNS, "readOnly": True},
    _LEARNERS_FOLDER,
    {"name": "job", "mountPath": layout.JOB_VOLUME},
    {"name": "helper-tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's own
    {"name": layout.RESULTS_VOLUME, "mountPath": layout.RESULTS},
)
_LEARNER_MOUNTS: Final[_Mounts] = (
    {"name": "control", "mountPath": layout.CONTROL, "readOnly": True},
    {"name": "runs", "mountPath": layout.RUNS},
    {"name": "entry", "mountPath": layout.ENTRY, "readOnly": True},
    _LEARNERS_FOLDER,
    *({"name": "tmp", "mountPath": place} for place in layout.TEMPORARY),
    {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - as above
)
_DATA: Final = re.compile(r"data-\d{1,4}")
"""Volumes of data stores."""
_SCRATCH: Final = ("private", "control", "runs", "job", "tmp", "helper-tmp")
_MOST_TERMINATION_S: Final = 7 * 86_400
_SECURITY: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def check(pod: Mapping[str, Any], options: KubernetesOptions) -> None:
    """Raises AdmissionDenied, which names the fields, for a pod that breaks a rule."""
    broken = sorted(set(violations(pod, options)))
    if broken:
        raise AdmissionDenied(f"the rendered pod breaks Weft's own rules: {', '.join(broken[:5])}")


def violations(pod: Mapping[str, Any], options: KubernetesOptions) -> Iterator[str]:
    """The fields of a new pod that break a rule, as paths, e.g. ``spec.containers[learner].securityContext``."""
    yield from _fields(pod, "", {"apiVersion": _is("v1"), "kind": _is("Pod"), "metadata": _any, "spec": _any})
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    labels = metadata.get("labels") or {}
    learner = str(labels.get(names.LEARNER, ""))
    owner = names.attempt_name(str(labels.get(names.JOB, "")), int(names.attempt_of({"metadata": metadata})))
    yield from _metadata(metadata, labels, owner, learner, options)
    yield from _spec(spec, owner, learner, options)
    yield from _containers(spec, options)
    yield from _volumes(spec.get("volumes") or (), owner, learner, options)


def _metadata(
    metadata: Mapping[str, Any], labels: Mapping[str, str], owner: str, learner: str, options: KubernetesOptions
) -> Iterator[str]:
    one_label = {
        names.MANAGED_BY: _is(names.WEFT),
        names.INSTANCE: _is(options.installation),
        "app.kubernetes.io/name": _is("learner"),
        **dict.fromkeys((names.JOB, names.ATTEMPT, names.LEARNER, names.ROLE, names.RANK, names.TENANT), bool),
    }
    kueue = options.gang is GangMethod.KUEUE
    one_label |= {names.KUEUE_QUEUE: _is(options.kueue_queue), names.KUEUE_GROUP: _is(owner)} if kueue else {}
    notes = {names.TERM, names.SIZE, names.RUN, names.PULLED_WITH} | ({names.KUEUE_COUNT} if kueue else set())
    space = str(metadata.get("namespace", ""))
    yield from _fields(
        metadata,
        "metadata.",
        {
            "name": _is(f"{owner}-{learner}"),
            "namespace": lambda value: str(value).startswith(options.namespace_prefix),
            "labels": lambda value: isinstance(value, Mapping),
            "annotations": lambda value: set(value or {}) <= notes,
            "ownerReferences": lambda value: _is_owned(value, owner),
        },
    )
    yield from (f"metadata.{name}" for name in ("labels", "name", "ownerReferences") if name not in metadata)
    yield from _fields(labels, "metadata.labels.", one_label, needed=True)
    tenant = str(labels.get(names.TENANT, ""))
    if space != names.namespace_of(tenant, options.namespace_prefix) and not names.is_encoded(space):
        yield f"metadata.labels.{names.TENANT}"


def _spec(spec: Mapping[str, Any], owner: str, learner: str, options: KubernetesOptions) -> Iterator[str]:
    optional: dict[str, Rule] = {
        "priorityClassName": lambda value: value in options.priority_classes.values(),
        "schedulingGroup": _is({"podGroupName": owner}),
        "affinity": lambda value: set(value or {}) <= {"nodeAffinity"},
        "tolerations": lambda value: all(_is_tolerated(toleration, options) for toleration in value),
    }
    secrets = [{"name": name} for name in pull_secrets(options)]
    with_own = [{"name": names.pull_secret(owner)}, *secrets]
    optional["imagePullSecrets"] = lambda value: bool(value) and value in (secrets, with_own)
    optional |= {"runtimeClassName": _is(options.runtime_class)} if options.runtime_class else {}
    schedulers = {*options.schedulers.values(), options.scheduler} - {""}
    optional |= {"schedulerName": lambda value: value in schedulers} if schedulers else {}
    yield from _fields(
        spec,
        "spec.",
        optional
        | {
            "schedulingGates": _is([{"name": layout.SCHEDULING_GATE}]),
            "restartPolicy": _is("Never"),
            "automountServiceAccountToken": _is(False),
            "enableServiceLinks": _is(False),
            "terminationGracePeriodSeconds": lambda value: 0 < value <= _MOST_TERMINATION_S,
            "hostname": _is(learner),
            "subdomain": _is(owner),
            "securityContext": lambda value: _is_of_a_tenant(value, options),
            "initContainers": lambda value: [entry.get("name") for entry in value] == [layout.HELPER_CONTAINER],
            "containers": lambda value: [entry.get("name") for entry in value] == [layout.LEARNER_CONTAINER],
            "volumes": lambda value: isinstance(value, Sequence),
        },
    )
    wanted = {"runtimeClassName"} if options.runtime_class else set()
    wanted |= {"schedulerName"} if options.scheduler else set()
    needed = {
        "schedulingGates",
        "restartPolicy",
        "automountServiceAccountToken",
        "enableServiceLinks",
        "hostname",
        "subdomain",
        "securityContext",
        "initContainers",
        "containers",
        *wanted,
    }
    yield from (f"spec.{name}" for name in sorted(needed - set(spec)))


def _containers(spec: Mapping[str, Any], options: KubernetesOptions) -> Iterator[str]:
    for container in spec.get("initContainers") or ():
        yield from _container(
            container,
            f"spec.initContainers[{container.get('name')}].",
            _HELPER_MOUNTS,
            {
                "image": _is(options.helper_image),
                "restartPolicy": _is("Always"),
                "resources": lambda value: _is_bounded(value, {"cpu", "memory"}),
            },
        )
    for container in spec.get("containers") or ():
        yield from _container(
            container,
            f"spec.containers[{container.get('name')}].",
            _LEARNER_MOUNTS,
            {
                "image": lambda value: is_allowed_image(str(value), options),
                "command": _is(["/bin/sh", f"{layout.ENTRY}/{layout.ENTRY_FILE}"]),
                "resources": lambda value: _is_bounded(
                    value, {"cpu", "memory", options.gpu_resource, *options.devices}
                ),
            },
        )


def _container(container: Mapping[str, Any], path: str, mounts: _Mounts, own: Mapping[str, Rule]) -> Iterator[str]:
    """``mounts``: what it may mount. ``own``: rules of this kind of container, which has all of these fields."""
    yield from _fields(
        container,
        path,
        dict(own)
        | {
            "name": bool,
            "imagePullPolicy": _is("IfNotPresent"),
            "env": lambda value: all(set(variable) <= {"name", "value"} for variable in value),
            "securityContext": _is_confined,
            "volumeMounts": lambda value: all(_is_mounted(mount, mounts) for mount in value),
        },
    )
    yield from (f"{path}{name}" for name in sorted({*own, "securityContext"} - set(container)))


def _volumes(volumes: Sequence[Any], owner: str, learner: str, options: KubernetesOptions) -> Iterator[str]:
    for volume in volumes:
        name = str(volume.get("name"))
        kind = next((key for key in volume if key != "name"), "")
        source = volume.get(kind) or {}
        if kind == "persistentVolumeClaim":
            is_read = _DATA.fullmatch(name) is not None and source == {**source, "readOnly": True} and len(source) == 2
            kept = is_read or (name == layout.RESULTS_VOLUME and {*source} == {"claimName"})
        elif kind == "emptyDir":
            kept = _is_bounded_folder(name, source, options)
        elif kind == "configMap":
            kept = _is_config_map(name, source, owner, options)
        else:
            kept = kind == "secret" and _is_token(name, source, owner, learner)
        if len(volume) != 2 or not kept:
            yield f"spec.volumes[{name}]"


def _is_config_map(name: str, source: Mapping[str, Any], owner: str, options: KubernetesOptions) -> bool:
    plan_files = {layout.PLAN_FILE, layout.ADDRESSES_FILE, layout.AUTHORITY_FILE}
    wanted = {"plan": (owner, plan_files), "entry": (entry_scripts.name_of(options), {layout.ENTRY_FILE})}
    config_map, files = wanted.get(name, ("", set()))
    keys = _keys(source)
    return source.get("name") == config_map and bool(keys) and keys <= files


def _is_token(name: str, source: Mapping[str, Any], owner: str, learner: str) -> bool:
    return name == "token" and source.get("secretName") == owner and _keys(source) == {learner}


def _keys(source: Mapping[str, Any]) -> set[object]:
    return {item.get("key") for item in source.get("items") or ()}


def _is_bounded_folder(name: str, source: Mapping[str, Any], options: KubernetesOptions) -> bool:
    if "sizeLimit" not in source or not set(source) <= {"sizeLimit", "medium"}:
        return False
    if name == "shm":
        return bool(source.get("medium") == "Memory")
    return name in _SCRATCH and "medium" not in source and parse_quantity(source["sizeLimit"]) <= options.scratch


def is_allowed_image(image: str, options: KubernetesOptions) -> bool:
    """True if the operator lets learners run this image."""
    prefixes = tuple(filter(None, (*options.images, options.learner_image, *options.library_images.prefixes())))
    return bool(image) and (not options.images or image.startswith(prefixes))


def pull_secrets(options: KubernetesOptions) -> list[str]:
    """Names of the operator's Secrets that kubelets pull learners' images with, of the tenant's namespace."""
    return [*([names.PULL_SECRET] if options.pull_secret else []), *options.pull_secrets]


def _is_owned(references: Any, owner: str) -> bool:
    return (
        isinstance(references, Sequence)
        and len(references) == 1
        and set(references[0])
        == {
            "apiVersion",
            "kind",
            "name",
            "uid",
        }
        and (references[0]["apiVersion"], references[0]["kind"], references[0]["name"]) == ("v1", "ConfigMap", owner)
    )


def _is_tolerated(toleration: Mapping[str, Any], options: KubernetesOptions) -> bool:
    return toleration.get("key") in {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        options.gpu_resource,
    }


def _is_of_a_tenant(security: Mapping[str, Any], options: KubernetesOptions) -> bool:
    user = security.get("runAsUser")
    in_range = isinstance(user, int) and 0 <= user - options.uid_first < options.uid_count
    change = {name: "OnRootMismatch" for name in security if name == "fsGroupChangePolicy"}
    return in_range and security == {
        **change,
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _is_confined(security: Mapping[str, Any]) -> bool:
    return security == _SECURITY


def _is_mounted(mount: Mapping[str, Any], allowed: _Mounts) -> bool:
    name, place = str(mount.get("name")), str(mount.get("mountPath", ""))
    if _DATA.fullmatch(name) or (name == layout.RESULTS_VOLUME and place.startswith(f"{layout.VOLUMES}/")):
        return place.startswith(f"{layout.VOLUMES}/") and mount == {**mount, "readOnly": True} and len(mount) == 3
    return mount in allowed


def _is_bounded(resources: Mapping[str, Any], known: set[str]) -> bool:
    limits = resources.get("limits") or {}
    return (
        set(resources) == {"limits", "requests"}
        and limits == resources["requests"]
        and ({"cpu", "memory"} <= set(limits) <= known)
    )


def _fields(
    document: Mapping[str, Any], path: str, rules: Mapping[str, Rule], *, needed: bool = False
) -> Iterator[str]:
    """The fields that no rule names, or whose rule refuses them. ``needed``: also those that are missing."""
    for name, value in document.items():
        rule = rules.get(name)
        try:
            kept = rule is not None and rule(value)
        except MALFORMED:
            kept = False
        if not kept:
            yield f"{path}{name}"
    if needed:
        yield from (f"{path}{name}" for name in rules if name not in document)


def _is(expected: object) -> Rule:
    return lambda value: type(value) is type(expected) and value == expected


def _any(_: object) -> bool:
    return True
