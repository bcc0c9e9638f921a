"""While learners are counted they are frozen, and not for longer than their trainings stand."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from services.core.runtime.durable_files import write_json
from services.core.runtime.processes import identify
from services.node.frozen_count import FrozenCount
from services.node.learner import Learner
from services.node.processes import processes_below
from tests.unit.test_node_files import learner as reserved  # noqa: F401  # pyright: ignore[reportUnusedImport]
from tests.waiting import HANG_S, eventually

PARENT = (
    "import subprocess; subprocess.Popen(['/bin/sleep', '1000'], start_new_session=True); print(flush=True); input()"
)


@pytest.fixture
def running(reserved: Learner) -> Generator[Learner]:  # noqa: F811
    """A learner with one process below what stands for its shim."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        identity = identify(process.pid)
        assert identity is not None
        write_json(
            reserved.folder / "shim.json",
            {"pid": identity.pid, "start_time": identity.start_time, "boot_id": identity.boot_id},
        )
        children = processes_below(identity)
        yield reserved
        for pid in {process.pid, *children}:
            subprocess.run(["kill", "-KILL", str(pid)], check=False)


def states(learner: Learner) -> set[str]:
    pids = processes_below(learner.shim)
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


@pytest.fixture
def long_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes may take as long to stop as a busy machine needs."""
    monkeypatch.setattr("services.node.freezing._FREEZE_S", HANG_S)


@pytest.mark.usefixtures("long_timeout")
def test_learners_are_frozen_while_they_are_counted_and_run_afterwards(running: Learner, tmp_path: Path) -> None:
    with FrozenCount(tmp_path).of([running]) as counted:
        assert [(learner.name, is_frozen) for learner, _, is_frozen in counted] == [("worker-0", True)]
        assert states(running) == {"T"}
    eventually(lambda: states(running) == {"S"})  # before, it waits for a processor


@pytest.mark.usefixtures("long_timeout")
def test_no_learner_writes_on_while_it_is_counted_because_it_stops_late(
    running: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a process stops only when it is on a processor again: it was counted before."""
    kill, late = os.kill, list[threading.Timer]()

    def kill_late(pid: int, number: int) -> None:
        late.append(threading.Timer(0.2, kill, (pid, number)))
        late[-1].start()

    monkeypatch.setattr(os, "kill", kill_late)
    with FrozenCount(tmp_path).of([running]) as counted:
        monkeypatch.undo()
        assert [is_frozen for _, _, is_frozen in counted] == [True]
        assert states(running) == {"T"}
    for timer in late:
        timer.join()


def test_learners_run_again_although_the_count_takes_long(running: Learner, tmp_path: Path) -> None:
    with FrozenCount(tmp_path, frozen_s=0.05).of([running]):
        eventually(lambda: states(running) == {"S"})


def test_a_learner_that_holds_too_many_files_to_count_is_not_taken_for_counted(
    running: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.node.disk.MAX_HELD", 1)
    with FrozenCount(tmp_path).of([running]) as counted:
        assert [is_frozen for _, _, is_frozen in counted] == [False]
