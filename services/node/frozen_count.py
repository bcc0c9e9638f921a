"""Counts exactly what learners have on the disk: while they are frozen, none can hide a file by moving it.

It is done before a learner is ended for what several have written together. The others continue right after it, or once
it takes too long: then the rest of the count is not exact, and no training waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from services.node.disk import DiskUse
from services.node.freezing import freeze, thaw
from services.node.learner import Learner
from services.node.learner_disk import disk_use
from services.node.processes import children_of, read_table

_FROZEN_S: Final = 30.0
"""Enough for millions of files, and shorter than the time limits of trainings whose processes talk to each other."""
log = structlog.get_logger()


class FrozenCount:
    """``folder``: the agent's own. ``frozen_s``: time after which learners run again. Used by several threads."""

    def __init__(self, folder: Path, *, frozen_s: float = _FROZEN_S) -> None:
        self._frozen_s = frozen_s
        self._mark = folder / "frozen"
        """Exists while learners are frozen: the next agent thaws them if this one dies meanwhile."""
        self._lock = threading.Lock()

    @contextmanager
    def of(self, learners: Iterable[Learner]) -> Generator[list[tuple[Learner, DiskUse, bool]]]:
        """(learner, its use, whether it could be frozen and counted).

        They are frozen until the end of the context, for ``frozen_s`` at most. Takes as long as walking through all
        their files.
        """
        with self._lock:
            began = time.monotonic()
            with suppress(OSError):  # the disk is full
                self._mark.touch()
            frozen, is_over = list[tuple[Learner, bool]](), threading.Event()

            def thaw_all() -> None:
                is_over.set()
                for learner, _ in list(frozen):
                    thaw(learner)

            timer = threading.Timer(self._frozen_s, thaw_all)
            timer.start()
            try:
                for learner in learners:
                    frozen.append((learner, False))
                    frozen[-1] = (learner, freeze(learner))
                    if is_over.is_set():
                        thaw(learner)
                children = children_of(read_table())
                counted = [(learner, disk_use(learner, children), is_frozen) for learner, is_frozen in frozen]
                yield [(learner, use, is_frozen and not use.holds_too_many) for learner, use, is_frozen in counted]
            finally:
                timer.cancel()
                timer.join()  # it shall thaw none that the next count has frozen
                thaw_all()
                self._mark.unlink(missing_ok=True)
            took_ms = round(1000 * (time.monotonic() - began))
            log.info("learners.counted_frozen", learners=len(frozen), took_ms=took_ms)

    def thaw_left(self, learners: Iterable[Learner]) -> None:
        """At the start of an agent: lets the learners run that the last one has left frozen."""
        if self._mark.exists():
            for learner in learners:
                thaw(learner)
            self._mark.unlink()
