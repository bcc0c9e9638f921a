"""Which of some jobs match a filter. The metrics service is called for those that their documents do not decide."""

from __future__ import annotations

from collections.abc import Sequence

from services.api.job_filter import JobFilter, Metrics
from services.api.services import ApiServices
from services.core.domain.job import Job
from services.core.ports.metric_store import Aggregate


async def matching(services: ApiServices, chosen: JobFilter, jobs: Sequence[Job]) -> list[Job]:
    """The jobs that match, in their order; at most 500 at a time. Raises Unavailable if the metrics service is needed
    and away.
    """
    now = services.jobs.now()
    answers = {job.id: chosen.match(job, None, now=now) for job in jobs}
    undecided = [job_id for job_id, answer in answers.items() if answer is None]
    aggregates = await services.telemetry.aggregates(undecided, chosen.metrics)
    for job in jobs:
        if answers[job.id] is None:
            answers[job.id] = chosen.match(job, _by_name(aggregates.get(job.id, ())), now=now)
    return [job for job in jobs if answers[job.id]]


def _by_name(aggregates: Sequence[Aggregate]) -> Metrics:
    by_name: dict[str, Aggregate] = {}
    for aggregate in aggregates:
        by_name.setdefault(aggregate.name, aggregate)
    return by_name
