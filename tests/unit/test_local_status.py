"""What `weft status` and `weft up` make of services that answer badly."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.runtime.home import Home
from services.core.runtime.processes import identify, write_process_file
from services.local.commands import PLATFORM
from services.local.running import reported_caches
from tests.testbed.scripted_http import Answer, Request, json_answer, scripted
from tests.testbed.server import socket_folder
from tests.waiting import HANG_S


@pytest.fixture
def cut_off() -> Iterator[str]:
    """Address of a server that says 503 and dies in the midst of why."""
    path = socket_folder() / "dies-in-its-answer"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b'HTTP/1.1 503 Service Unavailable\r\nContent-Length: 99\r\n\r\n{"ready": fal')

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"unix:{path}"
        thread.join()


def test_service_that_dies_during_its_readiness_answer_is_starting(
    tmp_path: Path, cut_off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.local.running._ANSWER_S", HANG_S)
    me = identify(os.getpid())
    assert me is not None
    write_process_file(tmp_path / "run" / "api.json", me)
    (tmp_path / "run" / "addresses.json").write_text(json.dumps({"api-ops": cut_off}))
    state = {"name": "api", "pid": me.pid, "restarts": 0, "adopted": False, "last_exit": None}
    (tmp_path / "run" / "state.json").write_text(json.dumps({"services": [state]}))
    (service,) = PLATFORM.status(str(tmp_path))["services"]
    assert service["state"] == "starting"
    assert "503" in service["why"]


def test_down_now_asks_first_where_it_is_not_known_whether_jobs_run(tmp_path: Path) -> None:
    """While the api did not answer, `weft down --now` ended running jobs without a question."""
    assert PLATFORM.down_losses(str(tmp_path), now=True) == []
    me = identify(os.getpid())
    assert me is not None
    write_process_file(tmp_path / "run" / "supervisor.json", me)
    (tmp_path / "run" / "addresses.json").write_text(json.dumps({"api": "127.0.0.1:9"}))
    (loss,) = PLATFORM.down_losses(str(tmp_path), now=True)
    assert loss.startswith("the api does not answer, so it is unknown whether jobs run")
    assert PLATFORM.down_losses(str(tmp_path)) == []  # they are halted, with checkpoints


def test_down_asks_first_although_the_api_of_a_busy_machine_answers_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An api that took more than two seconds was taken for a dead one, and the jobs were halted without a question."""
    monkeypatch.setattr("services.local.running._ANSWER_S", 0.05)
    me = identify(os.getpid())
    assert me is not None
    write_process_file(tmp_path / "run" / "supervisor.json", me)
    late = threading.Event()

    def answer(_request: Request, _number: int) -> Answer:
        late.wait(0.2)
        return json_answer({"jobs": {"PROCESSING": 1}})

    with scripted(answer) as api:
        addresses = {"api": api.url.removeprefix("http://")}
        (tmp_path / "run" / "addresses.json").write_text(json.dumps(addresses))
        (loss,) = PLATFORM.down_losses(str(tmp_path))
    assert loss.startswith("1 job runs and is halted, with checkpoints")


def test_down_asks_first_where_learners_run_on_after_the_services(tmp_path: Path) -> None:
    """After `weft down --keep-jobs`, a `weft down` ended the jobs that were kept without a question."""
    me = identify(os.getpid())
    assert me is not None
    for learner in ("j1/1/worker-0", "j1/1/worker-1"):
        write_process_file(tmp_path / "node" / learner / "shim.json", me)
    write_process_file(tmp_path / "node/j2/1/worker-0/shim.json", replace(me, start_time=me.start_time + 1))  # ended
    for now in (False, True):
        assert PLATFORM.down_losses(str(tmp_path), now=now) == ["1 job runs; what it has not stored yet is lost"]


def test_status_shows_the_caches_as_the_node_agent_measured_them(tmp_path: Path) -> None:
    assert reported_caches(Home(tmp_path)) == {}
    (tmp_path / "run").mkdir()
    report = tmp_path / "run/node-caches.json"
    report.write_text('{"schema": 1, "bytes": {"environments": 3, "packages": 1, "data": 0}, "max_bytes": 10}')
    measured = {"bytes": {"environments": 3, "packages": 1, "data": 0}, "max_bytes": 10}
    assert reported_caches(Home(tmp_path)) == measured
    for damaged in ("", "[]", '{"bytes": 1}', '{"bytes": {"data": "x"}, "max_bytes": 1}'):
        report.write_text(damaged)
        assert reported_caches(Home(tmp_path)) == {}
