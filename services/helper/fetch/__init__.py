"""Everything a learner needs before it starts: its code, its environment, its data, its checkpoints.

All of it runs in one thread beside the event loop, may be killed at any point and is done again from the start by the
next helper: each part is made beside its place and moved there whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from services.helper.alarm import Alarm
from services.helper.folder import Assignment, LearnerFolder
from services.helper.journal import note


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


class Fetch:
    """A fetching thread, begun."""

    def __init__(self, folder: LearnerFolder, assignment: Assignment) -> None:
        self._watched = Watched()
        self._outcome: Future[Fetched] = Future()
        self._over = Alarm()
        self._loop = asyncio.get_running_loop()
        # Not the loop's executor: at the end that would wait for a thread that nobody waits for.
        threading.Thread(target=self._run, args=(folder, assignment), name="fetch", daemon=True).start()

    @property
    def message(self) -> str:
        return self._watched.message

    def cancel(self) -> None:
        self._watched.cancel()

    async def done(self, timeout: float) -> bool:
        """Whether it has ended, in any way, at most so long from now."""
        await self._over.wait(timeout)
        return self._outcome.done()

    def result(self) -> Fetched:
        """Cannot, Cancelled."""
        return self._outcome.result()

    def _run(self, folder: LearnerFolder, assignment: Assignment) -> None:
        from services.helper.fetch.order import fetch_all  # noqa: PLC0415 - beside the import of gRPC, not before it

        try:
            self._outcome.set_result(fetch_all(folder, assignment, self._watched))
        except (Cannot, Cancelled) as ended:
            self._outcome.set_exception(ended)
        except Exception as error:  # noqa: BLE001 - a thread's edge; trying again would not make it better
            note("fetch.failed", why=traceback.format_exc())
            self._outcome.set_exception(Cannot("FetchFailed", f"fetching failed: {error}"))
        with contextlib.suppress(RuntimeError):  # the helper has ended meanwhile
            self._loop.call_soon_threadsafe(self._over.ring)
