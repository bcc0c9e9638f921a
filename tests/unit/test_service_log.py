"""What a service logs: whole lines, and no harm where they cannot be written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SPEAKS = """
import structlog
from services.core.bootstrap.service import configure_logging
configure_logging("api", "info")
structlog.get_logger().info("it.speaks", what="\\udcff \\u00e4")
print("it goes on")
"""


def speak(log: Path) -> str:
    with log.open("ab") as file:
        done = subprocess.run(
            [sys.executable, "-c", SPEAKS], stdout=subprocess.PIPE, stderr=file, text=True, timeout=60, check=True
        )
    return done.stdout


def test_a_log_is_one_json_object_a_line(tmp_path: Path) -> None:
    assert speak(tmp_path / "api.log") == "it goes on\n"
    (line,) = (tmp_path / "api.log").read_text().splitlines()
    assert {"service": "api", "event": "it.speaks", "level": "info"}.items() <= json.loads(line).items()


def test_a_service_whose_logs_disk_is_full_goes_on() -> None:
    assert speak(Path("/dev/full")) == "it goes on\n"
