"""Makes the Kubernetes cluster of the settings."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

from services.core.adapters.kubernetes.api import Api
from services.core.adapters.kubernetes.cluster import KubernetesCluster
from services.core.adapters.kubernetes.manifests import Accounts, manifests
from services.core.adapters.kubernetes.options import GangMethod, KubernetesOptions
from services.core.domain.errors import InvalidRequest
from services.core.ports.status_store import StatusStore
from services.core.runtime.kubernetes_settings import KubernetesSettings
from services.core.runtime.settings import Settings


def kubernetes_cluster(settings: Settings, status: StatusStore) -> KubernetesCluster:
    """Returns the cluster. Raises InvalidRequest for settings that are missing. Does no network I/O."""
    kubernetes = KubernetesSettings()
    if not kubernetes.helper_image:
        raise InvalidRequest("WEFT_CLUSTER=kubernetes needs WEFT_KUBERNETES_HELPER_IMAGE, the image of the helper")
    metrics = kubernetes.metrics_address or settings.installation.addresses().get("metrics", "")
    authority = settings.tls_authority_file
    options = replace(
        _options(kubernetes, kubernetes.helper_image),
        addresses={"metrics": metrics},
        authority=authority.read_text() if authority is not None else "",
    )
    return KubernetesCluster(Api(kubernetes.kubeconfig, kubernetes.context), options, status)


def manifests_text(*, namespace: str, one_account: bool, helper_image: str) -> str:
    """The YAML that the operator applies to the cluster, for the settings of the environment.

    ``namespace``: of the service accounts. ``one_account``: the lcm and the guardian share one. ``helper_image``: the
    helper's image where the settings name none.
    """
    kubernetes = KubernetesSettings()
    accounts = Accounts.of(kubernetes.installation, namespace, one=one_account)
    return manifests(_options(kubernetes, kubernetes.helper_image or helper_image), accounts)


def _options(kubernetes: KubernetesSettings, helper_image: str) -> KubernetesOptions:
    """All but the addresses and the authority of the running platform."""
    return KubernetesOptions(
        installation=kubernetes.installation,
        namespace_prefix=kubernetes.namespace_prefix,
        helper_image=helper_image,
        learner_image=kubernetes.learner_image or helper_image,
        framework_images=kubernetes.framework_images,
        images=kubernetes.images,
        lcm_account=kubernetes.lcm_account,
        guardian_account=kubernetes.guardian_account,
        entry_script=files("services.core.adapters.kubernetes").joinpath("entry.sh").read_text(),
        addresses={},
        gang=None if kubernetes.gang == "auto" else GangMethod(kubernetes.gang),
        gpu_resource=kubernetes.gpu_resource,
        gpu_label=kubernetes.gpu_label,
        priority_classes={str(name): value for name, value in kubernetes.priority_classes.items()},
        runtime_class=kubernetes.runtime_class,
        scheduler=kubernetes.scheduler,
        helper_cpus=kubernetes.helper_cpus,
        helper_memory=kubernetes.helper_memory,
        scratch=kubernetes.scratch,
        egress=kubernetes.egress,
        quota=kubernetes.quota,
        uid_first=kubernetes.uid_first,
        uid_count=kubernetes.uid_count,
    )
