"""The table of tricks and combinations that a run prints."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hostile.trick import Trick


class Table:
    def __init__(self) -> None:
        self._results: dict[str, dict[str, bool]] = {}
        self._combinations: dict[str, None] = {}

    def add(self, trick: Trick, combination: str, *, held: bool) -> None:
        self._combinations.setdefault(combination)
        row = self._results.setdefault(f"{trick.theme}: {trick.name}", {})
        row[combination] = row.get(combination, True) and held

    def lines(self) -> Iterator[str]:
        """The table; its last line counts the tricks that fell."""
        width = max(map(len, self._results), default=0)
        yield f"{'':{width}}  {'  '.join(self._combinations)}"
        for name, row in self._results.items():
            cells = [_word(row.get(combination)).ljust(len(combination)) for combination in self._combinations]
            yield f"{name:{width}}  {'  '.join(cells)}".rstrip()
        results = [held for row in self._results.values() for held in row.values()]
        played = f"{len(self._results)} tricks on {len(self._combinations)} combinations, {len(results)} in all"
        yield f"{played}: {results.count(False)} fell"


def _word(held: bool | None) -> str:  # noqa: FBT001 - a cell
    return "-" if held is None else "held" if held else "FELL"
