"""What several suites share: job stores; and for hints each broker, a home for it, and services that receive them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

import pytest

from tests.testbed.hints import Carrier, Service, Worker, lay_out
from tests.testbed.job_stores import OnMongo, OnSqlite, World, make_world

BROKERS = ("folder", "rabbitmq", "redis")


@pytest.fixture(scope="module", params=BROKERS)
def carrier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Carrier:
    """Each kind of broker."""
    server = None if request.param == "folder" else request.getfixturevalue(request.param)
    return Carrier(lay_out(tmp_path_factory.mktemp("hints") / "home"), server)


@pytest.fixture
async def services(carrier: Carrier) -> AsyncGenerator[dict[str, Service]]:
    """Those that hints are for; they serve."""
    services = {name: Service(name, carrier.settings.installation.address(name)) for name in ("lcm", "guardian")}
    for service in services.values():
        await service.start()
    yield services
    for service in services.values():
        await service.stop()


@pytest.fixture(scope="module")
def worker(carrier: Carrier) -> Iterator[Worker]:
    """One that serves all tests of a module."""
    worker = Worker(carrier.home, carrier.url)
    yield worker
    worker.end()


@pytest.fixture(params=["sqlite", "memory", "mongo"])
async def world(request: pytest.FixtureRequest) -> AsyncGenerator[World, None]:
    world = make_world(request.param, request)
    yield world
    await world.close()


@pytest.fixture(params=["sqlite", "mongo"])
async def durable(request: pytest.FixtureRequest) -> AsyncGenerator[OnSqlite | OnMongo, None]:
    world = make_world(request.param, request)
    assert isinstance(world, (OnSqlite, OnMongo))
    yield world
    await world.close()
