"""Plays the tricks on the combinations, and prints a table of what held and what fell.

``WEFT_HOSTILE``: unset: the quick tricks on one combination; ``all``: every trick on every combination; otherwise
words, separated by commas, of which a combination's name holds one (``WEFT_HOSTILE=sandbox-user,mongo``).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Final

import pytest

from tests.hostile.arena import Arena
from tests.hostile.arena import arena as running_arena
from tests.hostile.combinations import QUICK, Combination, possible, store_settings
from tests.hostile.table import Table
from tests.hostile.tricks import registry
from tests.testbed.mongo import at_database

_TABLE: Final = pytest.StashKey[Table]()
_SHOWN: Final = 3_000
_WANTED: Final = os.environ.get("WEFT_HOSTILE", "")


def _combinations() -> list[Combination]:
    if not _WANTED:
        return [QUICK if QUICK in possible() else possible()[0]]
    words = _WANTED.split(",")
    return [entry for entry in possible() if _WANTED == "all" or any(word in str(entry) for word in words)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trick" not in metafunc.fixturenames:
        return
    played = [
        pytest.param(combination, trick, id=f"{combination}-{trick.theme}:-{trick.name}".replace(" ", "-"))
        for combination in _combinations()
        for trick in (registry.TRICKS if _WANTED else registry.QUICK)
        if combination.isolation not in trick.pointless
    ]
    metafunc.parametrize(("arena", "trick"), played, indirect=["arena"], scope="session")


@pytest.fixture(scope="session")
def arena(
    request: pytest.FixtureRequest, announce: Callable[[str], None], untimed: Callable[[], AbstractContextManager[None]]
) -> Iterator[Arena]:
    """One platform for all tricks of a combination. Its start, with what must be built, is not a test's time."""
    combination: Combination = request.param

    def mongo() -> str:
        return at_database(request.getfixturevalue("mongo_server"), f"weft_hostile_{uuid.uuid4().hex[:12]}")

    with ExitStack() as stack:
        with untimed():
            made = stack.enter_context(running_arena(combination, store_settings(combination, mongo), announce))
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    values = getattr(getattr(item, "callspec", None), "params", {})
    if "trick" in values and (report.when == "call" or report.failed):
        table = item.config.stash.setdefault(_TABLE, Table())
        table.add(values["trick"], str(values["arena"]), held=report.passed)
        if report.failed and call.excinfo is not None:  # at once: a whole run takes long
            item.config.get_terminal_writer().line(f"\nFELL {item.name}\n{str(call.excinfo.value)[:_SHOWN]}")
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    table = config.stash.get(_TABLE, None)
    if table is not None:
        terminalreporter.section("hostile")
        for line in table.lines():
            terminalreporter.write_line(line)
        for isolation in dict.fromkeys(combination.isolation for combination in _combinations()):
            left_out = [trick for trick in registry.TRICKS if isolation in trick.pointless]
            terminalreporter.write_line(f"not played in isolation {isolation}: {len(left_out)} (docs/hostile.md)")
