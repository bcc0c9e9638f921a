"""Nothing of the platform but the api answers a learner, and no program can take the place of a service."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.core.runtime.home import SOCKETS
from services.core.runtime.processes import ProcessIdentity, send_signal
from services.local.layout import ETCD, INNER, PROGRAMS
from tests.promises import Promise
from tests.testbed import squatter
from tests.testbed.listening import abstract_sockets, listening_ports
from tests.testbed.platform import Platform, platform
from tests.waiting import HANG_S, eventually
from weft import Client

SERVICES = [program.name for program in (ETCD, *PROGRAMS)]
SMALL = {"cpus": 0.5, "memory": "64MiB"}
_SQUATTERS_UID = 65534
_READY_EACH = 10
"""Rounds of kills after which all services are ready again. In the others some die while they start."""
SCAN = r"""
import json, os, socket, ssl
answering = []
for port in range(1, 65536):
    with socket.socket() as probe:
        probe.settimeout(2)
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            answering.append(port)
print(json.dumps({"ports": answering}))
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.maximum_version = ssl.TLSVersion.TLSv1_2  # in 1.3 a client takes the handshake for done before it is refused
refusing = []
for port in map(int, os.environ["INNER_PORTS"].split()):
    with socket.create_connection(("127.0.0.1", port), 10) as raw:
        try:
            context.wrap_socket(raw).close()
        except OSError:
            refusing.append(port)
print(json.dumps({"refusing": refusing}))
for folder in (os.environ["SOCKETS"], os.environ["SOCKETS"].removesuffix("/s")):
    try:
        print(json.dumps({"entered": os.listdir(folder)}))
    except OSError as error:
        print(json.dumps({"refused": error.strerror}))
for name in ("lcm", "metrics", "localhost:1"):
    with socket.socket(socket.AF_UNIX) as probe:
        print(json.dumps({"connected": probe.connect_ex(os.environ["SOCKETS"] + "/" + name) == 0}))
"""


@pytest.fixture(scope="module", params=["sockets", "tls"])
def weft_up(request: pytest.FixtureRequest) -> Iterator[Platform]:
    # A service that is killed a thousand times starts at once each time.
    with platform({"WEFT_TRANSPORT": request.param, "WEFT_RESTART_DELAY_MAX_S": "0.2"}) as running:
        yield running


def inner_ports(weft: Platform) -> set[int]:
    """None where they are sockets."""
    addresses = [weft.home.address(name) for name in INNER]
    return {address.host_port[1] for address in addresses if address.is_tls}


def user_ports(weft: Platform) -> list[int]:
    return [weft.home.address(name).host_port[1] for name in ("api", "api-grpc")]


@pytest.mark.promise("R19")
def test_the_api_s_two_ports_are_the_only_ones_of_the_platform_that_answer_a_learner_without_a_certificate(
    weft_up: Platform, promise: Promise
) -> None:
    of_platform: set[int] = set()
    eventually(weft_up.all_ready)  # all listen
    for name in ("supervisor", *SERVICES):
        pid = weft_up.process(name).pid
        of_platform |= listening_ports(pid)
        assert abstract_sockets(pid) == set(), name
    command = f"python3 - <<'END'\n{SCAN}\nEND"
    with Client(weft_up.url, weft_up.key) as client:
        inner = sorted(of_platform - set(user_ports(weft_up)))
        environment = {"SOCKETS": str(weft_up.home / SOCKETS), "INNER_PORTS": " ".join(map(str, inner))}
        job = client.jobs.submit({"name": "scan", "command": command, "resources": SMALL, "env": environment})
        assert job.wait(HANG_S).status == "COMPLETED"
        lines = [json.loads(line.text) for line in job.logs()]
    answering = set(lines[0]["ports"])
    promise.saw(
        f"loopback ports that answer a learner: {len(answering)}, of them the platform's: {sorted(of_platform)}"
    )
    assert set(inner) == inner_ports(weft_up)
    assert answering & of_platform == of_platform
    assert lines[1] == {"refusing": inner}, "a handshake without a certificate fails"
    assert [line for line in lines[2:] if "entered" in line or line.get("connected")] == []
    assert len(lines) == 7


def test_requests_sent_while_the_api_is_away_are_answered_by_the_next_api(weft_up: Platform) -> None:
    """Its ports belong to the supervisor: nobody can take them, and connections wait in the backlog."""
    rest, rpc = user_ports(weft_up)
    supervisor = weft_up.process("supervisor")
    assert send_signal(supervisor, signal.SIGSTOP)
    try:
        killed = weft_up.kill("api")
        assert squatter.listen_on_port(rest) is None
        assert squatter.listen_on_port(rpc) is None
        with (
            closing(http.client.HTTPConnection("127.0.0.1", rest, timeout=HANG_S)) as connection,
            ThreadPoolExecutor(1) as thread,
        ):
            connection.request("GET", "/v1/version")
            checked = thread.submit(health, rpc)
            assert send_signal(supervisor, signal.SIGCONT)
            with connection.getresponse() as response:
                assert response.status == 200
            assert checked.result() == health_pb2.HealthCheckResponse.SERVING
    finally:
        send_signal(supervisor, signal.SIGCONT)
    eventually(lambda: weft_up.again("api", killed))  # it may answer before the supervisor has recorded it


def health(port: int) -> int:
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.enable_http_proxy", 0),)) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="weft.v1.Jobs")
        reply: health_pb2.HealthCheckResponse = stub.Check(request, timeout=HANG_S, wait_for_ready=True)
        return int(reply.status)


def test_a_new_supervisor_holds_the_ports_of_an_api_that_it_adopts(weft_up: Platform) -> None:
    before = weft_up.process("api"), user_ports(weft_up)
    weft_up.kill("supervisor")
    weft_up.up()
    assert (weft_up.process("api"), user_ports(weft_up)) == before
    assert set(user_ports(weft_up)) <= listening_ports(weft_up.process("supervisor").pid)
    test_requests_sent_while_the_api_is_away_are_answered_by_the_next_api(weft_up)


@pytest.fixture
def hostile(weft_up: Platform, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """A squatter at the addresses of the platform. The function ends it and returns its output."""
    output = tmp_path / "squatter"
    root = os.geteuid() == 0
    ports = [str(port) for port in (*user_ports(weft_up), *inner_ports(weft_up))]
    source = Path(squatter.__file__).read_text()
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable if not root else "/usr/bin/python3", "-c", source, str(weft_up.home / SOCKETS), *ports],
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={},
            user=_SQUATTERS_UID if root else None,
            group=_SQUATTERS_UID if root else None,
            extra_groups=[] if root else None,
        )

    def end() -> str:
        process.kill()
        process.wait()
        return output.read_text()

    try:
        eventually(output.read_text)
        yield end
    finally:
        end()


def running(weft: Platform, service: str) -> ProcessIdentity:
    process = eventually(partial(weft.running, service))
    assert process is not None
    return process


@pytest.mark.skipif(os.geteuid() != 0, reason="without root a program outside a sandbox has the platform's own user")
@pytest.mark.promise("R19")
def test_a_squatter_gets_no_address_and_no_byte_while_services_restart(
    weft_up: Platform, hostile: Callable[[], str], promise: Promise
) -> None:
    rounds, users = promise.n(short=1, long=1000), user_ports(weft_up)
    for number in range(rounds):
        # Half of them at a time: the others go on calling those that restart.
        for services in (SERVICES[::2], SERVICES[1::2]):
            if number % _READY_EACH == 0:
                eventually(weft_up.all_ready)
            # On TLS a service ends by itself while the squatter has its port.
            processes = {service: running(weft_up, service) for service in services}
            for process in processes.values():
                send_signal(process, signal.SIGKILL)
            for service, process in processes.items():
                eventually(partial(weft_up.again, service, process))
    output = hostile()
    eventually(weft_up.all_ready)
    if not inner_ports(weft_up):
        assert output == "ready\n"
    # A port for TLS may be taken while its service restarts: then callers demand a certificate and send nothing else.
    assert "Bearer" not in output
    assert "authorization" not in output
    assert [line for line in output.splitlines() if any(line.startswith(f"port {port} ") for port in users)] == []
    with Client(weft_up.url, weft_up.key) as client:
        job = client.jobs.submit({"name": "j", "command": "true", "resources": SMALL})
        assert job.wait(HANG_S).status == "COMPLETED"
    promise.kept(rounds * len(SERVICES), "restarts of services with a squatter at their addresses, 0 bytes seen")


def test_a_squatter_at_a_free_address_is_seen(tmp_path: Path) -> None:
    """The program of the test above works: it would have reported an address that it got."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert squatter.listen_on_port(port) is None
    listener = squatter.listen_on_port(port)
    assert listener is not None
    listener.close()
    (tmp_path / "lcm").touch()
    replaced = squatter.listen_at_path(tmp_path / "lcm")
    assert replaced is not None
    with replaced, socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(tmp_path / "lcm"))
        caller.sendall(b"Bearer secret")
        with replaced.accept()[0] as accepted:
            assert accepted.recv(100) == b"Bearer secret"
