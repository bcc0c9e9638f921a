"""The dashboard's committed files that are made from others are current, and name no server."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "services" / "dashboard"


def test_the_committed_openapi_document_is_that_of_the_api() -> None:
    check = subprocess.run([sys.executable, ROOT / "scripts" / "openapi.py", "--check"], check=False)
    assert check.returncode == 0, "run `make docs`"


def test_the_types_of_the_dashboard_are_generated_from_the_committed_openapi_document() -> None:
    digest = hashlib.sha256((ROOT / "docs" / "openapi.json").read_bytes()).hexdigest()
    assert f"sha256:{digest}" in (DASHBOARD / "src/api/schema.ts").read_text()[:300], "run `make docs`"


def test_the_lock_of_the_dashboard_has_a_hash_for_each_package_and_names_no_server() -> None:
    packages = json.loads((DASHBOARD / "package-lock.json").read_text())["packages"]
    installed = [package for path, package in packages.items() if path]
    assert installed
    assert all("integrity" in package and "resolved" not in package for package in installed)


def test_the_dashboard_loads_nothing_from_other_servers() -> None:
    own = [path for path in (DASHBOARD / "src").rglob("*.ts*") if path.name != "schema.ts"]
    pages = [DASHBOARD / "index.html", *own, *(DASHBOARD / "src").rglob("*.css")]
    assert len(pages) > 30
    for page in pages:
        assert "https://" not in page.read_text(), page
