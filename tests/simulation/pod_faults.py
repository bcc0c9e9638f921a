"""The faults of the simulation on Kubernetes: those of every cluster, and those of an API server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp

from services.core.domain.status import Desired
from tests.simulation.faults import KINDS, PLACES, FaultInjector

_NONE_HERE: Final = {"report forged"}
"""In a pod the helper's report is the only record of an end until its containers have ended (docs/adr/0019)."""
_API_KINDS: Final = (
    "API server: 429",
    "API server: 500",
    "API server: 504 after commit",
    "API server: slow",
    "stop of pods that start",
    "watch cut",
    "watch late",
    "watch expired",
)
POD_KINDS: Final = (*(kind for kind in KINDS if kind not in _NONE_HERE), *_API_KINDS)
"""The kinds as they are counted."""


class PodFaultInjector(FaultInjector):
    """Injects faults into a platform whose learners are pods."""

    def kinds(self) -> dict[str, Callable[[], Awaitable[None] | None]]:
        every = {kind: inject for kind, inject in super().kinds().items() if kind not in _NONE_HERE}
        return every | {
            "API server fails": self.api_server_fails,
            "API server fails often": lambda: self.api_server_fails(share=0.5),
            "two guardians at the gates": self.two_at_the_gates,
            "late deletion": self.late_deletion,
            "stop of pods that start": self.stop_of_starting_pods,
            "watches cut": self.watches_cut,
            "watches late": self.watches_late,
            "watches expired": self.watches_expired,
        }

    @property
    def _kubernetes(self) -> Any:
        return self._platform

    def api_server_fails(self, share: float = 0.2) -> None:
        """A share of all requests fails for a while, before or after they have taken effect."""
        trouble = self._kubernetes.trouble
        trouble.share = share
        self.later(self._chance.uniform(2, 8), lambda: setattr(trouble, "share", 0.0))

    def two_at_the_gates(self) -> None:
        """Pauses one Guardian before it lifts a gate, and the one that takes over before its activation."""
        alive = [name for name in PLACES if name[0] == "guardian" and name in self._platform.alive]
        self._chance.shuffle(alive)
        self._submit()
        for name, call, seconds in zip(alive, ("cluster.lift", "cluster.activate"), (5.0, 6.0), strict=False):
            self._platform.connection_of(name).pause_at = (call, self._chance.uniform(seconds - 0.5, seconds))

    def late_deletion(self) -> None:
        """The next deletion takes effect after its repetition did, and learners fail: some are replaced."""
        for name in PLACES:
            if name[0] == "guardian" and name in self._platform.alive:
                seconds = self._chance.uniform(2, 5)
                self._platform.connection_of(name).armed["late effect"] = ("cluster.delete", seconds)
        running = [learner for learner in self._platform.simulator.learners() if learner.state == "running"]
        for learner in running:
            self._platform.checker.ends_by_itself(learner, 1, lost=False)
            learner.end(1)

    def stop_of_starting_pods(self) -> None:
        """An owner halts or kills a job whose pods are activated and do not run yet."""
        self._submit()
        self._kubernetes.simulated_cluster.on_next_bound = self._request_stop

    def _request_stop(self, job: str) -> None:
        desired = self._chance.choice([Desired.HALT, Desired.HALT, Desired.KILL])
        self.later(0.01, lambda: self._platform.request_desired(job, desired))
        self.count("stop of pods that start", job)

    def watches_cut(self) -> None:
        """All watches break off."""
        self._break_watches("watch cut")

    def watches_expired(self) -> None:
        """The server forgets its history, and all watches break off: they cannot be resumed."""
        self._kubernetes.simulated_cluster.server.compact()
        self._break_watches("watch expired")

    def _break_watches(self, kind: str) -> None:
        for watch in self._kubernetes.simulated_cluster.server.watches:
            watch.queue.put_nowait(aiohttp.ClientPayloadError("the connection was cut"))
            self.count(kind, watch.collection)

    def watches_late(self) -> None:
        """Events come seconds late."""
        trouble = self._kubernetes.trouble
        trouble.watch_delay_s = self._chance.uniform(0.2, 2)
        self.count("watch late")
        self.later(self._chance.uniform(2, 8), lambda: setattr(trouble, "watch_delay_s", 0.0))
