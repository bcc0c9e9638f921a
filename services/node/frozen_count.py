"""Counts exactly what learners have on the disk: while they are frozen, none can hide a file by moving it.

It is done before a learner is ended for what several have written together. The others continue right after it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from services.node.disk import DiskUse
from services.node.freezing import freeze, thaw
from services.node.learner import Learner
from services.node.learner_disk import disk_use
from services.node.processes import children_of, read_table

log = structlog.get_logger()


class FrozenCount:
    """``folder``: the agent's own. Used by several threads."""

    def __init__(self, folder: Path) -> None:
        self._mark = folder / "frozen"
        """Exists while learners are frozen: the next agent thaws them if this one dies meanwhile."""
        self._lock = threading.Lock()

    @contextmanager
    def of(self, learners: Iterable[Learner]) -> Generator[list[tuple[Learner, DiskUse, bool]]]:
        """(learner, its use, whether it could be frozen). They are frozen until the end of the context.

        Takes as long as walking through all their files.
        """
        with self._lock:
            began = time.monotonic()
            with suppress(OSError):  # the disk is full
                self._mark.touch()
            frozen = list[tuple[Learner, bool]]()
            try:
                for learner in learners:
                    frozen.append((learner, False))
                    frozen[-1] = (learner, freeze(learner))
                children = children_of(read_table())
                yield [(learner, disk_use(learner, children), is_frozen) for learner, is_frozen in frozen]
            finally:
                for learner, _ in frozen:
                    thaw(learner)
                self._mark.unlink(missing_ok=True)
            took_ms = round(1000 * (time.monotonic() - began))
            log.info("learners.counted_frozen", learners=len(frozen), took_ms=took_ms)

    def thaw_left(self, learners: Iterable[Learner]) -> None:
        """At the start of an agent: lets the learners run that the last one has left frozen."""
        if self._mark.exists():
            for learner in learners:
                thaw(learner)
            self._mark.unlink()
