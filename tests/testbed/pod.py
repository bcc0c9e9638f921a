"""One learner's pod without a cluster: its volumes as folders, the real entry process and the real helper."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from services.core.domain.plan import ClusterValues, Folder, fill
from services.core.domain.tokens import LearnerIdentity
from services.core.formats import stored_plan
from services.core.runtime import pod_layout as layout
from services.core.runtime.learner_folder import JOB_FOLDERS, LearnerFolder
from services.core.strategies.registry import with_variables
from tests.documents import a_learner, a_plan
from tests.testbed.identities import SIGNER
from tests.testbed.learner import STORE_TIMEOUT_MS
from tests.waiting import until

ROOT: Final = Path(__file__).parents[2]
ENTRY: Final = ROOT / "services" / "core" / "adapters" / "kubernetes" / "entry.sh"
TENANT: Final = "acme"
LEARNER: Final = "worker-0"


class Pod:
    """One learner, rank 0, of attempt 1 unless its plan says another. ``start_*`` start its containers."""

    def __init__(self, *, job: str, metrics: str, shell: Sequence[str] = ("dash",)) -> None:
        """``metrics``: the address of the metrics service. ``shell``: of the learner's image."""
        self.root = Path(tempfile.mkdtemp(prefix="weft-pod-"))
        self.job = job
        self.entry: subprocess.Popen[bytes] | None = None
        self.helper: subprocess.Popen[bytes] | None = None
        self._shell = shell
        self.environment: dict[str, str] = {}
        """More variables of the helper."""
        self._variables: dict[str, str] = {}
        folders = (layout.PLAN, layout.TOKEN, layout.PRIVATE, layout.CONTROL, layout.RUNS, layout.JOB, layout.RESULTS)
        for path in folders:
            (self.root / Path(path).name).mkdir()
        (self.root / Path(layout.JOB_VOLUME).name).symlink_to(".")  # of which the folder ``job`` is the learner's
        (self.root / "plan" / layout.ADDRESSES_FILE).write_text(json.dumps({"metrics": metrics}))

    def plan(self, command: str, **changes: Any) -> None:
        """Writes what the cluster's adapter puts into the volumes."""
        attempt = int(changes.get("attempt", 1))
        identity = LearnerIdentity(job=self.job, tenant=TENANT, attempt=attempt, role="worker", rank=0, name=LEARNER)
        learner = a_learner(LEARNER, command=command, memory=2**20, node="node-1", token=SIGNER.mint(identity))
        plan = a_plan(learner, job=self.job, tenant=TENANT, grace=1000, store_timeout=STORE_TIMEOUT_MS)
        plan = with_variables(replace(plan, **changes))
        (self.root / "plan" / layout.PLAN_FILE).write_text(stored_plan.write(plan))
        (self.root / "token" / layout.TOKEN_FILE).write_text(learner.token)
        job = self.root / "job"
        folders = {folder: str(job / name) for folder, name in JOB_FOLDERS.items()}
        folders |= {Folder.JOB_STATE: str(job), Folder.SDK: str(self.root / "control" / "sdk")}
        values = ClusterValues(
            address_of=str, port_of=dict[str, int]().__getitem__, interface=None, folders=folders, gpu_count=0
        )
        self._variables = {
            **fill({**plan.variables, **plan.learners[0].variables}, values),
            layout.LEARNER_VARIABLE: LEARNER,
            layout.COMMAND_VARIABLE: command,
            layout.STORE_TIMEOUT_VARIABLE: str(plan.store_timeout // 1000),
        }

    def start(self) -> None:
        self.start_helper()
        self.start_entry()

    def start_entry(self) -> None:
        with (self.root / "log").open("ab") as log:
            self.entry = subprocess.Popen(
                [*self._shell, str(ENTRY), str(self.root), str(self.root / "message")],
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], **self._variables},
                start_new_session=True,
            )

    def start_helper(self) -> None:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.root), layout.LEARNER_VARIABLE: LEARNER}
        env |= self.environment
        with (self.root / "helper.log").open("ab") as log:
            self.helper = subprocess.Popen(
                [sys.executable, "-m", "services.helper", "--pod", str(self.root)], cwd=ROOT, env=env, stderr=log
            )

    def kill_helper(self) -> None:
        assert self.helper is not None
        self.helper.kill()
        self.helper.wait()

    async def until_entry_ended(self) -> int:
        """Waits for the learner's container. Returns its exit code."""

        def ended() -> bool:
            assert self.entry is not None
            return self.entry.poll() is not None

        await until(ended)
        assert self.entry is not None
        return int(self.entry.returncode)

    async def end_helper(self) -> int:
        """As the kubelet after the learner's container: SIGTERM. Returns the helper's exit code."""
        assert self.helper is not None
        helper = self.helper
        helper.send_signal(signal.SIGTERM)
        await until(lambda: helper.poll() is not None)
        return int(helper.returncode)

    @property
    def folder(self) -> LearnerFolder:
        """Its runs, ``runs/1/...``, by the names of one machine."""
        return LearnerFolder(self.root)

    @property
    def log(self) -> str:
        return (self.root / "helper.log").read_text()

    def end(self) -> None:
        """Ends its processes; a command that outlives its entry process writes its pid to ``$JOB_STATE_DIR/pid``."""
        if self.helper is not None and self.helper.poll() is None:
            self.kill_helper()
        if self.entry is not None and self.entry.poll() is None:
            (self.root / "control" / "stop.json").write_text('{"cause": "kill", "grace_ms": 0}')
            (self.root / "control" / "stored").touch()
            self.entry.wait(60)
        if self.entry is not None:  # of one that was killed, as a container's end would
            left = self.root / "job" / "pid"
            for group in (self.entry.pid, *([int(left.read_text())] if left.exists() else [])):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
