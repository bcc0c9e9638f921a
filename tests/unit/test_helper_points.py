"""The metrics that a line of JSON reports."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.helper.ship.points import may_hold_points, parse_report
from weft._learner import Reporter


def test_reports_of_the_sdk_are_read(tmp_path: Path) -> None:
    reporter = Reporter(environ={"JOB_STATE_DIR": str(tmp_path)}, now_ms=lambda: 42)
    reporter.report(7, {"loss": 0.25, "bad": math.nan, "far": -math.inf}, {}, {"subset": "val"})
    reporter.progress(0.5, 3)
    first, second = map(parse_report, (tmp_path / "metrics.jsonl").read_bytes().splitlines())
    assert first
    assert second
    assert (first.step, first.time_ms, dict(first.context)) == (7, 42, {"subset": "val"})
    assert (first.values["loss"], first.values["far"], math.isnan(first.values["bad"])) == (0.25, -math.inf, True)
    assert second.progress == (0.5, 3000)
    assert not second.values


@pytest.mark.parametrize(
    ("line", "values", "step"),
    [
        ('{"step": 3, "loss": 0.5, "note": "x", "flag": true}', {"loss": 0.5}, 3),
        ('{"step": 3.0, "loss": 1}', {"loss": 1.0}, 3),
        ('{"metrics": {"f1": 0.5}}', {"f1": 0.5}, None),
        ('{"metrics": {"f1": 0.5}, "step": 9, "other": 1}', {"f1": 0.5}, 9),
        ('{"step": null, "loss": 2}', {"loss": 2.0}, None),
        ('{"step": 99999999999999999999, "loss": 2}', {"loss": 2.0}, None),
        ('{"step": 1, "huge": 1' + "0" * 400 + ', "ok": 1}', {"ok": 1.0}, 1),
        ('{"step": 1, "\\ud800": 5}', {"\\ud800": 5.0}, 1),
        ('{"step": 1, "lo\\u0000ss": 5}', {"lo\\x00ss": 5.0}, 1),
    ],
)
def test_json_with_a_step_or_metrics_reports_its_numbers(line: str, values: dict[str, float], step: int | None) -> None:
    report = parse_report(line.encode())
    assert report
    assert (dict(report.values), report.step) == (values, step)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[1]",
        "null",
        '"step"',
        '{"loss": 0.5}',
        '{"step": 3}',
        '{"step": 3, "a": "text"}',
        '{"metrics": 5}',
        '{"step": 1, "values": "x"}',
        '{"progress": {"fraction": "x"}}',
        '{"progress": 5}',
        "[" * 100_000,
        "\xff",
    ],
)
def test_lines_of_other_forms_report_nothing(line: str) -> None:
    assert parse_report(line.encode("latin-1")) is None


def test_most_log_lines_are_not_parsed_as_json() -> None:
    assert not may_hold_points(b"epoch 3: loss 0.5")
    assert not may_hold_points(b'{"message": "hello"}')
    assert may_hold_points(b'{"step": 1, "loss": 2}\r')


KEYS = st.sampled_from(["step", "values", "metrics", "context", "progress", "fraction", "eta_s", "time_ms", "x"])
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=10,
)


@given(st.binary(max_size=200) | DOCUMENTS.map(lambda value: json.dumps(value).encode()))
def test_any_line_is_parsed_without_an_error_to_storable_text(line: bytes) -> None:
    report = parse_report(line)
    if report is not None:
        assert report.values or report.progress
        assert report.step is None or -(2**63) <= report.step < 2**63
        for text in (*report.context, *report.context.values(), *report.values):
            assert "\0" not in text
            text.encode()
