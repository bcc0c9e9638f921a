"""SIGTERM ends each service in order, under load: nothing is lost, and no lease of it has to expire."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import pytest

from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain import errors
from services.core.runtime.membership import members
from services.core.runtime.processes import ProcessIdentity, send_signal, wait_gone
from tests.testbed.platform import Platform, platform
from tests.testbed.server import free_address
from tests.waiting import HANG_S, eventually
from weft import Client, Job, Unavailable

T = TypeVar("T")
SMALL: Final = {"cpus": 0.25, "memory": "64MiB"}
PRINTS: Final = 'n=0; while :; do echo "line $n"; n=$((n+1)); sleep 0.01; done'
LIMIT_S: Final = HANG_S
"""The supervisor gives them ten seconds; a machine may be busy."""
SERVICES: Final = ("api", "lcm", "guardian", "metrics", "node", "worker")
MEMBERS: Final = ("lcm", "guardian", "metrics")


def with_retries(call: Callable[[], T]) -> T:
    """Calls until it is answered: the SDK gives up after 20 seconds, and a busy machine may need longer."""
    while True:
        try:
            return call()
        except Unavailable:
            continue


class Load:
    """Submits, reads and follows without a pause, through the SDK, which retries."""

    def __init__(self, weft: Platform, printing: str) -> None:
        self._weft, self._printing = weft, printing
        self._enough = threading.Event()
        self.errors: list[BaseException] = []
        self.done = 0
        self.lines: list[int] = []
        self._threads = [threading.Thread(target=self._run, args=(body,)) for body in (self._submit, self._follow)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def _run(self, body: Any) -> None:
        try:
            with Client(self._weft.url, self._weft.key) as client:
                body(client)
        except BaseException as error:  # noqa: BLE001 - of a thread: the test raises it
            self.errors.append(error)

    def _submit(self, client: Client) -> None:
        spec = {"name": "s", "command": "sleep 600", "resources": SMALL}
        while not self._enough.is_set():
            job = with_retries(partial(client.jobs.submit, spec, idempotency_key=uuid.uuid4().hex))
            assert with_retries(job.refresh).id == job.id
            with_retries(job.kill)
            self.done += 1

    def _follow(self, client: Client) -> None:
        for line in with_retries(lambda: client.jobs.get(self._printing)).logs(follow=True):
            self.lines.append(int(line.text.split()[1]))
            if self._enough.is_set():
                return


@pytest.fixture(scope="module")
def weft_up() -> Iterator[Platform]:
    with platform({"WEFT_NODE_CPUS": "4"}) as running:
        yield running


@pytest.fixture(scope="module")
def printing(weft_up: Platform) -> Iterator[Job]:
    """A job that prints a line every 10 ms."""
    with Client(weft_up.url, weft_up.key) as client:
        job = client.jobs.submit({"name": "t", "command": PRINTS, "resources": SMALL})
        eventually(lambda: weft_up.learner_pids(job.id))
        yield job
        job.kill()


def logged_by(weft: Platform, process: ProcessIdentity, service: str, *, since: int) -> list[dict[str, Any]]:
    """Log lines of this process beyond byte ``since``, and all lines there that are not JSON."""
    with (weft.home / "logs" / f"{service}.log").open() as file:
        file.seek(since)
        lines = [_parsed(line) for line in file if line.endswith("\n")]  # the next process may be writing one
    return [line for line in lines if line["pid"] in {process.pid, None}]


def _parsed(line: str) -> dict[str, Any]:
    try:
        parsed: dict[str, Any] = json.loads(line)
    except ValueError:
        return {"pid": None, "level": "none", "event": line}
    return parsed


def logged_by_supervisor(weft: Platform, service: str, *, since: int) -> list[dict[str, Any]]:
    """The supervisor's log lines about the service beyond byte ``since``, up to the service's first end."""
    with (weft.home / "logs" / "supervisor.log").open() as file:
        file.seek(since)
        lines = [line for line in map(_parsed, file) if line.get("service") == service and "event" in line]
    ends = [at for at, line in enumerate(lines) if line["event"] == "service.ended"]
    return lines[: ends[0] + 1] if ends else []


async def members_of(weft: Platform, service: str) -> frozenset[str]:
    """Ids of the live processes of a service according to etcd."""
    store = EtcdStatusStore(weft.home.address("etcd"))
    try:
        while True:
            with contextlib.suppress(errors.Unavailable):  # a busy machine's etcd may be late
                return await members(store, service)
    finally:
        await store.close()


def joined(weft: Platform, service: str) -> frozenset[str]:
    """As ``members_of``. A member whose lease has expired, as the machine stalled, joins again: it is waited for."""
    if service in MEMBERS:
        return eventually(lambda: asyncio.run(members_of(weft, service)))
    return asyncio.run(members_of(weft, service))


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_gets_sigterm_under_load_loses_nothing(weft_up: Platform, printing: Job, service: str) -> None:
    pids = weft_up.learner_pids(printing.id)
    with Load(weft_up, printing.id) as load:
        eventually(lambda: load.errors or (load.done > 1 and load.lines))
        process = weft_up.process(service)
        held = joined(weft_up, service)
        so_far = (weft_up.home / "logs" / f"{service}.log").stat().st_size
        watched = (weft_up.home / "logs" / "supervisor.log").stat().st_size
        assert send_signal(process, signal.SIGTERM)
        assert wait_gone(process, LIMIT_S), "it does not end"
        left = held & asyncio.run(members_of(weft_up, service))
        eventually(lambda: weft_up.again(service, process), LIMIT_S)
        jobs_before, lines_before = load.done, len(load.lines)
        eventually(lambda: load.errors or (load.done > jobs_before + 2 and len(load.lines) > lines_before + 5))
    assert load.errors == []
    assert load.lines == list(range(load.lines[0], load.lines[0] + len(load.lines))), "a follower lost or doubled lines"
    assert bool(held) == (service in MEMBERS)
    assert left == frozenset(), "its membership has to expire"
    ended = logged_by_supervisor(weft_up, service, since=watched)
    assert [(line["event"], line.get("exit")) for line in ended] == [("service.ended", 0)], ended
    lines = logged_by(weft_up, process, service, since=so_far)
    # A dropped hint only means that its receiver was busy.
    assert [line for line in lines if line["level"] not in {"info", "debug"} and line["event"] != "hints.dropped"] == []
    assert lines[-1]["event"] == "service.stopped"
    assert (printing.refresh().status, weft_up.learner_pids(printing.id)) == ("PROCESSING", pids)


def test_a_submission_under_way_at_sigterm_of_the_api_is_answered(weft_up: Platform) -> None:
    """Half of its body is sent after the signal, when the api accepts no new connection."""
    host, port = weft_up.home.address("api").host_port
    body = json.dumps({"name": "s", "command": "true", "resources": SMALL}).encode()
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {weft_up.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    process = weft_up.process("api")
    with socket.create_connection((host, port), timeout=LIMIT_S) as connection:
        connection.sendall(head.encode() + body[:10])
        with Client(weft_up.url, weft_up.key) as client:
            client.version()  # sent after it, so the first half has arrived
        so_far = (weft_up.home / "logs" / "api.log").stat().st_size
        assert send_signal(process, signal.SIGTERM)
        eventually(lambda: logged_by(weft_up, process, "api", since=so_far), LIMIT_S)
        connection.sendall(body[10:])
        answer = b"".join(iter(partial(connection.recv, 65_536), b""))
    assert answer.startswith(b"HTTP/1.1 201 "), answer
    assert wait_gone(process, LIMIT_S)
    eventually(lambda: weft_up.again("api", process), LIMIT_S)
    job_id = json.loads(answer.partition(b"\r\n\r\n")[2])["id"]
    with Client(weft_up.url, weft_up.key) as client:
        assert with_retries(lambda: client.jobs.get(job_id)).id == job_id


# --- one service alone ----------------------------------------------------------------

NEVER_DRAINED = """
import asyncio, sys
from pathlib import Path
from services.core.bootstrap.service import run
from services.core.runtime.settings import Settings

async def main(service):
    service.started = True
    print("serves", flush=True)
    await service.stopping.wait()
    print("drains", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("ends", flush=True)

sys.exit(run("api", Settings(), main))
"""


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_draining_service_at_once(tmp_path: Path, second: signal.Signals) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "addresses.json").write_text(json.dumps({"api-ops": free_address()}))
    process = subprocess.Popen(
        [sys.executable, "-c", NEVER_DRAINED],
        env={**os.environ, "WEFT_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "serves\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "drains\n"
        process.send_signal(second)
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (0, "ends\n")
    events = ["service.starting", "service.stopping", "service.cancelled", "service.stopped"]
    assert [json.loads(line)["event"] for line in err.splitlines()] == events
