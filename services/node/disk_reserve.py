"""Keeps a part of the learners' disk free for the platform: where it is used up, the learners that grew most are ended.

The kernel counts free space, so nothing that a learner does hides what it has written: it is read more often
the less there is. Only if the reserve is touched, all learners are frozen, what each has is counted, and they continue.
A walk through a running learner's folder would miss files that it moves meanwhile, and another one would be ended.

What an ended learner has written is stored before it is removed, so the space does not come back at once. So the line
halves each time: the next ones are ended if the others write on. If the learners' growth does not explain the loss,
none is ended: the operator, an upload or the caches fill the disk, and admission has stopped long before.

Growth is what a learner has more than in the last round of ``disk_watch`` while there was plenty of room, or in the
last count. So a large learner that writes nothing is not ended for what others write. A learner may be in such a round
twice, by moving files; the next count is exact. Without any round (the agent has just started on a full disk) none is
ended at the first count, unless too little is left for a second one: then all that a learner has is its growth.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from services.core.runtime.edges import log_unexpected
from services.node import capacity
from services.node.disk import DiskUse
from services.node.disk_bounds import Share, to_end
from services.node.frozen_count import FrozenCount
from services.node.instrumentation import Instrumentation
from services.node.learner import Learner
from services.node.learner_disk import Baseline, Round, end_for_disk, free_space, is_running
from services.node.settings import NodeSettings

SETTING: Final = "WEFT_NODE_DISK_RESERVE"
_FASTEST: Final = 5_000_000_000
"""Bytes per second that learners of one machine may write."""
_FASTEST_FILES: Final = 500_000
"""Files per second that they may make."""
_SHORTEST_S: Final = 0.05
_PLENTY: Final = 2
"""So many times the reserve: admission stops there."""
_TOO_LITTLE: Final = 8
"""This part of the reserve may be used up before the next count."""
_NOTHING: Final = DiskUse()
_FEW_INODES: Final = 5_000
log = structlog.get_logger()


@dataclass(slots=True)
class Line:
    """How much of one resource stays free, bytes or files. Decides when learners are ended, and which: pure."""

    reserve: int
    count: Callable[[DiskUse], int]
    at: int = field(init=False)
    """Below it learners are ended. Half of what was free when that was done last; the reserve once there is room."""
    _base: int = field(init=False)
    """What was free then."""
    _before: Baseline | None = field(init=False, default=None)
    """Growth counts from here."""
    _most_free: int = field(init=False, default=0)
    """The most that was free since then: files of ended learners may have been removed after it."""

    def __post_init__(self) -> None:
        self.at = self._base = self.reserve

    def is_crossed(self, free: int, last: Baseline | None = None) -> bool:
        """``last``: of the last round. While there is not plenty of room, the one with most room is kept."""
        if free >= self.reserve:
            self.at = self._base = self.reserve
            most = self.reserve if self._before is None or free >= _PLENTY * self.reserve else self._before.free
            is_new = last is not None and (self._before is None or last.of_learners is not self._before.of_learners)
            if last is not None and is_new and last.free >= max(self.reserve, most):
                self._before, self._most_free = last, last.free
            self._most_free = max(self._most_free, free)
        return free < self.at

    def cross(self, free: int, counts: Mapping[Path, tuple[str, DiskUse, bool]]) -> list[Share]:
        """The learners to end. ``counts``: folder -> (tenant, use, whether it was frozen) of those that run."""
        before, excess, lost = self._before, self._base - free, self._most_free - free
        self._before = Baseline({folder: use for folder, (_, use, _) in counts.items()}, free)
        self.at, self._base, self._most_free = free // 2, free, free
        if before is None:
            if free >= self.reserve // _TOO_LITTLE:
                return []
            before, lost = Baseline({}, self.reserve), excess
        shares = [
            Share(folder, tenant, self.count(use) - self.count(before.of_learners.get(folder, _NOTHING)), is_frozen)
            for folder, (tenant, use, is_frozen) in counts.items()
        ]
        if 2 * sum(share.amount for share in shares) < lost:
            return []
        return to_end([share for share in shares if share.amount > 0 or not share.is_frozen], excess)


class ReserveWatch:
    """``learners`` returns those of this machine, ``last_round`` their use in the last round of ``DiskWatch``."""

    def __init__(
        self,
        settings: NodeSettings,
        instrumentation: Instrumentation,
        learners: Callable[[], Iterable[Learner]],
        frozen_count: FrozenCount,
        last_round: Callable[[], Round | None],
    ) -> None:
        self._last_round = last_round
        self._frozen_count = frozen_count
        self._folder = settings.installation / "node"
        self.reserve = capacity.disk_reserve(settings, self._folder)
        inodes = min(_FEW_INODES, os.statvfs(self._folder).f_files * settings.disk_free_percent / 100 / 2)
        self._bytes = Line(self.reserve, lambda use: use.size)
        self._files = Line(int(inodes) if self.reserve else 0, lambda use: use.files)
        self._longest_s = settings.node_disk_check_s
        self._instrumentation = instrumentation
        self._learners = learners

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            pause_s = self._longest_s
            with log_unexpected("disk.reserve_failed"):
                if list(self._learners()):
                    pause_s = await asyncio.to_thread(self._observe)
            await asyncio.sleep(pause_s)

    def _observe(self) -> float:
        """Ends learners if too little is left of the disk. Returns the seconds until the next observation."""
        last = self._last_round()
        baselines = [Baseline(last.of_learners, free) for free in last.free] if last is not None else [None, None]
        free, files = left = free_space(self._folder)
        self._instrumentation.disk_free.set(free)
        for kind, line in enumerate((self._bytes, self._files)):
            if line.is_crossed(left[kind], baselines[kind]):
                self._make_room(line, left[kind])
        soonest_s = (free - self._bytes.at) / _FASTEST
        if self._files.at:
            soonest_s = min(soonest_s, (files - self._files.at) / _FASTEST_FILES)
        return min(max(soonest_s, _SHORTEST_S), self._longest_s)

    def _make_room(self, line: Line, left: int) -> None:
        with self._frozen_count.of(filter(is_running, self._learners())) as counted:
            counts = {learner.folder: (learner.tenant, use, is_frozen) for learner, use, is_frozen in counted}
            by_folder = {learner.folder: learner for learner, _, _ in counted}
            ended = line.cross(left, counts)
            for share in ended:
                use = counts[share.folder][1]
                why = (
                    "the learners' disk is almost full, and of the learners that fill it this one is the largest: it "
                    f"has {use.size / 2**30:.3g} GiB in {use.files} files"
                )
                end_for_disk(by_folder[share.folder], SETTING, why, self._instrumentation)
        log.warning("disk.reserve_used", left=left, ended=len(ended), learners=len(counts))
