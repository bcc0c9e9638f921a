"""Jobs whose documents cannot be read: shown to the operator, left alone, and their hardware given to no other job.

What such a job holds comes from the first of these sources that still has it: its document as this process last could
read it; the readable parts of its document now; the cluster itself. The cluster is also asked about learners of jobs
without a document. So neither a document of a newer version nor a damaged one frees what its learners use.

A list cannot show a document whose indexed fields cannot be read. It is found in two other ways: a job that held
hardware in the last reading and is in no list now is read by its id, and the whole store is read again and again, some
pages at a time: how often does not depend on the number of documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from services.core.domain.document import held_placement
from services.core.domain.errors import Conflict, InvalidSpec, Quarantined
from services.core.domain.sizes import Size
from services.core.domain.spec import parse_spec
from services.core.ports.cluster import Cluster
from services.core.ports.job_store import JobStore, Unreadable
from services.core.runtime.quarantine import JOB, Quarantine
from services.lcm.scheduling.placement import NOTHING, Piece, Placed, gang_of, pieces

_RECHECKED: Final = 100
"""Known unreadable jobs that one ``check`` reads again: a thousand damaged documents must not take all of its time."""


class UnreadableJobs:
    def __init__(
        self,
        jobs: JobStore,
        cluster: Cluster,
        quarantine: Quarantine,
        sizes: Mapping[str, Size],
        least: Size,
        *,
        overhead: Size = NOTHING,
    ) -> None:
        """``least``: what each learner is charged at least. ``overhead``: what it is charged besides its size."""
        self._jobs, self._cluster, self._quarantine, self._sizes, self._least = jobs, cluster, quarantine, sizes, least
        self._overhead = overhead
        self._known: dict[str, Unreadable] = {}
        self._placed: dict[str, Placed] = {}
        """By job id: what each job held when its document could last be read."""
        self._after = ""

    async def held(
        self, readable: Mapping[str, Placed | None], left_out: Sequence[Unreadable]
    ) -> dict[str, list[Piece]]:
        """What all jobs hold whose gang is not in ``readable``, by job id.

        ``readable``: every readable document that holds hardware; None if its spec cannot be read. ``left_out``: the
        unreadable documents that were found beside them. Raises Unavailable.
        """
        self.add(left_out)
        for job_id in [job_id for job_id in self._known if job_id in readable]:
            self._forget(job_id)
        for job_id in self._placed.keys() - readable.keys() - self._known.keys():
            await self._read(job_id)  # most have been released
        placed = {job_id: known for job_id in self._known if (known := self._last_known(job_id)) is not None}
        held = {job_id: list(pieces(*known)) for job_id, known in placed.items()}
        for job_id in await self._cluster.jobs(cached=True):
            if readable.get(job_id) is None and job_id not in placed:
                held[job_id] = await self._observed(job_id)
        self._placed = {job_id: known for job_id, known in readable.items() if known is not None} | placed
        return held

    async def check(self, *, limit: int) -> bool:
        """Reads the next ``limit`` documents of the store, and some of the jobs that are known to be unreadable.

        Returns True at the end of the store.
        """
        for job_id in list(self._known)[:_RECHECKED]:
            await self._read(job_id)
        page, self._after = await self._jobs.unreadable(after=self._after, limit=limit)
        self.add(page)
        return not self._after

    @property
    def any(self) -> bool:
        """Whether a stored document is known that cannot be read, of this version or a newer one."""
        return bool(self._known)

    def add(self, unreadable: Sequence[Unreadable]) -> None:
        """Puts these documents into quarantine until they are readable, except those of a newer version."""
        for document in unreadable:
            self._add(document)

    async def _observed(self, job_id: str) -> list[Piece]:
        """What the job's learners hold according to the cluster."""
        learners = (await self._cluster.observe(job_id)).learners
        return [
            Piece(learner.node, Size(learner.gpus, learner.cpus, learner.memory, learner.devices))
            for learner in learners
        ]

    async def _read(self, job_id: str) -> None:
        try:
            await self._jobs.get(job_id)
        except Quarantined as error:
            known = self._known.get(job_id) or Unreadable(id=job_id, why=error.message)
            self._add(replace(known, why=error.message, newer=False))
        except Conflict as error:
            self._add(Unreadable(id=job_id, why=error.message, newer=True))
        else:
            self._forget(job_id)

    def _add(self, unreadable: Unreadable) -> None:
        self._known.pop(unreadable.id, None)
        self._known[unreadable.id] = unreadable  # at the end of the line of ``check``
        if not unreadable.newer:
            self._quarantine.hold(JOB, unreadable.id, unreadable.why, job=unreadable.id)

    def _forget(self, job_id: str) -> None:
        self._known.pop(job_id, None)
        self._quarantine.release(JOB, job_id)

    def _last_known(self, job_id: str) -> Placed | None:
        known = self._placed.get(job_id)
        if known is not None:
            return known
        partial = held_placement(self._known[job_id].document)
        if partial is None:
            return None
        spec, placement = partial
        try:
            return gang_of(parse_spec(spec), self._sizes, self._least, self._overhead), placement
        except InvalidSpec:
            return None
