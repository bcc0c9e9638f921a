"""docs/failures.md shows what `weft explain` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testbed.platform import Platform
from tests.testbed.ways_to_fail import WAYS, sections, ways, written
from weft import Client


@pytest.mark.parametrize("weft_up", ["embedded"], indirect=True)
def test_page_of_failures_shows_what_explain_prints(client: Client, weft_up: Platform, tmp_path: Path) -> None:
    """`python scripts/failures.py` writes the page."""
    committed = written()
    assert list(committed) == [way.title for way in WAYS]
    for title, text in sections(client, ways(weft_up), tmp_path).items():
        assert text == committed[title]
