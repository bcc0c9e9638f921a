"""Processes of this machine: started or adopted, watched without polling, and killed with all their descendants."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import structlog

from services.core.runtime.processes import ENDED, ProcessIdentity, alive, stat_fields
from services.core.runtime.retry import Backoff
from services.node import cgroups

_PROC: Final = Path("/proc")
_NO_USER: Final = 2**32 - 3
"""No account has it."""
_KILLER_S: Final = 10.0
_KILLER: Final = """
import os, sys
uid, real = map(int, sys.stdin.read().split())
os.setgroups([])
try:
    os.setresuid(real, uid, 0)
except OSError:  # a container that does not have all user ids
    os.setresuid(uid, uid, 0)
os.kill(-1, 9)
"""
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One process of the process table."""

    pid: int
    parent: int
    session: int


def _read(pid: int) -> TableEntry | None:
    try:
        fields = stat_fields(pid)
    except OSError:
        return None
    if not fields or fields[0] in ENDED:
        return None
    return TableEntry(pid, parent=int(fields[1]), session=int(fields[3]))


def read_table() -> dict[int, TableEntry]:
    """All living processes, by pid."""
    entries = (_read(int(name)) for name in os.listdir(_PROC) if name.isdigit())  # noqa: PTH208 - /proc is read a lot
    return {entry.pid: entry for entry in entries if entry is not None}


def children_of(table: Mapping[int, TableEntry]) -> dict[int, list[int]]:
    """Pid -> pids of its children, of all that have some."""
    children: dict[int, list[int]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry.pid)
    return children


def with_descendants(children: Mapping[int, Sequence[int]], pids: set[int]) -> set[int]:
    """The pids, and those of all processes below them."""
    reached, front = set(pids), list(pids)
    while front:
        below = set(children.get(front.pop(), [])) - reached
        reached |= below
        front += below
    return reached


def processes_below(shim: ProcessIdentity | None) -> set[int]:
    """All processes of the shim's learner: it adopts those whose parents have ended. Empty if the shim has ended."""
    if shim is None or not alive(shim):
        return set()
    return with_descendants(children_of(read_table()), {shim.pid}) - {shim.pid}


def send_to_all(pids: Iterable[int], sign: signal.Signals) -> None:
    """Sends the signal to each process that still exists, and that this process may signal."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sign)


class Process:
    """A shim or helper: a child of this agent, or of an earlier one."""

    def __init__(self, pid: int, pidfd: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._child = child
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, self._on_end)

    @classmethod
    def spawn(cls, argv: list[str], *, env: Mapping[str, str], log: Path) -> Self:
        """Starts it in a session of its own. It inherits nothing; its output is appended to ``log``."""
        with log.open("ab") as out:
            os.fchmod(out.fileno(), 0o600)
            # Popen, because asyncio's transport kills its child when the loop closes.
            child = subprocess.Popen(
                argv, env=dict(env), cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        return cls(child.pid, os.pidfd_open(child.pid), child)

    @classmethod
    def adopt(cls, identity: ProcessIdentity | None) -> Self | None:
        """None if it has ended."""
        if identity is None:
            return None
        try:
            pidfd = os.pidfd_open(identity.pid)
        except OSError:
            return None
        if alive(identity):  # checked after opening: the descriptor can mean no other process
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
        """The exit code of a child of this agent; None while it lives, and for children of an earlier one."""
        return self._child.returncode if self._child is not None else None

    def send(self, sign: signal.Signals) -> None:
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, sign)

    def forget(self) -> None:
        """Stops watching it; it lives on."""
        self._close()
        if self._child is not None and self._child.poll() is None:
            self._child.returncode = 0  # else the interpreter warns of a child that is still running

    def _close(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMatcher:
    """Finds the processes of learners by any of these marks. Their descendants and sessions belong to them, too."""

    owners: frozenset[int]
    """The users of these learners. A process of another user, except the platform's, does not belong whatever it says:
    a stranger can give its processes any environment and arguments."""
    job_dirs: frozenset[str]
    """JOB_STATE_DIR of its environment."""
    folders: frozenset[str] = frozenset()
    """Last arguments of session leaders: of shims and helpers."""
    identities: tuple[ProcessIdentity, ...] = ()
    uids: frozenset[int] = frozenset()
    """User ids that only these learners have."""
    groups: frozenset[str] = frozenset()
    """Folders of control groups."""

    def members(self) -> set[int]:
        """The pids of all processes that belong. One walk through /proc."""
        table = read_table()
        named = {process.pid for process in self.identities if process.pid in table and alive(process)}
        roots = named | (cgroups.members(self.groups) & table.keys()) | {pid for pid in table if self._owns(table[pid])}
        roots.discard(os.getpid())
        pids = roots | {pid for pid, entry in table.items() if entry.session in roots}
        return with_descendants(children_of(table), pids) - {os.getpid()}

    def _owns(self, entry: TableEntry) -> bool:
        place = _PROC / str(entry.pid)
        with suppress(OSError):
            uid = _real_uid(place)
            if uid in self.uids:
                return True
            if uid not in self.owners and uid != os.geteuid():
                return False
            if entry.session == entry.pid:
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


async def kill_all(
    members: Callable[[], Iterable[int]],
    *,
    timeout_s: float,
    users: Collection[int] = frozenset(),
    groups: Collection[str] = frozenset(),
) -> bool:
    """Sends SIGKILL to all members until none is left. False if one is after ``timeout_s``: it hangs in the kernel.

    ``groups``: folders of the members' control groups, which are thawed.
    ``users``: user ids that only members have, if this process is root. A program that forks faster than the process
    table can be read is seen and killed late or never, so all processes of a user are killed at once.
    """
    deadline = time.monotonic() + timeout_s
    backoff = Backoff(first_s=0.002, most_s=0.1)
    await asyncio.to_thread(_kill_users, users)
    while left := await asyncio.to_thread(lambda: list(members())):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(_kill_users, users)
        await asyncio.to_thread(cgroups.set_frozen, groups, frozen=False)
        if time.monotonic() > deadline:
            return False
        await backoff.wait()
    return True


def _kill_users(uids: Collection[int]) -> None:
    """Kills all processes of each user at once: the kernel lets no fork escape. For root only.

    The process that does it has the user's rights, and a real user id of its own, so the user cannot kill it first.
    """
    for uid in uids:
        try:
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", _KILLER],
                input=f"{uid} {_NO_USER}".encode(),
                env={},
                cwd="/",
                check=False,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_KILLER_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("user.not_killed", uid=uid, why=str(error))
