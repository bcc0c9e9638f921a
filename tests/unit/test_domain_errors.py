"""The one table of errors."""

from __future__ import annotations

from collections import Counter

import grpc
import pytest

from services.core.domain import errors
from services.core.domain.errors import TABLE, Duplicate, Internal, NotFound, WeftError, row


def kinds(kind: type[WeftError] = WeftError) -> set[type[WeftError]]:
    """Our own errors, not those that other tests define."""
    mine = {kind} if kind.__module__ == errors.__name__ else set[type[WeftError]]()
    return mine.union(*(kinds(child) for child in kind.__subclasses__()))


def test_every_error_has_a_row_and_every_row_an_error() -> None:
    assert set(TABLE) == kinds()


def test_codes_are_unique_but_for_the_root() -> None:
    codes = Counter(shown.code for shown in TABLE.values())
    assert {code for code, count in codes.items() if count > 1} == {"internal"}
    assert row(WeftError) == row(Internal)


@pytest.mark.parametrize("shown", TABLE.values(), ids=lambda shown: shown.code)
def test_a_row_can_be_shown_by_every_front_door(shown: errors.ErrorRow) -> None:
    assert 400 <= shown.http <= 599
    assert hasattr(grpc.StatusCode, shown.grpc)
    assert shown.exit_code in {1, 2, 3, 4, 5}
    assert shown.problem_type == f"urn:weft:error:{shown.code}"


def test_an_error_is_shown_as_its_nearest_parent() -> None:
    class Special(Duplicate): ...

    assert row(Special("x")) == row(Duplicate)
    assert row(NotFound("there is no job j")).http == 404
    assert str(NotFound("there is no job j")) == "there is no job j"
