"""Jobs by id: `client.jobs`. Each method is one request or one stream of the REST API (docs/api.md)."""

from __future__ import annotations

import asyncio
import builtins
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import weft  # loads weft.LogLine and the other records at their first use: most commands need none
from weft._aio._follow import AsyncFollow
from weft._aio._http import AsyncHttp
from weft._aio._job import AsyncJob
from weft._aio._to_thread import to_thread
from weft._errors import InvalidRequest, NotFinished, NotFound, WeftError
from weft._given_spec import read_given
from weft._stream import RETRY_FOR_S
from weft._upload import CountedFile, UploadArchive
from weft._wire import worth_retrying

if TYPE_CHECKING:
    from os import PathLike

    from weft._archive import Archive
    from weft._given_spec import SpecLike
    from weft._records import Artifact, HistoryEvent, LogLine, Point, Series

JOBS: Final = "/v1/jobs"
_LONGEST_POLL_S: Final = 1.0
_LONGEST_PAGE: Final = 10_000
"""Most entries that the platform puts on one page."""


CutListener = Callable[[WeftError], None]


def _silent(_error: WeftError) -> None:
    return


class AsyncJobs:
    """The jobs of the key's tenant."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    # --- to submit ----------------------------------------------------------------

    async def submit(
        self,
        spec: Mapping[str, Any] | str | PathLike[str] | SpecLike,
        *,
        code: str | PathLike[str] | Archive | None = None,
        idempotency_key: str | None = None,
        on_upload: Callable[[int, int], None] | None = None,
    ) -> AsyncJob:
        """Submit a job and return at once, with the job QUEUED.

        spec: a mapping, the path of a YAML or JSON file (or of a folder that holds weft.yaml), or a model.
        code: a folder or zip to upload; by default what the spec's `code` names, seen from the spec's file (or, for a
            mapping, from the working directory). What the platform has already is not sent again.
        idempotency_key: submitting twice under one key makes one job. Made by default, so that this call's own
            retries are safe; give one to make yours safe, too.
        on_upload: called with (bytes sent, bytes in all).

        Raises InvalidSpec with `errors` for what is wrong in the spec, before anything is uploaded.
        """
        from weft._archive import Archive  # noqa: PLC0415 - most commands only look

        document, named = await to_thread(read_given, spec)
        key = idempotency_key or os.urandom(16).hex()
        if isinstance(code, Archive):
            return await self.submit_document(document, archive=code, idempotency_key=key, on_upload=on_upload)
        place = Path(code) if code is not None else named
        with UploadArchive() as upload:
            archive = await to_thread(upload.make, place) if place is not None else None
            return await self.submit_document(document, archive=archive, idempotency_key=key, on_upload=on_upload)

    async def submit_document(
        self,
        document: Mapping[str, Any],
        *,
        archive: Archive | None,
        idempotency_key: str,
        on_upload: Callable[[int, int], None] | None = None,
        stored: bool | None = None,
    ) -> AsyncJob:
        """As `submit`, for a spec and an archive that are ready. ``stored``: from `plan`, to save a request."""
        if archive is None:
            return AsyncJob(self, await self._post_spec(document, {}, idempotency_key))
        if stored is None:
            planned = await self.plan(document, digest=archive.digest)
            stored = bool((planned.get("code") or {}).get("stored"))
        if stored:
            try:
                digest = {"code_digest": archive.digest}
                return AsyncJob(self, await self._post_spec(document, digest, idempotency_key))
            except InvalidRequest as refused:
                # The code may have been removed since `plan`.
                if not any(error.pointer == "/code_digest" for error in refused.errors):
                    raise
        return AsyncJob(self, await self._upload(document, archive, idempotency_key, on_upload))

    async def clone(
        self,
        id: str,  # noqa: A002
        *,
        set: Mapping[str, Any] | None = None,  # noqa: A002 - the API's name
        name: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncJob:
        """Submit a job again, with its code and some fields changed.

        set: dotted path of a field -> its value, e.g. {"env.SEED": "2"}; None removes the field.
        """
        body = {"set": dict(set or {}), "name": name}
        headers = {"Idempotency-Key": idempotency_key or os.urandom(16).hex()}
        return AsyncJob(self, await self._http.json("POST", _path(id, "clone"), body=body, headers=headers))

    async def diff(self, a: str, b: str) -> dict[str, Any]:
        """How two jobs differ: `spec`, `code` and `environment`."""
        return await self._http.json("GET", "/v1/diff", params={"a": a, "b": b})

    async def statistics(
        self,
        name: str,
        *,
        jobs: Iterable[str] | None = None,
        q: str | None = None,
        by: Iterable[str] = (),
        but: Iterable[str] = (),
        max_points: int | None = None,
        also: Iterable[str] = (),
    ) -> dict[str, Any]:
        """Mean, standard deviation, minimum, maximum and number by step of a metric, over groups of jobs.

        jobs, q: ids of the jobs, or a filter. by: fields of the spec that make groups. but: fields that may differ
        within a group, e.g. ["env.SEED"]. also: names of further metrics, at most 19.
        """
        params = {
            "name": name,
            "also": [*also],
            "job": None if jobs is None else [*jobs],
            "q": q,
            "by": [*by],
            "except": [*but],
        }
        return await self._http.json("GET", "/v1/statistics", params={**params, "max_points": max_points})

    async def plan(self, document: Mapping[str, Any], *, digest: str | None = None) -> dict[str, Any]:
        """What submitting this spec would do; nothing is made. docs/api.md, "PLAN". Raises InvalidSpec."""
        params = {"dry_run": True, "code_digest": digest}
        try:
            return await self._http.json("POST", JOBS, params=params, body=document)
        except InvalidRequest as refused:
            if digest is None or not any(error.pointer == "/code_digest" for error in refused.errors):
                raise
            return {**await self.plan(document), "code": {"digest": digest, "stored": False}}

    async def _post_spec(self, document: Mapping[str, Any], params: Mapping[str, Any], key: str) -> dict[str, Any]:
        headers = {"Idempotency-Key": key}
        return await self._http.json("POST", JOBS, params=params, body=document, headers=headers)

    async def _upload(
        self, document: Mapping[str, Any], archive: Archive, key: str, on_bytes: Callable[[int, int], None] | None
    ) -> dict[str, Any]:
        text = json.dumps(document, allow_nan=False)
        with CountedFile(archive.path, on_bytes or (lambda _sent, _all: None)) as file:

            def parts() -> list[tuple[str, Any]]:
                file.rewind()
                spec = (None, text, "application/json")  # first: it is checked before the code is read
                return [("spec", spec), ("code", ("code.zip", file, "application/zip"))]

            return await self._http.upload(JOBS, parts=parts, key=key)

    # --- to look --------------------------------------------------------------------

    async def get(self, id: str) -> AsyncJob:  # noqa: A002 - the API's word
        """One job. NotFound where there is none, or none of one's own."""
        return AsyncJob(self, await self.document(id))

    async def document(
        self,
        id: str,  # noqa: A002
        *,
        progress: bool = False,
        metrics: Iterable[str] = (),
    ) -> dict[str, Any]:
        """The job as the API gives it (docs/api.md, "A job").

        progress: with `progress`, `eta_ms` and `usage`, if they are known.
        metrics: with `metrics` of these names; ["*"]: all.
        """
        params = {"progress": "true" if progress else None, "metrics": ",".join(metrics) or None}
        return await self._http.json("GET", _path(id), params=params)

    async def list(
        self,
        *,
        status: str | Iterable[str] | None = None,
        name: str | None = None,
        tag: str | None = None,
        user: str | None = None,
        tenant: str | None = None,
        deleted: bool = False,
        after: str | None = None,
        limit: int | None = None,
        q: str | None = None,
        metrics: Iterable[str] = (),
        order: str | None = None,
        progress: bool = False,
    ) -> AsyncIterator[AsyncJob]:
        """Jobs, newest first, fetched page by page.

        q: only jobs that match this filter, e.g. `status=FAILED and created<2d and metric.loss<0.3`.
        metrics: names of metrics that each job's `document` has as `metrics`; `NAME:min` or `NAME:max`: what is best.
        order: `newest` or `oldest` first.
        progress: the `document` of each job has `progress` (0 to 1) and `eta_ms`, if they are known.

        deleted: also jobs that were deleted; their `document` has the time as `deleted`.
        after: only jobs after this id in the order of the list, i.e. older ones.
        limit: how many at most; default: all.
        """
        wanted = status if status is None or isinstance(status, str) else ",".join(status)
        params = {"status": wanted, "name": name, "tag": tag, "user": user, "tenant": tenant}
        params |= {"q": q, "metrics": ",".join(metrics) or None, "order": order}
        params |= {"deleted": "true" if deleted else None, "progress": "true" if progress else None}
        left = limit
        page_size = 100  # the first page comes soon; many jobs take few requests
        while left is None or left > 0:
            size = page_size if left is None else min(left, 500)
            page = await self._http.json("GET", JOBS, params={**params, "limit": size, "after": after})
            for document in page["jobs"]:
                yield AsyncJob(self, document)
            left = None if left is None else left - len(page["jobs"])
            page_size = 500
            after = page.get("next")
            if not after:
                return

    async def history(self, id: str, *, after: int | None = None) -> builtins.list[HistoryEvent]:  # noqa: A002
        """Every change of the job's status, oldest first."""
        answer = await self._http.json("GET", _path(id, "history"), params={"after": after})
        return [weft.HistoryEvent.of(event) for event in answer["events"]]

    async def explain(self, id: str) -> dict[str, Any]:  # noqa: A002
        """Why the job is in the state it is in, in words: `summary` and `hints`."""
        return await self._http.json("GET", _path(id, "explain"))

    async def progress(self, id: str) -> dict[str, Any]:  # noqa: A002
        """How far it is: `progress` (0..1 or None), `eta_ms`, counts of lines and points, `latest` by metric, and
        what is fetched for its learners (`fetching`), their progress bars (`bars`).
        """
        return await self._http.json("GET", _path(id, "progress"))

    # --- to change --------------------------------------------------------------------

    async def halt(self, id: str) -> AsyncJob:  # noqa: A002
        """Requests a checkpoint and a clean stop of all learners. The job can be resumed."""
        return await self._set_desired(id, "halt")

    async def resume(self, id: str) -> AsyncJob:  # noqa: A002
        """Queues a halted job again; it resumes from its checkpoint."""
        return await self._set_desired(id, "resume")

    async def kill(self, id: str) -> AsyncJob:  # noqa: A002
        """End the job at once. Nothing more is stored."""
        return await self._set_desired(id, "kill")

    async def delete(self, id: str, *, kill: bool = False) -> None:  # noqa: A002
        """Remove the job. Conflict while it is live, unless ``kill``."""
        deadline = time.monotonic() + 60
        while True:
            try:
                await self._http.json("DELETE", _path(id), params={"kill": True if kill else None})
            except WeftError as refused:
                # The platform says so itself: its own wait was too short, send it again.
                again = kill and refused.status == 409 and refused.retry_after_s is not None
                if not again or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(refused.retry_after_s or 1)
            else:
                return

    async def _set_desired(self, id: str, verb: str) -> AsyncJob:  # noqa: A002
        return AsyncJob(self, await self._http.json("POST", _path(id, verb)))

    async def wait(self, id: str, *, timeout: float | None = None) -> AsyncJob:  # noqa: A002
        """Return once the job is at rest: ended or HALTED, everything it held given back.

        timeout: seconds; then NotFinished is raised; the job keeps running. Polls, at most once a second, rather than
        following a stream, so that the timeout is kept to the tenth of a second. A platform that goes away meanwhile is
        waited for, up to ten minutes and not beyond the timeout; then its error is raised.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.05
        while True:
            job = await self._get_once_back(id, deadline)
            if job.at_rest:
                return job
            left = pause if deadline is None else deadline - time.monotonic()
            if left <= 0:
                message = f"{job.name} is still {job.status} after {timeout:g} s; it keeps running (`weft wait {id}`)"
                raise NotFinished(message)
            await asyncio.sleep(min(pause, left))
            pause = min(_LONGEST_POLL_S, pause * 1.5)

    async def _get_once_back(self, id: str, deadline: float | None) -> AsyncJob:  # noqa: A002
        """As `get`; if the platform is away, it is tried again for `RETRY_FOR_S`, and not after the deadline."""
        give_up_at: float | None = None
        while True:
            try:
                return await self.get(id)
            except WeftError as failed:
                now = time.monotonic()
                if give_up_at is None:
                    give_up_at = min(now + RETRY_FOR_S, now + RETRY_FOR_S if deadline is None else deadline)
                if not (self._http.answered and worth_retrying(failed)) or now >= give_up_at:
                    raise
                await asyncio.sleep(min(max(_LONGEST_POLL_S, failed.retry_after_s or 0), give_up_at - now))

    # --- output and metrics -------------------------------------------------------------------

    async def logs(
        self,
        id: str,  # noqa: A002
        *,
        rank: int | None = None,
        role: str | None = None,
        attempt: int | None = None,
        stream: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        search: str | None = None,
        tail: int | None = None,
        by_time: bool = False,
    ) -> AsyncIterator[LogLine]:
        """The stored output of the job, in order. ``search``: a regular expression; ``tail``: the last N.

        by_time: in the order of their times, over all learners; else in the order in which the lines were stored.
        """
        params = _log_params(
            rank=rank, role=role, attempt=attempt, stream=stream, since=since, until=until, search=search
        )
        if by_time:
            params["order"] = "time"
        path = _path(id, "logs")
        pages = self._pages(path, "lines", params) if tail is None else self._last(path, params, tail)
        async for entry in pages:
            yield weft.LogLine.of(entry)

    async def _last(self, path: str, params: Mapping[str, Any], tail: int) -> AsyncIterator[dict[str, Any]]:
        """The last ``tail`` lines, page by page from the end. A search that stopped for its time is continued."""
        parts: builtins.list[builtins.list[dict[str, Any]]] = []
        before: int | None = None
        left = tail
        while left > 0:
            query = {**params, "before": before}
            page = await self._http.json("GET", path, params={**query, "tail": min(left, _LONGEST_PAGE)})
            lines = list(page["lines"])
            before = page.get("previous")
            while page.get("more"):  # a page is limited in bytes, too: the newest lines are on a later one
                page = await self._http.json("GET", path, params={**query, "after": page["next"]})
                lines += page["lines"]
            parts.insert(0, lines[:left])
            left -= len(lines)
            if before is None:
                break
        for part in parts:
            for entry in part:
                yield entry

    def follow_logs(
        self,
        id: str,  # noqa: A002
        *,
        rank: int | None = None,
        role: str | None = None,
        attempt: int | None = None,
        stream: str | None = None,
        since: datetime | str | None = None,
        search: str | None = None,
        tail: int | None = None,
        after: int | None = None,
        on_cut: CutListener = _silent,
    ) -> AsyncFollow:
        """The job's output as it comes; every line once, over any number of broken connections.

        Iterate over its events and read `weft.LogLine.of(event.data)`, or use `Job.logs(follow=True)`. After the last
        event, `.end` says how the job ended. ``after``: the `seq` of the last line that was seen.
        """
        params = _log_params(rank=rank, role=role, attempt=attempt, stream=stream, since=since, search=search)
        # A cut before the first line must not move where the tail begins. An api that does not know `start` ignores it.
        start = None if tail is None else True
        params |= {"tail": tail, "after": after, "start": start}
        return AsyncFollow(self._http, _path(id, "logs"), params, on_cut=on_cut)

    async def series(
        self,
        id: str,  # noqa: A002
        *,
        name: str | Iterable[str] | None = None,
        rank: int | None = None,
        attempt: int | None = None,
        max_points: int | None = None,
    ) -> builtins.list[Series]:
        """Metrics as curves: one per name, context and learner; the latest value per step, the newest attempt.

        max_points: thin each out to about so many, keeping minima and maxima.
        """
        params = {"series": True, "name": _names(name), "rank": rank, "attempt": attempt, "max_points": max_points}
        answer = await self._http.json("GET", _path(id, "metrics"), params=params)
        return [weft.Series.of(series) for series in answer["series"]]

    async def metrics(
        self,
        id: str,  # noqa: A002
        name: str,
        *,
        rank: int | None = None,
        context: Mapping[str, str] | None = None,
        max_points: int | None = None,
    ) -> Series:
        """One curve: that of the lowest rank that reports it, unless ``rank`` says which.

        NotFound where nothing has been reported under that name; InvalidRequest where several contexts (say, train
        and validation) have and ``context`` does not choose.
        """
        series = await self.series(id, name=name, rank=rank, max_points=max_points)
        if context is not None:
            series = [curve for curve in series if dict(curve.context) == dict(context)]
        if not series:
            raise NotFound(f"job {id} has reported no metric '{name}'{' in this context' if context else ''} (yet)")
        lowest = min(curve.rank for curve in series)
        series = [curve for curve in series if curve.rank == lowest]
        if len(series) > 1:
            contexts = ", ".join(str(dict(curve.context)) for curve in series)
            raise InvalidRequest(f"'{name}' is reported in several contexts; choose one with context=: {contexts}")
        return series[0]

    async def points(
        self,
        id: str,  # noqa: A002
        *,
        name: str | Iterable[str] | None = None,
        rank: int | None = None,
    ) -> AsyncIterator[Point]:
        """Every stored point, as it was reported, in order."""
        params = {"name": _names(name), "rank": rank}
        async for point in self._pages(_path(id, "metrics"), "points", params):
            yield weft.Point.of(point)

    def follow_metrics(
        self,
        id: str,  # noqa: A002
        *,
        name: str | Iterable[str] | None = None,
        rank: int | None = None,
        after: int | None = None,
        on_cut: CutListener = _silent,
    ) -> AsyncFollow:
        """Every point from the first (or from ``after``) as it comes; see `follow_logs`."""
        params = {"name": _names(name), "rank": rank, "after": after}
        return AsyncFollow(self._http, _path(id, "metrics"), params, on_cut=on_cut)

    def follow_events(self, id: str, *, after: int | None = None, on_cut: CutListener = _silent) -> AsyncFollow:  # noqa: A002
        """Changes of status (kind ``history``) and of the job itself (kind ``status``: the job without its spec)."""
        return AsyncFollow(self._http, _path(id, "events"), {"after": after}, on_cut=on_cut)

    async def artifacts(
        self,
        id: str,  # noqa: A002
        *,
        prefix: str | None = None,
        attempt: int | None = None,
    ) -> AsyncIterator[Artifact]:
        """The files that the job left behind, by path."""
        after: str | None = None
        while True:
            params = {"prefix": prefix, "attempt": attempt, "after": after, "limit": 1000}
            page = await self._http.json("GET", _path(id, "artifacts"), params=params)
            for artifact in page["artifacts"]:
                yield weft.Artifact.of(artifact)
            after = page.get("next")
            if not after:
                return

    async def download(
        self,
        id: str,  # noqa: A002
        folder: str | PathLike[str],
        *,
        what: str = "results",
        attempt: int | None = None,
        force: bool = True,
        unpacked: bool = False,
        on_bytes: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> builtins.list[Path]:
        """Fetch a job's files into ``folder`` and return their paths there.

        what: ``results``, ``logs``, ``checkpoints`` (those of one attempt: by default the newest that left any) or
            ``code`` (code.zip as it was submitted).
        force: replace files that are there; otherwise Conflict is raised for files that no download wrote.
        unpacked: with ``code``: its files instead of code.zip.
        on_bytes: called with (bytes there, bytes in all).

        A file appears under its name only when it is whole; a download that was cut goes on where it stopped, also
        in a later call. NotFound where there is nothing of the kind; it names the claim where results are on one.
        """
        from weft._aio._download import download  # noqa: PLC0415 - most programs never download

        listed = [artifact async for artifact in self.artifacts(id, attempt=attempt)]
        try:
            return await download(
                self._http,
                _path(id, "artifacts"),
                listed,
                Path(folder),
                what=what,
                on_bytes=on_bytes,
                force=force,
                unpacked=unpacked,
            )
        except NotFound as error:
            if what == "results" and (place := _claim_of_results((await self.get(id)).document)):
                raise NotFound(f"the job's results are {place}: read them there") from error
            raise

    async def _pages(self, path: str, field: str, params: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The entries of all pages."""
        after: int | None = None
        while True:
            page = await self._http.json("GET", path, params={**params, "after": after})
            for entry in page[field]:
                yield entry
            after = page.get("next")
            if not page.get("more"):
                return


def _claim_of_results(job: Mapping[str, Any]) -> str:
    """Where its results are in place of the platform's store; empty: they are in that."""
    spec = job.get("spec") or {}
    outputs = spec.get("outputs")
    if not outputs:
        return ""
    claims = {store.get("id"): store.get("claim", "") for store in spec.get("data_stores") or ()}
    parts = [part for part in outputs.get("path", "").split("/") if part not in {"", "."}]
    return f"on the claim {claims.get(outputs['store'], '')} in {'/'.join([*parts, job['id'], 'attempts'])}"


def _path(id: str, *more: str) -> str:  # noqa: A002
    if not id or not id.isalnum():
        raise NotFound(f"'{id}' is no id of a job")
    return "/".join((JOBS, id, *more))


def _names(name: str | Iterable[str] | None) -> list[str] | None:
    return [name] if isinstance(name, str) else (list(name) if name is not None else None)


def _log_params(
    *,
    rank: int | None,
    role: str | None,
    attempt: int | None,
    stream: str | None,
    since: datetime | str | None,
    until: datetime | str | None = None,
    search: str | None,
) -> dict[str, Any]:
    return {
        "rank": rank,
        "role": role,
        "attempt": attempt,
        "stream": stream,
        "since": _time(since),
        "until": _time(until),
        "search": search,
    }


def _time(value: datetime | str | None) -> str | None:
    if isinstance(value, datetime):
        return value.astimezone().isoformat() if value.tzinfo is None else value.isoformat()
    return value
