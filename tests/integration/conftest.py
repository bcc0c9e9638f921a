"""The running platform that the life-cycle tests share: on both sets of stores, and once with every hint dropped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests import promises
from tests.promises import Promise
from tests.testbed import sets
from tests.testbed.api import Api
from tests.testbed.cli import SPEC, TRAIN, Weft
from tests.testbed.etcd import Etcd
from tests.testbed.learner_telemetry import Learner, api_over, running_learner
from tests.testbed.metrics import MetricsProcess, running
from tests.testbed.platform import Platform, platform
from tests.testbed.terminal import Output
from weft import Client
from weft._cli.main import run

_DROPPED = "every-hint-dropped"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test on the platform that loses its hints shows R12, and counts as one trial."""
    for item in items:
        if isinstance(item, pytest.Function) and _DROPPED in getattr(item, "callspec", _NoParameters).params.values():
            item.add_marker(pytest.mark.promise("R12"))


class _NoParameters:
    params: ClassVar[dict[str, object]] = {}


@pytest.fixture(scope="package", params=["embedded", "every-hint-dropped", "servers"])
def weft_up(request: pytest.FixtureRequest) -> Iterator[Platform]:
    """As `weft up` starts it, with room for two gangs of two."""
    dropped = request.param == "every-hint-dropped"
    stores = sets.servers(request) if request.param == "servers" else sets.embedded(request)
    hints = "drop" if dropped else "send"
    with platform({"WEFT_HINTS": hints, "WEFT_NODE_CPUS": "4", "WEFT_PEER_GRACE_S": "1", **stores}) as running:
        yield running
        if dropped:
            services = ("api", "lcm", "guardian")
            counts = {service: running.counter(service, "weft_hints_dropped_total") for service in services}
            tried = sum(_DROPPED in item.nodeid for item in request.session.items)
            promise = Promise(("R12",))
            promise.kept(tried, "tests of whole lives with every hint dropped")
            by_service = ", ".join(f"{service} {count:.0f}" for service, count in counts.items())
            promise.saw(f"{sum(counts.values()):.0f} hints were dropped in them ({by_service})")
            request.config.stash[promises.KEPT] += promise.lines


@pytest.fixture
def client(weft_up: Platform) -> Iterator[Client]:
    with Client(weft_up.url, weft_up.key) as client:
        yield client


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[MetricsProcess]:
    """A metrics service of the test file's own."""
    with running(tmp_path_factory.mktemp("metrics"), etcd.address) as service:
        yield service


@pytest.fixture
async def api(tmp_path: Path, metrics: MetricsProcess) -> AsyncIterator[Api]:
    """The api in this process, over the metrics service."""
    async with api_over(tmp_path, metrics.address) as api:
        yield api


@pytest.fixture
async def learner(api: Api, metrics: MetricsProcess, etcd: Etcd) -> AsyncIterator[Learner]:
    """Writes logs and metrics of a running job."""
    async with running_learner(api, metrics, etcd) as learner:
        yield learner


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder with a job of two learners."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "weft.yaml").write_text(SPEC)
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.fixture
def weft(
    weft_up: Platform, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Weft:
    """Commands of a user of the platform."""
    monkeypatch.setenv("WEFT_URL", weft_up.url)
    monkeypatch.setenv("WEFT_KEY", weft_up.key)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "80")

    def typed(*words: str | Path) -> Output:
        exit_code = run([str(word) for word in words])
        output = capsys.readouterr()
        return Output(exit_code, output.out, output.err)

    return typed
