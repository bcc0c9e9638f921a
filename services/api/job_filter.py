"""Filters of jobs: which fields there are, what their values may be, and whether a job matches.

A filter is decided in three steps, the cheap ones first. The store has indexes for statuses, user, name and tag
(``query``). The document decides the rest, except for metrics, which the metrics service has: ``match`` then answers
None, and is called again with the metrics.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, TypeAlias

from services.api.filter_text import And, Comparison, Not, Or, Tree, parse, wrong_filter
from services.api.platform import spec_of
from services.core.domain.job import Job
from services.core.domain.spec import JobSpec, nearest
from services.core.domain.status import Status
from services.core.domain.units import parse_duration
from services.core.ports.job_store import JobQuery
from services.core.ports.metric_store import Aggregate

Metrics: TypeAlias = Mapping[str, Aggregate]
"""Of one job, by name: the first context."""
Value: TypeAlias = str | float | None
_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_METRIC: Final = "metric."
_ENV: Final = "env."
_STATISTICS: Final = {"last": "last", "min": "low", "max": "high"}


class _JobView:
    """A job during one match. Its spec is parsed once, if any term needs it: that takes longer than all comparisons."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @cached_property
    def spec(self) -> JobSpec | None:
        """None if this version cannot read it."""
        return spec_of(self.job)


@dataclass(frozen=True, slots=True)
class _Field:
    kind: str
    """text, status, number, time or duration."""
    read: Callable[[_JobView], Any]
    """The value; of texts also a list. Times and durations are milliseconds."""


def _of_job(read: Callable[[Job], Any]) -> Callable[[_JobView], Any]:
    return lambda view: read(view.job)


def _of_spec(read: Callable[[JobSpec], Any]) -> Callable[[_JobView], Any]:
    return lambda view: read(spec) if (spec := view.spec) else None


_FIELDS: Final[dict[str, _Field]] = {
    "id": _Field("text", _of_job(lambda job: job.id)),
    "name": _Field("text", _of_job(lambda job: job.spec.get("name", ""))),
    "user": _Field("text", _of_job(lambda job: job.user)),
    "tenant": _Field("text", _of_job(lambda job: job.tenant)),
    "status": _Field("status", _of_job(lambda job: job.status.value)),
    "reason": _Field("text", _of_job(lambda job: job.state.reason)),
    "message": _Field("text", _of_job(lambda job: job.state.message)),
    "tag": _Field("text", _of_job(lambda job: list(job.spec.get("tags", ())))),
    "priority": _Field("text", _of_job(lambda job: job.spec.get("priority", "normal"))),
    "framework": _Field("text", _of_spec(lambda spec: spec.framework.name if spec.framework else "")),
    "learners": _Field("number", _of_spec(lambda spec: spec.learners)),
    "gpus": _Field("number", _of_spec(lambda spec: spec.gpus)),
    "attempt": _Field("number", _of_job(lambda job: job.attempt.number)),
    "retries": _Field("number", _of_job(lambda job: job.counters.retries)),
    "restarts": _Field("number", _of_job(lambda job: job.counters.restarts)),
    "exit_code": _Field("number", _of_job(lambda job: job.verdict.exit_code if job.verdict else None)),
    "created": _Field("time", _of_job(lambda job: job.created)),
    "updated": _Field("time", _of_job(lambda job: job.updated)),
    "finished": _Field("time", _of_job(lambda job: job.finished)),
    "duration": _Field("duration", _of_job(lambda job: (job.attempt.started, job.finished))),
}
FIELDS: Final = (*_FIELDS, "env.NAME", "metric.NAME")
Test: TypeAlias = Callable[[_JobView, Metrics | None, int], bool | None]
"""(job, its metrics or None if they are not known, now in Unix ms) -> whether it matches; None: not known."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter that was checked."""

    metrics: tuple[str, ...]
    """Names of the metrics that it compares."""
    _tree: Tree
    _test: Test

    def match(self, job: Job, metrics: Metrics | None, *, now: int) -> bool | None:
        """Whether the job matches; None if that depends on its metrics and these are None. ``now``: Unix ms."""
        return self._test(_JobView(job), metrics, now)

    def query(self, query: JobQuery) -> JobQuery:
        """The query, narrowed by what the store can compare. Every job that matches is still in it."""
        for term in self._tree.terms if isinstance(self._tree, And) else (self._tree,):
            if not isinstance(term, Comparison) or term.op not in {"=", "in"}:
                continue
            field = term.field.lower()
            if field == "status" and not query.statuses:
                query = replace(query, statuses=tuple(Status(value.upper()) for value in term.values))
            elif term.op == "=" and field in {"user", "name", "tag"} and getattr(query, field) is None:
                narrowed: dict[str, Any] = {field: term.values[0]}
                query = replace(query, **narrowed)
        return query


def parse_filter(text: str | None) -> JobFilter | None:
    """The filter of a text; None for an empty one. Raises InvalidRequest, which says where and what to write."""
    tree = parse(text or "")
    if tree is None:
        return None
    names: dict[str, None] = {}
    return JobFilter(_tree=tree, _test=_compiled(tree, names), metrics=tuple(names))


def _compiled(tree: Tree, names: dict[str, None]) -> Test:
    """The test of a tree. Adds the names of metrics to ``names``."""
    if isinstance(tree, Comparison):
        return _comparison(tree, names)
    if isinstance(tree, Not):
        inner = _compiled(tree.term, names)

        def negated(view: _JobView, metrics: Metrics | None, now: int) -> bool | None:
            answer = inner(view, metrics, now)
            return None if answer is None else not answer

        return negated
    tests, decisive = [_compiled(term, names) for term in tree.terms], isinstance(tree, Or)

    def joined(view: _JobView, metrics: Metrics | None, now: int) -> bool | None:
        unknown = False
        for test in tests:
            answer = test(view, metrics, now)
            if answer is decisive:
                return decisive
            unknown = unknown or answer is None
        return None if unknown else not decisive

    return joined


def _comparison(comparison: Comparison, names: dict[str, None]) -> Test:
    name = comparison.field
    if name.startswith(_METRIC) and len(name) > len(_METRIC):
        return _metric(comparison, names)
    if name.startswith(_ENV) and len(name) > len(_ENV):
        variable = name.removeprefix(_ENV)
        return _text(comparison, _of_job(lambda job: (job.spec.get("env") or {}).get(variable)))
    field = _FIELDS.get(name.lower())
    if field is None:
        raise wrong_filter(f"column {comparison.column}: there is no field '{name[:60]}'", nearest(name[:60], FIELDS))
    if field.kind in {"text", "status"}:
        return _text(_known_status(comparison) if field.kind == "status" else comparison, field.read)
    if field.kind == "number":
        return _number(comparison, field.read)
    return _time(comparison, field.read) if field.kind == "time" else _duration(comparison, field.read)


def _text(comparison: Comparison, read: Callable[[_JobView], Any]) -> Test:
    op = comparison.op
    if op in _ORDER:
        raise wrong_filter(f"column {comparison.column}: {comparison.field} is a text", "use =, !=, ~ or in")
    values = set(comparison.values)
    part = comparison.values[0].lower()

    def test(view: _JobView, _metrics: Metrics | None, _now: int) -> bool:
        value = read(view)
        texts = value if isinstance(value, list) else [] if value is None else [str(value)]
        if op == "~":
            return any(part in str(text).lower() for text in texts)
        return any(text in values for text in texts) != (op == "!=")

    return test


def _known_status(comparison: Comparison) -> Comparison:
    if comparison.op == "~":
        return comparison
    for value in comparison.values:
        if value.upper() not in Status.__members__:
            message = f"column {comparison.column}: there is no status '{value[:40]}'"
            raise wrong_filter(message, nearest(value[:40].upper(), list(Status.__members__)))
    return replace(comparison, values=tuple(value.upper() for value in comparison.values))


def _number(comparison: Comparison, read: Callable[[_JobView], Any]) -> Test:
    compare = _compare(comparison, [_float(comparison, text) for text in comparison.values])
    return lambda view, _metrics, _now: compare(read(view))


def _metric(comparison: Comparison, names: dict[str, None]) -> Test:
    name = comparison.field.removeprefix(_METRIC)
    stem, _, statistic = name.rpartition(".")
    if not stem or statistic not in _STATISTICS:
        stem, statistic = name, "last"
    names[stem] = None
    compare = _compare(comparison, [_float(comparison, text) for text in comparison.values])

    def test(_view: _JobView, metrics: Metrics | None, _now: int) -> bool | None:
        if metrics is None:
            return None
        aggregate = metrics.get(stem)
        return compare(getattr(aggregate, _STATISTICS[statistic]) if aggregate else None)

    return test


def _time(comparison: Comparison, read: Callable[[_JobView], Any]) -> Test:
    """A duration is an age: ``created<2d`` is younger than two days. Anything else is a moment."""
    text = comparison.values[0]
    if comparison.op in {"~", "in"}:
        raise wrong_filter(f"column {comparison.column}: {comparison.field} is a time", "use <, <=, > or >=")
    moment = _moment(text)
    if moment is not None:
        compare = _compare(comparison, [moment])
        return lambda view, _metrics, _now: compare(read(view))
    ages = _compare(
        comparison, [float(_milliseconds(comparison, text, "a time such as 2026-11-20 or an age such as 2d"))]
    )
    return lambda view, _metrics, now: ages(None if (value := read(view)) is None else now - value)


def _duration(comparison: Comparison, read: Callable[[_JobView], Any]) -> Test:
    lengths = [float(_milliseconds(comparison, text, "a duration such as 90s or 2h")) for text in comparison.values]
    compare = _compare(comparison, lengths)

    def test(view: _JobView, _metrics: Metrics | None, now: int) -> bool:
        began, ended = read(view)
        return compare(None if began is None else (now if ended is None else ended) - began)

    return test


def _compare(comparison: Comparison, values: Sequence[float]) -> Callable[[Any], bool]:
    """Compares a number with the values. A missing one, and NaN, matches ``!=`` only."""
    op = comparison.op
    if op == "~":
        raise wrong_filter(f"column {comparison.column}: {comparison.field} is a number", "use = != < <= > >= or in")
    if op in _ORDER:
        order, bound = _ORDER[op], values[0]
        return lambda value: value is not None and order(value, bound)
    if op == "!=":
        return lambda value: value is None or value != values[0]
    wanted = frozenset(values)
    return lambda value: value is not None and value in wanted


def _float(comparison: Comparison, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise wrong_filter(f"column {comparison.column}: {comparison.field} is compared with a number")
    return number


def _moment(text: str) -> float | None:
    """Unix milliseconds of an RFC 3339 time or date; without an offset it is UTC. None for any other text."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000
    except (ValueError, OverflowError):
        return None


def _milliseconds(comparison: Comparison, text: str, expected: str) -> int:
    try:
        return parse_duration(text)
    except ValueError:
        message = f"column {comparison.column}: {comparison.field} is compared with {expected}"
        raise wrong_filter(message) from None
