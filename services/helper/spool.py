"""What a helper must still know after it was killed: its last report, and which file each source was.

Written before anything that depends on it is sent. Not synced to disk: it has to outlive the helper, not the machine,
whose loss ends the attempt. (How far each source was taken in is not here: the metrics service knows, and says so.)
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from services.core.domain.codec import dump, load
from services.core.domain.document import MAX_TIME_MS
from services.core.domain.learner import LearnerStatus
from services.helper.folder import write_json
from services.helper.journal import note

_REPORT: Final = "report.json"
_SOURCES: Final = "sources.json"
_UPLOAD: Final = "upload.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A source's file as it was last seen."""

    generation: int = 0
    inode: int = 0
    extra: dict[str, Any] = field(default_factory=dict)


class Spool:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(mode=0o700, exist_ok=True)
        self._known = _known(_read(root / _SOURCES) or {})

    def report(self, who: LearnerStatus) -> LearnerStatus:
        """The last one, sent or not; ``who`` where there is none.

        Where it cannot be read, or is another's, what was said is not known, only that something was: ``who`` with a
        number beyond any that counting leads to, so that what is said from here on counts.
        """
        found = _read(self.root / _REPORT)
        if found is None and not (self.root / _REPORT).exists():
            return who
        try:
            said = load(LearnerStatus, found)
            if (said.name, said.role, said.rank, said.attempt) != (who.name, who.role, who.rank, who.attempt):
                raise ValueError("it is another learner's")
            if any(not 0 <= at <= MAX_TIME_MS for at in said.times.values()):
                raise ValueError("it has a time before 1970 or after 9999")
        except (TypeError, ValueError) as error:
            note("spool.unreadable", file=_REPORT, why=str(error))
            return replace(who, seq=time.time_ns() // 1_000_000)
        return said

    def save_report(self, status: LearnerStatus) -> None:
        write_json(self.root / _REPORT, dump(status), durable=False)

    def source(self, name: str) -> Known | None:
        return self._known.get(name)

    def save_source(self, name: str, known: Known) -> None:
        if self._known.get(name) != known:
            self._known[name] = known
            write_json(self.root / _SOURCES, {name: dump(each) for name, each in self._known.items()}, durable=False)

    def upload(self) -> dict[str, Any] | None:
        """The object that is being sent in parts: ``{key, id, size, etags}``."""
        return _read(self.root / _UPLOAD)

    def save_upload(self, document: dict[str, Any] | None) -> None:
        """As far as the disk has room: without it, an upload that is cut begins anew."""
        with contextlib.suppress(OSError):
            if document is None:
                (self.root / _UPLOAD).unlink(missing_ok=True)
            else:
                write_json(self.root / _UPLOAD, document, durable=False)

    def times(self, name: str) -> Path:
        """The file of a source's time index."""
        return self.root / f"{name.replace('%', '%25').replace('/', '%2F')}.times"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        note("spool.unreadable", file=path.name, why=str(error))
        return None
    return found if isinstance(found, dict) else None


def _known(document: Mapping[str, Any]) -> dict[str, Known]:
    """A source that cannot be read begins where the metrics service says that it stands, like one that is new."""
    found: dict[str, Known] = {}
    for name, each in document.items():
        try:
            found[name] = load(Known, each)
        except (TypeError, ValueError) as error:
            note("spool.unreadable", file=_SOURCES, source=name, why=str(error))
    return found
