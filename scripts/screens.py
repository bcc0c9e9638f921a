"""Write tests/integration/screens: a week of use on terminals of 80 and 120 columns, played on a platform of its own.

python scripts/screens.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.testbed.platform import platform
from tests.testbed.week import PAGES, WIDTHS, play
from weft import Client


def main() -> None:
    """Plays the story once for each width. Read what has changed before it is committed."""
    PAGES.mkdir(exist_ok=True)
    with platform({"WEFT_NODE_CPUS": "4"}) as running, Client(running.url, running.key) as client:
        for columns in WIDTHS:
            with tempfile.TemporaryDirectory() as folder:
                (PAGES / f"week-{columns}.txt").write_text(play(client, Path(folder), columns))


if __name__ == "__main__":
    main()
