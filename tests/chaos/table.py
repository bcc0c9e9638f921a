"""The process table, looked at all the time: who of a job's learners lives, in which attempt, as which process.

Knows nothing of the platform but the one variable of a learner's environment that is promised to it, JOB_STATE_DIR, and
that shim and helper have the learner's folder as their last argument.
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
    """Whose folder: of a learner, in an attempt of a job."""

    job: str
    attempt: int
    name: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A process that belongs to a learner."""

    place: Place
    part: Part
    process: ProcessIdentity
    leads: bool
    """It is the first of its session: of a learner's processes, the command itself."""


def look(home: Path) -> Iterator[Seen]:
    """Everything of any learner of this installation that lives now."""
    node = home / "node"
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            variables = (entry / "environ").read_bytes().split(b"\0")
            session = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[3])
        except (OSError, IndexError):  # ended meanwhile
            continue
        found = _whose(node, words, variables)
        process = identify(int(entry.name)) if found else None
        if found is not None and process is not None:
            yield Seen(found[0], found[1], process, leads=session == process.pid)


def _whose(node: Path, words: list[bytes], variables: list[bytes]) -> tuple[Place, Part] | None:
    state = next((one.partition(b"=")[2] for one in variables if one.startswith(b"JOB_STATE_DIR=")), b"")
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
    """Looks three times a second, from a thread of its own, and notes what must never be."""

    def __init__(self, home: Path) -> None:
        self.samples = 0
        self.overlaps: list[str] = []
        """Two attempts of a job that lived at the same moment."""
        self.commands: dict[Place, set[ProcessIdentity]] = {}
        """The process that each learner was, in each attempt: one, if all is well."""
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
            self._sample([one for one in look(self._home) if one.part == "learner"])

    def _sample(self, seen: list[Seen]) -> None:
        self.samples += 1
        newest: dict[str, Seen] = {}
        for one in seen:
            if one.leads:
                self.commands.setdefault(one.place, set()).add(one.process)
            if one.place.job not in newest or newest[one.place.job].place.attempt < one.place.attempt:
                newest[one.place.job] = one
        for one in seen:
            other = newest[one.place.job]
            # Both were seen; the older one living on after that shows that they did so at one time.
            if one.place.attempt < other.place.attempt and alive(one.process):
                self.overlaps.append(f"{one.place} (pid {one.process.pid}) lives beside {other.place}")
