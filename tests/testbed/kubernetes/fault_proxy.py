"""A proxy before an API server that fails a share of the requests, as busy, broken and restarting servers do.

It listens on this machine's loopback without TLS, in a thread of its own, and passes on the credentials of each
request. Which request fails, and how, is a function of the seed and of the order in which requests arrive. Every fault
is counted by its kind.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import ssl
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

from services.local.layout import listen_lasting

_SLOW_S: Final = (0.1, 1.0)
_STALE_S: Final = (0.5, 3.0)
TLS_END_S: Final = 0.25
"""The library closes TLS connections after the session: its documentation recommends to let the loop run on."""
_WEIGHT: Final = 0.3
"""Of the share, for each event of a watch: a watch has many, and one fault ends it."""
_HOP: Final = frozenset({"host", "connection", "transfer-encoding", "content-length", "keep-alive"})


class Kind(StrEnum):
    """What happens to a request instead of its answer."""

    CONFLICT = "409"
    """Refused as changed meanwhile, as by an admission plugin that lost a race for a quota."""
    TOO_MANY = "429"
    """Refused, with Retry-After."""
    BROKEN = "500"
    """Refused before it is carried out."""
    LOST_ANSWER = "504 after commit"
    """Carried out; its answer is 504."""
    CUT = "cut"
    """The connection ends before the request is carried out."""
    CUT_ANSWER = "cut after commit"
    SLOW = "slow"
    """Carried out after a pause."""
    GONE = "410"
    """The watch's version is forgotten, at its start or after some events."""
    CUT_WATCH = "cut watch"
    """The watch ends within an event."""
    STALE_WATCH = "stale watch"
    """The watch's events are late."""


_READS: Final = (Kind.TOO_MANY, Kind.BROKEN, Kind.LOST_ANSWER, Kind.CUT, Kind.SLOW)
_WRITES: Final = (Kind.CONFLICT, *_READS, Kind.CUT_ANSWER)
_WATCHES: Final = (Kind.TOO_MANY, Kind.BROKEN, Kind.GONE)
_EVENTS: Final = (Kind.GONE, Kind.CUT_WATCH, Kind.STALE_WATCH)


class FaultProxy:
    """``share``: of the requests that fail, 0 to 1; may be changed at any time."""

    def __init__(self, kubeconfig: Path, *, seed: int, share: float = 0.0) -> None:
        """``kubeconfig``: as the test bed writes them (JSON, one cluster, with the authority's certificate)."""
        self.share = share
        self.requests = 0
        self.injected: Counter[str] = Counter()
        """Kind -> how many faults."""
        self._chance = random.Random(seed)
        self._settings = json.loads(kubeconfig.read_text())
        self._cluster = self._settings["clusters"][0]["cluster"]
        self._listener = listen_lasting("127.0.0.1")
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)

    def kubeconfig(self, path: Path) -> Path:
        """Writes a kubeconfig that leads through the proxy. Returns its path."""
        cluster = {"server": f"http://127.0.0.1:{self._listener.getsockname()[1]}"}
        named = {**self._settings["clusters"][0], "cluster": cluster}
        path.write_text(json.dumps({**self._settings, "clusters": [named]}))
        path.chmod(0o600)
        return path

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Ends all connections."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        authority = ssl.create_default_context(
            cadata=base64.b64decode(self._cluster["certificate-authority-data"]).decode()
        )
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=0, ssl=authority)
        ) as far:
            self._far = far
            app = web.Application(client_max_size=2**24)
            app.router.add_route("*", "/{path:.*}", self._handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0, handler_cancellation=True)
            await runner.setup()
            await web.SockSite(runner, self._listener).start()
            self._ready.set()
            await self._ended.wait()
            await runner.cleanup()
        await asyncio.sleep(TLS_END_S)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        watches = request.query.get("watch") in {"1", "true"}
        self.requests += 1
        kind = self._fault(_WATCHES if watches else _READS if request.method == "GET" else _WRITES)
        body = await request.read()
        match kind:
            case Kind.CONFLICT:
                return _status(409, "Conflict", "the object has been modified; please apply your changes again")
            case Kind.TOO_MANY:
                return _status(429, "TooManyRequests", "too many requests", retry_after_s=1)
            case Kind.BROKEN:
                return _status(500, "InternalError", "etcdserver: leader changed")
            case Kind.CUT:
                return _cut(request)
            case Kind.SLOW:
                await asyncio.sleep(self._chance.uniform(*_SLOW_S))
            case _:
                pass  # when it has been carried out, or of a watch
        try:
            if watches:
                return await self._watch(request, kind)
            return await self._forward(request, body, kind)
        except (aiohttp.ClientError, OSError):  # the API server is away: so is its proxy
            return _cut(request)

    def _fault(self, kinds: tuple[Kind, ...], *, weight: float = 1.0) -> Kind | None:
        if self._chance.random() >= self.share * weight:
            return None
        kind = self._chance.choice(kinds)
        self.injected[kind] += 1
        return kind

    async def _forward(self, request: web.Request, body: bytes, kind: Kind | None) -> web.StreamResponse:
        async with self._sent(request, body) as answer:
            content = await answer.read()
        if kind is Kind.LOST_ANSWER:
            return _status(504, "Timeout", "request did not complete within requested timeout")
        if kind is Kind.CUT_ANSWER:
            return _cut(request)
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        headers.pop("Content-Encoding", None)  # the client session has decoded it
        return web.Response(status=answer.status, body=content, headers=headers)

    async def _watch(self, request: web.Request, kind: Kind | None) -> web.StreamResponse:
        """Passes on events, each of which may be the last one or late."""
        if kind is Kind.GONE:
            return _status(410, "Expired", "too old resource version")
        async with self._sent(request, b"") as answer:
            passed = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
            await passed.prepare(request)
            async for line in answer.content:
                match self._fault(_EVENTS, weight=_WEIGHT):
                    case Kind.GONE:
                        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
                        await passed.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
                        break
                    case Kind.CUT_WATCH:
                        await passed.write(line[: len(line) // 2])
                        _cut(request)
                        break
                    case Kind.STALE_WATCH:
                        await asyncio.sleep(self._chance.uniform(*_STALE_S))
                    case _:
                        pass
                await passed.write(line)
        return passed

    def _sent(self, request: web.Request, body: bytes) -> aiohttp.client._RequestContextManager:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        headers.pop("Accept-Encoding", None)
        return self._far.request(
            request.method, f"{self._cluster['server']}{request.raw_path}", headers=headers, data=body or None
        )


@contextmanager
def fault_proxy(kubeconfig: Path, *, seed: int, share: float = 0.0) -> Generator[FaultProxy]:
    """A running proxy."""
    proxy = FaultProxy(kubeconfig, seed=seed, share=share)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


def _status(code: int, reason: str, message: str, *, retry_after_s: int | None = None) -> web.Response:
    """An answer as the API server writes it."""
    document = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return web.json_response(document, status=code, headers=headers)


def _cut(request: web.Request) -> web.StreamResponse:
    """Ends the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
