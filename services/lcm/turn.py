"""One turn through many jobs or objects of a store or the cluster, in which one that fails must not stop the others."""

from __future__ import annotations

from typing import Final

from services.core.domain.errors import Unavailable, WeftError

_AWAY: Final = 3
"""So many failures in a row mean that the store or the cluster is away, and end the turn."""


class Turn:
    """Distinguishes a store that is away from one that refuses single jobs or objects. Call it for each of them."""

    def __init__(self) -> None:
        self._tried = self._in_a_row = 0
        self._last: Unavailable | None = None

    def succeeded(self) -> None:
        self._tried, self._in_a_row = self._tried + 1, 0

    def failed(self, error: WeftError) -> None:
        """Raises Unavailable if the store is away."""
        self._tried += 1
        if not isinstance(error, Unavailable):
            self._in_a_row = 0
            return
        self._in_a_row, self._last = self._in_a_row + 1, error
        if self._in_a_row == _AWAY:
            raise error

    def end(self) -> None:
        """Raises Unavailable if nothing succeeded for that reason."""
        if self._last is not None and self._in_a_row == self._tried:
            raise self._last
