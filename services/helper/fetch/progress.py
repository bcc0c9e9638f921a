"""What a fetching thread and the event loop exchange: the current activity, cancellation, failure, result."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class FetchFailed(Exception):
    """The learner can never start. ``reason`` is stable, ``message`` tells the job's owner what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class FetchCancelled(Exception):
    """The learner was stopped before it started."""


@dataclass(slots=True, kw_only=True)
class FetchResult:
    """The content of ``prepared.json``; the digests are in the report, too."""

    path: Sequence[str] = ()
    """Folders that come first in the learner's PATH."""
    env: Mapping[str, str] = field(default_factory=dict)
    env_digest: str = ""
    data_digest: str = ""


class FetchProgress:
    """Shared by the fetching thread, which reports and checks, and the event loop, which reads and cancels."""

    def __init__(self) -> None:
        self.message = ""
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def report(self, message: str) -> None:
        """Sets the current activity. Raises FetchCancelled after a stop: call it between the steps of long work."""
        self.message = message
        self.check()

    def check(self) -> None:
        """Raises FetchCancelled after a stop."""
        if self._cancelled.is_set():
            raise FetchCancelled

    def wait(self, seconds: float) -> None:
        """Sleeps. Raises FetchCancelled as soon as the learner is stopped."""
        if self._cancelled.wait(seconds):
            raise FetchCancelled

    async def wait_for_objects(self, seconds: float, why: str) -> None:
        """Waits for the object store, in a fetching thread's own event loop, which has no other task."""
        self.report(f"waiting: {why}")
        self.wait(seconds)
