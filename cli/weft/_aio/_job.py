"""A job: its last known document, and all operations on it without repeating its id."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weft  # loads weft.LogLine and the other records at their first use: most commands need none
from weft._times import parse_time

if TYPE_CHECKING:
    from weft._aio._jobs import AsyncJobs
    from weft._records import Artifact, HistoryEvent, LogLine, Point, Series, StartupStep
    from weft._stream import End


class AsyncJob:
    """A job as it was when it was last fetched; `refresh` and the methods that change it fetch it again."""

    def __init__(self, jobs: AsyncJobs, document: dict[str, Any]) -> None:
        self._jobs = jobs
        self.document = document
        """Everything the API says of it (docs/api.md, "A job")."""

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.name!r} {self.status}>"

    @property
    def id(self) -> str:
        return str(self.document["id"])

    @property
    def name(self) -> str:
        return str(self.document.get("name", ""))

    @property
    def status(self) -> str:
        """QUEUED, PENDING, DOWNLOADING, PROCESSING, STORING, COMPLETED, FAILED, KILLED, HALTING or HALTED."""
        return str(self.document.get("status", ""))

    @property
    def reason(self) -> str:
        """A stable code such as ExitCode; empty where there is nothing to say."""
        return str(self.document.get("reason") or "")

    @property
    def message(self) -> str:
        """The reason in words, with what to do."""
        return str(self.document.get("message") or "")

    @property
    def at_rest(self) -> bool:
        """It has ended or is HALTED, and everything it held is given back."""
        return bool(self.document.get("at_rest"))

    @property
    def startup(self) -> list[StartupStep]:
        """The start-up of its current or last attempt, in order; empty for a job of a list before a `refresh`."""
        return [weft.StartupStep.of(step) for step in self.document.get("startup") or ()]

    @property
    def attempt(self) -> int:
        """Number of the attempt, from 1; 0 before the first."""
        return int((self.document.get("attempt") or {}).get("number", 0))

    @property
    def created(self) -> datetime:
        return parse_time(self.document["created"])

    @property
    def finished(self) -> datetime | None:
        text = self.document.get("finished")
        return parse_time(text) if text else None

    @property
    def checkpoint_stored(self) -> datetime | None:
        """When the newest checkpoint was stored. What came after it is lost with a lost machine."""
        checkpoint = self.document.get("checkpoint")
        return parse_time(checkpoint["time"]) if checkpoint else None

    @property
    def warnings(self) -> list[str]:
        """Warnings of the platform about the spec, from the submission."""
        return [str(text) for text in self.document.get("warnings") or ()]

    async def refresh(self) -> AsyncJob:
        """Fetches the job again. Returns itself, for chaining."""
        return self._now(await self._jobs.get(self.id))

    async def wait(self, timeout: float | None = None) -> AsyncJob:
        """Until it is at rest; NotFinished after ``timeout`` seconds. See `Jobs.wait`."""
        return self._now(await self._jobs.wait(self.id, timeout=timeout))

    async def halt(self) -> AsyncJob:
        return self._now(await self._jobs.halt(self.id))

    async def resume(self) -> AsyncJob:
        return self._now(await self._jobs.resume(self.id))

    async def kill(self) -> AsyncJob:
        return self._now(await self._jobs.kill(self.id))

    async def delete(self, *, kill: bool = False) -> None:
        await self._jobs.delete(self.id, kill=kill)

    async def history(self) -> list[HistoryEvent]:
        return await self._jobs.history(self.id)

    async def explain(self) -> dict[str, Any]:
        return await self._jobs.explain(self.id)

    async def progress(self) -> dict[str, Any]:
        return await self._jobs.progress(self.id)

    async def logs(
        self,
        *,
        follow: bool = False,
        rank: int | None = None,
        role: str | None = None,
        attempt: int | None = None,
        stream: str | None = None,
        since: datetime | str | None = None,
        search: str | None = None,
        tail: int | None = None,
        by_time: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Its output, line by line; with ``follow`` until it is at rest, over broken connections. See `Jobs.logs`.

        After a followed end, `status` is that of the end.
        """
        if not follow:
            lines = self._jobs.logs(
                self.id,
                rank=rank,
                role=role,
                attempt=attempt,
                stream=stream,
                since=since,
                search=search,
                tail=tail,
                by_time=by_time,
            )
            async for line in lines:
                yield line
            return
        followed = self._jobs.follow_logs(
            self.id, rank=rank, role=role, attempt=attempt, stream=stream, since=since, search=search, tail=tail
        )
        async for event in followed:
            if event.kind == "line":
                yield weft.LogLine.of(event.data)
        self._ended(followed.end)

    async def metrics(
        self,
        name: str,
        *,
        rank: int | None = None,
        context: Mapping[str, str] | None = None,
        max_points: int | None = None,
    ) -> Series:
        """One metric as a curve. See `Jobs.metrics`."""
        return await self._jobs.metrics(self.id, name, rank=rank, context=context, max_points=max_points)

    async def series(self, *, name: str | Iterable[str] | None = None, max_points: int | None = None) -> list[Series]:
        """All metrics as curves. See `Jobs.series`."""
        return await self._jobs.series(self.id, name=name, max_points=max_points)

    async def points(self, *, follow: bool = False, name: str | Iterable[str] | None = None) -> AsyncIterator[Point]:
        """Every point; with ``follow`` as they come, until the job is at rest."""
        if not follow:
            async for point in self._jobs.points(self.id, name=name):
                yield point
            return
        followed = self._jobs.follow_metrics(self.id, name=name)
        async for event in followed:
            if event.kind == "point":
                yield weft.Point.of(event.data)
        self._ended(followed.end)

    def artifacts(self, *, attempt: int | None = None) -> AsyncIterator[Artifact]:
        return self._jobs.artifacts(self.id, attempt=attempt)

    async def download(
        self,
        folder: str | PathLike[str],
        *,
        what: str = "results",
        attempt: int | None = None,
        force: bool = True,
        unpacked: bool = False,
        on_bytes: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> list[Path]:
        """Fetch its files. See `Jobs.download`."""
        return await self._jobs.download(
            self.id, folder, what=what, attempt=attempt, force=force, unpacked=unpacked, on_bytes=on_bytes
        )

    def _ended(self, end: End | None) -> None:
        """Takes over how a followed stream ended: `status` and `reason` are those of the end."""
        if end is not None:
            state: dict[str, Any] = {
                "status": end.status,
                "reason": end.reason,
                "message": end.message,
                "at_rest": True,
            }
            self.document = {**self.document, **state}

    def _now(self, newer: AsyncJob) -> AsyncJob:
        self.document = newer.document
        return self
