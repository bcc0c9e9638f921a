"""Cluster in memory, for tests of use cases and for simulations: the node agent's rules, and failures on demand.

Nothing runs here: whoever holds a ``MemoryLearner`` says when its process starts and how it ends; only a stop ends one
by itself, as SIGTERM and SIGKILL would. Fences are those of the node agent: a pair (attempt, term) lower than the
highest seen is refused, and after a teardown the pair itself makes nothing anew.

``go_away``/``come_back``: the cluster does not answer. ``refuse``: it says no to a step. ``hold``: it takes its time.
``drop``: a machine is lost with all that was on it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from services.core.domain.errors import InvalidRequest, StaleFence, Unavailable, WeftError
from services.core.domain.learner import Exit
from services.core.domain.plan import AttemptPlan, LearnerPlan
from services.core.ports.cluster import LearnerProcess, Node, Observation

STEPS: Final = ("reserve", "learners", "activate")
_NOBODY: Final = (0, 0)


@dataclass(eq=False)
class MemoryLearner:
    """A handle: what a test lets happen to one learner."""

    plan: LearnerPlan
    job: str
    attempt: int
    cluster: MemoryCluster
    spawned: bool = False
    active: bool = False
    runs: int = 0
    """How many times its process was started: more than once is somebody's fault."""
    started: int | None = None
    exit: Exit | None = None
    stored: bool = False
    """Its helper's last act."""
    reason: str = ""
    message: str = ""
    stop_cause: str = ""
    stop_grace_ms: int | None = None
    on_term: int | None = -int(signal.SIGTERM)
    """How it answers SIGTERM: an exit code, minus a signal, or None: not at all."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def state(self) -> str:
        if self.exit is not None:
            return "exited"
        if self.started is not None:
            return "running"
        return "waiting" if self.active and not self.cluster.lags else "inert"

    def start(self) -> bool:
        """Its process runs, unless it was told to stop or has ended. Whether it runs now."""
        if self.state == "waiting" and not self.stop_cause:
            self.runs += 1
            self.started = self.cluster.now_ms()
            self.cluster.on_start(self)
            self.tell()
        return self.state == "running"

    def end(self, code: int | None = 0, *, by: int | None = None, lost: bool = False, oom: bool = False) -> None:
        """Its process ended: with a code, by a signal, or nobody knows how (``lost``). One that has ended stays so."""
        if self.exit is None:
            self.exit = Exit(
                time=self.cluster.now_ms(), code=None if by or lost else code, signal=by, lost=lost, oom=oom,
                stop_cause=self.stop_cause,
            )  # fmt: skip
            self.cluster.on_end(self)
            self.tell()

    def tell(self) -> None:
        """Wakes whoever waits for a change of this learner, and the cluster's watchers."""
        self.changed.set()
        self.changed = asyncio.Event()
        self.cluster.say(self.job)

    def observe(self) -> LearnerProcess:
        return LearnerProcess(
            name=self.name, attempt=self.attempt, state=self.state, run=min(self.runs, 1),
            pid=None if self.started is None else 1, started=self.started, exit=self.exit, stored=self.stored,
            reason=self.reason, message=self.message, node=self.plan.node, cpus=self.plan.cpus,
            memory=self.plan.memory, gpus=self.plan.gpus,
        )  # fmt: skip

    def stop(self, cause: str, grace_ms: int) -> None:
        """The stop mark, then the signals. A weaker mark changes nothing."""
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
        self.tell()


@dataclass
class _Place:
    """What the cluster knows of one job."""

    highest: tuple[int, int] = _NOBODY
    """(attempt, term): lower ones are refused."""
    sealed: tuple[int, int] = _NOBODY
    """Up to here nothing is made any more."""
    attempts: dict[int, dict[str, MemoryLearner]] = field(default_factory=dict)

    def pass_(self, attempt: int, term: int, *, makes: bool = False) -> None:
        if (attempt, term) < self.highest or (makes and (attempt, term) <= self.sealed):
            raise StaleFence(f"attempt {attempt} under term {term} is over (seen: {max(self.highest, self.sealed)})")
        self.highest = (attempt, term)


class MemoryCluster:
    """See ``services.core.ports.cluster.Cluster``."""

    def __init__(self, nodes: Sequence[Node], *, now_ms: Callable[[], int]) -> None:
        self.nodes = list(nodes)
        self.now_ms = now_ms
        self.on_spawn: Callable[[MemoryLearner], None] = lambda _: None
        """Called for each learner that comes to life, inert still: where a simulated helper begins."""
        self.on_gone: Callable[[MemoryLearner], None] = lambda _: None
        """Called for each learner that is removed: where its helper ends, whatever it is at."""
        self.on_start: Callable[[MemoryLearner], None] = lambda _: None
        """Called just after a learner's process was started."""
        self.on_end: Callable[[MemoryLearner], None] = lambda _: None
        """Called just after it ended, or will never be started."""
        self.done: list[tuple[str, AttemptPlan]] = []
        """Every step that was carried out, with its plan: who did what."""
        self.lags = False
        """Learners that were let go are still shown as inert."""
        self._places: dict[str, _Place] = {}
        self._refusals: list[tuple[str, int, str, WeftError]] = []
        self._gates: dict[str, asyncio.Event] = {}
        self._watchers: dict[asyncio.Queue[str], None] = {}  # in order: a simulation's runs are all the same
        self._away = False

    # --- what a test does --------------------------------------------------------

    def go_away(self) -> None:
        self._away = True

    def come_back(self) -> None:
        self._away = False
        self.say("")

    def refuse(self, step: str, error: WeftError, *, attempt: int, job: str = "") -> None:
        """This step of that attempt, of a job or of any, is answered with the error and has no effect."""
        self._refusals.append((step, attempt, job, error))

    def hold(self, call: str) -> asyncio.Event:
        """From now on this call (do, observe, stop, teardown) has no effect before the event is set."""
        return self._gates.setdefault(call, asyncio.Event())

    def learner(self, job_id: str, name: str = "worker-0", attempt: int | None = None) -> MemoryLearner:
        """Of the newest attempt, unless said otherwise."""
        attempts = self._places[job_id].attempts
        return attempts[max(attempts) if attempt is None else attempt][name]

    def present(self) -> list[str]:
        """Jobs of which anything exists here."""
        return sorted(job for job, place in self._places.items() if place.attempts)

    def learners(self, job_id: str) -> list[MemoryLearner]:
        """All there are, of any attempt."""
        place = self._places.get(job_id, _Place())
        return [one for attempt in sorted(place.attempts) for one in place.attempts[attempt].values()]

    def drop(self, learner: MemoryLearner) -> None:
        """It is gone with its machine: the cluster shows it no more."""
        attempts = self._places[learner.job].attempts
        del attempts[learner.attempt][learner.name]
        if not attempts[learner.attempt]:
            del attempts[learner.attempt]
        self.on_gone(learner)
        self.say(learner.job)

    def say(self, job_id: str) -> None:
        """To all watchers."""
        for queue in self._watchers:
            queue.put_nowait(job_id)

    # --- the port ------------------------------------------------------------------

    async def capacity(self) -> Sequence[Node]:
        await self._answer()
        return [replace(node) for node in self.nodes]

    def steps(self) -> Sequence[str]:
        return STEPS

    async def do(self, step: str, plan: AttemptPlan) -> None:
        await self._answer("do")
        if step not in STEPS:
            raise InvalidRequest(f"there is no step '{step}'; there are: {', '.join(STEPS)}")
        place = self._places.setdefault(plan.job, _Place())
        place.pass_(plan.attempt, plan.term, makes=True)
        for refused, attempt, job, error in self._refusals:
            if (refused, attempt, job or plan.job) == (step, plan.attempt, plan.job):
                raise error
        if step == "reserve":
            self._reserve(place, plan)
        elif plan.attempt not in place.attempts:
            raise InvalidRequest(f"attempt {plan.attempt} of job {plan.job} has not been reserved")
        for learner in list(place.attempts[plan.attempt].values()):
            if step == "learners" and not learner.spawned:
                learner.spawned = True
                self.on_spawn(learner)
            elif step == "activate" and not learner.active:
                learner.active = True
                learner.tell()
        self.done.append((step, plan))

    def _reserve(self, place: _Place, plan: AttemptPlan) -> None:
        if plan.attempt not in place.attempts:
            place.attempts[plan.attempt] = {
                one.name: MemoryLearner(one, plan.job, plan.attempt, self) for one in plan.learners
            }

    async def observe(self, job_id: str) -> Observation:
        await self._answer("observe")
        found = self._places.get(job_id, _Place()).attempts
        return Observation(learners=[one.observe() for one in self.learners(job_id)], attempts=sorted(found))

    async def stop(self, job_id: str, *, attempt: int, term: int, generation: int, cause: str, grace_ms: int) -> None:
        await self._answer("stop")
        place = self._places.setdefault(job_id, _Place())
        place.pass_(attempt, term)
        for learner in list(place.attempts.get(attempt, {}).values()):
            learner.stop(cause, grace_ms)

    async def teardown(self, job_id: str, *, attempt: int, term: int) -> None:
        await self._answer("teardown")
        place = self._places.setdefault(job_id, _Place())
        place.pass_(attempt, term)
        place.sealed = max(place.sealed, (attempt, term))
        for number in [one for one in place.attempts if one <= attempt]:
            for learner in place.attempts.pop(number).values():
                learner.stop("kill", 0)
                self.on_gone(learner)
        self.say(job_id)

    async def jobs(self) -> Sequence[str]:
        await self._answer()
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
        await self._answer()

    async def close(self) -> None: ...

    async def _answer(self, call: str = "") -> None:
        if call in self._gates:
            await self._gates[call].wait()
        if self._away:
            raise Unavailable("the cluster does not answer")
