"""Stores the learner's files in the object store at its end: logs, results, and the last snapshot of its checkpoints.

    <attempt>/logs/learner-<rank+1>/training-log.txt   both streams by time (FfDL's layout)
    <attempt>/logs/learner-<rank+1>/stdout.<run> ...   the streams as they were, and the files of LOG_DIR
    <attempt>/results/<name>/...                       RESULT_DIR, unless the plan has an output (services.helper.claim)
    <attempt>/checkpoints/<name>...                    CHECKPOINT_DIR (core/domain/checkpoint.py)

May be killed at any point and done again: an object is whole or absent, and one of the right size is not sent twice. A
later run of the learner replaces results and logs of the earlier one, whatever their size: it leaves out only what it
has sent itself.
A file that cannot be stored is counted and reported, and the others are stored. A checkpoint with missing files is not
restored. Files of it that were stored while the learner trained are not sent again. While the store is full, everything
is tried again until ``store_timeout``.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from services.core.domain.checkpoint import SavedFile, StoredCheckpoint
from services.core.domain.codec import MALFORMED
from services.core.domain.errors import NoSpace, WeftError
from services.core.domain.plan import Folder
from services.core.runtime.learner_folder import RUN, RUNS_FOLDER, Assignment, LearnerFolder, job_folder
from services.helper.checkpoints.snapshots import Digests, FileChanged, SnapshotStore, as_stored
from services.helper.learner_files import LearnerFile, SkippedFile, list_files, open_file
from services.helper.log import log_event
from services.helper.objects import Objects, UrlSigner, open_objects
from services.helper.ship.lines import LINE_BYTES, split
from services.helper.ship.times import TimeIndex
from services.helper.spool import SourceState, Spool
from services.helper.threads import call_in_thread

if TYPE_CHECKING:
    from services.helper.claim import ClaimObjects

_CHUNK: Final = 2**20
_STREAMS: Final = ("stdout", "stderr")
_MERGED: Final = "training-log.txt"
_BEGUN: Final = "spool/storing"
_FULL_PAUSE_FIRST_S: Final = 1.0
_FULL_PAUSE_MOST_S: Final = 60.0
"""Between two tries after the store was full: each try reads again what is stored already."""
_BATCH: Final = 500
"""Files of a checkpoint that are written down before they are sent."""
_LOGGED: Final = 20
"""Problems that are written to the helper's log; all are counted."""


@dataclass(slots=True)
class _Problems:
    """Files with one kind of problem: how many, and the first, or the first with data of the learner."""

    count: int = 0
    first: tuple[str, str] = ("", "")
    """(name, why)."""
    first_has_data: bool = False

    def add(self, name: str, why: str, *, has_data: bool = True) -> None:
        if not self.count or (has_data and not self.first_has_data):
            self.first, self.first_has_data = (name, why), has_data
        if self.count < _LOGGED:
            log_event("file.left_out", file=name, why=why)
        self.count += 1


@dataclass(slots=True)
class _Outcome:
    """What went wrong, so far."""

    failed: _Problems = field(default_factory=_Problems)
    skipped: _Problems = field(default_factory=_Problems)
    is_full: bool = False
    incomplete_checkpoint: bool = False
    earlier_checkpoint: bool = False
    """A complete snapshot was stored while the learner trained."""
    timeout: str = ""

    def record(self, name: str, error: Exception) -> None:
        """A file could not be stored."""
        self.is_full = self.is_full or isinstance(error, NoSpace)
        self.failed.add(name, str(error))

    def message(self) -> str:
        """For people; empty if everything is stored."""
        parts = []
        if self.failed.count:
            name, why = self.failed.first
            count = f"{self.failed.count} files" if self.failed.count > 1 else "one file"
            reason = "NoSpace: " if self.is_full else ""
            parts.append(f"{reason}{count} could not be stored, the first is {name}: {why}")
        if self.timeout:
            parts.append(self.timeout)
        if self.skipped.count:
            name, why = self.skipped.first
            count = f"{self.skipped.count} files were" if self.skipped.count > 1 else "one file was"
            parts.append(f"{count} left out, the first is {name}: {why}")
        if self.incomplete_checkpoint:
            instead = "the one stored before it" if self.earlier_checkpoint else ""
            rest = f", {instead} will be" if instead else ""
            parts.append(f"the checkpoint is incomplete and will not be restored{rest}")
        return "; ".join(parts)


async def store_outputs(
    folder: LearnerFolder,
    assignment: Assignment,
    spool: Spool,
    *,
    signer: UrlSigner,
    digests: Digests,
    report_waiting: Callable[[str], None],
    report_checkpoint: Callable[[StoredCheckpoint], None],
) -> str:
    """Stores everything. Returns what could not be stored, for people; empty: nothing is missing.

    ``digests``: of checkpoints' files that were read while the learner trained. ``report_waiting`` gets the reason
    while storing waits, and "" afterwards. Returns after ``store_timeout`` at the latest.
    """
    plan, run = assignment.plan, assignment.learner.run
    prefix = f"tenants/{plan.tenant}/jobs/{plan.job}/attempts/{plan.attempt}"
    waiting = _Waiting(report_waiting)
    objects = open_objects(assignment, signer, waiting.wait, spool)
    results = _open_results(folder, assignment, waiting)
    storing = _Storing(objects, folder.root, assignment.learner_uid, waiting, run=run, again=folder.has(_BEGUN))
    snapshots = SnapshotStore(
        objects, assignment, folder.root, spool, learners=_gang_size(folder, assignment), step=call_in_thread
    )
    snapshots.digests = digests
    with contextlib.suppress(OSError):  # without the mark, stored objects are only sent again
        folder.path(_BEGUN).touch()
    try:
        async with asyncio.timeout(plan.store_timeout / 1000):
            pause_s = _FULL_PAUSE_FIRST_S
            while True:
                await _store_logs(storing, f"{prefix}/logs/learner-{assignment.learner.rank + 1}", spool, run)
                if results is None:
                    await storing.store_tree(job_folder(Folder.RESULT), f"{prefix}/results/{assignment.learner.name}")
                else:
                    await storing.store_tree(job_folder(Folder.RESULT), results.key, target=results.objects)
                await _store_checkpoints(storing, snapshots, report_checkpoint)
                if not storing.outcome.is_full:
                    break
                await waiting.wait(pause_s, storing.outcome.message())
                pause_s = min(2 * pause_s, _FULL_PAUSE_MOST_S)
                storing.start_again()
    except TimeoutError:
        if not storing.outcome.is_full:  # else that is the reason
            allowed = plan.store_timeout // 1000
            why = f": {waiting.reason}" if waiting.reason else ""
            storing.outcome.timeout = (
                f"storing took longer than the job's store_timeout ({allowed} s), so files are missing{why}"
            )
    if results is not None:
        await results.objects.close()
    await objects.close()
    return storing.outcome.message()


class Target(Protocol):
    """Where objects are stored, as of ``Objects``."""

    async def size(self, key: str) -> int | None: ...
    async def put(self, key: str, read: Callable[[], AsyncGenerator[bytes]], size: int | None = None) -> None: ...


class _Results(NamedTuple):
    """Where results are stored in place of the platform's store."""

    objects: ClaimObjects
    key: str


def _open_results(folder: LearnerFolder, assignment: Assignment, waiting: _Waiting) -> _Results | None:
    output = assignment.plan.output
    if output is None:
        return None
    from services.helper.claim import ClaimObjects, claim_of, results_key  # noqa: PLC0415 - most jobs have no output

    claim = claim_of(folder, assignment, output)
    return _Results(ClaimObjects(claim, waiting.wait), results_key(assignment, output))


class _Waiting:
    """Waits for temporary failures and reports them."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.reason = ""
        self._report = report

    async def wait(self, seconds: float, reason: str) -> None:
        if reason != self.reason:  # reported once: it may last for long
            self.reason = reason
            log_event("store.waits", why=reason)
            self._report(f"storing waits: {reason}")
        await asyncio.sleep(seconds)

    def end(self) -> None:
        if self.reason:
            self.reason = ""
            self._report("")


class _Storing:
    """Moves files of one learner's folder into the store."""

    def __init__(self, objects: Objects, root: Path, uid: int, waiting: _Waiting, *, run: int, again: bool) -> None:
        """``again``: an earlier helper of this ``run`` has begun, and some objects may exist."""
        self.root = root
        self.uid = uid
        self.outcome = _Outcome()
        self._again = again
        self._sent: dict[str, int] | None = {} if run > 1 else None
        """Sizes of objects that were sent, by key. None: there is no earlier run whose objects may have their names."""
        self._waiting = waiting
        self._objects = objects

    def end_waiting(self) -> None:
        self._waiting.end()

    def start_again(self) -> None:
        """For another try of everything: objects that exist are not sent again."""
        self.outcome, self._again = _Outcome(), True

    async def store_tree(
        self,
        parts: tuple[str, ...],
        key: str,
        *,
        taken: frozenset[str] = frozenset(),
        target: Target | None = None,
    ) -> None:
        """Stores every plain file below the folder; ``taken``: names that are left out.

        ``target``: where; None: in the platform's store.
        """
        listing = list_files(self.root, parts, self.uid)
        while (file := await call_in_thread(lambda: next(listing, None))) is not None:
            if isinstance(file, LearnerFile) and file.name in taken:
                file = SkippedFile(file.name, "the name is taken by the platform's own logs", has_data=True)
            if isinstance(file, SkippedFile):
                self.outcome.skipped.add(file.name, file.why, has_data=file.has_data)
                continue
            await self.store_file((*parts, *file.path.split("/")), f"{key}/{file.name}", file.size, target)

    async def store_file(self, parts: tuple[str, ...], key: str, size: int, target: Target | None = None) -> None:
        def read() -> Iterator[bytes]:
            # No more bytes than were listed: the size is part of the request.
            fd, left = open_file(self.root, parts, self.uid), size
            with os.fdopen(fd, "rb", buffering=0) as file:
                while left > 0 and (chunk := file.read(min(_CHUNK, left))):
                    left -= len(chunk)
                    yield chunk
            if left:
                raise OSError("it became shorter while it was read")

        await self.put(key, read, size, target)

    async def put(
        self, key: str, read: Callable[[], Iterator[bytes]], size: int | None = None, target: Target | None = None
    ) -> None:
        """Stores an object, or records why it is not stored. One that is from an interrupted try stays."""
        objects = target or self._objects
        try:
            if size is None or not await self._is_sent(key, size, objects):
                await objects.put(key, lambda: _read_in_thread(read()), size)
                if self._sent is not None and size is not None:
                    self._sent[key] = size
        except (WeftError, OSError) as error:
            self.outcome.record(key.split("/", 6)[-1] if target is None else key, error)
        else:
            self._waiting.end()

    async def _is_sent(self, key: str, size: int, objects: Target) -> bool:
        if self._sent is not None:
            return self._sent.get(key) == size
        return self._again and await objects.size(key) == size


async def _read_in_thread(chunks: Iterator[bytes]) -> AsyncGenerator[bytes]:
    """Reads beside the event loop, which sends heartbeats meanwhile."""
    while (chunk := await call_in_thread(lambda: next(chunks, None))) is not None:
        yield chunk


async def _store_logs(storing: _Storing, key: str, spool: Spool, run: int) -> None:
    streams = (RUNS_FOLDER, str(RUN))
    files = list_files(storing.root, streams, storing.uid)
    sizes = {file.path: file.size for file in files if isinstance(file, LearnerFile)}
    present = [name for name in _STREAMS if name in sizes]
    for name in present:
        await storing.store_file((*streams, name), f"{key}/{name}.{run}", sizes[name])
    if present:
        await storing.put(f"{key}/{_MERGED}", lambda: _join(_merge_streams(storing, streams, present, spool, run)))
    taken = frozenset({_MERGED, *(f"{name}.{run}" for name in present)})
    await storing.store_tree(job_folder(Folder.LOG), key, taken=taken)


def _merge_streams(
    storing: _Storing, streams: tuple[str, ...], names: Iterable[str], spool: Spool, run: int
) -> Iterator[bytes]:
    """The lines of both streams in the order they were seen; stdout's first among lines of the same moment."""

    def lines(order: int, name: str) -> Iterator[tuple[int, int, int, bytes]]:
        key = f"{run}/{name}"
        times = TimeIndex(spool.times_file(f"{key}.{(spool.source(key) or SourceState()).generation}"))
        fd = open_file(storing.root, (*streams, name), storing.uid)
        try:
            place = 0
            while data := os.pread(fd, _CHUNK, place):
                ended = len(data) < _CHUNK
                for piece in split(data, place, ended=ended, limit=LINE_BYTES):
                    place = piece.end
                    yield times.time_at(piece.end), order, piece.end, piece.raw + (b"" if piece.partial else b"\n")
        finally:
            os.close(fd)
            times.close()

    for *_, line in heapq.merge(*(lines(order, name) for order, name in enumerate(names))):
        yield line


def _join(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Chunks of about 1 MiB."""
    pending: list[bytes] = []
    size = 0
    for line in lines:
        pending.append(line)
        size += len(line)
        if size >= _CHUNK:
            yield b"".join(pending)
            pending, size = [], 0
    yield b"".join(pending)


async def _store_checkpoints(
    storing: _Storing, snapshots: SnapshotStore, report: Callable[[StoredCheckpoint], None]
) -> None:
    """Stores the last snapshot. One with missing files is stored, too, and marked: people may want what there is."""
    listed_ms = _now_ms()
    saved: list[SavedFile] = []
    is_complete = True
    listing = list_files(storing.root, job_folder(Folder.CHECKPOINT), storing.uid)
    batch = await call_in_thread(lambda: list(islice(listing, _BATCH)))
    if not batch or not await _open(storing, snapshots):
        return
    while batch:
        saved_now, missing = await _store_batch(storing, snapshots, batch)
        saved += saved_now
        is_complete = is_complete and not missing
        batch = await call_in_thread(lambda: list(islice(listing, _BATCH)))
    storing.outcome.incomplete_checkpoint = not is_complete
    storing.outcome.earlier_checkpoint = snapshots.newest is not None
    if not saved:
        return
    try:
        record = await snapshots.commit(saved, time=listed_ms, final=True, complete=is_complete)
        storing.end_waiting()
        if is_complete:
            report(as_stored(record, _now_ms()))
        await snapshots.remove_unneeded()
    except (WeftError, OSError) as error:
        storing.outcome.record("the checkpoint's manifest", error)


async def _store_batch(
    storing: _Storing, snapshots: SnapshotStore, batch: Sequence[LearnerFile | SkippedFile]
) -> tuple[list[SavedFile], int]:
    """Returns the stored files, and how many with data are missing."""
    read: list[tuple[LearnerFile, str]] = []
    saved: list[SavedFile] = []
    missing = 0
    for file in batch:
        if isinstance(file, SkippedFile):
            storing.outcome.skipped.add(file.name, file.why, has_data=file.has_data)
            missing += file.has_data
            continue
        try:
            read.append((file, await snapshots.digest(file)))
        except (FileChanged, OSError) as error:
            storing.outcome.record(f"checkpoints/{file.name}", error)
            missing += 1
    try:
        await snapshots.expect([digest for _, digest in read])
    except WeftError as error:
        storing.outcome.record("the checkpoint", error)
        return [], missing + len(read)
    for file, digest in read:
        try:
            saved.append(await snapshots.put(file, digest))
            storing.end_waiting()
        except (FileChanged, WeftError, OSError) as error:
            storing.outcome.record(f"checkpoints/{file.name}", error)
            missing += 1
    return saved, missing


async def _open(storing: _Storing, snapshots: SnapshotStore) -> bool:
    """Returns False if the store cannot be used."""
    try:
        await snapshots.open()
    except MALFORMED as error:  # replaced by the snapshot of now
        log_event("checkpoint.index_unreadable", why=str(error))
        snapshots.open_empty()
    except WeftError as error:
        storing.outcome.record("the checkpoint's manifest", error)
        storing.outcome.incomplete_checkpoint = True
        return False
    return True


def _gang_size(folder: LearnerFolder, assignment: Assignment) -> int:
    try:
        return len(folder.gang(assignment.plan))
    except MALFORMED:
        return 2  # keeps more


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
