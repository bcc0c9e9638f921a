"""Comparing jobs: statistics of a metric over groups of them, and the differences of two."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field

from services.api.access import Principal
from services.api.answers import Answer, doc, number
from services.api.clients import StepStatistics
from services.api.event_loop import Turns
from services.api.job_filter import parse_filter
from services.api.job_search import matching
from services.api.params import MOST_VALUES, Params, wrong_parameter
from services.api.services import ApiServices
from services.api.spec_fields import differences, fields_of, shown
from services.core.domain.job import Job
from services.core.ports.job_store import JobQuery

_MOST_JOBS: Final = 1_000
_MOST_GROUPS: Final = 100
_MOST_FIELDS: Final = 200
_LONGEST_FIELD: Final = 1_000
"""Fields of the answered groups, and characters of a field's path: variables of an environment have any number and
length.
"""
_AT_A_TIME: Final = 4
_MOST_METRICS: Final = 20
_MOST_STEPS: Final = 10_000
_NEVER_COMPARED: Final = frozenset({"name"})
"""Of a spec: two seeds of one experiment may have names of their own."""


class StatisticsParams(Params):
    """Which metric of which jobs, and how the jobs are grouped."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)
    name: str = Field(min_length=1, max_length=1000, description="Name of the metric.")
    also: list[Annotated[str, Field(min_length=1, max_length=1000)]] | None = Field(
        default=None,
        max_length=_MOST_METRICS - 1,
        description=f"Names of further metrics; repeat it for several, at most {_MOST_METRICS - 1}. The jobs are read "
        "once for all.",
    )
    context: list[str] | None = Field(
        default=None,
        max_length=MOST_VALUES,
        description="Its labels as KEY=VALUE; default: the first series of each job, whatever its labels.",
    )
    job: list[str] | None = Field(default=None, max_length=200, description="Ids of the jobs; at most 200.")
    q: str | None = Field(default=None, description="In place of ids: the newest 1000 jobs that match this filter.")
    tenant: str | None = Field(
        default=None, description="With `q`: tenant whose jobs count; default: the caller's. Admins: any, or * for all."
    )
    by: list[str] | None = Field(
        default=None,
        max_length=MOST_VALUES,
        description="Fields of the spec whose values make a group, e.g. env.LR; at most 100.",
    )
    but: list[str] | None = Field(
        default=None,
        max_length=MOST_VALUES,
        alias="except",
        description="Fields of the spec that may differ within a group, e.g. env.SEED; all others, but for the name, "
        "are equal; at most 100.",
    )
    max_points: int = Field(
        default=500, ge=2, le=_MOST_STEPS, description="Most steps of each group; of all metrics at most 10000."
    )


class StatisticsGroup(Answer):
    """Statistics of one group; item n of each column belongs to step n."""

    name: Annotated[str, doc("Name of the metric.")]
    key: Annotated[dict[str, str], doc("The fields by which the group differs from others, and their values.")]
    jobs: Annotated[list[str], doc("Ids of the jobs of the group that reported the metric.")]
    steps: Annotated[list[int], doc("Steps at which a job has a number.")]
    n: Annotated[list[int], doc("Number of jobs with a number at the step.")]
    mean: Annotated[list[float | str], doc('Mean of their values; words such as "Infinity" if it is not finite.')]
    std: Annotated[list[float | str], doc("Standard deviation of the population.")]
    min: Annotated[list[float | str], doc("Smallest value.")]
    max: Annotated[list[float | str], doc("Largest value.")]


class StatisticsReply(Answer):
    """Statistics of a metric over groups of jobs. Every number is exact; steps may be left out."""

    groups: Annotated[
        list[StatisticsGroup], doc("By metric, in the order of the request; then in the order of their newest jobs.")
    ]
    without: Annotated[list[str], doc("Ids of the jobs that did not report the metric `name`.")]
    truncated: Annotated[bool, doc("There are more jobs, groups (100 are answered) or fields of groups (200).")]


class DiffParams(Params):
    """Which two jobs to compare."""

    a: str = Field(description="Id of a job.")
    b: str = Field(description="Id of another job.")


class FieldDifference(Answer):
    """A field that differs; a value that is missing is empty. Values other than texts are JSON."""

    path: Annotated[str, doc("Path of the field, e.g. env.LR.")]
    a: Annotated[str, doc("Its value in the first job.")]
    b: Annotated[str, doc("Its value in the second job.")]


class FileDifference(Answer):
    """A file of the code that differs."""

    path: Annotated[str, doc("Path of the file.")]
    change: Annotated[str, doc("added, removed or changed, from the first job to the second.")]


class CodeDifference(Answer):
    """How the code differs."""

    a: Annotated[str, doc("Digest of the first job's code; empty without code.")]
    b: Annotated[str, doc("Digest of the second job's code; empty without code.")]
    compared: Annotated[bool, doc("False: an archive is missing, or larger than 64 MiB; `files` is empty.")]
    files: Annotated[list[FileDifference], doc("Files that differ.")]


class JobDifference(Answer):
    """How two jobs differ."""

    spec: Annotated[list[FieldDifference], doc("Fields of the spec.")]
    code: Annotated[CodeDifference, doc("Files of the code.")]
    environment: Annotated[list[FieldDifference], doc("Digests of environment and data, of the newest attempts.")]


@dataclass(frozen=True, slots=True)
class _Group:
    key: Mapping[str, str]
    """Fields that all jobs of the group share, as texts."""
    jobs: list[Job]


async def get_statistics(services: ApiServices, principal: Principal, params: StatisticsParams) -> StatisticsReply:
    """Statistics by group. Raises InvalidRequest, NotFound, PermissionDenied, Unavailable while the metrics service is
    away.
    """
    if params.by and params.but:
        raise wrong_parameter("by", "give either `by` or `except`")
    names = list(dict.fromkeys([params.name, *(params.also or ())]))
    if len(names) * params.max_points > _MOST_STEPS:
        raise wrong_parameter("max_points", f"at most {_MOST_STEPS} steps of all metrics together")
    jobs, more = await _jobs(services, principal, params)
    groups = await _groups(jobs, params)
    limited = asyncio.Semaphore(_AT_A_TIME)
    labels = _labels(params.context)

    async def compute(group: _Group) -> Sequence[StepStatistics]:
        async with limited:
            ids = [job.id for job in group.jobs]
            return await services.telemetry.statistics(ids, names, labels, max_points=params.max_points)

    computed = await asyncio.gather(*(compute(group) for group in groups[:_MOST_GROUPS]))
    varying = await _varying(groups)
    fields = [path for path in varying if len(path) <= _LONGEST_FIELD][:_MOST_FIELDS]
    return StatisticsReply(
        groups=[
            _group(name, group, fields, statistics[place])
            for place, name in enumerate(names)
            for group, statistics in zip(groups, computed, strict=False)
            if statistics[place].steps
        ],
        without=[job_id for first, *_ in computed for job_id in first.without],
        truncated=more or len(groups) > _MOST_GROUPS or len(fields) < len(varying),
    )


async def diff_jobs(services: ApiServices, principal: Principal, params: DiffParams) -> JobDifference:
    """How the second job differs from the first. Raises NotFound; ResourceExhausted for a tenant that compares many."""
    async with services.code_differences.turn(principal.tenant):
        a, b = await services.jobs.get(principal, params.a), await services.jobs.get(principal, params.b)
        return _difference(a, b, await services.code_differences.changed_files(a, b))


def _difference(a: Job, b: Job, files: Mapping[str, str] | None) -> JobDifference:
    return JobDifference(
        spec=_differences(a.spec, b.spec),
        code=CodeDifference(
            a=a.code_digest,
            b=b.code_digest,
            compared=files is not None,
            files=[FileDifference(path=path, change=change) for path, change in (files or {}).items()],
        ),
        environment=_differences(_environment(a), _environment(b)),
    )


async def _jobs(services: ApiServices, principal: Principal, params: StatisticsParams) -> tuple[list[Job], bool]:
    """The jobs, and whether there are more of them."""
    if (params.job is None) == (params.q is None):
        raise wrong_parameter("job", "give either ids of jobs (`job`) or a filter (`q`)")
    if params.job is not None:
        return [await services.jobs.get(principal, job_id) for job_id in dict.fromkeys(params.job)], False
    query, chosen = JobQuery(tenant=principal.listed_tenant(params.tenant)), parse_filter(params.q)
    if chosen is None:
        page, following = await services.jobs.page(query, limit=_MOST_JOBS)
        return list(page), following is not None
    page, following = await services.jobs.search(
        chosen.query(query), partial(matching, services, chosen), limit=_MOST_JOBS
    )
    return list(page), following is not None


async def _groups(jobs: Sequence[Job], params: StatisticsParams) -> list[_Group]:
    if not params.by and not params.but:
        return [_Group({}, list(jobs))]
    ignored, turns = {*_NEVER_COMPARED, *(params.but or ())}, Turns()
    groups: dict[tuple[tuple[str, str], ...], _Group] = {}
    for job in jobs:
        await turns.let_others_run()
        fields = fields_of(job.spec)
        paths = params.by or [path for path in fields if path not in ignored]
        key = {path: shown(fields.get(path)) for path in paths}
        groups.setdefault(tuple(key.items()), _Group(key, [])).jobs.append(job)
    return list(groups.values())


async def _varying(groups: Sequence[_Group]) -> list[str]:
    """The fields whose values differ between groups. A group without a field has an empty value."""
    first: dict[str, str] = {}
    differing: set[str] = set()
    counts: Counter[str] = Counter()
    turns = Turns()
    for group in groups:
        await turns.let_others_run()
        for path, text in group.key.items():
            if first.setdefault(path, text) != text:
                differing.add(path)
        counts.update(group.key.keys())
    return [path for path, text in first.items() if path in differing or (text and counts[path] < len(groups))]


def _group(name: str, group: _Group, fields: Sequence[str], statistics: StepStatistics) -> StatisticsGroup:
    without = set(statistics.without)
    return StatisticsGroup(
        name=name,
        key={path: group.key.get(path, "") for path in fields},
        jobs=[job.id for job in group.jobs if job.id not in without],
        steps=list(statistics.steps),
        n=list(statistics.n),
        mean=[number(value) for value in statistics.mean],
        std=[number(value) for value in statistics.std],
        min=[number(value) for value in statistics.low],
        max=[number(value) for value in statistics.high],
    )


def _labels(texts: Sequence[str] | None) -> Mapping[str, str] | None:
    if texts is None:
        return None
    pairs = [text.partition("=") for text in texts if text]
    if not all(sign for _, sign, _ in pairs):
        raise wrong_parameter("context", "a label is written as KEY=VALUE")
    return {name: value for name, _, value in pairs}


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[FieldDifference]:
    return [FieldDifference(path=path, a=shown(left), b=shown(right)) for path, left, right in differences(a, b)]


def _environment(job: Job) -> dict[str, Any]:
    return {"environment": job.attempt.env_digest, "data": job.attempt.data_digest}
