"""Builds every server that the tests start and that no package brings, before the first test: once for a machine.

    python -m tests.testbed.prepare [command of the tests]

Says nothing where all is built. What fails here fails again, with its reason, in the tests that need it. The command
takes the place of this process, so that a signal reaches what is running. SIGTERM ends the builds, as Ctrl-C does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Final

from scripts.images import IMAGES, ROOT, Image, wheels
from tests.compose.stack import COMPOSE_MODULE
from tests.helm.crds import definitions
from tests.helm.installation import helm_program
from tests.testbed.browser import build_dashboard
from tests.testbed.docker.base import base_archive
from tests.testbed.go import SERVERS, go_build, remove_compiled
from tests.testbed.kubernetes import programs
from tests.testbed.mongo import mongo_build

_AT_ONCE: Final = 2
"""One build alone leaves a processor idle while it downloads and links."""
_LOOK_S: Final = 0.25
_saying: Final = threading.Lock()
ending: Final = threading.Event()
"""Set by Ctrl-C and SIGTERM."""


def _say(what: str) -> None:
    with _saying:
        sys.stderr.write(f"test bed: {what}\n")


def _go(name: str) -> Callable[[], object]:
    return lambda: go_build(name, SERVERS / name, _say)


def _image_parts() -> None:
    base_archive(_say)
    for name in ("helper", "platform"):
        image = Image.read(IMAGES / name)
        wheels(ROOT / image.requirements, image.without)


def _end_builds(_number: int, _frame: object) -> None:
    """Raises nothing: an exception in the midst of a library's locks would leave them locked."""
    ending.set()
    _end_programs()


def _end_programs() -> None:
    """Ends the programs of the builds. A terminal has sent Ctrl-C to those that ran, not to one begun since."""
    for thread in Path("/proc/self/task").iterdir():
        try:
            programs_of_thread = (thread / "children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        for pid in programs_of_thread:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGTERM)


def _unless_ending(build: Callable[[], object]) -> object:
    """Runs the build. None after a signal."""
    return None if ending.is_set() else build()


def run_all(builds: Mapping[str, Callable[[], object]]) -> Mapping[str, Future[object]]:
    """Runs them, some at the same time. After Ctrl-C and SIGTERM none is begun any more."""
    signal.signal(signal.SIGTERM, _end_builds)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, _end_builds)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        running = {name: threads.submit(_unless_ending, build) for name, build in builds.items()}
        while wait(running.values(), timeout=_LOOK_S).not_done:
            if ending.is_set():
                _end_programs()  # also those that were begun in the moment of the signal
    if ending.is_set():
        raise KeyboardInterrupt
    return running


def main() -> None:
    builds: dict[str, Callable[[], object]] = {path.name: _go(path.name) for path in sorted(SERVERS.iterdir())}
    builds["the MongoDB stand-in"] = lambda: mongo_build(_say)
    builds["the dashboard"] = build_dashboard
    if os.geteuid() == 0:
        builds["Kubernetes"] = lambda: programs.build(_say)
        builds["docker compose"] = lambda: go_build("docker-compose", COMPOSE_MODULE, _say)
        builds["what images are made of"] = _image_parts
    builds["helm"] = lambda: helm_program(_say)
    builds["the definitions of custom resources"] = definitions
    for name, built in run_all(builds).items():
        error = built.exception()
        if error is not None:
            _say(f"{name} could not be built: {error}")
    remove_compiled()
    if ending.is_set():
        raise KeyboardInterrupt
    if sys.argv[1:]:
        os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - the tests


if __name__ == "__main__":
    main()
