"""A learner's folder and what lies in it (docs/adr/0002-one-machine.md): the truth that agent, shim and helper share.

    $WEFT_HOME/node/<job>/<attempt>/<name>/

What is half-made or half-removed has a name beginning with a dot, so that a folder with a plain name is complete.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from services.core.domain.codec import dump, load
from services.core.domain.learner import Exit
from services.core.domain.plan import AttemptPlan, LearnerPlan
from services.core.ports.cluster import LearnerProcess
from services.core.processes import Identity
from services.node.files import read_json, sync_folder, write_json, write_reserved

SCHEMA: Final = 1
RUN: Final = 1
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
    tier: str
    home: str
    addresses_file: str
    objects: str
    cache: str
    sdk: str
    wrap: tuple[str, ...] = ()
    """The sandbox's command, which the learner's is added to; none in tier ``process``."""
    groups: tuple[str, ...] = ()
    """The folders of its control groups; none where there are none."""
    schema: int = SCHEMA
    extra: Mapping[str, Any] = field(default_factory=dict)


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

    def identity(self, file: str) -> Identity | None:
        """Who ``shim.json``, ``helper.json`` or ``runs/1/start.json`` is about."""
        document = read_json(self.folder / file)
        if document is None:
            return None
        return Identity(int(document["pid"]), int(document["start_time"]), str(document["boot_id"]))

    @property
    def shim(self) -> Identity | None:
        return self.identity("shim.json")

    @property
    def process(self) -> Identity | None:
        return self.identity(f"runs/{RUN}/start.json")

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
        return read_json(self.folder / "stop.json")

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
        except ValueError:  # that it is there says enough
            return {}

    def observe(self) -> LearnerProcess:
        """What the files say of it."""
        started = read_json(self.run_folder / "start.json") or {}
        ended = read_json(self.run_folder / "exit.json")
        last = self._last_words()
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
            run=int(started.get("run", 0)),
            pid=started.get("pid"),
            started=started.get("time"),
            exit=None if ended is None else load(Exit, ended),
            stored=self.stored,
            reason=str(last.get("reason", "")),
            message=str(last.get("message", "")),
            node=self.document.learner.node,
            cpus=self.document.learner.cpus,
            memory=self.document.learner.memory,
            gpus=self.document.learner.gpus,
        )


def read_learner(folder: Path) -> Learner | None:
    """None where there is none, or one of a newer schema. ValueError or TypeError where it cannot be read."""
    document = read_json(folder / "learner.json")
    if document is None or document["schema"] > SCHEMA:
        return None
    return Learner(folder, load(LearnerDocument, document))


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
