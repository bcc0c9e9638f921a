"""What must be true after every trick, whatever it was: nothing is left, nothing of others was read or changed.

The auditor looks from outside: at what the cluster of the learners shows (``tests.hostile.clusters``), at folders,
and at the victim's own answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.hostile.arena import Arena
from tests.hostile.clusters.kind import RunningProcess

_GONE_S: Final = 30.0
"""Promise R5: nothing of a job is left so many seconds after its end."""
_LOOK_S: Final = 0.05
_GROWTH_MAX: Final = 800 * 2**20
"""Bytes of memory that one trick may add to a service."""


@dataclass(frozen=True)
class State:
    """Of the platform before a trick."""

    files: Mapping[str, str]
    components: Mapping[str, RunningProcess | None]
    memory: Mapping[str, int]
    guard: object
    """Which learner it is."""
    violations: int
    left: frozenset[str]
    """What earlier tricks have left: it counts against them only."""


def look(arena: Arena) -> State:
    components = arena.cluster.components()
    return State(
        files=arena.victims_files(),
        components=components,
        memory={name: _memory(process) for name, process in components.items()},
        guard=arena.cluster.identity(arena.guard),
        violations=len(arena.cluster.violations()),
        left=frozenset(arena.cluster.leftovers(arena.guard, arena.jobs)),
    )


def audit(arena: Arena, before: State, *, restarts: bool) -> Iterator[str]:
    """Yields what is wrong. ``restarts``: the trick itself has restarted services."""
    yield from _left(arena, before)
    yield from _victim(arena, before)
    yield from arena.cluster.violations()[before.violations :]
    if not restarts:
        now = arena.cluster.components()
        yield from (f"{name} has ended" for name in now if now[name] != before.components[name])
        for name, size in before.memory.items():
            if (growth := _memory(now[name]) - size) > _GROWTH_MAX:
                yield f"{name} has grown by {growth // 2**20} MiB"
    yield from arena.next_job()


def _left(arena: Arena, before: State) -> Iterator[str]:
    deadline = time.monotonic() + _GONE_S
    while left := set(arena.cluster.leftovers(arena.guard, arena.jobs)) - before.left:
        if time.monotonic() > deadline:
            yield from (f"left behind: {entry}" for entry in sorted(left)[:10])
            return
        time.sleep(_LOOK_S)


def _victim(arena: Arena, before: State) -> Iterator[str]:
    guard = arena.guard.refresh()
    if (guard.status, guard.attempt) != ("PROCESSING", 1):
        yield f"the victim's job is {guard.status} in attempt {guard.attempt} ({guard.reason}: {guard.message})"
        return
    if (learner := arena.cluster.identity(guard)) != before.guard:
        yield f"the victim's learner is another one: {learner} after {before.guard}"
    if [line.text for line in guard.logs()] != ["up"]:
        yield f"the victim's log is {[line.text for line in guard.logs()]}"
    if (status := arena.vault.refresh().status) != "COMPLETED":
        yield f"the victim's finished job is {status}"
    now = arena.victims_files()
    for path in sorted({*now, *before.files}):
        if now.get(path) != before.files.get(path):
            yield f"changed: {path}"


def _memory(process: RunningProcess | None) -> int:
    """Resident bytes."""
    if process is not None:
        with suppress(OSError):
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
    return 0
