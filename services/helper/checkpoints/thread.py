"""Stores checkpoints in the background, in one thread of low priority with an event loop of its own.

It never disturbs the training, the shipping of lines, or the job's end: a failure is a log event and is tried again
later; a file system that hangs holds this thread only. After a snapshot that took d seconds the next one begins no
sooner than ``checkpoint_every_s`` and 4 d later, so that at most a fifth of the time is spent on them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from services.core.domain.checkpoint import StoredCheckpoint
from services.core.domain.errors import StaleFence, WeftError
from services.core.domain.plan import Folder
from services.core.runtime.learner_folder import RUN, Assignment, LearnerFolder, job_folder
from services.core.runtime.timers import aligned_pause
from services.helper.changes import Changes, watch_folder
from services.helper.checkpoints.detection import Detector, Plan
from services.helper.checkpoints.snapshots import Digests, FileChanged, SnapshotStore, as_stored
from services.helper.learner_files import LearnerFile, SkippedFile, list_files
from services.helper.log import log_event
from services.helper.objects import UrlSigner, open_objects
from services.helper.settings import load_settings
from services.helper.spool import Spool
from services.helper.threads import call_in_thread
from services.helper.wakeup import PHASE_S, Wakeup

_NICE: Final = 10
_POLL_S: Final = 1.0
_STILL_SHARE: Final = 10
"""A tree that has not changed for a time is listed again after one part in so many of it ..."""
_STILL_MOST_S: Final = 10.0
"""... and at most so late; sooner where the kernel reports a change in its top folder."""
_POLL_SHARE: Final = 100
"""Listing takes at most one part in so many of the time: the pause after it grows with a tree."""
_POLL_MOST_S: Final = 60.0
_REST: Final = 4
_RETRY_FIRST_S: Final = 5.0
_RETRY_MOST_S: Final = 300.0
_FAILURES: Final = (WeftError, OSError, ValueError, TypeError)
"""Of the store, of the learner's files, of documents in the store that cannot be read."""
_STOP_S: Final = 10.0
"""How long the end of a learner waits for this thread. It hangs where the learner's file system does."""


class CheckpointThread:
    """Starts when it is made, in a running event loop."""

    def __init__(
        self,
        folder: LearnerFolder,
        assignment: Assignment,
        spool: Spool,
        signer: UrlSigner,
        *,
        report: Callable[[StoredCheckpoint], None],
    ) -> None:
        """``report`` is called in this event loop after each snapshot."""
        loop = asyncio.get_running_loop()
        self._ended = Wakeup()
        self._background = _Background(
            folder, assignment, spool, signer, report=lambda stored: _call(loop, report, stored)
        )
        threading.Thread(target=self._run, args=(loop,), name="checkpoints", daemon=True).start()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self._background.run()
        _call(loop, self._ended.set)

    async def stop(self) -> Digests:
        """Ends it. Returns the digests of the files it has read, by name. May be called again."""
        self._background.stop()
        await self._ended.wait(_STOP_S)
        if not self._ended.is_set:
            log_event("checkpoint.thread_hangs")
            return {}
        return self._background.digests


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    with contextlib.suppress(RuntimeError):  # the helper has ended meanwhile
        loop.call_soon_threadsafe(function, *arguments)


@dataclass(slots=True)
class _Schedule:
    """When the next snapshot may begin, and when the last one is extended, in monotonic seconds."""

    every_s: float
    next_s: float = 0.0
    failures: int = 0
    extend_pause_s: float = 0.0
    extend_next_s: float = 0.0

    def record_stored(self, began_s: float, now_s: float) -> None:
        self.failures = 0
        self.next_s = now_s + max(self.every_s, _REST * (now_s - began_s))
        self.extend_pause_s, self.extend_next_s = self.every_s, now_s + self.every_s

    def record_extended(self, now_s: float) -> None:
        """Each pause is twice as long as the one before: requests are few, and at least half of the time counts."""
        self.extend_pause_s *= 2
        self.extend_next_s = now_s + self.extend_pause_s

    def record_failure(self, now_s: float) -> None:
        self.next_s = now_s + _retry_s(self.failures)
        self.failures += 1


def _retry_s(failures: int) -> float:
    return min(_RETRY_MOST_S, _RETRY_FIRST_S * 2.0 ** min(failures, 10))


class _Background:
    """What runs in the thread."""

    def __init__(
        self,
        folder: LearnerFolder,
        assignment: Assignment,
        spool: Spool,
        signer: UrlSigner,
        *,
        report: Callable[[StoredCheckpoint], None],
    ) -> None:
        self.digests: Digests = {}
        self._folder = folder
        self._assignment = assignment
        self._spool = spool
        self._signer = signer
        self._settings = load_settings()
        self._report = report
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._cancel: Callable[[], object] | None = None
        self._thread = 0
        self._waits_for = ""
        self._left_out: frozenset[str] = frozenset()
        self._changes = Changes()
        self._changed = Wakeup()

    def stop(self) -> None:
        """From another thread."""
        with self._lock:
            is_first = not self._stopped.is_set()
            self._stopped.set()
            if is_first and self._cancel is not None:
                with contextlib.suppress(RuntimeError):  # its event loop is closed: it has ended
                    self._cancel()

    def run(self) -> None:
        self._thread = threading.get_ident()
        try:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
            asyncio.run(self._run())
        except Exception:  # noqa: BLE001 - the edge of the thread: the job goes on without checkpoints
            log_event("checkpoint.thread_failed", why=traceback.format_exc())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        following = asyncio.create_task(self._follow())
        with self._lock:
            self._cancel = lambda: loop.call_soon_threadsafe(following.cancel)
            if self._stopped.is_set():
                following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following

    async def _follow(self) -> None:
        """Begins again after a failure: a training may last for weeks, and the folder of a server answers again."""
        for failures in count():
            try:
                await self._follow_run()
            except StaleFence as error:
                log_event("checkpoint.superseded", why=error.message)
                return
            except _FAILURES as error:
                log_event("checkpoint.failed", why=str(error), failures=failures)
            await asyncio.sleep(_retry_s(failures))

    async def _follow_run(self) -> None:
        started_ms = self._folder.started(RUN)
        while started_ms is None:
            await asyncio.sleep(_POLL_S)
            started_ms = self._folder.started(RUN)
        objects = open_objects(self._assignment, self._signer, self._wait, self._spool)
        try:
            learners = len(self._folder.gang(self._assignment.plan))
            store = SnapshotStore(
                objects, self._assignment, self._folder.root, self._spool, learners=learners, step=self._step
            )
            detector = Detector(started_ms=started_ms, quiet_s=self._settings.checkpoint_quiet_s)
            await self._poll(store, detector, is_gang=learners > 1)
        finally:
            self._changes.close()
            await objects.close(resumed=True)

    async def _poll(self, store: SnapshotStore, detector: Detector, *, is_gang: bool) -> None:
        schedule = _Schedule(self._settings.checkpoint_every_s)
        while True:
            began_s, listed_ms = time.monotonic(), time.time_ns() // 1_000_000
            listing = list(list_files(self._folder.root, job_folder(Folder.CHECKPOINT), self._assignment.learner_uid))
            self._log_left_out(listing)
            now_s = time.monotonic()
            plan = detector.observe(listing, now_s=now_s, listed_ms=listed_ms)
            cost_s, still_s = now_s - began_s, detector.still_s(now_s)
            if plan is not None and now_s >= schedule.next_s:
                if await self._store(store, plan, schedule):
                    detector.record_stored(plan)
            elif is_gang and detector.has_stored and now_s >= max(schedule.extend_next_s, schedule.next_s):
                until = detector.unchanged_until(listing, listed_ms=listed_ms)
                if until is not None:
                    await self._extend(store, until, schedule)
            least_s = min(_POLL_MOST_S, max(min(_POLL_S, self._settings.checkpoint_quiet_s), cost_s * _POLL_SHARE))
            await self._pause(least_s, max(least_s, min(_STILL_MOST_S, still_s / _STILL_SHARE)))

    async def _pause(self, least_s: float, most_s: float) -> None:
        """Returns after ``most_s``, or ``least_s`` after the kernel has reported a change."""
        place = job_folder(Folder.CHECKPOINT)
        if most_s > least_s and watch_folder(self._changes.content, self._folder.root, place):
            self._changes.arm(self._changed.set)
            try:
                if not await self._changed.wait(most_s):
                    return
            finally:
                self._changes.disarm()
            self._changed.clear()
        await asyncio.sleep(aligned_pause(least_s, phase_s=PHASE_S))

    async def _store(self, store: SnapshotStore, plan: Plan, schedule: _Schedule) -> bool:
        """Returns whether the snapshot counts now."""
        began_s = time.monotonic()
        try:
            await store.open()
            digests = [await store.digest(file) for file in plan.files]
            self.digests = store.digests
            await store.expect(digests)
            saved = [await store.put(file, digest) for file, digest in zip(plan.files, digests, strict=True)]
            saved += await store.files_of(plan.kept)
            record = await store.commit(saved, time=plan.time, final=False)
        except FileChanged as changed:
            log_event("checkpoint.given_up", file=changed.name, why=str(changed))
            return False
        except StaleFence:
            raise
        except _FAILURES as error:
            self._log_failure(error, schedule)
            return False
        self.digests, self._waits_for = store.digests, ""
        schedule.record_stored(began_s, time.monotonic())
        self._report(as_stored(record, time.time_ns() // 1_000_000))
        log_event("checkpoint.stored", seq=record.seq, files=record.files, size=record.size)
        try:
            await store.remove_unneeded()
        except _FAILURES as error:  # tried again before the next one
            log_event("checkpoint.removal_failed", why=str(error))
        return True

    async def _extend(self, store: SnapshotStore, until: int, schedule: _Schedule) -> None:
        try:
            await store.open()
            newest = store.newest
            if newest is not None and until > newest.until:
                await store.extend(until)
            schedule.record_extended(time.monotonic())
        except StaleFence:
            raise
        except _FAILURES as error:
            self._log_failure(error, schedule)

    @staticmethod
    def _log_failure(error: Exception, schedule: _Schedule) -> None:
        schedule.record_failure(time.monotonic())
        log_event("checkpoint.failed", why=str(error), failures=schedule.failures)

    async def _step(self, call: Callable[[], Any]) -> Any:
        """Reads here: this thread has nothing else to do. Lets a stop take effect between two chunks."""
        if threading.get_ident() != self._thread:  # an object is sent by the loop of the helper's connection
            return await call_in_thread(call)
        await asyncio.sleep(0)
        return call()

    async def _wait(self, seconds: float, reason: str) -> None:
        if reason != self._waits_for:  # logged once: it may last for long
            self._waits_for = reason
            log_event("checkpoint.waits", why=reason)
        await asyncio.sleep(seconds)

    def _log_left_out(self, listing: list[LearnerFile | SkippedFile]) -> None:
        """Logs files with data that cannot be stored, once as long as they are the same."""
        skipped = {file.name: file.why for file in listing if isinstance(file, SkippedFile) and file.has_data}
        if skipped and frozenset(skipped) != self._left_out:
            name = min(skipped)
            log_event("checkpoint.left_out", files=len(skipped), first=name, why=skipped[name])
        self._left_out = frozenset(skipped)
