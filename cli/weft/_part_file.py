"""The file that a download writes to before the file has its name, for one download at a time.

Two downloads that append to one part file would mix their bytes. The lock is on the open file and ends with the
process, so a download that is killed leaves none behind.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from weft._errors import Conflict


@contextmanager
def locked_part(part: Path, target: Path) -> Generator[IO[bytes], None, None]:
    """The part file of ``target``, opened to append and locked. An empty one is removed at the end.

    Raises Conflict if another download has it.
    """
    file = _open_locked(part, target)
    try:
        yield file
    finally:
        with file:
            if _is_file_at(part, file) and size_of(file) == 0:
                part.unlink(missing_ok=True)


def written_twice(target: Path) -> Conflict:
    """The error of two downloads of one file."""
    return Conflict(f"another download is writing {target}; wait for its end, or name another folder")


def size_of(file: IO[bytes]) -> int:
    """Bytes of an open file, those in its buffer included."""
    file.flush()
    return os.fstat(file.fileno()).st_size


def _open_locked(part: Path, target: Path) -> IO[bytes]:
    while True:
        file = part.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise written_twice(target) from None
        except OSError:
            pass  # a file system without locks: a second download is noticed by the size of the file
        if _is_file_at(part, file):
            return file
        file.close()  # Another download ended meanwhile: it gave this file its name, or removed it


def _is_file_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
