"""The master keys of an installation: a private file with one key per line. The first one wraps; all of them unwrap.

A key's id is derived from the key, so that a wrong key is recognised and a wrapped key names the key it needs. The file
is read again whenever it has changed, so that a running service uses a new key without a restart.

The secrets can be read with this file and the record store together, and with neither alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.core.adapters.encrypted.sealing import KEY_BYTES, new_key
from services.core.adapters.folder import files
from services.core.domain.errors import PermissionDenied, Unavailable, WeftError

_PREFIX: Final = "weftmk1_"
_LINE: Final = re.compile(rf"{_PREFIX}([0-9a-f]{{{2 * KEY_BYTES}}})")
_ID_CHARS: Final = 12
_HEAD: Final = """\
# Master keys of this Weft installation: the first one wraps, all of them unwrap. Keep a copy where the data is not.
# Without these keys the secrets cannot be read again. To change them, see `weft master-key --help`.
"""


@dataclass(frozen=True, slots=True)
class MasterKey:
    """A key of 32 bytes, which no ``repr`` shows."""

    secret: bytes = field(repr=False)

    @property
    def id(self) -> str:
        """12 hexadecimal digits, derived from the key; safe to show."""
        return hashlib.sha256(b"weft master key id\x00" + self.secret).hexdigest()[:_ID_CHARS]


class MasterKeys:
    """All keys of the file. ``current`` is the first."""

    def __init__(self, keys: Sequence[MasterKey]) -> None:
        self.current = keys[0]
        self._keys = {key.id: key for key in keys}

    @property
    def ids(self) -> list[str]:
        return list(self._keys)

    def get(self, key_id: str) -> MasterKey | None:
        return self._keys.get(key_id)


class MasterKeyFile:
    """The file. ``made_here``: it is in the installation's folder, and created at the first start."""

    def __init__(self, path: Path, *, made_here: bool) -> None:
        self.path = path
        self._made_here = made_here
        self._read: tuple[tuple[int, int, int], MasterKeys] | None = None

    def keys(self) -> MasterKeys:
        """The keys in the file now. Raises Unavailable or PermissionDenied, with advice, if there are none."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                version = (status.st_ino, status.st_size, status.st_mtime_ns)
                if self._read is None or self._read[0] != version:
                    self._refuse_readable(status)
                    self._read = (version, self._parsed(file.read()))
                return self._read[1]
        except FileNotFoundError:
            raise Unavailable(self._missing()) from None
        except OSError as error:
            raise files.translated(error, f"the master key file {self.path}") from None

    def make(self) -> MasterKeys:
        """The keys in the file; creates a first key, durably, if there is none. Racing callers get the same key."""
        if self._made_here and not self.path.exists():
            with contextlib.suppress(FileExistsError):
                self._write([MasterKey(new_key())], create_only=True)
        return self.keys()

    @contextlib.contextmanager
    def changing(self) -> Generator[None]:
        """Locks the folder of the file against other changes. Raises WeftError if another command holds the lock."""
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise WeftError(f"another command is changing {self.path}; wait for its end") from None
        finally:
            os.close(folder)

    def add(self) -> MasterKeys:
        """Adds a new first key and keeps the others."""
        before = self.keys()
        self._write([MasterKey(new_key()), *self._all(before)])
        return self.keys()

    def keep_only_current(self) -> MasterKeys:
        """Removes all keys but the first."""
        self._write([self.keys().current])
        return self.keys()

    @staticmethod
    def _all(keys: MasterKeys) -> list[MasterKey]:
        return [key for key_id in keys.ids if (key := keys.get(key_id)) is not None]

    def _write(self, keys: Sequence[MasterKey], *, create_only: bool = False) -> None:
        text = _HEAD + "".join(f"{_PREFIX}{key.secret.hex()}\n" for key in keys)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                name = f".{self.path.name}.{secrets.token_hex(8)}"
                with files.scratch(folder, name) as descriptor:
                    files.write_all(descriptor, text.encode())
                    os.fsync(descriptor)
                    files.publish(folder, name, folder, self.path.name, create_only=create_only)
            finally:
                os.close(folder)
        except FileExistsError:
            raise
        except OSError as error:
            raise files.translated(error, f"the master key file {self.path}") from None

    def _parsed(self, text: bytes) -> MasterKeys:
        keys: list[MasterKey] = []
        for number, line in enumerate(text.decode("ascii", "replace").splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            match = _LINE.fullmatch(line.strip())
            if match is None:  # without the text of the line: it may be a key with a typing error
                raise Unavailable(
                    f"line {number} of the master key file {self.path} is no key; a key is {_PREFIX} and "
                    f"{2 * KEY_BYTES} hexadecimal digits"
                )
            keys.append(MasterKey(bytes.fromhex(match[1])))
        if not keys:
            raise Unavailable(f"the master key file {self.path} contains no key; restore it from your copy")
        return MasterKeys(keys)

    def _refuse_readable(self, status: os.stat_result) -> None:
        # Its group may read it: Kubernetes mounts secrets for a group of the pod.
        open_to = 0o077 if self._made_here else 0o007
        if stat.S_IMODE(status.st_mode) & open_to:
            raise PermissionDenied(f"others can read the master key file {self.path}; run: chmod 600 {self.path}")

    def _missing(self) -> str:
        if self._made_here:
            return (
                f"the master key file {self.path} is gone, and there are secrets that only its keys open: put it back "
                "from your copy, or restore a backup (`weft restore`). Nothing was changed"
            )
        return (
            f"there is no master key file {self.path} (WEFT_MASTER_KEY_FILE); put it there. For a new installation: "
            f"(umask 077; printf '{_PREFIX}%s\\n' $(openssl rand -hex {KEY_BYTES}) > {self.path})"
        )
