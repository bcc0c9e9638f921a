"""Promises of reliability (R1 ...): a test of a promise reports its number of trials; the run prints it with its bound.

    @pytest.mark.promise("R2")
    async def test_one_key_makes_one_job(promise: Promise) -> None:
        for _ in range(promise.n(short=500, long=20_000)):
            ...
        promise.kept(500, "keyed submits, 30 % of their answers cut")

`make test` runs each test with its short number; `make promise R=R2` runs those of one promise with the long number,
or with N=.... The printed bound is that of "0 failures in n" at 95 % (the rule of three: 3/n).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

KEPT = pytest.StashKey[list[str]]()
"""The lines that the run prints."""


@dataclass(slots=True)
class Promise:
    """The results of one test for the promises of its mark."""

    names: tuple[str, ...]
    lines: list[str] = field(default_factory=list)

    def n(self, *, short: int, long: int) -> int:
        """Returns the number of trials: ``short`` in every run, ``long`` (or WEFT_N) if this promise is selected."""
        if os.environ.get("WEFT_PROMISE"):
            return int(os.environ.get("WEFT_N") or long)
        return short

    def kept(self, n: int, what: str) -> None:
        """Records that none of ``n`` trials failed, as the test has asserted. Zero trials are an error."""
        assert n > 0, f"nothing was tried of {what}"
        self.lines.append(f"{'/'.join(self.names):7} 0 of {n:,} failed (95 %: at most {3 / n:.1e})  {what}")

    def saw(self, what: str) -> None:
        """Records a figure of the promise: counts of faults by kind, take-over times."""
        self.lines.append(f"{'/'.join(self.names):7} {what}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise(*names): shows these promises of reliability")
    config.stash[KEPT] = []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker process of pytest-xdist hands its lines to the process that prints them."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["promises"] = session.config.stash[KEPT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    node.config.stash[KEPT] += getattr(node, "workeroutput", {}).get("promises", ())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = os.environ.get("WEFT_PROMISE", "")
    if not wanted:
        return
    of = {name for item in items for mark in item.iter_markers("promise") for name in mark.args}
    names = of if wanted == "all" else {wanted}
    if not names <= of:
        raise pytest.UsageError(f"no test shows {wanted}; there are: {' '.join(sorted(of, key=_in_order))}")
    kept = [item for item in items if any(set(mark.args) & names for mark in item.iter_markers("promise"))]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
    for item in kept:  # the time limit of the short run would end the long one
        item.add_marker(pytest.mark.timeout(0), append=False)


def _in_order(name: str) -> tuple[str, int]:
    return name[:1], int(name[1:])


@pytest.fixture
def promise(request: pytest.FixtureRequest) -> Iterator[Promise]:
    mark = request.node.get_closest_marker("promise")
    assert mark is not None, "a test with the promise fixture needs a mark: @pytest.mark.promise('R2')"
    shown = Promise(tuple(mark.args))
    yield shown
    request.config.stash[KEPT] += shown.lines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash[KEPT]
    if lines:
        terminalreporter.section("promises")
        for line in sorted(lines, key=lambda line: _in_order(line.split()[0].split("/")[0])):
            terminalreporter.line(line)
