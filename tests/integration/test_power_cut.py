"""`weft up` after the power went: everything died at once, learners too, and what was being written is torn."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.core.runtime.home import Home
from services.core.runtime.processes import identify, read_live_process
from services.local.layout import ETCD, PROGRAMS, VERSION, prepare
from tests.testbed.platform import Platform, platform
from tests.waiting import HANG_S, eventually
from weft import Client

SERVICES = ("supervisor", ETCD.name, *(program.name for program in PROGRAMS))
SMALL = {"cpus": 1, "memory": "64MiB"}
COUNTS = 'for n in 1 2 3; do echo "try $WEFT_ATTEMPT line $n"; done; [ "$WEFT_ATTEMPT" = 1 ] && exec sleep 600; exit 0'


@pytest.fixture
def weft_up() -> Iterator[Platform]:
    with platform() as running:
        yield running


def cut_the_power(one: Platform, job_id: str) -> None:
    """Kill -9 of everyone at once: all stand still before the first of them dies, so nobody sees another's death."""
    pids = [one.process(name).pid for name in SERVICES] + one.processes_of(job_id)
    gone = [identify(pid) for pid in pids]
    for sign in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
    eventually(lambda: all(who is None or identify(who.pid) != who for who in gone))


def tear(path: Path) -> None:
    """Half of it, as a disk may have it whose last writes are lost."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def test_the_platform_carries_on_over_torn_files_stale_pids_and_the_loss_of_every_learner(weft_up: Platform) -> None:
    home = weft_up.home
    with Client(weft_up.url, weft_up.key) as client:
        done = client.jobs.submit({"name": "d", "command": "echo done", "resources": SMALL}).wait(HANG_S)
        job = client.jobs.submit({"name": "j", "command": COUNTS, "resources": SMALL})
        eventually(lambda: sum(1 for _ in job.logs()) == 3)
    cut_the_power(weft_up, job.id)

    # Files that are written without fsync: any of them may be half, or empty.
    for path in sorted((home / "run").glob("*.json")):
        tear(path)
    (home / "run" / "state.json").write_bytes(b"")
    (home / "run" / "state.tmp").write_bytes(b'{"services": [')
    # Pids come back: this one lives, and is not who is noted.
    mine = {"schema": 1, "pid": os.getpid(), "start_time": 1, "boot_id": "of another boot"}
    for name in ("supervisor", "guardian"):
        (home / "run" / f"{name}.json").write_text(json.dumps(mine))
    # What was appended last is only partly there; what was being put in place is not there yet.
    for log in [
        *home.root.glob("*.sqlite-wal"),
        *(home / "metrics").glob("*/*-wal"),
        *(home / "metrics").glob("*/*.seg"),
    ]:
        with log.open("ab") as file:
            file.write(os.urandom(777))
    (home / "objects" / ".weft-staging" / "half").write_bytes(b"hal")
    (home / "secrets" / ".new" / "half").write_bytes(b"hal")
    (home / "secrets" / ".master-key.0123").write_bytes(b"weftmk1_")
    (home / "uploads" / "half").write_bytes(b"PK")
    for path in (home / "etcd").rglob("*"):
        if path.is_file():
            tear(path)
    for path in (home / "node").rglob("spool/*"):
        if path.is_file():
            tear(path)
    for path in (home / "logs").glob("*.log"):
        with path.open("ab") as file:
            file.write(b'{"event": "hal')

    weft_up.up()
    with Client(weft_up.url, weft_up.key) as client:
        again = client.jobs.get(job.id).wait(HANG_S)
        assert (again.status, again.attempt) == ("COMPLETED", 2)
        assert [line.text for line in again.logs()] == [f"try {n} line {m}" for n in (1, 2) for m in (1, 2, 3)]
        assert "LearnerLost" in [event.reason for event in again.history()]
        assert client.jobs.get(done.id).status == "COMPLETED"
        assert [line.text for line in client.jobs.get(done.id).logs()] == ["done"]
        assert (
            client.jobs.submit({"name": "n", "command": "true", "resources": SMALL}).wait(HANG_S).status == "COMPLETED"
        )
    assert weft_up.processes_of(job.id) == []
    eventually(lambda: all(read_live_process(home / "run" / f"{name}.json") is not None for name in SERVICES))
    assert not (home / "objects" / ".weft-staging" / "half").exists()
    assert not (home / "uploads" / "half").exists()


@pytest.mark.parametrize("torn", ["", "\n", "x"])
def test_a_home_whose_version_was_being_written_is_whole_again(tmp_path: Path, torn: str) -> None:
    home = Home(tmp_path / "home")
    prepare(home)
    (home / "VERSION").write_text(torn)
    prepare(home)
    assert int((home / "VERSION").read_text()) == VERSION
