"""Ends learners that listen on a port of the platform, or on one which another gang of this machine was given.

Learners share the machine's network. A gang's port is held by a shim until its learner starts
(``services.node.shim_child.hold_port``), so another one can take it only in the moment between, on purpose. It would
get the connections of the gang's other learners. A port of a service (TLS) can be taken while that service restarts,
which then cannot start. The kernel says which user listens, so this works where each job has a user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

import structlog

from services.core.domain.errors import Unavailable
from services.core.runtime.address import Address
from services.core.runtime.edges import log_unexpected
from services.core.runtime.home import Home
from services.core.runtime.socket_owners import Listener, listeners
from services.node.instrumentation import Instrumentation
from services.node.learner import Learner
from services.node.learner_disk import end_with_reason, is_running

_EVERY_S: Final = 1.0
_THIS_MACHINE: Final = frozenset({"127.0.0.1", "::1", "localhost", "0.0.0.0", "::"})  # noqa: S104 - compared only
_NO_LEARNER: Final = -1
"""In the place of a user id."""
log = structlog.get_logger()


def trespassers(
    learners: Iterable[Learner], listening: Iterable[Listener], platform: Collection[int]
) -> list[tuple[Learner, int]]:
    """(learner, port) for each running learner whose user listens on a port that is not its gang's: pure.

    platform: the ports of the services.
    """
    running = list(learners)
    owners = dict.fromkeys(platform, _NO_LEARNER)
    owners |= {port: learner.document.uid for learner in running for port in learner.document.ports.values()}
    taken = {
        listener.uid: listener.port for listener in listening if owners.get(listener.port, listener.uid) != listener.uid
    }
    return [(learner, taken[uid]) for learner in running if (uid := learner.document.uid) in taken]


def ports_of_platform(home: Home) -> set[int]:
    """The ports of this machine at which the services are reached. Empty where they are on other machines."""
    try:
        addresses = [Address(text) for text in home.addresses().values()]
    except Unavailable:
        return set()
    places = [address.host_port for address in addresses if address.socket is None]
    return {port for host, port in places if host in _THIS_MACHINE}


class PortWatch:
    """``learners`` returns those of this machine. For agents whose learners have users of their own."""

    def __init__(self, home: Home, instrumentation: Instrumentation, learners: Callable[[], Iterable[Learner]]) -> None:
        self._home = home
        self._instrumentation = instrumentation
        self._learners = learners

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            with log_unexpected("ports.watch_failed"):
                if any(not learner.ended for learner in self._learners()):
                    await asyncio.to_thread(self._observe)
            await asyncio.sleep(_EVERY_S)

    def _observe(self) -> None:
        present = [learner for learner in self._learners() if not learner.ended]
        of_platform = ports_of_platform(self._home)
        for learner, port in trespassers(present, listeners(), of_platform):
            if is_running(learner):
                owner = "belongs to the platform" if port in of_platform else "the platform gave to another job"
                if end_with_reason(learner, {"port_taken": f"it listens on port {port}, which {owner}"}):
                    self._instrumentation.ports_taken.inc()
                    log.warning("learner.port_taken", job=learner.job, learner=learner.name, port=port)
