"""Fetching in one thread beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import traceback
from concurrent.futures import Future

from services.helper.fetch.watched import Cancelled, Cannot, Fetched, Watched
from services.helper.folder import Assignment, LearnerFolder
from services.helper.journal import note
from services.helper.objects import Urls
from services.helper.wakeup import Wakeup


class Fetch:
    """A fetching thread, begun."""

    def __init__(self, folder: LearnerFolder, assignment: Assignment, urls: Urls) -> None:
        self._watched = Watched()
        self._outcome: Future[Fetched] = Future()
        self._over = Wakeup()
        self._loop = asyncio.get_running_loop()
        # Not the loop's executor: at the end that would wait for a thread that nobody waits for.
        threading.Thread(target=self._run, args=(folder, assignment, urls), name="fetch", daemon=True).start()

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

    def _run(self, folder: LearnerFolder, assignment: Assignment, urls: Urls) -> None:
        from services.helper.fetch.order import fetch_all  # noqa: PLC0415 - beside the import of gRPC, not before it

        try:
            self._outcome.set_result(fetch_all(folder, assignment, urls, self._watched))
        except (Cannot, Cancelled) as ended:
            self._outcome.set_exception(ended)
        except Exception as error:  # noqa: BLE001 - a thread's edge; trying again would not make it better
            note("fetch.failed", why=traceback.format_exc())
            self._outcome.set_exception(Cannot("FetchFailed", f"fetching failed: {error}"))
        with contextlib.suppress(RuntimeError):  # the helper has ended meanwhile
            self._loop.call_soon_threadsafe(self._over.ring)
