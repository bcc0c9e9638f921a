"""Which processes make up the platform on one machine, and where each listens."""

from __future__ import annotations

import json
import os
import random
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.core.domain.errors import WeftError
from services.core.home import Home

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
    """Whether `weft up` waits for it: a broker's worker only makes things faster."""


def _python(module: str, name: str, *listens: str, essential: bool = True) -> Program:
    return Program(name, (sys.executable, "-m", module), listens, essential)


# In the order of start, and reversed the order of stop: whoever is asked starts before who asks.
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
    """Whether the port could be listened on now."""
    try:
        _listen(host, port).close()
    except OSError:
        return False
    return True


def listen_lasting(host: str, *, first: int = 0) -> socket.socket:
    """Listens at ``first`` if that is free; else at a free port that no outgoing connection of this machine will ever
    be given.

    Addresses are kept for as long as the platform lives: while a service is started again, a port of the kernel's own
    range could be somebody's connection, and the service could not come back.
    """
    low, high = _ephemeral()
    drawn = random.SystemRandom().choices(_PORTS, k=_PORT_TRIES)
    for port in [first, *(port for port in drawn if not low <= port <= high)]:
        if port:
            with suppress(OSError):
                return _listen(host, port)
    return _listen(host, 0)


def _listen(host: str, port: int) -> socket.socket:
    # Bound alone, it would hold nothing: two sockets of SO_REUSEADDR may be bound to one port until one listens.
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
    """Addresses of the last time where they are still free, so that helpers still at work find their peers again."""
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
        held.append(holder)  # until all are chosen, so that none is chosen twice
        chosen[name] = f"{at}:{holder.getsockname()[1]}"
    for holder in held:
        holder.close()
    return chosen


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(value, indent=1))


def write_text(path: Path, text: str) -> None:
    """Atomically."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def _version(home: Home) -> int:
    """Schema of the home; 0 where it has none yet, or none that was written whole."""
    try:
        return int((home / "VERSION").read_text())
    except (FileNotFoundError, ValueError):
        return 0


def prepare(home: Home) -> None:
    """Makes the folder, or refuses one of a newer version. WeftError says what to do."""
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
        for passed in (home.root, home / "node", home / "cache"):
            passed.chmod(0o755 if os.geteuid() == 0 else 0o700)
    except PermissionError as error:
        raise WeftError(f"cannot write to {home.root}: {error.strerror}; choose a folder with WEFT_HOME") from error
    except OSError as error:
        raise WeftError(f"cannot prepare {home.root}: {error.strerror}") from error
