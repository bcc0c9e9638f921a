"""Small documents besides jobs: keys, users, tenants, secrets, webhooks, audit, idempotent answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from services.core.domain.errors import InvalidRequest, TooLarge

INDEX_FIELDS: Final = 4
_NAME_MAX: Final = 4_096
"""Characters of a kind, an id, an index field or its value: more than any of ours has, less than indexes hold."""
_DEPTH_MAX: Final = 90
"""Levels of a body: MongoDB holds 100 in a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """``body`` is JSON. ``index`` are up to four string fields that ``find`` can match by equality."""

    kind: str
    id: str
    """Unique within the kind."""
    body: Mapping[str, Any]
    index: Mapping[str, str]
    rev: int = 1


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """What ``find`` leaves out."""

    kind: str
    id: str
    why: str


def check_record(record: Record) -> None:
    """What every store asks before it writes: InvalidRequest where the record is more than a store need take."""
    if not record.kind or not record.id:
        raise InvalidRequest("a record has a kind and an id")
    if len(record.index) > INDEX_FIELDS:
        raise InvalidRequest(f"a record has at most {INDEX_FIELDS} index fields, not {len(record.index)}")
    if any(len(text) > _NAME_MAX for text in (record.kind, record.id, *record.index, *record.index.values())):
        raise TooLarge(f"the kind, id and index fields of a record have at most {_NAME_MAX} characters")
    if too_deep(record.body, _DEPTH_MAX):
        raise InvalidRequest(f"the body of a record has at most {_DEPTH_MAX} levels")


def too_deep(value: object, levels: int) -> bool:
    """True if mappings and lists are nested deeper than this. Does not recurse."""
    layer: list[object] = [value]
    for _ in range(levels):
        layer = [
            item
            for outer in layer
            if isinstance(outer, (Mapping, list, tuple))
            for item in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
    return any(isinstance(inner, (Mapping, list, tuple)) for inner in layer)


class RecordStore(Protocol):
    async def insert(self, record: Record) -> Record:
        """Durably. Duplicate where (kind, id) is taken."""
        ...

    async def get(self, kind: str, record_id: str) -> Record | None: ...

    async def replace(self, record: Record) -> Record:
        """Compare-and-set on ``record.rev``; returns it with ``rev + 1``. StaleRevision, NotFound."""
        ...

    async def find(
        self, kind: str, index: Mapping[str, str], *, after: str | None = None, limit: int = 1000
    ) -> Sequence[Record]:
        """Records of the kind whose index has all the given values, in order of id, beyond ``after``.

        Those that cannot be read are left out (``get`` raises Quarantined for them), and fill no place.
        """
        ...

    async def unreadable(self) -> Sequence[UnreadableRecord]:
        """All that can be read by nobody. Looks at every record: for who must not miss one in silence."""
        ...

    async def kinds(self) -> Sequence[str]:
        """The kinds of which there is any record, in order."""
        ...

    async def delete(self, kind: str, record_id: str) -> None:
        """No error where there is none."""
        ...

    async def ping(self) -> None: ...

    async def close(self) -> None: ...
