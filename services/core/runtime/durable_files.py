"""Small JSON files that are whole after a crash: written beside the target, renamed over it.

A durable write also survives a power cut: the file and its folder are fsynced before it returns. A write that is not
durable survives the death of the process only, and costs no disk flush.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from services.core.domain.errors import NoSpace
from services.core.runtime.undo import undo_on_failure

SCHEMA: Final = 1
_RESERVED_BYTES: Final = 512
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a file system without space."""


@contextmanager
def no_space_errors(what: str) -> Generator[None]:
    """Translates ENOSPC and EDQUOT to NoSpace. ``what`` names the file in the message."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise NoSpace(f"no space left on the disk for {what}") from error


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable: files created, renamed or removed there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str, *, durable: bool = True, mode: int = 0o600) -> None:
    """Replaces the file. Readers see the old or the new text. Raises NoSpace and leaves the old one.

    Two processes may write the same path: the temporary name carries the process id.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with no_space_errors(path.name):
        with undo_on_failure(lambda: temporary.unlink(missing_ok=True)):
            with temporary.open("w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), mode)
                file.write(text)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(path)
        if durable:
            sync_folder(path.parent)


def write_json(path: Path, document: Mapping[str, Any], *, durable: bool = True, mode: int = 0o600) -> None:
    """Replaces the file by the document with its ``schema``. See ``write_text``."""
    text = json.dumps({"schema": SCHEMA, **document}, separators=(",", ":"))
    write_text(path, text, durable=durable, mode=mode)


def read_json(path: Path) -> dict[str, Any] | None:
    """The document, or None without a file. Raises ValueError or TypeError for content that is no JSON object."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def reserve(path: Path) -> None:
    """Allocates space for one later ``write_reserved`` of this path, which a full disk then seldom prevents."""
    reserved = _reserved(path)
    reserved.touch(mode=0o600)
    reserved.write_bytes(b" " * _RESERVED_BYTES)


def write_reserved(path: Path, document: Mapping[str, Any]) -> None:
    """Durable write into the reserved space, which it uses up. Without reserved space: as ``write_json``.

    Raises NoSpace also with reserved space: a file system that copies on write needs new blocks for a rewrite.
    """
    content = json.dumps({"schema": SCHEMA, **document}).encode().ljust(_RESERVED_BYTES)
    reserved = _reserved(path)
    with no_space_errors(path.name):
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
