"""Short-lived shared state: liveness, learners' phases, plan progress, wake-ups. It may forget everything at any time.

Keys are paths below the installation's prefix (contracts.md, "Status store") and begin with '/', prefixes too; values
are JSON text (<= 64 KiB). Every method raises Unavailable where the store does not answer; a write may then have
happened all the same. Nothing is decided from here alone (architecture.md, "etcd may forget everything").
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from services.core.domain.errors import InvalidRequest, TooLarge

MAX_VALUE: Final = 64 * 1024
"""Bytes."""
MAX_KEY: Final = 1024
"""Bytes."""


def check_key(key: str) -> str:
    """Returns the key or prefix. Raises InvalidRequest for an invalid one."""
    if not key.startswith("/") or "\x00" in key:
        raise InvalidRequest(f"a key of the status store begins with '/' and has no NUL, unlike {key[:100]!r}")
    if len(key) > MAX_KEY or len(_utf8(key)) > MAX_KEY:
        raise InvalidRequest(f"a key of the status store has at most {MAX_KEY} bytes, unlike {key[:100]!r}...")
    return key


def check_value(value: str) -> str:
    """Returns the value. Raises TooLarge, or InvalidRequest for text that is not Unicode (a lone surrogate)."""
    if len(value) > MAX_VALUE or len(_utf8(value)) > MAX_VALUE:
        raise TooLarge(f"a value of the status store has at most {MAX_VALUE} bytes")
    return value


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("keys and values of the status store are valid Unicode") from None


def decode_key(stored: bytes) -> tuple[str, str]:
    """The text of a stored key, and why it is malformed (empty: it is not). Bytes that are no UTF-8 are escaped."""
    try:
        return stored.decode(), ""
    except UnicodeDecodeError:
        return stored.decode(errors="backslashreplace"), "the key is not UTF-8"


def decode_value(stored: bytes) -> tuple[str, str]:
    """The text of a stored value, and why it is malformed (empty: it is not). A malformed value has an empty text."""
    if len(stored) > MAX_VALUE:
        return "", f"the value has {len(stored)} bytes; at most {MAX_VALUE} are allowed"
    try:
        return stored.decode(), ""
    except UnicodeDecodeError:
        return "", "the value is not UTF-8"


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: str
    mod_revision: int
    """Revision of its last change: the compare-and-set token."""
    create_revision: int = 0
    malformed: str = ""
    """Why the stored bytes are no key or no value (see ``decode_value``); empty: they are. Another program wrote them;
    the entry concerns its own job only.
    """


@dataclass(frozen=True, slots=True)
class Change:
    """A step of a watch. ``reset``: forget what was known under the prefix; the entries that follow are all."""

    kind: str
    """put | delete | reset."""
    key: str = ""
    entry: Entry | None = None


class Lease(Protocol):
    """A promise of liveness. Kept alive in the background until ``revoke`` or loss."""

    @property
    def id(self) -> int: ...

    @property
    def alive(self) -> bool:
        """Whether the lease is surely still held: its deadline counts from *before* the last acknowledged keep-alive
        was sent, on the boot-time clock. False once that deadline passed, whatever the store may still say.
        """
        ...

    async def lost(self) -> None:
        """Returns when the lease is no longer alive."""
        ...

    async def revoke(self) -> None:
        """Deletes the lease and its keys at once. Idempotent; errors of a store that is away are swallowed."""
        ...


class StatusStore(Protocol):
    async def get(self, key: str) -> Entry | None:
        """A linearizable read."""
        ...

    async def list(self, prefix: str) -> Sequence[Entry]:
        """All entries whose key begins with ``prefix``, by key; a linearizable read."""
        ...

    async def put(self, key: str, value: str, *, lease: Lease | None = None) -> int:
        """Writes; returns the new revision. Conflict where the lease is gone (so do the others with a lease)."""
        ...

    async def put_if(self, key: str, value: str, *, mod_revision: int, lease: Lease | None = None) -> int | None:
        """Writes only where the key's mod_revision is this one (0: where there is no such key); the new revision, or
        None where it is not.
        """
        ...

    async def put_while(
        self, key: str, value: str, *, guard_key: str, guard_value: str, mod_revision: int
    ) -> int | None:
        """As ``put_if``, and only while ``guard_key`` has exactly ``guard_value``. None where either does not hold."""
        ...

    async def delete(self, key: str) -> None: ...

    async def delete_prefix(self, prefix: str) -> int:
        """How many keys went."""
        ...

    def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        """Everything under the prefix: first ``reset``, then each present entry as ``put``, then changes as they come,
        each once and in order, over reconnects. Lists again (with ``reset``) after compaction, when the revision fell,
        or when the cluster is another one. Never ends by itself; never spins (jittered back-off). Read it in
        ``async with aclosing(...)`` (contextlib) where the reader may leave early.
        """
        ...

    async def lease(self, ttl_s: float) -> Lease:
        """A new lease, kept alive in the background (every ttl/3)."""
        ...

    async def revoke_id(self, lease_id: int) -> None:
        """Revokes a former process's lease by its id (a restarted process does so at once). No error where unknown."""
        ...

    async def ping(self) -> None: ...

    async def close(self) -> None:
        """Ends watches and keep-alives (leases not revoked run out) and lets go of the store."""
        ...
