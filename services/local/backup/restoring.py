"""Checks a backup, and restores a platform from it.

It reads the file twice: the first pass checks every byte and writes nothing; the second pass writes. A marker
(``restoring.json`` in the home) exists from before the first change until after the last. While it exists the platform
does not start, and an interrupted restore is simply run again: each restore first removes what is there.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from services.core.bootstrap import wiring
from services.core.domain.codec import MALFORMED
from services.core.domain.errors import Conflict, InvalidRequest, Unavailable
from services.core.domain.job import SCHEMA
from services.core.domain.status import Status
from services.core.ports.job_store import DispatcherDoc, JobQuery
from services.core.ports.metric_store import SourceState, Stored
from services.core.runtime.address import Address
from services.core.runtime.home import Home
from services.core.runtime.processes import read_live_process
from services.core.runtime.settings import Settings
from services.core.use_cases.jobs import all_jobs
from services.local.backup import restore_marker
from services.local.backup.archive import HEAD, Entry, Reader, Refused, Void
from services.local.backup.documents import (
    Continuous,
    documents,
    read_history,
    read_record,
    read_saved_job,
    read_sources,
    read_stored,
    whole_jobs,
)
from services.local.backup.jobs import as_restored
from services.local.backup.keys import BackupKey
from services.local.backup.saving import BOOTSTRAP, FORMAT, INSTALLATION, Progress
from services.local.backup.stores import TENANTS, Stores, opened
from services.local.layout import ETCD, PROGRAMS, VERSION, prepare
from services.local.learner_folders import end_learners, remove_learners

_OPERATIONS: Final = "-ops"
_CONNECT_S: Final = 5.0
_EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - compared only
_IN_PODS: Final = frozenset({"api", "guardian", "lcm", "metrics", "worker"})
"""The services that the chart starts."""
_THIS_MACHINE: Final = frozenset({"127.0.0.1", "localhost", "::1"})
"""Processes of this machine are known by their files."""
_CONCURRENT_WRITES: Final = 64
"""Concurrent writes share the store's fsyncs."""
_KINDS_AT_START: Final = frozenset({"keys", "secrets"})
"""Kinds of records that a platform creates at its first start."""
FindKey = Callable[[dict[str, Any]], BackupKey]


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a full check of a backup."""

    head: dict[str, Any]
    counts: dict[str, int]
    key: BackupKey | None
    warnings: list[str] = field(default_factory=list)
    """What it lacks, a sentence each. It can be restored without that."""


def check(path: Path, find_key: FindKey | None, *, progress: Progress) -> Checked:
    """Reads every byte. Raises Refused with the name of the first damaged entry.

    ``find_key`` returns the key for the description in the head. With None, secrets are not decrypted and the HMAC is
    not checked.
    """
    with _opened_file(path) as (file, size):
        return _check(file, size, find_key, progress)


def _check(file: BinaryIO, size: int, find_key: FindKey | None, progress: Progress) -> Checked:
    reader, key = Reader(file), None
    head: dict[str, Any] = {}
    job_id, numbers, warnings = "", Continuous(), list[str]()
    for entry in reader:
        if isinstance(entry, Void):
            continue
        if not head:
            head = _read_head(entry)
            key = find_key(head.get("key", {})) if find_key is not None else None
        elif entry.name.startswith("secrets/") and key is not None:
            key.unseal(entry.name, entry.read())
        elif entry.name.startswith("metrics/"):
            if _job_of(entry) != job_id:
                warnings += numbers.warnings(job_id)
                job_id, numbers = _job_of(entry), Continuous()
            _check_documents(entry, numbers)
        elif entry.name.startswith(("records/", "jobs/")):
            _check_documents(entry, numbers)
        progress(reader.place, size)
        for _ in entry.chunks():
            progress(reader.place, size)
    if key is not None and key.mac(reader.authenticated) != reader.end["mac"]:
        raise Refused("the backup is whole, but was not written with this key: it was changed")
    return Checked(head, reader.end["counts"], key, [*warnings, *numbers.warnings(job_id)])


def _check_documents(entry: Entry, numbers: Continuous) -> None:
    """Reads all documents as the restore will. ``numbers`` are those of the job whose metrics are in the entry."""
    kind, first = entry.name.partition("/")[0], entry.name.endswith("/000001.jsonl.gz")
    try:
        for document in documents(entry.name, entry.chunks()):
            if kind == "records":
                read_record(document)
            elif kind == "jobs":
                if first or "job" in document:
                    read_saved_job(document)
                read_history(document)
            elif first or "sources" in document:
                read_sources(document)
            else:
                numbers.part(document)
            first = False
    except (IndexError, Conflict, *MALFORMED) as error:
        raise Refused(f"entry {entry.name} of the backup cannot be read: {error!r}") from None


def _job_of(entry: Entry) -> str:
    """The job of an entry of metrics."""
    return entry.name.split("/")[1]


def _read_head(entry: Entry) -> dict[str, Any]:
    try:
        head: dict[str, Any] = json.loads(entry.read()) if entry.name == HEAD else {}
        written, schemas = int(head["format"]), {name: int(version) for name, version in head["schemas"].items()}
    except MALFORMED:
        raise Refused(f"this is no Weft backup: it does not begin with a valid {HEAD}") from None
    ours = {"home": VERSION, "job": SCHEMA}
    newer = [name for name, version in schemas.items() if version > ours.get(name, 0)]
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
def _platform_stopped(home: Home) -> Generator[None]:
    """Holds the supervisor's lock, so that the platform cannot start. Raises Conflict if it runs."""
    prepare(home)
    stop = home.command("down")
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"Weft runs in {home.root}; stop it with `{stop}`, then restore") from None
        running = [
            program.name
            for program in (ETCD, *PROGRAMS)
            if read_live_process(home / "run" / f"{program.name}.json") is not None
        ]
        if running:
            raise Conflict(f"{', '.join(running)} still run in {home.root}; stop them with `{stop}`, then restore")
        _check_containers_stopped(home)
        yield


def _check_containers_stopped(home: Home) -> None:
    """Raises Conflict if a service in another container answers: it would write to the stores meanwhile."""
    try:
        addresses = home.addresses()
    except Unavailable:  # a new installation on one machine
        return
    services = {name.removesuffix(_OPERATIONS): text for name, text in addresses.items() if name.endswith(_OPERATIONS)}
    running = sorted(name for name, text in services.items() if _answers(name, Address(text)))
    if running:
        stop = stop_command(services)
        raise Conflict(f"{', '.join(running)} still run in other containers; stop them with `{stop}`, then restore")


def stop_command(services: Mapping[str, str]) -> str:
    """The command that stops services of containers or pods. ``services``: name -> operations address, as here seen."""
    for service, text in services.items():
        address = Address(text)
        host = "" if address.socket is not None else address.host_port[0]
        name, namespace, domain = [*host.split("."), "", ""][:3]
        if domain == "svc" and name.endswith(f"-{service}"):  # the chart's Service RELEASE-NAME of a namespace
            release = name.removesuffix(service)
            kinds = {name: "statefulset" if name == "metrics" else "deployment" for name in sorted(services)}
            scaled = " ".join(f"{kind}/{release}{name}" for name, kind in kinds.items() if name in _IN_PODS)
            return f"kubectl --namespace {namespace} scale --replicas=0 {scaled}"
    return f"docker compose stop {' '.join(sorted(services))}"


def _answers(service: str, address: Address) -> bool:
    """Returns True if a service of another container or machine accepts connections at its operations address."""
    if address.socket is not None:
        return False
    host, port = address.host_port
    if host in _THIS_MACHINE:
        return False
    try:
        # In the installation's files of a container its own service listens on every address.
        socket.create_connection((service if host == _EVERY_ADDRESS else host, port), _CONNECT_S).close()
    except OSError:
        return False
    return True


async def restore(
    settings: Settings,
    path: Path,
    find_key: FindKey,
    *,
    halted: bool,
    over: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Restores everything. Returns ``{counts, head, again, halted, warnings}``.

    ``warnings``: what the backup lacks. ``halted``: jobs that waited or ran are halted instead of queued. ``over``:
    what is there is removed first. Raises Refused, before any change, for a damaged backup; Conflict if the platform
    runs or is not empty.
    """
    home = settings.installation
    with _opened_file(path) as (file, size):
        checked = _check(file, size, find_key, progress)
        if checked.key is None:
            raise InvalidRequest("a backup is restored with its key")
        if settings.master_key_file is not None:  # a key file of the operator's must be readable; ours is created
            await asyncio.to_thread(wiring.master_keys(settings).keys)
        with _platform_stopped(home):
            async with opened(settings, writing=True) as stores:
                if not over and not restore_marker.is_half_restored(home):
                    await _refuse_used(stores)
                # Before the marker: it can fail, and a platform with ended learners still starts.
                end_learners(home)
                restore_marker.begin(home, {"backup": str(path), "time": time.time_ns() // 1_000_000})
                remove_learners(home)
                await _empty(stores)
                file.seek(0)
                restoring = Restoring(stores, checked.key, checked.head, halted=halted)
                await restoring.run(Reader(file), lambda place: progress(place, size))
            restore_marker.end(home)
    return {
        "counts": checked.counts,
        "head": checked.head,
        "again": restoring.queued,
        "halted": restoring.halted,
        "warnings": checked.warnings,
    }


async def _refuse_used(stores: Stores) -> None:
    """Raises Conflict unless the platform is as its first start has left it."""
    content: list[str] = []
    if await stores.jobs.find(JobQuery(deleted=True), limit=1) or (await stores.jobs.unreadable(limit=1))[0]:
        content.append("jobs")
    if await stores.objects.list(TENANTS, limit=1):
        content.append("files")
    keys, kinds = await stores.records.find("keys", {}, limit=2), set(await stores.records.kinds())
    if kinds - _KINDS_AT_START or len(keys) > 1 or await stores.records.unreadable():
        content.append("records")
    if content:
        raise Conflict(
            f"the platform in {stores.settings.home} is not empty: it has {', '.join(content)}. Restore into another "
            "WEFT_HOME (and another database), or use --replace: it removes this content first"
        )


async def _empty(stores: Stores) -> None:
    """Removes everything that jobs and records lead to. Metrics without a job stay: nothing reads them."""
    ids = [job.id async for job in all_jobs(stores.jobs, JobQuery(deleted=True))]
    after = ""
    while True:
        page, after = await stores.jobs.unreadable(after=after)
        ids += [job.id for job in page]
        if not after:
            break
    for job_id in ids:
        await stores.metrics.delete(job_id)
        await stores.jobs.delete(job_id)
    for kind in await stores.records.kinds():
        while page_of := await stores.records.find(kind, {}):
            for record in page_of:
                await stores.records.delete(kind, record.id)
    for unreadable in await stores.records.unreadable():
        await stores.records.delete(unreadable.kind, unreadable.id)
    await stores.objects.delete_prefix(TENANTS)


class Restoring:
    """The second pass: writes what the backup contains."""

    def __init__(self, stores: Stores, key: BackupKey, head: dict[str, Any], *, halted: bool) -> None:
        self._stores, self._key, self._halt = stores, key, halted
        self._saved = int(head.get("created", 0))
        created = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self._saved / 1000))
        self._message = f"from the backup of {created}"
        self._now = time.time_ns() // 1_000_000
        self.queued: list[str] = []
        """Ids of jobs that are queued, and run after the start."""
        self.halted: list[str] = []
        self._unloaded: set[str] = set()
        """Ids of the restored jobs whose metrics were not loaded yet."""
        self._term = 0

    async def run(self, reader: Reader, report_place: Callable[[int], None]) -> None:
        """Writes all entries. ``report_place`` is called with the number of bytes read so far."""
        entries = _Entries(reader, report_place)
        while (entry := entries.current) is not None:
            folder, _, name = entry.name.partition("/")
            if folder == "metrics":
                await self._metrics(entries, name.partition("/")[0])
            elif folder == "records":
                await _concurrently(map(self._record, entries.documents(folder)))
            elif folder == "jobs":
                await _concurrently(map(self._job, whole_jobs(entries.documents(folder))))
            else:
                await self._entry(entry, entries.report)
                entries.advance()
        await _concurrently(map(self._without_metrics, sorted(self._unloaded)))
        await self._raise_dispatcher_term()

    async def _entry(self, entry: Entry | Void, on_chunk: Callable[[], None]) -> None:
        folder, _, name = entry.name.partition("/")
        if isinstance(entry, Void):
            if folder == "objects":
                await self._stores.objects.delete(name)
        elif folder == "objects":
            await self._stores.objects.put(name, _chunks(entry, on_chunk))
        elif folder == "secrets":
            await self._secret(json.loads(self._key.unseal(entry.name, entry.read())))

    async def _record(self, document: Any) -> None:
        await self._stores.records.insert(read_record(document))

    async def _job(self, document: Any) -> None:
        """Writes the history before the document: an interrupted restore leaves no job without its history."""
        saved, events = read_saved_job(document), read_history(document)
        self._term = max(self._term, saved.dispatcher_term)
        now = max(self._now, saved.updated)
        job = as_restored(saved, halted=self._halt, now=now, saved=self._saved, message=self._message)
        if job.status is Status.QUEUED:
            self.queued.append(job.id)
        elif job.status is Status.HALTED and saved.status is not job.status:
            self.halted.append(job.id)
        if job.erased is None:
            self._unloaded.add(job.id)
        await self._stores.jobs.append_history(job.id, job.tenant, events)
        new_events = tuple(event for event in job.history_tail if event.seq > saved.history_seq)
        await self._stores.jobs.insert(replace(job, history_tail=new_events))

    async def _secret(self, document: dict[str, str]) -> None:
        name, value = document["name"], bytes.fromhex(document["value"])
        if document["where"] != INSTALLATION:
            await (await self._stores.secrets()).put(name, value)
        elif name in BOOTSTRAP:
            await self._stores.installation.put(name, value)

    async def _metrics(self, entries: _Entries, job_id: str) -> None:
        """Restores the metrics of one job, from all its entries."""
        sources: list[SourceState] = []
        rest = entries.documents(f"metrics/{job_id}")
        for document in rest:
            if "sources" not in document:
                rest = itertools.chain([document], rest)
                break
            sources += read_sources(document)
        await self._stores.metrics.load(job_id, sources, _stored(rest, sources))
        self._unloaded.discard(job_id)

    async def _without_metrics(self, job_id: str) -> None:
        """Loads nothing. To the store the job may be deleted: by this restore, by ``_empty``, or by an earlier one.

        Then it would refuse the job's first line.
        """
        await self._stores.metrics.load(job_id, [], _stored(iter(()), []))

    async def _raise_dispatcher_term(self) -> None:
        """Makes the next dispatcher's term greater than every term in the restored jobs."""
        prior = await self._stores.jobs.dispatcher()
        if prior.term < self._term:
            raised = DispatcherDoc(term=self._term, holder="", rev=prior.rev)
            await self._stores.jobs.replace_dispatcher(prior, raised)


class _Entries:
    """The entries of a backup, each read as far as it is needed before the next one is ``current``."""

    def __init__(self, reader: Reader, report_place: Callable[[int], None]) -> None:
        self._reader, self._report_place = reader, report_place
        self._entries = iter(reader)
        self.current = next(self._entries, None)

    def advance(self) -> None:
        self.report()
        self.current = next(self._entries, None)

    def report(self) -> None:
        self._report_place(self._reader.place)

    def documents(self, folder: str) -> Iterator[dict[str, Any]]:
        """The documents of the current entry and of those that follow it in the folder."""
        while isinstance(self.current, Entry) and self.current.name.startswith(f"{folder}/"):
            yield from documents(self.current.name, self.current.chunks())
            self.advance()


async def _concurrently(writes: Iterator[Awaitable[None]]) -> None:
    while batch := list(itertools.islice(writes, _CONCURRENT_WRITES)):
        await asyncio.gather(*batch)


async def _chunks(entry: Entry, on_chunk: Callable[[], None]) -> AsyncIterator[bytes]:
    for chunk in entry.chunks():
        yield chunk
        on_chunk()


async def _stored(parts: Iterator[Any], sources: list[SourceState]) -> AsyncIterator[Stored]:
    """What follows a gap in the numbers is left out."""
    ids, numbers = [state.source for state in sources], Continuous()
    for part in parts:
        if entries := read_stored(numbers.part(part), ids):
            yield entries
