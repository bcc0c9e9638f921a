"""Numbers that the test bed gives away are given once on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.testbed.server import SLOTS, free_port, own_numbers, slot
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]
TESTS = """
import json, sys
from tests.testbed.server import free_port, own_numbers
print(json.dumps([own_numbers(), [free_port() for _ in range(20)]]), flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(worker: str) -> Generator[Any]:
    """What a process that runs tests was given; it lives until the end of the block."""
    environment = {**os.environ, "PYTEST_XDIST_WORKER": worker, "PYTEST_XDIST_WORKER_COUNT": "3"}
    with subprocess.Popen(
        [sys.executable, "-c", TESTS],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())


def test_learners_of_two_runs_had_the_same_user_ids_and_ports() -> None:
    """Of a second run, and of the worker gw3 that took the place of a crashed one beside gw0."""
    with ExitStack() as stack:
        given = [stack.enter_context(another_process(worker)) for worker in ("gw0", "gw0", "gw3")]
        settings = [own_numbers(), *(numbers for numbers, _ in given)]
        ports = [{free_port() % SLOTS for _ in range(20)}, *({port % SLOTS for port in own} for _, own in given)]
    for name in ("UID", "PORT"):
        ranges = sorted(
            (int(entry[f"WEFT_NODE_{name}_FIRST"]), int(entry[f"WEFT_NODE_{name}_COUNT"])) for entry in settings
        )
        assert all(first + count <= after for (first, count), (after, _) in pairwise(ranges))
    assert ports[0] == {slot()}
    assert len(set.union(*ports)) == len(settings)


def test_no_port_was_left_to_give_on_a_machine_with_many_processors() -> None:
    """The search went on for ever: of the few ports of a worker all had been given recently."""
    many = (
        "import os; os.cpu_count = lambda: 128; from tests.testbed.server import *; [free_port() for _ in range(200)]"
    )
    subprocess.run([sys.executable, "-c", many], cwd=ROOT, check=True, timeout=HANG_S)
