"""Attacks on what listens on the machine: etcd, the services' own calls, their operations, the ports of restarts."""

from __future__ import annotations

import base64
import errno
import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Final

from tests.hostile.attacks.ground import breach, folder, intel, must_fail, say
from tests.hostile.attacks.grpc_call import call

_TIMEOUT_S: Final = 2.0
_CALLS: Final = (
    ("node", "/weft.v1.Node/Jobs"),
    ("node", "/weft.v1.Node/Observe"),
    ("node", "/weft.v1.Node/Capacity"),
    ("metrics", "/weft.v1.Telemetry/Lines"),
    ("metrics", "/weft.v1.Intake/Hello"),
    ("metrics", "/weft.v1.Intake/Sign"),
    ("lcm", "/weft.v1.Queue/ClusterUsage"),
    ("lcm", "/weft.v1.Control/Nudge"),
    ("guardian", "/weft.v1.Control/Nudge"),
    ("node", "/weft.v1.Operations/Quarantine"),
    ("api-inner", "/weft.v1.DataUrls/SignInput"),
    ("api-inner", "/weft.v1.PullSecrets/DockerConfig"),
)


def connect(address: str) -> socket.socket:
    """Connects to ``host:port``, ``tls:host:port``, ``unix:path`` or a path."""
    if address.startswith("tls:"):
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        return context.wrap_socket(connect(address.removeprefix("tls:")))
    if address.startswith(("unix:", "/")):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_TIMEOUT_S)
        try:
            connection.connect(address.removeprefix("unix://").removeprefix("unix:"))
        except OSError:
            connection.close()
            raise
        return connection
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)


class _Http(http.client.HTTPConnection):
    def __init__(self, address: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._address = address

    def connect(self) -> None:
        self.sock = connect(self._address)


def _etcd_addresses() -> Iterator[str]:
    """The etcd's own addresses, and every other that might be one."""
    known = intel()
    yield from (address for name, address in known["addresses"].items() if name.startswith("etcd"))
    yield from (f"127.0.0.1:{port}" for port in known["ports"])
    yield from known["sockets"]


def _etcd(path: str, **fields: object) -> None:
    """Sends a request of etcd's JSON gateway to everything that might be an etcd."""
    body = {name: _text(value) for name, value in fields.items()}
    for address in dict.fromkeys(_etcd_addresses()):
        with suppress(OSError, http.client.HTTPException), closing(_Http(address)) as connection:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            if answer.status == 200 and b'"header"' in content:
                breach(f"etcd at {address} answers {path}: {content[:300]!r}")
                for entry in json.loads(content).get("kvs", ()):
                    say(f"{base64.b64decode(entry['key'])!r} {base64.b64decode(entry.get('value', ''))!r}")


def _text(value: object) -> object:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def etcd_is_read() -> None:
    """Reads every key of etcd."""
    _etcd("/v3/kv/range", key=b"\0", range_end=b"\0", limit=100)


def etcd_exit_is_forged() -> None:
    """Writes that another tenant's learner has ended with code 9."""
    victim = intel()["guard"]
    document = {"schema": 1, "time": 1, "code": 9, "signal": None, "stop_cause": "", "lost": False, "oom": False}
    for name in ("exit", "status", "learners/worker-0/exit", "learners/worker-0", "verdict"):
        for prefix in ("/weft/jobs", "/jobs"):
            _etcd("/v3/kv/put", key=f"{prefix}/{victim['job']}/{name}".encode(), value=json.dumps(document).encode())
            _etcd("/v3/kv/put", key=f"{prefix}/{victim['job']}/1/{name}".encode(), value=json.dumps(document).encode())


def etcd_keys_are_deleted() -> None:
    """Deletes every key of etcd."""
    _etcd("/v3/kv/deleterange", key=b"/weft/jobs/", range_end=b"/weft/jobs0")


def etcd_value_is_no_text() -> None:
    """Writes keys and values that are no UTF-8 beside those of jobs."""
    victim = intel()["guard"]["job"].encode()
    for key in (b"/weft/jobs/" + victim + b"/1/\xff\xfe", b"/weft/jobs/\xff", b"/weft/\xff", b"/weft/services/\xff"):
        _etcd("/v3/kv/put", key=key, value=b"\xff\x00\xfe")


def etcd_is_filled() -> None:
    """Writes forty values of a mebibyte, and leases that never end."""
    for number in range(40):
        _etcd("/v3/kv/put", key=f"/weft/jobs/j{number}/x".encode(), value=b"x" * 2**20)
    _etcd("/v3/lease/grant", TTL="9000000", ID="77")


def _inner_calls(credentials: list[str]) -> None:
    known = intel()
    targets = dict(known["addresses"])
    if "api-grpc" in targets:
        with closing(connect(targets["api-grpc"])) as connection:
            if call(connection, "/weft.v1.Keys/WhoAmI", f"Bearer {known['key']}") is None:
                breach("the call that must succeed fails: the attack is wrong")
    else:
        connect(known["front"]).close()  # an attack that reaches nothing would be wrong
    for name, method in _CALLS:
        for address in {targets.get(name, ""), *known["sockets"]} - {""}:
            for header in credentials:
                try:
                    with closing(connect(address)) as connection:
                        answer = call(connection, method, header)
                except (OSError, ValueError) as error:
                    say(f"refused: {method} at {address}: {error}")
                else:
                    if answer is None:
                        say(f"refused: {method} at {address}")
                    else:
                        breach(f"{method} at {address} answers with {answer[:300]!r}")


def services_are_called_without_credentials() -> None:
    """Calls the node agent, the metrics service, the lcm, the guardian and the api without any credentials."""
    _inner_calls(["", "Bearer "])


def services_are_called_with_forged_tokens() -> None:
    """Calls them with tokens: unsigned, signed with an empty key, cut off, and the attacker's own API key."""

    def part(document: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")

    claims = {"sub": "lcm", "service": "lcm", "aud": "node", "exp": 2**40, "iat": 0, "job": intel()["guard"]["job"]}
    forged = [f"{part({'alg': name, 'typ': 'JWT'})}.{part(claims)}." for name in ("none", "None", "HS256", "EdDSA")]
    forged += [f"{part(claims)}.{'A' * 43}", "." * 20, "A" * 43, "\x00", "A" * 20_000, intel()["key"]]
    _inner_calls([f"Bearer {token}" for token in forged])


def operations_are_read() -> None:
    """Reads metrics, settings and debug pages of every operations address."""
    for name, address in intel()["addresses"].items():
        if not name.endswith("-ops"):
            continue
        for path in ("/metrics", "/debug", "/config", "/env", "/quarantine", "/../secrets/service", "/pprof"):
            try:
                with closing(_Http(address)) as connection:
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    content = answer.read(300)
            except (OSError, http.client.HTTPException) as error:
                say(f"refused: {path} of {name}: {error}")
            else:
                if answer.status == 200:
                    breach(f"{name} shows {path} to a learner: {content[:80]!r}")


def loopback_is_scanned() -> None:
    """Connects to every port of loopback and to every socket that it finds, and lists what answers."""
    known = intel()
    answering: list[int] = []
    for port in range(1, 65_536):
        with socket.socket() as connection:
            connection.settimeout(_TIMEOUT_S)
            # A socket whose own port happens to be this one reaches itself.
            if connection.connect_ex(("127.0.0.1", port)) == 0 and connection.getsockname()[1] != port:
                answering.append(port)
    say(f"ports that answer: {answering}")
    for port in answering if known["own_network"] else set(answering) & set(known["ports"]):
        if port not in known["open_ports"]:
            breach(f"port {port} of the platform answers a learner ({known['ports_of'].get(str(port), '?')})")
    for path in known["sockets"]:
        must_fail(f"a connection to the socket {path}", lambda path=path: connect(path).close())  # type: ignore[misc]


def ports_are_squatted_on_during_restarts() -> None:
    """Binds the ports and socket paths of services that restart meanwhile, and reads what their clients send."""
    known = intel()
    wanted = [address for name, address in known["addresses"].items() if name != "api-grpc"]
    (folder("JOB_STATE_DIR") / "squatting").touch()
    held: dict[str, socket.socket] = {}
    deadline = time.monotonic() + 30
    while not (folder("JOB_STATE_DIR") / "restarted").exists() and time.monotonic() < deadline:
        for address in wanted:
            if address not in held and (listener := _take(address)) is not None:
                held[address] = listener
        for address, listener in held.items():
            _overhear(address, listener)
    say(f"was bound: {sorted(held)}")


def _take(address: str) -> socket.socket | None:
    if address.startswith(("unix:", "/")):
        path = address.removeprefix("unix://").removeprefix("unix:")
        listener = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            os.unlink(path)
            breach(f"the socket {path} could be removed")
        place: object = path
    else:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        host, _, port = address.rpartition(":")
        place = (host, int(port))
    try:
        listener.bind(place)  # type: ignore[arg-type]
        listener.listen(64)
    except OSError as error:
        listener.close()
        if error.errno not in {errno.EADDRINUSE, errno.EACCES, errno.ENOENT, errno.EPERM, errno.EROFS}:
            raise
        return None
    listener.setblocking(False)
    return listener


def _overhear(address: str, listener: socket.socket) -> None:
    with suppress(BlockingIOError):
        connection, _ = listener.accept()
        with closing(connection):
            connection.settimeout(0.3)
            received = b""
            # A gRPC client sends its request after the server's settings.
            with suppress(OSError):
                connection.sendall(bytes.fromhex("000000040000000000"))
                while chunk := connection.recv(65_536):
                    received += chunk
            if received:
                breach(f"a client spoke to the squatter at {address}: {received[:2_000]!r}")


def sockets_are_planted() -> None:
    """Makes a socket, a folder and a link where the platform keeps its own sockets and addresses."""
    run = f"{intel()['home']}/run"
    for name in ("addresses.json", "node.sock", "metrics.sock", "etcd.sock", "hostile.sock"):
        must_fail(f"writing {run}/{name}", lambda name=name: open(f"{run}/{name}", "a"))  # type: ignore[misc]
    must_fail(f"a link in {run}", lambda: os.symlink("/etc/passwd", f"{run}/hostile"))
    must_fail(f"renaming {run}", lambda: os.rename(run, f"{run}-2"))
