"""A week of use on a terminal: the screens are those in tests/integration/screens (`python scripts/screens.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testbed.platform import Platform
from tests.testbed.week import PAGES, WIDTHS, play, screens
from weft import Client


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("weft_up", ["embedded"], indirect=True)
def test_screens_of_a_week_of_use_are_the_committed_ones(
    client: Client, weft_up: Platform, tmp_path: Path, columns: int
) -> None:
    assert client.url == weft_up.url
    committed = screens((PAGES / f"week-{columns}.txt").read_text())
    played = screens(play(client, tmp_path, columns))
    assert list(played) == list(committed)
    for name, text in played.items():
        assert text == committed[name], name
