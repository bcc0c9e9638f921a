"""Makes the Kubernetes cluster of the settings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from services.core.adapters.identity import Identity
from services.core.adapters.kubernetes.api import Api
from services.core.adapters.kubernetes.cluster import KubernetesCluster
from services.core.adapters.kubernetes.guardian_jobs import KubernetesGuardianJobs, read_template
from services.core.adapters.kubernetes.manifests import Accounts, manifests
from services.core.adapters.kubernetes.options import GangMethod, KubernetesOptions
from services.core.adapters.kubernetes.probe import Check, probe
from services.core.adapters.rpc.pull_credentials import ApiPullCredentials
from services.core.bootstrap.kubernetes_offers import library_images_of
from services.core.domain.errors import InvalidRequest
from services.core.ports.guardian_launcher import GuardianLauncher
from services.core.ports.status_store import StatusStore
from services.core.runtime.kubernetes_settings import HELPER_SETTINGS, KubernetesSettings
from services.core.runtime.settings import Settings


def kubernetes_cluster(settings: Settings, identity: Identity, status: StatusStore) -> KubernetesCluster:
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
    credentials = ApiPullCredentials(lambda: settings.installation.address("api-inner"), identity.credential("api"))
    return KubernetesCluster(Api(kubernetes.kubeconfig, kubernetes.context), options, status, credentials=credentials)


def guardian_launcher(settings: Settings) -> GuardianLauncher | None:
    """What starts a Guardian for each job; None if a pool guards them all.

    Raises InvalidRequest for settings that are missing or wrong. Does no network I/O.
    """
    kubernetes = KubernetesSettings()
    if kubernetes.guardian_launcher == "pool":
        return None
    if settings.cluster != "kubernetes":
        raise InvalidRequest("WEFT_KUBERNETES_GUARDIAN_LAUNCHER=job needs WEFT_CLUSTER=kubernetes")
    if kubernetes.guardian_template is None or not kubernetes.guardian_namespace:
        needed = "WEFT_KUBERNETES_GUARDIAN_TEMPLATE and WEFT_KUBERNETES_GUARDIAN_NAMESPACE"
        raise InvalidRequest(f"WEFT_KUBERNETES_GUARDIAN_LAUNCHER=job needs {needed}")
    return KubernetesGuardianJobs(
        Api(kubernetes.kubeconfig, kubernetes.context),
        read_template(kubernetes.guardian_template),
        namespace=kubernetes.guardian_namespace,
        installation=kubernetes.installation,
    )


async def probe_cluster(
    *, tenant: str, metrics: str, authority: Path, urls: Sequence[str], report: Callable[[str], None]
) -> list[Check]:
    """Tries the cluster with a pod (adapters/kubernetes/probe.py), under the settings of the environment.

    ``metrics``: the service's address for pods.
    """
    kubernetes = KubernetesSettings()
    given = _options(kubernetes, kubernetes.helper_image)
    options = replace(given, addresses={"metrics": metrics}, authority=authority.read_text())
    api = Api(kubernetes.kubeconfig, kubernetes.context)
    try:
        return await probe(api, options, tenant=tenant, urls=urls, report=report)
    finally:
        await api.close()


def manifests_text(*, namespace: str, one_account: bool, helper_image: str, registry: str | None) -> str:
    """The YAML that the operator applies to the cluster, for the settings of the environment.

    ``namespace``: of the service accounts. ``one_account``: the lcm and the guardian share one. ``helper_image``: the
    helper's image where the settings name none. ``registry``: that of the library's images in the same case; None:
    there are only those that the settings name.
    """
    kubernetes = KubernetesSettings()
    if kubernetes.framework_registry is None and registry:
        kubernetes = kubernetes.model_copy(update={"framework_registry": registry})
    accounts = Accounts.of(kubernetes.installation, namespace, one_account=one_account)
    return manifests(_options(kubernetes, kubernetes.helper_image or helper_image), accounts)


def _options(kubernetes: KubernetesSettings, helper_image: str) -> KubernetesOptions:
    """All but the addresses and the authority of the running platform."""
    if kubernetes.gang == "kueue" and not kubernetes.kueue_queue:
        raise InvalidRequest("WEFT_KUBERNETES_GANG=kueue needs WEFT_KUBERNETES_KUEUE_QUEUE, the name of a LocalQueue")
    return KubernetesOptions(
        installation=kubernetes.installation,
        namespace_prefix=kubernetes.namespace_prefix,
        helper_image=helper_image,
        learner_image=kubernetes.learner_image or helper_image,
        library_images=library_images_of(kubernetes),
        images=kubernetes.images,
        pull_secret=_pull_secret(kubernetes.pull_secret_file),
        pull_secrets=kubernetes.pull_secrets,
        lcm_account=kubernetes.lcm_account,
        guardian_account=kubernetes.guardian_account,
        guardian_namespace=kubernetes.guardian_namespace if kubernetes.guardian_launcher == "job" else "",
        entry_script=files("services.core.adapters.kubernetes").joinpath("entry.sh").read_text(),
        addresses={},
        helper_variables={name: os.environ[name] for name in HELPER_SETTINGS if name in os.environ},
        gang=None if kubernetes.gang == "auto" else GangMethod(kubernetes.gang),
        kueue_queue=kubernetes.kueue_queue,
        gpu_resource=kubernetes.gpu_resource,
        gpu_label=kubernetes.gpu_label,
        devices=kubernetes.devices,
        priority_classes={str(name): value for name, value in kubernetes.priority_classes.items()},
        runtime_class=kubernetes.runtime_class,
        scheduler=kubernetes.scheduler,
        schedulers={str(placement): name for placement, name in kubernetes.schedulers.items()},
        helper_cpus=kubernetes.helper_cpus,
        helper_memory=kubernetes.helper_memory,
        scratch=kubernetes.scratch,
        egress=kubernetes.egress,
        quota=kubernetes.quota,
        uid_first=kubernetes.uid_first,
        uid_count=kubernetes.uid_count,
    )


def _pull_secret(file: Path | None) -> str:
    """The text of the file. Raises InvalidRequest if it has no credentials."""
    if file is None:
        return ""
    try:
        text = file.read_text()
        has_credentials = bool(json.loads(text)["auths"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"WEFT_KUBERNETES_PULL_SECRET_FILE: {file} is no Docker config file: {error!r}") from error
    if not has_credentials:
        raise InvalidRequest(f"WEFT_KUBERNETES_PULL_SECRET_FILE: {file} has no credentials; log in with `docker login`")
    return text
