"""Reading a backup, and bringing a platform back from it.

Twice through the file: first every byte is checked and nothing is written; then what is there is written. Before the
first change a mark is made (``restoring.json`` in the home), which goes after the last: as long as it is there the
platform does not start, and a restore that was cut is simply run again. Each begins by removing what is there, so it
never meets anything of a former one.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from services.core.bootstrap import wiring
from services.core.domain.codec import load
from services.core.domain.document import read_job
from services.core.domain.errors import Conflict, InvalidRequest, WeftError
from services.core.domain.job import SCHEMA, Event
from services.core.domain.status import Status
from services.core.ports.job_store import DispatcherDoc, JobQuery
from services.core.ports.metric_store import SourceState, Stored
from services.core.ports.record_store import Record
from services.core.runtime.home import Home
from services.core.runtime.processes import read_live_process
from services.core.runtime.settings import Settings
from services.core.use_cases.jobs import all_jobs
from services.local.backup import restore_marker
from services.local.backup.archive import HEAD, Entry, Reader, Refused, Void
from services.local.backup.documents import documents, read_sources, read_stored
from services.local.backup.jobs import as_restored
from services.local.backup.keys import BackupKey
from services.local.backup.saving import BOOTSTRAP, FORMAT, INSTALLATION, Progress
from services.local.backup.stores import TENANTS, Stores, opened
from services.local.layout import ETCD, PROGRAMS, VERSION, prepare

_AT_ONCE: Final = 64
"""Writes under way at once: they share the store's fsyncs."""
_OWN: Final = frozenset({"keys", "secrets"})
"""Kinds of records that a platform has by itself once it was started."""
FindKey = Callable[[dict[str, Any]], BackupKey]


@dataclass(frozen=True, slots=True)
class Checked:
    """What a whole pass over a backup has shown."""

    head: dict[str, Any]
    counts: dict[str, int]
    key: BackupKey | None


def check(path: Path, find_key: FindKey | None, *, progress: Progress) -> Checked:
    """Reads every byte. Refused, naming the entry, where anything is not as it was written.

    ``find_key``: the key for a backup with such a head; None: secrets are not opened, and who wrote it is not proved.
    """
    with _opened_file(path) as (file, size):
        return _check(file, size, find_key, progress)


def _check(file: BinaryIO, size: int, find_key: FindKey | None, progress: Progress) -> Checked:
    reader, key = Reader(file), None
    head: dict[str, Any] = {}
    for entry in reader:
        if isinstance(entry, Void):
            continue
        if not head:
            head = _read_head(entry)
            key = find_key(head.get("key", {})) if find_key is not None else None
        elif entry.name.startswith("secrets/") and key is not None:
            key.unseal(entry.name, entry.read())
        for _ in entry.chunks():
            progress(reader.place, size)
    if key is not None and key.mac(reader.said) != reader.end["mac"]:
        raise Refused("the backup is whole, but was not written with this key: somebody has changed it")
    return Checked(head, reader.end["counts"], key)


def _read_head(entry: Entry) -> dict[str, Any]:
    try:
        head: dict[str, Any] = json.loads(entry.read()) if entry.name == HEAD else {}
        written, schemas = int(head["format"]), {name: int(one) for name, one in head["schemas"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused(f"this is no backup of Weft's: it does not begin with a right {HEAD}") from None
    ours = {"home": VERSION, "job": SCHEMA}
    newer = [name for name, one in schemas.items() if one > ours.get(name, 0)]
    if written > FORMAT or newer:
        raise Refused(
            f"the backup was written by a newer Weft ({head.get('weft')}; format {written}, {schemas}), and this one "
            f"reads format {FORMAT}, {ours}; upgrade Weft, then restore"
        )
    return head


@contextmanager
def _opened_file(path: Path) -> Generator[tuple[BinaryIO, int]]:
    try:
        with path.open("rb") as file:
            yield file, os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise InvalidRequest(f"there is no backup {path}") from None
    except IsADirectoryError:
        raise InvalidRequest(f"{path} is a folder; name the backup in it") from None


# --- the platform that is restored -------------------------------------------------


@contextmanager
def _standing_still(home: Home) -> Generator[None]:
    """Nobody starts the platform meanwhile. Conflict where it runs."""
    prepare(home)
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"Weft runs in {home.root}; stop it with `weft down`, then restore") from None
        left = [
            one.name for one in (ETCD, *PROGRAMS) if read_live_process(home / "run" / f"{one.name}.json") is not None
        ]
        if left:
            raise Conflict(f"{', '.join(left)} still run in {home.root}; stop them with `weft down`, then restore")
        yield


async def restore(
    settings: Settings,
    path: Path,
    find_key: FindKey,
    *,
    halted: bool,
    over: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Brings back everything. ``halted``: what waits or ran is halted. ``over``: in place of what is there.

    Refused, and nothing was changed, where the backup is not whole; Conflict where the platform runs or is not empty.
    """
    home = settings.installation
    with _opened_file(path) as (file, size):
        checked = _check(file, size, find_key, progress)
        if checked.key is None:
            raise InvalidRequest("a backup is restored with its key")
        if settings.master_key_file is not None:  # one that is made here can be made again
            await asyncio.to_thread(wiring.master_keys(settings).keys)
        with _standing_still(home):
            async with opened(settings, writing=True) as stores:
                if not over and not restore_marker.is_half_restored(home):
                    await _refuse_used(stores)
                restore_marker.begin(home, {"backup": str(path), "time": time.time_ns() // 1_000_000})
                _end_learners(home)
                await _empty(stores)
                file.seek(0)
                restoring = Restoring(stores, checked.key, checked.head, halted=halted)
                await restoring.run(Reader(file), lambda place: progress(place, size))
            restore_marker.end(home)
    return {"counts": checked.counts, "head": checked.head, "again": restoring.again, "halted": restoring.halted}


async def _refuse_used(stores: Stores) -> None:
    """Conflict, unless the platform is as its first start has left it."""
    found: list[str] = []
    if await stores.jobs.find(JobQuery(deleted=True), limit=1) or (await stores.jobs.unreadable(limit=1))[0]:
        found.append("jobs")
    if await stores.objects.list(TENANTS, limit=1):
        found.append("files")
    kinds = set(await stores.records.kinds())
    if kinds - _OWN or len(await stores.records.find("keys", {}, limit=2)) > 1 or await stores.records.unreadable():
        found.append("records")
    if found:
        raise Conflict(
            f"the platform in {stores.settings.home} is not empty: it has {', '.join(found)}. Restore into another "
            "WEFT_HOME (and another database), or say --replace: then what is there is removed first"
        )


def _end_learners(home: Home) -> None:
    """What was left running, and what the node agent remembers of jobs: attempts are counted anew from the backup."""
    if not any((home / "node").iterdir()):
        return
    ended = subprocess.run(
        [sys.executable, "-m", "services.node", "end-all"], env={**os.environ, "WEFT_HOME": str(home.root)},
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    if ended.returncode:
        raise WeftError(f"some learners could not be ended: {ended.stderr.strip()[-500:]}")
    for left in (home / "node").iterdir():
        shutil.rmtree(left)


async def _empty(stores: Stores) -> None:
    """Removes everything. What of it is not reached, a job's metrics without a job, harms nobody."""
    ids = [job.id async for job in all_jobs(stores.jobs, JobQuery(deleted=True))]
    after = ""
    while True:
        page, after = await stores.jobs.unreadable(after=after)
        ids += [one.id for one in page]
        if not after:
            break
    for job_id in ids:
        await stores.metrics.delete(job_id)
        await stores.jobs.delete(job_id)
    for kind in await stores.records.kinds():
        while page_of := await stores.records.find(kind, {}):
            for record in page_of:
                await stores.records.delete(kind, record.id)
    for bad in await stores.records.unreadable():
        await stores.records.delete(bad.kind, bad.id)
    await stores.objects.delete_prefix(TENANTS)


class Restoring:
    """The second pass."""

    def __init__(self, stores: Stores, key: BackupKey, head: dict[str, Any], *, halted: bool) -> None:
        self._stores, self._key, self._halt = stores, key, halted
        made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(int(head.get("created", 0)) / 1000))
        self._message = f"from the backup of {made}"
        self._now = time.time_ns() // 1_000_000
        self.again: list[str] = []
        """Ids of jobs that wait here, and will run: of those, some ran."""
        self.halted: list[str] = []
        self._term = 0

    async def run(self, reader: Reader, told: Callable[[int], None]) -> None:
        entries = iter(reader)
        waiting = next(entries, None)
        while waiting is not None:
            entry, waiting = waiting, None
            told(reader.place)
            if isinstance(entry, Void):
                if entry.name.startswith("objects/"):
                    await self._stores.objects.delete(entry.name.removeprefix("objects/"))
            elif entry.name.startswith("metrics/"):
                waiting = await self._metrics(entry, entries)
            else:
                await self._entry(entry, lambda: told(reader.place))
            waiting = waiting or next(entries, None)
        await self._raise_dispatcher()

    async def _entry(self, entry: Entry, told: Callable[[], None]) -> None:
        folder = entry.name.partition("/")[0]
        if folder == "objects":
            await self._stores.objects.put(entry.name.removeprefix("objects/"), _bytes_of(entry, told))
        elif folder == "records":
            await self._each(entry, self._record)
        elif folder == "jobs":
            await self._each(entry, self._job)
        elif folder == "secrets":
            await self._secret(json.loads(self._key.unseal(entry.name, entry.read())))

    async def _each(self, entry: Entry, restore_one: Callable[[Any], Any]) -> None:
        """Some at once."""
        batch: list[Any] = []
        for document in documents(entry.name, entry.read()):
            batch.append(restore_one(document))
            if len(batch) == _AT_ONCE:
                await asyncio.gather(*batch)
                batch.clear()
        await asyncio.gather(*batch)

    async def _record(self, document: Any) -> None:
        record = Record(kind=document["kind"], id=document["id"], body=document["body"], index=document["index"])
        await self._stores.records.insert(record)

    async def _job(self, document: Any) -> None:
        """The history first: who dies in between leaves no job without its history."""
        job = read_job(document["job"]["id"], document["job"])
        events = [load(Event, one) for one in document["history"]]
        self._term = max(self._term, job.dispatcher_term)
        now = as_restored(job, halted=self._halt, now=max(self._now, job.updated), message=self._message)
        if now.status is Status.QUEUED:
            self.again.append(job.id)
        elif now.status is Status.HALTED and job.status is not now.status:
            self.halted.append(job.id)
        await self._stores.jobs.append_history(job.id, job.tenant, events)
        fresh = tuple(one for one in now.history_tail if one.seq > job.history_seq)
        await self._stores.jobs.insert(replace(now, history_tail=fresh))

    async def _secret(self, one: dict[str, str]) -> None:
        value = bytes.fromhex(one["value"])
        if one["where"] != INSTALLATION:
            await (await self._stores.secrets()).put(one["name"], value)
        elif one["name"] in BOOTSTRAP:
            await self._stores.installation.put(one["name"], value)

    async def _metrics(self, first: Entry, entries: Iterator[Entry | Void]) -> Entry | Void | None:
        """One job's, over all its entries; the entry behind them."""
        job_id = first.name.split("/")[1]
        behind: list[Entry | Void] = []

        def parts() -> Iterator[Any]:
            entry: Entry | Void | None = first
            while isinstance(entry, Entry) and entry.name.startswith(f"metrics/{job_id}/"):
                yield from documents(entry.name, entry.read())
                entry = next(entries, None)
            if entry is not None:
                behind.append(entry)

        every_part = parts()
        sources = read_sources(next(every_part))
        await self._stores.metrics.load(job_id, sources, _stored(every_part, sources))
        return behind[0] if behind else None

    async def _raise_dispatcher(self) -> None:
        """Terms never fall: the next dispatcher's is above all that jobs know of."""
        prior = await self._stores.jobs.dispatcher()
        if prior.term < self._term:
            raised = DispatcherDoc(term=self._term, holder="", rev=prior.rev)
            await self._stores.jobs.replace_dispatcher(prior, raised)


async def _bytes_of(entry: Entry, told: Callable[[], None]) -> AsyncIterator[bytes]:
    for chunk in entry.chunks():
        yield chunk
        told()


async def _stored(parts: Iterator[Any], sources: list[SourceState]) -> AsyncIterator[Stored]:
    ids = [one.source for one in sources]
    for part in parts:
        yield read_stored(part, ids)
