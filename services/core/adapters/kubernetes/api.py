"""Requests to the API server: raw JSON documents, a timeout for each request, and errors in terms of the domain.

The library's typed interface is not used: importing it takes a second and a hundred megabytes. The connection is opened
by the first request, and again after the server has refused the credentials: those of a kubeconfig may expire.

A request that fails for a moment (429, 5xx, a connection that ends without an answer) is repeated a few times. The
server may have carried out the first one. A repeated creation then raises Duplicate and a repeated patch StaleRevision,
and the callers look at the object in both cases. A server that does not answer in time, or refuses connections, is
away: the caller decides when to come back.

| answer | error |
|---|---|
| no answer, 408, 429, 5xx, refused credentials | Unavailable, with ``retry_after_s`` where the server names it |
| 404 | NotFound |
| 409 AlreadyExists · 409 Conflict | Duplicate · StaleRevision |
| 410 | Expired |
| 403 for a quota · 403, 400, 422 by admission | QuotaExceeded · AdmissionDenied |
| 403 otherwise | Unavailable: an operator grants the right, and the call succeeds later |
| 400, 405, 413, 415, 422 otherwise | InvalidRequest |
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import structlog
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTResponse
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from services.core.adapters.kubernetes.slots import Slots
from services.core.domain.errors import (
    AdmissionDenied,
    Duplicate,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    StaleRevision,
    Unavailable,
    WeftError,
)
from services.core.runtime.retry import Backoff

Document = dict[str, Any]
MERGE_PATCH: Final = "application/merge-patch+json"
WHOLE_LIST: Final = "application/json"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Lists with this ``accept`` contain the metadata of objects only."""
_JSON: Final = {"Accept": "application/json", "Content-Type": "application/json"}
_TIMEOUT_S: Final = 15.0
_TLS_END_S: Final = 0.25
"""The library does not wait for the end of TLS of connections whose request was cancelled. Its documentation recommends
this pause."""
_CONNECT_S: Final = 5.0
_REQUESTS: Final = 24
"""At the same time, without watches. More wait here, where the urgent ones go first, and before their time limit
begins: a gang of a thousand pods is one burst, and the library counts the wait for a connection as a server that does
not answer."""
_CONNECTIONS: Final = 128
"""Watches included."""
_PAGE: Final = 500
_MOST_MESSAGE: Final = 2_000
_TRIES: Final = 5
_FIRST_PAUSE_S: Final = 0.05
_MOST_PAUSE_S: Final = 2.0
"""A server that demands a longer pause (Retry-After) is left to the caller."""
_PASSING: Final = frozenset({429, 500, 502, 503, 504})
_LOOPBACK: Final = re.compile(r"https?://(localhost|127\.|\[::1\])")
_ADMISSION: Final = re.compile(
    r"violates PodSecurity|admission webhook|ValidatingAdmissionPolicy|denied (?:the )?request"
    r"|(?:maximum|minimum) \S+ usage per|must be less than or equal to \S+ limit of"
)
log = structlog.get_logger()


class Expired(Unavailable):
    """The server has forgotten the resource version of a watch or of a list's next page. List again."""


class Api:
    """One API server. ``kubeconfig``: None uses the service account of the pod in which this process runs."""

    def __init__(self, kubeconfig: Path | None, context: str = "") -> None:
        """``context``: of the kubeconfig; empty: its current one."""
        self._kubeconfig, self._context = kubeconfig, context
        self._client: ApiClient | None = None
        self._connecting = asyncio.Lock()
        self._slots = Slots(_REQUESTS)

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Document:
        return await self._request("GET", path, query=query)

    async def create(self, path: str, document: Document) -> Document:
        """``path``: of the collection. Raises Duplicate if an object of this name exists."""
        return await self._request("POST", path, body=document)

    async def try_create(self, path: str, document: Document) -> None:
        """Raises what ``create`` would raise. Nothing is stored."""
        await self._request("POST", path, query={"dryRun": "All"}, body=document)

    async def patch(self, path: str, change: Document) -> Document:
        """A merge patch. With ``metadata.uid`` and ``metadata.resourceVersion`` it applies to that state only."""
        return await self._request("PATCH", path, body=change, content_type=MERGE_PATCH)

    async def delete(self, path: str, *, grace_s: int | None = None, uid: str = "", version: str = "") -> None:
        """Requests the deletion. No error if the object, or the one with this ``uid``, does not exist.

        ``version``: a resource version; the deletion takes effect only while the object has it, a late one too. Raises
        StaleRevision if it has another, or if the server refuses the deletion although the object is there.
        """
        options: Document = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if preconditions := {name: value for name, value in (("uid", uid), ("resourceVersion", version)) if value}:
            options["preconditions"] = preconditions
        backoff = Backoff(first_s=_FIRST_PAUSE_S, most_s=_MOST_PAUSE_S)
        with suppress(NotFound):
            for last in (*[False] * (_TRIES - 1), True):
                try:
                    await self._request("DELETE", path, body=options)
                except StaleRevision:
                    present = (await self.get(path))["metadata"]
                    if (uid and present["uid"] != uid) or present.get("deletionTimestamp"):
                        return
                    if last or (version and present["resourceVersion"] != version):
                        raise
                    await backoff.wait()
                else:
                    return

    async def list(
        self, path: str, *, selector: str = "", query: Mapping[str, str] | None = None, accept: str = WHOLE_LIST
    ) -> tuple[list[Document], str]:
        """Returns all objects of a collection, of one moment, and its resource version. A quorum read."""
        items: list[Document] = []
        parameters = {"limit": str(_PAGE), **(query or {})} | ({"labelSelector": selector} if selector else {})
        while True:
            page = await self._request("GET", path, query=parameters, accept=accept)
            items += page["items"] or []
            rest = page["metadata"].get("continue")
            if not rest:
                return items, page["metadata"]["resourceVersion"]
            parameters["continue"] = rest

    async def watch(self, path: str, query: Mapping[str, str], *, silence_s: float) -> AsyncGenerator[Document, None]:
        """Yields events ``{type, object}``. Ends when the server ends it. Raises Unavailable after ``silence_s``
        seconds without a byte, which a half-open connection causes, and Expired.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=silence_s)
        response = await self._send("GET", path, query={**query, "watch": "true"}, timeout=timeout)
        try:
            if response.status != 200:
                raise _error(response, await response.read())
            async with aclosing(_lines(response.response.content)) as lines:
                async for line in lines:
                    try:
                        event: Document = json.loads(line)
                    except ValueError as error:  # the connection was cut within a line
                        raise Unavailable(f"the API server's watch was cut off: {error}") from error
                    if event["type"] == "ERROR":
                        raise _status_error(int(event["object"].get("code", 500)), event["object"], None)
                    yield event
        finally:
            connection = response.response.connection
            if connection is not None and connection.transport is not None:
                connection.transport.abort()  # closing would wait for the server's end of TLS, which nothing awaits
            response.response.close()

    async def close(self) -> None:
        """Ends all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
            await asyncio.sleep(_TLS_END_S)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Document | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Document:
        headers = {"Accept": accept, "Content-Type": content_type}
        backoff = Backoff(first_s=_FIRST_PAUSE_S, most_s=_MOST_PAUSE_S)
        for last in (*[False] * (_TRIES - 1), True):
            try:
                response, text = await self._answer(method, path, query or {}, body, headers)
            except Unavailable as error:
                if last or not _ended_without_answer(error):
                    raise
                await backoff.wait()
                continue
            if response.status < 400:
                return _document(text, f"{method} {path}")
            failed = _error(response, text)
            pause_s = (failed.retry_after_s if isinstance(failed, Unavailable) else None) or 0
            if last or response.status not in _PASSING or pause_s > _MOST_PAUSE_S:
                raise failed
            await asyncio.sleep(max(pause_s, backoff.next()))
        raise AssertionError  # not reached: the last round returns or raises

    async def _answer(
        self, method: str, path: str, query: Mapping[str, str], body: Document | None, headers: Mapping[str, str]
    ) -> tuple[RESTResponse, bytes]:
        """An answer and its body; the second one if the first refuses the credentials."""
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S, sock_connect=_CONNECT_S)
        async with self._slots:
            response = await self._send(method, path, query=query, timeout=timeout, body=body, headers=headers)
            text = await _translated(response.read())
            if response.status == 401:
                await self.close()  # the next one reads the credentials anew
                response = await self._send(method, path, query=query, timeout=timeout, body=body, headers=headers)
                text = await _translated(response.read())
        return response, text

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        body: Document | None = None,
        headers: Mapping[str, str] = _JSON,
    ) -> RESTResponse:
        client = await self._connected()
        _, url, sent, _, _ = await client.param_serialize(
            method, path, query_params=list(query.items()), header_params=dict(headers), auth_settings=["BearerToken"]
        )
        return await _translated(
            client.rest_client.request(method, url, headers=sent, body=body, _request_timeout=timeout)
        )

    async def _connected(self) -> ApiClient:
        async with self._connecting:
            if self._client is None:
                self._client = await self._connect()
            return self._client

    async def _connect(self) -> ApiClient:
        configuration = Configuration()
        try:
            if self._kubeconfig is None:
                load_incluster_config(client_configuration=configuration)
            else:
                await load_kube_config(
                    str(self._kubeconfig),
                    self._context or None,
                    client_configuration=configuration,
                    persist_config=False,
                )
        except (ConfigException, OSError, ValueError, KeyError, TypeError) as error:
            where = self._kubeconfig or "this pod's service account"
            raise Unavailable(f"the access to Kubernetes cannot be read from {where}: {error}") from error
        configuration.connection_pool_maxsize = _CONNECTIONS
        if _LOOPBACK.match(configuration.host):  # as kubectl: no proxy reaches this machine's loopback
            configuration.client_session_kwargs = {"trust_env": False}
        return ApiClient(configuration)


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """Yields lines of any length, as they are complete; at last a rest without an end.

    The library's own lines end at 128 KiB: a watch would fail again and again at the event of one larger pod, and every
    other job would go unseen. The API server bounds an object by 3 MiB.
    """
    rest = b""
    while chunk := await _translated(content.readany()):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


async def _translated(call: Any) -> Any:
    """The result of a request of the library. Raises Unavailable if the server does not answer."""
    try:
        return await call
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise Unavailable(f"the Kubernetes API server does not answer: {str(error) or type(error).__name__}") from error


def _ended_without_answer(error: Unavailable) -> bool:
    """True if the connection ended while a request was on it."""
    ended = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError)
    return isinstance(error.__cause__, ended) and not isinstance(error.__cause__, aiohttp.ClientConnectorError)


def _document(text: bytes, request: str) -> Document:
    try:
        document: Document = json.loads(text)
    except ValueError as error:
        raise Unavailable(f"the API server's answer to {request} is no JSON") from error
    return document


def _error(response: RESTResponse, text: bytes) -> WeftError:
    try:
        status = json.loads(text)
    except ValueError:
        status = {"message": text.decode(errors="replace")}
    retry_after = response.headers.get("Retry-After", "")
    return _status_error(
        response.status,
        status if isinstance(status, dict) else {},
        float(retry_after) if retry_after.isdigit() else None,
    )


def _status_error(code: int, status: Mapping[str, Any], retry_after_s: float | None) -> WeftError:
    """The error of an answer. ``status``: its document of kind Status, from which the message comes."""
    message, reason = str(status.get("message") or f"HTTP status {code}")[:_MOST_MESSAGE], status.get("reason")
    if code == 404:
        return NotFound(message)
    if code == 409:
        return Duplicate(message) if reason == "AlreadyExists" else StaleRevision(message)
    if code == 410:
        return Expired(message)
    if code == 403 and "exceeded quota" in message:
        return QuotaExceeded(f"the tenant's quota in the cluster is used up: {message}")
    if code in {400, 403, 422} and _ADMISSION.search(message):
        return AdmissionDenied(f"the cluster's admission control refuses it: {message}")
    if code == 403 and "being terminated" in message:
        return Unavailable(f"the tenant's namespace is being removed: {message}")
    if code in {401, 403}:
        return Unavailable(f"Kubernetes refuses the platform's access: {message}")
    if code in {400, 405, 413, 415, 422}:
        return InvalidRequest(f"Kubernetes refuses the object: {message}")
    return Unavailable(f"the Kubernetes API server answers {code}: {message}", retry_after_s=retry_after_s)


def collection(kind: str, namespace: str, name: str = "") -> str:
    """Returns the path of a namespaced collection, or of one of its objects. ``kind``: a key of ``COLLECTIONS``."""
    group, plural = COLLECTIONS[kind]
    base = f"/api/{group}" if group == "v1" else f"/apis/{group}"
    return f"{base}/namespaces/{quote(namespace)}/{plural}{f'/{quote(name)}' if name else ''}"


COLLECTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "ConfigMap": ("v1", "configmaps"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "Pod": ("v1", "pods"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "ResourceQuota": ("v1", "resourcequotas"),
    "LimitRange": ("v1", "limitranges"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings"),
    "Job": ("batch/v1", "jobs"),
    "PodGroup": ("scheduling.k8s.io/v1alpha2", "podgroups"),
}
"""Kind -> (group and version, name of the collection)."""


def path_of(document: Document, *, of_collection: bool = False) -> str:
    """Returns the path of a rendered object, or of its collection."""
    metadata = document["metadata"]
    return collection(document["kind"], metadata["namespace"], "" if of_collection else metadata["name"])


async def gather(calls: Sequence[Any]) -> list[Any]:
    """Runs all to their end, whatever fails. Returns the results, or raises the first error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return list(results)
