"""The life-cycle manager's periodic tasks beside dispatching: they find what lost hints missed.

They are not run by Celery's beat, which dies with the broker. A task goes on after every error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

import structlog

from services.core.domain.errors import WeftError
from services.core.runtime.edges import log_unexpected
from services.core.runtime.timers import aligned_pause
from services.lcm.collector import Collector
from services.lcm.dispatcher import Dispatcher
from services.lcm.erasure import Eraser
from services.lcm.guardian_jobs import GuardianJobs
from services.lcm.history import copy_histories
from services.lcm.settings import LcmSettings
from services.lcm.wiring import LcmPorts

_DOCUMENTS: Final = 50
"""Documents of a page of the search for unreadable ones: a few milliseconds."""
_PAGES: Final = 5
"""Pages between two pauses, however many documents there are: a million old jobs cost no more than a thousand."""
log = structlog.get_logger()


class BackgroundTasks:
    """Each public method runs until its task is cancelled."""

    def __init__(self, ports: LcmPorts, settings: LcmSettings, dispatcher: Dispatcher, collector: Collector) -> None:
        self._ports, self._settings, self._dispatcher, self._collector = ports, settings, dispatcher, collector
        self._at_end = True

    def loops(self, guardians: GuardianJobs | None) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """All of them but the erasure, to be started. ``guardians``: None where a pool guards all jobs."""
        loops: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self.copy_histories,
            self.collect,
            self.watch_cluster,
            self.watch_wakes,
            self.find_unreadable,
        ]
        return loops if guardians is None else [*loops, partial(self.keep_guardians, guardians)]

    async def copy_histories(self) -> None:
        """Copies events to the history collection every ``sweep_s``."""
        await self._repeat(self._settings.sweep_s, self._copy_histories)

    async def collect(self) -> None:
        """Removes leftovers every ``collect_s`` while this process leads."""
        await self._repeat(self._settings.collect_s, self._collect)

    async def keep_guardians(self, guardians: GuardianJobs) -> None:
        """Keeps a Guardian for each job that holds hardware every ``sweep_s``, while this process leads."""

        async def keep_guardians() -> None:
            if self._dispatcher.term:
                await guardians.reconcile(self._dispatcher.term)

        await self._repeat(self._settings.sweep_s, keep_guardians)

    async def find_unreadable(self) -> None:
        """Reads all documents in turns: up to ``_PAGES`` pages, one each ``sweep_s``, then a pause of ``quarantine_s``.

        Each turn continues where the last one ended, and begins again after the end.
        """
        while True:
            self._at_end, pages = False, 0
            while not self._at_end and pages < _PAGES:
                pages += 1
                if not await self._run(self._find_unreadable):
                    break
                await self._ports.clock.sleep(self._settings.sweep_s)
            await self._ports.clock.sleep(self._settings.quarantine_s)

    async def watch_cluster(self) -> None:
        """Wakes the dispatcher when the cluster's capacity may have changed.

        Events of single learners are ignored: hardware becomes free by a release, which sends a hint of its own.
        """
        await self._repeat(self._settings.sweep_s, self._watch_cluster)

    async def watch_wakes(self) -> None:
        """Wakes the dispatcher by hints that other life-cycle managers got."""
        await self._repeat(self._settings.sweep_s, self._dispatcher.watch_wakes)

    async def erase(self, eraser: Eraser) -> None:
        """Erases the data of deleted jobs every ``sweep_s``, and then code, while this process leads."""

        async def erase() -> None:
            term = self._dispatcher.term
            if term:
                await eraser.erase_jobs()
                await eraser.remove_code(term)

        await self._repeat(self._settings.sweep_s, erase)

    async def mark_unnamed_code(self, eraser: Eraser) -> None:
        """Searches for code that no job names every ``unnamed_code_s``, while this process leads."""

        async def mark_unnamed_code() -> None:
            if self._dispatcher.term:
                await eraser.mark_unnamed_code()

        await self._repeat(self._settings.unnamed_code_s, mark_unnamed_code)

    async def _copy_histories(self) -> None:
        await copy_histories(self._ports.jobs, limit=self._settings.history_batch)

    async def _collect(self) -> None:
        if self._dispatcher.term:
            await self._collector.collect(self._dispatcher.term)

    async def _watch_cluster(self) -> None:
        async for job_id in self._ports.cluster.watch():
            if not job_id:
                self._dispatcher.wake()

    async def _find_unreadable(self) -> None:
        self._at_end = await self._dispatcher.unreadable.check(limit=_DOCUMENTS)

    async def _repeat(self, seconds: float, task: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._run(task)
            await self._ports.clock.sleep(aligned_pause(seconds))

    async def _run(self, task: Callable[[], Awaitable[None]]) -> bool:
        """Runs the task once. Returns whether it succeeded."""
        try:
            with log_unexpected("background.failed", expected=WeftError, task=task.__name__) as edge:
                await task()
        except WeftError as error:
            log.warning("background.interrupted", task=task.__name__, why=str(error))
            return False
        return not edge.failed
