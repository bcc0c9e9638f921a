"""Answers as JSON."""

from __future__ import annotations

import pytest

from services.api.answers import as_time, rfc3339, to_json


@pytest.mark.parametrize(
    ("ms", "written"),
    [
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (0, "1970-01-01T00:00:00.000Z"),
        (2**63 - 1, "9999-12-31T23:59:59.999Z"),
        (-(2**63), "1970-01-01T00:00:00.000Z"),
    ],
)
def test_a_time_outside_the_calendar_is_written_as_the_nearest_valid_time(ms: int, written: str) -> None:
    assert rfc3339(as_time(ms)) == written


def test_lone_surrogates_and_nan_of_one_document_do_not_make_a_list_unreadable() -> None:
    jobs = [{"name": "digits"}, {"name": "half \ud800", "tags": ["\udfff"]}, {"loss": float("nan")}]
    written = b'[{"name":"digits"},{"name":"half ?","tags":["?"]},{"loss":null}]'
    assert to_json(jobs) == written
