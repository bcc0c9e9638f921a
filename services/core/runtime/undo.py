"""Undoes what was begun if the rest fails."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager


@contextmanager
def undo_on_failure(undo: Callable[[], object]) -> Generator[None]:
    """Calls ``undo`` if the body raises anything, cancellation included, and then raises that error."""
    with ExitStack() as stack:
        stack.callback(undo)
        yield
        stack.pop_all()
