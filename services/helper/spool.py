"""State that a helper needs after it was killed: its last report, and which file each source was.

Written before anything that depends on it is sent. Not synced to disk: it outlives the helper, not the machine, whose
loss ends the attempt. Committed offsets are not kept here: the metrics service has them and returns them (``Hello``).
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from services.core.domain.codec import MALFORMED, dump, load
from services.core.domain.document import MAX_TIME_MS
from services.core.domain.errors import NoSpace
from services.core.domain.learner import LearnerStatus
from services.core.runtime.durable_files import read_json, write_json
from services.helper.log import log_event

_REPORT: Final = "report.json"
_SOURCES: Final = "sources.json"
_UPLOAD: Final = "upload.json"
_NAME_BYTES: Final = 200
"""The longest readable file name of a time index; a longer one is replaced by its digest (the limit is 255)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """A source's file as it was last seen."""

    generation: int = 0
    inode: int = 0
    extra: dict[str, Any] = field(default_factory=dict)


class Spool:
    """Files in ``root``, which is made if it is missing. Writes raise NoSpace or OSError."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(mode=0o700, exist_ok=True)
        self._sources = _parse_sources(_read(root / _SOURCES) or {})
        self._has_unsaved = False
        """A source of ``_sources`` could not be written."""

    def load_report(self, first: LearnerStatus) -> LearnerStatus:
        """The last saved report, sent or not; ``first`` where there is none.

        A report that cannot be read, or is another learner's, is replaced by ``first`` with a ``seq`` that is larger
        than counting can reach, so that later reports are not taken for old ones.
        """
        document = _read(self.root / _REPORT)
        if document is None and not (self.root / _REPORT).exists():
            return first
        try:
            status = load(LearnerStatus, document)
            if (status.name, status.role, status.rank, status.attempt, status.run) != (
                first.name,
                first.role,
                first.rank,
                first.attempt,
                first.run,
            ):
                raise ValueError("it is another learner's")
            if any(not 0 <= at <= MAX_TIME_MS for at in status.times.values()):
                raise ValueError("it has a time before 1970 or after 9999")
        except MALFORMED as error:
            log_event("spool.unreadable", file=_REPORT, why=str(error))
            return replace(first, seq=time.time_ns() // 1_000_000)
        return status

    def save_report(self, status: LearnerStatus) -> None:
        write_json(self.root / _REPORT, dump(status), durable=False)

    def source(self, name: str) -> SourceState | None:
        return self._sources.get(name)

    def save_source(self, name: str, state: SourceState) -> None:
        """After a failure ``source`` has the state all the same, and the next call writes it."""
        if self._has_unsaved or self._sources.get(name) != state:
            self._sources[name], self._has_unsaved = state, True
            documents = {source: dump(saved) for source, saved in self._sources.items()}
            write_json(self.root / _SOURCES, documents, durable=False)
            self._has_unsaved = False

    def upload(self) -> dict[str, Any] | None:
        """The object that is being sent in parts: ``{key, id, size, etags, digests}``."""
        return _read(self.root / _UPLOAD)

    def save_upload(self, document: dict[str, Any] | None) -> None:
        """Saves, or removes with None. A full disk is ignored: an interrupted upload then starts from the beginning."""
        with contextlib.suppress(OSError, NoSpace):
            if document is None:
                (self.root / _UPLOAD).unlink(missing_ok=True)
            else:
                write_json(self.root / _UPLOAD, document, durable=False)

    def times_file(self, name: str) -> Path:
        """The file of a source's time index. ``name`` may contain '/' and have any length."""
        plain = name.replace("%", "%25").replace("/", "%2F")
        if len(plain.encode()) > _NAME_BYTES:
            plain = hashlib.sha256(plain.encode()).hexdigest()
        return self.root / f"{plain}.times"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except MALFORMED as error:
        log_event("spool.unreadable", file=path.name, why=str(error))
        return None


def _parse_sources(documents: Mapping[str, Any]) -> dict[str, SourceState]:
    """Leaves out what cannot be read: such a source starts at the metrics service's offset, like a new one."""
    states: dict[str, SourceState] = {}
    for name, document in documents.items():
        if name == "schema":
            continue
        try:
            states[name] = load(SourceState, document)
        except MALFORMED as error:
            log_event("spool.unreadable", file=_SOURCES, source=name, why=str(error))
    return states
