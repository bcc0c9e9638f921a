"""The highest (attempt, term) that has acted on each job, in the status store, because an API server knows no term.

Three barriers keep what is stale from being activated, each for what passes the one before:

* Nothing is created for an attempt that the status store does not announce as current, or of a pair that is superseded
  or torn down (here). The announcement ends with the job's release.
* The owner object and each inert pod carry the highest term as an annotation. A later Guardian writes it first,
  which changes the resource version, so a patch that was decided earlier fails (``provision``, ``removal``).
* What is created after the owner was deleted belongs to no living object: the cluster's garbage collector removes it.

The store may lose all its data. Then the announcement is missing, and nothing is created until the Guardian repeats it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Self

from services.core.domain.codec import MALFORMED
from services.core.domain.errors import StaleFence, Unavailable
from services.core.domain.status_keys import attempt_key, fence_key
from services.core.ports.status_store import Entry, StatusStore

_TRIES: Final = 10
_NONE: Final = (0, 0)


@dataclass(frozen=True, slots=True)
class _Fence:
    highest: tuple[int, int] = _NONE
    sealed: tuple[int, int] = _NONE
    """Nothing is created under this pair or a lower one."""
    revision: int = 0

    @classmethod
    def of(cls, entry: Entry | None) -> Self:
        """A malformed value counts as none: the annotations of the objects still stand."""
        if entry is None:
            return cls()
        document = _parsed(entry.value)
        return cls(_pair(document.get("highest")), _pair(document.get("sealed")), entry.mod_revision)


class Fences:
    def __init__(self, status: StatusStore) -> None:
        self._status = status

    async def admit(self, job: str, attempt: int, term: int) -> None:
        """Records the pair before it creates or activates something.

        Raises StaleFence if it is superseded or torn down, and Unavailable unless the attempt is announced as current.
        """
        announced = await self._announced(job)
        if announced > attempt:
            raise StaleFence(f"attempt {attempt} is over: {announced} is current")
        if announced < attempt:
            raise Unavailable(f"attempt {attempt} is not announced as current yet, or not any more")
        await self._record(job, attempt, term, creates=True)

    async def supersede(self, job: str, attempt: int, term: int) -> None:
        """Records the pair before it stops something. Raises StaleFence if it is superseded.

        No effect on a job of which the store knows nothing: nothing can be created for it.
        """
        if await self._is_known(job):
            await self._record(job, attempt, term, creates=False)

    async def seal(self, job: str, attempt: int, term: int) -> None:
        """From now on nothing is created under this pair. Else as ``supersede``."""
        if await self._is_known(job):
            await self._record(job, attempt, term, creates=False, seals=True)

    async def has_acted(self, job: str) -> bool:
        """True if a Guardian has begun to provision the job. False also if the store has lost its data."""
        return await self._status.get(fence_key(job)) is not None

    async def _is_known(self, job: str) -> bool:
        return await self._announced(job) > 0 or await self.has_acted(job)

    async def _record(self, job: str, attempt: int, term: int, *, creates: bool, seals: bool = False) -> None:
        for _ in range(_TRIES):
            fence = await self._read(job)
            _check(fence, attempt, term, creates=creates)
            sealed = max(fence.sealed, (attempt, term)) if seals else fence.sealed
            if (fence.highest, fence.sealed) == ((attempt, term), sealed):
                return
            value = json.dumps({"highest": [attempt, term], "sealed": list(sealed), "schema": 1})
            if await self._status.put_if(fence_key(job), value, mod_revision=fence.revision) is not None:
                return
        raise Unavailable(f"the fence of job {job} keeps changing; try again")

    async def _read(self, job: str) -> _Fence:
        return _Fence.of(await self._status.get(fence_key(job)))

    async def _announced(self, job: str) -> int:
        """The current attempt; 0 if none is announced."""
        entry = await self._status.get(attempt_key(job))
        number = _parsed(entry.value).get("attempt") if entry is not None else 0
        return number if isinstance(number, int) else 0


def _check(fence: _Fence, attempt: int, term: int, *, creates: bool) -> None:
    if (attempt, term) < fence.highest or (creates and (attempt, term) <= fence.sealed):
        raise StaleFence(f"attempt {attempt} under term {term} is over (seen: {max(fence.highest, fence.sealed)})")


def _parsed(value: str) -> dict[str, Any]:
    try:
        document = json.loads(value)
    except MALFORMED:
        return {}
    return document if isinstance(document, dict) else {}


def _pair(value: object) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2 and all(isinstance(number, int) for number in value):
        return value[0], value[1]
    return _NONE
