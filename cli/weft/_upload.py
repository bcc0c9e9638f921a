"""A file that reports how much of it has been sent."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path


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
