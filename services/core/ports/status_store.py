"""The status store (etcd): short-lived shared state. Liveness, learners' phases, plan progress, wake-ups.

It may lose all its data at any time, so nothing is decided from it alone (architecture.md, "etcd may forget
everything"). Keys are paths below the installation's prefix; they and prefixes begin with '/' (contracts.md, "Status
store"; ``services.core.domain.status_keys`` makes them). Values are JSON text of at most 64 KiB.
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
    """A key with its value."""

    key: str
    value: str
    mod_revision: int
    """Revision of the store at the key's last change: the token of compare-and-set."""
    create_revision: int = 0
    """Revision of the store at the key's creation."""
    malformed: str = ""
    """Why the stored bytes are no key or no value (see ``decode_value``); empty: they are. Another program wrote them;
    the entry concerns its own job only.
    """


@dataclass(frozen=True, slots=True)
class Change:
    """One change that a watch reports.

    ``reset`` means that the reader must drop all it knows under the prefix; the entries that follow are all there are.
    """

    kind: str
    """put | delete | reset."""
    key: str = ""
    """Empty for ``reset``."""
    entry: Entry | None = None
    """For ``put``."""


class Lease(Protocol):
    """A lease: keys written with it are deleted when it ends.

    It is kept alive in the background until ``revoke``, or until it is lost because the store did not answer in time.
    """

    @property
    def id(self) -> int:
        """Id in the store."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the lease is certainly held.

        Its deadline counts from before the last acknowledged keep-alive was *sent*, on the boot-time clock. After that
        deadline this is False, even if the store still has the lease.
        """
        ...

    async def lost(self) -> None:
        """Returns when the lease is no longer alive."""
        ...

    async def revoke(self) -> None:
        """Deletes the lease and its keys at once. May be repeated. Raises nothing where the store does not answer."""
        ...


class StatusStore(Protocol):
    """Keys and values with leases and watches. All methods raise InvalidRequest for a malformed key or prefix."""

    async def get(self, key: str) -> Entry | None:
        """Returns the entry; None where there is none. A linearizable read."""
        ...

    async def list(self, prefix: str) -> Sequence[Entry]:
        """Returns all entries whose key begins with ``prefix``, in order of key. A linearizable read."""
        ...

    async def put(self, key: str, value: str, *, lease: Lease | None = None) -> int:
        """Writes the value and returns the new revision. Raises Conflict where the lease has ended, as all puts do."""
        ...

    async def put_if(self, key: str, value: str, *, mod_revision: int, lease: Lease | None = None) -> int | None:
        """Writes the value where the key's ``mod_revision`` is this one (0: the key does not exist).

        Returns the new revision, or None where nothing was written.
        """
        ...

    async def put_while(
        self, key: str, value: str, *, guard_key: str, guard_value: str, mod_revision: int
    ) -> int | None:
        """As ``put_if``, and only where ``guard_key`` has exactly ``guard_value``."""
        ...

    async def delete(self, key: str) -> None:
        """Removes a key. No error where there is none."""
        ...

    async def delete_prefix(self, prefix: str) -> int:
        """Removes all keys that begin with ``prefix``. Returns how many there were."""
        ...

    def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        """Yields the entries under the prefix and their changes: ``reset``, a ``put`` for each entry, then each change.

        Changes come once and in order, over reconnects too. The watch lists again, beginning with ``reset``, after
        compaction, when the revision fell, or when the cluster is another one. It never ends by itself, and waits with
        jittered back-off while the store does not answer. A reader that may stop early wraps it in ``aclosing`` of
        contextlib.
        """
        ...

    async def lease(self, ttl_s: float) -> Lease:
        """Returns a new lease of ``ttl_s`` seconds, kept alive in the background every third of that time."""
        ...

    async def revoke_id(self, lease_id: int) -> None:
        """Revokes the lease of a former process by its id. No error for an unknown id."""
        ...

    async def ping(self) -> None:
        """Raises Unavailable where the store does not answer."""
        ...

    async def close(self) -> None:
        """Ends watches and keep-alives and closes the connection. Leases that were not revoked run out."""
        ...
