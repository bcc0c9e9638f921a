"""Ends learners that write more than they or their tenant may, and keeps the caches within their bound.

A learner can evade these bounds for a while by moving folders during a walk. ``disk_reserve``, which guards the disk
itself, cannot be evaded.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from services.core.domain.errors import NoSpace
from services.core.runtime.durable_files import write_json
from services.core.runtime.edges import log_unexpected
from services.node import capacity
from services.node.caches import Caches
from services.node.disk import DiskUse
from services.node.disk_bounds import Share, to_end
from services.node.frozen_count import FrozenCount
from services.node.instrumentation import Instrumentation
from services.node.learner import Learner
from services.node.learner_disk import Round, disk_use, end_for_disk, free_space, is_being_ended, is_running
from services.node.processes import children_of, read_table
from services.node.settings import NodeSettings

CACHES_FILE: Final = "node-caches.json"
"""In WEFT_HOME/run, for `weft status`: ``{bytes: {kind: bytes}, max_bytes}``."""
_ROUNDS_WITHOUT_WRITES: Final = 6
"""While the disk's free space hardly falls, one round in so many is made."""
_BOUND_SHARE: Final = 100
"""Free space hardly falls while less than one part in so many of a learner's bound is lost since the last round."""
_SHARE: Final = 20
"""A round is followed by a pause of so many times its length at least, while there is enough free space."""
log = structlog.get_logger()


class DiskWatch:
    """``learners`` returns those of this machine."""

    def __init__(
        self,
        settings: NodeSettings,
        instrumentation: Instrumentation,
        learners: Callable[[], Iterable[Learner]],
        frozen_count: FrozenCount,
        *,
        measure_free: Callable[[Path], tuple[int, int]] = free_space,
    ) -> None:
        """``measure_free``: (bytes, files) that are free on the disk of a folder."""
        self.last_round: Round | None = None
        self._frozen_count = frozen_count
        self._folder = settings.installation / "node"
        half = shutil.disk_usage(settings.installation.root).total // 2
        self._max_bytes = settings.node_disk or half
        self._max_files = settings.node_files
        self._max_tenant_bytes = settings.node_tenant_disk or max(half, self._max_bytes)
        self._pause_s = settings.node_disk_check_s
        self._measure_free = measure_free
        self._free_space = capacity.free_space(settings)
        self._instrumentation = instrumentation
        self._learners = learners
        self._rounds_skipped = 0

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            began = time.monotonic()
            with log_unexpected("disk.watch_failed"):
                await self.observe()
            await self._pause(time.monotonic() - began)

    async def observe(self) -> bool:
        """Makes a round if one is due. Returns whether it did."""
        if not await asyncio.to_thread(self._is_due):
            self._rounds_skipped += 1
            return False
        self._rounds_skipped = 0
        await self._observe()
        return True

    def _is_due(self) -> bool:
        """False while no learner is new or being ended, none can have written much, and the last round is recent.

        Reads files.
        """
        last = self.last_round
        if last is None or self._rounds_skipped >= _ROUNDS_WITHOUT_WRITES - 1 or self._free_space.shortage():
            return True
        for learner in self._learners():
            if not learner.ended and (learner.folder not in last.of_learners or is_being_ended(learner)):
                return True
        fallen = (before - now for before, now in zip(last.free, self._measure_free(self._folder), strict=True))
        bounds = (self._max_bytes, self._max_files)
        return any(by * _BOUND_SHARE > bound for by, bound in zip(fallen, bounds, strict=True))

    async def _pause(self, took_s: float) -> None:
        """Learners with millions of files make rounds long. While the disk is almost full, the next begins earlier."""
        ends = time.monotonic() + max(self._pause_s, _SHARE * took_s)
        while (left_s := ends - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, max(self._pause_s, took_s)))
            if await asyncio.to_thread(self._free_space.shortage):
                return

    async def _observe(self) -> None:
        totals, children = Counter[str](), dict[int, list[int]]()
        by_folder, free = dict[Path, DiskUse](), self._measure_free(self._folder)
        running: list[Learner] = []
        for learner in [learner for learner in self._learners() if not learner.ended]:
            children = children or await asyncio.to_thread(lambda: children_of(read_table()))
            use = await asyncio.to_thread(
                disk_use, learner, children, max_bytes=self._max_bytes, max_files=self._max_files
            )
            by_folder[learner.folder] = use
            if not is_running(learner):
                continue  # its data is being fetched
            running.append(learner)
            if why := use.exceeds(self._max_bytes, self._max_files):
                bound = "WEFT_NODE_DISK" if use.size > self._max_bytes else "WEFT_NODE_FILES"
                await asyncio.to_thread(end_for_disk, learner, bound, why, self._instrumentation)
            else:
                totals[learner.tenant] += use.size
        bytes_after, files_after = self._measure_free(self._folder)
        self.last_round = Round(by_folder, (min(free[0], bytes_after), min(free[1], files_after)))
        self._instrumentation.disk.set(totals.total())
        for tenant, total in totals.items():
            if total > self._max_tenant_bytes:
                of_tenant = [learner for learner in running if learner.tenant == tenant]
                await asyncio.to_thread(self._bound_tenant, tenant, of_tenant)

    def _bound_tenant(self, tenant: str, learners: list[Learner]) -> None:
        with self._frozen_count.of(filter(is_running, learners)) as counted:
            by_folder = {learner.folder: learner for learner, _, _ in counted}
            shares = [
                Share(learner.folder, tenant, use.size, is_frozen, is_being_ended(learner))
                for learner, use, is_frozen in counted
            ]
            excess = sum(share.amount for share in shares) - self._max_tenant_bytes
            for share in to_end(shares, excess):
                why = (
                    f"the learners of its tenant on this machine wrote more than {self._max_tenant_bytes / 2**30:.3g} "
                    f"GiB together, and it is the largest: {share.amount / 2**30:.3g} GiB"
                )
                end_for_disk(by_folder[share.folder], "WEFT_NODE_TENANT_DISK", why, self._instrumentation)


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
