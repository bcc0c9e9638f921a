"""Which observations of a job may be used again, and what listing the jobs of many tenants costs."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from services.core.adapters.kubernetes import names
from services.core.adapters.kubernetes.api import Api
from services.core.adapters.kubernetes.observation_cache import ObservationCache, Reading
from services.core.adapters.kubernetes.observed import relevant
from services.core.adapters.kubernetes.places import Places
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.status import Phase
from services.core.ports.cluster import Observation
from tests.testbed.kubernetes.options import OPTIONS
from tests.testbed.scripted_http import Answer, Request, Scripted, json_answer, scripted
from tests.unit.test_kubernetes_api import write_kubeconfig

OBSERVED = Observation(learners=[], attempts=[1])


class Scene:
    """A cache whose clock and watch the test controls."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.current = True
        self.cache = ObservationCache(lambda: self.current, lambda: self.now_s)
        self._readings = ExitStack()

    def begin(self, job: str = "j1") -> Reading:
        return self._readings.enter_context(self.cache.reading(job))

    def end(self) -> None:
        """Ends all readings that were begun."""
        self._readings.close()

    def keep(self, job: str = "j1", reports: object = None) -> None:
        with self.cache.reading(job) as reading:
            self.cache.keep(job, reading, OBSERVED, reports)

    @property
    def kept(self) -> bool:
        return self.cache.get("j1", None) is not None


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_an_unchanged_job_is_not_read_again(scene: Scene) -> None:
    assert not scene.kept
    scene.keep()
    scene.keep("j2")
    scene.now_s = 299
    scene.cache.invalidate("j2")
    assert scene.cache.get("j1", None) is OBSERVED


@pytest.mark.slow
def test_a_change_of_the_job_or_a_gap_in_the_watch_ends_its_observation(scene: Scene) -> None:
    changes: list[Callable[[], None]] = [lambda: scene.cache.invalidate("j1"), scene.cache.invalidate_all]
    for change in changes:
        scene.keep()
        change()
        assert not scene.kept


def test_a_change_during_the_reading_keeps_it_from_being_used_again(scene: Scene) -> None:
    changes: list[Callable[[], object]] = [
        lambda: scene.cache.invalidate("j1"),
        scene.cache.invalidate_all,
        scene.begin,
    ]
    for change in changes:
        reading = scene.begin()
        change()
        scene.cache.keep("j1", reading, OBSERVED, None)
        assert not scene.kept


def test_what_was_read_before_or_during_an_own_write_is_not_used_after_it(scene: Scene) -> None:
    scene.keep()
    before = scene.begin()
    with suppress(ValueError), scene.cache.writing("j1"):
        scene.cache.keep("j1", before, OBSERVED, None)
        assert not scene.kept
        scene.keep()
        raise ValueError("a write that failed half-way")
    assert not scene.kept


def test_a_job_whose_observation_was_not_kept_takes_no_memory(scene: Scene) -> None:
    references = [weakref.ref(scene.begin(f"j{number}")) for number in range(3)]
    scene.end()
    assert [reference() for reference in references] == [None] * 3


def test_no_observation_is_used_while_no_watch_follows_the_pods(scene: Scene) -> None:
    scene.keep()
    scene.current = False
    assert not scene.kept
    scene.current = True
    assert scene.kept, "the watch goes on from where it was: it has missed nothing"


def test_every_observation_ends_after_ten_minutes_and_not_all_in_one_moment(scene: Scene) -> None:
    def age_s() -> float:
        scene.now_s = 0
        scene.keep()
        while scene.kept:
            scene.now_s += 1
        return scene.now_s

    ages = [age_s() for _ in range(50)]
    assert 300 <= min(ages) < max(ages) <= 600
    assert max(ages) - min(ages) > 60


def test_a_report_of_an_end_ends_the_observation_and_a_heartbeat_does_not(scene: Scene) -> None:
    def report(seq: int, **fields: object) -> dict[tuple[int, str], LearnerStatus]:
        running = {"phase": Phase.PROCESSING, "times": {"PROCESSING": 1}} | fields
        learner = LearnerStatus(name="worker-0", role="worker", rank=0, attempt=1, seq=seq, **running)  # type: ignore[arg-type]
        return {(1, "worker-0"): learner}

    scene.keep(reports=relevant(report(1)))
    assert scene.cache.get("j1", relevant(report(2, env_digest="sha256:1"))) is OBSERVED
    changed: list[dict[str, object]] = [
        {"exit": Exit(time=2, code=0)},
        {"phase": Phase.STORED},
        {"run": 2},
        {"times": {}},
    ]
    for fields in changed:
        assert scene.cache.get("j1", relevant(report(2, **fields))) is None


def owner(namespace: str, job: str) -> dict[str, object]:
    labels = {names.JOB: job, names.TENANT: namespace.removeprefix("weft-")}
    return {"metadata": {"namespace": namespace, "name": f"weft-{job}-1", "labels": labels}}


@asynccontextmanager
async def places_of(
    folder: Path, tenants: int, owners: dict[str, list[str]]
) -> AsyncGenerator[tuple[Places, Scripted]]:
    """An API server with so many tenants. ``owners``: namespace -> the jobs that have an owner object there."""

    def answer(request: Request, _: int) -> Answer:
        path = request.path.partition("?")[0]
        if path == "/api/v1/namespaces":
            items: list[dict[str, object]] = [{"metadata": {"name": f"weft-t{number}"}} for number in range(tenants)]
        else:
            namespace = path.split("/")[4]
            items = [owner(namespace, job) for job in owners.get(namespace, [])]
        return json_answer({"items": items, "metadata": {"resourceVersion": "1"}})

    with scripted(answer) as server:
        write_kubeconfig(folder / "kubeconfig", server.url, "t1")
        api = Api(folder / "kubeconfig")
        try:
            yield Places(api, OPTIONS), server
        finally:
            await api.close()


@pytest.mark.slow
async def test_jobs_without_pods_are_listed_by_one_request_in_two_seconds_however_many_tenants_there_are(
    tmp_path: Path,
) -> None:
    owners = {"weft-t0": ["jpods", "jlate"], "weft-t399": ["jleft"]}
    async with places_of(tmp_path, 400, owners) as (places, server):
        listed: set[str] = set()
        for half_second in range(1, 2000):  # a round of the dispatcher each
            listed = await places.without_pods({"jpods"}, half_second / 2)
            assert len(server.requests) <= 1 + half_second / 4
        assert listed == {"jlate", "jleft"}
        assert await places.find("jleft") == "weft-t399"
        places.forget_owners("jlate")  # it was observed: nothing of it exists
        assert await places.without_pods({"jpods"}, 1000) == {"jleft"}


async def test_places_of_jobs_that_ended_long_ago_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job's place stayed in memory, because the removal of its last pod was an event that named the place."""
    monkeypatch.setattr("services.core.adapters.kubernetes.places._KEPT", 10)
    async with places_of(tmp_path, 1, {}) as (places, _):
        for number in range(1_000):
            places.learn(f"j{number}", "weft-t0")
            places.forget_old({"j0"})
        known = [number for number in range(1_000) if places.learned(f"j{number}") is not None]
        assert known[0] == 0, "it has pods"
        assert known[-10:] == list(range(990, 1_000))
        assert len(known) < 30


async def test_a_tenant_with_thousands_of_jobs_is_listed_less_often(tmp_path: Path) -> None:
    many = {"weft-t0": [f"j{number}" for number in range(2_000)]}
    async with places_of(tmp_path, 1, many) as (places, server):
        for second in range(22):
            await places.without_pods((), second)
        owners = [request for request in server.requests if "configmaps" in request.path]
        assert len(owners) == 2, "2,000 owners are five pages: the next one comes after the time of five requests"
