"""Writes docs/openapi.json, the OpenAPI document of the REST API, from which the dashboard's types are generated.

python scripts/openapi.py          writes it
python scripts/openapi.py --check  compares the committed document
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scripts.generated import write_or_check
from services.api.rest.app import create_routes
from services.api.rest.openapi import document

TARGET = Path(__file__).parents[1] / "docs" / "openapi.json"


def text() -> str:
    """The document. Its version is left out: a release does not change the types."""
    openapi = document(create_routes())
    openapi["info"]["version"] = ""
    return json.dumps(openapi, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, text()))
