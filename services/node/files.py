"""Files that must be whole and durable: written beside, fsynced, renamed, the folder fsynced."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from services.core.domain.errors import NoSpace

_RESERVED = 512
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def no_space(what: str) -> Generator[None]:
    """Says NoSpace where the disk says so."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise NoSpace(f"no space left on the disk for {what}") from error


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Durable when this returns; whole or as before after a crash, and after NoSpace."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with no_space(path.name), temporary.open("w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)
            json.dump({"schema": 1, **document}, file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    temporary.rename(path)
    sync_folder(path.parent)


def reserve(path: Path) -> None:
    """Sets space aside for one small ``write_reserved`` of this path, which a full disk can then not prevent."""
    reserved = _reserved(path)
    reserved.touch(mode=0o600)
    reserved.write_bytes(b" " * _RESERVED)


def write_reserved(path: Path, document: Mapping[str, Any]) -> None:
    """As ``write_json``, into the space set aside, which is used up by it; without any, into new space."""
    content = json.dumps({"schema": 1, **document}).encode().ljust(_RESERVED)
    reserved = _reserved(path)
    try:
        with reserved.open("r+b") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except FileNotFoundError:
        write_json(path, document)
    else:
        reserved.rename(path)
        sync_folder(path.parent)


def _reserved(path: Path) -> Path:
    return path.with_name(f".{path.name}.reserved")


def read_json(path: Path) -> dict[str, Any] | None:
    """None where there is none."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def remove_tree(path: Path) -> None:
    """All of it, whatever its owner has done to the permissions of folders; no link is followed."""
    if os.geteuid() != 0:
        for folder, _, _ in os.walk(path):  # from above: one closed to us is opened before we enter it
            _open_folder(folder)
            for entry in _folders_in(folder):
                _open_folder(entry)
    shutil.rmtree(path, ignore_errors=False)


def _open_folder(folder: str) -> None:
    with suppress(OSError):
        Path(folder).chmod(0o700)


def _folders_in(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
