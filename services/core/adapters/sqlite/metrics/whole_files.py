"""The files of a job's folder as bytes, for a move to another store."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Final

from services.core.domain.errors import InvalidRequest
from services.core.ports.metric_store import FilePart
from services.core.runtime.durable_files import no_space_errors, sync_folder

_NAME: Final = re.compile(r"index\.sqlite(-wal)?|lines-[0-9]{1,20}\.seg")
"""SQLite makes its shared memory anew."""
_PART_BYTES: Final = 2**20


def read_files(folder: Path) -> Generator[FilePart]:
    """Yields the files in order of their names; an empty file as one empty part. Nothing where there is no folder."""
    names = sorted(path.name for path in folder.glob("*") if _NAME.fullmatch(path.name))
    for name in names:
        with (folder / name).open("rb") as file:
            data = file.read(_PART_BYTES)
            yield FilePart(name, data)
            while data := file.read(_PART_BYTES):
                yield FilePart(name, data)


class FileWriter:
    """Writes the parts of a job's files into a new folder. Close it in any case; ``finish`` makes all durable."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self._folder = folder
        self._name = ""
        self._file: int | None = None

    def write(self, part: FilePart) -> None:
        """Appends to the file of that name. Raises InvalidRequest for the name of no such file, NoSpace."""
        if _NAME.fullmatch(part.name) is None:
            raise InvalidRequest(f"{part.name[:80]!r} is not a file of a job's metrics")
        if part.name != self._name or self._file is None:
            self._finish_file()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._name, self._file = part.name, os.open(self._folder / part.name, flags, 0o600)
        data = memoryview(part.data)
        with no_space_errors(part.name):
            while data:
                data = data[os.write(self._file, data) :]

    def finish(self) -> None:
        self._finish_file()
        sync_folder(self._folder)

    def _finish_file(self) -> None:
        if self._file is not None:
            with no_space_errors(self._name):
                os.fsync(self._file)
        self.close()

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)
