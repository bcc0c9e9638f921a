"""One line that says how far a run of the tests has got, instead of a letter for each test.

Loaded by ``make test`` (``pytest -p tests.testbed.progress``). On a terminal the line is drawn anew after each test,
elsewhere a new one is printed every half minute. A test that fails is named at once. ``-v`` turns it off.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, Final

import pytest

_EVERY_S: Final = 30.0


class Progress:
    """A plugin beside pytest's own reporter, which prints everything else."""

    def __init__(self, config: pytest.Config, reporter: pytest.TerminalReporter) -> None:
        self._config, self._reporter = config, reporter
        self._drawn = bool(reporter.isatty)
        self._began = self._printed = time.monotonic()
        self._done = 0
        self._failed: set[str] = set()
        reporter.showfspath = False

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, Any, Any]:
        """Counts as ever; prints no letter."""
        category, _, word = yield
        return category, "", word

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self._failed:
            self._failed.add(report.nodeid)
            self._clear()
            self._reporter.write_line(f"FAILED {report.nodeid}", red=True)
        if report.when not in {"setup", "call"}:  # teardown, or the worker crashed
            self._done += 1
            self._tell(report.nodeid.partition("::")[0])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, Any, Any]:
        try:
            return (yield)
        finally:
            self._clear()

    def _tell(self, file: str) -> None:
        """Prints the line. ``file``: of the test that ended last."""
        total = max(self._done, self._reporter._session.testscollected if self._reporter._session else 0)
        now = time.monotonic()
        took = round(now - self._began)
        line = f"{took // 60:3}:{took % 60:02}  {self._done:,} of {total:,} tests, {len(self._failed)} failed"
        if self._drawn:
            self._reporter.rewrite(f"{line}  {file}"[: self._reporter._tw.fullwidth - 1], erase=True)
            self._reporter.flush()
        elif now - self._printed >= _EVERY_S or self._done == total:
            self._printed = now
            self._reporter.write_line(line)

    def _clear(self) -> None:
        if self._drawn:
            self._reporter.rewrite("", erase=True)
            self._reporter.rewrite("")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None and config.option.verbose <= 0 and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(config, reporter), "progress")
