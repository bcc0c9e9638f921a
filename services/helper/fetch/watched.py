"""What a fetching thread and those who wait for it say to each other: what is going on, stop, cannot, done."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class Cannot(Exception):
    """The learner can never start: a stable reason, and what to do, for its owner."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Cancelled(Exception):
    """The learner was stopped before it started."""


@dataclass(slots=True, kw_only=True)
class Fetched:
    """What ``prepared.json`` and the report say of it."""

    path: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    env_digest: str = ""
    data_digest: str = ""


class Watched:
    """What a fetching thread and the event loop tell each other."""

    def __init__(self) -> None:
        self.message = ""
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def say(self, message: str) -> None:
        """What is going on. Called between the steps of anything long, because it is here that a stop is noticed."""
        self.message = message
        self.check()

    def check(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled

    def wait(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise Cancelled

    async def objects_away(self, seconds: float, why: str) -> None:
        """Waits in a fetching thread's own loop, where nothing else goes on."""
        self.say(f"waiting: {why}")
        self.wait(seconds)
