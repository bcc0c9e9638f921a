"""Settings of ``WEFT_CLUSTER=kubernetes``, read by the services that use the cluster: lcm and guardian.

They are loaded from the environment (``WEFT_KUBERNETES_<FIELD>``). Mappings and lists are written as JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from services.core.domain.units import parse_bytes
from services.core.runtime.checked_settings import CheckedSettings

Priority = Literal["low", "normal", "high"]
_DEVICE: Final = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
_OBJECT_NAME: Final = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"


HELPER_SETTINGS: Final = (
    "WEFT_HTTP_ALLOW",
    "WEFT_HTTP_MAX_BYTES",
    "WEFT_HELPER_DRAIN_S",
    "WEFT_CHECKPOINT_QUIET_S",
    "WEFT_CHECKPOINT_EVERY_S",
)
"""Settings of helpers (``services.helper.settings``) that those in pods get from the service that makes the pods."""


class KubernetesSettings(CheckedSettings):
    """Access to the cluster, and what the operator decides about learners there."""

    model_config = SettingsConfigDict(env_prefix="WEFT_KUBERNETES_", frozen=True, extra="ignore")

    kubeconfig: Path | None = Field(
        default=None, description="File with the access to the cluster. Default: the service account of the own pod."
    )
    context: str = Field(default="", description="Context of the kubeconfig. Default: its current one.")
    installation: str = Field(
        default="weft",
        pattern="^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$",
        description="Label of everything that this installation makes. Two installations on one cluster need different "
        "ones, and different namespace prefixes.",
    )
    namespace_prefix: str = Field(
        default="weft-",
        pattern="^[a-z]([a-z0-9-]{0,30}-)?$",
        description="A tenant's learners run in the namespace of this name and the tenant's.",
    )
    metrics_address: str = Field(
        default="",
        description="Address of the metrics service as pods reach it, tls:host:port. Default: the service's own one.",
    )
    helper_image: str = Field(default="", description="Image of the helper beside each learner. Required.")
    learner_image: str = Field(
        default="", description="Image of learners without `framework` and `image`. Default: the helper's."
    )
    framework_images: dict[str, str] = Field(
        default_factory=dict,
        description='Images of single entries of the framework library, e.g. {"jax-0.10": "registry.example/jax:1"}, '
        "in place of those of `framework_registry`. The version may be its first components.",
    )
    framework_registry: str | None = Field(
        default=None,
        description="Registry and path with the images of the framework library, as `make images FRAMEWORKS=...` names "
        "them, e.g. registry.example/team for registry.example/team/weft/jax:0.10.2-3be74bee (`weft frameworks` lists "
        "them). Empty: nodes have them by these names without a registry. Default: there are only those of "
        "`framework_images`, and jobs with another `framework` are refused.",
    )
    images: tuple[str, ...] = Field(
        default=(),
        description='What the images of learners begin with, e.g. ["registry.example/"]: jobs with other images are '
        "refused. End a registry with a slash. Default: any image.",
    )
    pull_secret_file: Path | None = Field(
        default=None,
        description="Docker config file (`docker login` writes ~/.docker/config.json) with the credentials of private "
        "registries. The lcm writes it into each tenant's namespace as the Secret weft-pull, which no pod can read. "
        "Default: the nodes' own credentials.",
    )
    pull_secrets: tuple[Annotated[str, Field(pattern=_OBJECT_NAME)], ...] = Field(
        default=(),
        description="Names of further Secrets of type kubernetes.io/dockerconfigjson with credentials of registries, "
        'e.g. ["team-registry"]. The operator keeps them in each tenant\'s namespace; a tenant may have other '
        "credentials there than the next. Kubelets ignore those that are missing.",
    )
    lcm_account: str = Field(
        default="",
        pattern="^([a-z0-9.-]+/[a-z0-9.-]+)?$",
        description="Service account of the lcm, namespace/name (`weft manifests`), which gets its rights in each "
        "tenant's namespace. Default: the access of the kubeconfig has all rights.",
    )
    guardian_account: str = Field(
        default="",
        pattern="^([a-z0-9.-]+/[a-z0-9.-]+)?$",
        description="Service account of the guardian, namespace/name: the lcm gives it its rights in each tenant's "
        "namespace.",
    )
    guardian_launcher: Literal["pool", "job"] = Field(
        default="pool",
        description="pool: guardian processes share all jobs. job: the lcm gives each job a Guardian in a Kubernetes "
        "Job of its own; then run no pool.",
    )
    guardian_template: Path | None = Field(
        default=None,
        description="File with the pod template ({metadata, spec}, YAML) of `guardian_launcher` job: that of a "
        "guardian. Required there.",
    )
    guardian_namespace: str = Field(
        default="", description="Namespace of the Jobs of `guardian_launcher` job. Required there."
    )
    gang: Literal["auto", "native", "gates", "kueue"] = Field(
        default="auto",
        description="How all pods of a job are placed, or none. native: the cluster's PodGroup "
        "(scheduling.k8s.io/v1alpha2); gates: by the nodes that the lcm has chosen; kueue: a group of plain pods that "
        "Kueue admits; auto: native where there is one, else gates.",
    )
    kueue_queue: str = Field(
        default="",
        description="The LocalQueue of Kueue in each tenant's namespace. Required with `gang` kueue.",
    )
    gpu_resource: str = Field(default="nvidia.com/gpu", description="Name of the resource that counts a node's GPUs.")
    gpu_label: str = Field(
        default="nvidia.com/gpu.product",
        description="Label of nodes with the model of their GPUs, for `gpu_type` of a job.",
    )
    devices: tuple[Annotated[str, Field(pattern=_DEVICE)], ...] = Field(
        default=(),
        description='Extended resources that learners may have beside GPUs (`devices` of a job), e.g. ["rdma/hca"]: '
        "those of device plugins that are safe to share between tenants. Jobs that name others are refused. "
        "Default: none.",
    )
    priority_classes: dict[Priority, str] = Field(
        default_factory=dict,
        description='PriorityClass of the pods by the job\'s priority, e.g. {"high": "weft-high"}. Default: none.',
    )
    runtime_class: str = Field(default="", description="RuntimeClass of all pods, e.g. gvisor. Default: the cluster's.")
    scheduler: str = Field(default="", description="Scheduler of all pods. Default: the cluster's.")
    schedulers: dict[Literal["pack", "spread"], str] = Field(
        default_factory=dict,
        description='Scheduler by the placement of a job, e.g. {"pack": "weft-pack"}. Default: `scheduler`.',
    )
    helper_cpus: float = Field(
        default=0.25, gt=0, description="CPU cores of each helper, which a learner takes of its node besides its own."
    )
    helper_memory: int = Field(
        default=2**29, gt=0, description="Memory of each helper, in bytes or e.g. 512MiB, besides the learner's own."
    )
    scratch: int = Field(
        default=100 * 2**30,
        gt=0,
        description="Bound of each volume of a learner (its files, its temporary files, its output), in bytes or e.g. "
        "100GB. The kubelet evicts a pod that exceeds it.",
    )
    egress: tuple[str, ...] = Field(
        default=("0.0.0.0/0", "::/0"),
        description="Networks that learners' pods may reach beside their own gang and DNS. They must contain the "
        "metrics service, the object store, and all data stores. Clouds' metadata services are left out of them, "
        "unless a network has nothing else. Other tenants' pods refuse connections whatever is set here.",
    )
    quota: dict[str, str] = Field(
        default_factory=dict,
        description='Hard limits of each tenant\'s ResourceQuota, e.g. {"requests.nvidia.com/gpu": "16"}, beside those '
        "of the numbers of objects.",
    )
    uid_first: int = Field(
        default=200_000, ge=1000, description="A tenant's pods run under one user id: the first of these."
    )
    uid_count: int = Field(default=100_000, ge=1, description="The number of user ids of tenants.")

    @model_validator(mode="after")
    def _gpus_are_no_devices(self) -> KubernetesSettings:
        if self.gpu_resource in self.devices:
            raise ValueError(f"devices: {self.gpu_resource} counts the GPUs (`gpu_resource`): leave it out")
        return self

    @field_validator("helper_memory", "scratch", mode="before")
    @classmethod
    def _bytes(cls, value: object) -> int:
        return parse_bytes(value)
