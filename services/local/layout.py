"""Which processes make up the platform on one machine, and where each listens."""

from __future__ import annotations

import json
import os
import random
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.core.domain.errors import WeftError
from services.core.runtime.durable_files import write_text
from services.core.runtime.home import Home

VERSION: Final = 1
"""Schema of WEFT_HOME."""
_PORTS: Final = range(10_240, 20_000)
"""Below those of learners (WEFT_NODE_PORT_FIRST)."""
_PORT_TRIES: Final = 100


@dataclass(frozen=True, slots=True)
class Program:
    """One process that the supervisor keeps running."""

    name: str
    argv: tuple[str, ...]
    listens: tuple[str, ...] = ()
    """Names of its addresses."""
    essential: bool = True
    """`weft up` waits until it is ready. False for the broker's worker: without it hints are lost, jobs are not."""


def _python(module: str, name: str, *listens: str, essential: bool = True) -> Program:
    return Program(name, (sys.executable, "-m", module), listens, essential)


# In the order of start: servers before their clients. They stop in reverse order.
PROGRAMS: Final = (
    _python("services.metrics", "metrics", "metrics", "metrics-ops"),
    _python("services.node", "node", "node", "node-ops"),
    _python("services.lcm", "lcm", "lcm", "lcm-ops"),
    _python("services.guardian", "guardian", "guardian", "guardian-ops"),
    _python("services.api", "api", "api", "api-grpc", "api-ops"),
    _python("services.lcm.worker", "worker", "worker-ops", essential=False),
)
ETCD: Final = Program("etcd", (), ("etcd", "etcd-peer"))
"""Started by its own launcher: its command line is new each time."""
ADDRESSES: Final = (*ETCD.listens, *(name for program in PROGRAMS for name in program.listens))


def is_free(host: str, port: int) -> bool:
    """True if the port can be listened on now."""
    try:
        _listen(host, port).close()
    except OSError:
        return False
    return True


def listen_lasting(host: str, *, first: int = 0) -> socket.socket:
    """Listens on port ``first`` if it is free, else on a free port outside the kernel's range for outgoing connections.

    The platform keeps its addresses while it lives. A port from the kernel's range could be given to an outgoing
    connection while its service restarts, and the service could not listen on it again.
    """
    low, high = _ephemeral()
    drawn = random.SystemRandom().choices(_PORTS, k=_PORT_TRIES)
    for port in [first, *(port for port in drawn if not low <= port <= high)]:
        if port:
            with suppress(OSError):
                return _listen(host, port)
    return _listen(host, 0)


def _listen(host: str, port: int) -> socket.socket:
    # Binding alone does not reserve the port: with SO_REUSEADDR two sockets may be bound to it until one listens.
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def _ephemeral() -> tuple[int, int]:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return 32_768, 60_999
    return int(low), int(high)


def choose_addresses(
    home: Home, *, host: str, port: int, grpc_host: str = "127.0.0.1", grpc_port: int = 0
) -> dict[str, str]:
    """A host:port for each name of ``ADDRESSES``: the previous one if it is still free, so that helpers that outlived
    the platform reach it again. Raises WeftError if a requested port is taken.
    """
    try:
        last = json.loads(home.addresses_file.read_text())
    except (OSError, ValueError):
        last = {}
    if port and not is_free(host, port):
        raise WeftError(f"port {port} is taken; give another with `weft up --port N`, or leave --port out")
    if grpc_port and not is_free(grpc_host, grpc_port):
        raise WeftError(f"port {grpc_port} is taken; give another with WEFT_API_GRPC_PORT, or leave it out")
    given = {"api": (host, port), "api-grpc": (grpc_host, grpc_port)}
    chosen: dict[str, str] = {}
    held: list[socket.socket] = []
    for name in ADDRESSES:
        at, port_given = given.get(name, ("127.0.0.1", 0))
        wanted = port_given or int(str(last.get(name, ":0")).rpartition(":")[2])
        holder = listen_lasting(at, first=wanted)
        held.append(holder)  # held until all are chosen, so that no port is chosen twice
        chosen[name] = f"{at}:{holder.getsockname()[1]}"
    for holder in held:
        holder.close()
    return chosen


def _version(home: Home) -> int:
    """The schema of the home; 0 if it has none or an incomplete one."""
    try:
        return int((home / "VERSION").read_text())
    except (FileNotFoundError, ValueError):
        return 0


def prepare(home: Home) -> None:
    """Creates the home and its folders. Raises WeftError for a newer schema or a folder that cannot be written."""
    try:
        home.root.mkdir(parents=True, exist_ok=True)
        version = _version(home)
        if version > VERSION:
            raise WeftError(f"{home.root} was written by a newer Weft (schema {version}); upgrade")
        if version < VERSION:
            write_text(home / "VERSION", f"{VERSION}\n")
        for folder in ("run", "logs", "secrets", "broker", "objects", "metrics", "node", "cache", "etcd"):
            (home / folder).mkdir(exist_ok=True)
        for private in ("run", "logs", "secrets", "broker", "objects", "metrics", "etcd"):
            (home / private).chmod(0o700)
        # Learners under their own uid must reach their folder and the environments below it.
        for shared in (home.root, home / "node", home / "cache"):
            shared.chmod(0o755 if os.geteuid() == 0 else 0o700)
    except PermissionError as error:
        raise WeftError(f"cannot write to {home.root}: {error.strerror}; choose a folder with WEFT_HOME") from error
    except OSError as error:
        raise WeftError(f"cannot prepare {home.root}: {error.strerror}") from error
