"""A job's files: results, logs and checkpoints of each attempt, and its code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from services.api.instrumentation import Instrumentation
from services.core.domain.errors import NotFound
from services.core.domain.job import Job
from services.core.ports.object_store import ObjectMeta, ObjectStore
from services.core.use_cases.code_removal import code_key

CODE: Final = "code.zip"
_ATTEMPTS: Final = "attempts/"


@dataclass(frozen=True, slots=True)
class Artifact:
    path: str
    """Relative to the job: ``attempts/1/results/worker-0/model.npz``, ``code.zip``."""
    meta: ObjectMeta


class Artifacts:
    def __init__(self, objects: ObjectStore, instrumentation: Instrumentation) -> None:
        self._objects = objects
        self._instrumentation = instrumentation

    async def list(
        self, job: Job, *, prefix: str, after: str | None, limit: int
    ) -> tuple[Sequence[Artifact], str | None]:
        """A page by path, and the cursor of the next one. ``prefix`` is empty or begins with ``attempts/``."""
        if after is not None and after >= CODE:  # the code comes last
            return [], None
        base = _base(job)
        last = base + after if after is not None else None
        metas = await self._objects.list(base + (prefix or _ATTEMPTS), after=last, limit=limit + 1)
        artifacts = [Artifact(meta.key.removeprefix(base), meta) for meta in metas]
        if len(artifacts) <= limit and not prefix and job.code_digest:
            code = await self._objects.head(code_key(job.tenant, job.code_digest))
            artifacts.extend([Artifact(CODE, code)] if code is not None else [])
        return artifacts[:limit], artifacts[limit - 1].path if len(artifacts) > limit else None

    async def find(self, job: Job, path: str) -> Artifact:
        """The file of this path. Raises NotFound; InvalidRequest for a malformed path."""
        if path == CODE and job.code_digest:
            key = code_key(job.tenant, job.code_digest)
        elif path.startswith(_ATTEMPTS):
            key = _base(job) + path
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
