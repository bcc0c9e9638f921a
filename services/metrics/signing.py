"""Signs URLs for the objects that a learner's helper may read or write.

A helper writes its own results, logs and checkpoints. It also reads its tenant's code (a caller that knows the digest
knows the code) and the checkpoints of the job's earlier attempts and of its peers. It deletes only its own superseded
checkpoints, and writes to no other attempt's folder: an attempt that is over, but still running somewhere, does no harm
with a URL it has kept.
"""

from __future__ import annotations

import re
from typing import Final

from services.core.domain.errors import InvalidRequest, PermissionDenied, StaleFence
from services.core.domain.tokens import LearnerIdentity
from services.core.ports.object_store import check_key
from services.core.ports.object_urls import METHODS, READS, ObjectRequest, ObjectUrls
from services.metrics.attempts import Attempts

MOST: Final = 100
"""Requests in one call."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_ATTEMPT: Final = re.compile(r"([1-9][0-9]{0,8})/checkpoints/.+")


class Signing:
    def __init__(self, attempts: Attempts, urls: ObjectUrls | None) -> None:
        """``urls``: None if objects are in a folder that helpers read directly."""
        self._attempts = attempts
        self._urls = urls

    async def urls(self, learner: LearnerIdentity, requests: list[ObjectRequest]) -> list[str]:
        """One URL per request. Raises PermissionDenied for other objects than its own, StaleFence if a newer attempt is
        current, Unavailable if the current attempt is not known.
        """
        if self._urls is None:
            raise InvalidRequest("this platform keeps objects in a folder, so there are no URLs for them")
        if len(requests) > MOST:
            raise InvalidRequest(f"at most {MOST} URLs are signed at a time")
        await self.authorize(learner, requests)
        return [self._urls.url(request) for request in requests]

    async def authorize(self, learner: LearnerIdentity, requests: list[ObjectRequest]) -> None:
        """Raises as ``urls`` if the learner may not do all of this now."""
        for request in requests:
            check(learner, request)
        attempt = await self._attempts.current(learner)
        if attempt.number != learner.attempt:
            raise StaleFence(f"attempt {attempt.number} of job {learner.job} has taken the place of {learner.attempt}")


def check(learner: LearnerIdentity, request: ObjectRequest) -> None:
    """Raises PermissionDenied if the learner may not do this, InvalidRequest for an unknown verb or an invalid key."""
    if request.verb not in METHODS:
        raise InvalidRequest(
            "an object is read by get and head, written by put, begin, part, complete and abort, and removed by delete"
        )
    check_key(request.key)
    if request.verb == "delete":
        may = request.key.startswith(f"{_checkpoints(learner)}/")
    else:
        may = _writes(learner, request.key) or (request.verb in READS and _reads(learner, request.key))
    if not may:
        raise PermissionDenied(f"{learner.name} of attempt {learner.attempt} may access its own objects only")


def _own(learner: LearnerIdentity) -> str:
    return f"tenants/{learner.tenant}/jobs/{learner.job}/attempts/{learner.attempt}/"


def _checkpoints(learner: LearnerIdentity) -> str:
    return f"{_own(learner)}checkpoints/{learner.name}"


def _writes(learner: LearnerIdentity, key: str) -> bool:
    own, checkpoints = _own(learner), _checkpoints(learner)
    folders = (f"{own}results/{learner.name}/", f"{own}logs/learner-{learner.rank + 1}/", f"{checkpoints}/")
    return key.startswith(folders) or key == f"{checkpoints}.manifest.json"


def _reads(learner: LearnerIdentity, key: str) -> bool:
    tenant = f"tenants/{learner.tenant}/"
    if key.startswith(f"{tenant}code/"):
        return _DIGEST.fullmatch(key.removeprefix(f"{tenant}code/")) is not None
    attempts = f"{tenant}jobs/{learner.job}/attempts/"
    match = _ATTEMPT.fullmatch(key.removeprefix(attempts)) if key.startswith(attempts) else None
    return match is not None and int(match[1]) <= learner.attempt
