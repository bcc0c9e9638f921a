"""Keeps the most recently used job files open, so that 10,000 jobs do not need 60,000 file descriptors.

A file is not closed while it is borrowed. A file that raised an error is not lent again: the next borrower gets a new
one, which starts from the committed state.
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
from services.core.domain.errors import NotFound, WeftError
from services.core.ports.metric_store import JobBounds
from services.core.runtime.durable_files import sync_folder

FORGOTTEN: Final = ".forgotten"
"""Folder of empty files with the names of deleted jobs: a late learner must not create a deleted job again."""

GONE: Final = ".gone-"
"""Prefix of the names of folders that are being removed."""


@dataclass(slots=True, eq=False)
class _Entry:
    opening: threading.Lock = field(default_factory=threading.Lock)
    file: JobFile | None = None
    users: int = 0
    broken: bool = False


class OpenJobs:
    def __init__(self, root: Path, *, limit: int, segment_bytes: int, bounds: JobBounds, reading: bool = False) -> None:
        self._bounds = bounds
        self._root, self._limit, self._segment_bytes, self._reading = root, limit, segment_bytes, reading
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        if not reading:
            (root / FORGOTTEN).mkdir(exist_ok=True)

    @contextmanager
    def borrow(self, job_id: str, *, create: bool) -> Generator[JobFile | None]:
        """The job's file; None if it has none and ``create`` is not set. Raises NotFound if the job was deleted."""
        entry = self._enter(job_id)
        sound = False
        try:
            with entry.opening:
                if entry.file is None:
                    entry.file = self._open(job_id, create=create)
            yield entry.file
            sound = True
        except WeftError:
            sound = True  # a refusal, not a failure
            raise
        finally:
            entry.broken = entry.broken or not sound
            self._leave(job_id, entry)

    @contextmanager
    def borrow_to_read(self, job_id: str) -> Generator[JobFile | None]:
        """As ``borrow``, but a file that is not open is opened for this reading only, at a fifth of the cost.

        So reading a thousand jobs does not close the files of jobs that are written.
        """
        with self._lock:
            is_open = job_id in self._entries
        if is_open:
            with self.borrow(job_id, create=False) as file:
                yield file
            return
        file = self._open(job_id, create=False, reading=True)
        try:
            yield file
        finally:
            if file is not None:
                file.close()

    def _open(self, job_id: str, *, create: bool, reading: bool = False) -> JobFile | None:
        folder = self._root / job_id
        if (self._root / FORGOTTEN / job_id).exists():
            if create:
                raise NotFound(f"job {job_id} was deleted")
            return None
        if not create and not (folder / INDEX).exists():
            return None
        reading = reading or self._reading
        file = JobFile(folder, segment_bytes=self._segment_bytes, reading=reading, bounds=self._bounds)
        if reading and file.empty:
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
            unusable = entry.broken or entry.file is None
            if unusable and self._entries.get(job_id) is entry and not entry.users:
                del self._entries[job_id]
            unused = [entry] if entry.broken and not entry.users else []
            unused += self._evicted()
        for closing in unused:
            if closing.file is not None:
                closing.file.close()

    def _evicted(self) -> list[_Entry]:
        """Takes out the least recently used files beyond the limit."""
        out: list[_Entry] = []
        for job_id, entry in list(self._entries.items())[: max(0, len(self._entries) - self._limit)]:
            if not entry.users:
                out.append(self._entries.pop(job_id))
        return out

    def forget(self, job_id: str) -> None:
        """Deletes a job's files. The job is deleted once its mark is durable; the rest may be repeated."""
        mark = self._root / FORGOTTEN / job_id
        mark.touch()
        sync_folder(mark.parent)
        self.remove(job_id)

    def remove(self, job_id: str) -> None:
        """Removes a job's files, without a mark: the job may be loaded again. May be repeated."""
        entry = self._enter(job_id)
        try:
            entry.broken = True  # a running append completes; the next one is refused
            if entry.file is not None:
                with entry.file.writing:
                    self._remove(job_id)
            else:
                self._remove(job_id)
        finally:
            self._leave(job_id, entry)

    def replace(self, job_id: str, made: Path) -> None:
        """Replaces a job's folder, or its mark as deleted, by the complete folder ``made``."""
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
        """At once, also for a reader of the folder: what is removed file by file no longer has the job's name."""
        folder, gone = self._root / job_id, self._root / f"{GONE}{job_id}"
        if folder.exists():
            shutil.rmtree(gone, ignore_errors=True)
            folder.rename(gone)
            sync_folder(self._root)
            shutil.rmtree(gone)

    def close(self) -> None:
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        for entry in entries:
            if entry.file is not None:
                entry.file.close()
