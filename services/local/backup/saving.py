"""Making a backup while the platform runs: only reads, in an order in which each thing is there for what names it.

Records, then jobs, then what jobs name: their metrics, their files. Each may be newer than what was read before it,
never older: a job that the backup says has ended has all its results in it, and a job that ran then has at least what
it had stored and reported until its document was read. A job's history ends with its document. Whatever was
acknowledged before the backup began is in it.

The file gets its name when it is whole and on the disk; until then it is called ``*.part``.
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
from services.core.domain.errors import Conflict, Internal, NotFound
from services.core.domain.job import SCHEMA, Job
from services.core.ports.job_store import JobQuery
from services.core.ports.metric_store import LineQuery, PointQuery
from services.core.ports.object_store import ObjectMeta
from services.core.ports.secret_store import SecretStore
from services.core.runtime.settings import Settings
from services.core.use_cases.jobs import all_jobs, history
from services.local.backup.archive import HEAD, Writer
from services.local.backup.documents import Lines, lines_document, points_document, sources_document
from services.local.backup.keys import BackupKey
from services.local.backup.stores import TENANTS, Stores, opened
from services.local.layout import VERSION

FORMAT: Final = 1
BOOTSTRAP: Final = ("admin-key",)
"""Secrets of the installation that belong to its users. (Not the services' own: the next platform has another.)"""
INSTALLATION: Final = "installation"
RECORDS: Final = "records"
"""Where a secret was kept."""
Progress = Callable[[int, int], None]
Report = Callable[[str], None]
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EMLINK})
"""What file systems without links answer: those of memory sticks, some of networks."""
_PAGE: Final = 5_000
_TRIES: Final = 3
_README: Final = b"""\
A backup of a Weft platform. `weft restore FILE --dry-run` says what is in it, `weft backup --verify FILE` whether it
is whole. Jobs, records, metrics and files lie here as they were; secrets are sealed under a key that is not here.
"""


async def back_up(
    settings: Settings, target: Path, key: BackupKey, *, report: Report, progress: Progress
) -> dict[str, Any]:
    """Writes ``target``; what is in it: counts by kind, and ``warnings`` of what could not be read."""
    with _new_file(target) as file:
        async with opened(settings, writing=False) as stores:
            saving = Saving(stores, Writer(file), key, progress)
            counts = await saving.run()
    for warning in saving.warnings:
        report(warning)
    return {"counts": counts, "warnings": saving.warnings, "bytes": target.stat().st_size}


@contextlib.contextmanager
def _new_file(target: Path) -> Generator[BinaryIO]:
    """A file that gets its name only when the block has ended well; 0600, durable. Conflict where there is one."""
    if target.exists():
        raise Conflict(f"{target} is there already; choose another name, or name a folder")
    part = target.with_name(target.name + ".part")
    try:
        with os.fdopen(_alone(part), "wb") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                _name(part, target)
            finally:
                part.unlink(missing_ok=True)
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise files.translated(error, f"the backup {target}") from error


def _alone(part: Path) -> int:
    """A descriptor of the empty file, which is locked. Conflict where another backup is writing it."""
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # What we opened may have become somebody's backup before we had the lock.
        if not os.path.samestat(os.fstat(descriptor), part.stat()) or os.fstat(descriptor).st_nlink > 1:
            raise BlockingIOError
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, 0)  # of a backup that was killed
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        raise Conflict(f"another backup is writing {part}; choose another name, or wait for its end") from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _name(part: Path, target: Path) -> None:
    """Never in place of a file that is there: by a link, where the file system has links."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise Conflict(f"{target} is there already; choose another name") from None
    except OSError as error:
        if error.errno not in _NO_LINKS or target.exists():
            raise
        part.rename(target)


class Saving:
    """One backup on its way."""

    def __init__(self, stores: Stores, writer: Writer, key: BackupKey, progress: Progress) -> None:
        self._stores, self._writer, self._key, self._progress = stores, writer, key, progress
        self.counts: Counter[str] = Counter()
        self.warnings: list[str] = []
        self._whole = 0

    async def run(self) -> dict[str, int]:
        """Everything, in the order that the module tells."""
        self._writer.put(HEAD, json.dumps(self._described(), indent=1).encode())
        self._writer.put("README.txt", _README)
        self._whole = sum([meta.size async for meta in self._listed()])
        await self._records()
        job_ids = [*await self._jobs(), *await self._unreadable()]
        await self._secrets()
        for job_id in job_ids:
            await self._metrics(job_id)
        await self._objects()
        counts = dict(sorted(self.counts.items()))
        self._writer.finish(counts, self._key.mac)
        return counts

    def _described(self) -> dict[str, Any]:
        settings = self._stores.settings
        return {
            "format": FORMAT,
            "weft": importlib.metadata.version("weft-platform"),
            "created": time.time_ns() // 1_000_000,
            "job_store": settings.job_store.partition(":")[0],  # the rest may hold a password
            "schemas": {"home": VERSION, "job": SCHEMA},
            "key": self._key.described(),
        }

    def _tell(self) -> None:
        self._progress(self._writer.bytes, max(self._whole, self._writer.bytes))

    async def _records(self) -> None:
        lines = Lines(self._writer, "records")
        for kind in await self._stores.records.kinds():
            after: str | None = None
            while kind != SECRETS and (page := await self._stores.records.find(kind, {}, after=after)):
                for one in page:
                    lines.add({"kind": kind, "id": one.id, "body": dump(one.body), "index": dict(one.index)})
                    self.counts["records"] += 1
                after = page[-1].id
        lines.flush()
        for bad in await self._stores.records.unreadable():
            self._warn(f"a record is not in the backup: {bad.id} of {bad.kind} cannot be read: {bad.why}")

    async def _jobs(self) -> list[str]:
        lines, ids = Lines(self._writer, "jobs"), []
        async for job in all_jobs(self._stores.jobs, JobQuery(deleted=True)):
            lines.add({"job": dump(job), "history": await self._history(job)})
            ids.append(job.id)
            self._tell()
        lines.flush()
        self.counts["jobs"] += len(ids)
        return ids

    async def _history(self, job: Job) -> list[Any]:
        """Up to what the document knows: what came since belongs to a document that is not in the backup."""
        events = [one for one in await history(self._stores.jobs, job) if one.seq <= job.history_seq]
        self.counts["events"] += len(events)
        return [dump(one) for one in events]

    async def _unreadable(self) -> list[str]:
        lines, ids, after = Lines(self._writer, "unreadable"), [], ""
        while True:
            page, after = await self._stores.jobs.unreadable(after=after)
            for one in page:
                lines.add({"id": one.id, "why": one.why, "document": dump(one.document)})
                ids.append(one.id)
            if not after:
                break
        lines.flush()
        if ids:
            self.counts["unreadable"] += len(ids)
            self._warn(f"{len(ids)} job documents cannot be read; they are kept, but not restored: {', '.join(ids)}")
        return ids

    async def _secrets(self) -> None:
        """Sealed under the backup's key one by one as they are read: at no time is there a list of them all."""
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
                number += 1
                entry = f"secrets/{number:06d}.sealed"
                text = json.dumps({"where": where, "name": name, "value": value.hex()}).encode()
                self._writer.put(entry, self._key.seal(entry, text))
        self.counts["secrets"] = number

    async def _metrics(self, job_id: str) -> None:
        try:
            await self._metrics_of(job_id)
        except (Conflict, Internal) as error:
            self._warn(f"the metrics of job {job_id} are not in the backup: {error.message}")

    async def _metrics_of(self, job_id: str) -> None:
        store = self._stores.metrics
        extent = await store.extent(job_id)
        if not extent.sources:
            return
        lines = Lines(self._writer, f"metrics/{job_id}")
        lines.add(sources_document(extent))
        places = {one.source: at for at, one in enumerate(extent.sources)}
        reached = 0
        while reached < extent.lines:
            page = await store.lines(job_id, LineQuery(after_seq=reached, before_seq=extent.lines + 1), limit=_PAGE)
            if not page:
                break  # deleted meanwhile
            lines.add(lines_document(page, places))
            reached = page[-1].seq
            self._tell()
        self.counts["lines"] += reached
        reached = 0
        while reached < extent.points:
            limit = min(_PAGE, extent.points - reached)
            found = await store.points(job_id, PointQuery(after_seq=reached), limit=limit)
            if not found:
                break
            lines.add(points_document(found, places))
            reached = found[-1].seq
            self._tell()
        self.counts["points"] += reached
        lines.flush()

    async def _listed(self) -> AsyncIterator[ObjectMeta]:
        after: str | None = None
        while page := await self._stores.objects.list(TENANTS, after=after):
            for meta in page:
                yield meta
            after = page[-1].key

    async def _objects(self) -> None:
        async for meta in self._listed():
            await self._object(meta)

    async def _object(self, meta: ObjectMeta) -> None:
        """Again where it was written anew meanwhile; not where it was deleted."""
        found: ObjectMeta | None = meta
        for _ in range(_TRIES):
            if found is None:
                return
            with contextlib.suppress(NotFound):
                if await self._writer.stream(f"objects/{found.key}", found.size, self._told(found.key)):
                    self.counts["files"] += 1
                    self.counts["file bytes"] += found.size
                    return
            found = await self._stores.objects.head(meta.key)
        self._warn(f"{meta.key} kept changing and is not in the backup")

    async def _told(self, key: str) -> AsyncIterator[bytes]:
        async for chunk in self._stores.objects.get(key):
            yield chunk
            self._tell()

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
