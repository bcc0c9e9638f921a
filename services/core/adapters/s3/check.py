"""Whether a server that speaks S3 can be trusted with code: found out at start-up, on a scratch object.

What is uploaded is named by its digest and written only where there is nothing; servers that do not know
``If-None-Match`` overwrite without a word. Wrong buckets and credentials are found here, too, and not by the first job.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator

from services.core.adapters.s3.answers import Refused
from services.core.domain.errors import Duplicate, InvalidRequest, Unavailable, WeftError
from services.core.ports.object_store import ObjectStore

_CONTENT = b"weft"


async def check_store(store: ObjectStore, label: str) -> None:
    """InvalidRequest where it cannot be used as it is set; Unavailable where it does not answer."""
    key = f"weft-check/{secrets.token_hex(8)}"
    try:
        await store.put(key, _chunks(b"first"))
        try:
            await _create_again(store, key, label)
            await store.put(key, _chunks(_CONTENT))
            if b"".join([chunk async for chunk in store.get(key)]) != _CONTENT:
                raise InvalidRequest(f"{label} does not give back what was just written; use a store that does")
            await store.list("weft-check/", limit=1)
        finally:
            with contextlib.suppress(Unavailable):
                await store.delete(key)
    except Refused as refused:
        raise InvalidRequest(f"{label} cannot be used: {refused.message}") from refused
    except Unavailable:
        raise
    except InvalidRequest:
        raise
    except WeftError as error:
        raise InvalidRequest(f"{label} cannot be used: {error.message}") from error


async def _create_again(store: ObjectStore, key: str, label: str) -> None:
    with contextlib.suppress(Duplicate):
        await store.put(key, _chunks(b"second"), create_only=True)
        raise InvalidRequest(
            f"{label} overwrites what is there although it was asked not to (If-None-Match): jobs' code would change "
            "under them; use a store that knows conditional writes"
        )


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    yield data
