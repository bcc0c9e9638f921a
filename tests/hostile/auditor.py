"""What must be true after every trick, whatever it was: nothing is left, nothing of others was read or changed.

The auditor looks from outside: at the process table, mounts, control groups, folders and the victim's own answers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.hostile.arena import Arena

_GONE_S: Final = 30.0
"""Promise R5: nothing of a job is left so many seconds after its end."""
_LOOK_S: Final = 0.05
_GROWTH_MAX: Final = 800 * 2**20
"""Bytes of memory that one trick may add to a service."""
_PLACES: Final = (
    "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run", "/run/lock", "/run/user", "/var/lock", "/var/crash",
    "/var/spool/cron", "/var/spool/cron/crontabs", "/var/spool/at", "/etc/cron.d", "/etc",
)  # fmt: skip


@dataclass(frozen=True)
class State:
    """Of the platform before a trick."""

    files: Mapping[str, str]
    services: Mapping[str, object]
    memory: Mapping[str, int]
    guard: tuple[int, ...]
    """Pids of the guard's learner."""
    left: frozenset[str]
    """What earlier tricks have left: it counts against them only."""


def look(arena: Arena) -> State:
    services = arena.identities()
    return State(
        files=arena.victims_files(),
        services=services,
        memory={name: _memory(arena, name) for name in services},
        guard=tuple(arena.weft.learner_pids(arena.guard.id).values()),
        left=frozenset(leftovers(arena)),
    )


def audit(arena: Arena, before: State, *, restarts: bool) -> Iterator[str]:
    """Yields what is wrong. ``restarts``: the trick itself has restarted services."""
    yield from _left(arena, before)
    yield from _victim(arena, before)
    if not restarts:
        now = arena.identities()
        yield from (f"{name} was restarted" for name in now if now[name] != before.services[name])
        for name, size in before.memory.items():
            if (growth := _memory(arena, name) - size) > _GROWTH_MAX:
                yield f"{name} has grown by {growth // 2**20} MiB"
    yield from arena.next_job()


def _left(arena: Arena, before: State) -> Iterator[str]:
    deadline = time.monotonic() + _GONE_S
    while left := set(leftovers(arena)) - before.left:
        if time.monotonic() > deadline:
            yield from (f"left behind: {entry}" for entry in sorted(left)[:10])
            return
        time.sleep(_LOOK_S)


def _victim(arena: Arena, before: State) -> Iterator[str]:
    guard = arena.guard.refresh()
    if (guard.status, guard.attempt) != ("PROCESSING", 1):
        yield f"the victim's job is {guard.status} in attempt {guard.attempt} ({guard.reason}: {guard.message})"
        return
    if tuple(arena.weft.learner_pids(guard.id).values()) != before.guard:
        yield "the victim's learner is another process"
    if [line.text for line in guard.logs()] != ["up"]:
        yield f"the victim's log is {[line.text for line in guard.logs()]}"
    if (status := arena.vault.refresh().status) != "COMPLETED":
        yield f"the victim's finished job is {status}"
    now = arena.victims_files()
    for path in sorted({*now, *before.files}):
        if now.get(path) != before.files.get(path):
            yield f"changed: {path}"


def leftovers(arena: Arena) -> Iterator[str]:
    """Everything on this machine that belongs to a learner's user, other than the guard's, and to no live job."""
    yield from _processes(arena)
    for place in _PLACES:
        with suppress(OSError):
            for path in Path(place).iterdir():
                with suppress(OSError):
                    if path.lstat().st_uid in arena.uids and path not in arena.weft.home.root.parents:
                        yield str(path)
    yield from _shared_objects(arena)
    root = str(arena.weft.home.root)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if root in line:
            yield f"mount {line.split()[4]}"
    for entry in (arena.weft.home / "node").iterdir():
        if entry.name.startswith("j") and entry.name.partition(".")[0] != arena.guard.id:
            yield str(entry)
    for at, names, _ in os.walk("/sys/fs/cgroup"):
        for name in names:
            if name.partition(".")[0] in arena.jobs:
                yield f"group {at}/{name}"


def sweep(uids: range) -> None:
    """Removes what tricks that fell have left outside the platform. ``uids``: no other program has them."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid in uids:
                os.kill(int(entry.name), signal.SIGKILL)
    for place in _PLACES:
        with suppress(OSError):
            for path in Path(place).iterdir():
                with suppress(OSError):
                    if path.lstat().st_uid in uids:
                        subprocess.run(["rm", "-rf", str(path)], check=True)
    for kind, option, column in (("shm", "-m", 7), ("sem", "-s", 4), ("msg", "-q", 7)):
        for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]:
            if int(line.split()[column]) in uids:
                subprocess.run(["ipcrm", option, line.split()[1]], check=True)


def _processes(arena: Arena) -> Iterator[str]:
    own = _services(arena)
    guard = set(arena.weft.processes_of(arena.guard.id))
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            pid = int(entry.name)
            if entry.stat().st_uid in arena.uids and pid not in own and pid not in guard and not _is_of(pid, guard):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield f"process {pid} {command[:100]}"


def _is_of(pid: int, pids: set[int]) -> bool:
    """True if it descends from one of them."""
    ancestors = 0
    while pid > 1 and ancestors < 100:
        if pid in pids:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            return False
        ancestors += 1
    return False


def _services(arena: Arena) -> set[int]:
    """The supervisor, the services, and what they started; of the node agent's children are learners."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    node = arena.weft.process("node").pid
    front = [arena.weft.process("supervisor").pid]
    services = set(front)
    while front:
        pid = front.pop()
        below = [] if pid == node else children.get(pid, [])
        services.update(below)
        front += below
    return services


def _shared_objects(arena: Arena) -> Iterator[str]:
    for kind, column in (("shm", 7), ("sem", 4), ("msg", 7)):
        with suppress(OSError):
            for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]:
                if int(line.split()[column]) in arena.uids:
                    yield f"System V {kind} {line.split()[1]}"


def _memory(arena: Arena, service: str) -> int:
    """Resident bytes."""
    with suppress(OSError):
        for line in Path(f"/proc/{arena.weft.process(service).pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0
