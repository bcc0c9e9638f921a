"""The key of a backup: a key file of its own, or a passphrase; never a key of the installation.

It encrypts the secrets in the backup and authenticates the whole file (HMAC), so that changes are detected.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from services.core.adapters.encrypted import sealing
from services.core.domain.errors import InvalidRequest, NoSpace, Unavailable
from services.local.backup.archive import Refused

_PREFIX: Final = "weftbk1_"
_LINE: Final = re.compile(rf"{_PREFIX}([0-9a-f]{{{2 * sealing.KEY_BYTES}}})\s*")
_SCRYPT: Final = {"n": 2**15, "r": 8, "p": 1}
"""One guess costs 32 MiB and about 0.1 s (RFC 7914; n as OWASP recommends, 2023)."""
_SCRYPT_MEMORY: Final = 64 * 2**20
_SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class BackupKey:
    kind: str
    """file | passphrase."""
    secret: bytes = field(repr=False)
    salt: bytes = b""

    def described(self) -> dict[str, Any]:
        """The description in the head of the backup: kind, salt and a check value. Reveals nothing of the key."""
        return {"kind": self.kind, "salt": self.salt.hex(), "check": self._derived("check")[:12]}

    def seal(self, name: str, content: bytes) -> bytes:
        return sealing.seal(bytes.fromhex(self._derived("seal")), content, sealing.context("weft backup", name))

    def unseal(self, name: str, sealed: bytes) -> bytes:
        """The plain text. Raises Refused if it was not sealed under this key for this entry name."""
        try:
            return sealing.unseal(bytes.fromhex(self._derived("seal")), sealed, sealing.context("weft backup", name))
        except sealing.Broken:
            raise Refused(f"entry {name} of the backup cannot be decrypted: it was changed") from None

    def mac(self, text: str) -> str:
        return hmac.new(bytes.fromhex(self._derived("mac")), text.encode(), hashlib.sha256).hexdigest()

    def _derived(self, purpose: str) -> str:
        return hmac.new(self.secret, b"weft backup v1\x00" + purpose.encode(), hashlib.sha256).hexdigest()


def made_key_file(path: Path) -> tuple[BackupKey, bool]:
    """The key in the file, and True if the file was created now (mode 0600, durable)."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return key_file(path), False
    except OSError as error:
        raise Unavailable(f"cannot create the key file {path}: {error.strerror}") from None
    secret = sealing.new_key()
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{_PREFIX}{secret.hex()}\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise NoSpace(f"cannot write the key file {path}: {error.strerror}") from None
    return BackupKey("file", secret), True


def key_file(path: Path) -> BackupKey:
    """The key in an existing file. Raises InvalidRequest if it is missing, unreadable or not a key."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise InvalidRequest(f"there is no key file {path}; name the one of this backup with --key FILE") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the key file {path} cannot be read: {error}") from None
    match = _LINE.fullmatch(text)
    if match is None:  # the message does not quote the content: it may be another secret
        raise InvalidRequest(f"{path} is no key of a backup; it has one line, {_PREFIX} and 64 hexadecimal digits")
    return BackupKey("file", bytes.fromhex(match[1]))


def from_passphrase(passphrase: str, *, salt: bytes | None = None) -> BackupKey:
    """The key derived from a passphrase. ``salt`` is that of the backup to open; None makes a new one."""
    if not passphrase:
        raise InvalidRequest("the passphrase is empty")
    salt = os.urandom(_SALT_BYTES) if salt is None else salt
    secret = hashlib.scrypt(passphrase.encode(), salt=salt, maxmem=_SCRYPT_MEMORY, dklen=sealing.KEY_BYTES, **_SCRYPT)
    return BackupKey("passphrase", secret, salt)


def opening_key(described: dict[str, Any], *, file: Path, passphrase: str | None) -> BackupKey:
    """The key that the head of a backup describes. InvalidRequest, with what to do, if the given one is wrong."""
    if described.get("kind") == "passphrase":
        if passphrase is None:
            raise InvalidRequest("this backup opens with a passphrase: --passphrase, or WEFT_BACKUP_PASSPHRASE")
        key = from_passphrase(passphrase, salt=bytes.fromhex(str(described.get("salt"))))
        wrong = "this is not the passphrase of this backup"
    else:
        key = key_file(file)
        wrong = f"the key in {file} is not that of this backup (it needs {described.get('check')})"
    if key.described()["check"] != described.get("check"):
        raise InvalidRequest(wrong)
    return key
