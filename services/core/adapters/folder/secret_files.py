"""Secrets as files: one file of mode 0600 per secret, in a folder of mode 0700 that belongs to the platform's user.

A file has its secret's name after an '=', with everything but letters, digits, '_', '.', '-' and '~' escaped. So no
name leaves the folder, is hidden, or equals that of a file that is still being written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

from services.core.adapters.folder import files
from services.core.domain.errors import PermissionDenied
from services.core.ports.secret_store import escaped, escaped_prefix, unescaped

_NEW: Final = ".new"
"""Folder of unfinished files."""
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SecretFiles:
    """The methods of ``core.ports.secret_store.SecretStore``, blocking. Creates the folder if it is missing."""

    def __init__(self, root: Path) -> None:
        self._root = root
        with _errors():
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            if root.stat().st_uid != os.geteuid():
                raise PermissionDenied(f"{root} belongs to another user; secrets are not kept there")
            root.chmod(0o700)
            with self._folder() as place, files.folder(place, (_NEW,), create=True) as new:
                files.sweep(new)

    def get(self, name: str) -> bytes | None:
        file = escaped(name)
        with _errors(), self._folder() as place:
            try:
                descriptor = os.open(file, _READ, dir_fd=place)
            except FileNotFoundError:
                return None
            with os.fdopen(descriptor, "rb") as opened:
                return opened.read()

    def put(self, name: str, value: bytes) -> None:
        self._put(escaped(name), value, create_only=False)

    def get_or_create(self, name: str, value: bytes) -> bytes:
        while (stored := self.get(name)) is None:
            if self._put(escaped(name), value, create_only=True):
                return value
        return stored

    def delete(self, name: str) -> None:
        with _errors(), contextlib.suppress(FileNotFoundError), self._folder() as place:
            os.unlink(escaped(name), dir_fd=place)
            os.fsync(place)

    def names(self, prefix: str = "") -> list[str]:
        start = escaped_prefix(prefix)
        with _errors():
            files_here = sorted(path.name for path in self._root.iterdir())
        return [unescaped(file) for file in files_here if file.startswith(start)]

    @contextlib.contextmanager
    def _folder(self) -> Generator[int]:
        place = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield place
        finally:
            os.close(place)

    def _put(self, file: str, value: bytes, *, create_only: bool) -> bool:
        """False if ``create_only`` and the file exists."""
        scratch = os.urandom(16).hex()
        with (
            _errors(),
            self._folder() as place,
            files.folder(place, (_NEW,), create=True) as new,
            files.scratch(new, scratch) as descriptor,
        ):
            files.write_all(descriptor, value)
            os.fsync(descriptor)
            try:
                files.publish(new, scratch, place, file, create_only=create_only)
            except FileExistsError:
                return False
            return True


@contextlib.contextmanager
def _errors() -> Generator[None]:
    """Translates OSErrors. No message contains the secret's name, which may be confidential."""
    try:
        yield
    except OSError as error:
        raise files.translated(error, "the secret store") from error
