"""Write docs/failures.md: run a job for each way to fail, on a platform of its own, and write what `weft explain` says.

python scripts/failures.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.testbed.platform import platform
from tests.testbed.ways_to_fail import PAGE, SETTINGS, WAYS, page, sections, ways, written
from weft import Client


def main() -> None:
    """Runs the jobs and writes the page. Sections that this machine cannot show stay as they are."""
    before = written() if PAGE.exists() else {}
    with (
        platform(SETTINGS) as running,
        Client(running.url, running.key) as client,
        tempfile.TemporaryDirectory() as folder,
    ):
        texts = sections(client, ways(running), Path(folder))
    PAGE.write_text(page({way.title: texts.get(way.title) or before[way.title] for way in WAYS}))


if __name__ == "__main__":
    main()
