"""Copies the rights and admission policies of `weft manifests` into the chart, which can read its own files only.

python -m scripts.chart_files            writes helm/weft/files
python -m scripts.chart_files --check    fails if a copy is not current
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_FOLDER: Final = ROOT / "services" / "core" / "adapters" / "kubernetes" / "manifest_files"
SOURCES: Final = (_FOLDER / "rights.yaml", _FOLDER / "policies.yaml")
COPIES: Final = ROOT / "helm" / "weft" / "files"


def outdated() -> list[Path]:
    """The sources whose copies differ or are missing."""
    return [source for source in SOURCES if not _same(source, COPIES / source.name)]


def _same(source: Path, copy: Path) -> bool:
    return copy.is_file() and copy.read_bytes() == source.read_bytes()


def main() -> int:
    """Returns the exit code."""
    differing = outdated()
    if "--check" in sys.argv[1:]:
        for source in differing:
            sys.stderr.write(f"helm/weft/files/{source.name} is not {source.relative_to(ROOT)}: run `make docs`\n")
        return 1 if differing else 0
    for source in differing:
        (COPIES / source.name).write_bytes(source.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
