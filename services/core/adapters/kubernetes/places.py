"""In which namespace a job's objects are: the port's calls name the job only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import METADATA_LIST, Api, Document, collection, gather
from services.core.adapters.kubernetes.options import KubernetesOptions

PODS: Final = "/api/v1/pods"
NAMESPACES: Final = "/api/v1/namespaces"


class Places:
    """Learned from what this process provisions and watches; otherwise looked for in all tenants' namespaces."""

    def __init__(self, api: Api, options: KubernetesOptions) -> None:
        self._api, self._options = api, options
        self._namespaces: dict[str, str] = {}
        self.complete = False
        """True while a watch keeps the places of all pods current: then an unknown job has none."""

    def learn(self, job: str, namespace: str) -> None:
        self._namespaces[job] = namespace

    def learn_from(self, document: Document) -> str:
        """Learns the place of a job's object. Returns the job's id; empty if it is of no job."""
        job = names.label(document, names.JOB)
        if job:
            self._namespaces[job] = document["metadata"]["namespace"]
        return job

    def forget(self, job: str) -> None:
        self._namespaces.pop(job, None)

    async def find(self, job: str, *, thorough: bool = False) -> str | None:
        """The namespace; None if the job has nothing. ``thorough``: looks also for an owner without pods."""
        known = self._namespaces.get(job)
        if known is not None or (self.complete and not thorough):
            return known
        for document in await self._everywhere(names.of_job(job, self._options.installation)):
            self.learn_from(document)
        return self._namespaces.get(job)

    async def jobs(self) -> set[str]:
        """Ids of all jobs that have a pod or an owner."""
        listed = await self._everywhere(names.of_jobs(self._options.installation))
        return {job for document in listed if (job := self.learn_from(document))}

    async def _everywhere(self, selector: str) -> Iterable[Document]:
        """The metadata of all pods and owners of this installation that have these labels."""
        namespaces, _ = await self._api.list(
            NAMESPACES, selector=names.ours(self._options.installation), accept=METADATA_LIST
        )
        owners = [collection("ConfigMap", entry["metadata"]["name"]) for entry in namespaces]
        listed = await gather([
            self._api.list(path, selector=selector, accept=METADATA_LIST) for path in (PODS, *owners)
        ])  # fmt: skip
        return [item for items, _ in listed for item in items]
