"""The whole platform on this machine, as `weft up` starts it, in a folder of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx2

from services.core.runtime.address import TLS
from services.core.runtime.home import Home
from services.core.runtime.operations_client import read_operations
from services.core.runtime.processes import ProcessIdentity, read_live_process, send_signal, wait_gone
from services.local.commands import PLATFORM
from services.local.layout import FOR_USERS, INNER, SUPERVISOR, with_certificate
from tests.testbed.server import free_port, own_numbers
from tests.testbed.signals import kill_all, pause
from tests.waiting import HANG_S, eventually
from weft import Client, WeftError

RUNNING: Final[list[Platform]] = []
"""Of this process, for the report of a test that failed."""


class Platform:
    """Keeps its folder over all its lives. ``environment``: settings (``WEFT_*``) for every service."""

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        self.home = with_certificate(Home(root), SUPERVISOR, None)
        self._environment = {**own_numbers(), **environment}
        self.hints = self._environment.get("WEFT_HINTS") != "drop"
        self.url = self.key = ""

    def environment(self) -> AbstractContextManager[None]:
        """As in the shell of its operator."""
        return _environment({**self._environment, "WEFT_HOME": str(self.home.root)})

    def up(self) -> None:
        if not self.home.addresses_file.exists():
            # The platform's own choice might be a port that a test of another worker was given and does not use yet.
            self.home.addresses_file.parent.mkdir(parents=True, exist_ok=True)
            addresses = {name: f"127.0.0.1:{free_port()}" for name in FOR_USERS}
            if self._environment.get("WEFT_TRANSPORT") == "tls":
                addresses |= {name: f"{TLS}127.0.0.1:{free_port()}" for name in INNER}
            self.home.addresses_file.write_text(json.dumps(addresses))
        with _environment(self._environment):
            answer = PLATFORM.up(str(self.home.root), report=lambda _: None)
        self.url, self.key = answer["url"], answer["key"]

    def all_ready(self) -> bool:
        """Whether every service is ready, also the broker's worker, for which ``up`` does not wait."""
        return {service["state"] for service in PLATFORM.status(str(self.home.root))["services"]} == {"ready"}

    def down(self) -> None:
        PLATFORM.down(str(self.home.root), now=True, report=lambda _: None)

    def histories(self, limit: int = 8) -> str:
        """The histories of the jobs submitted last, for the report of a test that failed."""
        if not self.url:
            return ""  # it was never up: a client without an address would use the profile of the user
        lines = []
        with suppress(WeftError), Client(self.url, self.key, on_wait=_give_up) as client:
            for job in client.jobs.list(limit=limit):
                lines.append(f"{job.id} {job.name}: {job.status}, attempt {job.attempt}")
                lines += [
                    f"  {event.time:%T.%f} {event.actor}: {event.to} {event.attempt} {event.reason} {event.message}"
                    for event in job.history()
                ]
        return "\n".join(lines)

    def running(self, service: str) -> ProcessIdentity | None:
        """The service's process; None if it does not run."""
        return read_live_process(self.home / "run" / f"{service}.json")

    def process(self, service: str) -> ProcessIdentity:
        process = self.running(service)
        assert process is not None, f"{service} does not run"
        return process

    def again(self, service: str, killed: ProcessIdentity) -> bool:
        """Whether the supervisor has started the service anew."""
        return self.running(service) not in {None, killed}

    def kill(self, service: str) -> ProcessIdentity:
        """kill -9, by its own pid; returns when it is gone. The supervisor starts it again."""
        process = eventually(lambda: self._killed(service))
        assert process is not None
        assert wait_gone(process, HANG_S)
        return process

    def _killed(self, service: str) -> ProcessIdentity | None:
        """None: there was none. Some end by themselves when what they need was killed before, also at this moment."""
        process = self.running(service)
        return process if process is not None and send_signal(process, signal.SIGKILL) else None

    def learner_pids(self, job_id: str, attempt: int = 1) -> dict[str, int]:
        """Learner -> pid of its process, from the shims' own records."""
        starts = (self.home / "node" / job_id / str(attempt)).glob("*/runs/*/start.json")
        return {path.parts[-4]: int(json.loads(path.read_text())["pid"]) for path in starts}

    def processes_of(self, job_id: str) -> list[int]:
        """Pids of everything that belongs to the job: learners, shims, helpers."""
        pids = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if job_id.encode() in text and int(entry.name) != os.getpid():
                pids.append(int(entry.name))
        return pids

    def lose(self, job_id: str) -> None:
        """As if the job's machine was lost, with its disk: ends the job's processes and removes their folders.

        The node agent is killed before: it would start the helper again, which stores what is left. The supervisor,
        which would start the agent again, is stopped meanwhile.
        """
        supervisor = self.process("supervisor")
        pause(supervisor.pid)
        try:
            self.kill("node")
            kill_all(lambda: self.processes_of(job_id))
            shutil.rmtree(self.home / "node" / job_id)
        finally:
            send_signal(supervisor, signal.SIGCONT)

    @property
    def operator(self) -> dict[str, str]:
        """Headers for operations addresses."""
        return {"Authorization": f"Bearer {self.key}"}

    def request(
        self, method: str, path: str, *, key: str = "", body: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        """The answer of the api, however long a busy machine takes. ``key``: the operator's if empty."""
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return httpx2.request(method, self.url + path, headers=headers, json=body, timeout=HANG_S, trust_env=False)

    def new_key(self, **fields: str) -> str:
        """``fields``: user, tenant and name of the key."""
        made = self.request("POST", "/v1/keys", body=fields).raise_for_status()
        return str(made.json()["key"])

    def counter(self, service: str, name: str) -> float:
        """The sum of a Prometheus counter over its labels."""
        text = self.metrics(service)
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))

    def metrics(self, service: str) -> str:
        """What Prometheus reads of a service."""
        answer = read_operations(
            self.home.address(f"{service}-ops"), "/metrics", timeout_s=HANG_S, headers=self.operator
        )
        return answer.body.decode()


def _give_up(error: WeftError) -> None:
    raise error


@contextmanager
def _environment(values: Mapping[str, str]) -> Generator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def platform(environment: Mapping[str, str] | None = None) -> Generator[Platform]:
    """A running platform in a new folder which learners' own uids can reach; nothing of it is left afterwards."""
    with empty_platform(environment) as running:
        running.up()
        yield running


@contextmanager
def empty_platform(environment: Mapping[str, str] | None = None) -> Generator[Platform]:
    """The same, before it was ever started."""
    root = Path(tempfile.mkdtemp(prefix="weft-test-"))
    root.chmod(0o755)
    running = Platform(root / "home", environment or {})
    RUNNING.append(running)
    try:
        yield running
    except BaseException as error:
        error.add_note(running.histories())
        raise
    finally:
        RUNNING.remove(running)
        running.down()
        # Trees that learners have made may be too deep for Python's own removal.
        subprocess.run(["rm", "-rf", str(root)], check=True)
