"""SIGTERM ends each service in order, under load: nothing is lost, and nothing of it has to run out first."""

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
from tests.testbed.server import free_port
from tests.waiting import HANG_S, eventually
from weft import Client, Job, Unavailable

T = TypeVar("T")
SMALL: Final = {"cpus": 0.25, "memory": "64MiB"}
TALKS: Final = 'n=0; while :; do echo "line $n"; n=$((n+1)); sleep 0.01; done'
LIMIT_S: Final = HANG_S
"""Ten seconds are what the supervisor gives them; a machine may be busy."""
SERVICES: Final = ("api", "lcm", "guardian", "metrics", "node", "worker")
MEMBERS: Final = ("lcm", "guardian", "metrics")


def patiently(ask: Callable[[], T]) -> T:
    """As a program does that has time: the SDK gives up after 20 seconds, and a busy machine may need longer."""
    while True:
        try:
            return ask()
        except Unavailable:
            continue


class Load:
    """Submits, reads and follows without a pause, as users do: with the SDK, which tries again."""

    def __init__(self, one: Platform, talking: str) -> None:
        self._one, self._talking = one, talking
        self._enough = threading.Event()
        self.errors: list[BaseException] = []
        self.done = 0
        self.lines: list[int] = []
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in (self._submit, self._follow)]

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
            with Client(self._one.url, self._one.key) as client:
                body(client)
        except BaseException as error:  # noqa: BLE001 - of a thread: the test raises it
            self.errors.append(error)

    def _submit(self, client: Client) -> None:
        spec = {"name": "s", "command": "sleep 600", "resources": SMALL}
        while not self._enough.is_set():
            job = patiently(partial(client.jobs.submit, spec, idempotency_key=uuid.uuid4().hex))
            assert patiently(job.refresh).id == job.id
            patiently(job.kill)
            self.done += 1

    def _follow(self, client: Client) -> None:
        for line in patiently(lambda: client.jobs.get(self._talking)).logs(follow=True):
            self.lines.append(int(line.text.split()[1]))
            if self._enough.is_set():
                return


@pytest.fixture(scope="module")
def weft_up() -> Iterator[Platform]:
    with platform({"WEFT_NODE_CPUS": "4"}) as running:
        yield running


@pytest.fixture(scope="module")
def talking(weft_up: Platform) -> Iterator[Job]:
    """A job that trains all the while."""
    with Client(weft_up.url, weft_up.key) as client:
        job = client.jobs.submit({"name": "t", "command": TALKS, "resources": SMALL})
        eventually(lambda: weft_up.learner_pids(job.id))
        yield job
        job.kill()


def said_by(one: Platform, process: ProcessIdentity, service: str, *, since: int) -> list[dict[str, Any]]:
    """What this very process has logged beyond a byte of the log; what is not of our form, whoever said it."""
    with (one.home / "logs" / f"{service}.log").open() as file:
        file.seek(since)
        said = [_parsed(line) for line in file]
    return [each for each in said if each["pid"] in {process.pid, None}]


def _parsed(line: str) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(line)
    except ValueError:
        return {"pid": None, "level": "none", "event": line}
    return said


def how_it_ended(one: Platform, service: str, *, since: int) -> list[dict[str, Any]]:
    """What the supervisor has said of the service beyond a byte of its log, up to its first end."""
    with (one.home / "logs" / "supervisor.log").open() as file:
        file.seek(since)
        said = [each for each in map(_parsed, file) if each.get("service") == service and "event" in each]
    ends = [at for at, each in enumerate(said) if each["event"] == "service.ended"]
    return said[: ends[0] + 1] if ends else []


async def keys_of(one: Platform, service: str) -> frozenset[str]:
    """Ids of the live processes of a service, as etcd has them."""
    store = EtcdStatusStore(one.home.address("etcd"))
    try:
        while True:
            with contextlib.suppress(errors.Unavailable):  # a busy machine's etcd may be late
                return await members(store, service)
    finally:
        await store.close()


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_is_told_to_stop_under_load_ends_in_order_and_nobody_notices(
    weft_up: Platform, talking: Job, service: str
) -> None:
    pids = weft_up.learner_pids(talking.id)
    with Load(weft_up, talking.id) as load:
        eventually(lambda: load.errors or (load.done > 1 and load.lines))
        process = weft_up.process(service)
        held = asyncio.run(keys_of(weft_up, service))
        so_far = (weft_up.home / "logs" / f"{service}.log").stat().st_size
        watched = (weft_up.home / "logs" / "supervisor.log").stat().st_size
        assert send_signal(process, signal.SIGTERM)
        assert wait_gone(process, LIMIT_S), "it does not end"
        left = held & asyncio.run(keys_of(weft_up, service))
        eventually(lambda: weft_up.again(service, process), LIMIT_S)
        before, seen = load.done, len(load.lines)
        eventually(lambda: load.errors or (load.done > before + 2 and len(load.lines) > seen + 5))
    assert load.errors == []
    assert load.lines == list(range(load.lines[0], load.lines[0] + len(load.lines))), "a follower lost or doubled lines"
    assert bool(held) == (service in MEMBERS)
    assert left == frozenset(), "its membership has to run out"
    ended = how_it_ended(weft_up, service, since=watched)
    assert [(each["event"], each.get("exit")) for each in ended] == [("service.ended", 0)], ended
    said = said_by(weft_up, process, service, since=so_far)
    # That a hint was dropped says that its receiver was busy, and is said by whoever runs.
    assert [one for one in said if one["level"] not in {"info", "debug"} and one["event"] != "hints.dropped"] == []
    assert said[-1]["event"] == "service.stopped"
    assert (talking.refresh().status, weft_up.learner_pids(talking.id)) == ("PROCESSING", pids)


def test_a_submit_that_is_under_way_when_the_api_is_told_to_stop_is_answered(weft_up: Platform) -> None:
    """Half of its body is sent after the signal, when nobody is let in any more."""
    host, port = weft_up.home.address("api").split(":")
    body = json.dumps({"name": "s", "command": "true", "resources": SMALL}).encode()
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {weft_up.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    process = weft_up.process("api")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        connection.sendall(head.encode() + body[:10])
        with Client(weft_up.url, weft_up.key) as client:
            client.version()  # asked after it: the half is there by now
        so_far = (weft_up.home / "logs" / "api.log").stat().st_size
        assert send_signal(process, signal.SIGTERM)
        eventually(lambda: said_by(weft_up, process, "api", since=so_far), LIMIT_S)
        connection.sendall(body[10:])
        answer = b"".join(iter(partial(connection.recv, 65_536), b""))
    assert answer.startswith(b"HTTP/1.1 201 "), answer
    assert wait_gone(process, LIMIT_S)
    eventually(lambda: weft_up.again("api", process), LIMIT_S)
    job_id = json.loads(answer.partition(b"\r\n\r\n")[2])["id"]
    with Client(weft_up.url, weft_up.key) as client:
        assert patiently(lambda: client.jobs.get(job_id)).id == job_id


# --- one service alone ----------------------------------------------------------------

DRAINS_FOR_EVER = """
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
        print("lets go", flush=True)

sys.exit(run("api", Settings(), main))
"""


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_hurries_a_service_that_drains(tmp_path: Path, second: signal.Signals) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "addresses.json").write_text(json.dumps({"api-ops": f"127.0.0.1:{free_port()}"}))
    process = subprocess.Popen(
        [sys.executable, "-c", DRAINS_FOR_EVER], env={**os.environ, "WEFT_HOME": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
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
    assert (process.returncode, out) == (0, "lets go\n")
    events = ["service.starting", "service.stopping", "service.cancelled", "service.stopped"]
    assert [json.loads(line)["event"] for line in err.splitlines()] == events
