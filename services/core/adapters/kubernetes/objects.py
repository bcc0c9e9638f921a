"""The objects of an attempt beside its pods: pure functions of the plan and the operator's options.

All are named after the attempt and belong to the owner, a ConfigMap, so that the cluster's garbage collector removes
whatever a late call creates after the owner is gone. Only the Secrets contain tokens and credentials.
"""

from __future__ import annotations

import base64
import json
from ipaddress import ip_network
from typing import Any, Final

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import COLLECTIONS
from services.core.adapters.kubernetes.options import KubernetesOptions
from services.core.domain.plan import AttemptPlan
from services.core.domain.registry_credentials import CONFIG_KEY
from services.core.formats import stored_plan
from services.core.runtime.pod_layout import ADDRESSES_FILE, AUTHORITY_FILE, PLAN_FILE

Document = dict[str, Any]
_DNS_PORT: Final = 53


def owner(plan: AttemptPlan, options: KubernetesOptions) -> Document:
    """The ConfigMap that owns all other objects of the attempt. Raises InvalidRequest for a plan that is too large."""
    files = {
        PLAN_FILE: stored_plan.write(plan),
        ADDRESSES_FILE: json.dumps(dict(options.addresses)),
    } | ({AUTHORITY_FILE: options.authority} if options.authority else {})
    document = _document("ConfigMap", plan, options)
    document["metadata"]["annotations"] = {names.TERM: str(plan.term), **pulled_with(plan)}
    return {**document, "data": files}


def owned(plan: AttemptPlan, options: KubernetesOptions, owner_uid: str) -> list[Document]:
    """What running learners need beside their pods: tokens, network policy, and names where they are several."""
    documents = [secret(plan, options), network_policy(plan, options)]
    if len(plan.learners) > 1:
        documents.append(service(plan, options))
    return [with_owner(document, plan, owner_uid) for document in documents]


def with_owner(document: Document, plan: AttemptPlan, owner_uid: str) -> Document:
    """The object as one that belongs to the attempt's owner."""
    name = names.attempt_name(plan.job, plan.attempt)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": owner_uid}
    return {**document, "metadata": {**document["metadata"], "ownerReferences": [reference]}}


def secret(plan: AttemptPlan, options: KubernetesOptions) -> Document:
    """The learners' tokens, a key for each. A pod mounts the key of its own learner only."""
    tokens = {learner.name: base64.b64encode(learner.token.encode()).decode() for learner in plan.learners}
    return {**_document("Secret", plan, options), "type": "Opaque", "immutable": True, "data": tokens}


def pull_secret(plan: AttemptPlan, options: KubernetesOptions, owner_uid: str, docker_config: str) -> Document:
    """The tenant's credentials of the image's registry, for the kubelets. No pod mounts it."""
    document = _document("Secret", plan, options)
    document["metadata"]["name"] = names.pull_secret(document["metadata"]["name"])
    content = {CONFIG_KEY: base64.b64encode(docker_config.encode()).decode()}
    fields = {"type": "kubernetes.io/dockerconfigjson", "immutable": True, "data": content}
    return with_owner({**document, **fields}, plan, owner_uid)


def pulled_with(plan: AttemptPlan) -> dict[str, str]:
    """The annotation that names the tenant's secret with which the image is pulled; empty without."""
    return {names.PULLED_WITH: plan.image_pull_secret} if plan.image_pull_secret else {}


def network_policy(plan: AttemptPlan, options: KubernetesOptions) -> Document:
    """The gang's pods reach each other, DNS, and the networks that the operator allows; only they are reached."""
    gang = {"podSelector": {"matchLabels": names.gang_selector(plan)}}
    dns = [{"protocol": protocol, "port": _DNS_PORT} for protocol in ("UDP", "TCP")]
    blocks = [_block(network, options.egress_except) for network in options.egress]
    return {
        **_document("NetworkPolicy", plan, options),
        "spec": {
            "podSelector": gang["podSelector"],
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [gang]}],
            "egress": [
                {"to": [gang]},
                {"to": [{"namespaceSelector": {}}], "ports": dns},
                *([{"to": blocks}] if blocks else []),  # an empty "to" would allow every destination
            ],
        },
    }


def _block(network: str, excluded: tuple[str, ...]) -> Document:
    """A network of the policy, without the excluded networks that are parts of it."""
    inside = [other for other in excluded if _is_part(other, network)]
    return {"ipBlock": {"cidr": network} | ({"except": inside} if inside else {})}


def _is_part(part: str, whole: str) -> bool:
    """True if a network is a smaller one within another. False where one is malformed: the API server names it."""
    try:
        inner, outer = ip_network(part), ip_network(whole, strict=False)
    except ValueError:
        return False
    # Of two families none is part of the other.
    return inner != outer and inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def service(plan: AttemptPlan, options: KubernetesOptions) -> Document:
    """The headless Service by which each learner has a name, also before it is ready."""
    return {
        **_document("Service", plan, options),
        "spec": {"clusterIP": "None", "selector": names.gang_selector(plan), "publishNotReadyAddresses": True},
    }


def pod_group(plan: AttemptPlan, options: KubernetesOptions, owner_uid: str) -> Document:
    """The native gang object: the scheduler binds all pods that refer to it, or none. Without it, it tries none."""
    document = {
        **_document("PodGroup", plan, options),
        "spec": {"schedulingPolicy": {"gang": {"minCount": len(plan.learners)}}, "disruptionMode": "PodGroup"},
    }
    return with_owner(document, plan, owner_uid)


def _document(kind: str, plan: AttemptPlan, options: KubernetesOptions) -> Document:
    return {
        "apiVersion": COLLECTIONS[kind][0],
        "kind": kind,
        "metadata": {
            "name": names.attempt_name(plan.job, plan.attempt),
            "namespace": names.namespace_of(plan.tenant, options.namespace_prefix),
            "labels": names.attempt_labels(plan, options.installation),
        },
    }
