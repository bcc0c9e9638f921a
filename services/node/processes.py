"""Processes of this machine: spawned or adopted, watched without polling, ended to the last one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from services.core.runtime.processes import ProcessIdentity, alive
from services.node import cgroups

_PROC: Final = Path("/proc")
_GONE: Final = frozenset({"Z", "X"})
"""States of what has ended and merely has not been waited for."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One line of the process table."""

    pid: int
    parent: int
    session: int


def _read(pid: int) -> Seen | None:
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    if not fields or fields[0] in _GONE:
        return None
    return Seen(pid, parent=int(fields[1]), session=int(fields[3]))


def table() -> dict[int, Seen]:
    """Everything that lives now."""
    seen = (_read(int(entry)) for entry in os.listdir(_PROC) if entry.isdigit())  # noqa: PTH208 - /proc is read a lot
    return {one.pid: one for one in seen if one is not None}


class Process:
    """A shim or helper: a child of ours, or one that an earlier agent has started."""

    def __init__(self, pid: int, pidfd: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._child = child
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, self._on_end)

    @classmethod
    def spawn(cls, argv: list[str], *, env: Mapping[str, str], log: Path) -> Self:
        """In a session of its own, with nothing of ours but its output, which is appended to ``log``."""
        with log.open("ab") as out:
            os.fchmod(out.fileno(), 0o600)
            # Popen and not asyncio's: that one kills its children when the loop closes.
            child = subprocess.Popen(
                argv, env=dict(env), cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        return cls(child.pid, os.pidfd_open(child.pid), child)

    @classmethod
    def adopt(cls, identity: ProcessIdentity | None) -> Self | None:
        """None where it no longer lives."""
        if identity is None:
            return None
        try:
            pidfd = os.pidfd_open(identity.pid)
        except OSError:
            return None
        if alive(identity):  # asked with the descriptor in hand: from here on it can be nobody else
            return cls(identity.pid, pidfd)
        os.close(pidfd)
        return None

    def _on_end(self) -> None:
        self._close()
        if self._child is not None:
            self._child.wait()
        self._ended.set()

    async def ended(self) -> None:
        await self._ended.wait()

    @property
    def code(self) -> int | None:
        """How a child of ours ended; None where it lives, or was another's child."""
        return self._child.returncode if self._child is not None else None

    def send(self, sign: signal.Signals) -> None:
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, sign)

    def forget(self) -> None:
        """Lets it live on, unwatched."""
        self._close()
        if self._child is not None and self._child.poll() is None:
            self._child.returncode = 0  # else the interpreter complains of a child that is still running

    def _close(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


@dataclass(frozen=True, slots=True)
class Belonging:
    """What makes a process a learner's: any of these, or being below or in the session of one that is."""

    job_dirs: frozenset[str]
    """JOB_STATE_DIR of its environment."""
    folders: frozenset[str] = frozenset()
    """Last argument of a session's leader: shim and helper."""
    identities: tuple[ProcessIdentity, ...] = ()
    uids: frozenset[int] = frozenset()
    """User ids that are nobody else's."""
    groups: frozenset[str] = frozenset()
    """Folders of control groups."""

    def members(self) -> set[int]:
        """Their pids. One walk through /proc."""
        seen = table()
        named = {one.pid for one in self.identities if one.pid in seen and alive(one)}
        roots = named | (cgroups.members(self.groups) & seen.keys()) | {pid for pid in seen if self._owns(seen[pid])}
        roots.discard(os.getpid())
        found = roots | {pid for pid, one in seen.items() if one.session in roots}
        children: dict[int, list[int]] = {}
        for one in seen.values():
            children.setdefault(one.parent, []).append(one.pid)
        front = list(found)
        while front:
            below = set(children.get(front.pop(), [])) - found
            found |= below
            front += below
        return found - {os.getpid()}

    def _owns(self, one: Seen) -> bool:
        place = _PROC / str(one.pid)
        with suppress(OSError):
            if self.uids and _real_uid(place) in self.uids:
                return True
            if one.session == one.pid:
                last = (place / "cmdline").read_bytes().rstrip(b"\0").rpartition(b"\0")[2]
                if os.fsdecode(last) in self.folders:
                    return True
            for variable in (place / "environ").read_bytes().split(b"\0"):
                if variable.startswith(b"JOB_STATE_DIR="):
                    return os.fsdecode(variable.removeprefix(b"JOB_STATE_DIR=")) in self.job_dirs
        return False


def _real_uid(place: Path) -> int:
    _, _, rest = (place / "status").read_text(errors="replace").partition("\nUid:")
    return int(rest.split()[0])


async def kill_all(members: Callable[[], Iterable[int]], *, timeout_s: float) -> bool:
    """SIGKILL until nobody is left; False where somebody still is after ``timeout_s`` (hanging in the kernel)."""
    deadline = time.monotonic() + timeout_s
    wait = 0.002
    while left := await asyncio.to_thread(lambda: list(members())):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(wait)
        wait = min(wait * 2, 0.1)
    return True
