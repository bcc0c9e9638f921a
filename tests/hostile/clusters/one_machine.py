"""Learners that are processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.hostile.attacks.ground import FORGED
from tests.hostile.clusters.kind import RunningProcess
from tests.testbed.live_files import files_with
from tests.testbed.platform import Platform
from weft._job import Job

_SERVICES: Final = ("etcd", "metrics", "node", "lcm", "guardian", "api")
_PLACES: Final = (
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/dev/mqueue",
    "/run",
    "/run/lock",
    "/run/user",
    "/var/lock",
    "/var/crash",
    "/var/spool/cron",
    "/var/spool/cron/crontabs",
    "/var/spool/at",
    "/etc/cron.d",
    "/etc",
)


class OneMachine:
    def __init__(self, weft: Platform, uids: range) -> None:
        """``uids``: of learners; no other program has them."""
        self._weft, self._uids = weft, uids

    def command(self, module: str, function: str) -> str:
        return f"exec {os.path.realpath(sys.executable)} -B -m tests.hostile.attacks.main {module} {function}"

    def components(self) -> Mapping[str, RunningProcess | None]:
        return {name: self._weft.process(name) for name in _SERVICES}

    # --- what an attacker knows -----------------------------------------------------------------------------------

    def intel(self, guard: Job) -> dict[str, Any]:
        addresses = self._weft.home.addresses()
        owners, pids = self._ports(), self._pids(guard)
        return {
            "addresses": addresses,
            "front": addresses["api"],
            "ports": sorted(owners),
            "ports_of": {str(port): service for port, service in owners.items()},
            "open_ports": [int(addresses[name].rpartition(":")[2]) for name in ("api", "api-grpc")],
            "own_network": False,
            "own_processes": False,
            "sockets": sorted(self._sockets()),
            "pids": sorted(pids),
            "commands": {str(pid): command_of(pid) for pid in pids},
        }

    def _pids(self, guard: Job) -> set[int]:
        """Processes that no attacker may touch: the services, and all of the guard."""
        return {*(self._weft.process(name).pid for name in _SERVICES), *self._weft.processes_of(guard.id)}

    def _ports(self) -> dict[int, str]:
        """TCP ports on which processes of the platform listen -> service."""
        inodes = {}
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    inodes[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
        listening: dict[int, str] = {}
        for name in (*_SERVICES, "supervisor"):
            for descriptor in Path(f"/proc/{self._weft.process(name).pid}/fd").iterdir():
                try:
                    target = str(descriptor.readlink())
                except FileNotFoundError:
                    continue
                if target in inodes:
                    listening[inodes[target]] = name
        return listening

    def _sockets(self) -> set[str]:
        """Paths of the sockets in the platform's folder on which a process listens."""
        lines = Path("/proc/net/unix").read_text().splitlines()[1:]
        paths = {fields[7] for line in lines if len(fields := line.split(None, 7)) == 8}
        return {path for path in paths if path.startswith(f"{self._weft.home.root}/")}

    # --- what must not be touched ---------------------------------------------------------------------------------

    def _learner_folder(self, job: Job) -> Path:
        return self._weft.home / "node" / job.id / "1" / "worker-0"

    def inner_urls(self) -> list[str]:
        return []

    def private(self, guard: Job) -> list[str]:
        own = self._learner_folder(guard)
        names = ("", "learner.json", "shim.json", "job", "job/results/key")
        return [str(own / name) for name in names]

    def secrets(self, guard: Job) -> dict[str, str]:
        return {}

    def identity(self, guard: Job) -> object:
        return tuple(self._weft.learner_pids(guard.id).values())

    def unchanged(self, guard: Job) -> list[Path]:
        return [self._learner_folder(guard) / "job"]

    def job_folder(self, job: Job) -> Path | None:
        return self._learner_folder(job) / "job"

    def damage(self, job: Job) -> Iterator[str]:
        folder = self._learner_folder(job)
        output = folder / "runs" / "1"  # holds what the learner prints
        own = {folder / "job", output / "stdout", output / "stderr", folder / "spool"}
        for path in files_with(folder, [FORGED.encode()]):
            if not own & {path, *path.parents}:
                yield f"the learner has written {path}"
        for name in ("learner.json", "shim.json", "runs/1/start.json", "job"):
            if not (folder / name).exists():
                yield f"the learner has removed {name}"

    def violations(self) -> list[str]:
        return []

    # --- what is left ---------------------------------------------------------------------------------------------

    def leftovers(self, guard: Job, jobs: Collection[str]) -> Iterator[str]:
        yield from self._processes(guard)
        for place in _PLACES:
            with suppress(OSError):
                for path in Path(place).iterdir():
                    with suppress(OSError):
                        if path.lstat().st_uid in self._uids and path not in self._weft.home.root.parents:
                            yield str(path)
        yield from self._shared_objects()
        root = str(self._weft.home.root)
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if root in line:
                yield f"mount {line.split()[4]}"
        for entry in (self._weft.home / "node").iterdir():
            if entry.name.startswith("j") and entry.name.partition(".")[0] != guard.id:
                yield str(entry)
        for at, names, _ in os.walk("/sys/fs/cgroup"):
            for name in names:
                if name.partition(".")[0] in jobs:
                    yield f"group {at}/{name}"

    def _processes(self, guard: Job) -> Iterator[str]:
        own = self._services()
        guards = set(self._weft.processes_of(guard.id))
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                pid = int(entry.name)
                if entry.stat().st_uid in self._uids and pid not in own | guards and not _descends(pid, guards):
                    yield f"process {pid} {command_of(pid).replace(chr(0), ' ')[:100]}"

    def _services(self) -> set[int]:
        """The supervisor, the services, and what they started; of the node agent's children are learners."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError, IndexError):
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    children.setdefault(parent, []).append(int(entry.name))
        node = self._weft.process("node").pid
        front = [self._weft.process("supervisor").pid]
        services = set(front)
        while front:
            pid = front.pop()
            below = [] if pid == node else children.get(pid, [])
            services.update(below)
            front += below
        return services

    def _shared_objects(self) -> Iterator[str]:
        for kind, column in (("shm", 7), ("sem", 4), ("msg", 7)):
            with suppress(OSError):
                for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]:
                    if int(line.split()[column]) in self._uids:
                        yield f"System V {kind} {line.split()[1]}"


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


def command_of(pid: int) -> str:
    """Its command line, with NUL between the words; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("latin-1")
    except OSError:
        return ""


def _descends(pid: int, pids: set[int]) -> bool:
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
