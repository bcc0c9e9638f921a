"""Copies rights, admission policies and Grafana's dashboard into the chart, which can read its own files only.

python -m scripts.chart_files            writes helm/weft/files
python -m scripts.chart_files --check    fails if a copy is not current
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from scripts.generated import write_or_check

ROOT: Final = Path(__file__).parents[1]
_FOLDER: Final = ROOT / "services" / "core" / "adapters" / "kubernetes" / "manifest_files"
SOURCES: Final = (
    _FOLDER / "rights.yaml",
    _FOLDER / "policies.yaml",
    _FOLDER / "guardian_jobs.yaml",
    ROOT / "services" / "local" / "grafana.json",
)
COPIES: Final = ROOT / "helm" / "weft" / "files"


if __name__ == "__main__":
    sys.exit(max([write_or_check(COPIES / source.name, source.read_text()) for source in SOURCES]))
