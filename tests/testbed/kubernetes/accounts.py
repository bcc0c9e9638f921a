"""Service accounts, rights and admission policies of an installation on the test cluster, as an operator makes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.core.adapters.kubernetes.manifests import Accounts, manifests
from services.core.adapters.kubernetes.options import KubernetesOptions
from tests.testbed.kubernetes.cluster import Cluster
from tests.waiting import eventually

NAMESPACE: Final = "platform"
"""Of the accounts of all installations in tests."""
_LIFE_S: Final = 6 * 3600
"""Of an account's token."""


@dataclass(frozen=True)
class Installed:
    """Kubeconfigs with the accounts' tokens."""

    lcm: Path
    guardian: Path
    services: Path


def install(cluster: Cluster, options: KubernetesOptions, *, one_account: bool = False) -> Installed:
    """Gives the cluster what `weft manifests` prints. ``one_account``: the lcm and the guardian share an account."""
    accounts = Accounts.of(options.installation, NAMESPACE, one_account=one_account)
    namespaces = {namespace["metadata"]["name"] for namespace in cluster.objects("/api/v1/namespaces")}
    if NAMESPACE not in namespaces:
        cluster.administrator.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    cluster.kubectl("--namespace", NAMESPACE, "apply", "--filename=-", text=manifests(options, accounts))
    eventually(lambda: all(_has_rights(cluster, account) for account in (accounts.lcm, accounts.guardian)))
    return Installed(
        *(kubeconfig(cluster, NAMESPACE, account) for account in (accounts.lcm, accounts.guardian, accounts.services))
    )


def _has_rights(cluster: Cluster, account: str) -> bool:
    """Whether the API server knows what was granted to the account: it reads roles and bindings after they are made."""
    try:
        cluster.administrator.get("/api/v1/namespaces", as_user=f"system:serviceaccount:{NAMESPACE}:{account}")
    except OSError:
        return False
    return True


def kubeconfig(cluster: Cluster, namespace: str, account: str) -> Path:
    """Writes the access of a service account, for programs of this machine. It ends with the cluster."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    token = cluster.administrator.create(path, {"spec": {"expirationSeconds": _LIFE_S}})["status"]["token"]
    document = json.loads(cluster.kubeconfig.read_text())
    document["users"] = [{"name": account, "user": {"token": token}}]
    for context in document["contexts"]:
        context["context"]["user"] = account
    file = cluster.folder / f"{namespace}-{account}.kubeconfig"
    file.write_text(json.dumps(document))
    return file
