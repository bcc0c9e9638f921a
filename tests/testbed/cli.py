"""A folder with a job, and what tests of commands need beside it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from services.core.runtime.learner_folder import JOB_FOLDER
from tests.testbed.platform import Platform
from tests.testbed.screen import Screen
from tests.testbed.terminal import Output

TRAIN = """\
import os, sys, time
import weft
print("\\x1b[2Jhello from", os.environ["WEFT_RANK"], flush=True)
for step in range(1, 21):
    weft.report(step=step, loss=1 / step)
open(os.path.join(os.environ["RESULT_DIR"], "model.txt"), "w").write("weights")
time.sleep(float(os.environ.get("SLEEP", "0")))
sys.exit(int(os.environ.get("CODE", "0")))
"""
SPEC = """\
name: cli-life
command: python3 train.py
code: .
learners: 2
resources: {cpus: 0.5, memory: 64MiB}
grace: 2s
"""
WEFT_COMMAND = str(Path(sys.executable).with_name("weft"))
Weft = Callable[..., Output]
"""Runs a command in this process, as a user types it."""


def in_terminal(command: list[str], environment: dict[str, str], typed: str = "") -> tuple[str, int]:
    """Runs a command on a pseudo-terminal where ``typed`` was typed ahead: what it drew, and its exit code."""
    with Screen(command, environment) as screen:
        screen.type(typed)
        code = screen.end()
        return screen.drawn, code


def variables(platform: Platform) -> dict[str, str]:
    """By which a command finds this platform."""
    return {"WEFT_URL": platform.url, "WEFT_KEY": platform.key}


def let_go(platform: Platform, job: str) -> None:
    """Lets the program of a job continue that waits for the file ``go``."""
    (platform.home / "node" / job / "1" / "worker-0" / JOB_FOLDER / "go").touch()
