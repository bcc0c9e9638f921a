"""Claims a job for a guardian process (architecture.md, Claim).

Three steps: read the document; put the holder's key into etcd; raise the term by compare-and-set on the revision that
was read. If one of the three fails another process was faster: leave the job to it, or to the next sweep. The document
decides; the key in etcd only shows that the holder is alive.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Final

from services.core.domain.codec import MALFORMED
from services.core.domain.errors import StaleRevision, Unavailable
from services.core.domain.job import Claim, Job
from services.core.domain.status_keys import guardian_key
from services.core.ports.status_store import Lease
from services.guardian.ports import GuardianPorts

NONCE_BITS: Final = 64


async def claim(ports: GuardianPorts, job: Job, *, member: str, lease: Lease, live: frozenset[str]) -> Job | None:
    """Returns the job with our claim in it, or None if another live process holds it or was faster.

    ``member``: our id, the holder of ``lease``. ``live``: ids of all live guardian processes. Raises Unavailable.
    """
    key, term = guardian_key(job.id), job.guardian.term + 1
    value = json.dumps({"holder": member, "term": term, "schema": 1})
    entry = await ports.status.get(key)
    if entry is not None and _holder(entry.value) in live - {member}:
        return None
    revision = entry.mod_revision if entry is not None else 0
    if await ports.status.put_if(key, value, mod_revision=revision, lease=lease) is None:
        return None
    nonce = f"{ports.clock.random_bits(NONCE_BITS):016x}"
    try:
        return await ports.jobs.replace(job, replace(job, guardian=Claim(term=term, nonce=nonce, holder=member)))
    except StaleRevision:
        # The claim failed, so the key must not keep other processes away.
        with contextlib.suppress(Unavailable):
            await ports.status.delete(key)
        return None


def _holder(value: str) -> str:
    try:
        return str(json.loads(value)["holder"])
    except MALFORMED:  # not written by a Guardian: it protects no process
        return ""
