"""How much SQLite computes for a reading: a measure of cost that does not depend on the machine's load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw


def steps_of_sqlite(job: Path, read: Callable[[apsw.Connection], bool]) -> int:
    """Dozens of instructions of SQLite's virtual machine for ``read`` of a job's metrics, which returns True."""
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    reader = apsw.Connection(str(job / "index.sqlite"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        reader.set_progress_handler(count, 12)
        assert read(reader)
        return steps
    finally:
        reader.close()
