"""What a helper must still know after it was killed: its last report, and which file each source was.

Written before anything that depends on it is sent. Not synced to disk: it has to outlive the helper, not the machine,
whose loss ends the attempt. (How far each source was taken in is not here: the metrics service knows, and says so.)
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from services.core.domain.codec import dump, load
from services.core.domain.learner import LearnerStatus
from services.helper.folder import write_json

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
        self._known = {name: load(Known, found) for name, found in (_read(root / _SOURCES) or {}).items()}

    def report(self) -> LearnerStatus | None:
        """The last one, sent or not."""
        found = _read(self.root / _REPORT)
        return load(LearnerStatus, found) if found is not None else None

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
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return found
