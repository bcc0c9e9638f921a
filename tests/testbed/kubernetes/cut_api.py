"""An API client that is cut off, or held, at one of its requests: as a process that dies or pauses there."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from services.core.adapters.kubernetes.api import Api, Document
from services.core.domain.errors import StaleRevision
from services.core.ports.status_store import StatusStore


class Died(BaseException):
    """The process is dead. No code of it catches this."""


class Cut(StrEnum):
    """When a process dies, of one of its requests."""

    BEFORE = "before the call"
    UNANSWERED = "after the call, before its answer"
    ANSWERED = "after the answer"
    """At its next step, whether that is a request or a write to the status store."""


class CutApi(Api):
    """``at``: number of the request, from 0; ``when``: the process dies there, unless ``holds`` is set."""

    def __init__(self, kubeconfig: Path, at: int, when: Cut = Cut.BEFORE) -> None:
        super().__init__(kubeconfig)
        self._at, self._when = at, when
        self.sent: list[tuple[str, str]] = []
        """Method and path of the requests that were begun."""
        self.conflicts = 0
        """How many were refused, as the object had changed since it was read: a step is repeated then."""
        self.dead = False
        self.is_held = asyncio.Event()
        self.go_on = asyncio.Event()
        self.holds = False
        """The request waits for ``go_on`` before it is sent, instead of being cut."""

    @property
    def requests(self) -> int:
        """How many were begun."""
        return len(self.sent)

    def check_alive(self) -> None:
        """Raises Died if the process is dead."""
        if self.dead:
            raise Died

    async def _request(self, method: str, path: str, **options: Any) -> Document:
        self.check_alive()
        number = self.requests
        self.sent.append((method, path))
        if self.holds:
            if number == self._at:
                self.is_held.set()
                await self.go_on.wait()
            return await self._counted(method, path, **options)
        if number == self._at and self._when is Cut.BEFORE:
            self.dead = True
            raise Died
        try:
            answer = await self._counted(method, path, **options)
        finally:  # an error is an answer, too
            if number == self._at:
                self.dead = True
                if self._when is Cut.UNANSWERED:
                    raise Died
        if number != self._at:
            self.check_alive()  # it died while this request was on its way
        return answer

    async def _counted(self, method: str, path: str, **options: Any) -> Document:
        try:
            return await super()._request(method, path, **options)
        except StaleRevision:
            self.conflicts += 1
            raise


class MortalStatus:
    """A status store of a process that may be dead."""

    def __init__(self, status: StatusStore, api: CutApi) -> None:
        self._status, self._api = status, api

    def __getattr__(self, name: str) -> Any:
        self._api.check_alive()
        return getattr(self._status, name)

    @classmethod
    def of(cls, status: StatusStore, api: CutApi) -> StatusStore:
        return cast("StatusStore", cls(status, api))
