"""Measures the time from the kill of a part until it works again, in seconds. Promised: docs/promises.md, R6.

"Works again" is observed from the outside: an answer of the API, the time of a history event, a line that a user reads,
a process in the process table. All times come from this machine's clock.

Each measure leaves the platform as it was and may be repeated.
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
from weft._times import parse_time

T = TypeVar("T")
SMALL: Final = {"cpus": 0.1, "memory": "64MiB"}
TALK: Final = "n=0; while :; do n=$((n + 1)); echo $n $(date +%s%N); sleep 0.05; done"
"""A learner that prints the time every 50 ms."""
WAIT_S: Final = HANG_S
SILENCE_S: Final = 4.0
"""Promised recovery time of a stopped process, in seconds."""
_ASK_S: Final = 0.5
"""Limit of one request in seconds: a request to a stopped api would otherwise never end."""
_WATCHED_S: Final = 5.5
"""Seconds that a process lives before it is stopped: liveness checks begin after the start-up time."""
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the platform and its promised recovery time."""

    name: str
    measure: Callable[[Bench], float]
    crash_s: float | None
    """Promised seconds after a kill; None: no promise."""
    ffdl: str
    """Seconds that FfDL's paper reports (as recalled): docs/promises.md, R6."""
    can_be_silent: bool = False
    """True if its liveness is checked: then `SILENCE_S` is promised after SIGSTOP."""


@dataclass(slots=True)
class Bench:
    """A running platform, a client, and a job that prints all the time."""

    platform: Platform
    client: Client
    talker: Job
    sign: signal.Signals = signal.SIGKILL
    ask_s: float = _ASK_S
    """Timeout of the next request, in seconds."""

    def ask(self, path: str) -> dict[str, Any] | None:
        """Returns the API's answer, or None if there is none. Does not retry, as the SDK would."""
        request = urllib.request.Request(  # noqa: S310 - the platform's own address
            f"{self.platform.url}{path}", headers={"Authorization": f"Bearer {self.platform.key}"}
        )
        try:
            with _direct.open(request, timeout=self.ask_s) as answer:
                document: dict[str, Any] = json.load(answer)
        except TimeoutError:
            self.ask_s *= 2  # the api of a busy machine may answer late
            return None
        except (OSError, http.client.HTTPException):
            return None
        self.ask_s = _ASK_S
        return document

    def kill(self, service: str) -> float:
        """Kills (or stops) the service. Returns the Unix time in seconds just before."""
        return self.kill_process(self.platform.process(service))

    def kill_process(self, process: ProcessIdentity) -> float:
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


def poll_until(attempt: Callable[[], T | None], every_s: float = 0.004) -> T:
    """Calls ``attempt`` until it returns a value other than None, and returns that value."""
    deadline = time.monotonic() + WAIT_S
    while (value := attempt()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing within {WAIT_S:.0f} s")
        time.sleep(every_s)
    return value


# --- measures ---------------------------------------------------------------


def api(bench: Bench) -> float:
    """Until a request with a key is answered."""
    began = bench.kill("api")
    return poll_until(lambda: time.time() if bench.ask(f"/v1/jobs/{bench.talker.id}") else None) - began


def lcm(bench: Bench) -> float:
    """Until a job that is submitted after the kill is admitted."""
    began = bench.kill("lcm")
    job = bench.client.jobs.submit({"name": "takeover", "command": "true", "resources": SMALL})
    try:
        return _event_time(bench, job, "PENDING") - began
    finally:
        job.wait(WAIT_S)


def guardian(bench: Bench) -> float:
    """Until a job that is halted after the kill begins to halt."""
    job = bench.client.jobs.submit({"name": "takeover", "command": "exec sleep 600", "resources": SMALL, "grace": "1s"})
    _event_time(bench, job, "PROCESSING")
    began = bench.kill("guardian")
    job.halt()
    try:
        return _event_time(bench, job, "HALTING") - began
    finally:
        job.wait(WAIT_S).kill()


def metrics(bench: Bench) -> float:
    """Until a user can read a line that was written after the kill."""
    _line_readable_at(bench, time.time())
    began = bench.kill("metrics")
    return _line_readable_at(bench, began) - began


def helper(bench: Bench) -> float:
    """As `metrics`, for a kill of the helper."""
    _line_readable_at(bench, time.time())
    process = read_live_process(_folder(bench.platform, bench.talker) / "helper.json")
    assert process is not None
    began = bench.kill_process(process)
    return _line_readable_at(bench, began) - began


def learner(bench: Bench) -> float:
    """Until the next attempt's process of a killed learner runs."""
    return _restarted(bench, lambda job: bench.platform.learner_pids(job.id)["worker-0"])


def shim(bench: Bench) -> float:
    """Until the next attempt's process runs: the kill of the shim loses the learner."""
    return _restarted(bench, lambda job: _read(_folder(bench.platform, job) / "shim.json")["pid"])


def node(bench: Bench) -> float:
    """Until a job that is submitted after the kill has its process."""
    began = bench.kill("node")
    job = bench.client.jobs.submit({"name": "takeover", "command": "exec sleep 600", "resources": SMALL})
    try:
        return poll_until(lambda: _started(bench.platform, job, 1)) - began
    finally:
        job.kill().wait(WAIT_S)


def etcd(bench: Bench) -> float:
    """Until a job that is submitted after the kill has its process. etcd loses all its keys."""
    began = bench.kill("etcd")
    job = bench.client.jobs.submit({"name": "takeover", "command": "exec sleep 600", "resources": SMALL})
    try:
        return poll_until(lambda: _started(bench.platform, job, 1)) - began
    finally:
        job.kill().wait(WAIT_S)


# --- observations ---------------------------------------------------------------


def _event_time(bench: Bench, job: Job, to: str) -> float:
    """Returns the Unix time at which the job entered this status, by its history."""

    def read() -> float | None:
        events = (bench.ask(f"/v1/jobs/{job.id}/history") or {}).get("events", ())
        return next((parse_time(event["time"]).timestamp() for event in events if event["to"] == to), None)

    return poll_until(read)


def _line_readable_at(bench: Bench, after: float) -> float:
    """Returns the Unix time at which a user can read a line printed after ``after``."""

    def read() -> float | None:
        lines = (bench.ask(f"/v1/jobs/{bench.talker.id}/logs?tail=1") or {}).get("lines")
        return time.time() if lines and int(lines[-1]["text"].split()[1]) / 1e9 > after else None

    return poll_until(read, 0.01)


def _restarted(bench: Bench, victim: Callable[[Job], int]) -> float:
    retries = {"max": 1, "backoff": "1ms"}
    spec = {"name": "takeover", "command": "exec sleep 600", "resources": SMALL, "retries": retries}
    job = bench.client.jobs.submit(spec)
    poll_until(lambda: _started(bench.platform, job, 1))
    began = time.time()
    os.kill(victim(job), signal.SIGKILL)
    try:
        return poll_until(lambda: _started(bench.platform, job, 2)) - began
    finally:
        job.kill().wait(WAIT_S)


def _started(platform: Platform, job: Job, attempt: int) -> float | None:
    """Returns the start time of the attempt's first learner by its shim's record; None if it has not started."""
    record = _read(_folder(platform, job, attempt) / "runs" / "1" / "start.json")
    return record["time"] / 1e3 if record else None


def _folder(platform: Platform, job: Job, attempt: int = 1) -> Path:
    return platform.home / "node" / job.id / str(attempt) / "worker-0"


def _read(path: Path) -> Mapping[str, int]:
    try:
        record: Mapping[str, int] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return record


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
    """Yields a bench with its printing job."""
    with Client(platform.url, platform.key) as client:
        talker = client.jobs.submit({"name": "talker", "command": TALK, "resources": SMALL})
        try:
            next(iter(talker.logs(follow=True)))
            yield Bench(platform, client, talker)
        finally:
            talker.kill().wait(WAIT_S)
