"""The port of a gang is its own: it is held until its learner starts, and a learner that takes another's is ended."""

from __future__ import annotations

import json
import socket
from collections.abc import Generator
from pathlib import Path

import pytest

from services.core.adapters.local.cluster import LocalCluster
from services.core.runtime.home import Home
from services.core.runtime.socket_owners import Listener, listeners
from services.node.port_watch import ports_of_platform
from tests.testbed.gangs import await_exit, learner, start, teardown
from tests.testbed.isolations import VARIANTS, Variant
from tests.testbed.node import NodeProcess, plan
from tests.testbed.server import free_port
from tests.waiting import until

LISTEN = "python3 -c 'import socket, time; held = socket.create_server((\"127.0.0.1\", {port})); time.sleep(1000)'"
FOREVER = "exec sleep 1000"


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: variant.name)
def node(request: pytest.FixtureRequest) -> Generator[NodeProcess]:
    variant: Variant = request.param
    with variant.node() as running:
        yield running


def can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


async def test_port_of_a_gang_cannot_be_taken_before_its_learner_starts_and_the_learner_can_use_it(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    gang = plan([LISTEN.format(port="'\"$MASTER_PORT\"'"), FOREVER], distribution="torchrun")
    await cluster.do("reserve", gang)
    port = node.read(gang, "learner.json")["ports"]["worker-0"]
    assert can_bind(port)
    await cluster.do("learners", gang)
    await until(lambda: not can_bind(port))
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass
    await cluster.do("activate", gang)
    uid = node.read(gang, "learner.json")["uid"]
    await until(lambda: Listener(port, uid) in listeners())
    assert (await learner(cluster, gang)).state == "running"
    await teardown(cluster, gang)
    assert can_bind(port)


async def test_learner_that_listens_on_the_port_of_another_gang_is_ended_with_the_reason(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    if node.home.root.stat().st_uid != 0:
        return  # without root, all learners have one user
    victim = plan([FOREVER, FOREVER], distribution="torchrun")
    await start(cluster, victim)
    port = node.read(victim, "learner.json")["ports"]["worker-0"]
    squatter = plan([f"until {LISTEN.format(port=port)}; do sleep 0.1; done"], tenant="other")
    await start(cluster, squatter)
    end = await await_exit(cluster, squatter)
    assert end.port_taken == f"it listens on port {port}, which the platform gave to another job"
    assert (await learner(cluster, victim)).state == "running"
    for gang in (victim, squatter):
        await teardown(cluster, gang)


async def test_learner_that_listens_on_a_port_of_the_platform_is_ended_with_the_reason(
    node: NodeProcess, cluster: LocalCluster
) -> None:
    """A service that has just ended, and shall start again there."""
    if node.home.root.stat().st_uid != 0:
        return  # without root, all learners have the platform's user
    addresses, port = node.home.addresses(), free_port()
    node.home.addresses_file.write_text(json.dumps(addresses | {"lcm": f"tls:127.0.0.1:{port}"}))
    try:
        squatter = plan([LISTEN.format(port=port)])
        await start(cluster, squatter)
        end = await await_exit(cluster, squatter)
    finally:
        node.home.addresses_file.write_text(json.dumps(addresses))
    assert end.port_taken == f"it listens on port {port}, which belongs to the platform"
    await teardown(cluster, squatter)


def test_ports_of_services_on_other_machines_are_the_learners_to_use(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert ports_of_platform(home) == set()
    home.addresses_file.parent.mkdir()
    addresses = {
        "api": "0.0.0.0:1",
        "api-grpc": "127.0.0.1:2",
        "lcm": "tls:127.0.0.1:3",
        "metrics": "tls:metrics:4",
        "node": f"unix:{tmp_path}/node",
        "guardian": "tls:[::1]:5",
    }
    home.addresses_file.write_text(json.dumps(addresses))
    assert ports_of_platform(home) == {1, 2, 3, 5}
