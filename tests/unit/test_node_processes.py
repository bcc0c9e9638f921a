"""Processes of a learner are found and ended whatever they do, and those of strangers are left alone."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from services.node.processes import ProcessMatcher, kill_all
from tests.testbed.server import slot
from tests.waiting import HANG_S

LEARNER, STRANGER, FORKING = (66_000 + 3 * slot() + number for number in range(3))
"""User ids that no other run on this machine has: all processes of some are ended."""
JOB_DIR = "/weft-test/node/j1/1/worker-0/job"
FORK_ON = """
import os, sys, time
ends = float(sys.argv[1])
while time.monotonic() < ends:
    if os.fork():
        os._exit(0)
"""
"""Each process of it lives for less time than the process table takes to read. It ends by itself, too."""


@contextmanager
def program_of(uid: int) -> Generator[int]:
    """The pid of a program of this user, which says that it belongs to the learner in ``JOB_DIR``."""
    program = subprocess.Popen(["/bin/sleep", "1000"], env={"JOB_STATE_DIR": JOB_DIR}, user=uid, extra_groups=[])
    try:
        yield program.pid
    finally:
        program.kill()
        program.wait()


def start_forking() -> int:
    """Starts four such programs. Returns a descriptor that is at its end once no process of them is left."""
    alive, held = os.pipe()
    ends = str(time.monotonic() + 2 * HANG_S)
    for _ in range(4):
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", FORK_ON, ends],
            user=FORKING,
            group=FORKING,
            extra_groups=[],
            pass_fds=(held,),
        ).wait()
    os.close(held)
    return alive


@pytest.mark.skipif(os.geteuid() != 0, reason="all programs have one user without root")
def test_a_program_of_another_job_that_claims_to_be_a_learners_is_not_taken_for_it() -> None:
    matcher = ProcessMatcher(owners=frozenset({LEARNER}), job_dirs=frozenset({JOB_DIR}))
    with program_of(STRANGER), program_of(LEARNER) as own:
        assert matcher.members() == {own}


@pytest.mark.skipif(os.geteuid() != 0, reason="learners have no user of their own without root")
async def test_a_learner_that_forks_faster_than_the_process_table_can_be_read_is_ended() -> None:
    alive = start_forking()
    forking = ProcessMatcher(owners=frozenset({FORKING}), job_dirs=frozenset(), uids=frozenset({FORKING}))
    assert await kill_all(forking.members, timeout_s=HANG_S, users=forking.uids)
    ended, _, _ = select.select([alive], [], [], HANG_S)
    assert ended, "a process of it still holds the pipe"
    assert os.read(alive, 1) == b""
    os.close(alive)
