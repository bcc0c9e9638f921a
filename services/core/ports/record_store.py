"""The record store: small documents other than jobs (keys, users, tenants, secrets, idempotent answers, ...)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from services.core.domain.errors import InvalidRequest, TooLarge

INDEX_FIELDS: Final = 4
"""The most index fields of a record."""
_NAME_MAX: Final = 4_096
"""Characters of a kind, an id, an index field or its value: more than any of ours has, less than indexes hold."""
_DEPTH_MAX: Final = 90
"""Levels of a body: MongoDB holds 100 in a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A small JSON document."""

    kind: str
    """What it is, e.g. ``key``."""
    id: str
    """Unique within the kind."""
    body: Mapping[str, Any]
    """A JSON object."""
    index: Mapping[str, str]
    """Up to ``INDEX_FIELDS`` fields that ``find`` can match by equality."""
    rev: int = 1
    """Revision, set by the store; each replace adds 1."""


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A record that is malformed, so that ``find`` leaves it out."""

    kind: str
    id: str
    why: str
    """The reason, for people."""


def check_record(record: Record) -> None:
    """Raises InvalidRequest for a record that a store need not accept. Every adapter calls it before a write."""
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
    """Records by (kind, id). Writes are durable when they return."""

    async def insert(self, record: Record) -> Record:
        """Writes a new record and returns it with ``rev`` 1. Raises Duplicate where (kind, id) is taken."""
        ...

    async def get(self, kind: str, record_id: str) -> Record | None:
        """Returns the record; None where there is none. Raises Quarantined for a malformed one."""
        ...

    async def replace(self, record: Record) -> Record:
        """Replaces the record where its ``rev`` is ``record.rev``, and returns it with ``rev + 1``.

        Raises StaleRevision where it changed since it was read, and NotFound where there is none.
        """
        ...

    async def find(
        self, kind: str, index: Mapping[str, str], *, after: str | None = None, limit: int = 1000
    ) -> Sequence[Record]:
        """Returns up to ``limit`` records of the kind whose index has all the given values, in order of id.

        ``after``: only ids that come after this one. Malformed records are skipped, so fewer than ``limit`` records
        means that there are no more.
        """
        ...

    async def unreadable(self) -> Sequence[UnreadableRecord]:
        """Returns all malformed records. Reads every record, so it is slow; for backups and operators."""
        ...

    async def kinds(self) -> Sequence[str]:
        """Returns the kinds that have records, sorted."""
        ...

    async def delete(self, kind: str, record_id: str) -> None:
        """Removes a record. No error where there is none."""
        ...

    async def ping(self) -> None:
        """Raises Unavailable where the store does not answer."""
        ...

    async def close(self) -> None:
        """Closes connections and files."""
        ...
