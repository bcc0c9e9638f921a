"""Checks at start-up, on a scratch object, whether an S3 server is safe for code.

Uploaded code is named by its digest and must never be overwritten; servers without ``If-None-Match`` overwrite it
silently. The check also finds wrong buckets and credentials before the first job does.
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
    """Raises InvalidRequest if the store cannot be used as configured, Unavailable if it does not answer."""
    key = f"weft-check/{secrets.token_hex(8)}"
    try:
        await store.put(key, _chunks(b"first"))
        try:
            await _create_again(store, key, label)
            await store.put(key, _chunks(_CONTENT))
            if b"".join([chunk async for chunk in store.get(key)]) != _CONTENT:
                raise InvalidRequest(f"{label} does not return what was just written; use another store")
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
            f"{label} overwrites objects in spite of If-None-Match, so the code of running jobs could change; "
            "use a store with conditional writes"
        )


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    yield data
