"""Jobs whose documents cannot be read: shown to the operator, left alone, and their hardware given to nobody.

What such a job holds is known from wherever it can still be known, best first: from its document as it was when this
process last could read it; from what can be made out of the document now; from the cluster itself, which is also asked
about learners of jobs that nobody knows. So neither a document of a newer version nor a ruined one frees what its
learners use.

A list cannot show a document in which not even the indexed fields can be seen. It is found all the same: who held
hardware a moment ago and is in no list now is asked for by its id, and the whole store is looked through again and
again, a page at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from services.core.domain.document import held_placement
from services.core.domain.errors import Conflict, InvalidSpec, Quarantined
from services.core.domain.sizes import Size
from services.core.domain.spec import parse_spec
from services.core.ports.cluster import Cluster
from services.core.ports.job_store import JobStore, Unreadable
from services.core.runtime.quarantine import JOB, Quarantine
from services.lcm.scheduling.placement import Placed, gang

_RECHECKED: Final = 100
"""Of those that are known, in one look: a thousand ruined documents must not take all of its time."""


class UnreadableJobs:
    def __init__(self, jobs: JobStore, cluster: Cluster, quarantine: Quarantine, sizes: Mapping[str, Size]) -> None:
        self._jobs, self._cluster, self._quarantine, self._sizes = jobs, cluster, quarantine, sizes
        self._known: dict[str, Unreadable] = {}
        self._held: dict[str, Placed] = {}
        """Who held what when its document could last be read."""
        self._after = ""

    async def pieces(
        self, holding: Mapping[str, Placed | None], left_out: Sequence[Unreadable]
    ) -> list[tuple[str, Size]]:
        """(node, what is taken of it) by all that hold hardware beside those of ``holding`` whose gang is known.

        ``holding``: all readable documents that hold, None where a spec cannot be read. ``left_out``: met beside them.
        """
        for one in left_out:
            self._note(one)
        for job_id in [one for one in self._known if one in holding]:
            self._forget(job_id)
        for job_id in self._held.keys() - holding.keys() - self._known.keys():
            await self._look_at(job_id)  # most have been released
        placed = {job_id: has for job_id in self._known if (has := self._last_known(job_id)) is not None}
        there = await self._cluster.jobs()
        unknown = [one for one in there if holding.get(one) is None and one not in placed]
        taken = [piece for has in placed.values() for piece in _pieces(has)]
        for job_id in unknown:
            taken += [
                (one.node, Size(gpus=one.gpus, cpus=one.cpus, memory=one.memory))
                for one in (await self._cluster.observe(job_id)).learners
            ]
        self._held = {job_id: has for job_id, has in holding.items() if has is not None} | placed
        return taken

    async def look(self, *, limit: int) -> bool:
        """The next ``limit`` documents of the store, and those that are known. Whether it has been looked through."""
        for job_id in list(self._known)[:_RECHECKED]:
            del self._known[job_id]  # and to the end of the line
            await self._look_at(job_id)
        found, self._after = await self._jobs.unreadable(after=self._after, limit=limit)
        for one in found:
            self._note(one)
        return not self._after

    async def _look_at(self, job_id: str) -> None:
        try:
            await self._jobs.get(job_id)
        except Quarantined as error:
            self._note(self._known.get(job_id) or Unreadable(id=job_id, why=error.message))
        except Conflict as error:
            self._note(Unreadable(id=job_id, why=error.message, newer=True))
        else:
            self._forget(job_id)

    def _note(self, one: Unreadable) -> None:
        self._known[one.id] = one
        if not one.newer:
            self._quarantine.hold(JOB, one.id, one.why, job=one.id)

    def _forget(self, job_id: str) -> None:
        self._known.pop(job_id, None)
        self._quarantine.release(JOB, job_id)

    def _last_known(self, job_id: str) -> Placed | None:
        known = self._held.get(job_id)
        if known is not None:
            return known
        seen = held_placement(self._known[job_id].document)
        if seen is None:
            return None
        try:
            return gang(parse_spec(seen[0]), self._sizes), seen[1]
        except InvalidSpec:
            return None


def _pieces(placed: Placed) -> list[tuple[str, Size]]:
    of, placement = placed
    return [(placement.get(learner, ""), want) for learner, want, _ in of.learners]
