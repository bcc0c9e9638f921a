"""How long it takes until a part that died does its work again: from the kill to its next useful act.

What is useful is seen from the outside: an answer of the API, a history event's time, a line that a user gets, a
process in the process table. Times are read off the one clock of this machine, in seconds. Promised: promises.md, R6.

Each measure leaves the platform as it was and may be called any number of times.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from services.core.runtime.processes import ProcessIdentity, read_live_process, send_signal
from tests.testbed.platform import Platform
from tests.testbed.signals import pause
from tests.waiting import HANG_S
from weft import Client
from weft._job import Job
from weft._records import parse_time

T = TypeVar("T")
SMALL: Final = {"cpus": 0.1, "memory": "64MiB"}
TALK: Final = "n=0; while :; do n=$((n + 1)); echo $n $(date +%s%N); sleep 0.05; done"
"""A learner that says what time it is, all the time."""
PATIENCE_S: Final = HANG_S
SILENCE_S: Final = 4.0
"""Promised for what stands still, in seconds."""
_ASK_S: Final = 0.5
"""A question to an api that stands still is given up after this, in seconds, or nothing could be measured."""
_WATCHED_S: Final = 5.5
"""Whoever is younger is given time to come up."""
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Part:
    """Something that can die, and what is promised for then."""

    name: str
    measure: Callable[[Bench], float]
    crash_s: float | None
    """The promise after a kill, in seconds; None: none is given."""
    ffdl: str
    """What FfDL's paper reports (as recalled): promises.md, R6."""
    can_be_silent: bool = False
    """Whether somebody watches that it does anything at all: then `SILENCE_S` is promised after SIGSTOP."""


@dataclass(slots=True)
class Bench:
    """A running platform, a user, and a job that talks all the time."""

    platform: Platform
    client: Client
    talker: Job
    sign: signal.Signals = signal.SIGKILL
    ask_s: float = _ASK_S
    """How long the next question waits for its answer, in seconds."""

    def ask(self, path: str) -> dict[str, Any] | None:
        """The API's answer; None where there is none. At once: the SDK would wait for as long as it is told to."""
        request = urllib.request.Request(  # noqa: S310 - the platform's own address
            f"{self.platform.url}{path}", headers={"Authorization": f"Bearer {self.platform.key}"}
        )
        try:
            with _direct.open(request, timeout=self.ask_s) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, http.client.HTTPException):
            self.ask_s *= 1.1  # a busy machine's api may answer, and late
            return None
        self.ask_s = _ASK_S
        return found

    def strike(self, service: str) -> float:
        """Ends (or stops) the service; Unix time in seconds of just before."""
        return self.strike_process(self.platform.process(service))

    def strike_process(self, process: ProcessIdentity) -> float:
        if self.sign is signal.SIGSTOP:
            time.sleep(max(0.0, _WATCHED_S - _age_s(process)))
            now = time.time()
            pause(process.pid)
            return now
        now = time.time()
        assert send_signal(process, self.sign)
        return now


def _age_s(process: ProcessIdentity) -> float:
    up = float(Path("/proc/uptime").read_text().split()[0])
    return up - process.start_time / os.sysconf("SC_CLK_TCK")


def _soon(found: Callable[[], T | None], every_s: float = 0.004) -> T:
    """What ``found`` gives, asked until it gives something."""
    deadline = time.monotonic() + PATIENCE_S
    while (value := found()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing within {PATIENCE_S:.0f} s")
        time.sleep(every_s)
    return value


# --- what is useful ---------------------------------------------------------------


def api(bench: Bench) -> float:
    """A request with a key is answered."""
    began = bench.strike("api")
    return _soon(lambda: time.time() if bench.ask(f"/v1/jobs/{bench.talker.id}") else None) - began


def lcm(bench: Bench) -> float:
    """A job that is submitted now is admitted."""
    began = bench.strike("lcm")
    job = bench.client.jobs.submit({"name": "takeover", "command": "true", "resources": SMALL})
    try:
        return _event(bench, job, "PENDING") - began
    finally:
        job.wait(PATIENCE_S)


def guardian(bench: Bench) -> float:
    """A running job that is halted now begins to halt."""
    job = bench.client.jobs.submit({"name": "takeover", "command": "exec sleep 600", "resources": SMALL, "grace": "1s"})
    _event(bench, job, "PROCESSING")
    began = bench.strike("guardian")
    job.halt()
    try:
        return _event(bench, job, "HALTING") - began
    finally:
        job.wait(PATIENCE_S).kill()


def metrics(bench: Bench) -> float:
    """A line that was written after the kill can be read by a user."""
    _shown(bench, time.time())
    began = bench.strike("metrics")
    return _shown(bench, began) - began


def helper(bench: Bench) -> float:
    """The same; the kill hits the helper."""
    _shown(bench, time.time())
    process = read_live_process(_folder(bench.platform, bench.talker) / "helper.json")
    assert process is not None
    began = bench.strike_process(process)
    return _shown(bench, began) - began


def learner(bench: Bench) -> float:
    """A learner's process is killed; another one runs, in the next attempt."""
    return _restarted(bench, lambda job: bench.platform.learner_pids(job.id)["worker-0"])


def shim(bench: Bench) -> float:
    """A learner's parent is killed: the learner is lost, and another one runs."""
    return _restarted(bench, lambda job: _read(_folder(bench.platform, job) / "shim.json")["pid"])


def node(bench: Bench) -> float:
    """A job that is submitted now gets its process."""
    began = bench.strike("node")
    job = bench.client.jobs.submit({"name": "takeover", "command": "exec sleep 600", "resources": SMALL})
    try:
        return _soon(lambda: _started(bench.platform, job, 1)) - began
    finally:
        job.kill().wait(PATIENCE_S)


def etcd(bench: Bench) -> float:
    """etcd dies, and with it all that it knew; a job that is submitted now gets its process."""
    began = bench.strike("etcd")
    job = bench.client.jobs.submit({"name": "takeover", "command": "exec sleep 600", "resources": SMALL})
    try:
        return _soon(lambda: _started(bench.platform, job, 1)) - began
    finally:
        job.kill().wait(PATIENCE_S)


# --- how it is seen ---------------------------------------------------------------


def _event(bench: Bench, job: Job, to: str) -> float:
    """When the job came to this status, by its history."""

    def there() -> float | None:
        events = (bench.ask(f"/v1/jobs/{job.id}/history") or {}).get("events", ())
        return next((parse_time(event["time"]).timestamp() for event in events if event["to"] == to), None)

    return _soon(there)


def _shown(bench: Bench, after: float) -> float:
    """When a line of the talking job is there for a user which was said after ``after``."""

    def there() -> float | None:
        lines = (bench.ask(f"/v1/jobs/{bench.talker.id}/logs?tail=1") or {}).get("lines")
        return time.time() if lines and int(lines[-1]["text"].split()[1]) / 1e9 > after else None

    return _soon(there, 0.01)


def _restarted(bench: Bench, victim: Callable[[Job], int]) -> float:
    retries = {"max": 1, "backoff": "1ms"}
    spec = {"name": "takeover", "command": "exec sleep 600", "resources": SMALL, "retries": retries}
    job = bench.client.jobs.submit(spec)
    _soon(lambda: _started(bench.platform, job, 1))
    began = time.time()
    os.kill(victim(job), signal.SIGKILL)
    try:
        return _soon(lambda: _started(bench.platform, job, 2)) - began
    finally:
        job.kill().wait(PATIENCE_S)


def _started(platform: Platform, job: Job, attempt: int) -> float | None:
    """When the first learner's process of the attempt was started, by its shim's record."""
    record = _read(_folder(platform, job, attempt) / "runs" / "1" / "start.json")
    return record["time"] / 1e3 if record else None


def _folder(platform: Platform, job: Job, attempt: int = 1) -> Path:
    return platform.home / "node" / job.id / str(attempt) / "worker-0"


def _read(path: Path) -> Mapping[str, int]:
    try:
        found: Mapping[str, int] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found


PARTS: Final = (
    Part("api", api, 2.0, "3-5", can_be_silent=True),
    Part("lcm", lcm, 3.0, "4-6", can_be_silent=True),
    Part("guardian", guardian, 1.5, "1-2", can_be_silent=True),
    Part("metrics", metrics, 2.0, "-", can_be_silent=True),
    Part("helper", helper, 2.0, "3-4", can_be_silent=True),
    Part("learner", learner, 5.0, "10-20"),
    Part("shim", shim, 5.0, "-"),
    Part("node", node, None, "-", can_be_silent=True),
    Part("etcd", etcd, None, "-", can_be_silent=True),
)


@contextmanager
def measuring(platform: Platform) -> Generator[Bench]:
    """With the job that talks."""
    with Client(platform.url, platform.key) as client:
        talker = client.jobs.submit({"name": "talker", "command": TALK, "resources": SMALL})
        try:
            next(iter(talker.logs(follow=True)))
            yield Bench(platform, client, talker)
        finally:
            talker.kill().wait(PATIENCE_S)
