"""Requests to the API server that no service account of Weft may make, and some that one of them may, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


def _named(name: str, kind: str = "", **fields: Any) -> Mapping[str, Any]:
    return ({"kind": kind} if kind else {}) | {"metadata": {"name": name}, **fields}


_WATCH: Final = "secrets?watch=true&timeoutSeconds=1"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_NETWORKS: Final = "/apis/networking.k8s.io/v1"
_ADMIN: Final[Mapping[str, Any]] = {
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "ServiceAccount", "namespace": "platform", "name": "walls-lcm"}],
}


def never(tenant: str) -> list[Request]:
    """What is refused to every account. ``tenant``: a tenant's namespace."""
    space = f"/api/v1/namespaces/{tenant}"
    return [
        # the contents of secrets, and of containers
        *(Request("GET", f"/api/v1/{path}") for path in ("secrets", _WATCH, "configmaps")),
        *(Request("GET", f"{space}/{path}") for path in ("secrets", _WATCH, "pods/p/log", "pods/p/proxy")),
        *(Request("POST", f"{space}/pods/p/{path}", {}) for path in ("attach", "portforward", "binding", "eviction")),
        Request("POST", f"{space}/pods/p/exec?command=id&stdout=true"),
        *(Request("PATCH", f"{space}/pods/p/{path}", {}) for path in ("ephemeralcontainers", "status", "resize")),
        # whole collections, and replacing
        *(Request("DELETE", f"{space}/{path}") for path in ("pods", "secrets", "configmaps", "services")),
        *(Request("PUT", f"{space}/{path}/p", _named("p")) for path in ("pods", "secrets", "configmaps", "services")),
        *(Request("PUT", f"{space}/{path}/weft", _named("weft")) for path in ("resourcequotas", "limitranges")),
        *(Request("DELETE", f"{space}/{path}/weft") for path in ("resourcequotas", "limitranges")),
        # other ways to run something
        *(
            Request("POST", f"/apis/apps/v1/namespaces/{tenant}/{path}", _named("x"))
            for path in ("deployments", "daemonsets", "statefulsets", "replicasets")
        ),
        *(Request("POST", f"/apis/batch/v1/namespaces/{tenant}/{path}", _named("x")) for path in ("jobs", "cronjobs")),
        *(
            Request("POST", f"{space}/{path}", _named("x"))
            for path in ("replicationcontrollers", "persistentvolumeclaims", "endpoints", "podtemplates")
        ),
        Request("POST", f"{_NETWORKS}/namespaces/{tenant}/ingresses", _named("x")),
        # identities and rights
        Request("POST", f"{space}/serviceaccounts/default/token", {}),
        Request("POST", "/api/v1/namespaces/platform/serviceaccounts/walls-lcm/token", {}),
        Request("POST", f"{_RBAC}/namespaces/{tenant}/roles", _named("x", rules=[])),
        Request("POST", f"{_RBAC}/namespaces/{tenant}/rolebindings", _named("x", **_ADMIN)),
        Request("POST", f"{_RBAC}/clusterroles", _named("x", rules=[])),
        Request("POST", f"{_RBAC}/clusterrolebindings", _named("x", **_ADMIN)),
        Request("PATCH", f"{_RBAC}/clusterrolebindings/walls-lcm", _ADMIN),
        Request("PATCH", f"{_RBAC}/clusterroles/walls-lcm", {"rules": []}),
        Request("GET", f"{_RBAC}/clusterroles"),
        Request("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", _named("x")),
        Request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}}),
        # the walls themselves
        *(
            Request("DELETE", f"{_ADMISSION}/{kind}/walls-pods")
            for kind in ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
        ),
        Request("PATCH", f"{_ADMISSION}/validatingadmissionpolicies/walls-pods", {"spec": {"validations": []}}),
        Request("POST", f"{_ADMISSION}/mutatingwebhookconfigurations", _named("x", webhooks=[])),
        Request("DELETE", f"{_NETWORKS}/namespaces/{tenant}/networkpolicies/weft-default-deny"),
        Request("DELETE", f"/api/v1/namespaces/{tenant}"),
        # the cluster
        *(Request(method, "/api/v1/nodes/n", {}) for method in ("PATCH", "DELETE")),
        *(Request("GET", f"/api/v1/nodes/n/proxy/{path}") for path in ("metrics", "pods")),
        *(Request(method, "/api/v1/persistentvolumes", _named("x")) for method in ("GET", "POST")),
        *(
            Request("POST", f"/apis/{group}", _named("x"))
            for group in (
                "apiextensions.k8s.io/v1/customresourcedefinitions",
                "storage.k8s.io/v1/storageclasses",
                "scheduling.k8s.io/v1/priorityclasses",
                "node.k8s.io/v1/runtimeclasses",
            )
        ),
        # the cluster's own namespaces, and the platform's
        *(
            Request("GET", f"/api/v1/namespaces/{space}/{path}")
            for space in ("kube-system", "platform", "default")
            for path in ("secrets", "secrets/x", "configmaps")
        ),
        *(
            Request("POST", f"/api/v1/namespaces/{space}/{path}", _named("x"))
            for space in ("kube-system", "platform")
            for path in ("pods", "configmaps", "secrets")
        ),
        Request("DELETE", "/api/v1/namespaces/kube-system/pods/p"),
        Request("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"),
        # what the lcm may do in its own namespaces only
        Request("POST", "/api/v1/namespaces", _named("other-tenant", "Namespace")),
        Request("POST", "/api/v1/namespaces", _named("walls-unmarked", "Namespace")),
        Request("PATCH", "/api/v1/namespaces/kube-system", {"metadata": {"labels": {"x": "y"}}}),
        Request(
            "PATCH",
            f"/api/v1/namespaces/{tenant}",
            {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
        ),
        Request("POST", "/api/v1/namespaces/default/serviceaccounts", _named("x")),
        Request("PATCH", "/api/v1/namespaces/default/serviceaccounts/default", {"automountServiceAccountToken": True}),
        Request("POST", f"{_NETWORKS}/namespaces/default/networkpolicies", _named("x", spec={"podSelector": {}})),
        Request("POST", "/api/v1/namespaces/default/resourcequotas", _named("x", spec={"hard": {"pods": "0"}})),
        *(
            Request("POST", f"{_RBAC}/namespaces/{space}/rolebindings", _binding("learners"))
            for space in (
                "kube-system",
                "default",
                "platform",
            )
        ),
        Request("POST", f"{_RBAC}/namespaces/{tenant}/rolebindings", _binding("learners", name="default")),
        Request("POST", f"{_RBAC}/namespaces/{tenant}/rolebindings", _binding("lcm")),
    ]


def _binding(role: str, *, name: str = "walls-lcm") -> Mapping[str, Any]:
    return _named(
        "stolen",
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"walls-{role}"},
        subjects=[{"kind": "ServiceAccount", "namespace": "platform", "name": name}],
    )


def only_for_guardian(tenant: str) -> Sequence[Request]:
    """What the guardian may do in a tenant's namespace, and the lcm may not."""
    space = f"/api/v1/namespaces/{tenant}"
    return [
        *(Request("POST", f"{space}/{kind}", _named("x")) for kind in ("pods", "configmaps", "services")),
        Request("PATCH", f"{space}/pods/x", {}),
        Request("PATCH", f"{space}/configmaps/x", {}),
        Request("GET", f"{space}/secrets/x"),
        Request("GET", f"{space}/pods/x"),
    ]


def only_for_lcm(tenant: str) -> Sequence[Request]:
    """What the lcm may do, and the guardian may not."""
    return [
        Request("GET", "/api/v1/nodes"),
        Request("GET", f"/api/v1/namespaces/{tenant}"),
        Request("PATCH", f"/api/v1/namespaces/{tenant}", {"metadata": {"labels": {"x": "y"}}}),
        Request("PATCH", f"/api/v1/namespaces/{tenant}/resourcequotas/weft", {"spec": {"hard": {"count/pods": "1"}}}),
        Request("PATCH", f"/api/v1/namespaces/{tenant}/serviceaccounts/default", {}),
        Request("PATCH", f"{_NETWORKS}/namespaces/{tenant}/networkpolicies/weft-default-deny", {}),
    ]


def of_any(tenant: str) -> Sequence[Request]:
    """What only the lcm and the guardian may do: refused to the other services, and to learners."""
    space = f"/api/v1/namespaces/{tenant}"
    return [
        *(Request("GET", path) for path in ("/api/v1/pods", "/api/v1/events", "/api/v1/namespaces", "/api/v1/nodes/n")),
        *(Request("GET", f"{space}/{kind}") for kind in ("pods", "configmaps", "events", "services")),
        *(Request("DELETE", f"{space}/{kind}/x") for kind in ("pods", "configmaps", "secrets", "services")),
        *only_for_guardian(tenant),
        *only_for_lcm(tenant),
    ]
