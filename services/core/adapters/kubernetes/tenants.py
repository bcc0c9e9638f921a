"""The namespace of a tenant, and the only changes that Weft makes outside of one.

The namespace admits pods of Pod Security ``restricted`` only, denies all traffic that no policy of an attempt allows,
has a quota of objects and of what the operator sets, and gives no pod a service-account token. Where the operator has
named their accounts, the lcm and the guardian get their rights in it, and where the operator has given credentials of
registries, kubelets pull images with them.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Final

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import COLLECTIONS, Api, Document, path_of
from services.core.adapters.kubernetes.options import KubernetesOptions
from services.core.adapters.kubernetes.places import NAMESPACES
from services.core.domain.errors import Conflict, Duplicate, NotFound, StaleRevision, Unavailable
from services.core.runtime.retry import Backoff

TENANT_ANNOTATION: Final = "weft.dev/tenant-name"
_SECURITY: Final = "pod-security.kubernetes.io"
_OBJECTS: Final = {
    "count/pods": "20000",
    "count/configmaps": "10000",
    "count/secrets": "10000",
    "count/services": "10000",
    "services.loadbalancers": "0",
    "services.nodeports": "0",
    "count/persistentvolumeclaims": "1000",
}
"""Bounds of the number of objects: one tenant cannot fill the cluster's store."""
_TRIES: Final = 5
_GRANTED_S: Final = 10.0
"""Seconds. A busy API server knows of a new RoleBinding after this time at most."""


def namespace(tenant: str, options: KubernetesOptions) -> Document:
    """The namespace itself."""
    security = {f"{_SECURITY}/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": names.namespace_of(tenant, options.namespace_prefix),
            "labels": names.tenant_labels(tenant, options.installation) | security,
            "annotations": {TENANT_ANNOTATION: tenant},
        },
    }


def contents(tenant: str, options: KubernetesOptions) -> list[Document]:
    """What every tenant's namespace contains."""
    default: Document = {"cpu": "100m", "memory": "128Mi"}
    return [
        document("ServiceAccount", "default", tenant, options) | {"automountServiceAccountToken": False},
        document("ResourceQuota", "weft", tenant, options, spec={"hard": {**_OBJECTS, **options.quota}}),
        document(
            "LimitRange",
            "weft",
            tenant,
            options,
            spec={"limits": [{"type": "Container", "default": default, "defaultRequest": default}]},
        ),
        document(
            "NetworkPolicy",
            "weft-default-deny",
            tenant,
            options,
            spec={"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
        ),
        *_rights(tenant, options),
        *_pull_secret(tenant, options),
    ]


def _rights(tenant: str, options: KubernetesOptions) -> list[Document]:
    """What the lcm and the guardian may do in the namespace (manifest_files/rights.yaml)."""
    accounts = {"collector": options.lcm_account, "learners": options.guardian_account}
    group = "rbac.authorization.k8s.io"
    return [
        document(
            "RoleBinding",
            f"weft-{role}",
            tenant,
            options,
            roleRef={"apiGroup": group, "kind": "ClusterRole", "name": f"{options.installation}-{role}"},
            subjects=[
                {
                    "kind": "ServiceAccount",
                    "namespace": account.partition("/")[0],
                    "name": account.partition("/")[2],
                }
            ],
        )
        for role, account in accounts.items()
        if account
    ]


def _pull_secret(tenant: str, options: KubernetesOptions) -> list[Document]:
    """Kubelets pull images with it. Learners cannot read it: no pod mounts it."""
    if not options.pull_secret:
        return []
    content = {".dockerconfigjson": base64.b64encode(options.pull_secret.encode()).decode()}
    fields = {"type": "kubernetes.io/dockerconfigjson", "data": content}
    return [document("Secret", names.PULL_SECRET, tenant, options, **fields)]


async def prepare(api: Api, tenant: str, options: KubernetesOptions) -> None:
    """Creates the namespace and its contents, or brings them to the operator's present settings.

    Raises Conflict if a namespace of this name belongs to something else, Unavailable if the platform has no right.
    """
    wanted = namespace(tenant, options)
    path = f"{NAMESPACES}/{wanted['metadata']['name']}"
    try:
        present = await api.get(path)
    except NotFound:
        try:
            present = await api.create(NAMESPACES, wanted)
        except Duplicate:
            present = await api.get(path)
    if names.annotation(present, TENANT_ANNOTATION) != tenant or not _is_ours(present, options):
        raise Conflict(f"the namespace {wanted['metadata']['name']} is not this installation's; choose another prefix")
    await api.patch(path, {"metadata": {"labels": wanted["metadata"]["labels"]}})
    for entry in contents(tenant, options):
        await (_apply_granted if entry["kind"] == "Secret" else _apply)(api, entry)


async def _apply_granted(api: Api, document: Document) -> None:
    """``_apply`` with rights of a new RoleBinding: retried for ``_GRANTED_S`` while the API server refuses it."""
    loop = asyncio.get_running_loop()
    deadline, backoff = loop.time() + _GRANTED_S, Backoff()
    while True:
        try:
            return await _apply(api, document)
        except Unavailable:
            if loop.time() >= deadline:
                raise
        await backoff.wait()


async def is_there(api: Api, tenant: str, options: KubernetesOptions) -> bool:
    """False if the tenant's namespace is being removed or is gone."""
    try:
        present = await api.get(f"{NAMESPACES}/{names.namespace_of(tenant, options.namespace_prefix)}")
    except NotFound:
        return False
    return not present["metadata"].get("deletionTimestamp")


def _is_ours(present: Document, options: KubernetesOptions) -> bool:
    marks = (names.label(present, names.MANAGED_BY), names.label(present, names.INSTANCE))
    return marks == (names.WEFT, options.installation)


async def _apply(api: Api, document: Document) -> None:
    """Creates the object, or replaces the fields that are written here."""
    for _ in range(_TRIES):
        try:
            await api.create(path_of(document, of_collection=True), document)
        except Duplicate:
            try:
                await api.patch(path_of(document), document)
            except (NotFound, StaleRevision):
                continue
        return


def document(kind: str, name: str, tenant: str, options: KubernetesOptions, **fields: Any) -> Document:
    """An object in the tenant's namespace that belongs to no job. ``fields``: beside its type and metadata."""
    return {
        "apiVersion": COLLECTIONS[kind][0],
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": names.namespace_of(tenant, options.namespace_prefix),
            "labels": names.tenant_labels(tenant, options.installation),
        },
        **fields,
    }
