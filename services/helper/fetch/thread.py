"""Fetching in one thread beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import traceback
from collections.abc import Mapping
from concurrent.futures import Future

from services.core.domain.startup import Fetching, Span
from services.core.runtime.learner_folder import Assignment, LearnerFolder
from services.core.runtime.outcomes import Outcome, outcome_of
from services.helper.fetch.progress import FetchCancelled, FetchFailed, FetchProgress, FetchResult
from services.helper.log import log_event
from services.helper.objects import UrlSigner
from services.helper.wakeup import Wakeup


class FetchThread:
    """Starts fetching when it is made, in a running event loop."""

    def __init__(self, folder: LearnerFolder, assignment: Assignment, signer: UrlSigner) -> None:
        self._progress = FetchProgress()
        self._outcome: Future[FetchResult] = Future()
        self._done = Wakeup()
        self._loop = asyncio.get_running_loop()
        # Not the loop's executor: closing the loop would wait for a thread whose result is not needed any more.
        threading.Thread(target=self._run, args=(folder, assignment, signer), name="fetch", daemon=True).start()

    @property
    def message(self) -> str:
        return self._progress.message

    @property
    def fetching(self) -> Fetching | None:
        """The current step; None between steps."""
        return self._progress.fetching

    @property
    def steps(self) -> Mapping[str, Span]:
        """When each step began and ended."""
        return self._progress.steps

    def cancel(self) -> None:
        self._progress.cancel()

    async def wait_done(self, timeout: float) -> bool:
        """Waits up to ``timeout`` seconds. Returns whether fetching has ended, in any way."""
        await self._done.wait(timeout)
        return self._outcome.done()

    def result(self) -> FetchResult:
        """Raises FetchFailed, FetchCancelled."""
        return self._outcome.result()

    def _run(self, folder: LearnerFolder, assignment: Assignment, signer: UrlSigner) -> None:
        def fetch() -> FetchResult:
            from services.helper.fetch.fetch_all import fetch_all  # noqa: PLC0415 - beside the import of gRPC

            return fetch_all(folder, assignment, signer, self._progress)

        outcome = outcome_of(fetch)
        if outcome.error is not None and not isinstance(outcome.error, (FetchFailed, FetchCancelled)):
            # Another try would fail in the same way.
            log_event("fetch.failed", why="".join(traceback.format_exception(outcome.error)))
            outcome = Outcome(None, FetchFailed("FetchFailed", f"fetching failed: {outcome.error}"))
        outcome.settle(self._outcome)
        with contextlib.suppress(RuntimeError):  # the helper has ended meanwhile
            self._loop.call_soon_threadsafe(self._done.set)
