"""A learner's folder: the names of its files and how they are read (docs/adr/0002-one-machine.md).

    $WEFT_HOME/node/<job>/<attempt>/<name>/

The node agent, the shim and the helper of a learner share this folder and nothing else. The shim imports the standard
library only and writes its files by itself. A damaged file fails no reader of a start, an end or a stop: each has a
value for it, e.g. an ``exit.json`` that cannot be read means that the learner is lost. ``unreadable`` reports them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from services.core.domain.codec import MALFORMED, load
from services.core.domain.document import MAX_TIME_MS
from services.core.domain.learner import Exit
from services.core.domain.plan import AttemptPlan, Folder, LearnerPlan
from services.core.runtime.durable_files import read_json, write_json
from services.core.runtime.processes import ProcessIdentity

SCHEMA: Final = 1
RUN: Final = 1
"""The folder of its process's files: one start in each learner's folder. A restarted learner gets a new folder."""

LEARNER_FILE: Final = "learner.json"
GPUS_FILE: Final = "gpus.json"
ACTIVE_FILE: Final = "active"
SHIM_FILE: Final = "shim.json"
SHIM_LOCK: Final = "shim.lock"
HELPER_FILE: Final = "helper.json"
HELPER_LOCK: Final = "helper.lock"
PREPARED_FILE: Final = "prepared.json"
GO_FILE: Final = "go"
STOP_FILE: Final = "stop.json"
STORED_FILE: Final = "stored"
DISK_FILE: Final = "disk.json"
"""Written by the agent before it ends a learner that wrote too much: ``{why}``."""
SPOOL_FOLDER: Final = "spool"
RUNS_FOLDER: Final = "runs"
GANG_FILE: Final = ".gang.json"
"""In the attempt's folder, beside those of its learners."""
JOB_FOLDER: Final = "job"
"""JOB_STATE_DIR: the only folder that belongs to the learner's user."""
JOB_FOLDERS: Final = {
    Folder.MODEL: "model-code",
    Folder.DATA: "data",
    Folder.RESULT: "results",
    Folder.CHECKPOINT: "checkpoints",
    Folder.LOG: "logs",
    Folder.HOME: "home",
    Folder.TEMPORARY: "tmp",
}
"""Names below ``JOB_FOLDER``."""


def write_gang(attempt: Path, plan: AttemptPlan) -> None:
    """Writes the names of all learners, by rank, once for the attempt: a list in each learner's file would be O(n^2).

    ``attempt``: the folder of the learners' folders.
    """
    names = [learner.name for learner in sorted(plan.learners, key=lambda learner: learner.rank)]
    write_json(attempt / GANG_FILE, {"learners": names}, durable=False)


def read_gang(learner: Path, plan: AttemptPlan) -> list[str]:
    """The names of all learners of the attempt, by rank. ``learner``: the folder of any of them.

    ``plan``: of its ``learner.json``; one of an older version names all learners itself. Raises ValueError or TypeError
    if the file cannot be read.
    """
    document = read_json(learner.parent / GANG_FILE)
    if document is None:
        return [learner.name for learner in sorted(plan.learners, key=lambda learner: learner.rank)]
    return [str(name) for name in document["learners"]]


def job_folder(folder: Folder) -> tuple[str, str]:
    """The parts of the path of one of the learner's own folders, below the learner's folder."""
    return JOB_FOLDER, JOB_FOLDERS[folder]


def start_file(run: int = RUN) -> str:
    """The file that the shim writes before the learner's command runs."""
    return f"{RUNS_FOLDER}/{run}/start.json"


def exit_file(run: int = RUN) -> str:
    """The file that is written when the learner's process has ended."""
    return f"{RUNS_FOLDER}/{run}/exit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The part of ``learner.json`` that a helper needs. Written once, by the agent."""

    plan: AttemptPlan
    """Without the other learners: ``read_gang`` has their names, and nothing of this machine needs more."""
    learner: LearnerPlan
    uid: int
    gid: int
    addresses_file: str
    objects: str
    """The object store's folder; empty: objects are moved by signed URLs."""
    cache: str
    objects_keep_free: int = 0
    """Bytes that stay free on the disk of the object store's folder when outputs are stored."""
    data_keep_free: int = 0
    """Bytes that stay free on the disks of ``cache`` and of the learner when its data is fetched."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def checkpoint_attempts(self) -> tuple[int, ...]:
        """Attempts whose checkpoints may be restored, newest first: a restarted learner begins with its own attempt."""
        own = (self.plan.attempt,) if self.learner.run > 1 else ()
        return (*own, *self.plan.checkpoint_attempts)

    @property
    def owner(self) -> tuple[int, int] | None:
        """(uid, gid) that files for the learner get; None without root: everything belongs to the platform's user."""
        return (self.uid, self.gid) if os.geteuid() == 0 else None

    @property
    def learner_uid(self) -> int:
        """The owner of the files that the learner makes."""
        return self.uid if os.geteuid() == 0 else os.geteuid()


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerDocument(Assignment):
    """``learner.json``: all that the shim and the helper of a learner need, and what it holds of this machine."""

    env: Mapping[str, str]
    """The learner's environment without the variables of ``prepared.json``."""
    gpus: tuple[int, ...]
    """Indices."""
    ports: Mapping[str, int]
    """Name of a learner -> its port. All ports that the attempt holds."""
    isolation: str
    home: str
    sdk: str
    wrap: tuple[str, ...] = ()
    """The sandbox's command, to which the learner's is appended; empty in isolation ``process``."""
    groups: tuple[str, ...] = ()
    """The folders of its control groups; empty where there are none."""
    private_tmp: bool = False
    """The shim gives it its own /tmp, /var/tmp, /dev/shm and IPC (isolation ``process``; a sandbox has them)."""
    seccomp: str = ""
    """The filter of its system calls, in hexadecimal digits; empty: none."""
    processes: int = 0
    """The limit of processes and threads of its user, for machines without a ``pids`` controller; 0: none."""
    schema: int = SCHEMA

    @property
    def share(self) -> float:
        """The part of each of its GPUs that it holds, up to 1."""
        return min(1.0, self.learner.gpus)


class StopMark(NamedTuple):
    """``stop.json``: the learner shall end."""

    cause: str
    """halt | kill | peer | deadline."""
    grace_ms: int


class LearnerFolder:
    """The files of one learner: the agent's, the shim's and the helper's, not those below ``JOB_FOLDER``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    has_image: ClassVar[bool] = False
    """Whether the learner's programs come from a container's image; else the helper prepares its environment."""

    def path(self, name: str) -> Path:
        """Where the file or folder of this name lies."""
        return self.root / name

    @property
    def staging(self) -> Path:
        """Where the helper makes what it hands over to the learner by a rename: beside ``JOB_FOLDER``."""
        return self.root / "fetched"

    @property
    def replaced(self) -> Path:
        """Where it moves what is in the way."""
        return self.root / "replaced"

    @property
    def data_versions(self) -> Path:
        """Where the learners of an attempt on this machine record which version of their data they have."""
        return self.root.parent / ".data"

    def gang(self, plan: AttemptPlan) -> list[str]:
        """As ``read_gang``."""
        return read_gang(self.root, plan)

    def has(self, name: str) -> bool:
        return self.path(name).exists()

    def read(self, name: str) -> dict[str, Any] | None:
        """A document of the folder; None if there is none (yet). ValueError or TypeError if it cannot be read."""
        try:
            return read_json(self.path(name))
        except RecursionError as error:
            raise ValueError("nested too deep") from error

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """Durable when this returns. Raises NoSpace."""
        write_json(self.path(name), document)

    def assignment(self) -> Assignment:
        """The helper's part of ``learner.json``. One of ``MALFORMED`` if it cannot be read."""
        return load(Assignment, self.read(LEARNER_FILE))

    def document(self) -> LearnerDocument | None:
        """``learner.json``; None if there is none, or one of a newer schema. One of ``MALFORMED``."""
        document = self.read(LEARNER_FILE)
        if document is None or document["schema"] > SCHEMA:
            return None
        return load(LearnerDocument, document)

    @property
    def is_removed(self) -> bool:
        """True after a teardown has removed the folder."""
        return not self.has(LEARNER_FILE)

    @property
    def is_stored(self) -> bool:
        """True once the helper has stored everything and ended."""
        return self.has(STORED_FILE)

    def process(self, name: str) -> ProcessIdentity | None:
        """The process of ``shim.json``, ``helper.json`` or ``start.json``; None also if it cannot be read."""
        try:
            document = self.read(name)
            return None if document is None else _identity(document)
        except MALFORMED:
            return None

    def started(self, run: int = RUN) -> int | None:
        """When the learner's process was started, Unix ms; None: it was not.

        The time of the file's last change if it cannot be read.
        """
        name = start_file(run)
        try:
            document = self.read(name)
            return None if document is None else _time(document)
        except MALFORMED:
            return self._changed_ms(name)

    def exit(self, run: int = RUN) -> Exit | None:
        """How the learner's process ended; None: it has not. A file that cannot be read reads as ``lost``."""
        name = exit_file(run)
        try:
            document = self.read(name)
            return None if document is None else self._with_reason(_exit(document))
        except MALFORMED:
            return Exit(time=self._changed_ms(name), lost=True)

    def _with_reason(self, end: Exit) -> Exit:
        """The exit with what the node agent ended it for. A stop by the platform that came first remains the cause."""
        try:
            document = self.read(DISK_FILE) if end.natural else None
        except MALFORMED:
            document = {}
        if document is None:
            return end
        if "port_taken" in document:
            return replace(end, port_taken=str(document["port_taken"]))
        return replace(end, disk_exceeded=str(document.get("why", "it wrote too much")))

    def stop_mark(self) -> StopMark | None:
        """None also if it cannot be read: the next stop replaces it."""
        try:
            document = self.read(STOP_FILE)
            return None if document is None else _stop_mark(document)
        except MALFORMED:
            return None

    def last_report(self) -> dict[str, Any]:
        """``{phase, reason, message}`` of the helper's last report; empty before its end, or if it cannot be read."""
        try:
            return self.read(STORED_FILE) or {}
        except MALFORMED:
            return {}

    def unreadable(self) -> dict[str, str]:
        """Name -> error, of the files that are not as they were written."""
        errors: dict[str, str] = {}
        for name, parse in _PARSERS.items():
            try:
                document = self.read(name)
                if document is not None:
                    parse(document)
            except MALFORMED as error:
                errors[name] = str(error) or type(error).__name__
        return errors

    def lock(self, name: str) -> int | None:
        """The descriptor that holds the lock file; None if another process holds it."""
        descriptor = os.open(self.path(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def _changed_ms(self, name: str) -> int:
        return round((self.path(name)).stat().st_mtime * 1000)


def _identity(document: Mapping[str, Any]) -> ProcessIdentity:
    return ProcessIdentity(int(document["pid"]), int(document["start_time"]), str(document["boot_id"]))


def _time(document: Mapping[str, Any]) -> int:
    time = document["time"]
    if not isinstance(time, int) or not 0 <= time <= MAX_TIME_MS:
        raise ValueError("it has a time before 1970 or after 9999")
    return time


def _start(document: Mapping[str, Any]) -> tuple[ProcessIdentity, int]:
    return _identity(document), _time(document)


def _exit(document: Mapping[str, Any]) -> Exit:
    _time(document)
    return load(Exit, document)


def _stop_mark(document: Mapping[str, Any]) -> StopMark:
    cause, grace_ms = document["cause"], document["grace_ms"]
    if not isinstance(cause, str) or not isinstance(grace_ms, int):
        raise TypeError("its fields are of other types")
    return StopMark(cause, grace_ms)


_PARSERS: Final[Mapping[str, Callable[[dict[str, Any]], object]]] = {
    SHIM_FILE: _identity,
    HELPER_FILE: _identity,
    STOP_FILE: _stop_mark,
    STORED_FILE: dict,
    start_file(): _start,
    exit_file(): _exit,
}
