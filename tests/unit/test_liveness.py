"""Detection of hung processes: sleeping, busy and ended processes do not count as hung."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from services.core.runtime.liveness import wait_until_hung
from services.core.runtime.processes import ProcessIdentity, identify
from tests.testbed.signals import pause
from tests.waiting import HANG_S

pytestmark = pytest.mark.slow

AFTER_S = 0.4
Start = Callable[[str], ProcessIdentity]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a Python program and returns when it begins."""
    started: list[subprocess.Popen[bytes]] = []

    def start_program(program: str) -> ProcessIdentity:
        # The process waits for its standard input, so that a program that exits at once can be identified before.
        code = f"import os, signal, threading, time; os.read(0, 1); os.write(1, b'.'); {program}"
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        identity = identify(process.pid)
        assert identity is not None
        process.stdin.close()
        process.stdout.read(1)
        return identity

    yield start_program
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def is_hung(process: ProcessIdentity, *, within_s: float = HANG_S, every_thread: bool = False) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await wait_until_hung(process, after_s=AFTER_S, every_thread=every_thread)
    except TimeoutError:
        return False
    return True


TIMERS = "[time.sleep(0.02) for _ in iter(int, 1)]"


async def test_a_process_with_timers_is_not_hung(start: Start) -> None:
    assert not await is_hung(start(TIMERS), within_s=5 * AFTER_S)


async def test_a_stopped_process_is_hung(start: Start) -> None:
    process = start(TIMERS)
    pause(process.pid)
    assert await is_hung(process)


async def test_a_process_that_waits_for_ever_is_hung(start: Start) -> None:
    assert await is_hung(start("threading.Lock().acquire(); signal.pause()"))


async def test_a_process_that_only_computes_is_not_hung(start: Start) -> None:
    assert not await is_hung(start("[None for _ in iter(int, 1)]"), within_s=5 * AFTER_S)


async def test_activity_of_another_thread_counts_with_every_thread_only(start: Start) -> None:
    process = start(f"threading.Thread(target=lambda: {TIMERS}).start(); signal.pause()")
    assert await is_hung(process)
    assert not await is_hung(process, within_s=5 * AFTER_S, every_thread=True)


async def test_an_ended_process_is_not_hung(start: Start) -> None:
    process = start("os._exit(0)")
    assert not await is_hung(process, within_s=5 * AFTER_S)
