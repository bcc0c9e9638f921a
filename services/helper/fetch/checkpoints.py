"""Checkpoints of the newest attempt that has any: the union of all its learners' files, in CHECKPOINT_DIR.

A learner that is started again begins with its own attempt, others with the newest earlier one.
Each learner's files are those of one moment, the cut (``core.domain.checkpoint``): a learner on a lost machine may have
stored less than the others. Of files with the same path a learner gets its own, else rank 0's, else that of the lowest
rank: frameworks that save per rank under equal names find their own state, those that save on one rank find that one's.
Only files that a manifest lists count, and only with the size and digest that it states.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from services.core.domain.checkpoint import (
    Index,
    SavedFile,
    SnapshotRecord,
    checkpoint_base,
    cut_of,
    files_at,
    index_key,
    manifest_key,
    object_key,
    parse_index,
    parse_manifest,
    records_for,
)
from services.core.domain.codec import MALFORMED
from services.core.domain.document import MAX_TIME_MS
from services.core.domain.errors import NotFound, WeftError
from services.core.runtime.learner_folder import Assignment
from services.helper.fetch.faults import outage_of
from services.helper.fetch.progress import FetchFailed, FetchProgress
from services.helper.learner_files import MAX_DEPTH
from services.helper.objects import UrlSigner, open_objects

REASON: Final = "CheckpointInvalid"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Restored:
    """A file and the key of its content."""

    key: str
    file: SavedFile


def restore(
    assignment: Assignment, gang: Sequence[str], target: Path, signer: UrlSigner, progress: FetchProgress
) -> None:
    """Writes the files into ``target``, which must not exist and which only the platform may write.

    Everything in it belongs to the learner afterwards. Does nothing where no earlier attempt has a checkpoint. Raises
    FetchFailed where a listed file is missing or damaged, FetchCancelled. ``gang``: names of all learners, by rank.
    """
    if assignment.checkpoint_attempts:
        asyncio.run(_Restoration(assignment, gang, target, signer, progress).run())


class _Restoration:
    def __init__(
        self, assignment: Assignment, gang: Sequence[str], target: Path, signer: UrlSigner, progress: FetchProgress
    ) -> None:
        self._assignment = assignment
        own = assignment.learner.name
        self._order = [own, *(name for name in gang if name != own)]
        self._objects = open_objects(assignment, signer, progress.wait_for_objects)
        self._target = target
        self._progress = progress
        self._done = self._total = 0
        """Bytes that are restored, and of all files."""

    async def run(self) -> None:
        try:
            await self._restore()
        finally:
            await self._objects.close()

    async def _restore(self) -> None:
        for attempt in self._assignment.checkpoint_attempts:
            files = await self._saved_files(attempt)
            if files:
                self._total = sum(restored.file.size for restored in files)
                self._make_folder(self._target)
                self._progress.report(f"restoring {len(files)} files of the checkpoint of attempt {attempt}")
                for restored in files:
                    await self._fetch(restored)
                return

    async def _saved_files(self, attempt: int) -> list[_Restored]:
        """The union of the learners' files at the cut. A path that is a file of one is no folder of another."""
        plan = self._assignment.plan
        indexes: dict[str, Index] = {}
        for name in self._order:
            base = checkpoint_base(tenant=plan.tenant, job=plan.job, attempt=attempt, learner=name)
            if await self._objects.size(index_key(base)) is not None:
                indexes[base] = await self._parsed(index_key(base), parse_index)
        cut = cut_of(indexes.values())
        union: dict[str, _Restored] = {}
        folders: set[str] = set()
        for base, index in indexes.items():
            for restored in await self._files_at(base, index, cut):
                path = restored.file.path
                parents = {"/".join(path.split("/")[:count]) for count in range(1, path.count("/") + 1)}
                if path not in folders and not parents & union.keys():
                    folders |= parents
                    union.setdefault(path, restored)
        return list(union.values())

    async def _files_at(self, base: str, index: Index, cut: float) -> list[_Restored]:
        snapshots: list[tuple[SnapshotRecord, Sequence[SavedFile]]] = []
        for record in records_for(index, cut):
            files = index.first_schema
            if files is None:
                files = await self._parsed(manifest_key(base, record.seq), parse_manifest)
            for file in files:
                if not _is_inside(file.path):
                    raise FetchFailed(REASON, f"a checkpoint's manifest names {file.path!r}, which lies outside")
            snapshots.append((record, files))
        return [_Restored(object_key(base, file, seq), file) for seq, file in files_at(snapshots, cut)]

    async def _parsed(self, key: str, parse: Callable[[bytes], T]) -> T:
        try:
            return parse(await self._read(key))
        except MALFORMED as error:
            raise FetchFailed(REASON, "a checkpoint's manifest is damaged in the object store") from error
        except NotFound as error:
            raise FetchFailed(REASON, "a checkpoint's manifest is missing in the object store") from error

    async def _read(self, key: str) -> bytes:
        return b"".join([chunk async for chunk in self._objects.get(key)])

    async def _fetch(self, restored: _Restored) -> None:
        file = restored.file
        path = self._target / file.path
        for folder in reversed(path.relative_to(self._target).parents[:-1]):
            self._make_folder(self._target / folder)
        hashing = hashlib.sha256()
        try:
            with path.open("wb") as out:
                async for chunk in self._objects.get(restored.key):
                    hashing.update(chunk)
                    out.write(chunk)
                    self._done += len(chunk)
                    self._progress.report_bytes(self._done, self._total)
        except WeftError as error:
            if (outage := outage_of(error)) is not None:
                raise outage from error
            raise FetchFailed(REASON, f"checkpoint {file.path} cannot be restored: {error.message}") from error
        if hashing.hexdigest() != file.sha256:
            raise FetchFailed(REASON, f"checkpoint {file.path} is damaged in the object store")
        if (
            file.mtime is not None and 0 <= file.mtime <= MAX_TIME_MS
        ):  # some frameworks take the file that was changed last for the newest
            os.utime(path, ns=(file.mtime * 1_000_000, file.mtime * 1_000_000))
        self._give(path)

    def _make_folder(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self._give(path)

    def _give(self, path: Path) -> None:
        if self._assignment.owner is not None:
            os.chown(path, *self._assignment.owner)


def _is_inside(path: str) -> bool:
    parts = path.split("/")
    return not {"", ".", ".."} & set(parts) and len(parts) <= MAX_DEPTH + 1
