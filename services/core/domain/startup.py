"""The start-up of an attempt: when each step began and ended, from the admission to the first step of the training.

A gang's step begins with its first learner and ends with its last one; the first step of the training is the first of
any learner. Steps may overlap: a helper fetches while the learner's image is pulled. A step that is recorded as ended
stays so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple


class Step(StrEnum):
    """A step of the start-up, in order of time. Shown to users: a value never changes its meaning."""

    QUEUE = "queue"
    """From the submission, or the end of the attempt before, to the admission."""
    SCHEDULE = "schedule"
    """Until every learner is on a node."""
    IMAGE = "image"
    """Until the containers of every learner run. Pods only."""
    CODE = "code"
    DATA = "data"
    ENVIRONMENT = "environment"
    """The packages of the framework and of requirements.txt."""
    CHECKPOINT = "checkpoint"
    """The files of an earlier attempt's checkpoint."""
    LAUNCH = "launch"
    """From the end of the steps before to the start of the first learner's process."""
    FIRST_STEP = "first_step"
    """From the start of the first process to the first metric point of the training."""


FETCHED: Final = (Step.CODE, Step.DATA, Step.ENVIRONMENT, Step.CHECKPOINT)
"""The steps of a helper before its learner's process starts, in their order."""
OBSERVED: Final = (Step.SCHEDULE, Step.IMAGE, *FETCHED, Step.FIRST_STEP)
"""The steps that helpers and the cluster report; the others follow from the job's document."""


class Fetching(NamedTuple):
    """A step that is being carried out, and how far it is."""

    step: Step
    began: int
    """Unix ms."""
    message: str
    """The current activity, for people."""
    done: int | None = None
    """Bytes; None: the activity counts none."""
    total: int | None = None
    """Bytes; None: unknown. More than this may come: some sizes are estimates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """When a step began and ended, in Unix ms."""

    began: int
    ended: int | None = None
    """None: it has not ended."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def up_to(self, now: int) -> Span:
        """The same, where a later time than ``now`` counts as ``now``: the clocks of two machines may differ."""
        ended = None if self.ended is None else min(self.ended, now)
        return replace(self, began=min(self.began, now), ended=ended)

    @property
    def latest(self) -> int:
        """Its last time, Unix ms."""
        return self.began if self.ended is None else self.ended


def of_gang(step: Step, spans: Iterable[Span], *, expected: int) -> Span | None:
    """The step of a gang of ``expected`` learners, from those of its learners; None if no learner has begun it."""
    known = list(spans)
    if not known:
        return None
    ends = [span.ended for span in known if span.ended is not None]
    began = min(span.began for span in known)
    if step is Step.FIRST_STEP:
        return Span(began=began, ended=min(ends, default=None))
    return Span(began=began, ended=max(ends) if len(ends) == expected else None)


def observed(
    recorded: Mapping[str, Span], learners: Iterable[Mapping[str, Span]], *, expected: int, now: int
) -> Mapping[str, Span]:
    """``recorded`` brought up to date with the spans of each learner, by step. ``now``: Unix ms.

    Names that are no step of ``OBSERVED`` are left out.
    """
    every = list(learners)
    steps = dict(recorded)
    for step in OBSERVED:
        span = of_gang(step, (spans[step] for spans in every if step in spans), expected=expected)
        before = steps.get(step)
        if span is not None and (before is None or before.ended is None):
            span = span.up_to(now)
            steps[step] = span if before is None else replace(before, ended=span.ended)
    return steps


def is_news(recorded: Mapping[str, Span], current: Mapping[str, Span], *, now: int, after_ms: int) -> bool:
    """True if a change of a step is older than ``after_ms``: until then it waits for another change of the document."""
    return any(now - span.latest >= after_ms for step, span in current.items() if recorded.get(step) != span)
