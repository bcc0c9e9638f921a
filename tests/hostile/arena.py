"""A running platform with an operator, and two tenants: a victim and an attacker.

The victim has a finished job (the vault: results, logs, metrics with canaries) and a running one (the guard). Canaries
are texts that occur nowhere else: an attacker whose output holds one has read what is another's.
"""

from __future__ import annotations

import base64
import hashlib
import io
import secrets
import shutil
import tempfile
import zipfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.hostile.attack_code import attack_files
from tests.hostile.clusters.kind import ATTACKER, PLATFORM_FOLDERS, VICTIM, Learners
from tests.hostile.combinations import Combination, Say, running
from tests.testbed.live_files import live_files
from tests.testbed.platform import Platform
from tests.waiting import HANG_S, eventually
from weft import Client, Conflict, WeftError
from weft._archive import Archive, Listing
from weft._job import Job

VICTIMS_KEY: Final = "the-victims-own"
"""The idempotency key of the vault."""
SMALL: Final = {"cpus": 0.5, "memory": "128MiB"}
BOUNDS: Final = {"grace": "1s", "max_runtime": "90s", "store_timeout": "60s", "resources": SMALL}
"""Of every attack: it ends by itself, whatever it does."""
_SHORTEST_SECRET: Final = 16


class Arena:
    """``attacker``, ``victim``, ``admin``: clients of their tenants."""

    def __init__(self, weft: Platform, cluster: Learners, data: Path) -> None:
        self.weft, self.cluster, self.data = weft, cluster, data
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
        with suppress(WeftError):  # the platform may have been killed by a trick that fell
            end(self.guard)
            self.guard.wait(HANG_S)
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
        command = self.cluster.command(module, function)
        with archive(attack_files(self.intel())) as code:
            name = f"{module}.{function}"[:60]
            return self.submit({"name": name, "command": command, **spec}, code)

    def submit(self, spec: Mapping[str, Any], code: Archive | None = None) -> Job:
        """Submits a job of the attacker's, within bounds of time and size."""
        job = self.attacker.jobs.submit({**BOUNDS, **spec}, code=code)
        self.jobs.add(job.id)
        return job

    def intel(self) -> dict[str, Any]:
        """What an attacker could find out at best. Read by ``tests.hostile.attacks.ground.intel``."""
        return {
            **self.cluster.intel(self.guard),
            "home": str(self.weft.home.root),
            "private": self.private_paths(),
            "guard": {"job": self.guard.id, "vault": self.vault.id, "tenant": VICTIM},
            "key": self.attacker_key,
        }

    def private_paths(self) -> list[str]:
        """Files and folders that an attacker may neither read nor change."""
        home = self.weft.home
        return [
            *(str(home / name) for name in PLATFORM_FOLDERS if (home / name).exists()),
            *sorted(str(path) for path in (home / "secrets").rglob("*") if path.is_file()),
            *sorted(map(str, (home / "run").glob("*.json"))),
            *sorted(map(str, live_files(home / "objects" / "tenants" / VICTIM))),
            *self.cluster.private(self.guard),
        ]

    # --- canaries -------------------------------------------------------------------------------------------------

    def secret_texts(self) -> dict[str, str]:
        """Name -> a text that no output of an attacker may hold: canaries, and the platform's secrets in all forms."""
        texts = dict(self.canaries)
        for path in (self.weft.home / "secrets").rglob("*"):
            if path.is_file() and len(content := path.read_bytes().strip()) >= _SHORTEST_SECRET:
                forms = (repr(content.decode("latin-1"))[1:-1], content.hex(), base64.b64encode(content).decode())
                texts |= {f"{path.name} ({number})": form for number, form in enumerate(forms)}
        return texts | self.cluster.secrets(self.guard)

    def victims_files(self) -> dict[str, str]:
        """Path -> digest, of everything of the victim's and the operator's that must not change."""
        home = self.weft.home
        roots = (
            home / "objects" / "tenants" / VICTIM / "jobs" / self.vault.id,
            home / "secrets",
            self.data,
            *self.cluster.unchanged(self.guard),
        )
        files = {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for root in roots
            for path in sorted(root.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }
        for name in ("", *PLATFORM_FOLDERS):
            if name != "etcd" and (home / name).exists():
                status = (home / name).stat()
                files[f"{home / name} itself"] = f"{status.st_ino} {status.st_uid} {status.st_mode:o}"
        return files


def end(job: Job) -> None:
    """Kills the job, unless it has ended."""
    if not job.at_rest:
        with suppress(Conflict):
            job.kill()


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
def arena(combination: Combination, environment: Mapping[str, str], say: Say) -> Generator[Arena]:
    """An arena on a platform of its own; nothing of it is left afterwards."""
    data = Path(tempfile.mkdtemp(prefix="weft-test-data-"))
    data.chmod(0o755)
    (data / "set").mkdir()
    (data / "set" / "part").write_text("the operator's")
    try:
        with running(combination, {"WEFT_DATA_PATHS": str(data), **environment}, say) as (weft, cluster):
            made = Arena(weft, cluster, data)
            try:
                made.begin()
                yield made
            finally:
                made.close()
    finally:
        shutil.rmtree(data)
