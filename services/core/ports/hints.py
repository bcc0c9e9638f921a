"""Hints: messages between services that save waiting and may be lost (architecture.md, law 2)."""

from __future__ import annotations

from typing import Protocol


class Hints(Protocol):
    """Sends hints. A receiver that misses one finds the change itself within its sweep interval."""

    async def send(self, topic: str, job_id: str) -> None:
        """Sends a hint about a job. ``topic``: submitted | desired | released | admitted.

        Never raises and returns within 50 ms, with or without a broker. The hint may be lost, repeated or late.
        """
        ...

    @property
    def sent(self) -> int:
        """How many hints were sent."""
        ...

    @property
    def dropped(self) -> int:
        """How many hints were dropped, because of ``WEFT_HINTS=drop`` or for lack of a broker."""
        ...

    async def close(self) -> None:
        """Closes connections. Hints that are not sent yet may be lost."""
        ...
