"""Stores one snapshot of CHECKPOINT_DIR: its objects, its manifest, and last the index that makes it count.

May be killed at any point: an object is whole or absent, and only what the index names counts. After the index is
written, snapshots beyond ``keep`` are removed: they are not in the index any more, so their manifests and then their
objects can go. Restoring never reads an object that may be removed while it reads: its attempt has ended.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from services.core.domain.checkpoint import (
    FIRST_SCHEMA_SEQ,
    Index,
    SavedFile,
    SnapshotRecord,
    StoredCheckpoint,
    dump_index,
    dump_manifest,
    index_key,
    manifest_key,
    object_key,
    parse_index,
    parse_manifest,
)
from services.core.domain.plan import Folder
from services.core.runtime.learner_folder import Assignment, job_folder
from services.helper.checkpoints.catalog import FILE, Catalog
from services.helper.checkpoints.detection import FileState, changed_ms, state_of
from services.helper.learner_files import LearnerFile, open_file
from services.helper.objects import Objects, own_checkpoints
from services.helper.spool import Spool

_CHUNK: Final = 2**20
_NAME_BYTES: Final = 255
_PATH_BYTES: Final = 1024
"""The longest name and path that are restored: they become a file again, on any file system."""
_LEAST_KEPT_IN_GANG: Final = 2
"""A gang is restored as it was at one moment, which may lie before the newest snapshot of a learner."""

Step: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a blocking call: here, or in a thread beside the event loop."""

Digests: TypeAlias = dict[str, tuple[FileState, str]]
"""Name of a file -> (its state when it was read, sha256 of its content)."""


class FileChanged(Exception):
    """A file changed while it was read: this snapshot would be of no moment."""

    def __init__(self, name: str) -> None:
        super().__init__("it changed while it was read")
        self.name = name


class SnapshotStore:
    """The checkpoints of one learner in the store. Its caller is the only writer."""

    def __init__(
        self, objects: Objects, assignment: Assignment, root: Path, spool: Spool, *, learners: int, step: Step
    ) -> None:
        """``learners``: of the job. ``root``: the learner's folder."""
        self._objects = objects
        self._uid = assignment.learner_uid
        self._root = root
        self._base = own_checkpoints(assignment)
        self._keep = max(assignment.plan.checkpoint_keep, 1 if learners == 1 else _LEAST_KEPT_IN_GANG)
        self._path = spool.root / FILE
        self._step = step
        self._catalog: Catalog | None = None
        self._unsent: set[str] = set()
        """sha256 of objects that do not exist: no helper has tried to send them."""
        self._newest_files: tuple[int, Sequence[SavedFile]] = (0, ())
        """(number, files) of the last snapshot that was committed here."""
        self.digests: Digests = {}

    async def open(self) -> None:
        """Reads what the store has. Raises WeftError, ValueError or TypeError if that cannot be read."""
        if self._catalog is not None:
            return
        saved = Catalog.load(self._path)
        index = await self._read_index()
        if saved is not None and list(index.records) == saved.records:
            self._catalog = saved
            return
        manifests = [
            (record.seq, parse_manifest(await self._read(manifest_key(self._base, record.seq))))
            for record in index.records
        ]
        self._catalog = Catalog.of_store(self._path, index, manifests, saved)

    def open_empty(self) -> None:
        """Starts without what the store has, which could not be read: nothing of it is removed."""
        self._catalog = Catalog(self._path, is_saved=False)

    @property
    def newest(self) -> SnapshotRecord | None:
        """The newest complete snapshot that counts."""
        records = [record for record in self._opened.records if record.complete]
        return records[-1] if records else None

    async def files_of(self, entries: frozenset[str]) -> list[SavedFile]:
        """Files of these entries in the newest snapshot."""
        if not entries or self.newest is None:
            return []
        seq, files = self._newest_files
        if seq != self.newest.seq:
            files = parse_manifest(await self._read(manifest_key(self._base, self.newest.seq)))
        return [file for file in files if file.entry in entries]

    async def expect(self, digests: Sequence[str]) -> None:
        """Records in the spool what the next snapshot names, before any of it is sent. Raises WeftError."""
        catalog = self._opened
        unknown = set(digests) - catalog.last_use.keys()
        self._unsent |= unknown
        catalog.last_use |= dict.fromkeys(digests, catalog.next_seq)
        if catalog.garbage & unknown:  # else an object could be removed after it was sent again
            await self.remove_unneeded()
        if unknown:
            catalog.unsure |= unknown
            catalog.save()

    async def put(self, file: LearnerFile, digest: str) -> SavedFile:
        """Stores the content of an expected file unless it is there. Raises FileChanged, WeftError, OSError."""
        catalog = self._opened
        saved = SavedFile(file.name, file.size, digest, changed_ms(file), max(0, file.mtime_ns // 1_000_000))
        if not catalog.has(digest):
            is_new = digest in self._unsent
            self._unsent.discard(digest)
            await self._send(file, saved, again=not is_new)
            catalog.unsure.discard(digest)
        return saved

    async def digest(self, file: LearnerFile) -> str:
        """The sha256 of the file's content. Raises FileChanged, OSError."""
        _check_name(file.name)
        state = state_of(file)
        known = self.digests.get(file.name)
        if known is None or known[0] != state:
            hashing = hashlib.sha256()
            chunks = self._chunks(file)
            while (chunk := await self._step(lambda: next(chunks, None))) is not None:
                hashing.update(chunk)
            known = (state, hashing.hexdigest())
            self.digests[file.name] = known
        return known[1]

    async def commit(
        self, files: Sequence[SavedFile], *, time: int, final: bool, complete: bool = True
    ) -> SnapshotRecord:
        """Makes the files the newest snapshot; each was ``put``. ``remove_unneeded`` may follow."""
        catalog = self._opened
        record = SnapshotRecord(
            seq=catalog.next_seq,
            time=time,
            until=time,
            final=final,
            complete=complete,
            files=len(files),
            size=sum(file.size for file in files),
        )
        # What another snapshot was about to name that was not committed may be part of the one before.
        catalog.last_use = {digest: min(seq, record.seq - 1) for digest, seq in catalog.last_use.items()}
        catalog.last_use |= dict.fromkeys((file.sha256 for file in files), record.seq)
        catalog.manifests.add(record.seq)
        catalog.save()
        await self._put(manifest_key(self._base, record.seq), dump_manifest(record, files))
        await self._write_index(catalog.with_record(record, self._keep))
        self._newest_files = (record.seq, files)
        names = {file.path for file in files}
        self.digests = {name: known for name, known in self.digests.items() if name in names}
        return record

    async def extend(self, until: int) -> None:
        """Records that nothing but the newest snapshot was to be stored until then (Unix ms)."""
        catalog = self._opened
        last = catalog.records[-1]
        await self._write_index([*catalog.records[:-1], replace(last, until=max(last.until, until))])

    async def remove_unneeded(self) -> None:
        """Removes the snapshots that are not kept: manifests first, then objects that no kept one names."""
        catalog = self._opened
        objects, manifests = catalog.unneeded()
        if not objects and not manifests and not catalog.garbage:
            return
        catalog.garbage |= objects
        for digest in objects:
            del catalog.last_use[digest]
            catalog.unsure.discard(digest)
        catalog.save()
        if not catalog.is_saved:
            return
        for seq in sorted(manifests):
            await self._objects.delete(manifest_key(self._base, seq))
        for digest in sorted(catalog.garbage):
            await self._objects.delete(f"{self._base}/{digest}")
        catalog.manifests -= manifests
        catalog.garbage.clear()
        catalog.save()

    @property
    def _opened(self) -> Catalog:
        if self._catalog is None:
            raise RuntimeError("open was not called")
        return self._catalog

    async def _write_index(self, records: list[SnapshotRecord]) -> None:
        catalog, self._catalog = self._opened, None  # after a failure, what the store has is not known: ``open`` reads
        await self._put(index_key(self._base), dump_index(records))
        catalog.records, self._catalog = records, catalog
        catalog.save()

    async def _read_index(self) -> Index:
        if await self._objects.size(index_key(self._base)) is None:
            return Index()
        index = parse_index(await self._read(index_key(self._base)))
        return Index() if index.first_schema is not None else index

    async def _read(self, key: str) -> bytes:
        return b"".join([chunk async for chunk in self._objects.get(key)])

    async def _put(self, key: str, content: bytes) -> None:
        async def chunks() -> AsyncGenerator[bytes]:
            yield content

        await self._objects.put(key, chunks)

    async def _send(self, file: LearnerFile, entry: SavedFile, *, again: bool) -> None:
        key = object_key(self._base, entry, FIRST_SCHEMA_SEQ + 1)
        if again and await self._objects.size(key) == file.size:
            return  # an object is whole, and its name is its content

        async def read() -> AsyncGenerator[bytes]:
            hashing = hashlib.sha256()
            chunks = self._chunks(file)
            while (chunk := await self._step(lambda: next(chunks, None))) is not None:
                hashing.update(chunk)
                yield chunk
            if hashing.hexdigest() != entry.sha256:  # raised before the object is complete
                raise FileChanged(file.name)

        try:
            await self._objects.put(key, read, file.size)
        except FileChanged:
            await self._objects.abandon()  # what was sent is not the content of this name
            raise

    def _chunks(self, file: LearnerFile) -> Iterator[bytes]:
        """The file's content. Raises FileChanged if it is not the file that was listed, before and after."""
        parts = (*job_folder(Folder.CHECKPOINT), *file.path.split("/"))
        left = file.size
        with os.fdopen(open_file(self._root, parts, self._uid), "rb", buffering=0) as opened:
            _check_state(opened.fileno(), file)
            while left > 0 and (chunk := opened.read(min(_CHUNK, left))):
                left -= len(chunk)
                yield chunk
            _check_state(opened.fileno(), file)
        if left:
            raise FileChanged(file.name)


def as_stored(record: SnapshotRecord, now_ms: int) -> StoredCheckpoint:
    """The snapshot as a learner reports it. ``now_ms``: when it was stored."""
    return StoredCheckpoint(time=now_ms, files=record.files, size=record.size)


def _check_name(name: str) -> None:
    if len(name.encode()) > _PATH_BYTES or any(len(part.encode()) > _NAME_BYTES for part in name.split("/")):
        raise OSError(f"its path is too long: at most {_PATH_BYTES} bytes, each name at most {_NAME_BYTES}")


def _check_state(fd: int, file: LearnerFile) -> None:
    status = os.fstat(fd)
    if FileState(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino) != state_of(file):
        raise FileChanged(file.name)
