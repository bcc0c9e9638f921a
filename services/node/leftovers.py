"""Keeps folders that cannot be removed now: out of the way, shown to the operator, and tried again.

A teardown gives the hardware back in any case. So a folder that cannot be removed (a mount in it, a file system that
does not answer, files of another user without root) is renamed to
``node/.quarantine/<job>.<attempt>.<uid>.<token>``: a rename touches nothing inside. `weft status`, `weft doctor` and
``weft_quarantined{kind="folder"}`` show it.
"""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from services.core.runtime.tree_removal import QUARANTINE_FOLDER, NotRemoved, move_to_quarantine, remove_bounded

log = structlog.get_logger()


class Leftovers:
    """Those of one installation. ``root``: WEFT_HOME/node. May be used by several threads."""

    def __init__(self, root: Path, *, within_s: float) -> None:
        """``within_s``: time for one folder, in seconds."""
        self._folder = root / QUARANTINE_FOLDER
        self._within_s = within_s
        self._reasons: dict[Path, str] = {}
        self._lock = threading.Lock()

    def remove(self, path: Path, *, job: str, attempt: int, uid: int) -> None:
        """Removes the folder, or takes it out of the way. Afterwards ``path`` does not exist."""
        try:
            remove_bounded(path, self._within_s)
        except OSError as error:
            why = error.strerror or str(error)
        else:
            return
        place = move_to_quarantine(path, self._folder.parent, job=job, attempt=attempt, uid=uid)
        with self._lock:
            self._reasons[place] = why
        log.error("folder.quarantined", job=job, attempt=attempt, place=str(place), why=why)

    def retry(self) -> None:
        """Tries to remove all of them again."""
        for place in self._present():
            try:
                remove_bounded(place, self._within_s)
            except NotRemoved as error:
                reason = error.strerror or str(error)
            except OSError as error:
                reason = str(error)
            else:
                log.info("folder.removed", place=str(place))
                reason = ""
            with self._lock:
                self._reasons.pop(place, None)
                if reason:
                    self._reasons[place] = reason

    def reasons(self) -> dict[str, tuple[str, str]]:
        """Path -> (job, why it is still there), of all of them."""
        with self._lock:
            known = dict(self._reasons)
        return {str(place): (place.name.split(".")[0], known.get(place, "not tried yet")) for place in self._present()}

    def uids(self) -> set[int]:
        """The users whose files are among them."""
        names = (place.name.split(".") for place in self._present())
        return {int(parts[2]) for parts in names if len(parts) == 4 and parts[2].isdecimal()}

    def _present(self) -> list[Path]:
        return sorted(self._folder.iterdir()) if self._folder.is_dir() else []
