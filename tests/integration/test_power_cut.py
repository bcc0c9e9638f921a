"""`weft up` after a power cut: all processes died at once, learners too, and files being written are torn."""

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


def cut_the_power(running: Platform, job_id: str) -> None:
    """Kills all processes. They are stopped before the first is killed, so that none observes the death of another."""
    pids = [running.process(name).pid for name in SERVICES] + running.processes_of(job_id)
    processes = [identify(pid) for pid in pids]
    for sign in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
    eventually(lambda: all(process is None or identify(process.pid) != process for process in processes))


def tear(path: Path) -> None:
    """Truncates the file to its first half, as on a disk whose last writes are lost."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def test_the_platform_recovers_from_torn_files_stale_pids_and_the_loss_of_all_learners(weft_up: Platform) -> None:
    home = weft_up.home
    with Client(weft_up.url, weft_up.key) as client:
        done = client.jobs.submit({"name": "d", "command": "echo done", "resources": SMALL}).wait(HANG_S)
        job = client.jobs.submit({"name": "j", "command": COUNTS, "resources": SMALL})
        eventually(lambda: sum(1 for _ in job.logs()) == 3)
    cut_the_power(weft_up, job.id)

    # Files that are written without fsync may be truncated or empty.
    for path in sorted((home / "run").glob("*.json")):
        tear(path)
    (home / "run" / "state.json").write_bytes(b"")
    (home / "run" / "state.tmp").write_bytes(b'{"services": [')
    # A pid that was reused: the process lives, and is another than the recorded one.
    other = {"schema": 1, "pid": os.getpid(), "start_time": 1, "boot_id": "of another boot"}
    for name in ("supervisor", "guardian"):
        (home / "run" / f"{name}.json").write_text(json.dumps(other))
    # The last appended records are incomplete, and files being replaced have only their temporary names.
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
def test_a_truncated_version_file_is_repaired(tmp_path: Path, torn: str) -> None:
    home = Home(tmp_path / "home")
    prepare(home)
    (home / "VERSION").write_text(torn)
    prepare(home)
    assert int((home / "VERSION").read_text()) == VERSION
