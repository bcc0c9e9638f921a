"""What is uploaded: an archive that is made for one request, and a file that reports how much of it has been sent."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from weft._archive import Archive


class UploadArchive:
    """Holds an archive that another thread makes. At the end it is removed, also if it is not ready until later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._archive: Archive | None = None
        self._is_over = False

    def make(self, code: Path) -> Archive:
        """As `weft._archive.make_archive`."""
        from weft._archive import make_archive  # noqa: PLC0415 - most commands only look

        archive = make_archive(code)
        with self._lock:
            self._archive = archive
            if self._is_over:  # the task that waited for it was cancelled
                archive.close()
        return archive

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        with self._lock:
            self._is_over = True
            if self._archive is not None:
                self._archive.close()


class CountedFile(io.FileIO):
    """A file on disk; ``told`` hears (bytes read, bytes in all) after each read, and again from 0 after a rewind."""

    def __init__(self, path: Path, on_bytes: Callable[[int, int], None]) -> None:
        super().__init__(path, "r")
        self._size = path.stat().st_size
        self._on_bytes = on_bytes

    def rewind(self) -> None:
        self.seek(0)
        self._on_bytes(0, self._size)

    def read(self, size: int | None = -1, /) -> bytes:
        chunk = super().read(-1 if size is None else size) or b""
        self._on_bytes(self.tell(), self._size)
        return chunk
