"""The learners of this machine, as their folders describe them. Files are the truth: nothing is kept in memory only.

Folders that are half-made or half-removed have names that begin with a dot, so a folder with a plain name is complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.core.domain.codec import MALFORMED, dump
from services.core.domain.learner import Exit
from services.core.ports.cluster import LearnerProcess
from services.core.runtime.durable_files import read_json, sync_folder, write_json, write_reserved
from services.core.runtime.learner_folder import (
    ACTIVE_FILE,
    GPUS_FILE,
    JOB_FOLDER,
    LEARNER_FILE,
    SHIM_FILE,
    SHIM_LOCK,
    STOP_FILE,
    LearnerDocument,
    LearnerFolder,
    StopMark,
    exit_file,
    start_file,
)
from services.core.runtime.processes import ProcessIdentity

_ATTEMPT: Final = re.compile(r"(?:\.(?:new|gone)-)?([0-9]{1,9})")
NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
"""Of a job's or learner's folder."""
NEXT_RUN: Final = ".next-"
"""Begins the name of a learner's folder for its next run, until it has replaced the one before."""
LAST_RUN: Final = ".last-"
"""Begins the name of the folder that it has replaced, with its run."""


@dataclass(frozen=True, slots=True)
class Learner:
    """One provisioned learner."""

    folder: Path
    document: LearnerDocument

    @property
    def files(self) -> LearnerFolder:
        return LearnerFolder(self.folder)

    @property
    def job(self) -> str:
        return self.document.plan.job

    @property
    def tenant(self) -> str:
        return self.document.plan.tenant

    @property
    def attempt(self) -> int:
        return self.document.plan.attempt

    @property
    def name(self) -> str:
        return self.document.learner.name

    @property
    def job_dir(self) -> Path:
        return self.folder / JOB_FOLDER

    @property
    def shim(self) -> ProcessIdentity | None:
        """None also if ``shim.json`` cannot be read."""
        return self.files.process(SHIM_FILE)

    @property
    def process(self) -> ProcessIdentity | None:
        """The learner's own process; None also if ``start.json`` cannot be read."""
        return self.files.process(start_file())

    @property
    def started(self) -> bool:
        """True if its process was ever started, even if ``start.json`` cannot be read."""
        return self.files.has(start_file())

    @property
    def ended(self) -> bool:
        return self.files.has(exit_file())

    @property
    def stored(self) -> bool:
        return self.files.is_stored

    @property
    def spawned(self) -> bool:
        """True if the step ``learners`` was begun. A restarted agent starts nothing for one that is only reserved."""
        return self.files.has(SHIM_FILE)

    @property
    def stop_mark(self) -> StopMark | None:
        return self.files.stop_mark()

    def activate(self) -> None:
        (self.folder / ACTIVE_FILE).touch(mode=0o600)
        sync_folder(self.folder)

    def mark_stop(self, *, generation: int, cause: str, grace_ms: int, now_ms: int) -> None:
        """Writes the stop mark, durably. A stronger stop replaces a weaker one: kill, and less grace.

        A learner that has ended stays as it is. Raises NoSpace if the space reserved for the first mark is used up and
        the disk is full.
        """
        if self.ended:
            return
        present = self.stop_mark
        if present is not None:
            kills = cause == "kill" and present.cause != "kill"
            if not kills and grace_ms >= present.grace_ms:
                return
        mark = {"generation": generation, "cause": cause, "grace_ms": grace_ms, "time": now_ms}
        write_reserved(self.folder / STOP_FILE, mark)

    def write_exit(self, end: Exit) -> None:
        """Writes ``exit.json`` in place of a shim that has died. The caller holds ``shim_lock``."""
        path = self.folder / exit_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(path, {**dump(end), "run": self.document.learner.run})

    @contextmanager
    def shim_lock(self) -> Generator[bool]:
        """True if no shim lives. Until the end of the context none can start."""
        descriptor = self.files.lock(SHIM_LOCK)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def observe(self) -> LearnerProcess:
        """The learner's state by its files."""
        started, end, report = self.files.started(), self.files.exit(), self.files.last_report()
        process = self.process
        if end is not None:
            state = "exited"
        elif started is not None:
            state = "running"
        else:
            state = "waiting" if self.files.has(ACTIVE_FILE) else "inert"
        return LearnerProcess(
            name=self.name,
            attempt=self.attempt,
            state=state,
            run=self.document.learner.run if started is not None else 0,
            planned_run=self.document.learner.run,
            pid=process.pid if process is not None else None,
            started=started,
            exit=end,
            stored=self.stored,
            reason=str(report.get("reason", "")),
            message=str(report.get("message", "")),
            node=self.document.learner.node,
            cpus=self.document.learner.cpus,
            memory=self.document.learner.memory,
            gpus=self.document.learner.gpus,
        )


def read_learner(folder: Path) -> Learner | None:
    """None if there is none, or one of a newer schema. One of ``MALFORMED`` if it cannot be read."""
    document = LearnerFolder(folder).document()
    if document is None:
        return None
    learner = Learner(folder, document)
    if (learner.job, str(learner.attempt), learner.name) != folder.parts[-3:]:
        raise ValueError(f"it says that it is {learner.job}/{learner.attempt}/{learner.name}")
    return learner


def write_gpus(folder: Path, document: LearnerDocument) -> None:
    """Writes the learner's GPUs to a file of their own, so that no other gets them if ``learner.json`` is damaged."""
    if document.gpus:
        write_json(folder / GPUS_FILE, {"gpus": document.gpus, "share": document.share})


def read_gpus(folder: Path) -> dict[int, float]:
    """Index -> held part, of a learner whose ``learner.json`` cannot be read. Empty if this is damaged, too."""
    try:
        document = read_json(folder / GPUS_FILE) or {"gpus": ()}
        return {int(index): float(document["share"]) for index in document["gpus"]}
    except MALFORMED:
        return {}


def owner(folder: Path) -> int:
    """The uid that the learner of this folder runs under, by its job folder; -1 without one."""
    try:
        return (folder / JOB_FOLDER).lstat().st_uid
    except OSError:
        return -1


def owner_below(attempt: Path) -> int:
    """The uid of the learners in an attempt's folder, however half-removed it is; -1 if none can be found."""
    return max(map(owner, attempt.iterdir()), default=-1) if is_folder(attempt) else -1


@dataclass(frozen=True, slots=True)
class JobFolder:
    """``$WEFT_HOME/node/<job>/``."""

    path: Path

    def attempts(self) -> list[int]:
        """Numbers of all attempts with a folder, including half-made and half-removed ones."""
        try:
            matches = [_ATTEMPT.fullmatch(entry.name) for entry in self.path.iterdir()]
        except FileNotFoundError:  # a teardown, in another thread, may remove it at any moment
            return []
        return sorted({int(match[1]) for match in matches if match})

    def attempt(self, number: int) -> Path:
        return self.path / str(number)

    def half_made(self, number: int) -> Path:
        return self.path / f".new-{number}"

    def half_removed(self, number: int) -> Path:
        return self.path / f".gone-{number}"

    def half_replaced(self, attempt: int) -> list[tuple[Path, Path]]:
        """(new folder, its place) of learners that a crash kept from being replaced by their next run."""
        folder = self.attempt(attempt)
        entries = [entry for entry in folder.iterdir() if entry.name.startswith(NEXT_RUN)] if is_folder(folder) else []
        pairs = [(entry, folder / entry.name.removeprefix(NEXT_RUN)) for entry in sorted(entries)]
        return [(new, place) for new, place in pairs if not place.exists() and (new / LEARNER_FILE).exists()]

    def leftovers(self) -> list[Path]:
        """Folders that a crash has left half-made or half-removed."""
        return [entry for entry in self.path.iterdir() if entry.name.startswith(".") and _ATTEMPT.fullmatch(entry.name)]

    def learner_folders(self, attempt: int | None = None) -> list[Path]:
        """Of one attempt, or of all."""
        numbers = self.attempts() if attempt is None else [attempt]
        folders = [self.attempt(number) for number in numbers if self.attempt(number).exists()]
        entries = (entry for folder in folders if is_folder(folder) for entry in folder.iterdir())
        return sorted(entry for entry in entries if _is_named_folder(entry))


def job_folders(root: Path) -> list[JobFolder]:
    """Those of all jobs below ``$WEFT_HOME/node``. Names that begin with a dot are the agent's own."""
    if not root.is_dir():
        return []
    return [JobFolder(entry) for entry in root.iterdir() if _is_named_folder(entry)]


def strange_entries(root: Path) -> list[Path]:
    """Entries of ``$WEFT_HOME/node`` that are neither a job's folder nor the agent's own."""
    strange = [entry for entry in root.iterdir() if not entry.name.startswith(".") and not _is_named_folder(entry)]
    return [entry for entry in strange if entry.is_symlink() or entry.exists()]  # not a folder that was just removed


def _is_named_folder(path: Path) -> bool:
    return NAME.fullmatch(path.name) is not None and is_folder(path)


def is_folder(path: Path) -> bool:
    """False also for a link."""
    return path.is_dir() and not path.is_symlink()
