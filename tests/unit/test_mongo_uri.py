"""A URI of MongoDB that cannot be used is refused without its password."""

from __future__ import annotations

import traceback

import pytest

from services.core.adapters.mongo.connection import connect
from services.core.domain.errors import InvalidRequest


@pytest.mark.parametrize(
    "password", ["canary/canary", "canary/canary/x", "canary?canary", "canary?canary=1", "c@nary@canary", "can:canary"]
)
def test_a_password_with_characters_of_uris_is_in_no_message_which_says_how_to_write_it(password: str) -> None:
    with pytest.raises(InvalidRequest, match=r"WEFT_JOB_STORE cannot be used: if its password .* %2F ") as refused:
        connect(f"mongodb://weft:{password}@host.example/weft")
    assert "canary" not in "".join(traceback.format_exception(refused.value))


def test_a_wrong_option_of_a_uri_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"ssll"):
        connect("mongodb://weft:secret@host.example/weft?ssll=true")
