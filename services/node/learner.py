"""A learner's folder and what lies in it (docs/adr/0002-one-machine.md): the truth that agent, shim and helper share.

    $WEFT_HOME/node/<job>/<attempt>/<name>/

What is half-made or half-removed has a name beginning with a dot, so that a folder with a plain name is complete.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from services.core.domain.codec import dump, load
from services.core.domain.document import MAX_TIME_MS
from services.core.domain.learner import Exit
from services.core.domain.plan import AttemptPlan, LearnerPlan
from services.core.ports.cluster import LearnerProcess
from services.core.runtime.processes import ProcessIdentity
from services.node.files import read_json, sync_folder, write_json, write_reserved

SCHEMA: Final = 1
RUN: Final = 1
MALFORMED: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What reading a file that is not as it was written may raise."""
_ATTEMPT = re.compile(r"(?:\.(?:new|gone)-)?(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerDocument:
    """``learner.json``: all that shim and helper need to know."""

    plan: AttemptPlan
    """Of the other learners only who they are: neither tokens nor environments."""
    learner: LearnerPlan
    uid: int
    gid: int
    gpus: tuple[int, ...]
    ports: Mapping[str, int]
    env: Mapping[str, str]
    isolation: str
    home: str
    addresses_file: str
    objects: str
    cache: str
    sdk: str
    wrap: tuple[str, ...] = ()
    """The sandbox's command, which the learner's is added to; none in isolation ``process``."""
    groups: tuple[str, ...] = ()
    """The folders of its control groups; none where there are none."""
    schema: int = SCHEMA
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """How much of each of its GPUs it holds."""
        return min(1.0, self.learner.gpus)


@dataclass(frozen=True, slots=True)
class Learner:
    """One provisioned learner of this machine."""

    folder: Path
    document: LearnerDocument

    @property
    def job(self) -> str:
        return self.document.plan.job

    @property
    def attempt(self) -> int:
        return self.document.plan.attempt

    @property
    def name(self) -> str:
        return self.document.learner.name

    @property
    def job_dir(self) -> Path:
        return self.folder / "job"

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / str(RUN)

    def identity(self, file: str) -> ProcessIdentity | None:
        """Who ``shim.json``, ``helper.json`` or ``runs/1/start.json`` is about; None too where nobody can tell."""
        try:
            document = read_json(self.folder / file)
            return None if document is None else _identity(document)
        except MALFORMED:
            return None

    @property
    def shim(self) -> ProcessIdentity | None:
        return self.identity("shim.json")

    @property
    def process(self) -> ProcessIdentity | None:
        return self.identity(f"runs/{RUN}/start.json")

    @property
    def begun(self) -> bool:
        """Whether its process was ever let go, though perhaps nobody can tell which it was."""
        return (self.run_folder / "start.json").exists()

    @property
    def ended(self) -> bool:
        return (self.run_folder / "exit.json").exists()

    @property
    def stored(self) -> bool:
        return (self.folder / "stored").exists()

    @property
    def spawned(self) -> bool:
        """Whether the step ``learners`` was begun: what was merely reserved is not brought to life by a restart."""
        return (self.folder / "shim.json").exists()

    def activate(self) -> None:
        (self.folder / "active").touch(mode=0o600)
        sync_folder(self.folder)

    def mark_stop(self, *, generation: int, cause: str, grace_ms: int, now_ms: int) -> None:
        """A stronger stop replaces a weaker one: kill, and less grace. One that has ended stays as it is."""
        if self.ended:
            return
        present = self.stop_mark
        if present is not None:
            kills = cause == "kill" and present["cause"] != "kill"
            if not kills and grace_ms >= present["grace_ms"]:
                return
        mark = {"generation": generation, "cause": cause, "grace_ms": grace_ms, "time": now_ms}
        write_reserved(self.folder / "stop.json", mark)

    @property
    def stop_mark(self) -> dict[str, Any] | None:
        """None too where it cannot be read: it is written anew by whoever wants it stopped."""
        try:
            mark = read_json(self.folder / "stop.json")
            return None if mark is None else _stop_mark(mark)
        except MALFORMED:
            return None

    def write_exit(self, end: Exit) -> None:
        """In place of a shim that cannot: only while holding ``shim_lock``."""
        self.run_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(self.run_folder / "exit.json", {**dump(end), "run": RUN})

    @contextmanager
    def shim_lock(self) -> Generator[bool]:
        """Whether no shim lives; while it is held none can begin to."""
        fd = os.open(self.folder / "shim.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            os.close(fd)

    def _last_words(self) -> dict[str, Any]:
        """What its helper said when it ended."""
        try:
            return read_json(self.folder / "stored") or {}
        except MALFORMED:  # that it is there says enough
            return {}

    def _start(self) -> tuple[int, int] | None:
        """(pid, when) of its process; (0, when it was written down) where that cannot be read."""
        path = self.run_folder / "start.json"
        try:
            document = read_json(path)
            return None if document is None else (_identity(document).pid, _time(document))
        except MALFORMED:
            return 0, round(path.stat().st_mtime * 1000)

    def _exit(self) -> Exit | None:
        """How its process ended. Where that cannot be read nobody knows how: it is lost."""
        path = self.run_folder / "exit.json"
        try:
            document = read_json(path)
            if document is None:
                return None
            _time(document)
            return load(Exit, document)
        except MALFORMED:
            return Exit(time=round(path.stat().st_mtime * 1000), lost=True)

    def unreadable(self) -> dict[str, str]:
        """File -> why, of those of its files that are not as they were written."""
        found: dict[str, str] = {}
        for name, check in _CHECKS.items():
            try:
                document = read_json(self.folder / name)
                if document is not None:
                    check(document)
            except MALFORMED as error:
                found[name] = str(error) or type(error).__name__
        return found

    def observe(self) -> LearnerProcess:
        """What the files say of it."""
        started, ended, last = self._start(), self._exit(), self._last_words()
        if ended is not None:
            state = "exited"
        elif started:
            state = "running"
        else:
            state = "waiting" if (self.folder / "active").exists() else "inert"
        return LearnerProcess(
            name=self.name,
            attempt=self.attempt,
            state=state,
            run=RUN if started else 0,
            pid=started[0] or None if started else None,
            started=started[1] if started else None,
            exit=ended,
            stored=self.stored,
            reason=str(last.get("reason", "")),
            message=str(last.get("message", "")),
            node=self.document.learner.node,
            cpus=self.document.learner.cpus,
            memory=self.document.learner.memory,
            gpus=self.document.learner.gpus,
        )


def read_learner(folder: Path) -> Learner | None:
    """None where there is none, or one of a newer schema. One of ``MALFORMED`` where it cannot be read."""
    document = read_json(folder / "learner.json")
    if document is None or document["schema"] > SCHEMA:
        return None
    learner = Learner(folder, load(LearnerDocument, document))
    if (learner.job, str(learner.attempt), learner.name) != folder.parts[-3:]:
        raise ValueError(f"it says that it is {learner.job}/{learner.attempt}/{learner.name}")
    return learner


def write_gpus(folder: Path, document: LearnerDocument) -> None:
    """Once more what it holds, for the day on which its document cannot be read: others must not be given the same."""
    if document.gpus:
        write_json(folder / "gpus.json", {"gpus": document.gpus, "share": document.share})


def read_gpus(folder: Path) -> dict[int, float]:
    """Index -> how much of it a learner holds that cannot be read. Empty where that is not known either."""
    try:
        document = read_json(folder / "gpus.json") or {"gpus": ()}
        return {int(index): float(document["share"]) for index in document["gpus"]}
    except MALFORMED:
        return {}


def owner(folder: Path) -> int:
    """The uid that its learner runs under, whatever its document says; -1 where even that is gone."""
    try:
        return (folder / "job").stat().st_uid
    except OSError:
        return -1


def _identity(document: Mapping[str, Any]) -> ProcessIdentity:
    return ProcessIdentity(int(document["pid"]), int(document["start_time"]), str(document["boot_id"]))


def _time(document: Mapping[str, Any]) -> int:
    time = document["time"]
    if not isinstance(time, int) or not 0 <= time <= MAX_TIME_MS:
        raise ValueError("it has a time before 1970 or after 9999")
    return time


def _stop_mark(document: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(document["cause"], str) or not isinstance(document["grace_ms"], int):
        raise TypeError("its fields are of other types")
    return document


def _checked_start(document: dict[str, Any]) -> None:
    _identity(document)
    _time(document)


def _checked_exit(document: dict[str, Any]) -> None:
    load(Exit, document)
    _time(document)


_CHECKS: Final[Mapping[str, Callable[[dict[str, Any]], object]]] = {
    "shim.json": _identity,
    "helper.json": _identity,
    "stop.json": _stop_mark,
    "stored": dict,
    f"runs/{RUN}/start.json": _checked_start,
    f"runs/{RUN}/exit.json": _checked_exit,
}


@dataclass(frozen=True, slots=True)
class JobFolder:
    """``$WEFT_HOME/node/<job>/``."""

    path: Path

    def attempts(self) -> list[int]:
        """Those of which anything exists, half-made and half-removed ones as well."""
        if not self.path.exists():
            return []
        found = (_ATTEMPT.fullmatch(entry.name) for entry in self.path.iterdir())
        return sorted({int(match[1]) for match in found if match})

    def attempt(self, number: int) -> Path:
        return self.path / str(number)

    def half_made(self, number: int) -> Path:
        return self.path / f".new-{number}"

    def half_removed(self, number: int) -> Path:
        return self.path / f".gone-{number}"

    def leftovers(self) -> list[Path]:
        """What a crash has left in the middle of being made or removed."""
        return [entry for entry in self.path.iterdir() if entry.name.startswith(".") and _ATTEMPT.fullmatch(entry.name)]

    def learner_folders(self, attempt: int | None = None) -> list[Path]:
        """Of one attempt, or of all."""
        numbers = self.attempts() if attempt is None else [attempt]
        folders = [self.attempt(number) for number in numbers if self.attempt(number).exists()]
        return sorted(entry for folder in folders for entry in folder.iterdir() if not entry.name.startswith("."))
