"""The part of the metrics service that the control plane depends on: the real Attempts and Reports.

It answers helpers whether their learners may start, and writes their reports to etcd. It can be away, crash, be paused
and be cut off from etcd. After a restart it knows only what is in etcd.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from services.core.domain.errors import Unavailable, WeftError
from services.core.domain.learner import LearnerStatus
from services.core.domain.tokens import LearnerIdentity
from services.metrics.attempts import Attempts, Stop
from services.metrics.reports import Reports
from tests.simulation.network import Connection
from tests.simulation.stores import SimulatedEtcd
from tests.testbed.memory.cluster import MemoryLearner

_TIMEOUT_S: Final = 1.0


class MetricsService:
    """Create it in the event loop; it starts at once."""

    def __init__(self, etcd: SimulatedEtcd, new_connection: Callable[[str], Connection]) -> None:
        self._etcd, self._new_connection = etcd, new_connection
        self.away = False
        self._starts = 0
        self._follower: asyncio.Task[None] | None = None
        self.start()

    def start(self) -> None:
        self._starts += 1
        self.connection = self._new_connection(f"metrics#{self._starts}")
        store = self.connection.wrap(self._etcd, "status")
        self._attempts = Attempts(store)
        self._reports = Reports(store, self._attempts)
        self._follower = asyncio.create_task(self._follow(self._attempts))

    async def _follow(self, attempts: Attempts) -> None:
        while True:
            await attempts.follow()

    def crash(self) -> None:
        """Kills the process and starts another. Calls under way are not answered."""
        self.connection.dead.set()
        self.connection.running.set()
        if self._follower is not None:
            self._follower.cancel()
        self.start()

    async def close(self) -> None:
        self.connection.dead.set()
        self.connection.running.set()
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait({self._follower})

    async def report(self, learner: MemoryLearner, status: LearnerStatus) -> None:
        """Returns when the report is written. Raises Unavailable."""
        await self._answer(self._reports.write(_identity(learner), status))

    async def go(self, learner: MemoryLearner) -> bool:
        """Whether the learner's process may start: the answer has no stop in it either. Raises Unavailable."""
        current, go = await self._answer(self._attempts.may_go(_identity(learner)))
        return bool(current and go) and self._attempts.stop(_identity(learner)) is None

    def stop_of(self, learner: MemoryLearner) -> Stop | None:
        """The stop that the service relays to the learner's helper; None without one, or without an answer."""
        answers = not self.away and self.connection.running.is_set()
        return self._attempts.stop(_identity(learner)) if answers else None

    async def _answer(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs a request with a timeout, as over the network: a crash or pause is an answer that does not come."""
        if self.away:
            work.close()
            raise Unavailable("metrics does not answer")
        task = asyncio.create_task(work)
        task.add_done_callback(_raise_unexpected_error)
        await asyncio.wait({task}, timeout=_TIMEOUT_S)
        if not task.done() or task.cancelled():
            raise Unavailable("metrics does not answer")
        return task.result()


def _raise_unexpected_error(task: asyncio.Task[Any]) -> None:
    """Raises an error that is no WeftError, also where the caller has given up."""
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, WeftError):
        raise error


def _identity(learner: MemoryLearner) -> LearnerIdentity:
    plan = learner.plan
    return LearnerIdentity(learner.job, "acme", learner.attempt, plan.role, plan.rank, plan.name)
