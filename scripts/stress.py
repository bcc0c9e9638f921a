"""Runs the tests repeatedly on a busy machine.

    scripts/stress.py [--runs N] [pytest's arguments]

Meanwhile one computing program per processor runs; they end with this program. Prints
the result of each run, and at the end each test that failed with how often it did. Exit status 1 if any test failed.
SIGTERM and Ctrl-C end it once the tests have ended what they had started.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

ROOT: Final = Path(__file__).parents[1]
COMPUTES: Final = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
"""Ends by itself if this program is killed."""


class Ending:
    """Notes SIGTERM and SIGINT, and passes SIGTERM on to the tests.

    A handler that raises could do so while a process is being started, which would then outlive this program.
    """

    def __init__(self) -> None:
        self.number = 0
        """The first signal's; 0: none has arrived."""
        self.tests: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: object) -> None:
        self.number = self.number or number
        if number == signal.SIGTERM:  # SIGINT is sent by the terminal, to the tests as well
            self.pass_on()

    def pass_on(self) -> None:
        """Ends the tests, once, if SIGTERM has arrived."""
        tests, self.tests = self.tests, None
        if tests is not None and tests.poll() is None:
            tests.terminate()


@contextmanager
def busy(processors: int) -> Generator[None]:
    """Runs so many computing programs during the block."""
    programs = [subprocess.Popen([sys.executable, "-c", COMPUTES]) for _ in range(processors)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def run(arguments: Sequence[str], report: Path, ending: Ending) -> tuple[int, set[str], bool]:
    """Returns (number of tests, names of failed tests, True if pytest ended normally)."""
    command = [str(ROOT / "scripts" / "test.sh"), *arguments, f"--junitxml={report}", "-o", "junit_family=xunit1"]
    with subprocess.Popen(command) as tests:
        ending.tests = tests
        if ending.number:  # it came before
            ending.pass_on()
        status = tests.wait()
    ending.tests = None
    if not report.exists():
        return 0, set(), False
    cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314 - pytest has written it just now
    failed = {
        f"{case.get('file')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    return len(cases), failed, status == (1 if failed else 0)


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    options, arguments = parser.parse_known_args()
    ending = Ending()
    processors = len(os.sched_getaffinity(0))
    total, broken, failures = 0, 0, Counter[str]()
    with busy(processors), tempfile.TemporaryDirectory() as folder:
        print(f"stress: {options.runs} runs beside {processors} programs that compute", flush=True)
        for number in range(1, options.runs + 1):
            began = time.monotonic()
            count, failed, in_order = run(arguments, Path(folder) / f"{number}.xml", ending)
            if ending.number:
                return 128 + ending.number
            took = round(time.monotonic() - began)
            total, broken = total + count, broken + (not in_order)
            failures.update(failed)
            verdict = f"{len(failed)} of {count:,} tests failed" if in_order else "pytest did not end in order"
            print(f"stress: run {number} of {options.runs}: {verdict}, {took // 60}:{took % 60:02}", flush=True)
    for name, times in failures.most_common():
        print(f"stress: failed in {times} of {options.runs} runs: {name}")
    print(f"stress: {failures.total()} of {total:,} tests failed in {options.runs} runs")
    return 1 if failures or broken or not total else 0


if __name__ == "__main__":
    sys.exit(main())
