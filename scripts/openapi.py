"""Writes docs/openapi.json, the OpenAPI document of the REST API, from which the dashboard's types are generated.

python scripts/openapi.py          writes it
python scripts/openapi.py --check  compares the committed document
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from services.api.rest.app import create_routes
from services.api.rest.openapi import document

TARGET = Path(__file__).parents[1] / "docs" / "openapi.json"


def text() -> str:
    """The document. Its version is left out: a release does not change the types."""
    openapi = document(create_routes())
    openapi["info"]["version"] = ""
    return json.dumps(openapi, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare the committed document")
    if parser.parse_args().check:
        return 0 if TARGET.exists() and TARGET.read_text() == text() else 1
    TARGET.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
