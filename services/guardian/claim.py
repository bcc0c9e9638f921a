"""How a guardian process becomes the one that may act on a job (architecture.md, Claim).

Read the document, take the holder's key in etcd, then raise the term by compare-and-set on that very revision. If any
of the three fails somebody else was there: leave it to them, or to the next sweep. The document decides; the key in
etcd only tells others that the holder lives.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Final

from services.core.domain.errors import StaleRevision, Unavailable
from services.core.domain.job import Claim, Job
from services.core.ports.status_store import Lease
from services.guardian.learner_view import MALFORMED
from services.guardian.ports import GuardianPorts

NONCE_BITS: Final = 64


def claim_key(job_id: str) -> str:
    """Where the holder of a job's claim shows that it lives."""
    return f"/jobs/{job_id}/guardian"


async def claim(ports: GuardianPorts, job: Job, *, member: str, lease: Lease, live: frozenset[str]) -> Job | None:
    """The job with our claim in it, or None where another live process has it or was faster."""
    term = job.guardian.term + 1
    value = json.dumps({"holder": member, "term": term, "schema": 1})
    present = await ports.status.get(claim_key(job.id))
    if present is not None and _holder(present.value) in live - {member}:
        return None
    revision = present.mod_revision if present is not None else 0
    if await ports.status.put_if(claim_key(job.id), value, mod_revision=revision, lease=lease) is None:
        return None
    nonce = f"{ports.clock.random_bits(NONCE_BITS):016x}"
    try:
        return await ports.jobs.replace(job, replace(job, guardian=Claim(term=term, nonce=nonce, holder=member)))
    except StaleRevision:
        # The key must not keep others away from what we do not have.
        with contextlib.suppress(Unavailable):
            await ports.status.delete(claim_key(job.id))
        return None


def _holder(value: str) -> str:
    try:
        return str(json.loads(value)["holder"])
    except MALFORMED:  # written by nobody we know: it protects nobody
        return ""
