"""The edges of loops and threads, and undoing what was begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

import pytest
import structlog
from structlog.testing import capture_logs

from services.core.runtime.edges import log_unexpected
from services.core.runtime.outcomes import Outcome, outcome_of
from services.core.runtime.undo import undo_on_failure


def raising(error: BaseException) -> Callable[[], None]:
    def raise_error() -> None:
        raise error

    return raise_error


def test_unexpected_error_is_logged_with_its_trace_and_fields() -> None:
    with capture_logs() as logs:
        with log_unexpected("round.failed", job="j1") as edge:
            raising(ZeroDivisionError("a bug"))()
        assert edge.failed
    assert logs == [{"event": "round.failed", "job": "j1", "exc_info": True, "log_level": "error"}]


def test_trace_of_an_unexpected_error_shows_where_it_was_raised() -> None:
    with capture_logs(processors=[structlog.processors.format_exc_info]) as logs, log_unexpected("round.failed"):
        raising(ZeroDivisionError("a bug"))()
    assert "in raise_error" in logs[0]["exception"]
    assert "ZeroDivisionError: a bug" in logs[0]["exception"]


def test_body_without_an_error_logs_nothing() -> None:
    with capture_logs() as logs, log_unexpected("round.failed") as edge:
        pass
    assert (logs, edge.failed) == ([], False)


@pytest.mark.parametrize("kind", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
def test_cancellation_and_the_end_of_the_process_pass(kind: type[BaseException]) -> None:
    with capture_logs() as logs, pytest.raises(kind), log_unexpected("round.failed"):
        raise kind
    assert logs == []


def test_expected_errors_are_raised_and_not_logged() -> None:
    with capture_logs() as logs, pytest.raises(FileNotFoundError), log_unexpected("round.failed", expected=OSError):
        raise FileNotFoundError
    assert logs == []


async def test_cancelled_task_ends_inside_log_unexpected() -> None:
    started = asyncio.Event()

    async def wait_forever() -> None:
        with log_unexpected("loop.failed"):
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait_forever())
    await started.wait()
    task.cancel()
    with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        await task
    assert (task.cancelled(), logs) == (True, [])


async def test_result_of_a_call_is_set_in_a_future() -> None:
    for future in (Future[int](), asyncio.get_running_loop().create_future()):
        outcome_of(lambda: 7).settle(future)
        assert future.result() == 7


@pytest.mark.parametrize("error", [OSError("broken"), SystemExit(3)])
async def test_error_of_a_call_is_set_in_a_future_with_its_trace(error: BaseException) -> None:
    for future in (Future[None](), asyncio.get_running_loop().create_future()):
        outcome_of(raising(error)).settle(future)
        with pytest.raises(type(error)) as caught:
            future.result()
        assert caught.value is error
        assert caught.traceback[-1].name == "raise_error"


async def test_future_of_a_cancelled_caller_is_left_alone() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    Outcome(7).settle(future)
    assert future.cancelled()


def test_outcome_returns_the_result_or_raises_the_error() -> None:
    assert outcome_of(lambda: None).result() is None
    with pytest.raises(OSError, match="broken"):
        outcome_of(raising(OSError("broken"))).result()


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError, KeyboardInterrupt])
def test_failed_body_is_undone_and_its_error_raised(kind: type[BaseException]) -> None:
    undone: list[str] = []
    with pytest.raises(kind), undo_on_failure(lambda: undone.append("undone")):
        raise kind
    assert undone == ["undone"]


def test_successful_body_is_not_undone() -> None:
    undone: list[str] = []
    with undo_on_failure(lambda: undone.append("undone")):
        pass
    assert undone == []
