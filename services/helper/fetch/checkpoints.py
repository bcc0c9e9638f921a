"""Checkpoints of the newest earlier attempt that has any: the union of all its learners' files, in CHECKPOINT_DIR.

Of files with the same path a learner gets its own, else rank 0's, else that of the lowest rank: frameworks that save
per rank under equal names find their own state, those that save on one rank find that one's. Only files that a
manifest lists count, and only with the size and digest that it states.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from services.core.domain.errors import WeftError
from services.core.runtime.learner_folder import Assignment
from services.helper.fetch.faults import outage_of
from services.helper.fetch.progress import FetchFailed, FetchProgress
from services.helper.learner_files import MAX_DEPTH
from services.helper.objects import UrlSigner, open_objects

REASON: Final = "CheckpointInvalid"
_MANIFEST: Final = ".manifest.json"


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file that a manifest lists."""

    key: str
    path: str
    size: int
    """Bytes."""
    sha256: str


def restore(
    assignment: Assignment, gang: Sequence[str], target: Path, signer: UrlSigner, progress: FetchProgress
) -> None:
    """Writes the files into ``target``, which must not exist and which only the platform may write.

    Everything in it belongs to the learner afterwards. Does nothing where no earlier attempt has a checkpoint. Raises
    FetchFailed where a listed file is missing or damaged, FetchCancelled. ``gang``: names of all learners, by rank.
    """
    if assignment.plan.checkpoint_attempts:
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

    async def run(self) -> None:
        try:
            await self._restore()
        finally:
            await self._objects.close()

    async def _restore(self) -> None:
        for attempt in self._assignment.plan.checkpoint_attempts:
            files = await self._saved_files(attempt)
            if files:
                mib = sum(file.size for file in files) // 2**20
                self._make_folder(self._target)
                for number, file in enumerate(files, 1):
                    self._progress.report(f"restoring checkpoints: {number} of {len(files)} files ({mib} MiB)")
                    await self._fetch(file)
                return

    async def _saved_files(self, attempt: int) -> list[SavedFile]:
        """The union of the learners' manifests, by path. A path that is a file of one is no folder of another."""
        plan = self._assignment.plan
        prefix = f"tenants/{plan.tenant}/jobs/{plan.job}/attempts/{attempt}/checkpoints"
        union: dict[str, SavedFile] = {}
        folders: set[str] = set()
        for name in self._order:
            base = f"{prefix}/{name}"
            if await self._objects.size(base + _MANIFEST) is None:
                continue
            for file in _parse_manifest(await self._read(base + _MANIFEST), base):
                parents = {"/".join(file.path.split("/")[:count]) for count in range(1, file.path.count("/") + 1)}
                if file.path not in folders and not parents & union.keys():
                    folders |= parents
                    union.setdefault(file.path, file)
        return list(union.values())

    async def _read(self, key: str) -> bytes:
        return b"".join([chunk async for chunk in self._objects.get(key)])

    async def _fetch(self, file: SavedFile) -> None:
        path = self._target / file.path
        for folder in reversed(path.relative_to(self._target).parents[:-1]):
            self._make_folder(self._target / folder)
        hashing = hashlib.sha256()
        try:
            with path.open("wb") as out:
                async for chunk in self._objects.get(file.key):
                    hashing.update(chunk)
                    out.write(chunk)
                    self._progress.check()
        except WeftError as error:
            if (outage := outage_of(error)) is not None:
                raise outage from error
            raise FetchFailed(REASON, f"checkpoint {file.path} cannot be restored: {error.message}") from error
        if hashing.hexdigest() != file.sha256:
            raise FetchFailed(REASON, f"checkpoint {file.path} is damaged in the object store")
        self._give(path)

    def _make_folder(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self._give(path)

    def _give(self, path: Path) -> None:
        if self._assignment.owner is not None:
            os.chown(path, *self._assignment.owner)


def _parse_manifest(content: bytes, base: str) -> list[SavedFile]:
    try:
        manifest: dict[str, Any] = json.loads(content)
        files = [
            SavedFile(f"{base}/{entry['path']}", entry["path"], int(entry["size"]), entry["sha256"])
            for entry in manifest["files"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise FetchFailed(REASON, "a checkpoint's manifest is damaged in the object store") from error
    for file in files:
        if not _is_inside(file.path):
            raise FetchFailed(REASON, f"a checkpoint's manifest names {file.path!r}, which lies outside")
    return files


def _is_inside(path: str) -> bool:
    parts = path.split("/")
    return not {"", ".", ".."} & set(parts) and len(parts) <= MAX_DEPTH + 1
