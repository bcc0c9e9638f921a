"""Watches the disk: ends learners that write more than they may, and keeps the caches within their bound."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

import structlog

from services.core.domain.errors import NoSpace
from services.core.runtime.durable_files import write_json
from services.core.runtime.edges import log_unexpected
from services.core.runtime.learner_folder import DISK_FILE, LEARNER_FILE
from services.core.runtime.processes import alive, send_signal
from services.node import capacity
from services.node.caches import Caches
from services.node.disk import DiskUse, add_unnamed, measure
from services.node.instrumentation import Instrumentation
from services.node.learner import Learner
from services.node.processes import TableEntry, read_table, with_descendants
from services.node.settings import NodeSettings

CACHES_FILE: Final = "node-caches.json"
"""In WEFT_HOME/run, for `weft status`: ``{bytes: {kind: bytes}, max_bytes}``."""
_SHARE: Final = 20
"""A round is followed by a pause of so many times its length at least, while there is enough free space."""
log = structlog.get_logger()


class DiskWatch:
    """``learners`` returns those of this machine."""

    def __init__(
        self, settings: NodeSettings, instrumentation: Instrumentation, learners: Callable[[], Iterable[Learner]]
    ) -> None:
        self._max_bytes = settings.node_disk or shutil.disk_usage(settings.installation.root).total // 2
        self._max_files = settings.node_files
        self._pause_s = settings.node_disk_check_s
        self._free_space = capacity.free_space(settings)
        self._instrumentation = instrumentation
        self._learners = learners

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            began = time.monotonic()
            with log_unexpected("disk.watch_failed"):
                await self._look()
            await self._pause(time.monotonic() - began)

    async def _pause(self, took_s: float) -> None:
        """Learners with millions of files make rounds long. While the disk is almost full, the next begins earlier."""
        ends = time.monotonic() + max(self._pause_s, _SHARE * took_s)
        while (left_s := ends - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, max(self._pause_s, took_s)))
            if await asyncio.to_thread(self._free_space.shortage):
                return

    async def _look(self) -> None:
        total, table = 0, dict[int, TableEntry]()
        for learner in list(self._learners()):
            if not learner.started or learner.ended:
                continue
            table = table or await asyncio.to_thread(read_table)
            use = await asyncio.to_thread(self._measure, learner, table)
            total += use.size
            if why := use.exceeds(self._max_bytes, self._max_files):
                await asyncio.to_thread(self._end, learner, why)
        self._instrumentation.disk.set(total)

    def _measure(self, learner: Learner, table: Mapping[int, TableEntry]) -> DiskUse:
        uid = learner.document.learner_uid
        use = measure(learner.folder, uid, max_bytes=self._max_bytes, max_files=self._max_files)
        if (shim := learner.shim) is not None and alive(shim):
            device = (learner.folder / LEARNER_FILE).stat().st_dev
            add_unnamed(use, with_descendants(table, {shim.pid}), uid, device)
        return use

    def _end(self, learner: Learner, why: str) -> None:
        """The reason first: the helper reads it with the exit. On a full disk the learner ends without it."""
        if learner.files.has(DISK_FILE):
            return
        try:
            write_json(learner.folder / DISK_FILE, {"why": why})
        except NoSpace as error:
            log.warning("disk.reason_not_written", job=learner.job, learner=learner.name, why=str(error))
        process = learner.process
        if process is not None and send_signal(process, signal.SIGKILL):
            self._instrumentation.disk_exceeded.inc()
            log.warning("learner.disk_exceeded", job=learner.job, learner=learner.name, why=why)


class CacheWatch:
    """``learners`` returns those of this machine."""

    def __init__(
        self, settings: NodeSettings, instrumentation: Instrumentation, learners: Callable[[], Collection[Learner]]
    ) -> None:
        home = settings.installation
        self._max_bytes = settings.node_cache or shutil.disk_usage(home.root).total // 4
        self._caches = Caches(home / "cache", self._max_bytes, learners)
        self._report = home / "run" / CACHES_FILE
        self._pause_s = settings.node_cache_check_s
        self._instrumentation = instrumentation

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            began = time.monotonic()
            with log_unexpected("caches.watch_failed"):
                sizes, removed = await asyncio.to_thread(self._caches.bound)
                for kind, size in sizes.items():
                    self._instrumentation.cache.labels(kind).set(size)
                self._instrumentation.cache_removed.inc(removed)
                with suppress(NoSpace):  # it is for people only
                    write_json(self._report, {"bytes": sizes, "max_bytes": self._max_bytes}, durable=False)
            await asyncio.sleep(max(self._pause_s, _SHARE * (time.monotonic() - began)))
