"""The adapter's client (``services.core.adapters.kubernetes.api.Api``) over the simulated API server.

Only the library below it is replaced: the client's own retries, pages, errors and watches run as shipped. Each request
goes over the connection of its process, so that it can be lost, late, or made by a process that is dead or paused. The
server itself refuses requests and loses answers while ``ApiTrouble`` says so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import aiohttp

from services.core.adapters.kubernetes.api import Api
from services.core.domain.errors import Unavailable
from tests.simulation.api_server import Answer, ApiServer, Watch, refusal
from tests.simulation.network import Connection

VERBS: Final = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
LIFT: Final = "lift"
"""A patch that lifts a pod's gate."""
_LONGEST_WATCH_S: Final = 15
"""The server ends watches after at most so long, so that they are resumed often."""
_SLOW_S: Final = 2.0


@dataclass(frozen=True)
class PortCall:
    """The call of the Cluster port for which a request is made."""

    name: str
    """do | stop | teardown."""
    job: str
    attempt: int
    term: int
    step: str = ""
    cause: str = ""


CURRENT_CALL: ContextVar[PortCall | None] = ContextVar("CURRENT_CALL", default=None)


@dataclass
class ApiTrouble:
    """Faults of the API server, for all its clients."""

    share: float = 0.0
    """Share of requests that fail."""
    watch_delay_s: float = 0.0
    """Events of watches come so late."""


class SimulatedApi(Api):
    """The client of one process."""

    def __init__(self, server: ApiServer, connection: Connection, trouble: ApiTrouble) -> None:
        super().__init__(None)
        self._library = _Library(server, connection, trouble)

    async def _connect(self) -> Any:
        return self._library


class _Library:
    """What ``Api`` uses of the Kubernetes library."""

    def __init__(self, server: ApiServer, connection: Connection, trouble: ApiTrouble) -> None:
        self._server, self._connection, self._trouble = server, connection, trouble
        self.rest_client = self

    async def param_serialize(
        self, method: str, path: str, *, query_params: Any, header_params: Mapping[str, str], **_: Any
    ) -> tuple[str, Any, Mapping[str, str], None, None]:
        return method, (path, dict(query_params)), header_params, None, None

    async def request(
        self, method: str, url: Any, *, headers: Mapping[str, str], body: Any = None, **_: Any
    ) -> _Response:
        path, query = url
        if query.get("watch"):
            return await self._over_network("watch", self._watch, path, query)
        verb = LIFT if method == "PATCH" and "schedulingGates" in body.get("spec", {}) else VERBS[method]
        return await self._over_network(
            verb,
            self._answer,
            method,
            path,
            query,
            body,
            headers["Accept"],
            CURRENT_CALL.get(),
        )

    async def close(self) -> None: ...

    async def _over_network(self, verb: str, method: Any, *args: Any) -> _Response:
        try:
            response: _Response = await self._connection.call("cluster", verb, method, args, {})
        except Unavailable as error:
            if not self._connection.can_reach("cluster"):
                raise TimeoutError(str(error)) from error
            raise aiohttp.ServerDisconnectedError(str(error)) from error
        return response

    async def _answer(
        self, method: str, path: str, query: Mapping[str, str], body: Any, accept: str, call: PortCall | None
    ) -> _Response:
        chance, counts = self._connection.network.chance, self._connection.network.fault_counts
        fault = ""
        if self._trouble.share and chance.random() < self._trouble.share:
            fault = chance.choice(["429", "500", "504 after commit", "slow"])
            counts[f"API server: {fault}"] += 1
        if fault == "429":
            return _Response(refusal(429, "TooManyRequests", "too many requests", **{"Retry-After": "1"}))
        if fault == "500":
            return _Response(refusal(500, "InternalError", "etcdserver: leader changed"))
        if fault == "slow":
            await asyncio.sleep(chance.uniform(0, _SLOW_S))
        answer = self._server.handle(method, path, query, body, accept, call)
        if fault == "504 after commit":
            return _Response(refusal(504, "Timeout", "the server was unable to return a response in the time allotted"))
        return _Response(answer)

    async def _watch(self, path: str, query: Mapping[str, str]) -> _Response:
        watch = self._server.watch(path, query)
        if isinstance(watch, Answer):
            return _Response(watch)
        ends_s = min(int(query["timeoutSeconds"]), _LONGEST_WATCH_S)
        asyncio.get_running_loop().call_later(ends_s, watch.queue.put_nowait, None)
        return _Response(Answer(200, {}), _WatchedEvents(watch, self._server, self._connection, self._trouble))


class _Response:
    """An answer, as the library gives it."""

    def __init__(self, answer: Answer, content: _WatchedEvents | None = None) -> None:
        self.status, self.headers, self._document = answer.code, answer.headers, answer.document
        self.response = SimpleNamespace(content=content, connection=None, close=self._close)
        self._content = content

    async def read(self) -> bytes:
        return json.dumps(self._document).encode()

    def _close(self) -> None:
        if self._content is not None:
            self._content.close()


class _WatchedEvents:
    """The body of a watch's answer."""

    def __init__(self, watch: Watch, server: ApiServer, connection: Connection, trouble: ApiTrouble) -> None:
        self._watch, self._server, self._connection, self._trouble = watch, server, connection, trouble

    async def readany(self) -> bytes:
        """The next event as a line; empty at the end. Raises ClientPayloadError where the connection is cut."""
        event = await self._watch.queue.get()
        if self._trouble.watch_delay_s and event is not None:
            await asyncio.sleep(self._trouble.watch_delay_s)
        await self._connection.wait_until_running()
        if isinstance(event, Exception):
            raise event
        if not self._connection.can_reach("cluster"):
            raise aiohttp.ClientPayloadError("the connection was cut")
        return json.dumps(event).encode() + b"\n" if event is not None else b""

    def close(self) -> None:
        self._server.watches.pop(self._watch, None)
