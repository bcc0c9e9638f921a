"""An API client that is cut off, or held, at one of its requests: as a process that dies or pauses there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from services.core.adapters.kubernetes.api import Api, Document


class Died(BaseException):
    """The process is dead. No code of it catches this."""


class CutApi(Api):
    """``at``: number of the request, from 0; ``after``: cut once the server has carried it out."""

    def __init__(self, kubeconfig: Path, at: int, *, after: bool = False) -> None:
        super().__init__(kubeconfig)
        self._at, self._after = at, after
        self.requests = 0
        """How many were begun."""
        self.is_held = asyncio.Event()
        self.go_on = asyncio.Event()
        self.holds = False
        """The request waits for ``go_on`` before it is sent, instead of being cut."""

    async def _request(self, method: str, path: str, **options: Any) -> Document:
        number, self.requests = self.requests, self.requests + 1
        if self.holds and number == self._at:
            self.is_held.set()
            await self.go_on.wait()
        elif number >= self._at and not self.holds and not self._after:
            raise Died
        answer = await super()._request(method, path, **options)
        if number >= self._at and not self.holds and self._after:
            raise Died
        return answer
