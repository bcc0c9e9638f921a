"""The start-up of a job's attempt as users see it: its steps in order, each with its beginning and its end."""

from __future__ import annotations

from typing import Annotated

from services.api.answers import Answer, Time, as_time, as_time_or_none, doc
from services.core.domain.job import Attempt, Job
from services.core.domain.startup import FETCHED, Span, Step
from services.core.domain.status import Status


class StartupStep(Answer):
    """A step of the start-up."""

    step: Annotated[
        str,
        doc(
            "queue (until the admission), schedule (until all learners are on nodes), image (until their containers "
            "run; pods only), code, data, environment, checkpoint (fetched by the helpers, maybe during image), launch "
            "(until the first process runs) or first_step (until the first metric point). Steps that the job does not "
            "have are left out."
        ),
    ]
    began: Annotated[Time, doc("When it began: with the first learner.")]
    ended: Annotated[
        Time | None, doc("When it ended: with the last learner; null while it lasts, or if the attempt ended before.")
    ]


def startup(job: Job) -> list[StartupStep]:
    """The steps of the current or last attempt, as far as they are known; of a job without one, its time in the queue.

    A step without an end lasts, or was never finished.
    """
    return [
        StartupStep(step=step.value, began=as_time(span.began), ended=as_time_or_none(span.ended))
        for step, span in _spans(job).items()
    ]


def _spans(job: Job) -> dict[Step, Span]:
    attempt = job.attempt
    if attempt.admitted is None:
        return {Step.QUEUE: Span(began=job.created, ended=None if job.status is Status.QUEUED else job.state.since)}
    queue = Span(began=min(attempt.queued or job.created, attempt.admitted), ended=attempt.admitted)
    spans: dict[Step, Span] = {Step.QUEUE: queue, Step.SCHEDULE: _schedule(attempt, attempt.admitted)}
    spans |= {step: span for step in (Step.IMAGE, *FETCHED) if (span := attempt.startup.get(step)) is not None}
    if (launch := _launch(attempt, spans)) is not None:
        spans[Step.LAUNCH] = launch
    first = attempt.startup.get(Step.FIRST_STEP)
    if first is not None and first.ended is not None:  # a training without metrics has no such end
        spans[Step.FIRST_STEP] = first
    return spans


def _schedule(attempt: Attempt, admitted: int) -> Span:
    """Where the cluster reports no such step, the first helper that fetches ends it."""
    reported = attempt.startup.get(Step.SCHEDULE)
    if reported is not None:
        return Span(began=min(admitted, reported.began), ended=reported.ended)
    begun = [attempt.startup[step].began for step in FETCHED if step in attempt.startup]
    begun += [attempt.started] if attempt.started is not None else []
    return Span(began=admitted, ended=max(admitted, min(begun)) if begun else None)


def _launch(attempt: Attempt, spans: dict[Step, Span]) -> Span | None:
    """None until the steps before it have ended."""
    ends = [span.ended for span in spans.values()]
    known = [end for end in ends if end is not None]
    if attempt.started is None:
        fetched = any(step in spans for step in FETCHED)
        return Span(began=max(known)) if fetched and len(known) == len(ends) else None
    # A process that runs has ended all before it, also those whose end no report has named.
    return Span(began=min(max(known), attempt.started), ended=attempt.started)
