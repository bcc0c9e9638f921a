"""The edge of a thread: what a call returned or raised, as a value for the thread that waits for it.

An error that ends a thread silently would leave its callers waiting forever. Imports nothing heavy: helpers use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The result of a call, or its error."""

    returned: T | None
    error: BaseException | None = None

    def result(self) -> T:
        """What the call returned. Raises the error of the call."""
        if self.error is not None:
            raise self.error
        return self.returned  # type: ignore[return-value]  # None is a T where the call returns it

    def settle(self, future: Future[T] | asyncio.Future[T]) -> None:
        """Sets the result or error of the future, unless it is done: its caller may have been cancelled."""
        if future.done():
            return
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.result())


def outcome_of(function: Callable[[], T]) -> Outcome[T]:
    """Calls the function. Raises nothing: even SystemExit becomes an error of the caller that waits for the outcome."""
    try:
        return Outcome(function())
    except BaseException as error:  # noqa: BLE001 - the edge of all threads: the thread that waits raises it
        return Outcome(None, error)
