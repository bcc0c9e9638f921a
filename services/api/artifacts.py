"""A job's files: results, logs and checkpoints of each attempt, and its code."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from services.api.checkpoint_files import CheckpointFile, CheckpointFiles, folder_of, is_document
from services.api.instrumentation import Instrumentation
from services.core.domain.errors import NotFound
from services.core.domain.job import Job
from services.core.ports.object_store import ObjectMeta, ObjectStore
from services.core.use_cases.code_removal import code_key

CODE: Final = "code.zip"
_ATTEMPTS: Final = "attempts/"
_LISTED: Final = 1000
"""Objects that are listed at a time at least, however small the page is."""


@dataclass(frozen=True, slots=True)
class Artifact:
    path: str
    """Relative to the job: ``attempts/1/results/worker-0/model.npz``, ``code.zip``."""
    meta: ObjectMeta


class Artifacts:
    def __init__(self, objects: ObjectStore, instrumentation: Instrumentation) -> None:
        self._objects = objects
        self._checkpoints = CheckpointFiles(objects)
        self._instrumentation = instrumentation

    async def list(
        self, job: Job, *, prefix: str, after: str | None, limit: int
    ) -> tuple[Sequence[Artifact], str | None]:
        """A page by path, and the cursor of the next one. ``prefix`` is empty or begins with ``attempts/``."""
        if after is not None and after >= CODE:  # the code comes last
            return [], None
        artifacts = [*await self._of_attempts(_base(job), prefix or _ATTEMPTS, after or "", limit + 1)]
        if len(artifacts) <= limit and not prefix and job.code_digest:
            code = await self._objects.head(code_key(job.tenant, job.code_digest))
            artifacts.extend([Artifact(CODE, code)] if code is not None else [])
        return artifacts[:limit], artifacts[limit - 1].path if len(artifacts) > limit else None

    async def _of_attempts(self, base: str, prefix: str, after: str, limit: int) -> Sequence[Artifact]:
        """The first files after this path. Checkpoints have their own names, in place of those of their objects."""
        artifacts: builtins.list[Artifact] = []
        known: dict[str, Sequence[CheckpointFile] | None] = {}

        async def files_in(folder: str | None) -> Sequence[CheckpointFile] | None:
            if folder is not None and folder not in known:
                known[folder] = await self._checkpoints.files(base, folder)
            return known[folder] if folder is not None else None

        folder = folder_of(prefix) or folder_of(after)
        while True:
            files = await files_in(folder)
            if folder is not None and files is not None:
                shown = (file for file in files if file.path > after and file.path.startswith(prefix))
                artifacts += [Artifact(file.path, file.meta) for file in islice(shown, limit - len(artifacts))]
                after = max(after, f"{folder}0")  # after all keys that begin with "<folder>/"
                if folder_of(prefix) is not None:
                    return artifacts
            if len(artifacts) == limit:
                return artifacts
            folder = None
            wanted = max(limit - len(artifacts), _LISTED)  # objects that are not shown need few listings
            metas = await self._objects.list(base + prefix, after=base + after if after else None, limit=wanted)
            for meta in metas:
                path = meta.key.removeprefix(base)
                folder = folder_of(path)
                if await files_in(folder) is not None:
                    break
                folder, after = None, path
                if not is_document(path) and not await self._checkpoints.is_index(base, path):
                    artifacts.append(Artifact(path, meta))
                    if len(artifacts) == limit:
                        return artifacts
            if folder is None and len(metas) < wanted:
                return artifacts

    async def find(self, job: Job, path: str) -> Artifact:
        """The file of this path. Raises NotFound; InvalidRequest for a malformed path."""
        if path == CODE and job.code_digest:
            key = code_key(job.tenant, job.code_digest)
        elif path.startswith(_ATTEMPTS):
            key = _base(job) + path
            file = await self._checkpoints.find(_base(job), path)
            if file is not None:
                return Artifact(path, file.meta)
        else:
            raise NotFound(f"job {job.id} has no artifact of this path")
        meta = await self._objects.head(key)
        if meta is None:
            raise NotFound(f"job {job.id} has no artifact of this path")
        return Artifact(path, meta)

    def read(self, artifact: Artifact, *, start: int, end: int) -> AsyncIterator[bytes]:
        """The bytes [start, end) in chunks."""
        self._instrumentation.downloads.inc()
        return self._objects.get(artifact.meta.key, start=start, end=end)


def _base(job: Job) -> str:
    return f"tenants/{job.tenant}/jobs/{job.id}/"
