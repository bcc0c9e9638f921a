"""What comes out of a live stream: events, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# A platform under repair may be away for minutes. Training continues meanwhile, so followers wait for it.
RETRY_FOR_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream: its kind, its document, and the token to resume after it ("" if it has none)."""

    kind: str
    data: dict[str, Any]
    token: str


@dataclass(frozen=True, slots=True)
class End:
    """How a stream ended: the job's state once it was at rest and everything stored had been given."""

    id: str
    status: str
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    deleted: bool = False


def end_of(document: Mapping[str, Any]) -> End:
    """The final state that a stream reported."""
    return End(
        id=str(document.get("id", "")),
        status=str(document.get("status", "")),
        reason=str(document.get("reason") or ""),
        message=str(document.get("message") or ""),
        exit_code=document.get("exit_code"),
        deleted=bool(document.get("deleted")),
    )
