"""In which namespace a job's objects are: the port's calls name the job only."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import METADATA_LIST, Api, Document, collection, gather
from services.core.adapters.kubernetes.options import KubernetesOptions

PODS: Final = "/api/v1/pods"
NAMESPACES: Final = "/api/v1/namespaces"
_TURN_S: Final = 2.0
_PAGE: Final = 500
_KEPT: Final = 10_000
"""Jobs without pods whose places are kept: more than are being provisioned or removed at one time."""


class Places:
    """Learned from what this process provisions and watches; otherwise looked for in all tenants' namespaces."""

    def __init__(self, api: Api, options: KubernetesOptions) -> None:
        self._api, self._options = api, options
        self._namespaces: dict[str, str] = {}
        """By job; those learned last are the last."""
        self._forget_at = 2 * _KEPT
        """Number of places at which old ones are forgotten."""
        self._without_pods: dict[str, set[str]] = {}
        """By namespace: jobs that had an owner and no pod when this namespace was listed."""
        self._unlisted: list[str] = []
        """Namespaces that are listed next."""
        self._next_listing_s = 0.0

    def learn(self, job: str, namespace: str) -> None:
        self._namespaces.pop(job, None)
        self._namespaces[job] = namespace

    def learn_from(self, document: Document) -> str:
        """Learns the place of a job's object. Returns the job's id; empty if it is of no job."""
        job = self.job_of(document)
        if job:
            self.learn(job, document["metadata"]["namespace"])
        return job

    def job_of(self, document: Document) -> str:
        """The job of an object; empty if it is of none, whatever its labels say."""
        is_ours = names.is_of_tenant(document, self._options.namespace_prefix)
        return names.label(document, names.JOB) if is_ours else ""

    def forget(self, job: str) -> None:
        self.forget_owners(job)
        self._namespaces.pop(job, None)

    def forget_old(self, with_pods: Iterable[str]) -> None:
        """Once there are many, forgets the places that were learned longest ago, but those of jobs ``with_pods``.

        The removal of a pod names its job's place as well, and mostly it is another process that tears the job down.
        """
        if len(self._namespaces) < self._forget_at:
            return
        present = {*with_pods}
        for job in [job for job in self._namespaces if job not in present][:-_KEPT]:
            del self._namespaces[job]
        self._forget_at = len(self._namespaces) + _KEPT

    def forget_owners(self, job: str) -> None:
        """The job has no objects now. All that it had were in one namespace."""
        if (namespace := self._namespaces.get(job)) in self._without_pods:
            self._without_pods[namespace].discard(job)

    def learned(self, job: str) -> str | None:
        """The namespace, if it has been learned. While a watch of the pods is current, any other job has no pod."""
        return self._namespaces.get(job)

    async def find(self, job: str) -> str | None:
        """The namespace; None if the job has nothing. Lists pods and owners if it has not been learned."""
        if (namespace := self._namespaces.get(job)) is not None:
            return namespace
        for document in await self._everywhere(names.of_job(job, self._options.installation)):
            self.learn_from(document)
        return self._namespaces.get(job)

    async def jobs(self) -> set[str]:
        """Ids of all jobs that have a pod or an owner."""
        listed = await self._everywhere(names.of_jobs(self._options.installation))
        return {job for document in listed if (job := self.learn_from(document))}

    async def without_pods(self, with_pods: Collection[str], now_s: float) -> set[str]:
        """Returns ids of jobs that have an owner and no pod. Lists one namespace in ``_TURN_S``, of any number.

        ``with_pods``: all jobs that have one. ``now_s``: of a monotonic clock.
        """
        if now_s >= self._next_listing_s:
            count = await self._list_next(with_pods)
            self._next_listing_s = now_s + _TURN_S * (1 + count // _PAGE)
        return {job for jobs in self._without_pods.values() for job in jobs}

    async def _list_next(self, with_pods: Collection[str]) -> int:
        """Lists the owners in the next namespace; after the last one, the namespaces. Returns the number of objects."""
        if not self._unlisted:
            namespaces, _ = await self._api.list(
                NAMESPACES, selector=names.ours(self._options.installation), accept=METADATA_LIST
            )
            self._unlisted = [str(entry["metadata"]["name"]) for entry in namespaces]
            self._without_pods = {name: self._without_pods.get(name, set()) for name in self._unlisted}
            return len(namespaces)
        namespace = self._unlisted.pop()
        selector = names.of_jobs(self._options.installation)
        owners, _ = await self._api.list(collection("ConfigMap", namespace), selector=selector, accept=METADATA_LIST)
        self._without_pods[namespace] = {self.learn_from(owner) for owner in owners} - {"", *with_pods}
        return len(owners)

    async def _everywhere(self, selector: str) -> Iterable[Document]:
        """The metadata of all pods and owners of this installation that have these labels."""
        namespaces, _ = await self._api.list(
            NAMESPACES, selector=names.ours(self._options.installation), accept=METADATA_LIST
        )
        owners = [collection("ConfigMap", entry["metadata"]["name"]) for entry in namespaces]
        listed = await gather(
            [self._api.list(path, selector=selector, accept=METADATA_LIST) for path in (PODS, *owners)]
        )
        return [item for items, _ in listed for item in items]
