"""Which processes make up the platform on one machine, and where each listens."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from services.core.domain.errors import WeftError
from services.core.runtime.address import TLS, UNIX, TlsFiles
from services.core.runtime.durable_files import write_text
from services.core.runtime.home import SOCKETS, Home
from services.core.runtime.sockets import make_private_folder

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
    stop_rank: int = 0
    """Programs of one rank stop together, before those of the next rank: clients before the servers that they need."""


def _python(module: str, name: str, *listens: str, essential: bool = True, stop_rank: int = 0) -> Program:
    return Program(name, (sys.executable, "-m", module), listens, essential, stop_rank)


# In the order of start: servers before their clients.
PROGRAMS: Final = (
    _python("services.metrics", "metrics", "metrics", "metrics-ops", stop_rank=1),
    _python("services.node", "node", "node", "node-ops", stop_rank=1),
    _python("services.lcm", "lcm", "lcm", "lcm-ops"),
    _python("services.guardian", "guardian", "guardian", "guardian-ops"),
    _python("services.api", "api", "api", "api-grpc", "api-inner", "api-ops"),
    _python("services.lcm.worker", "worker", "worker-ops", essential=False),
)
ETCD: Final = Program("etcd", (), ("etcd", "etcd-peer"), stop_rank=2)
"""Started by its own launcher: its command line is new each time."""
SUPERVISOR: Final = "supervisor"
"""The name on the certificate of the supervisor and of `weft status`."""
SCRAPER: Final = "prometheus"
"""The name on the certificate for the operator's Prometheus."""
FOR_USERS: Final = ("api", "api-grpc")
"""Names of the addresses that are open to users. All others are inner: only the platform's own processes reach them."""
INNER: Final = tuple(name for program in (ETCD, *PROGRAMS) for name in program.listens if name not in FOR_USERS)
Transport = Literal["sockets", "tls"]


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
    import random  # noqa: PLC0415 - `weft status` loads this module, and opens no port

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


def inner_addresses(home: Home, transport: Transport, operations: Transport) -> dict[str, str]:
    """An address for each of ``INNER``: a socket, or a port of loopback for mutual TLS (the previous one if it is free,
    so that helpers that outlived the platform reach it again). ``operations``: of the addresses named ``*-ops``.
    """
    # etcd reads a socket's name as host:port, so it must have that form.
    names = {"etcd": "localhost:1", "etcd-peer": "localhost:2"}
    chosen: dict[str, str] = {}
    with ExitStack() as held:  # until all are chosen, so that no port is chosen twice
        for name in INNER:
            if (operations if name.endswith("-ops") else transport) == "sockets":
                chosen[name] = f"{UNIX}{home / SOCKETS / names.get(name, name)}"
                continue
            holder = held.enter_context(listen_lasting("127.0.0.1", first=last_port(home, name)))
            chosen[name] = f"{TLS}127.0.0.1:{holder.getsockname()[1]}"
    return chosen


def listen_for_users(
    home: Home, *, host: str, port: int, grpc_host: str = "127.0.0.1", grpc_port: int = 0
) -> dict[str, socket.socket]:
    """A listening socket for each of ``FOR_USERS``, at the previous port if it is free and no other is requested.

    Raises WeftError if a requested port is taken.
    """
    listeners: dict[str, socket.socket] = {}
    requests = (
        ("api", host, port, f"give another with `{home.command('up --port N')}`, or leave --port out"),
        ("api-grpc", grpc_host, grpc_port, "give another with WEFT_API_GRPC_PORT, or leave it out"),
    )
    with ExitStack() as on_failure:
        for name, at, wanted, advice in requests:
            if wanted and not is_free(at, wanted):
                raise WeftError(f"port {wanted} is taken; {advice}")
            listeners[name] = on_failure.enter_context(listen_lasting(at, first=wanted or last_port(home, name)))
        on_failure.pop_all()
    return listeners


def with_certificate(home: Home, service: str, given: TlsFiles | None) -> Home:
    """The installation as a process sees it that shows the certificate of ``service``; ``given`` replaces it."""
    return Home(home.root, given or TlsFiles.of(home / "tls", service))


def tls_variables(home: Home, service: str) -> dict[str, str]:
    """Settings for a service that shows the certificate that the installation's authority has made for it."""
    files = TlsFiles.of(home / "tls", service)
    return {
        "WEFT_TLS_AUTHORITY_FILE": str(files.authority),
        "WEFT_TLS_CERTIFICATE_FILE": str(files.certificate),
        "WEFT_TLS_KEY_FILE": str(files.key),
    }


def last_port(home: Home, name: str) -> int:
    """The port of the name's last address; 0 if it had none, or was a socket (etcd's are named ``localhost:1``)."""
    try:
        address = str(json.loads(home.addresses_file.read_text()).get(name, ""))
    except (OSError, ValueError):
        return 0
    port = address.rpartition(":")[2]
    return int(port) if port.isdigit() and not address.startswith(UNIX) else 0


def _version(home: Home) -> int:
    """The schema of the home; 0 if it has none or an incomplete one."""
    try:
        return int((home / "VERSION").read_text())
    except (FileNotFoundError, ValueError):
        return 0


def prepare(home: Home) -> None:
    """Creates the home and its folders. Raises WeftError for a newer schema or a folder that cannot be written.

    The folder of the objects becomes a store in a new home only: later an empty one is a volume that is not mounted.
    """
    try:
        home.root.mkdir(parents=True, exist_ok=True)
        version = _version(home)
        if version > VERSION:
            raise WeftError(f"{home.root} was written by a newer Weft (schema {version}); upgrade")
        for folder in ("run", "logs", "secrets", "broker", "objects", "metrics", "node", "cache", "etcd"):
            (home / folder).mkdir(exist_ok=True)
        for private in ("run", "logs", "secrets", "broker", "objects", "metrics", "etcd"):
            (home / private).chmod(0o700)
        make_private_folder(home / SOCKETS)
        from services.core.adapters.folder.objects import FolderObjectStore  # noqa: PLC0415 - `weft status` needs none

        if not (home / "VERSION").exists() or any((home / "objects").iterdir()):
            FolderObjectStore.make(home / "objects")
        if version < VERSION:  # last: a home without it is prepared as a new one
            write_text(home / "VERSION", f"{VERSION}\n")
        # Learners under their own uid pass through to their folder and their environment; they can list nothing.
        for shared in (home.root, home / "node", home / "cache"):
            shared.chmod(0o711 if os.geteuid() == 0 else 0o700)
    except PermissionError as error:
        raise WeftError(f"cannot write to {home.root}: {error.strerror}; choose a folder with WEFT_HOME") from error
    except OSError as error:
        raise WeftError(f"cannot prepare {home.root}: {error.strerror}") from error
