"""Learner tokens of installations that had one secret for all services: learners that still run keep theirs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.tokens import LearnerIdentity
from services.core.domain.tokens import verify_shared as verify

SECRET = b"s" * 32
IDENTITY = LearnerIdentity(job="j1", tenant="ac.me ü", attempt=2, role="worker", rank=3, name="worker-3")


def mint(secret: bytes, identity: LearnerIdentity) -> str:
    """As those installations did."""
    body = base64.urlsafe_b64encode(json.dumps(asdict(identity), separators=(",", ":")).encode()).rstrip(b"=")
    mac = hmac.new(secret, b"weft learner token v1\x00" + body, hashlib.sha256).hexdigest()
    return f"{body.decode()}.{mac}"


def test_a_token_is_verified_with_the_secret_it_was_made_with() -> None:
    token = mint(SECRET, IDENTITY)
    assert verify(SECRET, token) == IDENTITY
    assert verify(b"another", token) is None
    assert token.isascii()


def test_a_token_with_another_identity_is_refused() -> None:
    _, _, mac = mint(SECRET, IDENTITY).partition(".")
    forged = base64.urlsafe_b64encode(json.dumps(asdict(replace(IDENTITY, rank=0))).encode()).rstrip(b"=").decode()
    assert verify(SECRET, f"{forged}.{mac}") is None


@given(st.text(max_size=50) | st.text("abc.=-_ü", max_size=20))
def test_any_other_text_is_refused(text: str) -> None:
    assert verify(SECRET, text) is None


@pytest.mark.parametrize("index", [0, 5, 40, -1, -30])
def test_a_token_with_a_changed_character_is_refused(index: int) -> None:
    token = list(mint(SECRET, IDENTITY))
    token[index] = "A" if token[index] != "A" else "B"
    assert verify(SECRET, "".join(token)) is None
