"""The learner's folder: the files that shim, agent and helper share (docs/adr/0002-one-machine.md).

Files that the helper writes there are whole and durable, or absent. Files below ``job/`` belong to the learner and are
never opened by path: see ``services.helper.learner_files``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from services.core.domain.codec import load
from services.core.domain.document import MAX_TIME_MS
from services.core.domain.learner import Exit
from services.core.domain.plan import AttemptPlan, LearnerPlan
from services.core.runtime.durable_files import read_json, write_json
from services.core.runtime.processes import ProcessIdentity

_MALFORMED: Final = (ValueError, TypeError, KeyError, OverflowError)
"""Errors of reading a document that is not as it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """``learner.json``: all that a helper needs to know, written once by the agent."""

    plan: AttemptPlan
    learner: LearnerPlan
    uid: int
    gid: int
    addresses_file: str
    objects: str
    """The object store's folder; empty: objects are moved by signed URLs."""
    cache: str
    env: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def owner(self) -> tuple[int, int] | None:
        """(uid, gid) that files for the learner get; None without root: everything belongs to the platform's user."""
        return (self.uid, self.gid) if os.geteuid() == 0 else None

    @property
    def learner_uid(self) -> int:
        """The owner of the files that the learner makes."""
        return self.uid if os.geteuid() == 0 else os.geteuid()


class LearnerFolder:
    def __init__(self, root: Path) -> None:
        self.root = root

    def assignment(self) -> Assignment:
        return load(Assignment, read_json(self.root / "learner.json"))

    def read(self, name: str) -> dict[str, Any] | None:
        """A document of the folder; None without one. Raises ValueError or TypeError where it cannot be read."""
        try:
            return read_json(self.root / name)
        except RecursionError as error:
            raise ValueError("nested too deep") from error

    def has(self, name: str) -> bool:
        return (self.root / name).exists()

    @property
    def is_removed(self) -> bool:
        """Whether a teardown has removed the folder: the helper has nothing left to do."""
        return not self.has("learner.json")

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """Durable when this returns. Raises NoSpace."""
        write_json(self.root / name, document)

    def process(self, name: str) -> ProcessIdentity | None:
        """The process that ``shim.json`` or ``runs/<n>/start.json`` names; None if it is missing or unreadable."""
        try:
            document = self.read(name)
            if document is None:
                return None
            return ProcessIdentity(int(document["pid"]), int(document["start_time"]), str(document["boot_id"]))
        except _MALFORMED:
            return None

    def started(self, run: int) -> int | None:
        """When the learner's process was started, Unix ms; the file's own time where its content is unreadable."""
        name = f"runs/{run}/start.json"
        try:
            document = self.read(name)
            return None if document is None else _time(document)
        except _MALFORMED:
            return round((self.root / name).stat().st_mtime * 1000)

    def exit(self, run: int) -> Exit | None:
        """How the process ended; None while it has not. An unreadable record counts as a lost learner."""
        name = f"runs/{run}/exit.json"
        try:
            document = self.read(name)
            if document is None:
                return None
            _time(document)
            return load(Exit, document)
        except _MALFORMED:
            return Exit(time=round((self.root / name).stat().st_mtime * 1000), lost=True)

    def lock(self) -> int | None:
        """The descriptor that holds ``helper.lock``; None while another helper of this learner lives."""
        fd = os.open(self.root / "helper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd


def _time(document: Mapping[str, Any]) -> int:
    time = document["time"]
    if not isinstance(time, int) or not 0 <= time <= MAX_TIME_MS:
        raise ValueError("it has a time before 1970 or after 9999")
    return time
