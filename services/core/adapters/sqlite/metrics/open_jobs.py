"""Which job files are open: the most recently used ones, so that 10,000 jobs do not mean 60,000 file descriptors.

Who uses a file has it borrowed, and it is not closed under them. A file that raised an error is not lent again: the
next borrower gets a fresh one, which starts from what is committed.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.core.adapters.sqlite.metrics.job_file import INDEX, JobFile
from services.core.adapters.sqlite.metrics.segments import sync_folder
from services.core.domain.errors import NotFound, WeftError

FORGOTTEN: Final = ".forgotten"
"""Folder of empty files named like the jobs that were deleted: a late learner must not bring one back."""


@dataclass(slots=True, eq=False)
class _Entry:
    opening: threading.Lock = field(default_factory=threading.Lock)
    file: JobFile | None = None
    users: int = 0
    broken: bool = False


class OpenJobs:
    def __init__(self, root: Path, *, limit: int, segment_bytes: int, reading: bool = False) -> None:
        self._root, self._limit, self._segment_bytes, self._reading = root, limit, segment_bytes, reading
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        if not reading:
            (root / FORGOTTEN).mkdir(exist_ok=True)

    @contextmanager
    def borrow(self, job_id: str, *, create: bool) -> Generator[JobFile | None]:
        """The job's file; None where it has none and ``create`` is not set. NotFound where the job was deleted."""
        entry = self._enter(job_id)
        try:
            with entry.opening:
                if entry.file is None:
                    entry.file = self._open(job_id, create=create)
            yield entry.file
        except WeftError:
            raise  # a refusal, not a failure
        except BaseException:
            entry.broken = True
            raise
        finally:
            self._leave(job_id, entry)

    def _open(self, job_id: str, *, create: bool) -> JobFile | None:
        folder = self._root / job_id
        if (self._root / FORGOTTEN / job_id).exists():
            if create:
                raise NotFound(f"job {job_id} was deleted")
            return None
        if not create and not (folder / INDEX).exists():
            return None
        file = JobFile(folder, segment_bytes=self._segment_bytes, reading=self._reading)
        if self._reading and file.empty:
            file.close()
            return None
        return file

    def _enter(self, job_id: str) -> _Entry:
        with self._lock:
            entry = self._entries.get(job_id)
            if entry is None or entry.broken:
                entry = self._entries[job_id] = _Entry()
            self._entries.move_to_end(job_id)
            entry.users += 1
            return entry

    def _leave(self, job_id: str, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            useless = entry.broken or entry.file is None
            if useless and self._entries.get(job_id) is entry and not entry.users:
                del self._entries[job_id]
            unused = [entry] if entry.broken and not entry.users else []
            unused += self._evicted()
        for one in unused:
            if one.file is not None:
                one.file.close()

    def _evicted(self) -> list[_Entry]:
        """The least recently used beyond the limit, taken out."""
        out: list[_Entry] = []
        for job_id, entry in list(self._entries.items())[: max(0, len(self._entries) - self._limit)]:
            if not entry.users:
                out.append(self._entries.pop(job_id))
        return out

    def forget(self, job_id: str) -> None:
        """Deletes a job's files for good. It is forgotten once its mark is durable; the rest may be repeated."""
        mark = self._root / FORGOTTEN / job_id
        mark.touch()
        sync_folder(mark.parent)
        entry = self._enter(job_id)
        try:
            entry.broken = True  # a running append ends by itself; the next one is refused
            if entry.file is not None:
                with entry.file.writing:
                    self._remove(job_id)
            else:
                self._remove(job_id)
        finally:
            self._leave(job_id, entry)

    def replace(self, job_id: str, made: Path) -> None:
        """Gives a whole folder that was made beside it the place of a job, deleted or not."""
        entry = self._enter(job_id)
        try:
            entry.broken = True
            with entry.file.writing if entry.file is not None else contextlib.nullcontext():
                self._remove(job_id)
                made.rename(self._root / job_id)
                (self._root / FORGOTTEN / job_id).unlink(missing_ok=True)
                sync_folder(self._root)
                sync_folder(self._root / FORGOTTEN)
        finally:
            self._leave(job_id, entry)

    def _remove(self, job_id: str) -> None:
        folder = self._root / job_id
        if folder.exists():
            shutil.rmtree(folder)
            sync_folder(self._root)

    def close(self) -> None:
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        for entry in entries:
            if entry.file is not None:
                entry.file.close()
