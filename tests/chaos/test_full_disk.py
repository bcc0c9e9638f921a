"""The services' disk is full: a killed service comes back, the others keep running."""

from __future__ import annotations

import os
import signal
import time

import pytest

from services.core.runtime.processes import alive, send_signal, wait_gone
from tests.chaos.faults import Faults, Undo
from tests.chaos.gangs import DONE_S, SERVICES
from tests.chaos.schedule import Fault
from tests.chaos.takeover import SMALL
from tests.testbed.platform import Platform
from tests.waiting import HANG_S, eventually
from weft import Client

TRIES_S = 2.0
"""The supervisor tries twice a second."""


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can be mounted by root only")
def test_service_killed_on_a_full_disk_comes_back_and_the_others_keep_running(
    weft_up: Platform, client: Client
) -> None:
    platform = weft_up
    eventually((platform.home / "run" / "came-up").exists, DONE_S)
    others = [platform.process(name) for name in ["supervisor", *SERVICES] if name not in {"guardian", "etcd"}]
    faults, undos, etcd = Faults(platform), list[Undo](), platform.process("etcd")

    def fill() -> None:
        """Also what services give back meanwhile: a file that was written anew replaces the one before."""
        undo = faults.begin(Fault(0, "disk full", "stores"))
        assert undo is not None
        undos.append(undo)

    def has_been_full(since: float) -> bool:
        fill()
        return time.monotonic() - since > TRIES_S

    fill()
    dead = platform.process("guardian")
    assert send_signal(dead, signal.SIGKILL)
    assert wait_gone(dead, HANG_S)
    began = time.monotonic()
    eventually(lambda: has_been_full(began))
    # An etcd that ended for the full disk is started with an empty folder, which gives tens of megabytes back.
    assert not platform.again("guardian", dead) or platform.running("etcd") != etcd
    assert all(alive(process) for process in others)
    for undo in undos:
        undo()
    eventually(lambda: platform.again("guardian", dead), DONE_S)
    assert all(alive(process) for process in others)
    job = client.jobs.submit({"name": "after", "command": "echo here", "resources": SMALL}).wait(DONE_S)
    assert (job.status, [line.text for line in job.logs()]) == ("COMPLETED", ["here"])
