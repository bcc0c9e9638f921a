"""What a fetching thread and the event loop exchange: the step, how far it is, cancellation, failure, result."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from services.core.domain.startup import Fetching, Span, Step


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
        self.steps: Mapping[str, Span] = {}
        """When each step began and ended; replaced as a whole by each change."""
        self.fetching: Fetching | None = None
        """The current step; None between steps."""
        self._cancelled = threading.Event()

    @contextmanager
    def step(self, step: Step, message: str) -> Generator[None]:
        """The context is this step of the start-up, which ends with it unless it fails."""
        began = _now_ms()
        self.steps = {**self.steps, step: Span(began=began)}
        self.fetching = Fetching(step, began, message)
        self.message = message
        yield
        self.steps = {**self.steps, step: Span(began=began, ended=_now_ms())}
        self.fetching = None

    def cancel(self) -> None:
        self._cancelled.set()

    def report(self, message: str) -> None:
        """Sets the current activity. Raises FetchCancelled after a stop: call it between the steps of long work."""
        self.message = message
        if self.fetching is not None:
            self.fetching = self.fetching._replace(message=message, done=None, total=None)
        self.check()

    def report_bytes(self, done: int, total: int | None) -> None:
        """Sets how far the current activity is. ``total``: None for unknown. Raises FetchCancelled after a stop."""
        if self.fetching is not None:
            self.fetching = self.fetching._replace(done=done, total=total)
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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
