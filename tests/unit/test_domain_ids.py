"""Ids: form and order."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.ids import RANDOM_BITS, is_id, make_id

TIMES = st.integers(0, 2**50 - 1)
RANDOMS = st.integers(0, 2**RANDOM_BITS - 1)


@given(TIMES, RANDOMS)
def test_an_id_is_a_dns_label_of_at_most_thirty_characters(now_ms: int, random_bits: int) -> None:
    job_id = make_id("j", now_ms=now_ms, random_bits=random_bits)
    assert re.fullmatch(r"[a-z][a-z0-9]{0,29}", job_id)
    assert is_id(job_id, "j")
    assert not is_id(job_id, "k")


@given(st.lists(st.tuples(TIMES, RANDOMS), max_size=20))
def test_ids_sort_by_time_and_differ_by_randomness(stamps: list[tuple[int, int]]) -> None:
    ids = [make_id("j", now_ms=time, random_bits=bits) for time, bits in sorted(stamps)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(set(stamps))


@pytest.mark.parametrize("prefix", ["", "J", "jj", "1", "é", "-", "\n"])
def test_a_prefix_is_one_lower_case_letter(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        make_id(prefix, now_ms=1, random_bits=1)


@pytest.mark.parametrize(
    "text", ["", "j", "j" + "0" * 21, "j" + "0" * 23, "j" + "i" * 22, "j" + "0" * 21 + "\n", "../x"]
)
def test_text_of_another_form_is_not_an_id(text: str) -> None:
    assert not is_id(text, "j")
