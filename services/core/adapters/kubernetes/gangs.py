"""What the cluster offers to place all pods of a gang or none, by API discovery."""

from __future__ import annotations

from typing import Final

from services.core.adapters.kubernetes.api import Api
from services.core.adapters.kubernetes.options import GangMethod, KubernetesOptions
from services.core.domain.errors import InvalidRequest, NotFound

_GROUP: Final = "/apis/scheduling.k8s.io/v1alpha2"


async def gang_method(api: Api, options: KubernetesOptions) -> GangMethod:
    """The operator's choice, else the native gang if the cluster has it.

    Raises InvalidRequest if the operator demands a native gang and there is none.
    """
    if options.gang is GangMethod.GATES:
        return GangMethod.GATES
    try:
        resources = (await api.get(_GROUP)).get("resources") or ()
    except NotFound:
        resources = ()
    if any(resource["name"] == "podgroups" for resource in resources):
        return GangMethod.NATIVE
    if options.gang is GangMethod.NATIVE:
        raise InvalidRequest("the cluster has no scheduling.k8s.io/v1alpha2 PodGroup; leave WEFT_KUBERNETES_GANG out")
    return GangMethod.GATES
