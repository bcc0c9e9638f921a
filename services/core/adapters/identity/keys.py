"""Ed25519 key pairs, and the file of all public keys of an installation.

A private key is a secret of its owner only. A public key is in one file that all services read. The file is read again
when it has changed, so that a service which starts later, or with a new key, is known without a restart of the others.

A new key of an owner does not end the old one at once: tokens made with it are accepted for ``OVERLAP_MS``.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from services.core.domain.codec import MALFORMED
from services.core.domain.errors import WeftError
from services.core.runtime.durable_files import read_json, write_json

SEED_BYTES: Final = 32
"""Size of a private key as it is stored."""
OVERLAP_MS: Final = 600_000
"""A replaced key is accepted for so long: twice the longest life of a token."""
_LOOK_S: Final = 1.0
"""The file is checked for changes at most so often, unless a key is unknown."""
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The key pair of one owner: a service, or the signer of learner tokens."""

    owner: str
    private: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def from_seed(cls, owner: str, seed: bytes) -> KeyPair:
        """The pair of a private key of ``SEED_BYTES`` bytes. Raises WeftError for another length."""
        if len(seed) != SEED_BYTES:
            why = f"the private key of {owner} has {len(seed)} bytes, not {SEED_BYTES}"
            raise WeftError(f"{why}; remove it to get a new one")
        return cls(owner, Ed25519PrivateKey.from_private_bytes(seed))

    @property
    def public_bytes(self) -> bytes:
        return self.private.public_key().public_bytes_raw()

    @property
    def id(self) -> str:
        """16 hexadecimal digits, derived from the public key: the ``kid`` of tokens."""
        return key_id(self.public_bytes)


@dataclass(frozen=True, slots=True)
class PublicKey:
    owner: str
    key: Ed25519PublicKey
    until: int | None
    """Unix ms; the key was replaced and is not accepted afterwards. None: it is the owner's current key."""


def key_id(public: bytes) -> str:
    """The id of a public key of 32 bytes."""
    return hashlib.sha256(b"weft key id\x00" + public).hexdigest()[:16]


class PublicKeys:
    """The public keys of the installation, from their file."""

    def __init__(self, file: Path, *, now_s: Callable[[], float] = time.time) -> None:
        """``now_s``: Unix seconds."""
        self._file, self._now_s = file, now_s
        self._keys: dict[str, PublicKey] = {}
        self._state: tuple[int, int, int] | None = None
        self._looked_at = float("-inf")
        self.version = 0
        """Rises when the file has changed."""

    def find(self, kid: str) -> PublicKey | None:
        """The key of this id; None if there is none, or it was replaced and its overlap is over."""
        self.refresh()
        key = self._keys.get(kid)
        if key is None:
            self.refresh(now=True)
            key = self._keys.get(kid)
        if key is None or (key.until is not None and key.until < self._now_s() * 1000):
            return None
        return key

    def refresh(self, *, now: bool = False) -> None:
        """Reads the file again if it has changed; looks at most once per second unless ``now``."""
        at = time.monotonic()
        if not now and at - self._looked_at < _LOOK_S:
            return
        self._looked_at = at
        state = self._file_state()
        if state == self._state:
            return
        self._state = state
        try:
            document = read_json(self._file)
            keys = {} if document is None else _parse(document)
        except (OSError, *MALFORMED) as error:
            log.error("public_keys.read_failed", file=str(self._file), why=str(error))  # noqa: TRY400 - no trace needed
            return  # the keys that were read before stay valid until the file changes again
        self._keys = keys
        self.version += 1

    def _file_state(self) -> tuple[int, int, int] | None:
        try:
            stat = self._file.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns

    def publish(self, pair: KeyPair, *, overlap_ms: int = OVERLAP_MS) -> None:
        """Makes the pair's key its owner's current one. Earlier keys of the owner stay valid for ``overlap_ms``.

        Durable when it returns. Services that start at the same time do not lose one another's keys.
        """
        now = round(self._now_s() * 1000)
        with _locked(self._file):
            entries = [entry for entry in _entries(self._file) if _is_kept(entry, now)]
            if not any(entry["id"] == pair.id and entry.get("until") is None for entry in entries):
                entries = [entry for entry in entries if entry["id"] != pair.id]
                for entry in entries:
                    if entry["owner"] == pair.owner and entry.get("until") is None:
                        entry["until"] = now + overlap_ms
                key = base64.b64encode(pair.public_bytes).decode()
                entries.append({"id": pair.id, "owner": pair.owner, "key": key, "until": None})
                write_json(self._file, {"keys": entries})
        self.refresh(now=True)


def _entries(file: Path) -> list[Any]:
    try:
        document = read_json(file)
        return [] if document is None else list(document["keys"])
    except MALFORMED as error:
        advice = "remove it and restart the platform: each service publishes its key at its start"
        raise WeftError(f"{file} cannot be read ({type(error).__name__}); {advice}") from error


def _is_kept(entry: Any, now: int) -> bool:
    """False for an entry that has expired or is malformed."""
    if not isinstance(entry, dict) or not {"id", "owner", "key"} <= set(entry):
        return False
    return entry.get("until") is None or int(entry["until"]) >= now


def _parse(document: dict[str, Any]) -> dict[str, PublicKey]:
    keys = {}
    for entry in document["keys"]:
        public = base64.b64decode(entry["key"], validate=True)
        until = entry.get("until")
        # The id is computed: an entry cannot take the place of another one.
        keys[key_id(public)] = PublicKey(
            str(entry["owner"]), Ed25519PublicKey.from_public_bytes(public), None if until is None else int(until)
        )
    return keys


@contextmanager
def _locked(file: Path) -> Generator[None]:
    descriptor = os.open(file.with_name(f"{file.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
