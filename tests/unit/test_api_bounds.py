"""No parameter of a request makes the api work for long: lists and texts are bounded, and long loops make pauses."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.struct_pb2 import Struct, Value
from pydantic import BaseModel

from services.api.grpc.jobs import _clone_params
from services.api.grpc.messages import params
from services.api.job_answer import listed as listed_answer
from services.api.job_changes import Change, JobChanges
from services.api.job_filter import parse_filter
from services.api.job_search import matching
from services.api.jobs import Jobs, Matched
from services.api.params import Params
from services.api.rest.app import create_routes
from services.api.use_cases import compare
from services.api.use_cases.compare import StatisticsParams
from services.api.use_cases.jobs import JobsParams
from services.api.use_cases.stream import _batch
from services.core.domain.errors import InvalidRequest
from services.core.domain.job import Job
from services.core.gen.weft.v1 import jobs_pb2
from services.core.ports.clock import Clock
from services.core.ports.job_store import JobQuery
from tests.documents import NOW, a_job
from tests.testbed.memory import MemoryJobStore


def kinds_of_params(kind: type[BaseModel] = Params) -> Iterator[type[BaseModel]]:
    for below in kind.__subclasses__():
        yield below
        yield from kinds_of_params(below)


def unbounded_lists(schema: dict[str, Any]) -> list[str]:
    """Names of the parameters that are lists of any length."""
    variants = {name: [field, *field.get("anyOf", ())] for name, field in schema.get("properties", {}).items()}
    return [
        name
        for name, schemas in variants.items()
        if any(variant.get("type") == "array" and "maxItems" not in variant for variant in schemas)
    ]


def test_every_list_of_a_request_has_a_bound() -> None:
    create_routes()  # loads all of them
    kinds = [*kinds_of_params()]
    assert len(kinds) > 10
    assert {kind.__name__: lists for kind in kinds if (lists := unbounded_lists(kind.model_json_schema()))} == {}
    unbounded = {kind.__name__ for kind in kinds if not kind.model_config.get("str_max_length")}
    assert unbounded == {"CloneParams", "SecretParams"}  # bodies are bounded, so are paths of a clone, and secrets


@pytest.mark.parametrize("field", ["by", "but", "context"])
def test_a_statistics_call_with_a_million_names_does_not_stop_the_api(field: str) -> None:
    request = jobs_pb2.GetStatisticsRequest(name="loss", q="")
    getattr(request, field).extend(["a=b"] * 1_000_000)
    with pytest.raises(InvalidRequest, match="write at most 100 entries"):
        params(StatisticsParams, request)


@pytest.mark.parametrize("field", ["name", "tag", "user", "tenant", "fields", "metrics", "q", "after"])
def test_a_text_of_megabytes_is_refused(field: str) -> None:
    request = jobs_pb2.ListJobsRequest()
    setattr(request, field, "a," * 1_000_000)
    with pytest.raises(InvalidRequest, match=f"{field}: write at most 8192 characters"):
        params(JobsParams, request)


@pytest.mark.parametrize(
    ("sent", "pointer"),
    [
        (jobs_pb2.CloneJobRequest(set=Struct(fields={"resources.cpus": Value(number_value=math.nan)})), "/set"),
        (jobs_pb2.CloneJobRequest(name="n" * 1_000_000), "/name"),
    ],
)
def test_a_wrong_clone_over_grpc_is_no_internal_error(sent: jobs_pb2.CloneJobRequest, pointer: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _clone_params(sent)
    assert [error.pointer for error in refused.value.errors] == [pointer]


def jobs_with_variables_of_their_own(count: int, variables: int) -> list[Job]:
    spec = {"name": "n", "command": "true"}
    return [a_job(spec={**spec, "env": {f"V{job}_{n}": "x" for n in range(variables)}}) for job in range(count)]


async def turns_of_others(work: Awaitable[Any]) -> int:
    """How often another task of the event loop ran during the work."""
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await work
    ticking.cancel()
    return turns


async def test_statistics_of_jobs_with_many_variables_of_their_own_do_not_stop_the_api() -> None:
    jobs = jobs_with_variables_of_their_own(1_000, 100)
    wanted = StatisticsParams.model_validate({"name": "loss", "q": "", "except": ["env.SEED"]})

    async def group() -> None:
        groups = await compare._groups(jobs, wanted)
        assert (len(groups), len(await compare._varying(groups))) == (1_000, 100_000)

    assert await turns_of_others(group()) > 5


class SetClock:
    """Time passes only by ``boottime``: a second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def boottime(self) -> float:
        self.now += 1.0
        return self.now

    def now_ms(self) -> int:
        return NOW


def services_with(jobs: Any) -> Any:
    async def aggregates(job_ids: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
        return {}

    return SimpleNamespace(jobs=jobs, telemetry=SimpleNamespace(aggregates=aggregates))


async def test_a_list_with_a_long_filter_does_not_stop_the_api() -> None:
    jobs = [a_job(spec={"name": "n", "command": "x", "env": {"A": "b" * 10_000}}) for _ in range(500)]
    chosen = parse_filter(" or ".join(["env.A~z", "gpus>9"] * 50))
    assert chosen is not None
    services = services_with(SimpleNamespace(now=lambda: NOW))

    async def match() -> None:
        assert await matching(services, chosen, jobs, lambda: False) == Matched([], 500)

    assert await turns_of_others(match()) > 5


async def test_a_list_with_a_slow_filter_answers_in_time_and_continues_where_it_stopped() -> None:
    store, clock = MemoryJobStore(), SetClock()
    ids = [(await store.insert(a_job())).id for _ in range(10)]
    anything: Any = None
    jobs = Jobs(store, anything, anything, cast("Clock", clock), anything, delete_wait_s=1, poll_s=1)
    services, chosen = services_with(jobs), parse_filter("gpus<9")
    assert chosen is not None
    listed: list[str] = []
    after, pages = None, 0
    while pages == 0 or after is not None:
        query = JobQuery(after=after)
        part, after = await jobs.search(query, partial(matching, services, chosen), limit=100, newest_first=False)
        assert 0 < len(part) < 5
        listed += [job.id for job in part]
        pages += 1
    assert listed == ids


@pytest.mark.slow
async def test_a_live_list_with_a_filter_does_not_stop_the_api_when_it_connects_again() -> None:
    changes = JobChanges(0, listed_answer)
    for number in range(2_000):
        changes.add(a_job(), number + 1)
    changes.complete(2_000)
    chosen = parse_filter(" or ".join(["gpus>9"] * 100))
    assert chosen is not None

    def listed(change: Change) -> bool:
        assert change.job is not None
        return chosen.match(change.job, None, now=NOW) is not False

    async def read() -> None:
        place, items = await _batch(changes, 0, None, listed)
        assert (place, len(items), {item.name for item in items}) == (2_000, 2_000, {"left"})

    assert await turns_of_others(read()) > 5
