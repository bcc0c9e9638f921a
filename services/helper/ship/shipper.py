"""Ships all sources of a learner until the metrics service has everything.

One Append at a time, which carries the next batch of every source. While the service is away only the position of each
source is kept: the files are the spool. Their sizes are read all the same, so that lines keep the time they came at.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from services.core.domain.errors import InvalidRequest, ResourceExhausted, Unavailable, WeftError
from services.core.domain.plan import Folder
from services.core.gen.weft.v1.metrics_pb2 import Source, SourceBatch
from services.core.runtime.learner_folder import JOB_FOLDER, RUN, RUNS_FOLDER, Assignment, LearnerFolder, job_folder
from services.core.runtime.retry import Backoff
from services.core.runtime.timers import aligned_pause
from services.helper.changes import Changes
from services.helper.log import log_event
from services.helper.metrics_client import Desired, IntakeClient, Progress, beat_answer
from services.helper.reporter import now_ms
from services.helper.ship.points import ParsedReport
from services.helper.ship.source import SourceFile, TailedSource
from services.helper.ship.usage_source import NAME as USAGE_SOURCE
from services.helper.ship.usage_source import UsageSource
from services.helper.spool import Spool
from services.helper.usage import UsageReader
from services.helper.wakeup import PHASE_S, Wakeup

REPORTS: Final = "metrics.jsonl"
"""The file of ``weft.report``."""
BATCH_BYTES: Final = 2**20
BATCH_LINES: Final = 1_000
QUICK_S: Final = 0.02
"""How often sizes are read while files change: half of it is added to the latency of a line."""
IDLE_S: Final = 0.1
"""The same while no file changes. Also how often lines are sent from files that change all the time, if a client
follows the job; if none does, the metrics service answers how long to gather. An Append costs the learner's machine
about two milliseconds, and a learner that reports a hundred steps a second must not train slower for it."""
QUIET_S: Final = 0.5
"""The same while only ``weft.report`` writes, whose lines carry their own times. The kernel wakes us for other files;
where it cannot, the first line in one may be noticed so late."""
FLOOD_BYTES: Final = 64 * 2**10
"""So much is sent without waiting for more."""
WATCHED_S: Final = 1.0
"""How often sizes are read while the kernel wakes us for each change of a file, or of all but ``weft.report``'s."""
_FULL_AGAIN_S: Final = 1.0


def source_files(folder: LearnerFolder, assignment: Assignment) -> list[SourceFile]:
    """Every source of the learner's run. Metrics come first: a flood of text must not delay them."""
    names: Mapping[str, Sequence[str]] = {
        REPORTS: (JOB_FOLDER, REPORTS),
        **{f"logs/{path}": (*job_folder(Folder.LOG), *path.split("/")) for path in assignment.plan.metrics_files},
    }
    run = assignment.learner.run
    metrics = [
        SourceFile(name=name, run=run, root=folder.root, parts=parts, text=False) for name, parts in names.items()
    ]
    streams = folder.path(f"{RUNS_FOLDER}/{RUN}")
    return metrics + [
        SourceFile(name=name, run=run, root=streams, parts=(name,), text=True, is_closed=not folder.has_image)
        for name in ("stdout", "stderr")
    ]


class Heartbeats(Protocol):
    """Heartbeats that travel with lines."""

    def due(self) -> Progress | None:
        """Returns what a heartbeat sends now; None: none is due soon."""
        ...

    def record_sent(self, progress: Progress, desired: Desired) -> None:
        """Takes the answer to a heartbeat."""
        ...


class Shipper:
    """``run`` is a task beside the learner that returns when everything is committed. Call ``finish`` at its exit."""

    def __init__(
        self,
        folder: LearnerFolder,
        assignment: Assignment,
        spool: Spool,
        intake: IntakeClient,
        *,
        usage: UsageReader | None = None,
        on_point: Callable[[int], None] = lambda _at: None,
        heartbeats: Heartbeats | None = None,
    ) -> None:
        """``usage``: measures what the learner uses; None: it is not measured. ``heartbeats``: None: none are sent.

        ``on_point`` is called with the time, in Unix ms, of each report of the learner that has a metric.
        """
        self.progress: tuple[float, int] = (-1.0, -1)
        """(fraction, milliseconds left) of the learner's last report; -1: unknown."""
        self.refused_since: float | None = None
        """Since when the service answers and takes nothing (its disk is full), on the monotonic clock."""
        self.stuck_since: float | None = None
        """Since when it takes nothing, whether it answers or not."""
        self._intake = intake
        self._heartbeats = heartbeats
        self._on_point = on_point
        self._exited = False
        self._gather_s = IDLE_S
        self._is_followed = True
        """Then a line is sent at once if none came before it for some milliseconds."""
        self._last_error = ""
        self._changes = Changes()
        self._watches_reports = False
        """Whether ``_changes`` has the file of ``weft.report``, which may change a hundred times a second."""
        self._wake = Wakeup()
        learner = assignment.learner
        identity = Source(attempt=assignment.plan.attempt, role=learner.role, rank=learner.rank, run=learner.run)
        self.sources: list[TailedSource | UsageSource] = [
            TailedSource(
                file,
                _with_name(identity, file.name),
                assignment.learner_uid,
                spool,
                clock=now_ms,
                on_report=self._take_report,
            )
            for file in source_files(folder, assignment)
        ]
        if usage is not None:
            self.sources.insert(0, UsageSource(_with_name(identity, USAGE_SOURCE), usage, clock=now_ms))
        self._first_text = len(self.sources) - 2

    def finish(self) -> None:
        """The learner has exited: ``run`` returns once everything is committed."""
        self._exited = True
        self._wake.set()

    def bar(self) -> str:
        """The state of a progress bar that the learner draws now; empty if it draws none, and after its end."""
        if self._exited:
            return ""
        bars = [source.bar() for source in self.sources if isinstance(source, TailedSource)]
        return next(filter(None, reversed(bars)), "")

    async def run(self) -> None:
        try:
            await self._ship()
        finally:
            self._changes.close()

    async def _ship(self) -> None:
        backoff = Backoff()
        await self._resume(backoff)
        retry_at, pause_s, gather_s, sent_at = 0.0, QUICK_S, QUICK_S, 0.0
        while True:
            try:
                self._refresh()
                if time.monotonic() >= retry_at:
                    if batches := self._collect():
                        await self._append(batches)
                        backoff.reset()
                        self._record_success()
                        pause_s, sent_at = QUICK_S, time.monotonic()
                        if not _is_flood(batches):
                            await self._gather(gather_s)
                            gather_s = min(self._gather_s, gather_s * 1.5)
                        continue
                    if self._exited and all(source.is_done for source in self.sources):
                        return
            except (WeftError, OSError) as error:  # OSError: a full disk under the spool, a failing one under a source
                retry_at = time.monotonic() + self._record_failure(error, backoff)
            await self._pause(pause_s if time.monotonic() >= retry_at else IDLE_S, until=retry_at)
            pause_s = min(IDLE_S, pause_s * 1.5)
            # Where nobody follows, lines that come some times a second are gathered, too.
            if self._is_followed or time.monotonic() - sent_at > self._gather_s:
                gather_s = max(QUICK_S, gather_s / 1.5)

    async def _resume(self, backoff: Backoff) -> None:
        """Gets the committed offsets from the metrics service. Nothing is sent before."""
        by_name = {source.name: source for source in self.sources}
        hello = None
        while hello is None:
            try:
                self._refresh()
                hello = await self._intake.hello()
            except (WeftError, OSError) as error:
                await asyncio.sleep(self._record_failure(error, backoff))
        for state in hello.sources:
            source = by_name.get(state.source.source)
            if source is not None and source.matches(state.source):
                source.resume(state.source.generation, state.committed, final=state.final)

    def _refresh(self) -> None:
        for source in self.sources:
            if self._exited:
                source.finish()
            else:
                source.refresh()

    def _collect(self) -> list[SourceBatch]:
        """The next batch of every source. Stdout and stderr take turns at being first."""
        text = self.sources[self._first_text :]
        self.sources[self._first_text :] = [*text[1:], *text[:1]]
        batches: list[SourceBatch] = []
        room, lines = BATCH_BYTES, BATCH_LINES
        for source in self.sources:
            batch = source.next_batch(room, lines) if room > 0 and lines > 0 else None
            if batch is not None:
                batches.append(batch)
                room -= batch.end - batch.start
                lines -= len(batch.lines)
        return batches

    async def _append(self, batches: list[SourceBatch]) -> None:
        heartbeats = self._heartbeats
        beat = heartbeats.due() if heartbeats is not None else None
        call = asyncio.ensure_future(self._intake.append(batches, beat))
        try:
            while not (await asyncio.wait({call}, timeout=IDLE_S))[0]:
                self._refresh()
            reply = call.result()
        except InvalidRequest as refused:
            log_event("batch.refused", why=refused.message)
            for batch in batches:
                await self._append_without_content(batch, refused.message)
            return
        finally:
            call.cancel()
        self._is_followed = not reply.gather_ms
        self._gather_s = max(IDLE_S, reply.gather_ms / 1000)
        self._accept(batches, reply.committed)
        if heartbeats is not None and beat is not None and (desired := beat_answer(reply)) is not None:
            heartbeats.record_sent(beat, desired)

    async def _append_without_content(self, batch: SourceBatch, why: str) -> None:
        """Sends a refused batch alone, then with a notice instead of its content, then empty.

        So a batch that the service can never take does not block those after it. Its raw bytes are stored with the logs
        at the end. Raises InvalidRequest if even the empty batch is refused.
        """
        empty = SourceBatch(source=batch.source, start=batch.start, end=batch.end, final=batch.final)
        notice = SourceBatch()
        notice.CopyFrom(empty)
        if batch.lines:
            text = f"[weft: {len(batch.lines)} lines could not be shown here: {why}]"
            notice.lines.add(offset=batch.start, time_ms=batch.lines[0].time_ms, text=text)
        for attempt in (batch, notice, empty):
            with contextlib.suppress(InvalidRequest):
                self._accept([attempt], (await self._intake.append([attempt])).committed)
                return
        raise InvalidRequest(why)

    def _accept(self, batches: Sequence[SourceBatch], committed: Sequence[int]) -> None:
        for batch, offset in zip(batches, committed, strict=True):
            for source in self.sources:
                if source.name == batch.source.source:
                    source.accept(batch, offset)

    def _record_success(self) -> None:
        if self._last_error:
            log_event("append.recovered")
        self._last_error, self.refused_since, self.stuck_since = "", None, None

    def _record_failure(self, error: WeftError | OSError, backoff: Backoff) -> float:
        """Returns the seconds to wait before the next try. Logs each kind of error once: it may last for days."""
        if self._last_error != type(error).__name__:
            self._last_error = type(error).__name__
            log_event("append.failed", kind=self._last_error, why=str(error))
        if self.stuck_since is None:
            self.stuck_since = time.monotonic()
        if isinstance(error, Unavailable):
            self.refused_since = None  # an earlier refusal does not predict its answer once it is back
        elif self.refused_since is None:
            self.refused_since = time.monotonic()
        if isinstance(error, ResourceExhausted):
            return error.retry_after_s or _FULL_AGAIN_S
        return backoff.next()

    async def _gather(self, seconds: float) -> None:
        """Waits for more lines, so that fewer calls carry them; sizes are read meanwhile. A flood ends the wait."""
        deadline = time.monotonic() + aligned_pause(seconds, phase_s=PHASE_S)
        timed = [source for source in self.sources if isinstance(source, TailedSource) and source.name != REPORTS]
        is_watched = seconds > QUIET_S and self._watch_only(timed)
        unsent, grew_at, follows_closely = 0, 0.0, False
        while not self._wake.is_set and (left := deadline - time.monotonic()) > 0:
            before, unsent = unsent, sum(source.unsent for source in timed)
            if unsent != before:
                now = time.monotonic()
                follows_closely, grew_at = now - grew_at < 2 * IDLE_S, now
            if is_watched and (unsent == before or not follows_closely):
                await self._wait_for_change(min(left, WATCHED_S))
            else:  # the lines that follow one closely are noticed together, however many
                await self._wake.wait(min(left, IDLE_S if unsent else QUIET_S))
            self._refresh()
            if sum(source.unsent for source in self.sources) >= FLOOD_BYTES:
                return

    def _watch_only(self, sources: Sequence[TailedSource]) -> bool:
        """Whether every change of these sources from now on is noticed, and none of ``weft.report``."""
        if self._watches_reports:
            self._changes.close()
            self._watches_reports = False
        return all(source.watch(self._changes) for source in sources)

    async def _wait_for_change(self, seconds: float) -> None:
        self._changes.arm(self._wake.set)
        await self._wake.wait(seconds)
        self._changes.disarm()
        if not self._exited:
            self._wake.clear()

    async def _pause(self, seconds: float, *, until: float) -> None:
        """``until``: the monotonic time before which the service is not called, whatever is written."""
        idle = seconds >= IDLE_S and time.monotonic() >= until and not self._exited
        self._watches_reports |= idle
        if not idle or not all(source.watch(self._changes) for source in self.sources):
            await self._wake.wait(seconds)
        else:
            self._refresh()  # bytes that were written before the file was watched
            if not any(source.may_have_lines for source in self.sources):
                self._changes.arm(self._wake.set)
                await self._wake.wait(WATCHED_S)
                self._changes.disarm()
        self._wake.clear()

    def _take_report(self, report: ParsedReport) -> None:
        if report.progress is not None:
            self.progress = report.progress
        if report.values:
            self._on_point(now_ms())


def _is_flood(batches: Sequence[SourceBatch]) -> bool:
    """Whether a call carried so much that the next one can follow at once."""
    size = sum(batch.end - batch.start for batch in batches)
    return size >= FLOOD_BYTES or sum(len(batch.lines) for batch in batches) >= BATCH_LINES


def _with_name(identity: Source, name: str) -> Source:
    source = Source()
    source.CopyFrom(identity)
    source.source = name
    return source
