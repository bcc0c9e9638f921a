"""What the operator decides about learners in the cluster. ``bootstrap.wiring`` makes it of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from services.core.frameworks.images import LibraryImages


class GangMethod(StrEnum):
    """How all pods of a gang are placed, or none."""

    NATIVE = "native"
    """The cluster's own PodGroup: its scheduler places the gang."""
    GATES = "gates"
    """The dispatcher's placement, as node affinity of pods whose scheduling gates are lifted together."""
    KUEUE = "kueue"
    """A group of plain pods for Kueue, which admits all of them or none within its quota. Never chosen by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """Sizes are in bytes and CPU cores."""

    helper_image: str
    learner_image: str
    """Of learners without framework and image."""
    entry_script: str
    """The first process of a learner's container."""
    addresses: Mapping[str, str]
    """Service -> address, as pods reach it."""
    authority: str = ""
    """PEM text of the installation's authority; empty: services are reached without TLS."""
    helper_variables: Mapping[str, str] = field(default_factory=dict)
    """The operator's settings for helpers."""
    library_images: LibraryImages = field(default_factory=LibraryImages)
    """Of the framework library."""
    images: tuple[str, ...] = ()
    """Learners' images begin with one of these; empty: any image."""
    pull_secret: str = ""
    """Credentials of registries, as the JSON text of a Docker config file; empty: the nodes' own."""
    pull_secrets: tuple[str, ...] = ()
    """Names of Secrets with such credentials that the operator keeps in each tenant's namespace."""
    lcm_account: str = ""
    """``namespace/name`` of the lcm's service account; empty: its rights are not Weft's to give."""
    guardian_account: str = ""
    """The same of the guardian's."""
    guardian_namespace: str = ""
    """Where each job has a Guardian in a Kubernetes Job of its own; empty: a pool guards all jobs."""
    installation: str = "weft"
    """Label of everything that this installation makes. Two installations on one cluster have different ones."""
    namespace_prefix: str = "weft-"
    """Of tenants' namespaces. Two installations on one cluster have different ones."""
    gang: GangMethod | None = None
    """None: the best that the cluster itself offers."""
    kueue_queue: str = ""
    """With KUEUE: the LocalQueue in each tenant's namespace."""
    gpu_resource: str = "nvidia.com/gpu"
    gpu_label: str = "nvidia.com/gpu.product"
    """Label of nodes with the model of their GPUs."""
    devices: tuple[str, ...] = ()
    """Names of extended resources that learners may have beside GPUs, e.g. rdma/hca; empty: none."""
    priority_classes: Mapping[str, str] = field(default_factory=dict)
    """low, normal, high -> PriorityClass; none for what is left out."""
    runtime_class: str = ""
    scheduler: str = ""
    """``schedulerName`` of pods; empty: the cluster's default."""
    schedulers: Mapping[str, str] = field(default_factory=dict)
    """pack, spread -> ``schedulerName`` of the pods of jobs with this placement; ``scheduler`` for what is left out."""
    helper_cpus: float = 0.25
    helper_memory: int = 2**29
    scratch: int = 100 * 2**30
    """Bound of each of a learner's volumes for results and temporary files."""
    port: int = 29_500
    """At which learners of a gang reach each other. Each pod has an address of its own."""
    interface: str = "eth0"
    """The network interface between pods."""
    uid_first: int = 200_000
    uid_count: int = 100_000
    """Each tenant's pods run under one user id of this range."""
    egress: tuple[str, ...] = ("0.0.0.0/0", "::/0")
    """Networks that pods may reach, in CIDR notation, beside their own gang and DNS."""
    egress_except: tuple[str, ...] = (
        "169.254.0.0/16",
        "100.100.100.200/32",  # Alibaba Cloud
        "168.63.129.16/32",  # Azure: its agent's server, which has secrets of the node
        "fe80::/10",
        "fd00:ec2::254/128",  # AWS
        "fd20:ce::254/128",  # Google Cloud
    )
    """Networks that pods may not reach as a part of larger ones in ``egress``: clouds' metadata services by default."""
    quota: Mapping[str, str] = field(default_factory=dict)
    """``hard`` limits of each tenant's ResourceQuota, e.g. {"requests.nvidia.com/gpu": "8"}."""
