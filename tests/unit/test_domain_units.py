"""Parsing and formatting of durations and sizes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.units import format_bytes, format_duration, parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("30s", 30_000),
        ("2h", 7_200_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("1d", 86_400_000),
        (" 1.5H ", 5_400_000),
        ("0s", 0),
        (10, 10_000),
        (0.25, 250),
        ("1m1ms", 60_001),
    ],
)
def test_a_duration_is_parsed(text: object, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "s",
        "-5s",
        "1 h",
        "1h 30m",
        "1y",
        "1e3s",
        "1_0s",
        "٣s",
        True,
        False,
        None,
        [],
        {},
        -1,
        -0.1,
        math.nan,
        math.inf,
        10**400,
        "9" * 400 + "d",
        "9" * 5000 + "s",
    ],
)
def test_other_text_than_a_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_duration(text)
    assert type(caught.value) is ValueError


@given(st.integers(0, 10**15 - 1))
def test_a_formatted_duration_parses_to_the_same_number(ms: int) -> None:
    assert parse_duration(format_duration(ms)) == ms


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("16Gb", 16 * 10**9),
        ("300MiB", 300 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("512", 512),
        (0, 0),
        (7, 7),
        ("1 tb", 10**12),
        ("2Ki", 2048),
        ("3m", 3_000_000),
        ("8b", 8),
        (2.0, 2),
        ("1073741823.9999GiB", None),
    ],
)
def test_a_size_is_parsed(text: object, count: int | None) -> None:
    assert count is None or parse_bytes(text) == count
    assert isinstance(parse_bytes(text), int)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GB",
        "-1",
        "1 XB",
        "1.GB",
        ".5GB",
        "1,5GB",
        "٣GB",
        "1e9",
        True,
        False,
        None,
        [],
        -1,
        math.nan,
        math.inf,
        1e300,
        2**63,
        10**400,
        "8388608TiB",
        "9" * 400,
        "9" * 5000,
    ],
)
def test_other_text_than_a_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_bytes(text)
    assert type(caught.value) is ValueError


@given(st.integers(0, 2**63 - 1) | st.integers(0, 10**6).flatmap(lambda n: st.sampled_from([n * 2**30, n * 10**9])))
def test_a_formatted_size_parses_to_the_same_number(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == count


def test_a_size_is_formatted_in_the_shortest_exact_form() -> None:
    counts = [0, 999, 10**6, 2**20, 24 * 10**9, 2**30, 3 * 2**29, 5 * 10**12, 2**40]
    texts = ["0", "999", "1MB", "1MiB", "24GB", "1GiB", "1536MiB", "5TB", "1TiB"]
    assert [format_bytes(count) for count in counts] == texts
