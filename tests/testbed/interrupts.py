"""SIGTERM ends a run of the tests as Ctrl-C does: fixtures end what they have started, and pytest prints its summary.

Otherwise the signal would end pytest at once, and pytest-xdist would end the workers after some seconds: servers,
platforms and learners would run on. A terminal sends Ctrl-C to the workers too, but SIGTERM mostly arrives here only.
In workers one signal counts, whatever comes afterwards: a second one would interrupt the fixtures' ends. In the process
that is in front a second Ctrl-C ends the wait for the workers.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, Final

import pytest

_ENDS_WITHIN_S: Final = 60.0
"""For the ends of all fixtures of a worker. pytest-xdist itself allows ten seconds."""
_LOOK_EVERY_S: Final = 0.05


class Interrupts:
    """A plugin of one pytest process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._interrupted = False
        signals = (signal.SIGTERM, signal.SIGINT) if hasattr(config, "workerinput") else (signal.SIGTERM,)
        self._before = {number: signal.getsignal(number) for number in signals}
        self._set()

    def _set(self) -> None:
        for number in self._before:
            signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: object) -> None:
        if not self._interrupted:
            self._interrupted = True
            raise KeyboardInterrupt

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Event loops take the handlers away that they were given, not those that were there before."""
        if hasattr(self._config, "workerinput") or not self._has_workers():
            self._set()

    def pytest_keyboard_interrupt(self) -> None:
        self._interrupted = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Before pytest-xdist ends the workers."""
        if exitstatus != pytest.ExitCode.INTERRUPTED or not self._has_workers():
            return
        session: Any = self._config.pluginmanager.getplugin("dsession")
        nodes = list(session._active_nodes)
        for node in nodes:
            if not node._down:
                os.kill(node.gateway._io.popen.pid, signal.SIGTERM)
        deadline = time.monotonic() + _ENDS_WITHIN_S
        while not all(node._down for node in nodes) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)

    def pytest_unconfigure(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _has_workers(self) -> bool:
        return self._config.pluginmanager.hasplugin("dsession")


def pytest_configure(config: pytest.Config) -> None:
    if threading.current_thread() is threading.main_thread():
        config.pluginmanager.register(Interrupts(config), "interrupts")
