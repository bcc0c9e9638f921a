"""What the platform has and which jobs wait for it, for display. The dispatcher decides; this package computes nothing.

Answers about placement come from the life-cycle manager (docs/adr/0012-placement-has-one-owner.md). It may be away at
any time: then its part of an answer is "unknown" or left out, and no request fails.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from services.api.clients import DispatcherClient, Waiting
from services.core.domain.errors import InvalidSpec, WeftError
from services.core.domain.job import Job
from services.core.domain.sizes import Size
from services.core.domain.spec import JobSpec, dump_spec, parse_spec
from services.core.domain.status import Status
from services.core.ports.cluster import Node
from services.core.ports.job_store import JobQuery, JobStore
from services.core.runtime.isolation_report import IsolationReport
from services.core.runtime.quarantine import Quarantine, QuarantineEntry

log = structlog.get_logger()
_RECENT_S: Final = 2.0
"""For so long an answer about a spec serves other submissions that need the same."""
_STALE_S: Final = 30.0
"""Age up to which the last answer is used if the dispatcher gives no newer one within ``_NEW_ANSWER_S``."""
_NEW_ANSWER_S: Final = 0.1
"""Seconds that a submit waits for a newer answer: a busy dispatcher must not delay its acknowledgement."""
_RECENT_MOST: Final = 256
"""Answers in the cache: users choose how many different specs there are."""
_WITHOUT_PLACEMENT: Final = frozenset({"name", "description", "command", "code", "env", "tags"})
"""Fields of a spec that placement does not depend on. A field that is missing here costs a call, not a wrong answer."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a gang would be admitted now."""

    verdict: str
    """now | later | never | unknown."""
    message: str = ""
    """Why; empty if ``now``."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer of the dispatcher, and when the call for it began."""

    fit: Fit
    called_s: float
    """In the time of the event loop, in seconds."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """``nodes``, ``isolation`` and ``used`` are None while the life-cycle manager cannot answer."""

    nodes: Sequence[Node] | None
    isolation: str | None
    """How learners are isolated: sandbox | process | trusted."""
    used: Mapping[str, Size] | None
    """What jobs of all tenants hold of each node, by its name."""
    jobs: Mapping[Status, int]
    """Number of jobs by status."""
    enforced: Sequence[str] | None = None
    """The limits of learners that the kernel enforces: of memory, pids and cpu; None: unknown."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    held: Sequence[tuple[str, QuarantineEntry]]
    """(service, object) for each object that cannot be read and is left alone."""
    silent: Sequence[str]
    """Services that did not answer."""


class Platform:
    def __init__(
        self,
        store: JobStore,
        dispatcher: DispatcherClient,
        *,
        quarantine: Quarantine,
        others: Mapping[str, Callable[[], Awaitable[Sequence[QuarantineEntry]]]],
        isolation: Callable[[], IsolationReport | None] = lambda: None,
    ) -> None:
        """``quarantine``: the api's own. ``others``: by name of each other service, a query of its quarantine.

        ``isolation``: the report of this machine's node agent. It may read a file.
        """
        self._isolation = isolation
        self._store = store
        self._dispatcher = dispatcher
        self._quarantine = quarantine
        self._others = others
        self._recent: OrderedDict[bytes, _Answer] = OrderedDict()
        """By the digest of the fields of a spec that placement may depend on; the oldest first."""
        self._calls: dict[bytes, asyncio.Task[Fit]] = {}
        """The calls that are under way, by the same digests."""
        self._unknown: _Answer | None = None
        """The last time that the dispatcher did not answer: for ``_RECENT_S`` that is the answer for all new specs."""
        self._unenforced = "", 0.0
        """(the last warning about limits, until when it serves, in the time of the event loop)"""

    async def quarantined(self) -> Quarantined:
        """The quarantines of all services, queried at the same time."""
        answers = await asyncio.gather(*(query() for query in self._others.values()), return_exceptions=True)
        held = [("api", thing) for thing in self._quarantine.entries()]
        silent: list[str] = []
        for service, answer in zip(self._others, answers, strict=True):
            if isinstance(answer, WeftError):
                silent.append(service)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                held += [(service, thing) for thing in answer]
        return Quarantined(held, silent)

    async def waiting(self, job_ids: Sequence[str]) -> Mapping[str, Waiting]:
        """Those of these jobs that wait, by id, as the dispatcher last decided. Empty if it does not answer."""
        try:
            return {waiting.job_id: waiting for waiting in await self._dispatcher.explain(job_ids)}
        except WeftError as away:
            log.debug("dispatcher.not_reached", why=away.message)
            return {}

    async def job_counts(self, tenant: str | None) -> Mapping[Status, int]:
        """The number of the tenant's jobs (None: of all tenants) by status; a status without jobs may be absent."""
        return await self._store.count(JobQuery(tenant=tenant))

    async def cluster(self, tenant: str | None) -> ClusterState:
        """The whole cluster, and the number of the tenant's jobs (None: of all tenants)."""
        counts = await self.job_counts(tenant)
        try:
            usage = await self._dispatcher.cluster_usage()
        except WeftError as away:
            log.debug("dispatcher.not_reached", why=away.message)
            return ClusterState(None, None, None, counts)
        report = await asyncio.to_thread(self._isolation)
        enforced = report.enforced if report is not None else None
        return ClusterState(usage.nodes, usage.isolation, usage.used, counts, enforced)

    async def unenforced(self) -> str:
        """What owners of jobs should know about limits that are not enforced; empty: nothing. Up to two seconds old."""
        now = asyncio.get_running_loop().time()
        if now >= self._unenforced[1]:
            report = await asyncio.to_thread(self._isolation)
            self._unenforced = report.memory_warning if report is not None else "", now + _RECENT_S
        return self._unenforced[0]

    async def fit(self, spec: JobSpec) -> Fit:
        """Whether a job of this spec would be admitted if it were submitted now."""
        try:
            verdict, message = await self._dispatcher.fit(dump_spec(spec))
        except WeftError as away:
            return Fit("unknown", away.message)
        return Fit(verdict, message)

    async def recent_fit(self, spec: JobSpec) -> Fit:
        """As ``fit``, up to ``_STALE_S`` old: of submits in a row only the first one waits for a busy dispatcher."""
        fields = {name: value for name, value in dump_spec(spec).items() if name not in _WITHOUT_PLACEMENT}
        key = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest()
        now = asyncio.get_running_loop().time()
        last = self._recent.get(key)
        if last is not None and now - last.called_s < _RECENT_S:
            return last.fit
        stale = last.fit if last is not None and now - last.called_s < _STALE_S else None
        if self._unknown is not None and now - self._unknown.called_s < _RECENT_S:
            return stale or self._unknown.fit
        call = self._calls.get(key) or self._call(key, spec)
        # Not cancelled with this request: others wait for the same answer.
        await asyncio.wait({call}, timeout=None if stale is None else _NEW_ANSWER_S)
        if stale is not None and (not call.done() or call.result().verdict == "unknown"):
            return stale
        return call.result()

    def _call(self, key: bytes, spec: JobSpec) -> asyncio.Task[Fit]:
        """Starts the call for this key, which all requests for it share."""
        self._calls[key] = task = asyncio.create_task(self._refresh(key, spec))
        task.add_done_callback(lambda _: self._calls.pop(key, None))
        return task

    async def _refresh(self, key: bytes, spec: JobSpec) -> Fit:
        """Calls the dispatcher and keeps its answer."""
        called_s = asyncio.get_running_loop().time()
        fit = await self.fit(spec)
        if fit.verdict == "unknown":
            self._unknown = _Answer(fit, asyncio.get_running_loop().time())
            return fit
        self._recent[key] = _Answer(fit, called_s)
        self._recent.move_to_end(key)
        while len(self._recent) > _RECENT_MOST:
            self._recent.popitem(last=False)
        return fit


def spec_of(job: Job) -> JobSpec | None:
    """The job's spec, or None if this version cannot read it."""
    try:
        return parse_spec(job.spec)
    except InvalidSpec:
        return None
