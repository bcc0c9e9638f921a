"""The table of errors."""

from __future__ import annotations

from collections import Counter

import grpc
import pytest

from services.core.domain import errors
from services.core.domain.errors import TABLE, Duplicate, Internal, NotFound, WeftError, row


def error_classes(parent: type[WeftError] = WeftError) -> set[type[WeftError]]:
    """The errors of ``services.core.domain.errors``, without those that tests define."""
    own = {parent} if parent.__module__ == errors.__name__ else set[type[WeftError]]()
    return own.union(*(error_classes(child) for child in parent.__subclasses__()))


def test_every_error_has_a_row_and_every_row_an_error() -> None:
    assert set(TABLE) == error_classes()


def test_codes_are_unique_except_that_of_the_root() -> None:
    codes = Counter(error_row.code for error_row in TABLE.values())
    assert {code for code, count in codes.items() if count > 1} == {"internal"}
    assert row(WeftError) == row(Internal)


@pytest.mark.parametrize("error_row", TABLE.values(), ids=lambda error_row: error_row.code)
def test_a_row_has_valid_codes_for_http_grpc_and_the_command_line(error_row: errors.ErrorRow) -> None:
    assert 400 <= error_row.http <= 599
    assert hasattr(grpc.StatusCode, error_row.grpc)
    assert error_row.exit_code in {1, 2, 3, 4, 5}
    assert error_row.problem_type == f"urn:weft:error:{error_row.code}"


def test_an_error_without_a_row_has_that_of_its_nearest_parent() -> None:
    class Special(Duplicate): ...

    assert row(Special("x")) == row(Duplicate)
    assert row(NotFound("there is no job j")).http == 404
    assert str(NotFound("there is no job j")) == "there is no job j"
