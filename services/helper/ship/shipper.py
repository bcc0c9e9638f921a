"""All sources of a learner, until the metrics service has everything.

One Append at a time, which carries what every source has next. While the service is away nothing is kept but where each
source stands: the files are the spool. They are looked at all the same, so that lines keep the time they came at.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Final

from services.core.domain.errors import InvalidRequest, ResourceExhausted, Unavailable, WeftError
from services.core.gen.weft.v1.metrics_pb2 import Source, SourceBatch
from services.helper.folder import Assignment, LearnerFolder
from services.helper.journal import note
from services.helper.metrics_client import Backoff, Intake
from services.helper.reporter import now_ms
from services.helper.ship.changes import Changes
from services.helper.ship.points import Reported
from services.helper.ship.source import Place, TailedSource
from services.helper.spool import Spool
from services.helper.wakeup import Wakeup

BATCH_BYTES: Final = 2**20
BATCH_LINES: Final = 1_000
QUICK_S: Final = 0.02
"""How often files are looked at while something happens in them: half of it is added to a line's way."""
IDLE_S: Final = 0.1
"""And while nothing does. While something does all the time, it is also how often it is sent if somebody follows the
job; if nobody does, the metrics service says how long to gather. Each Append costs the learner's machine some two
milliseconds, and a learner that reports a hundred steps a second is to train at a hundred steps a second."""
FLOOD_BYTES: Final = 16 * 2**10
"""So much is sent without waiting for more."""
WATCHED_S: Final = 1.0
"""And while nothing does and the kernel would tell."""
_FULL_AGAIN_S: Final = 1.0


def places(folder: LearnerFolder, assignment: Assignment, run: int) -> list[Place]:
    """Every source of a run. Those for machines come first: a flood of text must not hold them up."""
    names: Mapping[str, Sequence[str]] = {
        "metrics.jsonl": ("job", "metrics.jsonl"),
        **{f"logs/{path}": ("job", "logs", *path.split("/")) for path in assignment.plan.metrics_files},
    }
    out = [Place(name=name, run=run, root=folder.root, parts=parts, text=False) for name, parts in names.items()]
    streams = folder.root / "runs" / str(run)
    return out + [
        Place(name=name, run=run, root=streams, parts=(name,), text=True, ours=True) for name in ("stdout", "stderr")
    ]


class Shipper:
    """``run`` beside the learner, which returns when all is taken in; ``end`` once the learner has exited."""

    def __init__(self, folder: LearnerFolder, assignment: Assignment, spool: Spool, intake: Intake, run: int) -> None:
        self.progress: tuple[float, int] = (-1.0, -1)
        """(fraction, milliseconds left) by the learner's last word; -1: unknown."""
        self.refused_since: float | None = None
        """The service answers, and takes nothing (its disk is full): since when, on the monotonic clock."""
        self.stuck_since: float | None = None
        """It takes nothing, or does not even answer."""
        self._intake = intake
        self._ended = False
        self._gather_s = IDLE_S
        self._trouble = ""
        self._changes = Changes()
        self._wake = Wakeup()
        learner = assignment.learner
        identity = Source(attempt=assignment.plan.attempt, role=learner.role, rank=learner.rank, run=run)
        self.sources = [
            TailedSource(
                place,
                _named(identity, place.name),
                assignment.learner_uid,
                spool,
                clock=now_ms,
                reported=self._reported,
            )
            for place in places(folder, assignment, run)
        ]
        self._first_text = len(self.sources) - 2

    def end(self) -> None:
        """The learner has exited."""
        self._ended = True
        self._wake.ring()

    async def run(self) -> None:
        backoff = Backoff()
        await self._resume(backoff)
        retry_at, idle, pace = 0.0, QUICK_S, QUICK_S
        while True:
            try:
                self._look()
                if time.monotonic() >= retry_at:
                    if batches := self._collect():
                        await self._append(batches)
                        backoff.reset()
                        self._well()
                        idle = QUICK_S
                        if sum(batch.end - batch.start for batch in batches) < FLOOD_BYTES:
                            await self._gather(pace)
                            pace = min(self._gather_s, pace * 1.5)
                        continue
                    if self._ended and all(source.done for source in self.sources):
                        return
            except (WeftError, OSError) as error:  # OSError: a full disk under the spool, a failing one under a source
                retry_at = time.monotonic() + self._noted(error, backoff)
            await self._pause(idle if time.monotonic() >= retry_at else IDLE_S, until=retry_at)
            idle, pace = min(IDLE_S, idle * 1.5), max(QUICK_S, pace / 1.5)

    async def _resume(self, backoff: Backoff) -> None:
        """Where the metrics service stands, before anything is sent to it."""
        by_name = {source.place.name: source for source in self.sources}
        hello = None
        while hello is None:
            try:
                self._look()
                hello = await self._intake.hello()
            except (WeftError, OSError) as error:
                await asyncio.sleep(self._noted(error, backoff))
        for state in hello.sources:
            source = by_name.get(state.source.source)
            if source is not None and source.is_of(state.source):
                source.resume(state.source.generation, state.committed, final=state.final)

    def _look(self) -> None:
        for source in self.sources:
            if self._ended:
                source.end()
            else:
                source.look()

    def _collect(self) -> list[SourceBatch]:
        """What every source has next, the two texts taking turns at being first."""
        text = self.sources[self._first_text :]
        self.sources[self._first_text :] = [*text[1:], *text[:1]]
        out: list[SourceBatch] = []
        room, lines = BATCH_BYTES, BATCH_LINES
        for source in self.sources:
            batch = source.batch(room, lines) if room > 0 and lines > 0 else None
            if batch is not None:
                out.append(batch)
                room -= batch.end - batch.start
                lines -= len(batch.lines)
        return out

    async def _append(self, batches: list[SourceBatch]) -> None:
        call = asyncio.ensure_future(self._intake.append(batches))
        try:
            while not (await asyncio.wait({call}, timeout=IDLE_S))[0]:
                self._look()
            reply = call.result()
        except InvalidRequest as refused:
            note("batch.refused", why=refused.message)
            for batch in batches:
                await self._append_without_content(batch, refused.message)
            return
        finally:
            call.cancel()
        self._gather_s = max(IDLE_S, reply.gather_ms / 1000)
        self._accept(batches, reply.committed)

    async def _append_without_content(self, batch: SourceBatch, why: str) -> None:
        """A batch that can never be taken must not hold up what follows: it is tried alone, then without its content.

        The raw bytes are stored with the logs at the end.
        """
        empty = SourceBatch(source=batch.source, start=batch.start, end=batch.end, final=batch.final)
        told = SourceBatch()
        told.CopyFrom(empty)
        if batch.lines:
            text = f"[weft: {len(batch.lines)} lines could not be shown here: {why}]"
            told.lines.add(offset=batch.start, time_ms=batch.lines[0].time_ms, text=text)
        for attempt in (batch, told, empty):
            with contextlib.suppress(InvalidRequest):
                self._accept([attempt], (await self._intake.append([attempt])).committed)
                return
        raise InvalidRequest(why)

    def _accept(self, batches: Sequence[SourceBatch], committed: Sequence[int]) -> None:
        for batch, offset in zip(batches, committed, strict=True):
            for source in self.sources:
                if source.place.name == batch.source.source:
                    source.accept(batch, offset)

    def _well(self) -> None:
        if self._trouble:
            note("append.well")
        self._trouble, self.refused_since, self.stuck_since = "", None, None

    def _noted(self, error: WeftError | OSError, backoff: Backoff) -> float:
        """How long to wait before the next try. Each kind of trouble is noted once: it may last for days."""
        if self._trouble != type(error).__name__:
            self._trouble = type(error).__name__
            note("append.failed", kind=self._trouble, why=str(error))
        if self.stuck_since is None:
            self.stuck_since = time.monotonic()
        if isinstance(error, Unavailable):
            self.refused_since = None  # that it had refused before it went away says nothing about what it will do
        elif self.refused_since is None:
            self.refused_since = time.monotonic()
        if isinstance(error, ResourceExhausted):
            return error.retry_after_s or _FULL_AGAIN_S
        return backoff.next()

    async def _gather(self, seconds: float) -> None:
        """Lets more come, looking at it all the same: lines keep the time they came at. A flood ends it."""
        until = time.monotonic() + seconds
        while not self._wake.rung and (left := until - time.monotonic()) > 0:
            await self._wake.wait(min(left, IDLE_S))
            self._look()
            if sum(source.unsent for source in self.sources) >= FLOOD_BYTES:
                return

    async def _pause(self, seconds: float, *, until: float) -> None:
        """``until``: the service is not to be asked before then, whatever is written."""
        quiet = seconds >= IDLE_S and time.monotonic() >= until and not self._ended
        if not quiet or not all(source.watch(self._changes) for source in self.sources):
            await self._wake.wait(seconds)
        else:
            self._look()  # what came since the last look, before it was watched
            if not any(source.fresh for source in self.sources):
                self._changes.arm(self._wake.ring)
                await self._wake.wait(WATCHED_S)
                self._changes.disarm()
        self._wake.clear()

    def _reported(self, found: Reported) -> None:
        if found.progress is not None:
            self.progress = found.progress


def _named(identity: Source, name: str) -> Source:
    out = Source()
    out.CopyFrom(identity)
    out.source = name
    return out
