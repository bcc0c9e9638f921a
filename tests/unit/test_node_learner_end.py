"""A learner that the node agent ends for the disk or a port ends, whatever kept the first kill from taking effect."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from services.core.runtime.durable_files import write_json
from services.core.runtime.learner_folder import DISK_FILE
from services.core.runtime.processes import alive
from services.node import shim
from services.node.learner import Learner, read_learner
from services.node.learner_disk import end_with_reason, is_running
from services.node.processes import processes_below, send_to_all
from tests.testbed.signals import pause
from tests.unit.test_node_files import learner as reserved  # noqa: F401  # pyright: ignore[reportUnusedImport]
from tests.waiting import HANG_S

REASON = {"why": "it wrote too much"}
COMMAND = """
(trap "" TERM; touch "$HOME/ready"; exec sleep 1000) &
until [ -e "$HOME/ready" ]; do sleep 0.01; done
touch "$HOME/started"
exec sleep 1000
"""
"""Its own process ends at SIGTERM, and leaves one that does not."""


@pytest.fixture
def running(reserved: Learner) -> Generator[Learner]:  # noqa: F811
    """A learner with a shim, and with two processes."""
    place = reserved.folder / "learner.json"
    document = json.loads(place.read_text())
    document["learner"]["command"] = COMMAND
    place.write_text(json.dumps(document))
    for name in ("HOME", "MODEL_DIR"):
        Path(document["env"][name]).mkdir(parents=True, exist_ok=True)
    (reserved.folder / "go").touch()
    process = subprocess.Popen([sys.executable, "-I", "-S", shim.__file__, str(reserved.folder)])
    learner = read_learner(reserved.folder)
    assert learner is not None
    try:
        wait_for(Path(document["env"]["HOME"], "started").exists)
        yield learner
    finally:
        process.send_signal(signal.SIGCONT)
        send_to_all(processes_below(learner.shim), signal.SIGKILL)
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def halt(learner: Learner) -> None:
    """Stops it with a day of grace. Its own process is gone afterwards, another one is left."""
    learner.mark_stop(generation=1, cause="halt", grace_ms=86_400_000, now_ms=0)
    process = learner.process
    assert process is not None
    wait_for(lambda: not alive(process))
    assert is_running(learner)
    assert processes_below(learner.shim)


@pytest.mark.slow
def test_a_learner_that_writes_on_in_its_grace_is_ended_although_its_own_process_is_gone(running: Learner) -> None:
    halt(running)
    assert end_with_reason(running, REASON)
    wait_for(lambda: running.ended)
    assert not processes_below(running.shim)
    end = running.files.exit()
    assert end is not None
    assert (end.stop_cause, end.disk_exceeded) == ("halt", "")


def test_a_learner_ends_with_the_reason_although_the_agent_died_before_it_sent_the_signal(running: Learner) -> None:
    write_json(running.folder / DISK_FILE, REASON)
    wait_for(lambda: running.ended)
    assert not processes_below(running.shim)
    end = running.files.exit()
    assert end is not None
    assert (end.signal, end.disk_exceeded) == (9, "it wrote too much")


def test_a_kill_that_had_no_effect_is_repeated_at_each_look_until_the_learner_has_ended(running: Learner) -> None:
    identity = running.shim
    assert identity is not None
    pause(identity.pid)  # it does nothing about the mark, as one of an older version
    write_json(running.folder / DISK_FILE, REASON)
    assert is_running(running)
    assert not end_with_reason(running, REASON)
    wait_for(lambda: not processes_below(identity))
    os.kill(identity.pid, signal.SIGCONT)
    wait_for(lambda: running.ended)
    assert not is_running(running)
    (running.folder / DISK_FILE).unlink()
    assert not end_with_reason(running, REASON)
    assert not (running.folder / DISK_FILE).exists()
