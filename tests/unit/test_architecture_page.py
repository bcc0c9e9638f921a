"""docs/architecture.md is drawn from the code that is there, and its tables name files and functions that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("architecture.md", "where-do-i-put-it.md")


def test_the_picture_is_drawn_from_the_current_imports() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "architecture.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run `make docs`"


@pytest.mark.parametrize("page", PAGES)
def test_every_path_on_the_page_exists(page: str) -> None:
    paths = re.findall(r"`((?:services|tests|docs|cli|proto|scripts)/[\w./-]*)`", (ROOT / "docs" / page).read_text())
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_function_in_the_life_of_a_job_exists() -> None:
    """A row names a file and, after it, the functions, classes and methods that do the step."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`(services/[\w/]+\.py)` ([A-Za-z_.]+)", text)
    assert len(named) > 15
    missing = [
        f"{path}: {name}"
        for path, dotted in named
        for name in dotted.split(".")
        if not re.search(rf"^ *(?:async def|def|class) {name}\b", (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert missing == []
