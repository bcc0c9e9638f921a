"""Ends learners that listen on a port which another gang of this machine was given.

Learners share the machine's network. A gang's port is held by a shim until its learner starts
(``services.node.shim_child.hold_port``), so another one can take it only in the moment between, on purpose. It would
get the connections of the gang's other learners. The kernel says which user listens, so this works where each job has
a user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from services.core.runtime.edges import log_unexpected
from services.core.runtime.socket_owners import Listener, listeners
from services.node.instrumentation import Instrumentation
from services.node.learner import Learner
from services.node.learner_disk import end_with_reason, is_running

_EVERY_S: Final = 1.0
log = structlog.get_logger()


def trespassers(learners: Iterable[Learner], listening: Iterable[Listener]) -> list[tuple[Learner, int]]:
    """(learner, port) for each running learner whose user listens on a port of another user's gang: pure."""
    running = list(learners)
    owners = {port: learner.document.uid for learner in running for port in learner.document.ports.values()}
    taken = {
        listener.uid: listener.port for listener in listening if owners.get(listener.port, listener.uid) != listener.uid
    }
    return [(learner, taken[uid]) for learner in running if (uid := learner.document.uid) in taken]


class PortWatch:
    """``learners`` returns those of this machine. For agents whose learners have users of their own."""

    def __init__(self, instrumentation: Instrumentation, learners: Callable[[], Iterable[Learner]]) -> None:
        self._instrumentation = instrumentation
        self._learners = learners

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            with log_unexpected("ports.watch_failed"):
                if any(learner.document.ports for learner in self._learners()):
                    await asyncio.to_thread(self._look)
            await asyncio.sleep(_EVERY_S)

    def _look(self) -> None:
        present = [learner for learner in self._learners() if not learner.ended]
        for learner, port in trespassers(present, listeners()):
            if is_running(learner):
                why = f"it listens on port {port}, which the platform gave to another job"
                if end_with_reason(learner, {"port_taken": why}):
                    self._instrumentation.ports_taken.inc()
                    log.warning("learner.port_taken", job=learner.job, learner=learner.name, port=port)
