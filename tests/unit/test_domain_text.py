"""Text and names in a form that every store takes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.text import storable, storable_name
from services.core.ports.object_store import check_key

ANY_TEXT = st.text(st.characters(exclude_categories=()))
NAMES = (
    st.binary(min_size=1).map(lambda raw: raw.replace(b"/", b"_")).map(lambda raw: raw.decode(errors="surrogateescape"))
)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("loss", "loss"),
        ("größe 漢字\tx\n", "größe 漢字\tx\n"),
        ("lo\0ss", "lo\\x00ss"),
        (b"caf\xe9".decode(errors="surrogateescape"), "caf\\xe9"),
        ("\ud800", "\\ud800"),
        ("\\x00", "\\x00"),
    ],
)
def test_text_that_a_store_would_refuse_is_escaped_visibly(text: str, stored: str) -> None:
    assert storable(text) == stored


@given(ANY_TEXT)
def test_any_text_is_storable_and_escaped_once(text: str) -> None:
    stored = storable(text)
    assert json.loads(json.dumps(stored, ensure_ascii=False).encode()) == stored
    assert "\0" not in stored
    assert storable(stored) == stored


@given(NAMES)
def test_any_file_name_becomes_a_valid_object_key(name: str) -> None:
    key = storable_name(name)
    if len(key.encode()) <= 1000:
        check_key(f"results/x{key}")


@given(st.lists(NAMES.filter(lambda name: "\\" not in name), unique=True, min_size=2))
def test_different_file_names_stay_different(names: list[str]) -> None:
    assert len({storable_name(name) for name in names}) == len(names)
