"""Checkpoints of the newest earlier attempt that has any: the union of all its learners' files, in CHECKPOINT_DIR.

Rank 0's files win, then the learner's own, then the others' by rank: frameworks that save on one rank find what it
saved, those that save per rank find their own. Only what a manifest lists counts, and only as the manifest says.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from services.core.domain.errors import WeftError
from services.helper.fetch.watched import Cannot, Watched
from services.helper.folder import Assignment
from services.helper.objects import Urls, objects_of

REASON: Final = "CheckpointInvalid"
_MANIFEST: Final = ".manifest.json"


@dataclass(frozen=True, slots=True)
class Saved:
    """One file that a manifest promises."""

    key: str
    path: str
    size: int
    sha256: str


def restore(assignment: Assignment, target: Path, urls: Urls, watched: Watched) -> None:
    """Cannot where a promised file is missing or damaged. May be done again over what is there."""
    if assignment.plan.checkpoint_attempts:
        asyncio.run(_Restoring(assignment, target, urls, watched).run())


class _Restoring:
    def __init__(self, assignment: Assignment, target: Path, urls: Urls, watched: Watched) -> None:
        self._assignment = assignment
        self._objects = objects_of(assignment, urls, watched.objects_away)
        self._target = target
        self._watched = watched

    async def run(self) -> None:
        try:
            await self._restore()
        finally:
            await self._objects.close()

    async def _restore(self) -> None:
        for attempt in self._assignment.plan.checkpoint_attempts:
            found = await self._saved(attempt)
            if found:
                size = sum(one.size for one in found)
                for place, one in enumerate(found, 1):
                    self._watched.say(f"restoring checkpoints: {place} of {len(found)} files ({size // 2**20} MiB)")
                    await self._fetch(one)
                return

    async def _saved(self, attempt: int) -> list[Saved]:
        """The union, by path."""
        plan = self._assignment.plan
        prefix = f"tenants/{plan.tenant}/jobs/{plan.job}/attempts/{attempt}/checkpoints"
        own = self._assignment.learner.rank
        union: dict[str, Saved] = {}
        for learner in sorted(plan.learners, key=lambda one: (one.rank != 0, one.rank != own, one.rank)):
            base = f"{prefix}/{learner.name}"
            if await self._objects.size(base + _MANIFEST) is None:
                continue
            manifest: dict[str, Any] = json.loads(await self._whole(base + _MANIFEST))
            for entry in manifest["files"]:
                one = Saved(f"{base}/{entry['path']}", entry["path"], int(entry["size"]), entry["sha256"])
                if not _inside(one.path):
                    raise Cannot(REASON, f"a checkpoint's manifest names {one.path!r}, which lies outside")
                union.setdefault(one.path, one)
        return list(union.values())

    async def _whole(self, key: str) -> bytes:
        return b"".join([chunk async for chunk in self._objects.get(key)])

    async def _fetch(self, one: Saved) -> None:
        path = self._target / one.path
        for folder in reversed(path.relative_to(self._target).parents):
            self._own(self._target / folder, make=True)
        hashing = hashlib.sha256()
        beside = path.with_name(f".{path.name}.part")
        try:
            with beside.open("wb") as file:
                async for chunk in self._objects.get(one.key):
                    hashing.update(chunk)
                    file.write(chunk)
                    self._watched.check()
        except WeftError as error:
            raise Cannot(REASON, f"checkpoint {one.path} cannot be restored: {error.message}") from error
        if hashing.hexdigest() != one.sha256:
            raise Cannot(REASON, f"checkpoint {one.path} is damaged in the object store")
        self._own(beside)
        beside.replace(path)

    def _own(self, path: Path, *, make: bool = False) -> None:
        if make:
            path.mkdir(exist_ok=True)
        if self._assignment.owner is not None:
            os.chown(path, *self._assignment.owner)


def _inside(path: str) -> bool:
    return not path.startswith("/") and not {"", ".", ".."} & set(path.split("/"))
