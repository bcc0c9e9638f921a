"""`make test-stress`: what is left of it when it is ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import HANG_S, eventually

ROOT = Path(__file__).parents[2]
TESTS = """#!/usr/bin/env bash
end() { trap '' INT TERM; sleep 1; touch ended; exit 2; }
trap end INT TERM
touch started
for _ in {1..600}; do sleep 0.1; done
"""
"""In the place of a run of the tests. It takes a moment to end its servers."""


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_stress_run_that_is_ended_lets_the_tests_end_their_servers(by: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(ROOT / "scripts" / "stress.py", tmp_path / "scripts")
    tests = tmp_path / "scripts" / "test.sh"
    tests.write_text(TESTS)
    tests.chmod(0o755)
    with subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, script, "--runs", "2"], cwd=tmp_path, start_new_session=True
    ) as stress:
        eventually((tmp_path / "started").exists)
        if by is signal.SIGINT:
            os.killpg(stress.pid, by)  # as a terminal
        else:
            stress.send_signal(by)
        assert stress.wait(HANG_S) == 128 + by
    assert (tmp_path / "ended").exists()
