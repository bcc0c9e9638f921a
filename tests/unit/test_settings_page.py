"""docs/settings.md is up to date and complete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_settings_page_is_generated_from_the_settings() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "settings.py", "--check"], check=False)
    assert done.returncode == 0, "run `python scripts/settings.py`"


def test_every_setting_has_a_description() -> None:
    rows = [line for line in (ROOT / "docs" / "settings.md").read_text().splitlines() if line.startswith("| `WEFT_")]
    assert len(rows) > 20
    assert [row for row in rows if not row.rstrip(" |").rpartition("| ")[2]] == []
