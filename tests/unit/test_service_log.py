"""The services' log: one JSON object per line, and no failure where it cannot be written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import structlog
from services.core.bootstrap.log import configure_logging
configure_logging("api", "info")
structlog.get_logger().info("test.logged", text="\\udcff \\u00e4")
print("continues")
"""


def run_program(log: Path) -> str:
    """Runs a program that logs one line to ``log``. Returns its standard output."""
    with log.open("ab") as file:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=file, text=True, timeout=60, check=True
        )
    return done.stdout


@pytest.mark.slow
def test_a_log_is_one_json_object_per_line(tmp_path: Path) -> None:
    assert run_program(tmp_path / "api.log") == "continues\n"
    (line,) = (tmp_path / "api.log").read_text().splitlines()
    assert {"service": "api", "event": "test.logged", "level": "info"}.items() <= json.loads(line).items()


@pytest.mark.slow
def test_a_service_continues_when_the_disk_of_its_log_is_full() -> None:
    assert run_program(Path("/dev/full")) == "continues\n"
