"""Pods that Weft would never create, as data: the pod of a learner, changed in one respect.

Families name the field and its values. ``learner.`` and ``helper.`` stand for the two containers, ``+`` for an entry
more of a list, None for a field that is removed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from services.core.adapters.kubernetes import entry_scripts, names, objects, pods
from services.core.adapters.kubernetes.options import GangMethod, KubernetesOptions
from services.core.domain.plan import AttemptPlan, Input, Output
from services.core.runtime import pod_layout
from services.core.strategies.registry import with_variables
from tests.documents import a_learner, a_plan
from tests.testbed.kubernetes.options import OPTIONS as SMALL

Pod = dict[str, Any]
TENANT: Final = "walls"
OPTIONS: Final = KubernetesOptions(
    helper_image=SMALL.helper_image,
    learner_image=SMALL.learner_image,
    entry_script=SMALL.entry_script,
    addresses=SMALL.addresses,
    installation="walls",
    namespace_prefix="walls-",
    pull_secret='{"auths": {"registry.example": {"auth": "dTpw"}}}',
    pull_secrets=("team-registry",),
    images=("testbed.invalid/", "registry.example/team/"),
    lcm_account="platform/walls-lcm",
    guardian_account="platform/walls-guardian",
    priority_classes={"high": "walls-high"},
    devices=("rdma/hca", "example.org/fpga"),
)
_JOB: Final = "j01m81m6wwmrnwpzxnhp31z"
_OWNER: Final = f"weft-{_JOB}-1"
_UID: Final = "3f1c6c5e-0000-4000-8000-000000000000"
_ROOTS: Final = {"learner": "spec.containers.0", "helper": "spec.initContainers.0"}


@dataclass(frozen=True)
class Hostile:
    field: str
    """The path of the changed field."""
    value: object
    reported: str
    """The field that Weft's own check names."""

    @property
    def name(self) -> str:
        text = str(self.value).replace(" ", "")
        return f"{self.field}={text[:60]}"

    def pod(self) -> Pod:
        """The pod."""
        document = copy.deepcopy(friendly_pod())
        for alias, root in _ROOTS.items():
            if self.field.startswith(f"{alias}."):
                _set(document, f"{root}.{self.field.partition('.')[2]}", self.value)
                return document
        _set(document, self.field, self.value)
        return document


def plan(job: str = _JOB) -> AttemptPlan:
    """A gang of two with a GPU and a network adapter each."""
    gang = tuple(
        a_learner(
            f"worker-{rank}",
            cpus=0.1,
            memory=2**27,
            gpus=1,
            node="",
            token=f"token-of-{rank}",
            shm=2**24,
            devices={"rdma/hca": 1},
        )
        for rank in range(2)
    )
    return with_variables(
        a_plan(
            *gang,
            job=job,
            tenant=TENANT,
            distribution="torchrun",
            inputs=(Input(mount="set", type="pvc", location="mine"),),
            output=Output(type="pvc", location="kept", path="results"),
            image_pull_secret="registry",
            grace=1000,
            store_timeout=1000,
            priority="high",
        )
    )


def friendly_pod(owner_uid: str = _UID) -> Pod:
    """The pod as Weft renders it."""
    attempt = plan()
    return pods.pod(attempt, attempt.learners[0], OPTIONS, owner_uid, gang=GangMethod.GATES)


def older_pod(owner_uid: str = _UID, job: str = _JOB) -> Pod:
    """As earlier versions render it: the learner has the whole volume in which its helper fetches, and the entry script
    is of the attempt's own ConfigMap."""
    attempt = plan(job)
    document = pods.pod(attempt, attempt.learners[0], OPTIONS, owner_uid, gang=GangMethod.GATES)
    for volume in document["spec"]["volumes"]:
        if volume["name"] == "entry":
            volume["configMap"]["name"] = names.attempt_name(job, attempt.attempt)
    for container in (*document["spec"]["initContainers"], *document["spec"]["containers"]):
        mounts = [mount for mount in container["volumeMounts"] if mount["mountPath"] != pod_layout.JOB_VOLUME]
        container["volumeMounts"] = [
            {name: value for name, value in mount.items() if name != "subPath"} for mount in mounts
        ]
    return document


def leaving_pods() -> list[Hostile]:
    """Those whose folder would be outside of its volume: the API server itself refuses them, before any policy."""
    return [
        Hostile(
            f"{container}.volumeMounts.{index}",
            {"name": "job", "mountPath": "/weft/job", field: place},
            f"spec.{kind}[{container}].volumeMounts",
        )
        for container, kind, index in (("learner", "containers", 3), ("helper", "initContainers", 5))
        for field in ("subPath", "subPathExpr")
        for place in ("..", "../private", "job/..", "/job", "/")
    ]


def friendly_service() -> Pod:
    """The gang's headless Service."""
    return objects.with_owner(objects.service(plan(), OPTIONS), plan(), _UID)


def _set(document: Any, path: str, value: object) -> None:
    *parents, last = path.replace("\\.", "\0").split(".")
    for key in parents:
        name = key.replace("\0", ".")
        document = document[int(name)] if name.isdigit() else document.setdefault(name, {})
    last = last.replace("\0", ".")
    if last.endswith("+"):
        document.setdefault(last[:-1], []).append(value)
    elif value is None:
        document.pop(last)
    elif last.isdigit():
        document[int(last)] = value
    else:
        document[last] = value


_PRIVILEGED: Final = {"privileged": True, "capabilities": {"drop": ["ALL"]}}
_CONTAINER: Final[Mapping[str, tuple[object, ...]]] = {
    "securityContext": (None, _PRIVILEGED),
    "securityContext.allowPrivilegeEscalation": (True, None),
    "securityContext.readOnlyRootFilesystem": (False, None),
    "securityContext.capabilities.add": (
        ["SYS_ADMIN"],
        ["NET_ADMIN"],
        ["NET_RAW"],
        ["SYS_PTRACE"],
        ["SYS_MODULE"],
        ["DAC_READ_SEARCH"],
        ["CHOWN"],
        ["SETUID"],
        ["NET_BIND_SERVICE"],
        ["IPC_LOCK"],
        ["BPF"],
        ["MKNOD"],
        ["ALL"],
    ),
    "securityContext.capabilities.drop": (["NET_RAW"], ["CHOWN", "SETUID"], None),
    "securityContext.capabilities": (None,),
    "securityContext.runAsUser": (0, 1000, 200_001),
    "securityContext.runAsGroup": (0, 42),
    "securityContext.runAsNonRoot": (False,),
    "securityContext.seccompProfile": ({"type": "Unconfined"}, {"type": "Localhost", "localhostProfile": "p.json"}),
    "securityContext.seLinuxOptions": ({"type": "spc_t"},),
    "securityContext.appArmorProfile": ({"type": "Unconfined"},),
    "ports": ([{"containerPort": 80, "hostPort": 80}], [{"containerPort": 8080}]),
    "envFrom": ([{"secretRef": {"name": "weft-other-1"}}], [{"configMapRef": {"name": "weft-other-1"}}]),
    "env+": (
        {"name": "STOLEN", "valueFrom": {"secretKeyRef": {"name": _OWNER, "key": "worker-1"}}},
        {"name": "STOLEN", "valueFrom": {"configMapKeyRef": {"name": "kube-root-ca.crt", "key": "ca.crt"}}},
        {"name": "STOLEN", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
    ),
    "resources": ({"requests": {"cpu": "1", "memory": "1Gi"}}, {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}),
    "resources.requests": ({"cpu": "1m", "memory": "1Mi"},),
    "volumeMounts.0.mountPropagation": ("HostToContainer",),
    "volumeMounts.0.subPath": ("..data", "job"),
    "volumeMounts.0.subPathExpr": ("job", "$(WEFT_POD_LEARNER)"),
    "volumeMounts.0.mountPath": ("/etc",),
    "args": (["--trust"],),
}
"""Of both containers. ``shm`` stands for no volume of the helper."""

_JOB_FOLDER: Final = (
    {"name": "job", "mountPath": "/weft/job"},
    {"name": "job", "mountPath": "/weft/job", "subPathExpr": "job"},
    *(
        {"name": "job", "mountPath": "/weft/job", "subPath": place}
        for place in (".", "fetched", "job/results", "job/.")
    ),
    *({"name": name, "mountPath": "/weft/job", "subPath": "job"} for name in ("runs", "tmp", "private", "results")),
)
"""In place of the learner's folder, in either container."""

_LEARNER: Final[Mapping[str, tuple[object, ...]]] = {
    "resources": tuple(
        {kind: {"cpu": "1", "memory": "1Gi", name: amount} for kind in ("limits", "requests")}
        for name, amount in (
            ("example.org/disk", "1"),
            ("rdma/hca_exclusive", "1"),
            ("rdma/h", "1"),
            ("smarter-devices/fuse", "1"),
            ("hugepages-2Mi", "2Mi"),
        )
    ),
    "command": (["/bin/sh", "-c", "true"], ["/weft/job/code/entry.sh"], None),
    "image": ("docker.io/library/busybox:1", "testbed.invalid.example/busybox:1", "registry.example/teammate:1"),
    "volumeMounts+": (
        {"name": "token", "mountPath": "/weft/token"},
        {"name": "private", "mountPath": "/weft/private"},
        {"name": "plan", "mountPath": "/weft/plan"},
        {"name": "helper-tmp", "mountPath": "/helper"},
        {"name": "results", "mountPath": "/weft/results"},
        {"name": "results", "mountPath": "/weft/results", "readOnly": True},
        {"name": "results", "mountPath": "/weft/volumes/kept"},
        {"name": "results", "mountPath": "/usr", "readOnly": True},
        {"name": "job", "mountPath": "/weft/job-volume"},
        {"name": "job", "mountPath": "/weft/job-volume", "readOnly": True},
        {"name": "job", "mountPath": "/weft/job-volume", "subPath": "job"},
    ),
    "volumeMounts.0": ({"name": "control", "mountPath": "/weft/control"},),
    "volumeMounts.1.subPath": ("1", "job"),
    "volumeMounts.2": ({"name": "entry", "mountPath": "/weft/entry"},),
    "volumeMounts.3": _JOB_FOLDER,
    "volumeMounts.6": (
        {"name": "data-0", "mountPath": "/weft/volumes/mine", "readOnly": True, "subPath": "job"},
        {"name": "data-0", "mountPath": "/weft/volumes/mine"},
        {"name": "data-0", "mountPath": "/lib", "readOnly": True},
    ),
    "lifecycle": (
        {"preStop": {"exec": {"command": ["sleep", "3600"]}}},
        {"postStart": {"exec": {"command": ["true"]}}},
    ),
    "livenessProbe": ({"exec": {"command": ["true"]}}, {"httpGet": {"host": "169.254.169.254", "port": 80}}),
    "readinessProbe": ({"tcpSocket": {"host": "10.0.0.1", "port": 22}},),
    "startupProbe": ({"exec": {"command": ["true"]}},),
}

_HELPER: Final[Mapping[str, tuple[object, ...]]] = {
    "image": ("testbed.invalid/busybox:1", "registry.example/helper:latest", "testbed.invalid/helper-2:1"),
    "command": (["/bin/sh"],),
    "restartPolicy": (None,),
    "resources.limits": (
        {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"},
        {"cpu": "1", "memory": "1Gi", "rdma/hca": "1"},
    ),
    "volumeMounts+": (
        {"name": "data-0", "mountPath": "/weft/results2"},
        {"name": "results", "mountPath": "/weft/volumes/kept"},
        {"name": "results", "mountPath": "/usr"},
        {"name": "results", "mountPath": "/usr", "readOnly": True},
    ),
    "volumeMounts.4": ({"name": "runs", "mountPath": "/weft/runs"},),
    "volumeMounts.5": _JOB_FOLDER,
    "volumeMounts.6": (
        {"name": "job", "mountPath": "/weft/job-volume", "subPath": "job"},
        {"name": "job", "mountPath": "/weft/job-volume", "subPathExpr": "job"},
        {"name": "runs", "mountPath": "/weft/job-volume"},
        {"name": "private", "mountPath": "/weft/job-volume"},
    ),
    "volumeMounts.1": ({"name": "token", "mountPath": "/weft/job/token", "readOnly": True},),
}

_POD: Final[Mapping[str, tuple[object, ...]]] = {
    "spec.hostNetwork": (True,),
    "spec.hostPID": (True,),
    "spec.hostIPC": (True,),
    "spec.shareProcessNamespace": (True,),
    "spec.serviceAccountName": ("other",),
    "spec.automountServiceAccountToken": (True, None),
    "spec.schedulingGates": (None, [{"name": "example.org/mine"}], [{"name": "weft.dev/gang"}, {"name": "x.dev/y"}]),
    "spec.runtimeClassName": ("other",),
    "spec.schedulerName": ("my-scheduler",),
    "spec.priorityClassName": ("system-node-critical", "system-cluster-critical", "other"),
    "spec.tolerations+": (
        {"operator": "Exists"},
        {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"},
        {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
        {"key": "tenant", "value": "other"},
        {"key": "node.kubernetes.io/disk-pressure", "operator": "Exists", "effect": "NoSchedule"},
    ),
    "spec.affinity": (
        {
            "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "labelSelector": {"matchLabels": {"app": "etcd"}},
                        "topologyKey": "kubernetes.io/hostname",
                        "namespaces": ["kube-system"],
                    }
                ]
            }
        },
        {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname", "namespaceSelector": {}}
                ]
            }
        },
    ),
    "spec.topologySpreadConstraints": (
        [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}],
    ),
    "spec.resourceClaims": ([{"name": "gpu", "resourceClaimName": "of-another"}],),
    "spec.readinessGates": ([{"conditionType": "example.org/never"}],),
    "spec.restartPolicy": ("Always", "OnFailure"),
    "spec.activeDeadlineSeconds": (10,),
    "spec.terminationGracePeriodSeconds": (604_801, 31_536_000),
    "spec.dnsPolicy": ("Default", "ClusterFirstWithHostNet"),
    "spec.dnsConfig": ({"nameservers": ["192.0.2.1"]}, {"searches": ["other.svc.cluster.local"]}),
    "spec.hostAliases": ([{"ip": "192.0.2.1", "hostnames": ["metrics"]}],),
    "spec.setHostnameAsFQDN": (True,),
    "spec.enableServiceLinks": (True, None),
    "spec.hostname": ("worker-1", "metrics", None),
    "spec.subdomain": ("weft-other-1", "kubernetes", None),
    "spec.imagePullSecrets": (
        [{"name": "of-another-tenant"}],
        [{"name": "weft-other-1-pull"}, {"name": "weft-pull"}, {"name": "team-registry"}],
        [{"name": "weft-pull"}, {"name": "team-registry"}, {"name": "of-another-tenant"}],
    ),
    "spec.securityContext": (None,),
    "spec.securityContext.runAsNonRoot": (False, None),
    "spec.securityContext.runAsUser": (0, 1, 1000, 65_534, 199_999, 300_000, None),
    "spec.securityContext.runAsGroup": (0, 5, 1000, None),
    "spec.securityContext.fsGroup": (0, 6, 1000, None),
    "spec.securityContext.supplementalGroups": ([0], [44, 107]),
    "spec.securityContext.sysctls": (
        [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}],
        [{"name": "kernel.shm_rmid_forced", "value": "1"}],
    ),
    "spec.securityContext.seccompProfile": (
        {"type": "Unconfined"},
        {"type": "Localhost", "localhostProfile": "x"},
        None,
    ),
    "spec.securityContext.seLinuxOptions": ({"user": "system_u"}, {"type": "container_engine_t"}),
    "spec.securityContext.appArmorProfile": ({"type": "Unconfined"}, {"type": "Localhost", "localhostProfile": "x"}),
    "spec.containers+": ({"name": "second", "image": SMALL.learner_image},),
    "spec.initContainers+": (
        {"name": "second", "image": SMALL.helper_image},
        {"name": "vpn", "image": SMALL.helper_image, "restartPolicy": "Always"},
    ),
    "spec.volumes+": (
        *(
            {"name": "evil", "hostPath": {"path": path}}
            for path in (
                "/",
                "/etc",
                "/home",
                "/proc",
                "/var/run/docker.sock",
                "/run/containerd/containerd.sock",
                "/var/lib/kubelet",
                "/dev",
                "/etc/kubernetes/pki",
            )
        ),
        {"name": "evil", "nfs": {"server": "192.0.2.1", "path": "/"}},
        {"name": "evil", "persistentVolumeClaim": {"claimName": "of-another"}},
        {"name": "evil", "persistentVolumeClaim": {"claimName": "mine", "readOnly": True}},
        {"name": "data-1", "persistentVolumeClaim": {"claimName": "mine"}},
        {"name": "results-2", "persistentVolumeClaim": {"claimName": "mine"}},
        {"name": "results-3", "persistentVolumeClaim": {"claimName": "mine", "readOnly": True}},
        {"name": "evil", "csi": {"driver": "secrets-store.csi.k8s.io"}},
        {"name": "evil", "iscsi": {"targetPortal": "192.0.2.1:3260", "iqn": "iqn.2001-04.com.example:disk", "lun": 0}},
        {"name": "evil", "fc": {"targetWWNs": ["50060e801049cfd1"], "lun": 0}},
        {"name": "evil", "cephfs": {"monitors": ["192.0.2.1:6789"]}},
        {"name": "evil", "rbd": {"monitors": ["192.0.2.1:6789"], "image": "disk"}},
        {"name": "evil", "gcePersistentDisk": {"pdName": "disk"}},
        {"name": "evil", "awsElasticBlockStore": {"volumeID": "vol-1"}},
        {"name": "evil", "azureDisk": {"diskName": "disk", "diskURI": "https://a.blob.core.windows.net/c/d.vhd"}},
        {"name": "evil", "azureFile": {"secretName": "s", "shareName": "s"}},
        {"name": "evil", "glusterfs": {"endpoints": "e", "path": "p"}},
        {"name": "evil", "portworxVolume": {"volumeID": "v"}},
        {"name": "evil", "vsphereVolume": {"volumePath": "p"}},
        {"name": "evil", "flexVolume": {"driver": "example/driver"}},
        {"name": "evil", "image": {"reference": "docker.io/library/busybox:1"}},
        {
            "name": "evil",
            "ephemeral": {
                "volumeClaimTemplate": {
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Ti"}}}
                }
            },
        },
        {"name": "evil", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
        {"name": "evil", "projected": {"sources": [{"secret": {"name": "of-another"}}]}},
        {"name": "evil", "downwardAPI": {"items": [{"path": "ip", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "evil", "secret": {"secretName": "of-another"}},
        {"name": "evil", "secret": {"secretName": _OWNER}},
        {"name": "evil", "secret": {"secretName": f"{_OWNER}-pull"}},
        {"name": "evil", "configMap": {"name": "kube-root-ca.crt"}},
        {"name": "evil", "configMap": {"name": "weft-other-1"}},
        {"name": "evil", "emptyDir": {}},
        {"name": "evil", "emptyDir": {"medium": "Memory", "sizeLimit": "1Ti"}},
        {"name": "evil", "emptyDir": {"medium": "HugePages", "sizeLimit": "1Gi"}},
    ),
    "spec.volumes.0.configMap.name": ("weft-other-1", entry_scripts.name_of(OPTIONS)),
    "spec.volumes.1.configMap.name": (
        "weft-other-1",
        "kube-root-ca.crt",
        "weft-entry-evil",
        "my-weft-entry-000000000000",
    ),
    "spec.volumes.2.secret.secretName": ("weft-other-1", f"{_OWNER}-pull"),
    "spec.volumes.2.secret.items": (
        [{"key": "worker-1", "path": "token"}],
        [{"key": "worker-0", "path": "token"}, {"key": "worker-1", "path": "other"}],
        None,
    ),
    "spec.volumes.6.emptyDir": ({}, {"sizeLimit": "10Ti"}, {"medium": "Memory", "sizeLimit": "1Gi"}),
    "metadata.name": (f"{_OWNER}-worker-1", "evil"),
    "metadata.finalizers": (["example.org/forever"], ["foregroundDeletion"]),
    "metadata.annotations.container\\.apparmor\\.security\\.beta\\.kubernetes\\.io/learner": ("unconfined",),
    "metadata.annotations.kubernetes\\.io/psp": ("privileged",),
    "metadata.ownerReferences": (None, []),
    "metadata.ownerReferences.0.kind": ("Secret", "Node"),
    "metadata.ownerReferences.0.name": ("weft-other-1", f"weft-{_JOB}-2"),
    "metadata.ownerReferences.0.controller": (True,),
    "metadata.ownerReferences.0.apiVersion": ("apps/v1",),
    "metadata.ownerReferences+": ({"apiVersion": "v1", "kind": "ConfigMap", "name": "weft-other-1", "uid": _UID},),
    "metadata.labels": ({},),
    "metadata.labels.app\\.kubernetes\\.io/managed-by": ("Helm", None),
    "metadata.labels.app\\.kubernetes\\.io/instance": ("weft", None),
    "metadata.labels.app\\.kubernetes\\.io/name": ("api", None),
    "metadata.labels.weft\\.dev/job": ("jother", "", None),
    "metadata.labels.weft\\.dev/attempt": ("2", None),
    "metadata.labels.weft\\.dev/learner": ("worker-1", "ps-0", None),
    "metadata.labels.weft\\.dev/tenant": ("other", "", None),
}


def hostile_pods() -> Iterator[Hostile]:
    """All of them."""
    for container, kind in (("learner", "containers"), ("helper", "initContainers")):
        own = _LEARNER if container == "learner" else _HELPER
        for field, values in (*_CONTAINER.items(), *own.items()):
            for value in values:
                reported = f"spec.{kind}[{container}].{field.partition('.')[0].rstrip('+')}"
                yield Hostile(f"{container}.{field}", value, reported)
    for field, values in _POD.items():
        for value in values:
            yield Hostile(field, value, _reported(field, value))


def _reported(field: str, value: object) -> str:
    """The field as Weft's check names it: whole for labels, the list for an entry."""
    plain = field.replace("\\", "")
    if field.startswith("metadata.labels."):
        names_the_pod = value and plain.rpartition("/")[2] in {"job", "attempt", "learner"}
        return "metadata.name" if names_the_pod else plain
    if field.startswith("spec.volumes."):
        return "spec.volumes["
    if field == "spec.volumes+":
        assert isinstance(value, Mapping)
        return f"spec.volumes[{value['name']}]"
    return ".".join(plain.split(".")[:2]).rstrip("+")
