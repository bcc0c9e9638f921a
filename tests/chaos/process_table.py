"""Samples the process table: which learners live, in which attempt, as which process.

Depends on two facts about the platform only: each learner has JOB_STATE_DIR in its environment, and shim and helper
have the learner's folder as their last argument.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from services.core.runtime.processes import ProcessIdentity, alive, identify

_PROC: Final = Path("/proc")
_EVERY_S: Final = 0.3
Part = Literal["learner", "shim", "helper"]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Identifies a learner's folder: job, attempt and name."""

    job: str
    attempt: int
    name: str


@dataclass(frozen=True, slots=True)
class LearnerProcess:
    """A learner's process, or its shim or helper."""

    place: Place
    part: Part
    process: ProcessIdentity
    leads: bool
    """True for the leader of its session. Among a learner's processes that is the command itself."""


def learner_processes(home: Path) -> Iterator[LearnerProcess]:
    """Yields every living process of this installation's learners, their shims and helpers."""
    node = home / "node"
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            variables = (entry / "environ").read_bytes().split(b"\0")
            session = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[3])
        except (OSError, IndexError):  # the process ended meanwhile
            continue
        owner = _owner_of(node, words, variables)
        process = identify(int(entry.name)) if owner else None
        if owner is not None and process is not None:
            yield LearnerProcess(owner[0], owner[1], process, leads=session == process.pid)


def _owner_of(node: Path, words: list[bytes], variables: list[bytes]) -> tuple[Place, Part] | None:
    state = next((variable.partition(b"=")[2] for variable in variables if variable.startswith(b"JOB_STATE_DIR=")), b"")
    if state:
        place = _place(node, Path(state.decode(errors="replace")).parent)
        return (place, "learner") if place else None
    last = next((word for word in reversed(words) if word), b"").decode(errors="replace")
    place = _place(node, Path(last)) if last.startswith(str(node)) else None
    if place is None:
        return None
    return place, "shim" if any(word.endswith(b"shim.py") for word in words) else "helper"


def _place(node: Path, folder: Path) -> Place | None:
    try:
        job, attempt, name = folder.relative_to(node).parts
        return Place(job, int(attempt), name)
    except ValueError:
        return None


class Sampler:
    """Samples the process table three times a second in a thread of its own, and records violations."""

    def __init__(self, home: Path) -> None:
        self.samples = 0
        self.overlaps: list[str] = []
        """Descriptions of attempts of one job that lived at the same moment; empty if all is well."""
        self.commands: dict[Place, set[ProcessIdentity]] = {}
        """Processes of each learner's command, by attempt: exactly one each if all is well."""
        self._home = home
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._leave.wait(_EVERY_S):
            self._sample([process for process in learner_processes(self._home) if process.part == "learner"])

    def _sample(self, processes: list[LearnerProcess]) -> None:
        self.samples += 1
        newest: dict[str, LearnerProcess] = {}
        for entry in processes:
            if entry.leads:
                self.commands.setdefault(entry.place, set()).add(entry.process)
            if entry.place.job not in newest or newest[entry.place.job].place.attempt < entry.place.attempt:
                newest[entry.place.job] = entry
        for entry in processes:
            other = newest[entry.place.job]
            # The sample holds both. If the older one still lives, both lived at one time.
            if entry.place.attempt < other.place.attempt and alive(entry.process):
                self.overlaps.append(f"{entry.place} (pid {entry.process.pid}) lives beside {other.place}")
