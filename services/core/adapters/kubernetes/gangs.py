"""What the cluster offers to place all pods of a gang or none, by API discovery."""

from __future__ import annotations

from typing import Final

from services.core.adapters.kubernetes.api import COLLECTIONS, Api
from services.core.adapters.kubernetes.options import GangMethod, KubernetesOptions
from services.core.domain.errors import InvalidRequest, NotFound

_VERSION: Final = COLLECTIONS["PodGroup"][0]
_KUEUE: Final = "/apis/kueue.x-k8s.io"


async def gang_method(api: Api, options: KubernetesOptions) -> GangMethod:
    """The operator's choice, else the native gang if the cluster has it.

    Raises InvalidRequest if the operator demands a native gang or Kueue, and there is none.
    """
    if options.gang is GangMethod.GATES:
        return GangMethod.GATES
    if options.gang is GangMethod.KUEUE:
        try:
            await api.get(_KUEUE)
        except NotFound:
            raise InvalidRequest("the cluster has no Kueue; install it, or leave WEFT_KUBERNETES_GANG out") from None
        return GangMethod.KUEUE
    try:
        resources = (await api.get(f"/apis/{_VERSION}")).get("resources") or ()
    except NotFound:
        resources = ()
    if any(resource["name"] == "podgroups" for resource in resources):
        return GangMethod.NATIVE
    if options.gang is GangMethod.NATIVE:
        raise InvalidRequest(f"the cluster has no {_VERSION} PodGroup; leave WEFT_KUBERNETES_GANG out")
    return GangMethod.GATES
