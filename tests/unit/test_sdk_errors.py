"""The SDK's errors have the platform's names, codes and exit codes."""

from __future__ import annotations

import pytest

import weft
from services.core.domain import errors as platform
from weft import _errors as sdk
from weft._cli.ends import exit_code, worst


@pytest.mark.parametrize(
    "kind", [kind for kind in platform.TABLE if kind is not platform.WeftError], ids=lambda k: k.__name__
)
def test_every_platform_error_has_an_sdk_error(kind: type[platform.WeftError]) -> None:
    row, twin = platform.TABLE[kind], getattr(sdk, kind.__name__)
    assert (twin.code, twin.exit_code, twin.retryable) == (row.code, row.exit_code, row.retryable)
    assert [parent.__name__ for parent in twin.__mro__] == [parent.__name__ for parent in kind.__mro__]


@pytest.mark.parametrize(
    "kind", [kind for kind in platform.TABLE if kind is not platform.WeftError], ids=lambda k: k.__name__
)
def test_problem_document_becomes_the_matching_error(kind: type[platform.WeftError]) -> None:
    row = platform.TABLE[kind]
    problem = {
        "type": row.problem_type,
        "title": "T",
        "status": row.http,
        "code": row.code,
        "detail": "what to do",
        "errors": [{"pointer": "/roles/worker/count", "message": "m", "hint": "h"}],
        "trace_id": "t",
    }
    error = sdk.from_problem(row.http, problem, retry_after="7")
    assert type(error).__name__ == kind.__name__
    assert (str(error), error.status, error.retry_after_s, error.trace_id) == ("what to do", row.http, 7.0, "t")
    assert [(field.path, field.message, field.hint) for field in error.errors] == [("roles.worker.count", "m", "h")]


@pytest.mark.parametrize(
    ("status", "problem", "kind"),
    [
        (404, None, sdk.NotFound),
        (502, None, sdk.Unavailable),
        (500, {}, sdk.Internal),
        (418, None, sdk.Internal),
        (429, {"code": "not-known-yet"}, sdk.ResourceExhausted),
        (400, {"errors": ["x", None]}, sdk.InvalidRequest),
    ],
)
def test_answer_without_a_known_code_maps_by_its_status(
    status: int, problem: dict[str, object] | None, kind: type[sdk.WeftError]
) -> None:
    error = sdk.from_problem(status, problem, retry_after="soon")
    assert type(error) is kind
    assert str(error)
    assert error.retry_after_s is None


def test_every_public_name_exists() -> None:
    for name in weft.__all__:
        assert getattr(weft, name).__name__ == name
    unknown = "nothing_of_the_kind"
    with pytest.raises(AttributeError):
        _ = getattr(weft, unknown)


def test_job_end_maps_to_an_exit_code() -> None:
    codes = {status: exit_code(status) for status in ("COMPLETED", "FAILED", "KILLED", "HALTED", "PROCESSING", "")}
    assert codes == {"COMPLETED": 0, "FAILED": 100, "KILLED": 103, "HALTED": 103, "PROCESSING": 101, "": 101}
    assert [worst([0, 0]), worst([0, 101]), worst([101, 103, 0]), worst([103, 100]), worst([])] == [0, 101, 103, 100, 0]
