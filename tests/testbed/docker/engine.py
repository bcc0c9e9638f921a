"""A Docker engine of the test bed's own: Debian's, on a machine that has network, mounts and processes for itself.

Its images stay in the test bed's cache, so that a second build or test is quick. It ends with the process that started
it, and with it every container, bridge, firewall rule and mount. One runs at a time: another process waits for it.
Containers have no way out of the machine, and nothing is pulled.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.testbed.built import cache, need_debian
from tests.testbed.docker.base import PACKAGES, base_archive
from tests.testbed.kubernetes.init import FOLDER_INSIDE
from tests.testbed.kubernetes.machine import Machine, wait_alive

Say = Callable[[str], None]
_PACKAGES: Final = ("docker.io", "iptables")


class MachinesEngine:
    """The engine that the Docker client of this machine is set to. It pulls base images itself."""

    build_options: Final[tuple[str, ...]] = ()

    def docker(self, *arguments: str | Path) -> str:
        """As ``Engine.docker``."""
        command = ["docker", *map(str, arguments)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"docker {arguments[0]} failed ({done.returncode}):\n{done.stderr[-6000:]}")
        return done.stdout

    def import_base(self, name: str, say: Say) -> None:
        """No effect."""


class Engine:
    """A running engine. Containers and volumes are the caller's to remove; images are kept."""

    build_options: Final = ("--network=none",)

    def __init__(self, folder: Path, machine: Machine) -> None:
        self.folder, self.machine = folder, machine

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a client."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        # The classic builder builds on imported images; BuildKit would look for them in a registry.
        return kept | {"DOCKER_HOST": f"unix://{self.folder / 'docker.sock'}", "DOCKER_BUILDKIT": "0"}

    def docker(self, *arguments: str | Path, stdin: bytes | None = None) -> str:
        """Runs the client; returns its output. RuntimeError with its complaint if it fails."""
        return self.call(["docker", *map(str, arguments)], stdin=stdin)

    def call(
        self,
        command: Sequence[str],
        *,
        stdin: bytes | None = None,
        variables: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> str:
        """Runs a command on the engine's network, with the mounts of this machine, as ``docker``."""
        inside = ["nsenter", f"--net=/proc/{self.machine.pid}/ns/net", *command]
        done = subprocess.run(
            inside,
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env={**self.variables, **(variables or {})},
            cwd=folder,
        )
        if done.returncode:
            output = (done.stdout + done.stderr).decode(errors="replace")
            raise RuntimeError(f"{' '.join(command[:4])} failed ({done.returncode}):\n{output[-6000:]}")
        return done.stdout.decode(errors="replace")

    def has_image(self, name: str) -> bool:
        return bool(self.docker("image", "ls", "--quiet", name).strip())

    def import_base(self, name: str, say: Say, packages: Sequence[str] = PACKAGES) -> None:
        """Makes a minimal Debian with these packages under this name, unless there is an image of the name."""
        if not self.has_image(name):
            with base_archive(say, packages).open("rb") as archive:
                self.docker("import", "-", name, stdin=archive.read())


@contextmanager
def engine(say: Say) -> Generator[Engine]:
    """Starts the engine, and ends it with all that it runs. Needs root. RuntimeError if it cannot start."""
    if os.geteuid() != 0:
        raise RuntimeError("a Docker engine of its own needs root: run this as root, or with sudo")
    need_debian(("dockerd", "iptables"), _PACKAGES, say)
    folder = cache() / "docker"
    (folder / "data").mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build or test uses the Docker engine; waiting for its end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        machine = Machine(folder, "engine")
        machine.kill()  # of a process that was killed: its control groups
        try:
            machine.start()
            machine.on_network("ip", "link", "set", "lo", "up")
            _start_dockerd(folder, machine)
            yield Engine(folder, machine)
        finally:
            machine.kill()
            (folder / "docker.sock").unlink(missing_ok=True)


def _start_dockerd(folder: Path, machine: Machine) -> None:
    (folder / "dockerd.json").write_text(json.dumps({"deprecated-key-path": f"{FOLDER_INSIDE}/key.json"}))
    process = machine.spawn(
        "dockerd",
        [
            "dockerd",
            f"--config-file={FOLDER_INSIDE}/dockerd.json",
            f"--data-root={FOLDER_INSIDE}/data",
            "--exec-root=/run/docker",
            f"--host=unix://{FOLDER_INSIDE}/docker.sock",
            "--pidfile=/run/docker.pid",
            "--storage-driver=overlay2",
            "--log-level=warn",
        ],
    )
    running = Engine(folder, machine)

    def serves() -> bool:
        try:
            running.docker("version", "--format", "{{.Server.Version}}")
        except RuntimeError:
            return False
        return True

    wait_alive(process, machine.log("dockerd"), serves, "the Docker engine serves")
