"""The simulated cluster: nodes, learners' processes with a fate that the seed decides, and their helpers.

A learner's process ends at its time, whichever service crashed meanwhile. A helper behaves as in ADR 0002. It can crash
at any moment; its node starts another, which finds the learner's state and reports under a ``seq`` that is 1000 higher.
Nodes can be lost with all their learners, and return empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

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
"""A node restarts a crashed helper after so long."""


class SimulatedCluster(MemoryCluster):
    """The cluster. It reports every effect to the checker."""

    def __init__(
        self, nodes: Sequence[Node], checker: Checker, caller: Callable[[], str], *, now_ms: Callable[[], int]
    ) -> None:
        """``caller``: returns the name of the process whose call is being executed."""
        super().__init__(nodes, now_ms=now_ms)
        self._checker, self._caller = checker, caller
        self.on_cut_off: Callable[[MemoryLearner], None] = lambda _: None
        """Called before a learner on a node that was cut off is removed."""

    async def observe(self, job_id: str, *, cached: bool = False) -> Observation:
        if not cached:
            self._checker.observed(self._caller(), job_id)
        return await super().observe(job_id, cached=cached)

    async def do(self, step: str, plan: AttemptPlan) -> None:
        await super().do(step, plan)
        self._checker.step_done(step, plan, self.learners(plan.job))

    async def stop(self, job_id: str, *, attempt: int, term: int, generation: int, cause: str, grace_ms: int) -> None:
        of_attempt = [learner for learner in self.learners(job_id) if learner.attempt == attempt]
        alive = [learner.name for learner in of_attempt if learner.state in {"running", "waiting"}]
        await super().stop(job_id, attempt=attempt, term=term, generation=generation, cause=cause, grace_ms=grace_ms)
        self._checker.stopped(job_id, attempt, term, cause, alive)

    async def teardown(self, job_id: str, *, attempt: int, term: int) -> None:
        removed = [learner.name for learner in self.learners(job_id) if learner.attempt <= attempt]
        unstored = self._checker.unstored(job_id, attempt)
        await super().teardown(job_id, attempt=attempt, term=term)
        self._checker.torn_down(job_id, attempt, term, removed, unstored)

    def lose_node(self, name: str, *, cut_off: bool) -> None:
        """Removes the learners of a node, which is not ready afterwards. ``cut_off``: they go on, unobserved."""
        self.nodes = [replace(node, ready=False) if node.name == name else node for node in self.nodes]
        for job_id in self.present():
            for learner in self.learners(job_id):
                if learner.plan.node == name:
                    self.lose_learner(learner, cut_off=cut_off)
        self.notify("")

    def return_node(self, name: str) -> None:
        """Makes a lost node ready again, without learners."""
        self.nodes = [replace(node, ready=True) if node.name == name else node for node in self.nodes]
        self.notify("")

    def lose_learner(self, learner: MemoryLearner, *, cut_off: bool = False) -> None:
        """Removes a learner without a trace. ``cut_off``: it goes on, unobserved."""
        if cut_off:
            self.on_cut_off(learner)
        self._checker.learner_lost(learner)
        self.drop(learner)


@dataclass
class _HelperState:
    """The state of a learner's helper that is on its node, where the next helper finds it."""

    fate: Fate
    status: LearnerStatus
    helper: asyncio.Task[None] | None = None
    """The running helper."""
    results: bool = False
    """The results are stored."""


class LearnerSimulator:
    """Runs the processes and the helpers of all learners."""

    def __init__(self, cluster: Any, metrics: MetricsService, checker: Checker, chance: random.Random) -> None:
        self._metrics, self._checker, self._chance, self._now_ms = metrics, checker, chance, cluster.now_ms
        self.fates: dict[tuple[str, str, int], Fate] = {}
        """(job, learner, attempt) -> its fate."""
        self._states: dict[MemoryLearner, _HelperState] = {}
        self.pace = 1.0
        """Learners that begin from now on take this share of the time that their fates say."""
        self.objects_away = False
        """The object store does not answer."""
        self.cut_off: set[MemoryLearner] = set()
        """Learners whose helpers cannot reach the metrics service."""
        cluster.on_spawn, cluster.on_gone, cluster.on_start = self._on_spawned, self._on_removed, self._on_started
        cluster.on_end, cluster.on_cut_off = checker.process_ended, self._on_cut_off
        self.silent: set[MemoryLearner] = set()
        """Learners whose helpers report nothing any more."""
        self._partitioned: set[MemoryLearner] = set()
        """Learners on nodes that were cut off."""

    def learners(self) -> list[MemoryLearner]:
        """Returns the learners that the cluster observes."""
        return [learner for learner in self._states if learner not in self._partitioned]

    def _on_spawned(self, learner: MemoryLearner) -> None:
        # Further runs have fates of their own: those of later attempts, which are drawn by chance, too.
        fate = self.fates.get((learner.job, learner.name, learner.attempt + 3 * (learner.plan.run - 1)), Fate())
        learner.on_term = fate.on_term
        self._states[learner] = _HelperState(_at_pace(fate, self.pace), learner.first_status)
        self._start_helper(learner)

    def _start_helper(self, learner: MemoryLearner) -> None:
        state = self._states.get(learner)
        if state is not None and not learner.stored:
            state.helper = asyncio.create_task(self._run_helper(learner, state))
            state.helper.add_done_callback(_raise_helper_error)

    def crash_helper(self, learner: MemoryLearner) -> bool:
        """Crashes the learner's helper; its node starts another. Returns False where no helper runs."""
        state = self._states.get(learner)
        if state is None or state.helper is None or state.helper.done():
            return False
        state.helper.cancel()
        state.status = replace(state.status, seq=state.status.seq + 1000)
        asyncio.get_running_loop().call_later(_RESTART_S, self._start_helper, learner)
        return True

    def _on_cut_off(self, learner: MemoryLearner) -> None:
        """Cuts its helper off for a while. The cluster will not observe the learner again."""
        self._partitioned.add(learner)
        self.cut_off_for_a_while(learner)

    def cut_off_for_a_while(self, learner: MemoryLearner) -> None:
        """Its helper cannot reach the metrics service."""
        self.cut_off.add(learner)
        asyncio.get_running_loop().call_later(self._chance.uniform(2, 8), self.cut_off.discard, learner)

    def _on_removed(self, learner: MemoryLearner) -> None:
        if learner in self._partitioned:
            self._checker.removed(learner)
            return
        self.end_helper(learner)
        self._checker.removed(learner)

    def end_helper(self, learner: MemoryLearner) -> None:
        """Ends a learner's helper for good; its process does not end by itself any more."""
        state = self._states.pop(learner, None)
        if state is not None and state.helper is not None:
            state.helper.cancel()

    async def close(self) -> None:
        helpers = [state.helper for state in self._states.values() if state.helper is not None]
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)

    # --- the process ----------------------------------------------------------------

    def _on_started(self, learner: MemoryLearner) -> None:
        self._checker.process_started(learner)
        run_s = self._states[learner].fate.run_s
        if run_s is not None:
            asyncio.get_running_loop().call_later(run_s, self._end_process, learner)

    def _end_process(self, learner: MemoryLearner) -> None:
        state = self._states.get(learner)
        if state is not None and learner.exit is None:
            fate = state.fate
            self._checker.ends_by_itself(learner, fate.code, lost=fate.lost)
            learner.end(fate.code, by=fate.by, lost=fate.lost)

    # --- the helper ------------------------------------------------------------------

    async def _run_helper(self, learner: MemoryLearner, state: _HelperState) -> None:
        repeating = asyncio.create_task(self._repeat_reports(learner, state))
        try:
            if learner.started is None and learner.exit is None and not await self._prepare(learner, state):
                return
            if learner.started is not None:
                await self._report(learner, state, Phase.PROCESSING)
            while learner.exit is None:
                await learner.changed.wait()
            await self._store(learner, state)
        finally:
            repeating.cancel()

    async def _prepare(self, learner: MemoryLearner, state: _HelperState) -> bool:
        """Fetches, waits for the go and starts the process, unless it ends before. Returns False where this failed."""
        await self._report(learner, state, Phase.WAITING)
        while not learner.active and learner.exit is None:
            await learner.changed.wait()
        if learner.exit is None:
            await self._report(learner, state, Phase.DOWNLOADING)
            await self._sleep_unless_ended(learner, state.fate.download_s)
        if learner.exit is None and state.fate.fails is not None:
            reason, message = state.fate.fails
            state.status = replace(state.status, reason=reason, message=message)
            self._checker.helper_failed(learner)
            await self._report(learner, state, Phase.STORED)
            learner.reason, learner.message, learner.stored = reason, message, True
            learner.notify()
            return False
        if learner.exit is None:
            self._checker.prepared(learner)
            await self._report(learner, state, Phase.READY)
            await self._wait_for_go(learner)
            learner.start()
        return True

    async def _wait_for_go(self, learner: MemoryLearner) -> None:
        while learner.exit is None:
            with contextlib.suppress(WeftError):
                if learner not in self.cut_off and await self._metrics.go(learner):
                    return
            await self._sleep_unless_ended(learner, _BEAT_S)

    async def _store(self, learner: MemoryLearner, state: _HelperState) -> None:
        end = learner.exit
        state.status = replace(state.status, exit=end)
        await self._report(learner, state, Phase.STORING)
        if end is not None and end.stop_cause != "kill" and learner.started is not None and not state.results:
            await asyncio.sleep(state.fate.store_s or 0)
            while self.objects_away:  # noqa: ASYNC110 - the store has no event for it
                await asyncio.sleep(_RETRY_S)
            state.results = True
            self._checker.results_stored(learner)
        await self._report(learner, state, Phase.STORED)
        learner.stored = True
        learner.notify()

    async def _sleep_unless_ended(self, learner: MemoryLearner, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while learner.exit is None:
                    await learner.changed.wait()

    async def _report(self, learner: MemoryLearner, state: _HelperState, phase: Phase) -> None:
        """Reports a phase until the report is accepted. No effect for a phase before the reported one."""
        if PHASE_ORDER[phase] < PHASE_ORDER[state.status.phase]:
            return
        state.status = replace(
            state.status,
            phase=phase,
            seq=state.status.seq + 1,
            times={phase.value: self._now_ms()} | dict(state.status.times),
        )
        while not await self._send_report(learner, state):  # noqa: ASYNC110 - the service has no event for it
            await asyncio.sleep(_RETRY_S)

    async def _send_report(self, learner: MemoryLearner, state: _HelperState) -> bool:
        if learner in self.cut_off or learner in self.silent:
            return False
        await asyncio.sleep(self._chance.choice([0, 0, 0.001, 0.01]))
        try:
            await self._metrics.report(learner, state.status)
        except WeftError:
            return False
        return True

    async def _repeat_reports(self, learner: MemoryLearner, state: _HelperState) -> None:
        while True:
            await asyncio.sleep(AGAIN_S)
            await self._send_report(learner, state)


def _at_pace(fate: Fate, pace: float) -> Fate:
    """The fate with this share of its times."""
    run_s, store_s = fate.run_s, fate.store_s
    return replace(
        fate,
        download_s=pace * fate.download_s,
        run_s=None if run_s is None else pace * run_s,
        store_s=None if store_s is None else pace * store_s,
    )


def _raise_helper_error(helper: asyncio.Task[None]) -> None:
    """Raises the error of a simulated helper: it is a bug of the simulation."""
    if not helper.cancelled() and (error := helper.exception()) is not None:
        raise AssertionError("a simulated helper is broken") from error
