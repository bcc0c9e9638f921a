"""What a run of the tests on two worker processes prints, and the time limits of a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import HANG_S, eventually

ROOT = Path(__file__).parents[2]
PROMISING = """
import pytest
from tests.promises import Promise

@pytest.mark.promise("R{number}")
def test_kept(promise: Promise) -> None:
    promise.kept({number}, "tries")
"""
FAILING = "def test_wrong():\n    assert 1 == 2\n"


def on_two_workers(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the tests of the folder."""
    plugins = ("tests.promises", "tests.testbed.workers", "tests.testbed.progress")
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            "/dev/null",
            "--rootdir",
            folder,
            "-p",
            "no:cacheprovider",
            "-n",
            "2",
            *(word for plugin in plugins for word in ("-p", plugin)),
            "-o",
            "console_output_style=classic",
            *options,
            folder,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_run_on_two_workers_prints_failures_promises_of_both_and_pytests_own_last_line(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"test_{number}.py").write_text(PROMISING.format(number=number))
    (tmp_path / "test_wrong.py").write_text(FAILING)
    done = on_two_workers(tmp_path)
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED test_wrong.py::test_wrong" in lines
    assert [line.split()[0] for line in lines if "tries" in line] == ["R1", "R2"]
    # A run of more than half a minute prints such a line before, too.
    progress = [line.split(maxsplit=1)[1] for line in lines if " of 3 tests" in line]
    assert progress[-1:] == ["3 of 3 tests, 1 failed"]
    assert "= 1 failed, 2 passed in " in lines[-1]


CRASHING = """
import os

def test_first():
    pass

def test_crash():
    os._exit(3)

def test_last():
    pass
"""
CRASHES_AT_ITS_END = """
import os

def pytest_sessionfinish(session):
    if session.items and "last" in session.items[-1].name and hasattr(session.config, "workerinput"):
        os._exit(3)
"""


def test_crash_of_a_worker_fails_one_test_and_always_one(tmp_path: Path) -> None:
    """A test that ended its worker, e.g. by its time limit, was begun again by each worker that took its place."""
    (tmp_path / "test_crash.py").write_text(CRASHING)
    done = on_two_workers(tmp_path)
    assert "= 1 failed, 2 passed in " in done.stdout.splitlines()[-1], done.stdout
    (tmp_path / "test_crash.py").write_text(CRASHING.replace("os._exit(3)", "pass"))
    (tmp_path / "conftest.py").write_text(CRASHES_AT_ITS_END)
    done = on_two_workers(tmp_path, "--max-worker-restart=0")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert " crashed after its last test: Not properly terminated" in done.stdout


WAITING = """
import asyncio
import time
from pathlib import Path
import pytest

@pytest.fixture(scope="session")
def server():
    yield
    time.sleep(2)
    (Path(__file__).parent / "server-ended").touch()

def test_waiting(server):
    (Path(__file__).parent / "started").touch()
    WAIT
"""


def test_sigterm_ends_a_run_with_the_servers_of_its_tests(tmp_path: Path) -> None:
    """They ran on. The workers ignored Ctrl-C, too, as all that a script starts in the background."""
    for name, wait in (("a", "time.sleep(600)"), ("b", "asyncio.run(asyncio.sleep(600))")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text(WAITING.replace("WAIT", wait))
    plugins = ("tests.testbed.workers", "tests.testbed.interrupts")
    options = ("-c", "/dev/null", "--rootdir", tmp_path, "-p", "no:cacheprovider", "-n", "2")
    with subprocess.Popen(
        [
            "env",
            "--ignore-signal=INT",
            sys.executable,
            "-m",
            "pytest",
            *options,
            *(word for plugin in plugins for word in ("-p", plugin)),
            tmp_path,
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        eventually(lambda: len(list(tmp_path.glob("*/started"))) == 2)
        run.terminate()
        run.terminate()  # `timeout` and make both pass it on
        output, _ = run.communicate(timeout=HANG_S)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, output
    assert len(list(tmp_path.glob("*/server-ended"))) == 2, output
    assert " in " in output.splitlines()[-1]


TIMERS = """
import threading
import pytest

def timers():
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]

def test_with_a_limit(untimed):
    assert len(timers()) == 1
    with untimed():
        pass

@pytest.mark.timeout(0)
def test_without_a_limit(untimed):
    with untimed():
        pass
    assert timers() == []
"""


def test_time_limit_of_a_test_ends_with_it(tmp_path: Path) -> None:
    """A test without a limit started the timer of the test before it again, which ended the whole run later."""
    (tmp_path / "test_timers.py").write_text(TIMERS)
    options = ("--timeout", "60", "--timeout-method", "thread", "-p", "no:cacheprovider", "-p", "tests.testbed.built")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", tmp_path, *options, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
