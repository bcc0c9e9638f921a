"""What the platform has and who waits for it: hints for people, never decisions (those are the dispatcher's).

The dispatcher and the node agent may be away at any time; then what they know is left out, and nothing fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from services.api.clients import DispatcherClient, NodeClient, Waiting
from services.core.domain.errors import InvalidSpec, WeftError
from services.core.domain.job import Job
from services.core.domain.sizes import Size
from services.core.domain.spec import JobSpec, parse_spec
from services.core.domain.status import Status
from services.core.ports.cluster import Node
from services.core.ports.job_store import JobQuery, JobStore
from services.core.runtime.quarantine import Quarantine, QuarantineEntry

log = structlog.get_logger()
_HINT_S: Final = 2.0
"""How old the cluster's capacity may be where it only makes a warning."""
_MOST_JOBS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Fit:
    """``now`` | ``later`` | ``never`` | ``unknown``, and why."""

    verdict: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """``nodes`` and ``isolation`` are None where the cluster cannot be asked."""

    nodes: Sequence[Node] | None
    isolation: str | None
    used: Size
    jobs: Mapping[Status, int]


@dataclass(frozen=True, slots=True)
class Quarantined:
    """(service, thing) that cannot be read and is left alone; ``silent``: services that did not say."""

    held: Sequence[tuple[str, QuarantineEntry]]
    silent: Sequence[str]


class Platform:
    def __init__(
        self,
        store: JobStore,
        dispatcher: DispatcherClient,
        node: NodeClient,
        *,
        quarantine: Quarantine,
        others: Mapping[str, Callable[[], Awaitable[Sequence[QuarantineEntry]]]],
    ) -> None:
        """``others``: service -> what it holds in quarantine."""
        self._store = store
        self._dispatcher = dispatcher
        self._node = node
        self._quarantine = quarantine
        self._others = others
        self._lately: tuple[float, tuple[Sequence[Node] | None, str | None]] | None = None
        """What the cluster said last, and until when that is new enough for a hint (loop time)."""

    async def quarantined(self) -> Quarantined:
        """Of all services, asked at once."""
        answers = await asyncio.gather(*(ask() for ask in self._others.values()), return_exceptions=True)
        held = [("api", one) for one in self._quarantine.entries()]
        silent: list[str] = []
        for service, answer in zip(self._others, answers, strict=True):
            if isinstance(answer, WeftError):
                silent.append(service)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                held += [(service, one) for one in answer]
        return Quarantined(held, silent)

    async def waiting(self, job_ids: Sequence[str] = ()) -> Mapping[str, Waiting]:
        """By job id, in the queue's order; empty where the dispatcher does not answer."""
        try:
            return {one.job_id: one for one in await self._dispatcher.explain(job_ids)}
        except WeftError as away:
            log.debug("api.dispatcher_away", why=away.message)
            return {}

    async def cluster(self, tenant: str | None) -> ClusterState:
        nodes, isolation = await self._nodes()
        holding = await self._holding()
        used = [learner for job in holding for learner in learners_of(job)]
        return ClusterState(
            nodes,
            isolation,
            Size(sum(one.gpus for one in used), sum(one.cpus for one in used), sum(one.memory for one in used)),
            await self._store.count(JobQuery(tenant=tenant)),
        )

    async def fit(self, spec: JobSpec, *, now: bool = True) -> Fit:
        """Whether the gang would fit now, later or never. Learners are placed largest first, first fit: a hint.

        Without ``now`` only ``never`` is told from the rest, which costs no look at what runs.
        """
        nodes, _ = await (self._nodes() if now else self._nodes_lately())
        if nodes is None:
            return Fit("unknown", "the cluster cannot be asked now")
        gang = [spec.role_resources(name) for name, role in spec.roles.items() for _ in range(role.count)]
        free = {node.name: [node.gpus, node.cpus, node.memory] for node in nodes if node.ready}
        if not _place(gang, {name: list(left) for name, left in free.items()}):
            return Fit("never", _too_large(gang, nodes))
        if not now:
            return Fit("later")
        for job in await self._holding():
            for name, learner in zip(job.attempt.placement.values(), learners_of(job), strict=False):
                if name in free:
                    _take(free[name], learner)
        if not _place(gang, free):
            return Fit("later", "it fits once running jobs have ended")
        queued = await self._store.count(JobQuery(statuses=(Status.QUEUED,)))
        ahead = queued.get(Status.QUEUED, 0)
        if ahead:  # one that this cluster can never hold stands in nobody's way
            ahead -= sum(one.pending_reason == "NoMatchingFlavor" for one in (await self.waiting()).values())
        if ahead > 0:
            return Fit("later", f"{ahead} other job{'s wait' if ahead > 1 else ' waits'} before it")
        return Fit("now")

    async def _nodes(self) -> tuple[Sequence[Node] | None, str | None]:
        try:
            return await self._node.capacity()
        except WeftError as away:
            log.debug("api.cluster_away", why=away.message)
            return None, None

    async def _nodes_lately(self) -> tuple[Sequence[Node] | None, str | None]:
        """So that a submission does not wait for the cluster, which may take a second to be found silent."""
        now = asyncio.get_running_loop().time()
        if self._lately is None or now >= self._lately[0]:
            self._lately = (now + _HINT_S, await self._nodes())
        return self._lately[1]

    async def _holding(self) -> Sequence[Job]:
        return await self._store.find(JobQuery(holding=True, deleted=True), limit=_MOST_JOBS)


def spec_of(job: Job) -> JobSpec | None:
    """None for a spec that this version cannot read."""
    try:
        return parse_spec(job.spec)
    except InvalidSpec:
        return None


def learners_of(job: Job) -> Sequence[Size]:
    """What each learner gets, by rank."""
    spec = spec_of(job)
    if spec is None:
        return ()
    return [spec.role_resources(name) for name, role in spec.roles.items() for _ in range(role.count)]


def _place(gang: Sequence[Size], free: dict[str, list[float]]) -> bool:
    """Whether all find a place; changes ``free``."""
    for learner in sorted(gang, key=lambda one: (one.gpus, one.cpus, one.memory), reverse=True):
        home = next((left for left in free.values() if _fits(learner, left)), None)
        if home is None:
            return False
        _take(home, learner)
    return True


def _fits(learner: Size, left: Sequence[float]) -> bool:
    wants = (learner.gpus, learner.cpus, learner.memory)
    return all(want <= have + 1e-9 for want, have in zip(wants, left, strict=True))


def _take(left: list[float], learner: Size) -> None:
    for place, want in enumerate((learner.gpus, learner.cpus, learner.memory)):
        left[place] -= want


def _too_large(gang: Sequence[Size], nodes: Sequence[Node]) -> str:
    ready = [node for node in nodes if node.ready]
    for what, wanted, there in (
        ("GPUs", sum(one.gpus for one in gang), sum(node.gpus for node in ready)),
        ("CPUs", sum(one.cpus for one in gang), sum(node.cpus for node in ready)),
        ("GB of memory", sum(one.memory for one in gang) / 1e9, sum(node.memory for node in ready) / 1e9),
    ):
        if wanted > there + 1e-9:
            return f"it asks for {wanted:.4g} {what}, the whole cluster has {there:.4g}: it waits until that changes"
    return "no node is large enough for one of its learners: it waits until that changes"
