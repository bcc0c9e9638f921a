"""In which namespace a job's objects are: the port's calls name the job only."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from typing import Final

import structlog

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import METADATA_LIST, Api, Document, collection
from services.core.adapters.kubernetes.options import KubernetesOptions
from services.core.domain.errors import NotFound, Unavailable

PODS: Final = "/api/v1/pods"
NODES: Final = "/api/v1/nodes"
NAMESPACES: Final = "/api/v1/namespaces"
_TURN_S: Final = 2.0
_PAGE: Final = 500
_KEPT: Final = 10_000
"""Jobs without pods whose places are kept: more than are being provisioned or removed at one time."""
log = structlog.get_logger()


@contextmanager
def needing_namespace() -> Generator[None]:
    """Around the first creation in a tenant's namespace: raises Unavailable instead of NotFound."""
    try:
        yield
    except NotFound as error:
        raise Unavailable(f"the tenant's namespace is not there yet: {error}") from error


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
        listed, errors = await self._everywhere(names.of_job(job, self._options.installation))
        for document in listed:
            self.learn_from(document)
        if (namespace := self._namespaces.get(job)) is None and errors:
            raise errors[0]  # it may be where nothing could be read
        return namespace

    async def jobs(self) -> set[str]:
        """Ids of all jobs that have a pod or an owner."""
        listed, errors = await self._everywhere(names.of_jobs(self._options.installation))
        if errors:
            raise errors[0]
        return {job for document in listed if (job := self.learn_from(document))}

    async def without_pods(self, with_pods: Collection[str], now_s: float) -> set[str]:
        """Returns ids of jobs that have an owner and no pod.

        Lists one namespace every ``_TURN_S`` seconds, however many there are.
        ``with_pods``: all jobs that have one. ``now_s``: of a monotonic clock.
        """
        if now_s >= self._next_listing_s:
            count = await self._list_next(with_pods)
            self._next_listing_s = now_s + _TURN_S * (1 + count // _PAGE)
        return {job for jobs in self._without_pods.values() for job in jobs}

    async def _list_next(self, with_pods: Collection[str]) -> int:
        """Lists the owners in the next namespace; after the last one, the namespaces. Returns the number of objects."""
        if not self._unlisted:
            self._unlisted = await self._living()
            self._without_pods = {name: self._without_pods.get(name, set()) for name in self._unlisted}
            return len(self._unlisted)
        namespace = self._unlisted.pop()
        try:
            owners = await self._listed_owners(namespace, names.of_jobs(self._options.installation))
        except Unavailable as error:  # it is listed again in its turn; one namespace must not hold up the others
            log.warning("namespace.not_listed", namespace=namespace, why=str(error))
            return 0
        self._without_pods[namespace] = {self.learn_from(owner) for owner in owners} - {"", *with_pods}
        return len(owners)

    async def owners(self, namespace: str, job: str) -> list[Document]:
        """The metadata of a job's owners. None are left where the namespace is being removed or is gone."""
        try:
            return await self._listed_owners(namespace, names.of_job(job, self._options.installation))
        except Unavailable:
            if await self.is_ending(namespace):
                return []
            raise

    async def is_ending(self, namespace: str) -> bool:
        """True if a namespace of this installation is being removed, or is gone.

        The cluster removes all that is in it, and the platform's rights there first: they are objects in it, too.
        """
        return namespace not in await self._living()

    async def _living(self) -> list[str]:
        """The namespaces of this installation that are not being removed."""
        selector = names.ours(self._options.installation)
        namespaces, _ = await self._api.list(NAMESPACES, selector=selector, accept=METADATA_LIST)
        present = [entry["metadata"] for entry in namespaces]
        return [str(metadata["name"]) for metadata in present if not metadata.get("deletionTimestamp")]

    async def _listed_owners(self, namespace: str, selector: str) -> list[Document]:
        path = collection("ConfigMap", namespace)
        return (await self._api.list(path, selector=selector, accept=METADATA_LIST))[0]

    async def _everywhere(self, selector: str) -> tuple[list[Document], list[Unavailable]]:
        """The metadata of all pods and owners of this installation that have these labels, and what could not be read.

        Raises the first error of another kind.
        """
        living = await self._living()
        listed = await asyncio.gather(
            self._pods(selector),
            *[self._listed_owners(namespace, selector) for namespace in living],
            return_exceptions=True,
        )
        documents, errors = list[Document](), list[Unavailable]()
        for items in listed:
            if isinstance(items, Unavailable):
                errors.append(items)
            elif isinstance(items, BaseException):
                raise items
            else:
                documents += items
        return documents, errors

    async def _pods(self, selector: str) -> list[Document]:
        return (await self._api.list(PODS, selector=selector, accept=METADATA_LIST))[0]
