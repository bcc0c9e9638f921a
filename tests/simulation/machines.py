"""The machines of the simulation: a cluster, learners' processes that fare as was said beforehand, and their helpers.

A process is nobody's but its machine's: it ends when its time has come, whoever died meanwhile. A helper does what ADR
0002 says, may die at any moment, and is started anew by its node: it finds what lies beside the learner, and reports
under a ``seq`` that is 1000 higher. Nodes can be lost with all that was on them, and come back empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from services.core.domain.errors import WeftError
from services.core.domain.learner import LearnerStatus
from services.core.domain.plan import AttemptPlan
from services.core.domain.status import PHASE_ORDER, Phase
from services.core.ports.cluster import Node, Observation
from tests.simulation.checker import Checker
from tests.simulation.metrics_service import MetricsService
from tests.testbed.helpers_in_memory import AGAIN_S, Fate
from tests.testbed.memory.cluster import MemoryCluster, MemoryLearner

_BEAT_S: Final = 0.1
_RETRY_S: Final = 0.5
_RESTART_S: Final = 0.5
"""A node looks after its helpers that often."""


class Machines(MemoryCluster):
    """The cluster, every effect on which the checker sees at once."""

    def __init__(
        self, nodes: Sequence[Node], checker: Checker, who: Callable[[], str], *, now_ms: Callable[[], int]
    ) -> None:
        """``who``: the process whose call is carried out now."""
        super().__init__(nodes, now_ms=now_ms)
        self._checker, self._who = checker, who
        self.on_cut_off: Callable[[MemoryLearner], None] = lambda _: None
        """Called before such a learner is removed."""

    async def observe(self, job_id: str) -> Observation:
        self._checker.looks(self._who(), job_id)
        return await super().observe(job_id)

    async def do(self, step: str, plan: AttemptPlan) -> None:
        await super().do(step, plan)
        self._checker.carried_out(step, plan, self.learners(plan.job))

    async def stop(self, job_id: str, *, attempt: int, term: int, generation: int, cause: str, grace_ms: int) -> None:
        alive = [
            one.name for one in self.learners(job_id) if one.attempt == attempt and one.state in {"running", "waiting"}
        ]
        await super().stop(
            job_id, attempt=attempt, term=term, generation=generation, cause=cause, grace_ms=grace_ms
        )  # fmt: skip
        self._checker.stopped(job_id, attempt, term, cause, alive)

    async def teardown(self, job_id: str, *, attempt: int, term: int) -> None:
        went = [one.name for one in self.learners(job_id) if one.attempt <= attempt]
        unstored = self._checker.unstored(job_id, attempt)
        await super().teardown(job_id, attempt=attempt, term=term)
        self._checker.torn_down(job_id, attempt, term, went, unstored)

    def lose(self, name: str, *, cut_off: bool) -> None:
        """The machine is gone, with everything on it; ``cut_off``: from here. There, what is on it lives on."""
        self.nodes = [replace(node, ready=False) if node.name == name else node for node in self.nodes]
        for job_id in self.present():
            for learner in self.learners(job_id):
                if learner.plan.node == name:
                    self.vanish(learner, cut_off=cut_off)
        self.notify("")

    def find(self, name: str) -> None:
        """It is back, empty."""
        self.nodes = [replace(node, ready=True) if node.name == name else node for node in self.nodes]
        self.notify("")

    def vanish(self, learner: MemoryLearner, *, cut_off: bool = False) -> None:
        """A learner without a trace; ``cut_off``: it is where nobody sees it."""
        if cut_off:
            self.on_cut_off(learner)
        self._checker.vanished(learner)
        self.drop(learner)


@dataclass
class _Beside:
    """What lies beside a learner on its machine, for the next helper to find."""

    fate: Fate
    status: LearnerStatus
    helper: asyncio.Task[None] | None = None
    results: bool = False


class Crew:
    """Runs the processes and the helpers of all learners."""

    def __init__(self, cluster: Machines, metrics: MetricsService, checker: Checker, chance: random.Random) -> None:
        self._metrics, self._checker, self._chance, self._now_ms = metrics, checker, chance, cluster.now_ms
        self.fates: dict[tuple[str, str, int], Fate] = {}
        self._there: dict[MemoryLearner, _Beside] = {}
        self.objects_away = False
        self.cut_off: set[MemoryLearner] = set()
        """Whose helpers reach the metrics service no more."""
        cluster.on_spawn, cluster.on_gone, cluster.on_start = self._begin, self._gone, self._started
        cluster.on_end, cluster.on_cut_off = checker.process_ended, self._cut_off
        self._out_of_sight: set[MemoryLearner] = set()

    def learners(self) -> list[MemoryLearner]:
        return [learner for learner in self._there if learner not in self._out_of_sight]

    def _begin(self, learner: MemoryLearner) -> None:
        fate = self.fates.get((learner.job, learner.name, learner.attempt), Fate())
        learner.on_term = fate.on_term
        status = LearnerStatus(
            name=learner.name, role=learner.plan.role, rank=learner.plan.rank, attempt=learner.attempt, seq=0,
            phase=Phase.WAITING,
        )  # fmt: skip
        self._there[learner] = _Beside(fate, status)
        self._start_helper(learner)

    def _start_helper(self, learner: MemoryLearner) -> None:
        beside = self._there.get(learner)
        if beside is not None and not learner.stored:
            beside.helper = asyncio.create_task(self._live(learner, beside))
            beside.helper.add_done_callback(_died)

    def crash_helper(self, learner: MemoryLearner) -> bool:
        """Whether it had one that was alive. Its node starts another."""
        beside = self._there.get(learner)
        if beside is None or beside.helper is None or beside.helper.done():
            return False
        beside.helper.cancel()
        beside.status = replace(beside.status, seq=beside.status.seq + 1000)
        asyncio.get_running_loop().call_later(_RESTART_S, self._start_helper, learner)
        return True

    def _cut_off(self, learner: MemoryLearner) -> None:
        """Its machine hears nobody, for a while; nobody will ever hear of it again but by its helper."""
        self._out_of_sight.add(learner)
        self.cut_off.add(learner)
        asyncio.get_running_loop().call_later(self._chance.uniform(2, 8), self.cut_off.discard, learner)

    def _gone(self, learner: MemoryLearner) -> None:
        if learner in self._out_of_sight:
            self._checker.removed(learner)
            return
        beside = self._there.pop(learner, None)
        if beside is not None and beside.helper is not None:
            beside.helper.cancel()
        self._checker.removed(learner)

    async def close(self) -> None:
        helpers = [beside.helper for beside in self._there.values() if beside.helper is not None]
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)

    # --- the process ----------------------------------------------------------------

    def _started(self, learner: MemoryLearner) -> None:
        self._checker.process_started(learner)
        run_s = self._there[learner].fate.run_s
        if run_s is not None:
            asyncio.get_running_loop().call_later(run_s, self._time_is_over, learner)

    def _time_is_over(self, learner: MemoryLearner) -> None:
        beside = self._there.get(learner)
        if beside is not None and learner.exit is None:
            fate = beside.fate
            self._checker.ends_by_itself(learner, fate.code, lost=fate.lost)
            learner.end(fate.code, by=fate.by, lost=fate.lost)

    # --- the helper ------------------------------------------------------------------

    async def _live(self, learner: MemoryLearner, beside: _Beside) -> None:
        again = asyncio.create_task(self._say_again(learner, beside))
        try:
            if learner.started is None and learner.exit is None and not await self._prepare(learner, beside):
                return
            if learner.started is not None:
                await self._report(learner, beside, Phase.PROCESSING)
            while learner.exit is None:
                await learner.changed.wait()
            await self._store(learner, beside)
        finally:
            again.cancel()

    async def _prepare(self, learner: MemoryLearner, beside: _Beside) -> bool:
        """Whether its process was let go, or there is nothing to let go any more."""
        await self._report(learner, beside, Phase.WAITING)
        while not learner.active and learner.exit is None:
            await learner.changed.wait()
        if learner.exit is None:
            await self._report(learner, beside, Phase.DOWNLOADING)
            await self._unless_over(learner, beside.fate.download_s)
        if learner.exit is None and beside.fate.fails is not None:
            reason, message = beside.fate.fails
            beside.status = replace(beside.status, reason=reason, message=message)
            self._checker.gave_up(learner)
            await self._report(learner, beside, Phase.STORED)
            learner.reason, learner.message, learner.stored = reason, message, True
            learner.notify()
            return False
        if learner.exit is None:
            self._checker.prepared(learner)
            await self._report(learner, beside, Phase.READY)
            await self._go(learner)
            learner.start()
        return True

    async def _go(self, learner: MemoryLearner) -> None:
        while learner.exit is None:
            with contextlib.suppress(WeftError):
                if learner not in self.cut_off and await self._metrics.go(learner):
                    return
            await self._unless_over(learner, _BEAT_S)

    async def _store(self, learner: MemoryLearner, beside: _Beside) -> None:
        end = learner.exit
        beside.status = replace(beside.status, exit=end)
        await self._report(learner, beside, Phase.STORING)
        if end is not None and end.stop_cause != "kill" and learner.started is not None and not beside.results:
            await asyncio.sleep(beside.fate.store_s or 0)
            while self.objects_away:  # noqa: ASYNC110 - a store gives no event
                await asyncio.sleep(_RETRY_S)
            beside.results = True
            self._checker.results_stored(learner)
        await self._report(learner, beside, Phase.STORED)
        learner.stored = True
        learner.notify()

    async def _unless_over(self, learner: MemoryLearner, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while learner.exit is None:
                    await learner.changed.wait()

    async def _report(self, learner: MemoryLearner, beside: _Beside, phase: Phase) -> None:
        """Until it was heard. Never a phase that lies behind what was said."""
        if PHASE_ORDER[phase] < PHASE_ORDER[beside.status.phase]:
            return
        beside.status = replace(
            beside.status, phase=phase, seq=beside.status.seq + 1,
            times={phase.value: self._now_ms()} | dict(beside.status.times),
        )  # fmt: skip
        while not await self._say(learner, beside):  # noqa: ASYNC110 - the metrics service gives no event
            await asyncio.sleep(_RETRY_S)

    async def _say(self, learner: MemoryLearner, beside: _Beside) -> bool:
        if learner in self.cut_off:
            return False
        await asyncio.sleep(self._chance.choice([0, 0, 0.001, 0.01]))
        try:
            await self._metrics.report(learner, beside.status)
        except WeftError:
            return False
        return True

    async def _say_again(self, learner: MemoryLearner, beside: _Beside) -> None:
        while True:
            await asyncio.sleep(AGAIN_S)
            await self._say(learner, beside)


def _died(helper: asyncio.Task[None]) -> None:
    """A fault of the simulation's own must not look like one of the platform's."""
    if not helper.cancelled() and (error := helper.exception()) is not None:
        raise AssertionError("a simulated helper is broken") from error
