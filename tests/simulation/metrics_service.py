"""The part of the metrics service that the control plane rests on, on a wire of its own: real Attempts and Reports.

It says who may go, and carries helpers' reports to etcd. It can be away, die, be paused and be cut off from etcd; the
one that starts anew knows only what etcd tells it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from services.core.domain.errors import Unavailable, WeftError
from services.core.domain.learner import LearnerStatus
from services.core.domain.tokens import LearnerIdentity
from services.metrics.attempts import Attempts
from services.metrics.reports import Reports
from tests.simulation.stores import Etcd
from tests.simulation.wire import Wire
from tests.testbed.memory.cluster import MemoryLearner

_TIMEOUT_S: Final = 1.0
_RESTART_S: Final = 0.5


class MetricsService:
    """``start`` it inside the loop."""

    def __init__(self, etcd: Etcd, wire: Callable[[str], Wire]) -> None:
        self._etcd, self._new_wire = etcd, wire
        self.away = False
        self._born = 0
        self._follower: asyncio.Task[None] | None = None
        self.start()

    def start(self) -> None:
        self._born += 1
        self.wire = self._new_wire(f"metrics#{self._born}")
        store = self.wire.wrap(self._etcd, "status")
        self._attempts = Attempts(store)
        self._reports = Reports(store, self._attempts)
        self._follower = asyncio.create_task(self._follow(self._attempts))

    async def _follow(self, attempts: Attempts) -> None:
        while True:
            await attempts.follow()

    def crash(self) -> None:
        """Whoever waits for its answer waits in vain."""
        self.wire.dead.set()
        self.wire.running.set()
        if self._follower is not None:
            self._follower.cancel()
        self.start()

    async def close(self) -> None:
        self.wire.dead.set()
        self.wire.running.set()
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait({self._follower})

    async def report(self, learner: MemoryLearner, status: LearnerStatus) -> None:
        """Once it was heard. Unavailable."""
        await self._answer(self._reports.write(_who(learner), status))

    async def go(self, learner: MemoryLearner) -> bool:
        """Whether its process may start. Unavailable."""
        current, go = await self._answer(self._attempts.may_go(_who(learner)))
        return bool(current and go)

    async def _answer(self, work: Coroutine[Any, Any, Any]) -> Any:
        """As over the network: its death, or its silence, is an answer that does not come."""
        if self.away:
            work.close()
            raise Unavailable("metrics does not answer")
        task = asyncio.create_task(work)
        task.add_done_callback(_ignored)
        await asyncio.wait({task}, timeout=_TIMEOUT_S)
        if not task.done() or task.cancelled():
            raise Unavailable("metrics does not answer")
        return task.result()


def _ignored(task: asyncio.Task[Any]) -> None:
    """Perhaps nobody hears the answer any more; a fault of ours is none all the same."""
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, WeftError):
        raise error


def _who(learner: MemoryLearner) -> LearnerIdentity:
    plan = learner.plan
    return LearnerIdentity(learner.job, "acme", learner.attempt, plan.role, plan.rank, plan.name)
