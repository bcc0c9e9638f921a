"""The helpers' and the metrics service's use of the status store (ADR 0002), over a MemoryCluster, in virtual time.

A helper reports WAITING, fetches once its learner is active, reports READY, waits until all are, lets the process
start, sees it end, stores, reports STORED. Reports go to etcd only while the attempt is announced there (``put_while``)
and are repeated every 5 s, because etcd may lose them. A ``Fate`` sets in advance what happens to a learner.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from services.core.domain.codec import dump
from services.core.domain.errors import Unavailable, WeftError
from services.core.domain.learner import LearnerStatus
from services.core.domain.startup import Span
from services.core.domain.status import PHASE_ORDER, Phase
from services.core.ports.status_store import StatusStore
from tests.testbed.memory.cluster import MemoryCluster, MemoryLearner

AGAIN_S = 5.0
_BEAT_S = 0.1
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What happens to one learner. Durations in seconds; None: without end."""

    download_s: float = 0.3
    run_s: float | None = 1.0
    code: int | None = 0
    by: int | None = None
    lost: bool = False
    store_s: float | None = 0.2
    unkept: str = ""
    """The helper's message about files that could not be stored."""
    fails: tuple[str, str] | None = None
    """The helper's reason and message, instead of READY."""
    silent: bool = False
    """Its helper never reports anything, and lets it run."""
    on_term: int | None = -15
    """See ``MemoryLearner``."""
    startup: Mapping[str, Span] = field(default_factory=dict)
    """Steps of the start-up that it reports with its last report only."""


class Metrics:
    """The part of the metrics service that Guardians use."""

    def __init__(self, status: StatusStore) -> None:
        self._status = status
        self.away = False
        self.ready: dict[tuple[str, int], set[str]] = defaultdict(set)

    async def current(self, job: str, attempt: int) -> int:
        """Number of learners of the attempt if it is the announced one, else 0. A linearizable read."""
        if self.away:
            raise Unavailable("metrics does not answer")
        entry = await self._status.get(f"/jobs/{job}/attempt")
        announced = json.loads(entry.value) if entry is not None else {}
        return int(announced["learners"]) if announced.get("attempt") == attempt else 0

    async def report(self, job: str, status: LearnerStatus) -> bool:
        """Returns whether the attempt is current, so that the report counts."""
        if not await self.current(job, status.attempt):
            return False
        guard = f"/jobs/{job}/attempt"
        announced, key = await self._status.get(guard), f"/jobs/{job}/learners/{status.name}"
        present = await self._status.get(key)
        if PHASE_ORDER[status.phase] >= PHASE_ORDER[Phase.READY] and not status.helper_failed:
            self.ready[job, status.attempt].add(status.name)
        if announced is None:
            return False
        if present is not None:
            stored = json.loads(present.value)
            if (stored["attempt"], stored["run"], stored["seq"]) >= status.order:
                return True
        revision = present.mod_revision if present is not None else 0
        written = await self._status.put_while(
            key, json.dumps(dump(status)), guard_key=guard, guard_value=announced.value, mod_revision=revision
        )
        return written is not None

    async def go(self, job: str, attempt: int) -> bool:
        """Whether all learners of the current attempt are READY or further."""
        expected = await self.current(job, attempt)
        return 0 < expected <= len(self.ready[job, attempt])


class Helpers:
    """One task per learner that is spawned. They belong to their machine and outlive every service."""

    def __init__(self, cluster: MemoryCluster, metrics: Metrics, now_ms: Callable[[], int]) -> None:
        self._metrics, self._now_ms = metrics, now_ms
        self._fates: dict[tuple[str, str, int], Fate] = {}
        self._fates_of_runs: dict[tuple[str, str, int, int], Fate] = {}
        self._tasks: dict[MemoryLearner, asyncio.Task[None]] = {}
        self.stored: list[tuple[str, int, str]] = []
        """(job, attempt, learner) whose results are in the object store."""
        cluster.on_spawn = self._begin
        cluster.on_gone = self._end

    def fate(self, job: str, *, name: str = "", attempt: int = 0, **fields: object) -> None:
        """Sets the fate of a job's learner; without a name of all, without an attempt in each."""
        self._fates[job, name, attempt] = replace(Fate(), **fields)  # type: ignore[arg-type]

    def fate_of_run(self, job: str, run: int, *, name: str, attempt: int = 1, **fields: object) -> None:
        """Sets the fate of one run of a learner."""
        self._fates_of_runs[job, name, attempt, run] = replace(Fate(), **fields)  # type: ignore[arg-type]

    def _fate_of(self, learner: MemoryLearner) -> Fate:
        of_run = self._fates_of_runs.get((learner.job, learner.name, learner.attempt, learner.plan.run))
        if of_run is not None:
            return of_run
        for key in ((learner.name, learner.attempt), ("", learner.attempt), (learner.name, 0), ("", 0)):
            if (fate := self._fates.get((learner.job, *key))) is not None:
                return fate
        return Fate()

    def _begin(self, learner: MemoryLearner) -> None:
        self._tasks[learner] = asyncio.create_task(_Helper(learner, self._fate_of(learner), self._metrics, self).run())

    def _end(self, learner: MemoryLearner) -> None:
        if (task := self._tasks.pop(learner, None)) is not None:
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def now_ms(self) -> int:
        return self._now_ms()


class _Helper:
    def __init__(self, learner: MemoryLearner, fate: Fate, metrics: Metrics, helpers: Helpers) -> None:
        self._learner, self._fate, self._metrics, self._helpers = learner, fate, metrics, helpers
        learner.on_term = fate.on_term
        self._status = learner.first_status

    async def run(self) -> None:
        repeating = asyncio.create_task(self._repeat())
        try:
            await self._work()
        finally:
            repeating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await repeating

    async def _work(self) -> None:
        learner, fate = self._learner, self._fate
        await self._report(Phase.WAITING)
        while not learner.active and learner.exit is None:
            await learner.changed.wait()
        if learner.exit is None:
            await self._report(Phase.DOWNLOADING)
            await self._wait_unless_ended(fate.download_s)
        if learner.exit is None and fate.fails is not None:
            self._status = replace(self._status, reason=fate.fails[0], message=fate.fails[1])
            await self._report(Phase.STORED)
            learner.reason, learner.message, learner.stored = *fate.fails, True
            learner.notify()
            return
        while learner.exit is None and learner.blocked is not None:
            await self._wait_unless_ended(_BEAT_S)  # its container does not run: no learner of the gang may start
        if learner.exit is None:
            await self._report(Phase.READY)
            await self._wait_for_go()
        if learner.start():
            await self._report(Phase.PROCESSING)
            await self._wait_unless_ended(fate.run_s)
            learner.end(fate.code, by=fate.by, lost=fate.lost)
        await self._store()

    async def _wait_for_go(self) -> None:
        """Waits until all are ready. A learner that is stopped meanwhile does not start."""
        while self._learner.exit is None and not self._fate.silent:
            with contextlib.suppress(WeftError):
                if await self._metrics.go(self._learner.job, self._learner.attempt):
                    return
            await self._wait_unless_ended(_BEAT_S)

    async def _store(self) -> None:
        end = self._learner.exit
        self._status = replace(self._status, exit=end)
        await self._report(Phase.STORING)
        if end is not None and end.stop_cause != "kill" and self._learner.started is not None:
            await (asyncio.sleep(self._fate.store_s) if self._fate.store_s is not None else asyncio.Event().wait())
            self._helpers.stored.append((self._learner.job, self._learner.attempt, self._learner.name))
            self._status = replace(self._status, message=self._fate.unkept, startup=self._fate.startup)
        await self._report(Phase.STORED)
        self._learner.stored = True
        self._learner.notify()

    async def _wait_unless_ended(self, seconds: float | None) -> None:
        """Waits for so long, or until the learner's process has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._learner.exit is None:
                    await self._learner.changed.wait()

    async def _report(self, phase: Phase) -> None:
        """Reports a phase, and repeats it until it was received."""
        self._status = replace(
            self._status,
            phase=phase,
            seq=self._status.seq + 1,
            times={**self._status.times, phase.value: self._helpers.now_ms()},
        )
        while not await self._send():  # noqa: ASYNC110 - the metrics service gives no event
            await asyncio.sleep(_RETRY_S)

    async def _send(self) -> bool:
        if self._fate.silent:
            return True
        try:
            return await self._metrics.report(self._learner.job, self._status)
        except WeftError:
            return False

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_S)
            await self._send()
