"""Results of reads that are repeated all the time, kept until the next commit to the file.

Each service reads the same few rows every second, for days, and mostly nothing has changed. A read costs two handoffs
between threads, and parsing a document costs as much again. So the result of the last read is returned while SQLite's
``data_version`` shows that no connection of any process has committed since before that read. A read still sees
everything that was committed when it began.

The version is in memory that all connections share (WAL): reading it needs no disk and waits for no lock.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

_MOST: Final = 16
"""Results that are kept at most: more than the loops of a service repeat."""


class Kept(NamedTuple):
    """A result that still holds."""

    result: Any


class KeptReads:
    """The results for one file. All calls come from one thread."""

    def __init__(self, path: Path) -> None:
        """Raises apsw.Error."""
        self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        self._connection.pragma("query_only", True)
        self._version: int | None = None
        self._results: dict[Hashable, Kept] = {}

    def check(self) -> int | None:
        """Returns the file's version, and drops results of earlier versions; None: it is not known now."""
        try:
            version = self._connection.execute("PRAGMA data_version").fetchall()[0][0]
        except apsw.Error:  # closed, or busy for a moment: the read itself says why
            version = None
        if version is None or version != self._version:
            self._results.clear()
        self._version = int(str(version)) if version is not None else None
        return self._version

    def find(self, key: Hashable) -> Kept | None:
        """Returns the result of this read in the version last checked; None: there is none."""
        return self._results.get(key)

    def keep(self, key: Hashable, result: Any, version: int | None) -> None:
        """Keeps the result of a read that began after ``check`` had returned ``version``."""
        if version is None or version != self._version:
            return  # a later version was checked meanwhile
        if len(self._results) >= _MOST:
            del self._results[next(iter(self._results))]
        self._results[key] = Kept(result)

    def close(self) -> None:
        """From now on nothing is kept."""
        self._connection.close()
