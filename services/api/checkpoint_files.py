"""The files of stored checkpoints under their own names: their objects are named by content (core.domain.checkpoint).

Shown are those of each learner's newest complete snapshot. A download may also fetch a file of an older one that is
kept: a training that goes on replaces snapshots while they are fetched.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from services.core.domain.checkpoint import (
    INDEX,
    Index,
    SavedFile,
    SnapshotRecord,
    index_key,
    manifest_key,
    object_key,
    parse_index,
    parse_manifest,
)
from services.core.domain.codec import MALFORMED
from services.core.domain.errors import NotFound
from services.core.ports.object_store import ObjectMeta, ObjectStore

_FOLDER: Final = re.compile(r"(attempts/[1-9][0-9]{0,8}/checkpoints/[^/]+)/")
_OBJECT: Final = re.compile(r"[0-9a-f]{64}|[1-9][0-9]*\.json")
"""Names of objects and manifests below a learner's folder."""
_CACHED_BYTES: Final = 32 * 2**20
"""Bytes of the manifests whose files are kept in memory: a list of many files is read in many pages. That is 200,000
files, which take a few times this; a larger manifest is read again for each page.
"""
_ENTRY_BYTES: Final = 4096
"""What a manifest counts besides its bytes, so that small ones are bounded as well."""
_RACES: Final = 3
"""Reads of an index whose newest snapshot is replaced meanwhile."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    path: str
    """Relative to the job: ``attempts/1/checkpoints/worker-0/step-100.pt``."""
    meta: ObjectMeta
    """Of its object; ``etag`` is the digest of the content."""


def folder_of(path: str) -> str | None:
    """``attempts/<n>/checkpoints/<learner>`` where the path lies in such a folder."""
    match = _FOLDER.match(path)
    return match[1] if match is not None else None


def is_document(path: str) -> bool:
    """Whether this is an object's name that is no file's, of a learner without an index."""
    folder = folder_of(path)
    return folder is not None and _OBJECT.fullmatch(path[len(folder) + 1 :]) is not None


class CheckpointFiles:
    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._cache: OrderedDict[tuple[str, str], tuple[int, Sequence[SavedFile]]] = OrderedDict()
        """(key of a manifest, etag) -> its bytes, as they are counted, and its files by path."""
        self._cached_bytes = 0
        self._reading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By tenant: one that lists the same files a hundred times at once has one manifest in memory, read once."""

    async def is_index(self, base: str, path: str) -> bool:
        """Whether this is an index, which is no file of the learner. ``base``: the beginning of the job's keys."""
        if not path.endswith(INDEX) or folder_of(path.removesuffix(INDEX) + "/") is None:
            return False
        index = await self._index(base + path.removesuffix(INDEX))
        return index is not None and index.first_schema is None

    async def files(self, base: str, folder: str) -> Sequence[CheckpointFile] | None:
        """The learner's files by path. None: they are stored under their own names, or nothing is."""
        for _ in range(_RACES):
            index = await self._index(base + folder)
            if index is None or index.first_schema is not None:
                return None
            record = index.shown
            if record is None:
                return []
            files = await self._files(base + folder, record)
            if files is not None:
                return [_file(base, folder, file, record) for file in files]
        return []

    async def find(self, base: str, path: str) -> CheckpointFile | None:
        """The file of this path in the newest snapshot that has it. None as of ``files``. Raises NotFound."""
        folder = folder_of(path)
        index = await self._index(base + folder) if folder is not None else None
        if folder is None or index is None or index.first_schema is not None:
            return None
        newest_first = sorted(index.records, key=lambda record: (record == index.shown, record.seq), reverse=True)
        for record in newest_first:
            for file in await self._files(base + folder, record) or ():
                if file.path == path[len(folder) + 1 :]:
                    stored = _file(base, folder, file, record)
                    if await self._objects.head(stored.meta.key) is not None:
                        return stored
        raise NotFound("the job has no checkpoint with this file")

    async def _index(self, key_base: str) -> Index | None:
        try:
            return parse_index(await self._read(index_key(key_base)))
        except NotFound:
            return None
        except MALFORMED:  # damaged: nothing counts
            return Index()

    async def _files(self, key_base: str, record: SnapshotRecord) -> Sequence[SavedFile] | None:
        """By path. None: the snapshot was removed meanwhile."""
        key = manifest_key(key_base, record.seq)
        meta = await self._objects.head(key)
        if meta is None:
            return None
        async with self._reading.setdefault(key.split("/")[1], asyncio.Lock()):
            cached = self._cache.get((key, meta.etag))
            if cached is not None:
                self._cache.move_to_end((key, meta.etag))
                return cached[1]
            try:
                content = await self._read(key)
            except NotFound:
                return None
            files = await asyncio.to_thread(_parsed, content)
            self._keep((key, meta.etag), len(content) + _ENTRY_BYTES, files)
            return files

    def _keep(self, entry: tuple[str, str], size: int, files: Sequence[SavedFile]) -> None:
        if size <= _CACHED_BYTES:
            self._cache[entry] = size, files
            self._cached_bytes += size
            while self._cached_bytes > _CACHED_BYTES:
                _, (removed, _) = self._cache.popitem(last=False)
                self._cached_bytes -= removed

    async def _read(self, key: str) -> bytes:
        return b"".join([chunk async for chunk in self._objects.get(key)])


def _parsed(content: bytes) -> Sequence[SavedFile]:
    try:
        return sorted(parse_manifest(content), key=lambda file: file.path)
    except MALFORMED:  # damaged
        return []


def _file(base: str, folder: str, file: SavedFile, record: SnapshotRecord) -> CheckpointFile:
    key = object_key(base + folder, file, record.seq)
    return CheckpointFile(f"{folder}/{file.path}", ObjectMeta(key, file.size, record.time, file.sha256))
