"""The disk of the services is full: what dies then comes back, and what lives stays."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.core.processes import alive, send, wait_gone
from tests.chaos.faults import Faults, small_volume
from tests.chaos.gangs import DONE_S, SERVICES
from tests.chaos.schedule import Fault
from tests.chaos.takeover import SMALL
from tests.testbed.platform import Platform
from tests.waiting import eventually
from weft import Client

TRIES_S = 2.0
"""The supervisor tries twice a second."""


@pytest.fixture
def on_small_volume() -> Iterator[Platform]:
    """It runs; its stores have a volume of their own."""
    with tempfile.TemporaryDirectory(prefix="weft-chaos-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        with small_volume(root / "home"):
            platform = Platform(root / "home", {})
            try:
                platform.up()
                yield platform
            finally:
                platform.down()


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can be mounted by root only")
def test_a_service_that_dies_while_the_disk_is_full_takes_nobody_along_and_comes_back(
    on_small_volume: Platform,
) -> None:
    platform = on_small_volume
    eventually((platform.home / "run" / "came-up").exists, DONE_S)
    others = [platform.process(name) for name in ["supervisor", *SERVICES] if name not in {"guardian", "etcd"}]
    undo = Faults(platform).begin(Fault(0, "disk full", "stores"))
    assert undo is not None
    dead = platform.process("guardian")
    assert send(dead, signal.SIGKILL)
    assert wait_gone(dead, 10)
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > TRIES_S)
    assert not platform.again("guardian", dead)
    assert all(alive(one) for one in others)
    undo()
    eventually(lambda: platform.again("guardian", dead), DONE_S)
    assert all(alive(one) for one in others)
    with Client(platform.url, platform.key) as client:
        job = client.jobs.submit({"name": "after", "command": "echo here", "resources": SMALL}).wait(DONE_S)
        assert (job.status, [line.text for line in job.logs()]) == ("COMPLETED", ["here"])
