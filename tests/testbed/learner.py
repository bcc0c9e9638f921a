"""One learner without an agent: folders as the agent makes them, the real shim and the real helper."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.core.adapters.folder.objects import FolderObjectStore
from services.core.domain.checkpoint import INDEX, SnapshotRecord, dump_index, parse_index, parse_manifest
from services.core.domain.learner import LearnerStatus
from services.core.domain.tokens import LearnerIdentity
from services.core.runtime.home import Home
from services.core.strategies.registry import with_variables
from services.node import reservation
from services.node.learner import JobFolder
from tests.documents import a_learner, a_plan
from tests.testbed.identities import SIGNER
from tests.testbed.intake import Intake
from tests.testbed.server import own_uid
from tests.waiting import eventually, until

ROOT = Path(__file__).parents[2]
TENANT = "acme"
STORE_TIMEOUT_MS = 600_000
"""Of a learner's plan: longer than storing takes on a busy machine, where a helper alone may need a minute to start.
Tests of the timeout name their own.
"""


class Learner:
    """One learner of attempt 1 (or another), rank 0."""

    def __init__(
        self,
        *,
        job: str,
        metrics: str,
        environment: Mapping[str, str] | None = None,
        bucket: Path | None = None,
    ) -> None:
        """``metrics``: the address of the metrics service. ``bucket``: the folder of objects that the helper moves by
        signed URLs; without, it moves them by itself.
        """
        root = Path(tempfile.mkdtemp(prefix="weft-learner-"))
        root.chmod(0o711)  # learners have users of their own
        self.home = Home(root)
        self.job = job
        self.folder = Path()
        self.shim: subprocess.Popen[bytes] | None = None
        self.helper: subprocess.Popen[bytes] | None = None
        self._environment = environment or {}
        (root / "run").mkdir()
        if bucket is None:
            FolderObjectStore.make(root / "objects")
        self.store, self._objects_here = bucket or root / "objects", bucket is None
        self.metrics_at(metrics)

    def metrics_at(self, address: str) -> None:
        self.home.addresses_file.write_text(json.dumps({"metrics": address}))

    def reserve(self, command: str, **changes: Any) -> None:
        """The folders, as the agent makes them."""
        attempt = int(changes.get("attempt", 1))
        identity = LearnerIdentity(job=self.job, tenant=TENANT, attempt=attempt, role="worker", rank=0, name="worker-0")
        learner = a_learner(command=command, memory=2**20, token=SIGNER.mint(identity))
        plan = a_plan(learner, job=self.job, tenant=TENANT, grace=1000, store_timeout=STORE_TIMEOUT_MS)
        plan = with_variables(replace(plan, **changes))
        allotment = reservation.Allotment(uid=own_uid(), gid=own_uid(), gpus={"worker-0": ()}, ports={})
        documents = reservation.documents(
            plan, allotment, home=self.home, isolation="process", objects_here=self._objects_here
        )
        job = JobFolder(self.home / "node" / self.job)
        job.path.parent.mkdir(mode=0o711, exist_ok=True)
        self.folder = reservation.make(job, plan.attempt, documents, plan)[0].folder

    def code(self, **files: str) -> str:
        """Uploads code. Returns its digest."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for name, content in files.items():
                archive.writestr(name.replace("_", "."), content)
        return self.upload(out.getvalue())

    def upload(self, archive: bytes) -> str:
        digest = hashlib.sha256(archive).hexdigest()
        place = self.store / "tenants" / TENANT / "code" / digest
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(archive)
        return f"sha256:{digest}"

    def start(self) -> None:
        self.start_shim()
        (self.folder / "active").touch()
        self.start_helper()

    def start_shim(self) -> None:
        shim = ROOT / "services" / "node" / "shim.py"
        self.shim = subprocess.Popen([sys.executable, "-I", "-S", str(shim), str(self.folder)])

    def start_helper(self) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home.root), **self._environment}
        with (self.home.root / "helper.log").open("ab") as log:
            self.helper = subprocess.Popen(
                [sys.executable, "-m", "services.helper", str(self.folder)],
                cwd=ROOT,
                env=environment,
                stderr=log,
            )

    def kill_helper(self) -> None:
        assert self.helper is not None
        self.helper.kill()
        self.helper.wait()

    def stop(self, cause: str, grace_ms: int) -> None:
        """As the agent does: the mark, then the hint."""
        mark = {"schema": 1, "generation": 2, "cause": cause, "grace_ms": grace_ms, "time": 1}
        (self.folder / "stop.tmp").write_text(json.dumps(mark))
        (self.folder / "stop.tmp").rename(self.folder / "stop.json")
        assert self.shim is not None
        eventually((self.folder / "shim.json").exists)  # until then the signal would end the shim
        self.shim.send_signal(signal.SIGUSR1)

    async def until_stored(self) -> None:
        """Waits until the helper has ended with exit code 0."""

        def code() -> int | None:
            assert self.helper is not None
            return None if self.helper.poll() is None else self.helper.returncode + 1

        assert await until(code) == 1, self.log
        assert (self.folder / "stored").exists()

    def objects(self, kind: str, *, attempt: int = 1) -> dict[str, bytes]:
        """The stored objects, by their path below ``attempts/<attempt>/<kind>/``."""
        base = self.store / "tenants" / TENANT / "jobs" / self.job / "attempts" / str(attempt) / kind
        return {str(path.relative_to(base)): path.read_bytes() for path in sorted(base.rglob("*")) if path.is_file()}

    def checkpoint(self, *, attempt: int = 1) -> dict[str, bytes]:
        """The files of the newest stored snapshot by path; empty: there is none."""
        objects = self.objects("checkpoints", attempt=attempt)
        record = parse_index(objects.get(f"worker-0{INDEX}", dump_index(()))).shown
        if record is None:
            return {}
        return {
            file.path: objects[f"worker-0/{file.sha256}"]
            for file in parse_manifest(objects[f"worker-0/{record.seq}.json"])
        }

    def snapshots(self, *, attempt: int = 1) -> tuple[SnapshotRecord, ...]:
        """The snapshots that count, oldest first."""
        return parse_index(self.objects("checkpoints", attempt=attempt).get(f"worker-0{INDEX}", dump_index(()))).records

    @property
    def log(self) -> str:
        return (self.home.root / "helper.log").read_text()

    def end(self) -> None:
        """Ends its processes. The folders stay until ``remove``."""
        for process in (self.helper, self.shim):
            if process is not None:
                process.kill()
                process.wait()

    def remove(self) -> None:
        self.end()
        shutil.rmtree(self.home.root)


class ReportingLearner(Learner):
    """With a test server that keeps what it receives."""

    def __init__(self, intake: Intake, *, job: str, bucket: Path | None = None) -> None:
        super().__init__(job=job, metrics=intake.address, bucket=bucket)
        self.intake = intake

    async def ended(self) -> LearnerStatus:
        """The helper's last report, once it has ended with code 0."""
        await self.until_stored()
        assert self.intake.last is not None
        return self.intake.last

    async def ran(self, command: str, **changes: Any) -> LearnerStatus:
        """Makes the folders, starts the learner and waits for its end."""
        self.reserve(command, **changes)
        self.start()
        return await self.ended()
