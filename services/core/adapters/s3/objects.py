"""ObjectStore on S3. obstore reads, lists and deletes.

``transfer`` writes, because obstore cannot: create-only objects of any size, and uploads that are aborted when their
source fails or their writer is cancelled. Every call has a time limit. S3 acknowledges durable writes only.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterable, AsyncIterator, Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
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
"""obstore requires a time limit for a whole answer; ours is on silence, for objects of any size."""
_PAGE: Final = 1000
_SWEEP_S: Final = 86_400.0
_STATUS: Final = re.compile(r"status (?:code )?(\d{3})|\b(\d{3}) [A-Z][a-z]+", re.IGNORECASE)
_CODE: Final = re.compile(r"<Code>([^<]*)</Code>")


class S3ObjectStore:
    """See ``services.core.ports.object_store.ObjectStore``. Sends nothing before its first call."""

    def __init__(self, bucket: Bucket, *, silence_s: float = 10.0) -> None:
        """``silence_s``: a server that sends nothing for this many seconds counts as unavailable."""
        self.bucket = bucket
        self._silence_s = silence_s
        self._signer = Signer(bucket)
        self._trusted = False
        self._next_sweep = 0.0
        credentials = bucket.credentials
        proxy = proxy_of(bucket.endpoint)
        token: S3Config = {"session_token": credentials.session_token} if credentials.session_token else {}
        self._store = S3Store(
            bucket.name,
            endpoint=bucket.endpoint,
            region=bucket.region,
            access_key_id=credentials.access_key,
            secret_access_key=credentials.secret_key,
            config=token,
            client_options={
                "allow_http": bucket.endpoint.startswith("http://"),
                "timeout": _WHOLE_S,
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "read_timeout": timedelta(seconds=silence_s),
                "proxy_url": proxy or NOWHERE,
                "proxy_excludes": "" if proxy else urlsplit(bucket.endpoint).hostname or "",
            },
            retry_config={
                "max_retries": 4,
                "retry_timeout": timedelta(seconds=_RETRY_S),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=50),
                    "max_backoff": timedelta(milliseconds=500),
                    "base": 2,
                },
            },
        )

    async def put(
        self, key: str, chunks: AsyncIterable[bytes], *, create_only: bool = False, size: int | None = None
    ) -> None:
        check_key(key)
        transfer = Transfer(self._sign, wire=Wire(answer_s=self._silence_s))
        try:
            await transfer.put(key, chunks, create_only=create_only, size=size)
        finally:
            transfer.close()

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
            # S3 answers an empty range with an error.
            meta = await self.head(key)
            if meta is None:
                raise NotFound(f"there is no object {key}")
            end = meta.size if end is None else min(end, meta.size)
            if start >= end:
                return
            options["range"] = (start, end)
        with _translated(key):
            answer = await obstore.get_async(self._store, full, options=options)
            async for chunk in answer.stream(min_chunk_size=CHUNK):
                view = memoryview(chunk)
                for start in range(0, len(view), CHUNK):
                    yield bytes(view[start : start + CHUNK])

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> Sequence[ObjectMeta]:
        base = self._prefix(prefix)
        offset = self.bucket.full(after) if after else None
        listed: list[ObjectMeta] = []
        with _translated(prefix):
            async for page in obstore.list(self._store, base, offset=offset, chunk_size=min(limit, _PAGE)):
                listed += [self._meta(entry) for entry in page]
                if len(listed) >= limit:
                    break
        return listed[:limit]

    async def delete(self, key: str) -> None:
        with _translated(key):
            await obstore.delete_async(self._store, self.bucket.full(key))

    async def delete_prefix(self, prefix: str) -> int:
        self._prefix(prefix)
        count = 0
        while page := await self.list(prefix):
            with _translated(prefix):
                await obstore.delete_async(self._store, [self.bucket.prefix + entry.key for entry in page])
            count += len(page)
        return count

    async def ping(self) -> None:
        """Runs ``check_store`` until it has passed once; it raises InvalidRequest for a wrong configuration."""
        if self._trusted:
            await self.head("weft-ping")
        else:
            await check_store(self, self.bucket.label)
            self._trusted = True
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_S
            with suppress(WeftError):  # the credentials may not allow to list uploads; tried again a day later
                await sweep(self.bucket)

    async def _sign(self, request: ObjectRequest) -> str:
        return self._signer.url(request)

    def _prefix(self, prefix: str) -> str:
        if not prefix.endswith("/"):
            raise InvalidRequest(f"a prefix ends with '/': '{prefix[:200]}/'")
        return self.bucket.full(prefix[:-1]) + "/"

    def _meta(self, entry: Any) -> ObjectMeta:
        return ObjectMeta(
            key=entry["path"].removeprefix(self.bucket.prefix),
            size=entry["size"],
            modified=int(entry["last_modified"].timestamp()) * 1000,
            etag=(entry["e_tag"] or "").strip('"'),
        )


@contextmanager
def _translated(key: str) -> Generator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise _weft_error(404, str(error), key) from None
    except (BaseError, OSError) as error:
        status = _STATUS.search(str(error))
        raise _weft_error(int(status[1] or status[2]) if status else 0, str(error), key) from None


def _weft_error(status: int, text: str, key: str) -> WeftError:
    """The WeftError for an error of obstore, which has status and code in its text only."""
    code = _CODE.search(text)
    if status or code:
        return error_of(status, code[1] if code else "", "", key)
    return Unavailable(f"the object store does not answer ({_brief(text)})", retry_after_s=RETRY_AFTER_S)


def _brief(text: str) -> str:
    """The first line of obstore's message, without its list of retries and dump of the error."""
    return text.partition("\n")[0][:200]
