"""Blocking calls beside the event loop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from services.helper.threads import call_in_thread

ROOT = Path(__file__).parents[2]
HANGING = """
import asyncio, threading
from services.helper.threads import call_in_thread

async def main():
    try:
        async with asyncio.timeout(0.05):
            await call_in_thread(threading.Event().wait)
    except TimeoutError:
        print("ended")

asyncio.run(main())
"""


async def test_result_and_error_of_a_call_are_passed_on() -> None:
    assert await call_in_thread(lambda: 7) == 7
    assert await call_in_thread(lambda: dict[str, int]().get("missing")) is None
    with pytest.raises(OSError, match="broken"):
        await call_in_thread(lambda: (_ for _ in ()).throw(OSError("broken")))


@pytest.mark.slow
def test_call_that_never_returns_does_not_keep_the_helper_from_ending() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("ended\n", "", 0)
