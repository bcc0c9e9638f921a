"""Which of some jobs match a filter. The metrics service is called for those that their documents do not decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.api.event_loop import Turns
from services.api.job_filter import JobFilter, Metrics
from services.api.jobs import Matched
from services.api.services import ApiServices
from services.core.domain.job import Job
from services.core.ports.metric_store import Aggregate


async def matching(
    services: ApiServices, chosen: JobFilter, jobs: Sequence[Job], is_over: Callable[[], bool]
) -> Matched:
    """The jobs that match, in their order; at most 500 at a time. Once the time ``is_over`` it reads no more of them.

    Raises Unavailable if the metrics service is needed and away.
    """
    now, turns = services.jobs.now(), Turns()
    answers: dict[str, bool | None] = {}
    for job in jobs:
        await turns.let_others_run()
        if answers and is_over():
            break
        answers[job.id] = chosen.match(job, None, now=now)
    undecided = [job_id for job_id, answer in answers.items() if answer is None]
    aggregates = await services.telemetry.aggregates(undecided, chosen.metrics)
    read = jobs[: len(answers)]
    for job in read:
        if answers[job.id] is None:
            await turns.let_others_run()
            answers[job.id] = chosen.match(job, _by_name(aggregates.get(job.id, ())), now=now)
    return Matched([job for job in read if answers[job.id]], len(read))


def _by_name(aggregates: Sequence[Aggregate]) -> Metrics:
    by_name: dict[str, Aggregate] = {}
    for aggregate in aggregates:
        by_name.setdefault(aggregate.name, aggregate)
    return by_name
