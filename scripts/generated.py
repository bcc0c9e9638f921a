"""Files that are made from the source: written, or with --check compared with those that are committed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def write_or_check(path: Path, text: str) -> int:
    """Writes the file, or compares it with --check. Returns the exit code: 1 for one that is not current."""
    parser = argparse.ArgumentParser(description=f"Write {path.name}.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is not current")
    if not parser.parse_args().check:
        path.write_text(text)
        return 0
    if path.exists() and path.read_text() == text:
        return 0
    sys.stderr.write(f"{path.name} is not what the source gives: run `make docs`\n")
    return 1
