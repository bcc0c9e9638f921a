"""Which objects a learner's helper may move: its own results, logs and checkpoints; what the job is made from.

Reading is wider than writing: the code of its tenant (whoever names a digest knows the code already), and what the
job's earlier attempts and its peers have left as checkpoints. Nothing is ever deleted, and no other attempt's folder is
written to: an attempt that is over, and still runs somewhere, spoils nothing even by a URL that it has kept.
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
"""Requests at a time."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_ATTEMPT: Final = re.compile(r"([1-9][0-9]{0,8})/checkpoints/.+")


class Signing:
    def __init__(self, attempts: Attempts, urls: ObjectUrls | None) -> None:
        """``urls``: None where helpers have a folder."""
        self._attempts = attempts
        self._urls = urls

    async def urls(self, learner: LearnerIdentity, requests: list[ObjectRequest]) -> list[str]:
        """PermissionDenied beyond its rights, StaleFence where a newer attempt has taken its place; Unavailable where
        it is not known which attempt is current.
        """
        if self._urls is None:
            raise InvalidRequest("this platform keeps objects in a folder, for which there are no URLs")
        if len(requests) > MOST:
            raise InvalidRequest(f"at most {MOST} URLs are signed at a time")
        for request in requests:
            check(learner, request)
        attempt = await self._attempts.current(learner)
        if attempt.number != learner.attempt:
            raise StaleFence(f"attempt {attempt.number} of job {learner.job} has taken the place of {learner.attempt}")
        return [self._urls.url(request) for request in requests]


def check(learner: LearnerIdentity, request: ObjectRequest) -> None:
    """PermissionDenied where this is not the learner's to do; InvalidRequest where it is nothing."""
    if request.verb not in METHODS:
        raise InvalidRequest("an object can be read by get and head, written by put, begin, part, complete and abort")
    check_key(request.key)
    if not (_writes(learner, request.key) or (request.verb in READS and _reads(learner, request.key))):
        raise PermissionDenied(f"{learner.name} of attempt {learner.attempt} moves its own objects only")


def _writes(learner: LearnerIdentity, key: str) -> bool:
    own = f"tenants/{learner.tenant}/jobs/{learner.job}/attempts/{learner.attempt}/"
    checkpoints = f"{own}checkpoints/{learner.name}"
    folders = (f"{own}results/{learner.name}/", f"{own}logs/learner-{learner.rank + 1}/", f"{checkpoints}/")
    return key.startswith(folders) or key == f"{checkpoints}.manifest.json"


def _reads(learner: LearnerIdentity, key: str) -> bool:
    tenant = f"tenants/{learner.tenant}/"
    if key.startswith(f"{tenant}code/"):
        return _DIGEST.fullmatch(key.removeprefix(f"{tenant}code/")) is not None
    attempts = f"{tenant}jobs/{learner.job}/attempts/"
    found = _ATTEMPT.fullmatch(key.removeprefix(attempts)) if key.startswith(attempts) else None
    return found is not None and int(found[1]) <= learner.attempt
