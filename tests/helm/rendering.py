"""The chart as helm renders it, over many combinations of values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from tests.helm.installation import CHART, RELEASE, Helm

PRODUCTION = CHART / "values-production.yaml"
Object = dict[str, Any]
MATRIX: dict[str, tuple[str, ...]] = {
    "small": (),
    "production": (f"--values={PRODUCTION}",),
    "small with an operator's secrets": (
        "--set=keys.adminKey.existingSecret=a,keys.masterKey.existingSecret=m",
        "--set=mongodb.existingSecret=x,rabbitmq.existingSecret=y,s3.existingSecret=z",
    ),
    "production with its own keys": (
        f"--values={PRODUCTION}",
        "--set=certManager.enabled=false,keys.renewal.enabled=true",
    ),
    "some stores inside": (
        f"--values={PRODUCTION}",
        "--set=etcd.enabled=true,rabbitmq.enabled=true,ingress.enabled=false",
    ),
    "gateway and scheduler": (
        "--set=gateway.enabled=true,gateway.host=weft.example,gateway.grpcHost=grpc.weft.example",
        "--set=gateway.parentRefs[0].name=public,scheduler.enabled=true",
    ),
    "OpenShift": ("--set=security.uid=null",),
    "air-gapped": ("--set=images.registry=mirror.example:5000/weft,images.pullSecrets={mirror}",),
    "shards of metrics": ("--set=metrics.shards=3,metrics.shardsBefore=5",),
    "without walls": (
        "--set=networkPolicy.enabled=false,scheduling.spread=false,metrics.persistence.storageClass=fast",
    ),
    "a Guardian for each job": (f"--values={PRODUCTION}", "--set=guardian.launcher=job,fullnameOverride=training"),
    "everything named": (
        "--set=fullnameOverride=training,clusterDomain=corp.example,commonLabels.team=ml,scheduling.priorityClassName=high",
        "--set=learners.priorityClasses.high=weft-high,images.frameworks.jax-0\\.10=weft/jax:0.10",
        "--set=images.frameworkRegistry=library.example/team",
        "--set=learners.images={registry.example/,weft/},learners.uids.first=5000,learners.scratch=1.5TiB",
        f"--set=learners.runtimeClass=gvisor,learners.priorityClasses.low=a,images.helper=h:2@sha256:{'ab' * 32}",
        "--set=learners.pullSecret=registries,learners.tenantPullSecrets={team-b,team-a}",
        "--set=learners.devices={rdma/hca,example.org/fpga}",
        "--set=api.env.WEFT_TENANT_BYTES=5,networkPolicy.apiFrom[0].ipBlock.cidr=10.0.0.0/8",
    ),
}


def rendered(helm: Helm, *options: str) -> list[Object]:
    text = helm("template", RELEASE, CHART, "--namespace=default", *options)
    return [document for document in yaml.safe_load_all(text) if document]


def pods(documents: list[Object]) -> Iterator[tuple[str, Object]]:
    """Name and spec of all pods, also of those that others make."""
    for document in documents:
        spec = document.get("spec") or {}
        if document["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if "template" in spec:
            yield document["metadata"]["name"], spec["template"]["spec"]
        elif guardian := guardian_template(document):
            yield document["metadata"]["name"], guardian["spec"]
        elif document["kind"] == "Pod":
            yield document["metadata"]["name"], spec


def guardian_template(document: Object) -> Object | None:
    """From which the lcm makes the pods of Guardians; None for other documents."""
    text = document.get("data", {}).get("pod.yaml") if document["kind"] == "ConfigMap" else None
    return yaml.safe_load(text) if text else None


def document_of(documents: list[Object], kind: str, name: str) -> Object:
    (document,) = (entry for entry in documents if (entry["kind"], entry["metadata"]["name"]) == (kind, name))
    return document


def containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", []), *pod["containers"]]
