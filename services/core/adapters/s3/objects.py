"""ObjectStore on S3. obstore reads, lists and deletes; what it cannot do goes by ``transfer``: an object of any size
that only comes to be where there is none, parts that are aborted when their source fails or their writer is cancelled.

Every call is bounded in time. S3 acknowledges what is durable; there is nothing to sync.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterable, AsyncIterator, Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from services.core.adapters.s3.answers import RETRY_AFTER_S, error_of
from services.core.adapters.s3.bucket import Bucket
from services.core.adapters.s3.check import check_store
from services.core.adapters.s3.proxies import NOWHERE, proxy_of
from services.core.adapters.s3.signing import Signer
from services.core.adapters.s3.transfer import Transfer
from services.core.adapters.s3.unfinished import sweep
from services.core.adapters.s3.wire import CHUNK, CONNECT_S, Wire
from services.core.domain.errors import InvalidRequest, NotFound, Unavailable, WeftError
from services.core.ports.object_store import ObjectMeta, check_key
from services.core.ports.object_urls import ObjectRequest

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import S3Config

_RETRY_S: Final = 2.0
_WHOLE_S: Final = timedelta(days=1)
"""obstore wants an end for a whole answer; ours is silence, however large the object."""
_PAGE: Final = 1000
_SWEEP_S: Final = 86_400.0
_STATUS: Final = re.compile(r"status (?:code )?(\d{3})|\b(\d{3}) [A-Z][a-z]+", re.IGNORECASE)
_CODE: Final = re.compile(r"<Code>([^<]*)</Code>")


class S3ObjectStore:
    """See ``services.core.ports.object_store.ObjectStore``. Nothing is sent until it is used."""

    def __init__(self, bucket: Bucket, *, silence_s: float = 10.0) -> None:
        """``silence_s``: a server that says nothing for so long is taken for away."""
        self.bucket = bucket
        self._silence_s = silence_s
        self._signer = Signer(bucket)
        self._trusted = False
        self._next_sweep = 0.0
        who = bucket.credentials
        proxy = proxy_of(bucket.endpoint)
        token: S3Config = {"session_token": who.session_token} if who.session_token else {}
        self._store = S3Store(
            bucket.name, endpoint=bucket.endpoint, region=bucket.region, access_key_id=who.access_key,
            secret_access_key=who.secret_key, config=token,
            client_options={
                "allow_http": bucket.endpoint.startswith("http://"), "timeout": _WHOLE_S,
                "connect_timeout": timedelta(seconds=CONNECT_S), "read_timeout": timedelta(seconds=silence_s),
                "proxy_url": proxy or NOWHERE,
                "proxy_excludes": "" if proxy else urlsplit(bucket.endpoint).hostname or "",
            },
            retry_config={
                "max_retries": 4, "retry_timeout": timedelta(seconds=_RETRY_S),
                "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(milliseconds=500),
                            "base": 2},
            },
        )  # fmt: skip

    async def put(
        self, key: str, chunks: AsyncIterable[bytes], *, create_only: bool = False, size: int | None = None
    ) -> ObjectMeta:
        check_key(key)
        transfer = Transfer(self._sign, wire=Wire(answer_s=self._silence_s))
        try:
            stored = await transfer.put(key, chunks, create_only=create_only, size=size)
            there = await transfer.head(key)
        finally:
            transfer.close()
        modified = time.time() if there is None else _unix(there.headers.get("last-modified", ""))
        return ObjectMeta(key, stored.size, round(modified) * 1000, stored.etag)

    async def head(self, key: str) -> ObjectMeta | None:
        try:
            with _translated(key):
                return self._meta(await obstore.head_async(self._store, self.bucket.full(key)))
        except NotFound:
            return None

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        full, start = self.bucket.full(key), max(start, 0)
        options: GetOptions = {}
        if start or end is not None:
            # S3 answers a range that holds nothing with an error.
            meta = await self.head(key)
            if meta is None:
                raise NotFound(f"there is no object {key}")
            end = meta.size if end is None else min(end, meta.size)
            if start >= end:
                return
            options["range"] = (start, end)
        with _translated(key):
            found = await obstore.get_async(self._store, full, options=options)
            async for some in found.stream(min_chunk_size=CHUNK):
                view = memoryview(some)
                for place in range(0, len(view), CHUNK):
                    yield bytes(view[place : place + CHUNK])

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> Sequence[ObjectMeta]:
        base = self._prefix(prefix)
        offset = self.bucket.full(after) if after else None
        found: list[ObjectMeta] = []
        with _translated(prefix):
            async for page in obstore.list(self._store, base, offset=offset, chunk_size=min(limit, _PAGE)):
                found += [self._meta(one) for one in page]
                if len(found) >= limit:
                    break
        return found[:limit]

    async def delete(self, key: str) -> None:
        with _translated(key):
            await obstore.delete_async(self._store, self.bucket.full(key))

    async def delete_prefix(self, prefix: str) -> int:
        self._prefix(prefix)
        count = 0
        while found := await self.list(prefix):
            with _translated(prefix):
                await obstore.delete_async(self._store, [self.bucket.prefix + one.key for one in found])
            count += len(found)
        return count

    async def ping(self) -> None:
        """Until it has been well once, asks all that a start-up must know: InvalidRequest where it is set wrongly."""
        if self._trusted:
            await self.head("weft-ping")
        else:
            await check_store(self, self.bucket.label)
            self._trusted = True
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_S
            with suppress(WeftError):  # who may write may not always list uploads; the next ping but many tries again
                await sweep(self.bucket)

    async def _sign(self, request: ObjectRequest) -> str:
        return self._signer.url(request)

    def _prefix(self, prefix: str) -> str:
        if not prefix.endswith("/"):
            raise InvalidRequest(f"a prefix ends with '/': '{prefix[:200]}/'")
        return self.bucket.full(prefix[:-1]) + "/"

    def _meta(self, found: Any) -> ObjectMeta:
        return ObjectMeta(
            key=found["path"].removeprefix(self.bucket.prefix),
            size=found["size"],
            modified=int(found["last_modified"].timestamp()) * 1000,
            etag=(found["e_tag"] or "").strip('"'),
        )


def _unix(date: str) -> float:
    return parsedate_to_datetime(date).timestamp() if date else time.time()


@contextmanager
def _translated(key: str) -> Generator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise _ours(404, str(error), key) from None
    except (BaseError, OSError) as error:
        status = _STATUS.search(str(error))
        raise _ours(int(status[1] or status[2]) if status else 0, str(error), key) from None


def _ours(status: int, text: str, key: str) -> WeftError:
    """Of what obstore says, which tells status and code in words only."""
    code = _CODE.search(text)
    if status or code:
        return error_of(status, code[1] if code else "", "", key)
    return Unavailable(f"the object store does not answer ({_brief(text)})", retry_after_s=RETRY_AFTER_S)


def _brief(text: str) -> str:
    """What went wrong, without obstore's list of retries and its own dump of the error behind it."""
    return text.partition("\n")[0][:200]
