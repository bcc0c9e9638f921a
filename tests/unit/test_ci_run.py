"""The command of the continuous integration: its status, its last line, and its end by a signal."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.waiting import HANG_S, eventually

ROOT = Path(__file__).parents[2]
MAKEFILE = """
MAKEFLAGS += --no-print-directory
test:
\t@./tests.sh
"""


def ci_run(folder: Path, tests: str) -> Path:
    """The command, in a project whose tests are this script."""
    (folder / ".ci").mkdir()
    (folder / "Makefile").write_text(MAKEFILE)
    (folder / "tests.sh").write_text(f"#!/usr/bin/env bash\n{tests}")
    (folder / "tests.sh").chmod(0o755)
    return Path(shutil.copy(ROOT / ".ci" / "run", folder / ".ci"))


@pytest.mark.parametrize("level", ["0", "1"])
@pytest.mark.parametrize("code", [0, 1])
def test_status_and_last_line_are_those_of_the_tests(code: int, level: str, tmp_path: Path) -> None:
    """Also where make runs it: the inner one then says where it was."""
    command = ci_run(tmp_path, f"echo first; echo last >&2; exit {code}\n")
    environment = {**os.environ, "MAKELEVEL": level}
    done = subprocess.run(
        [command], env=environment, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert ((done.returncode == 0), done.stdout.splitlines()[-2:]) == (code == 0, ["first", "last"])


def test_sigterm_ends_the_tests(tmp_path: Path) -> None:
    command = ci_run(
        tmp_path,
        "trap 'sleep 1; touch ended; echo 3 passed; exit 2' TERM\n"
        "touch started\n"
        "for _ in {1..600}; do sleep 0.1; done\n",
    )
    with subprocess.Popen([command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        eventually((tmp_path / "started").exists)
        run.terminate()
        output, _ = run.communicate(timeout=HANG_S)
    assert (tmp_path / "ended").exists()
    assert run.returncode != 0
    assert "3 passed\n" in output
