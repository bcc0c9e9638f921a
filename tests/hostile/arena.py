"""A running platform with an operator, and two tenants: a victim and an attacker.

The victim has a finished job (the vault: results, logs, metrics with canaries) and a running one (the guard). Canaries
are texts that occur nowhere else: an attacker whose output holds one has read what is another's.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import secrets
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.hostile.combinations import Combination, own_uids, running
from tests.testbed.platform import Platform
from tests.waiting import HANG_S, eventually
from weft import Client, Conflict
from weft._archive import Archive, Listing
from weft._job import Job

VICTIM, ATTACKER = "acme", "evil"
VICTIMS_KEY: Final = "the-victims-own"
"""The idempotency key of the vault."""
SMALL: Final = {"cpus": 0.5, "memory": "128MiB"}
BOUNDS: Final = {"grace": "1s", "max_runtime": "90s", "store_timeout": "60s", "resources": SMALL}
"""Of every attack: it ends by itself, whatever it does."""
_ATTACKS: Final = Path(__file__).with_name("attacks")
_SERVICES: Final = ("etcd", "metrics", "node", "lcm", "guardian", "api")
_SHORTEST_SECRET: Final = 16


class Arena:
    """``attacker``, ``victim``, ``admin``: clients of their tenants."""

    def __init__(self, weft: Platform, combination: Combination, data: Path) -> None:
        self.weft, self.combination, self.data = weft, combination, data
        self.user, self.uids = own_uids(combination)
        self._open = ExitStack()
        self.admin = self._open.enter_context(Client(weft.url, weft.key))
        self.attacker_key = self._key(ATTACKER)
        self.victim = self._open.enter_context(Client(weft.url, self._key(VICTIM)))
        self.attacker = self._open.enter_context(Client(weft.url, self.attacker_key))
        self.canaries = {name: f"canary{secrets.token_hex(16)}" for name in ("result", "log", "env", "file", "code")}
        self.jobs: set[str] = set()
        """Ids of the attacker's jobs, and of those between two tricks."""

    def begin(self) -> None:
        """Starts the victim's jobs."""
        self.vault = self._make_vault()
        self.guard = self._make_guard()

    def close(self) -> None:
        self._open.close()

    # --- the victim -----------------------------------------------------------------------------------------------

    def _key(self, tenant: str) -> str:
        wanted = {"name": tenant, "user": tenant, "tenant": tenant}
        return str(self.admin._http.json("POST", "/v1/keys", body=wanted)["key"])

    def _make_vault(self) -> Job:
        command = (
            f'echo {self.canaries["result"]} > "$RESULT_DIR/key"; echo {self.canaries["result"]} > "$CHECKPOINT_DIR/w";'
            f" echo {self.canaries['log']}"
        )
        with archive({"key.txt": self.canaries["code"].encode()}) as code:
            job = self.victim.jobs.submit(
                {"name": "vault", "command": command, **BOUNDS}, code=code, idempotency_key=VICTIMS_KEY
            )
        assert job.wait(HANG_S).status == "COMPLETED", job.message
        return job

    def _make_guard(self) -> Job:
        """Runs for as long as the platform: whatever an attacker does must not end it."""
        command = f"echo {self.canaries['file']} > $RESULT_DIR/key; echo up; exec sleep 100000"
        spec = {"name": "guard", "command": command, "env": {"KEY": self.canaries["env"]}, "resources": SMALL}
        job = self.victim.jobs.submit(spec)
        eventually(lambda: job.refresh().status == "PROCESSING" and list(job.logs()))
        return job

    def mend(self) -> None:
        """After a trick that has fallen: ends its jobs and replaces the guard, so that the next one starts anew."""
        for job in self.attacker.jobs.list():
            end(job)
        guard = self.guard.refresh()
        if (guard.status, guard.attempt) != ("PROCESSING", 1):
            end(guard)
            self.guard = self._make_guard()

    def next_job(self) -> Iterator[str]:
        """Trains the next job, a tiny one of the victim's. Yields what is wrong with it."""
        word = secrets.token_hex(8)
        job = self.victim.jobs.submit({"name": "next", "command": f"echo {word} > $RESULT_DIR/word", **BOUNDS})
        self.jobs.add(job.id)
        job.wait(HANG_S)
        if job.status != "COMPLETED":
            yield f"the next job is {job.status} ({job.reason}: {job.message})"
            return
        with tempfile.TemporaryDirectory() as folder:
            stored = [path.read_text() for path in job.download(folder)]
        if stored != [f"{word}\n"]:
            yield f"the next job's results are {stored}"
        job.delete()

    # --- the attacker ---------------------------------------------------------------------------------------------

    def attack(self, module: str, function: str, spec: Mapping[str, Any]) -> Job:
        """Submits an attack of ``tests.hostile.attacks`` as the attacker's job."""
        python = os.path.realpath(sys.executable)
        command = f"exec {python} -B -m tests.hostile.attacks.main {module} {function}"
        files = {f"tests/hostile/attacks/{path.name}": path.read_bytes() for path in _ATTACKS.glob("*.py")}
        files["tests/hostile/attacks/intel.json"] = json.dumps(self.intel()).encode()
        with archive(files) as code:
            name = f"{module}.{function}"[:60]
            return self.submit({"name": name, "command": command, **spec}, code)

    def submit(self, spec: Mapping[str, Any], code: Archive | None = None) -> Job:
        """Submits a job of the attacker's, within bounds of time and size."""
        job = self.attacker.jobs.submit({**BOUNDS, **spec}, code=code)
        self.jobs.add(job.id)
        return job

    def intel(self) -> dict[str, Any]:
        """What an attacker could find out at best. Read by ``tests.hostile.attacks.ground.intel``."""
        addresses = self.weft.home.addresses()
        owners = self.ports()
        return {
            "home": str(self.weft.home.root),
            "addresses": addresses,
            "ports": sorted(owners),
            "ports_of": {str(port): service for port, service in owners.items()},
            "open_ports": [int(addresses[name].rpartition(":")[2]) for name in ("api", "api-grpc")],
            "sockets": sorted(self.sockets()),
            "pids": sorted(self.pids()),
            "commands": {str(pid): _command(pid) for pid in self.pids()},
            "private": [str(path) for path in self.private_paths()],
            "guard": {"job": self.guard.id, "vault": self.vault.id, "tenant": VICTIM},
            "key": self.attacker_key,
        }

    def pids(self) -> set[int]:
        """Processes that no attacker may touch: the services, and all of the guard."""
        return {*(self.weft.process(name).pid for name in _SERVICES), *self.weft.processes_of(self.guard.id)}

    def ports(self) -> dict[int, str]:
        """TCP ports on which processes of the platform listen -> service."""
        inodes = {}
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    inodes[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
        listening: dict[int, str] = {}
        supervisor = self.weft.process("supervisor").pid
        for name, pid in {
            **{name: self.weft.process(name).pid for name in _SERVICES},
            "supervisor": supervisor,
        }.items():
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                try:
                    target = str(descriptor.readlink())
                except FileNotFoundError:
                    continue
                if target in inodes:
                    listening[inodes[target]] = name
        return listening

    def sockets(self) -> set[str]:
        """Paths of the sockets in the platform's folder on which a process listens."""
        lines = Path("/proc/net/unix").read_text().splitlines()[1:]
        paths = {fields[7] for line in lines if len(fields := line.split(None, 7)) == 8}
        return {path for path in paths if path.startswith(f"{self.weft.home.root}/")}

    def private_paths(self) -> list[Path]:
        """Files and folders that an attacker may neither read nor change."""
        home = self.weft.home
        guard = home / "node" / self.guard.id / "1" / "worker-0"
        names = ("run", "secrets", "logs", "objects", "metrics", "jobs.sqlite", "records.sqlite", "uploads", "etcd")
        return [
            *(home / name for name in names if (home / name).exists()),
            *sorted(path for path in (home / "secrets").rglob("*") if path.is_file()),
            *sorted((home / "run").glob("*.json")),
            *sorted(path for path in (home / "objects" / "tenants" / VICTIM).rglob("*") if path.is_file()),
            guard, guard / "learner.json", guard / "shim.json", guard / "job", guard / "job" / "results" / "key",
        ]  # fmt: skip

    def job_folder(self, job: Job) -> Path:
        """JOB_STATE_DIR of the job's first learner."""
        return self.weft.home / "node" / job.id / "1" / "worker-0" / "job"

    def identities(self) -> dict[str, object]:
        """Service -> its process."""
        return {name: self.weft.process(name) for name in _SERVICES}

    # --- canaries -------------------------------------------------------------------------------------------------

    def secret_texts(self) -> dict[str, str]:
        """Name -> a text that no output of an attacker may hold: canaries, and the platform's secrets in all forms."""
        texts = dict(self.canaries)
        for path in (self.weft.home / "secrets").rglob("*"):
            if path.is_file() and len(content := path.read_bytes().strip()) >= _SHORTEST_SECRET:
                forms = (repr(content.decode("latin-1"))[1:-1], content.hex(), base64.b64encode(content).decode())
                texts |= {f"{path.name} ({number})": form for number, form in enumerate(forms)}
        return texts

    def victims_files(self) -> dict[str, str]:
        """Path -> digest, of everything of the victim's and the operator's that must not change."""
        home = self.weft.home
        guard = home / "node" / self.guard.id / "1" / "worker-0"
        roots = (
            home / "objects" / "tenants" / VICTIM / "jobs" / self.vault.id,
            home / "secrets",
            self.data,
            guard / "job",
        )
        files = {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for root in roots
            for path in sorted(root.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }
        for name in ("", "run", "secrets", "logs", "objects", "metrics", "jobs.sqlite", "records.sqlite", "uploads"):
            if (home / name).exists():
                status = (home / name).stat()
                files[f"{home / name} itself"] = f"{status.st_ino} {status.st_uid} {status.st_mode:o}"
        return files


def end(job: Job) -> None:
    """Kills the job, unless it has ended."""
    if not job.at_rest:
        with suppress(Conflict):
            job.kill()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("latin-1")
    except OSError:
        return ""


@contextmanager
def archive(files: Mapping[str, bytes]) -> Generator[Archive]:
    """A code archive of these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(zipfile.ZipInfo(name), content)
    with raw_archive(buffer.getvalue()) as made:
        yield made


@contextmanager
def raw_archive(content: bytes) -> Generator[Archive]:
    """A code archive of these bytes, whatever they are."""
    with tempfile.NamedTemporaryFile(suffix=".zip") as file:
        file.write(content)
        file.flush()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        yield Archive(Path(file.name), digest, len(content), Listing(()))


@contextmanager
def arena(combination: Combination, environment: Mapping[str, str]) -> Generator[Arena]:
    """An arena on a platform of its own; nothing of it is left afterwards."""
    data = Path(tempfile.mkdtemp(prefix="weft-test-data-"))
    data.chmod(0o755)
    (data / "set").mkdir()
    (data / "set" / "part").write_text("the operator's")
    user, uids = own_uids(combination)
    settings = {
        "WEFT_DATA_PATHS": str(data), "WEFT_NODE_CPUS": "16", "WEFT_NODE_MEMORY": "8GiB",
        "WEFT_NODE_UID_FIRST": str(uids.start if user == 0 else 70_000), "WEFT_NODE_UID_COUNT": "100", **environment,
    }  # fmt: skip
    try:
        with running(combination, settings, user) as weft:
            made = Arena(weft, combination, data)
            try:
                made.begin()
                yield made
            finally:
                made.close()
    finally:
        shutil.rmtree(data)
