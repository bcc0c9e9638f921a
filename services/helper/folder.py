"""The learner's folder: the files that shim, agent and helper share (docs/adr/0002-one-machine.md).

What the helper writes there for others is whole and durable, or absent. What lies below ``job/`` belongs to the learner
and is never opened by path: see ``services.helper.learner_files``.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from services.core.domain.codec import load
from services.core.domain.document import MAX_TIME_MS
from services.core.domain.learner import Exit
from services.core.domain.plan import AttemptPlan, LearnerPlan
from services.core.runtime.processes import ProcessIdentity

SCHEMA: Final = 1
_MALFORMED: Final = (ValueError, TypeError, KeyError, OverflowError)
"""What reading a file that is not as it was written may raise."""


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
        """Whom files for the learner shall belong to; None where only one user exists for us."""
        return (self.uid, self.gid) if os.geteuid() == 0 else None

    @property
    def learner_uid(self) -> int:
        """Who the learner's files belong to."""
        return self.uid if os.geteuid() == 0 else os.geteuid()


class LearnerFolder:
    def __init__(self, root: Path) -> None:
        self.root = root

    def assignment(self) -> Assignment:
        return load(Assignment, json.loads((self.root / "learner.json").read_text()))

    def read(self, name: str) -> dict[str, Any] | None:
        """A document of the folder; None where there is none (yet). ValueError where it cannot be read."""
        try:
            found = json.loads((self.root / name).read_bytes())
        except FileNotFoundError:
            return None
        except RecursionError as error:
            raise ValueError("nested too deep") from error
        if not isinstance(found, dict):
            raise ValueError("not a mapping")  # noqa: TRY004 - one kind of error for all that is malformed
        document: dict[str, Any] = found
        return document

    def has(self, name: str) -> bool:
        return (self.root / name).exists()

    @property
    def gone(self) -> bool:
        """Whether a teardown has removed the folder: nothing is left to do for anybody."""
        return not self.has("learner.json")

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """Durable when this returns."""
        write_json(self.root / name, {"schema": SCHEMA, **document}, durable=True)

    def process(self, name: str) -> ProcessIdentity | None:
        """Who ``shim.json`` or ``runs/<n>/start.json`` is about; None too where nobody can tell."""
        try:
            found = self.read(name)
            return (
                None
                if found is None
                else ProcessIdentity(int(found["pid"]), int(found["start_time"]), str(found["boot_id"]))
            )
        except _MALFORMED:
            return None

    def started(self, run: int) -> int | None:
        """When the learner's process was started, Unix ms; when that was written down, where it cannot be read."""
        name = f"runs/{run}/start.json"
        try:
            found = self.read(name)
            return None if found is None else _time(found)
        except _MALFORMED:
            return round((self.root / name).stat().st_mtime * 1000)

    def exit(self, run: int) -> Exit | None:
        """How it ended. Where that cannot be read nobody knows how: it is lost."""
        name = f"runs/{run}/exit.json"
        try:
            found = self.read(name)
            if found is None:
                return None
            _time(found)
            return load(Exit, found)
        except _MALFORMED:
            return Exit(time=round((self.root / name).stat().st_mtime * 1000), lost=True)

    def lock(self) -> int | None:
        """The descriptor that holds ``helper.lock``; None where another helper of this learner lives."""
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


def write_json(path: Path, document: Mapping[str, Any], *, durable: bool) -> None:
    """Whole or absent, also for who is killed meanwhile; ``durable``: also for a machine that loses its power."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w") as file:
        json.dump(document, file, separators=(",", ":"))
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Makes what was created, renamed or removed in the folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
