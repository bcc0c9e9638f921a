"""Writes a backup while the platform runs. It only reads the stores, and in an order that keeps references intact.

Records come first, then jobs, then what jobs refer to: their metrics and files. Each part may be newer than the parts
before it, never older. So a job that has ended in the backup has all its results there, and a job that was running has
at least what it had stored and reported when its document was read. A job's history ends with its document. Everything
acknowledged before the backup began is in it.

The file is named ``*.part`` until it is complete and durable.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.metadata
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from services.core.adapters.encrypted.store import KIND as SECRETS
from services.core.adapters.folder import files
from services.core.domain.codec import dump
from services.core.domain.errors import Conflict, Internal, NotFound, TooLarge
from services.core.domain.job import SCHEMA, Job
from services.core.ports.job_store import JobQuery
from services.core.ports.metric_store import LineQuery, PointQuery, StoredLine, StoredPoint
from services.core.ports.object_store import ObjectMeta
from services.core.ports.secret_store import SecretStore
from services.core.runtime.durable_files import sync_folder
from services.core.runtime.settings import Settings
from services.core.use_cases.jobs import all_jobs, history
from services.local.backup.archive import HEAD, Writer
from services.local.backup.documents import Lines, line_rows, point_rows, source_rows
from services.local.backup.keys import BackupKey
from services.local.backup.stores import TENANTS, Stores, opened
from services.local.layout import VERSION

FORMAT: Final = 2
"""2: a list may continue in further documents."""
BOOTSTRAP: Final = ("admin-key",)
"""Secrets of the installation that belong to its users. Services make new private keys; those are not saved."""
INSTALLATION: Final = "installation"
RECORDS: Final = "records"
"""Where a secret was stored."""
Progress = Callable[[int, int], None]
Report = Callable[[str], None]
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EMLINK})
"""Errors of file systems without hard links (FAT, some network file systems)."""
_PAGE: Final = 5_000
_TRIES: Final = 3
_README: Final = b"""\
A backup of a Weft platform. `weft restore FILE --dry-run` says what is in it, `weft backup --verify FILE` whether it
is whole. Jobs, records, metrics and files lie here as they were; secrets are sealed under a key that is not here.
"""


async def back_up(
    settings: Settings, target: Path, key: BackupKey, *, report: Report, progress: Progress
) -> dict[str, Any]:
    """Writes ``target``. Returns ``{counts, warnings, bytes}``; ``warnings`` name what could not be read."""
    with _new_file(target) as file:
        async with opened(settings, writing=False) as stores:
            saving = Saving(stores, Writer(file), key, progress)
            counts = await saving.run()
    for warning in saving.warnings:
        report(warning)
    return {"counts": counts, "warnings": saving.warnings, "bytes": target.stat().st_size}


@contextlib.contextmanager
def _new_file(target: Path) -> Generator[BinaryIO]:
    """A file (mode 0600) that becomes ``target``, durably, if the block succeeds. Raises Conflict if it exists."""
    if target.exists():
        raise Conflict(f"{target} exists already; choose another name, or name a folder")
    part = target.with_name(target.name + ".part")
    try:
        with os.fdopen(_lock_part(part), "wb") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                _rename_new(part, target)
            finally:
                part.unlink(missing_ok=True)
        sync_folder(target.parent)
    except OSError as error:
        raise files.translated(error, f"the backup {target}") from error


def _lock_part(part: Path) -> int:
    """A descriptor of the file, emptied and locked. Raises Conflict if another backup is writing it."""
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another backup may have finished, and renamed this file, before we had the lock.
        if not os.path.samestat(os.fstat(descriptor), part.stat()) or os.fstat(descriptor).st_nlink > 1:
            raise BlockingIOError
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, 0)  # a killed backup may have left content
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        raise Conflict(f"another backup is writing {part}; choose another name, or wait for its end") from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _rename_new(part: Path, target: Path) -> None:
    """Renames without replacing an existing file: by a hard link, if the file system has them."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise Conflict(f"{target} exists already; choose another name") from None
    except OSError as error:
        if error.errno not in _NO_LINKS or target.exists():
            raise
        part.rename(target)


class Saving:
    """The writing of one backup."""

    def __init__(self, stores: Stores, writer: Writer, key: BackupKey, progress: Progress) -> None:
        self._stores, self._writer, self._key, self._progress = stores, writer, key, progress
        self.counts: Counter[str] = Counter()
        self.warnings: list[str] = []
        self._total_bytes = 0

    async def run(self) -> dict[str, int]:
        """Writes everything, in the order that the module describes. Returns counts by kind."""
        self._writer.put(HEAD, json.dumps(self._head(), indent=1).encode())
        self._writer.put("README.txt", _README)
        self._total_bytes = sum([meta.size async for meta in self._all_objects()])
        await self._records()
        job_ids = [*await self._jobs(), *await self._unreadable()]
        await self._secrets()
        for job_id in job_ids:
            await self._metrics(job_id)
        await self._objects()
        counts = dict(sorted(self.counts.items()))
        self._writer.finish(counts, self._key.mac)
        return counts

    def _head(self) -> dict[str, Any]:
        settings = self._stores.settings
        return {
            "format": FORMAT,
            "weft": importlib.metadata.version("weft-platform"),
            "created": time.time_ns() // 1_000_000,
            "job_store": settings.job_store.partition(":")[0],  # the rest may hold a password
            "schemas": {"home": VERSION, "job": SCHEMA},
            "key": self._key.described(),
        }

    def _report_progress(self) -> None:
        self._progress(self._writer.bytes, max(self._total_bytes, self._writer.bytes))

    async def _records(self) -> None:
        lines = Lines(self._writer, "records")
        for kind in await self._stores.records.kinds():
            after: str | None = None
            while kind != SECRETS and (page := await self._stores.records.find(kind, {}, after=after)):
                for record in page:
                    document = {"kind": kind, "id": record.id, "body": dump(record.body), "index": dict(record.index)}
                    with self._left_out_if_too_large():
                        lines.add(document, what=f"record {record.id} of {kind}")
                        self.counts["records"] += 1
                after = page[-1].id
        lines.flush()
        for unreadable in await self._stores.records.unreadable():
            name = f"{unreadable.id} of {unreadable.kind}"
            self._warn(f"a record is not in the backup: {name} cannot be read: {unreadable.why}")

    async def _jobs(self) -> list[str]:
        lines, ids = Lines(self._writer, "jobs"), []
        async for job in all_jobs(self._stores.jobs, JobQuery(deleted=True)):
            events = await self._history(job)
            with self._left_out_if_too_large():
                lines.add_list("history", events, {"job": dump(job)}, what=f"job {job.id}")
                self.counts["events"] += len(events)
                ids.append(job.id)
            self._report_progress()
        lines.flush()
        self.counts["jobs"] += len(ids)
        return ids

    async def _history(self, job: Job) -> list[Any]:
        """The events up to ``history_seq`` of this document: later ones belong to a newer document."""
        return [dump(event) for event in await history(self._stores.jobs, job) if event.seq <= job.history_seq]

    async def _unreadable(self) -> list[str]:
        lines, ids, after = Lines(self._writer, "unreadable"), [], ""
        while True:
            page, after = await self._stores.jobs.unreadable(after=after)
            for job in page:
                document = {"id": job.id, "why": job.why, "document": dump(job.document)}
                with self._left_out_if_too_large():
                    lines.add(document, what=f"the unreadable document of job {job.id}")
                    ids.append(job.id)
            if not after:
                break
        lines.flush()
        if ids:
            self.counts["unreadable"] += len(ids)
            self._warn(f"{len(ids)} job documents cannot be read; they are kept, but not restored: {', '.join(ids)}")
        return ids

    async def _secrets(self) -> None:
        """Encrypts each secret under the backup's key as it is read; no list of plain secrets ever exists."""
        secrets, number = await self._stores.secrets(), 0
        kept: tuple[tuple[str, SecretStore, Sequence[str]], ...] = (
            (INSTALLATION, self._stores.installation, BOOTSTRAP),
            (RECORDS, secrets, await secrets.names()),
        )
        for where, store, names in kept:
            for name in names:
                try:
                    value = await store.get(name)
                except (Conflict, Internal) as error:
                    self._warn(f"a secret is not in the backup: {error.message}")
                    continue
                if value is None:
                    continue
                entry = f"secrets/{number + 1:06d}.sealed"
                text = json.dumps({"where": where, "name": name, "value": value.hex()}).encode()
                with self._left_out_if_too_large(f"secret {name}: "):
                    self._writer.put(entry, self._key.seal(entry, text))
                    number += 1
        self.counts["secrets"] = number

    async def _metrics(self, job_id: str) -> None:
        try:
            await self._metrics_of(job_id)
        except (Conflict, Internal, TooLarge) as error:
            self._warn(f"the metrics of job {job_id} are not in the backup: {error.message}")

    async def _metrics_of(self, job_id: str) -> None:
        store = self._stores.metrics
        extent = await store.extent(job_id)
        if not extent.sources:
            return
        lines = Lines(self._writer, f"metrics/{job_id}")
        lines.add_list("sources", source_rows(extent), what=f"a source of job {job_id}")
        places = {state.source: index for index, state in enumerate(extent.sources)}
        reached = 0
        while reached < extent.lines:
            page = await store.lines(job_id, LineQuery(after_seq=reached, before_seq=extent.lines + 1), limit=_PAGE)
            if not page:
                break  # the job's metrics were deleted meanwhile
            self._check_continuous(job_id, "lines", page, reached)
            lines.add_list("lines", line_rows(page, places), what=f"a log line of job {job_id}")
            reached = page[-1].seq
            self._report_progress()
        self.counts["lines"] += reached
        reached = 0
        while reached < extent.points:
            limit = min(_PAGE, extent.points - reached)
            points = await store.points(job_id, PointQuery(after_seq=reached, usage=True), limit=limit)
            if not points:
                break
            self._check_continuous(job_id, "points", points, reached)
            lines.add_list("points", point_rows(points, places), what=f"a metric point of job {job_id}")
            reached = points[-1].seq
            self._report_progress()
        self.counts["points"] += reached
        lines.flush()

    @staticmethod
    def _check_continuous(
        job_id: str, kind: str, page: Sequence[StoredLine] | Sequence[StoredPoint], after: int
    ) -> None:
        """Raises Internal if the page lacks some: what follows could not be restored."""
        if [entry.seq for entry in page] != list(range(after + 1, after + 1 + len(page))):
            raise Internal(f"{kind} of job {job_id} are missing in the store after number {after}")

    async def _all_objects(self) -> AsyncIterator[ObjectMeta]:
        after: str | None = None
        while page := await self._stores.objects.list(TENANTS, after=after):
            for meta in page:
                yield meta
            after = page[-1].key

    async def _objects(self) -> None:
        async for meta in self._all_objects():
            await self._object(meta)

    async def _object(self, meta: ObjectMeta) -> None:
        """Writes one object; again if it was replaced meanwhile, not at all if it was deleted."""
        current: ObjectMeta | None = meta
        for _ in range(_TRIES):
            if current is None:
                return
            with contextlib.suppress(NotFound):
                if await self._writer.stream(f"objects/{current.key}", current.size, self._chunks(current.key)):
                    self.counts["files"] += 1
                    self.counts["file bytes"] += current.size
                    return
            current = await self._stores.objects.head(meta.key)
        self._warn(f"{meta.key} kept changing and is not in the backup")

    async def _chunks(self, key: str) -> AsyncIterator[bytes]:
        async for chunk in self._stores.objects.get(key):
            yield chunk
            self._report_progress()

    @contextlib.contextmanager
    def _left_out_if_too_large(self, what: str = "") -> Generator[None]:
        """Warns of what the block could not write because no reader would accept it."""
        try:
            yield
        except TooLarge as error:
            self._warn(f"not in the backup: {what}{error.message}")

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
