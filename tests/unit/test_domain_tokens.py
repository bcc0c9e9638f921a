"""Learner tokens."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.tokens import LearnerIdentity, mint, verify

SECRET = b"s" * 32
WHO = LearnerIdentity(job="j1", tenant="ac.me ü", attempt=2, role="worker", rank=3, name="worker-3")


def test_a_token_says_whose_it_is_to_who_knows_the_secret() -> None:
    token = mint(SECRET, WHO)
    assert verify(SECRET, token) == WHO
    assert verify(b"another", token) is None
    assert token.isascii()


def test_another_s_identity_cannot_be_put_in() -> None:
    _, _, mac = mint(SECRET, WHO).partition(".")
    forged = base64.urlsafe_b64encode(json.dumps(asdict(replace(WHO, rank=0))).encode()).rstrip(b"=").decode()
    assert verify(SECRET, f"{forged}.{mac}") is None


@given(st.text(max_size=50) | st.text("abc.=-_ü", max_size=20))
def test_any_other_text_is_nobody_s(text: str) -> None:
    assert verify(SECRET, text) is None


@pytest.mark.parametrize("place", [0, 5, 40, -1, -30])
def test_no_character_can_be_changed(place: int) -> None:
    token = list(mint(SECRET, WHO))
    token[place] = "A" if token[place] != "A" else "B"
    assert verify(SECRET, "".join(token)) is None
