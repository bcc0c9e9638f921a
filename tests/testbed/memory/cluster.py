"""A cluster in memory: the rules of the node agent, and failures on demand.

No processes run. The test starts and ends the process of each ``MemoryLearner``; only a stop ends one by itself, as
SIGTERM and SIGKILL would. Fences are those of the node agent: a pair (attempt, term) below the highest seen one is
refused, and after a teardown nothing more is created under its pair.

``go_away``/``come_back``: the cluster does not answer. ``refuse``: a step fails. ``hold``: calls wait. ``drop``: a
learner is lost with its machine.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from services.core.domain.errors import InvalidRequest, StaleFence, Unavailable, WeftError
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.plan import AttemptPlan, LearnerPlan
from services.core.domain.status import Phase
from services.core.ports.cluster import LearnerProcess, Node, Observation

STEPS: Final = ("reserve", "learners", "activate")
_NO_FENCE: Final = (0, 0)


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a learner does not leave ``starting``, as on a cluster with images and a scheduler of its own."""

    reason: str
    message: str
    for_good: bool = False


@dataclass(eq=False)
class MemoryLearner:
    """One learner. The test starts and ends its process."""

    plan: LearnerPlan
    job: str
    attempt: int
    cluster: MemoryCluster
    spawned: bool = False
    active: bool = False
    runs: int = 0
    """How many times its process was started; more than once is a fault."""
    started: int | None = None
    exit: Exit | None = None
    stored: bool = False
    """Its helper has stored the results and ended."""
    reason: str = ""
    message: str = ""
    stop_cause: str = ""
    stop_grace_ms: int | None = None
    on_term: int | None = -int(signal.SIGTERM)
    """What SIGTERM does: an exit code, a negative signal number, or None: it is ignored."""
    is_ending: bool = False
    """The cluster ends it, with its grace."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def first_status(self) -> LearnerStatus:
        """What its helper reports first."""
        return LearnerStatus(
            name=self.name,
            role=self.plan.role,
            rank=self.plan.rank,
            attempt=self.attempt,
            seq=0,
            phase=Phase.WAITING,
            run=self.plan.run,
        )

    @property
    def state(self) -> str:
        if self.exit is not None:
            return "exited"
        if self.started is not None:
            return "running"
        if self.active and self.blocked is not None:
            return "starting"
        return "waiting" if self.active and not self.cluster.hides_activation else "inert"

    @property
    def blocked(self) -> Blocked | None:
        return self.cluster.blocked.get((self.name, self.attempt))

    def start(self) -> bool:
        """Starts its process unless it was stopped or has ended. Returns whether the process runs."""
        if self.state == "waiting" and not self.stop_cause:
            self.runs += 1
            self.started = self.cluster.now_ms()
            self.cluster.on_start(self)
            self.notify()
        return self.state == "running"

    def end(self, code: int | None = 0, *, by: int | None = None, lost: bool = False, oom: bool = False) -> None:
        """Ends its process: with a code, by a signal, or without a known end (``lost``). No effect if it has ended."""
        if self.exit is None:
            self.exit = Exit(
                time=self.cluster.now_ms(),
                code=None if by or lost else code,
                signal=by,
                lost=lost,
                oom=oom,
                stop_cause=self.stop_cause,
            )
            self.cluster.on_end(self)
            self.notify()

    def notify(self) -> None:
        """Sets ``changed`` and notifies the cluster's watchers."""
        self.changed.set()
        self.changed = asyncio.Event()
        self.cluster.notify(self.job)

    def observe(self) -> LearnerProcess:
        return LearnerProcess(
            name=self.name,
            attempt=self.attempt,
            state=self.state,
            run=min(self.runs, 1) * self.plan.run,
            planned_run=self.plan.run,
            pid=None if self.started is None else 1,
            started=self.started,
            exit=self.exit,
            stored=self.stored,
            reason=self.reason,
            message=self.message,
            is_ending=self.is_ending,
            node=self.plan.node,
            cpus=self.plan.cpus,
            memory=self.plan.memory,
            gpus=self.plan.gpus,
            blocked=self.blocked.reason if self.blocked else "",
            blocked_message=self.blocked.message if self.blocked else "",
            blocked_for_good=self.blocked is not None and self.blocked.for_good,
        )

    def stop(self, cause: str, grace_ms: int) -> None:
        """Sets the stop mark, then sends the signals. A weaker stop has no effect."""
        weaker = self.stop_grace_ms is not None and grace_ms >= self.stop_grace_ms
        if self.exit is not None or (weaker and (cause != "kill" or self.stop_cause == "kill")):
            return
        self.stop_cause, self.stop_grace_ms = cause, grace_ms
        if self.started is None:
            self.end(None, by=signal.SIGKILL if grace_ms == 0 else signal.SIGTERM)
        elif grace_ms == 0:
            self.end(None, by=signal.SIGKILL)
        elif self.on_term is None:
            asyncio.get_running_loop().call_later(grace_ms / 1000, partial(self.end, by=signal.SIGKILL))
        elif self.on_term < 0:
            self.end(None, by=-self.on_term)
        else:
            self.end(self.on_term)
        self.notify()


@dataclass
class _JobState:
    """The cluster's state of one job."""

    highest: tuple[int, int] = _NO_FENCE
    """(attempt, term): lower ones are refused."""
    sealed: tuple[int, int] = _NO_FENCE
    """(attempt, term): nothing is created under this pair or a lower one."""
    attempts: dict[int, dict[str, MemoryLearner]] = field(default_factory=dict)
    runs: dict[tuple[int, str], int] = field(default_factory=dict)
    """(attempt, learner) -> the last run that was made, also of one that has vanished."""

    def check_fence(self, attempt: int, term: int, *, creates: bool = False) -> None:
        """Records this pair. Raises StaleFence if it is superseded."""
        if (attempt, term) < self.highest or (creates and (attempt, term) <= self.sealed):
            raise StaleFence(f"attempt {attempt} under term {term} is over (seen: {max(self.highest, self.sealed)})")
        self.highest = (attempt, term)


class MemoryCluster:
    """See ``services.core.ports.cluster.Cluster``."""

    def __init__(self, nodes: Sequence[Node], *, now_ms: Callable[[], int]) -> None:
        self.nodes = list(nodes)
        self.now_ms = now_ms
        self.on_spawn: Callable[[MemoryLearner], None] = lambda _: None
        """Called for each new learner, while it is inert: a simulated helper starts then."""
        self.on_gone: Callable[[MemoryLearner], None] = lambda _: None
        """Called for each removed learner: its simulated helper is cancelled then."""
        self.on_start: Callable[[MemoryLearner], None] = lambda _: None
        """Called after a learner's process was started."""
        self.on_end: Callable[[MemoryLearner], None] = lambda _: None
        """Called after a learner's process ended, or was stopped before its start."""
        self.bind: Callable[[MemoryLearner], str] = lambda learner: learner.plan.node
        """Returns the node that the cluster's own scheduler takes for a learner, when the learner is activated."""
        self.done: list[tuple[str, AttemptPlan]] = []
        """The steps that were carried out, each with its plan."""
        self.blocked: dict[tuple[str, int], Blocked] = {}
        """(learner, attempt) -> what blocks it, in every job."""
        self.hides_activation = False
        """True: activated learners are still observed as inert."""
        self._jobs: dict[str, _JobState] = {}
        self.reads = 0
        """Observations that were not cached."""
        self.observations: dict[str, Observation] = {}
        """The last one of each job, until the cluster reports a change of it or a call changes something."""
        self.unprepared: dict[str, WeftError] = {}
        """Tenants that it cannot be made ready for."""
        self._refusals: list[tuple[str, int, str, WeftError]] = []
        self._gates: dict[str, asyncio.Event] = {}
        self._watchers: dict[asyncio.Queue[str], None] = {}  # ordered, so that simulations are deterministic
        self._away = False

    # --- for tests ---------------------------------------------------------------

    def go_away(self) -> None:
        self._away = True

    def come_back(self) -> None:
        self._away = False
        self.notify("")

    def refuse(self, step: str, error: WeftError, *, attempt: int, job: str = "") -> None:
        """Makes a step of an attempt raise ``error`` without an effect. ``job``: of this job only; empty: of any."""
        self._refusals.append((step, attempt, job, error))

    def hold(self, call: str) -> asyncio.Event:
        """Makes calls of do, observe, stop or teardown wait, before their effect, until the returned event is set."""
        return self._gates.setdefault(call, asyncio.Event())

    def learner(self, job_id: str, name: str = "worker-0", attempt: int | None = None) -> MemoryLearner:
        """Returns a learner of this attempt; None: of the newest one."""
        attempts = self._jobs[job_id].attempts
        return attempts[max(attempts) if attempt is None else attempt][name]

    def present(self) -> list[str]:
        """Returns the ids of jobs of which anything exists."""
        return sorted(job for job, state in self._jobs.items() if state.attempts)

    def learners(self, job_id: str) -> list[MemoryLearner]:
        """Returns the learners of all attempts."""
        attempts = self._jobs.get(job_id, _JobState()).attempts
        return [learner for attempt in sorted(attempts) for learner in attempts[attempt].values()]

    def drop(self, learner: MemoryLearner) -> None:
        """Removes a learner that was lost with its machine."""
        state = self._jobs[learner.job]
        attempts = state.attempts
        state.runs[learner.attempt, learner.name] = learner.plan.run
        del attempts[learner.attempt][learner.name]
        if not attempts[learner.attempt]:
            del attempts[learner.attempt]
        self.on_gone(learner)
        self.notify(learner.job)

    def notify(self, job_id: str) -> None:
        """Sends a job's id to all watchers; "" means any job."""
        if job_id:
            self.observations.pop(job_id, None)
        else:
            self.observations.clear()
        for queue in self._watchers:
            queue.put_nowait(job_id)

    # --- the port ------------------------------------------------------------------

    async def capacity(self) -> Sequence[Node]:
        await self._await_answer()
        return [replace(node) for node in self.nodes]

    async def prepare(self, tenant: str) -> None:
        """Nothing, but for tenants of ``unprepared``: this cluster needs no preparation."""
        if tenant in self.unprepared:
            raise self.unprepared[tenant]

    def steps(self) -> Sequence[str]:
        return STEPS

    async def do(self, step: str, plan: AttemptPlan) -> None:
        await self._await_answer("do")
        if step not in STEPS:
            raise InvalidRequest(f"there is no step '{step}'; there are: {', '.join(STEPS)}")
        self.observations.pop(plan.job, None)
        state = self._jobs.setdefault(plan.job, _JobState())
        state.check_fence(plan.attempt, plan.term, creates=True)
        for refused, attempt, job, error in self._refusals:
            if (refused, attempt, job or plan.job) == (step, plan.attempt, plan.job):
                raise error
        if step == "reserve":
            self._reserve(state, plan)
        elif plan.attempt not in state.attempts:
            raise InvalidRequest(f"attempt {plan.attempt} of job {plan.job} has not been reserved")
        if step == "learners":
            self._replace(state, plan)
        for learner in list(state.attempts[plan.attempt].values()):
            if step == "learners" and not learner.spawned:
                learner.spawned = True
                self.on_spawn(learner)
            elif step == "activate" and not learner.active:
                learner.active = True
                learner.plan = replace(learner.plan, node=self.bind(learner))
                learner.notify()
        self.done.append((step, plan))

    def _reserve(self, state: _JobState, plan: AttemptPlan) -> None:
        if plan.attempt not in state.attempts:
            state.attempts[plan.attempt] = {
                learner.name: MemoryLearner(learner, plan.job, plan.attempt, self) for learner in plan.learners
            }

    def _replace(self, state: _JobState, plan: AttemptPlan) -> None:
        """Replaces learners of a lower run. Each run is made once."""
        present = state.attempts[plan.attempt]
        for learner in plan.learners:
            before = present.get(learner.name)
            known = before.plan.run if before is not None else state.runs.get((plan.attempt, learner.name), 1)
            if learner.run <= known:
                continue
            if before is not None:
                before.stop("kill", 0)
                self.on_gone(before)
            state.runs[plan.attempt, learner.name] = learner.run
            present[learner.name] = MemoryLearner(learner, plan.job, plan.attempt, self)

    async def observe(self, job_id: str, *, cached: bool = False) -> Observation:
        if cached and job_id in self.observations:
            return self.observations[job_id]
        await self._await_answer("observe")
        self.reads += 1
        attempts = sorted(self._jobs.get(job_id, _JobState()).attempts)
        learners = [learner.observe() for learner in self.learners(job_id)]
        self.observations[job_id] = Observation(learners=learners, attempts=attempts)
        return self.observations[job_id]

    async def stop(self, job_id: str, *, attempt: int, term: int, generation: int, cause: str, grace_ms: int) -> None:
        await self._await_answer("stop")
        state = self._jobs.setdefault(job_id, _JobState())
        state.check_fence(attempt, term)
        for learner in list(state.attempts.get(attempt, {}).values()):
            learner.stop(cause, grace_ms)

    async def teardown(self, job_id: str, *, attempt: int, term: int) -> None:
        await self._await_answer("teardown")
        state = self._jobs.setdefault(job_id, _JobState())
        state.check_fence(attempt, term)
        state.sealed = max(state.sealed, (attempt, term))
        for number in [earlier for earlier in state.attempts if earlier <= attempt]:
            for learner in state.attempts.pop(number).values():
                learner.stop("kill", 0)
                self.on_gone(learner)
        self.notify(job_id)

    async def jobs(self, *, cached: bool = False) -> Sequence[str]:
        await self._await_answer()
        return self.present()

    async def watch(self) -> AsyncGenerator[str]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        queue.put_nowait("")
        self._watchers[queue] = None
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.pop(queue, None)

    async def ping(self) -> None:
        await self._await_answer()

    async def close(self) -> None: ...

    async def _await_answer(self, call: str = "") -> None:
        if call in self._gates:
            await self._gates[call].wait()
        if self._away:
            raise Unavailable("the cluster does not answer")
