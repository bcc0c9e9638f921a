"""The filter language of job lists."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api import job_filter
from services.api.job_filter import FIELDS, parse_filter
from services.api.platform import spec_of
from services.core.domain.errors import InvalidRequest
from services.core.domain.job import Job
from services.core.domain.spec import JobSpec
from services.core.domain.status import Status
from services.core.ports.job_store import JobQuery
from services.core.ports.metric_store import Aggregate
from tests.documents import NOW, a_job

DAY_MS = 86_400_000


def aggregate(last: float, low: float = 0.1, high: float = 9.0) -> Aggregate:
    return Aggregate(
        name="loss", context={}, rank=0, count=3, last=last, last_step=3, low=low, low_step=1, high=high, high_step=2
    )


def job_with(**spec: Any) -> Job:
    job = a_job()
    return replace(job, spec={**job.spec, **spec}, created=NOW - 3 * DAY_MS)


def matches(text: str, job: Job, metrics: dict[str, Aggregate] | None = None) -> bool | None:
    parsed = parse_filter(text)
    assert parsed is not None
    return parsed.match(job, metrics, now=NOW)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name=digits", True),
        ("name = digits", True),
        ("name==digits", True),
        ("name!=digits", False),
        ("name=Digits", False),
        ("name~GIT", True),
        ("name~xyz", False),
        ('name="digits"', True),
        ("name in (a, digits)", True),
        ("name not in (a, digits)", False),
        ("NAME IN (digits)", True),
        ("tag=x", True),
        ("tag=z", False),
        ("tag!=z", True),
        ("tag~Y", True),
        ("tag in (z,y)", True),
        ("env.LR=0.1", True),
        ("env.LR!=0.2", True),
        ("env.NONE=0.1", False),
        ("env.NONE!=0.1", True),
        ("status=queued", True),
        ("status in (FAILED, Queued)", True),
        ("status~QUE", True),
        ("not status=FAILED", True),
        ("learners=1", True),
        ("learners>=2", False),
        ("gpus<1", True),
        ("attempt=0", True),
        ("exit_code=0", False),
        ("exit_code!=0", True),
        ("priority=normal", True),
        ("created>2d", True),
        ("created<2d", False),
        ("created<4d and created>2d12h", True),
        ("created<2030-01-01", True),
        ("created>2030-01-01T00:00:00Z", False),
        ("finished<1d", False),
        ("duration>1s", False),
        ("name=a or name=digits and tag=x", True),
        ("(name=a or name=digits) and tag=z", False),
        ("not (name=a or tag=z)", True),
        ("not not name=digits", True),
        ("name=digits AND NOT tag=z OR name=b", True),
    ],
)
def test_a_filter_decides_by_the_fields_of_the_job(text: str, *, expected: bool) -> None:
    job = job_with(name="digits", tags=["x", "y"], env={"LR": "0.1"})
    assert matches(text, job) is expected


def test_quoted_texts_may_contain_anything() -> None:
    job = job_with(name='it\'s (a) "name" and more')
    assert matches(r"""name="it's (a) \"name\" and more" """, job) is True
    assert matches("name~'and more'", job) is True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("metric.loss<0.3", True),
        ("metric.loss.last<0.3", True),
        ("metric.loss.min<0.05", False),
        ("metric.loss.max>8", True),
        ("metric.none<1", False),
        ("metric.none!=1", True),
        ("metric.loss=0.25", True),
        ("metric.loss in (1, 0.25)", True),
        ("metric.loss<1e-3", False),
        ("metric.loss<inf", True),
    ],
)
def test_a_filter_compares_metrics(text: str, *, expected: bool) -> None:
    assert matches(text, a_job(), {"loss": aggregate(0.25)}) is expected
    assert matches(text, a_job(), None) is None


def test_names_of_metrics_may_have_dots_and_slashes() -> None:
    parsed = parse_filter("metric.train/val.loss.max>1 and 'metric.my loss'<2")
    assert parsed is not None
    assert parsed.metrics == ("train/val.loss", "my loss")


def test_nan_matches_no_comparison_but_not_equal() -> None:
    metrics = {"loss": aggregate(math.nan)}
    assert [matches(f"metric.loss{op}1", a_job(), metrics) for op in ("<", ">", "=", "!=")] == [
        False,
        False,
        False,
        True,
    ]


def test_metrics_are_only_needed_where_the_document_does_not_decide() -> None:
    job = job_with(name="digits")
    assert matches("name=digits or metric.loss<1", job) is True
    assert matches("name=other and metric.loss<1", job) is False
    assert matches("name=digits and not metric.loss<1", job) is None


def test_the_store_narrows_the_list_where_it_has_an_index() -> None:
    parsed = parse_filter("status in (failed, KILLED) and user=ada and name=digits and tag=x and created>2d")
    assert parsed is not None
    narrowed = parsed.query(JobQuery(tenant="acme"))
    assert narrowed == JobQuery(
        tenant="acme", statuses=(Status.FAILED, Status.KILLED), user="ada", name="digits", tag="x"
    )
    for wide in ("user=ada or user=bob", "not user=ada", "user!=ada", "user~ada"):
        parsed = parse_filter(wide)
        assert parsed is not None
        assert parsed.query(JobQuery()) == JobQuery()


@pytest.mark.parametrize(
    ("text", "column", "hint"),
    [
        ("statu=FAILED", 1, "did you mean 'status'?"),
        ("status=FALED", 1, "did you mean 'FAILED'?"),
        ("user=a and nme=b", 12, "did you mean 'name'?"),
        ("name", 5, ""),
        ("name=", 6, ""),
        ("=a", 1, ""),
        ("name=a name=b", 8, ""),
        ("(name=a", 8, ""),
        ("name=a)", 7, ""),
        ("name in a", 9, ""),
        ("name in (a", 11, ""),
        ("name='a", 6, ""),
        ("name!a", 5, ""),
        ("and", 1, ""),
        ("name=a and", 11, ""),
        ("name<a", 1, "use =, !=, ~ or in"),
        ("learners=x", 1, ""),
        ("learners~1", 1, ""),
        ("learners=nan", 1, ""),
        ("created=maybe", 1, ""),
        ("created~2d", 1, "use <, <=, > or >="),
        ("duration>x", 1, ""),
        ("metric.loss<x", 1, ""),
        ("metric.=1", 1, ""),
        ("name not a", 10, ""),
    ],
)
def test_a_wrong_filter_names_the_column_and_what_to_write(text: str, column: int, hint: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_filter(text)
    [error] = refused.value.errors
    assert error.pointer == "/query/q"
    assert error.message.startswith(f"column {column}: "), error.message
    if hint:
        assert hint in error.hint


def test_a_filter_is_bounded() -> None:
    for text in ("name=" + "a" * 4000, "(" * 60 + "name=a" + ")" * 60, "not " * 60 + "name=a"):
        with pytest.raises(InvalidRequest):
            parse_filter(text)


def test_a_filter_of_hundreds_of_comparisons_is_refused_at_the_one_that_is_too_many() -> None:
    assert parse_filter(" or ".join(["gpus>9"] * 100)) is not None
    with pytest.raises(InvalidRequest, match=r"column 1001: it has more than 100 comparisons; .* FIELD in \(A, B\)"):
        parse_filter(" or ".join(["gpus>9"] * 390))


def test_a_filter_parses_the_spec_of_a_job_once_and_only_if_it_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Job] = []

    def counted(job: Job) -> JobSpec | None:
        parsed.append(job)
        return spec_of(job)

    monkeypatch.setattr(job_filter, "spec_of", counted)
    assert matches("user=ada and env.LR!=1", a_job()) is True
    assert parsed == []
    assert matches(" or ".join(["gpus>9", "learners>1", "framework=jax"] * 30), a_job()) is False
    assert len(parsed) == 1


@pytest.mark.parametrize("text", [None, "", "  "])
def test_an_empty_filter_is_none(text: str | None) -> None:
    assert parse_filter(text) is None


@given(st.text(st.sampled_from("name=<>!~()and'\" orti1.d,\\\x00é"), max_size=40))
def test_any_text_is_a_filter_or_a_refusal(text: str) -> None:
    try:
        parsed = parse_filter(text)
    except InvalidRequest:
        return
    if parsed is not None:
        assert parsed.match(a_job(), {}, now=NOW) in {True, False}


def test_every_field_can_be_compared() -> None:
    for field in FIELDS:
        for value in ("x", "1", "2d", "FAILED"):
            try:
                parsed = parse_filter(f"{field}={value}")
            except InvalidRequest:
                continue
            assert parsed is not None
            assert parsed.match(a_job(), {}, now=NOW) in {True, False}
            break
        else:
            pytest.fail(field)
