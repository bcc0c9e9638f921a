"""Identities on the running platform: each service has its own key, and is refused what the table does not allow."""

from __future__ import annotations

import json
import stat
from collections.abc import Generator
from pathlib import Path

import pytest

from services.core.adapters.identity import Identity
from services.core.adapters.rpc.client import connect, translating
from services.core.bootstrap import wiring
from services.core.domain.errors import PermissionDenied, Unauthenticated
from services.core.domain.service_access import SERVICES
from services.core.gen.weft.v1 import node_pb2, node_pb2_grpc
from services.core.runtime.address import Address
from services.core.runtime.operations_client import read_operations
from services.core.runtime.settings import Settings
from tests.testbed.platform import Platform, platform
from tests.waiting import HANG_S, eventually
from weft import Client
from weft.http_exchange import Answer

SPEC = {"name": "n", "command": "true", "resources": {"cpus": 0.5, "memory": "64MiB"}}


@pytest.fixture(scope="module")
def running() -> Generator[Platform]:
    with platform({"WEFT_NODE_CPUS": "2"}) as running:
        eventually(running.all_ready)
        yield running


async def capacity(address: Address, caller: Identity, audience: str = "node") -> None:
    """Calls the node agent."""
    channel = connect(address, caller.credential(audience))
    try:
        with translating():
            await node_pb2_grpc.NodeStub(channel).Capacity(node_pb2.CapacityRequest(), timeout=HANG_S)
    finally:
        await channel.close()


def private_keys(home: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (home / "secrets").iterdir() if path.name.startswith("=identity-")}


def test_each_service_has_a_private_key_of_its_own_that_no_other_user_can_read(running: Platform) -> None:
    keys = private_keys(running.home.root)
    assert set(keys) == {f"=identity-{service}" for service in SERVICES}
    assert len(set(keys.values())) == len(SERVICES)
    for path in (running.home / "secrets").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert not (running.home / "secrets" / "=service").exists()


async def test_service_without_the_right_is_refused_and_counted(running: Platform) -> None:
    settings, address = Settings(home=running.home.root), running.home.address("node")
    await capacity(address, await wiring.identity(settings, "guardian"))
    before = running.counter("node", "weft_calls_refused_total")
    with pytest.raises(PermissionDenied, match="the service worker may not call"):
        await capacity(address, await wiring.identity(settings, "worker"))
    with pytest.raises(Unauthenticated, match="not for node"):
        await capacity(address, await wiring.identity(settings, "guardian"), audience="metrics")
    assert running.counter("node", "weft_calls_refused_total") == before + 2


def test_service_with_a_new_key_is_known_to_the_others_without_their_restart(running: Platform) -> None:
    file = running.home / "secrets" / "=identity-guardian"
    old = file.read_bytes()
    others = {name: running.process(name) for name in ("api", "lcm", "metrics", "node")}
    with Client(running.url, running.key) as client:
        file.unlink()
        killed = running.kill("guardian")
        assert eventually(lambda: running.again("guardian", killed))
        job = client.jobs.submit(SPEC).wait(HANG_S)
        assert job.status == "COMPLETED"
    assert file.read_bytes() != old
    assert {name: running.process(name) for name in others} == others


def read(running: Platform, service: str, path: str, authorization: str = "") -> Answer:
    headers = {"Authorization": authorization} if authorization else {}
    return read_operations(running.home.address(f"{service}-ops"), path, timeout_s=HANG_S, headers=headers)


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_operations_address_shows_health_without_a_key_and_nothing_else(running: Platform, service: str) -> None:
    assert (read(running, service, "/healthz").status, read(running, service, "/healthz").body) == (200, b"ok\n")
    # A service whose store was slow for a moment is ready again.
    eventually(lambda: json.loads(read(running, service, "/readyz").body) == {"ready": True})
    for authorization in (
        "",
        "Bearer",
        "Bearer x",
        "Bearer weft_a_b",
        f"Basic {running.key}",
        f"Bearer {running.key}x",
    ):
        refused = read(running, service, "/metrics", authorization)
        assert (refused.status, b"weft_" in refused.body.replace(b"weft_...", b"")) == (401, False)
    assert read(running, service, "/metrics", f"Bearer {running.key}").status == 200
    to_operator = {"ready": True, "failing": {}}
    eventually(lambda: json.loads(read(running, service, "/readyz", f"Bearer {running.key}").body) == to_operator)


async def test_operations_address_is_read_with_the_token_of_a_service_that_may(running: Platform) -> None:
    settings = Settings(home=running.home.root)
    api, node = await wiring.identity(settings, "api"), await wiring.identity(settings, "node")
    answers = {
        "may": read(running, "lcm", "/metrics", api.credential("lcm").authorization()),
        "for another service": read(running, "lcm", "/metrics", api.credential("node").authorization()),
        "may not": read(running, "lcm", "/metrics", node.credential("lcm").authorization()),
    }
    assert {name: answer.status for name, answer in answers.items()} == {
        "may": 200,
        "for another service": 401,
        "may not": 403,
    }
