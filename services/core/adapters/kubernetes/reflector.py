"""One list+watch loop for many objects: one current copy of a collection for all its readers.

The library's own informer has no back-off and hangs on a half-open connection. This loop lists, watches from the list's
resource version with bookmarks, and lists again where the server has forgotten that version (410). After other failures
it lists again with a jittered back-off, also where the server allows lists and no watches. The server ends each watch
after ``_WATCH_S`` at the latest, and a watch that is silent for ``_SILENCE_S`` is given up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

import structlog

from services.core.adapters.kubernetes.api import Api, Document, Expired
from services.core.domain.errors import Unavailable, WeftError
from services.core.runtime.edges import log_unexpected
from services.core.runtime.retry import Backoff

_WATCH_S: Final = 240
_SILENCE_S: Final = 60.0
"""Bookmarks come about each minute; some servers send none, so the watch then begins again from its last version."""
_FIRST_S: Final = 0.1
_SHORT_S: Final = 1.0
_MOST_S: Final = 10.0
_MOST_CUT: Final = 3
"""Watches in a row that may fail before an event. Until then they go on from their version: a list is more work for a
server that is overloaded."""
log = structlog.get_logger()
Key = tuple[str, str]
"""(namespace, name)."""


class Reflector:
    """``run`` keeps the copy current until cancelled."""

    def __init__(
        self,
        api: Api,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        keep: Callable[[Document], Any] = lambda document: document,
        on_change: Callable[[Document], None] = lambda _: None,
        on_list: Callable[[], None] = lambda: None,
    ) -> None:
        """``query``: selectors. ``keep``: the part of an object that is kept. ``on_change``: called with each object
        that was added, changed or removed. ``on_list``: called after each list: any object may have changed before.
        """
        self._api, self._path, self._query, self._keep = api, path, dict(query or {}), keep
        self._on_change, self._on_list = on_change, on_list
        self._objects: dict[Key, Any] = {}
        self._synced = asyncio.Event()
        self._cut = 0
        """Watches in a row that have failed before an event."""

    @property
    def objects(self) -> Mapping[Key, Any]:
        return self._objects

    @property
    def current(self) -> bool:
        """True while a watch follows the copy: then changes are late by a moment, or by ``_SILENCE_S`` at most."""
        return self._synced.is_set()

    async def synced(self, timeout_s: float) -> None:
        """Returns when the copy is complete. Raises Unavailable if it is not after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._synced.wait()
        except TimeoutError:
            raise Unavailable("the Kubernetes API server does not list its objects") from None

    async def run(self) -> None:
        """Keeps the copy current until cancelled. After any error it lists again, and is not current until then."""
        backoff = Backoff(first_s=_FIRST_S, most_s=_MOST_S)
        while True:
            pause_s = _MOST_S
            try:
                with log_unexpected("kubernetes.watch_crashed", expected=WeftError, path=self._path):
                    await self._list_and_watch(backoff)
            except Expired:
                pause_s = 0.0
            except WeftError as error:
                pause_s = backoff.next()
                log.warning("kubernetes.watch_failed", path=self._path, why=str(error), delay_s=pause_s)
            self._synced.clear()
            await asyncio.sleep(pause_s)

    async def _list_and_watch(self, backoff: Backoff) -> None:
        """Returns only by an error."""
        version = await self._list()
        while True:
            started_s = asyncio.get_running_loop().time()
            version = await self._watch(version)
            if not self._cut:  # not after the list: where lists are allowed and watches are not, it would never grow
                backoff.reset()
            if asyncio.get_running_loop().time() - started_s < _SHORT_S:  # a server or proxy ends each at once
                await asyncio.sleep(random.uniform(_FIRST_S / 2, _FIRST_S))

    async def _list(self) -> str:
        items, version = await self._api.list(self._path, query=self._query)
        self._objects = {_key(item): self._keep(item) for item in items}
        self._synced.set()
        self._on_list()
        return version

    async def _watch(self, version: str) -> str:
        """Follows changes from this version until the server ends the watch. Returns the last version seen."""
        query = {
            **self._query,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(_WATCH_S // 2, _WATCH_S)),
        }
        began_s = asyncio.get_running_loop().time()
        try:
            async with aclosing(self._api.watch(self._path, query, silence_s=_SILENCE_S)) as events:
                async for event in events:
                    self._cut = 0
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._apply(event)
            self._cut = 0
        except Expired:
            raise
        except Unavailable as error:
            was_silent = asyncio.get_running_loop().time() - began_s >= _SILENCE_S  # nothing may have happened
            self._cut = 0 if was_silent else self._cut + 1
            if self._cut > _MOST_CUT:
                raise
            self._synced.clear()
            log.debug("kubernetes.watch_cut", path=self._path, why=str(error))
            await asyncio.sleep(random.uniform(0, _FIRST_S))
            await self._api.get(self._path, {**self._query, "limit": "1"})  # raises if the server is away
            self._synced.set()  # the next watch continues from this version
        return version

    def _apply(self, event: Document) -> None:
        document, key = event["object"], _key(event["object"])
        if event["type"] == "DELETED":
            self._objects.pop(key, None)
        else:
            self._objects[key] = self._keep(document)
        self._on_change(document)


def _key(document: Document) -> Key:
    return document["metadata"].get("namespace", ""), document["metadata"]["name"]
