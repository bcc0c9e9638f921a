"""Aborts old unfinished uploads: their writers died with their machines, and their parts use invisible space.

Only its age tells an abandoned upload from a running one, so the age limit is large. A lifecycle rule of the bucket
does the same (docs/operator-guide.md); this is for buckets without one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from xml.etree import ElementTree as ET

from services.core.adapters.s3.answers import raise_for
from services.core.adapters.s3.bucket import Bucket
from services.core.adapters.s3.signing import Signer
from services.core.adapters.s3.wire import Wire

OLD_S: Final = 7 * 86_400.0
"""Seconds; longer than any job waits for its results to be stored."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    key: str
    """In the bucket."""
    upload: str
    begun: float
    """Unix seconds."""


async def sweep(bucket: Bucket, *, older_than_s: float = OLD_S) -> int:
    """Aborts older uploads below the bucket's prefix, at most a thousand; returns how many. Raises Unavailable."""
    signer, wire = Signer(bucket), Wire()
    try:
        answer = await wire.send("GET", signer.sign("GET", "", {"uploads": "", "prefix": bucket.prefix}))
        raise_for(answer, "")
        old = [upload for upload in _listed(answer.body) if upload.begun <= time.time() - older_than_s]
        for upload in old:
            await wire.send("DELETE", signer.sign("DELETE", upload.key, {"uploadId": upload.upload}))
        return len(old)
    finally:
        wire.close()


def _listed(body: bytes) -> Iterator[Unfinished]:
    # The XML comes from the operator's own store.
    for upload in ET.fromstring(body).iterfind("{*}Upload"):  # noqa: S314
        begun = datetime.fromisoformat(upload.findtext("{*}Initiated", ""))
        yield Unfinished(upload.findtext("{*}Key", ""), upload.findtext("{*}UploadId", ""), begun.timestamp())
