"""Messages that make things fast and may all be lost (architecture.md, law 2)."""

from __future__ import annotations

from typing import Protocol


class Hints(Protocol):
    async def send(self, topic: str, job_id: str) -> None:
        """``topic``: submitted | desired | released | admitted. Never raises, never waits beyond 50 ms; may be lost."""
        ...

    @property
    def sent(self) -> int: ...

    @property
    def dropped(self) -> int:
        """How many were dropped on purpose (``WEFT_HINTS=drop``) or for lack of a broker."""
        ...

    async def close(self) -> None: ...
