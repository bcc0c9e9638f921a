"""What the life-cycle manager does besides dispatching, each at its own pace: the timers behind the hints.

(Not Celery's beat: it dies with the broker.) A chore outlives every error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from services.core.domain.errors import WeftError
from services.lcm.collector import Collector
from services.lcm.dispatcher import Dispatcher
from services.lcm.history import copy_histories
from services.lcm.settings import LcmSettings
from services.lcm.wiring import LcmPorts

_LOOKED_AT: Final = 200
"""Documents in one look: about a hundredth of a core while a large store is looked through."""
log = structlog.get_logger()


class BackgroundTasks:
    """Each method runs for ever; cancel its task."""

    def __init__(self, ports: LcmPorts, settings: LcmSettings, dispatcher: Dispatcher, collector: Collector) -> None:
        self._ports, self._settings, self._dispatcher, self._collector = ports, settings, dispatcher, collector
        self._through = True

    async def copy_histories(self) -> None:
        await self._every(self._settings.sweep_s, self._copy_histories)

    async def collect(self) -> None:
        await self._every(self._settings.collect_s, self._collect)

    async def look_for_unreadable(self) -> None:
        """All documents, a few at a time; once through, again after a while."""
        while True:
            self._through = True
            await self._once(self._look_for_unreadable)
            await self._ports.clock.sleep(self._settings.quarantine_s if self._through else self._settings.sweep_s)

    async def watch_cluster(self) -> None:
        """Learners coming and going free nothing (a release does, and says so); capacity that comes back does."""
        await self._every(self._settings.sweep_s, self._watch_cluster)

    async def _copy_histories(self) -> None:
        await copy_histories(self._ports.jobs, limit=self._settings.history_batch)

    async def _collect(self) -> None:
        if self._dispatcher.term:
            await self._collector.collect(self._dispatcher.term)

    async def _watch_cluster(self) -> None:
        async for job_id in self._ports.cluster.watch():
            if not job_id:
                self._dispatcher.wake()

    async def _look_for_unreadable(self) -> None:
        self._through = await self._dispatcher.unreadable.look(limit=_LOOKED_AT)

    async def _every(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._once(act)
            await self._ports.clock.sleep(seconds)

    async def _once(self, act: Callable[[], Awaitable[None]]) -> None:
        try:
            await act()
        except WeftError as error:
            log.warning("chore.interrupted", chore=act.__name__, why=str(error))
        except Exception:  # the edge of a loop: a fault of ours in a chore must not end it for good
            log.exception("chore.failed", chore=act.__name__)
