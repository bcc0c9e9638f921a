"""A machine of the test cluster: mounts, network, processes, cgroups and host name of its own, as of a small container.

What runs in it sees the programs and libraries of this machine, the cluster's folder at ``FOLDER_INSIDE``, and private
/run, /var/lib and /var/log. It has no way out but links that are made for it. A kill of its first process ends all of
it at once, as a loss of power does; with it go its mounts, links and firewall rules.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, Self

from tests.testbed.kubernetes import cgroups
from tests.testbed.kubernetes.init import FOLDER_INSIDE
from tests.testbed.kubernetes.processes import Process, host_pid, wait

_HERE: Final = Path(__file__).parent
_PATH: Final = f"{FOLDER_INSIDE}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Joins the machine's control groups, then starts a server in a session of its own and prints its pid.
_SPAWN: Final = 'log=$1; shift; setsid "$@" < /dev/null >> "$log" 2>&1 & echo $!'


class Machine:
    """Known by its folder (in the cluster's), so that any process may take it over."""

    def __init__(self, cluster_folder: Path, name: str) -> None:
        self.name = name
        self.cluster_folder = cluster_folder
        self.folder = cluster_folder / "machines" / name
        self._record = self.folder / "machine.json"
        self._group = f"{cluster_folder.name}-{name}"
        self._parent: subprocess.Popen[bytes] | None = None

    @property
    def inside(self) -> str:
        """The machine's folder, as its processes see it."""
        return f"{FOLDER_INSIDE}/machines/{self.name}"

    @property
    def alive(self) -> bool:
        process = Process.read(self._record)
        return process is not None and process.alive

    def start(self) -> Self:
        """Starts it. It ends with this process unless ``keep`` is called. RuntimeError with the reason if it cannot."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "name": self.name,
            "folder": str(self.cluster_folder),
            "record": str(self._record),
            "hierarchies": [asdict(hierarchy) for hierarchy in cgroups.hierarchies()],
        }
        joins = "; ".join(f"echo $$ > {shlex.quote(str(file))}" for file in cgroups.make_groups(self._group))
        unshare = "unshare --mount --net --pid --cgroup --uts --ipc --fork --kill-child"
        init = shlex.join([sys.executable, "-S", "-E", str(_HERE / "init.py"), json.dumps(settings)])
        log = self.folder / "init.log"
        with log.open("ab") as errors:
            self._parent = subprocess.Popen(
                ["sh", "-c", f"{joins}; exec {unshare} {init}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert self._parent.stdout is not None
        with self._parent.stdout as answers:
            if answers.readline() != b"ready\n":
                self.kill()
                raise RuntimeError(f"machine {self.name} did not start: {log.read_text()[-2000:]}")
        return self

    def keep(self) -> None:
        """Lets it outlive this process."""
        assert self._parent is not None
        assert self._parent.stdin is not None
        with self._parent.stdin as orders:
            orders.write(b"keep\n")

    def kill(self) -> None:
        """Ends everything in it at once; returns when nothing of it is left but its folder."""
        process = Process.read(self._record)
        if process is not None:
            process.kill()
        if self._parent is not None:
            self._parent.kill()
            self._parent.wait()
            if self._parent.stdin is not None:
                self._parent.stdin.close()
            self._parent = None
        cgroups.remove_groups(self._group)
        self._record.unlink(missing_ok=True)
        for record in self.folder.glob("servers/*.json"):
            record.unlink()

    def set_share(self, percent: int) -> None:
        """What its processes get of the processors beside others that want them; 100: as much as a service.

        RuntimeError where that cannot be set.
        """
        cgroups.set_share(self._group, percent)

    def adopt(self, pid: int) -> None:
        """Counts a process outside as one of this machine's, for what they may use together."""
        cgroups.join_groups(self._group, pid)

    def spawn(
        self,
        server: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        network_only: bool = False,
        descriptors: Sequence[int] = (),
    ) -> Process:
        """Starts a server, with its log in the machine's folder.

        ``network_only``: it keeps the mounts of this machine outside. ``descriptors``: inherited.
        """
        (self.folder / "servers").mkdir(exist_ok=True)
        log = self.log(server)
        entries = "" if network_only else "".join(f"echo $$ > {h.entry}; " for h in cgroups.hierarchies())
        started = self._call(
            ["sh", "-c", entries + _SPAWN, "sh", str(log) if network_only else f"{self.inside}/{log.name}", *command],
            environment=environment,
            network_only=network_only,
            descriptors=descriptors,
        )
        inside = int(started.stdout)
        try:
            process = Process.of(host_pid(inside, self._namespace("pid")))
        except ProcessLookupError:
            process = None
        if process is None:
            raise RuntimeError(f"{server} ended at once: {log.read_text()[-2000:]}")
        process.write(self._server_record(server))
        return process

    def server(self, name: str) -> Process | None:
        """None if it was never started since the machine was."""
        return Process.read(self._server_record(name))

    def servers(self) -> dict[str, Process]:
        """All that were started, alive or not."""
        records = sorted(self.folder.glob("servers/*.json"))
        return {record.stem: process for record in records if (process := Process.read(record)) is not None}

    def log(self, server: str) -> Path:
        return self.folder / f"{server}.log"

    def call(self, *command: str, text: str = "") -> str:
        """Runs a command in the machine; returns its output. RuntimeError with its complaint if it fails."""
        return self._call(list(command), text=text).stdout

    def on_network(self, *command: str, text: str = "") -> str:
        """As ``call``, but only the network is the machine's."""
        return self._run(["nsenter", f"--net={self._namespace('net')}", *command], text=text).stdout

    @property
    def pid(self) -> int:
        """Of its first process, outside. RuntimeError if it is not running."""
        process = Process.read(self._record)
        if process is None or not process.alive:
            raise RuntimeError(f"machine {self.name} is not running")
        return process.pid

    def _namespace(self, kind: str) -> Path:
        return Path(f"/proc/{self.pid}/ns/{kind}")

    def _server_record(self, server: str) -> Path:
        return self.folder / "servers" / f"{server}.json"

    def _call(
        self,
        command: Sequence[str],
        *,
        text: str = "",
        environment: Mapping[str, str] | None = None,
        network_only: bool = False,
        descriptors: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[str]:
        kinds = ["--net", "--pid"] if network_only else ["--mount", "--net", "--pid", "--cgroup", "--uts", "--ipc"]
        variables = {"PATH": _PATH, "HOME": "/run", "LC_ALL": "C.UTF-8", **(environment or {})}
        return self._run(
            ["nsenter", f"--target={self.pid}", *kinds, "--wd=/", *command],
            text=text,
            environment=variables,
            descriptors=descriptors,
        )

    @staticmethod
    def _run(
        command: Sequence[str],
        *,
        text: str = "",
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            env=environment or dict(os.environ),
            pass_fds=descriptors,
        )
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
        return done


def wait_alive(process: Process, log: Path, condition: Callable[[], object], what: str) -> None:
    """Returns once ``condition()`` is true. RuntimeError with the end of the log if the process ends before."""

    def answered() -> bool:
        if not process.alive:
            raise RuntimeError(f"{what}: it ended: {log.read_text(errors='replace')[-3000:]}")
        return bool(condition())

    wait(answered, what)
