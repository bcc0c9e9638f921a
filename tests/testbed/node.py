"""A real node agent as a process, in a WEFT_HOME of its own, with real learners and a minimal helper."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from services.core.adapters.folder.objects import FolderObjectStore
from services.core.adapters.local.cluster import LocalCluster
from services.core.bootstrap.wiring import identity
from services.core.domain.ids import RANDOM_BITS, make_id
from services.core.domain.plan import AttemptPlan
from services.core.runtime.home import Home
from services.core.runtime.settings import Settings
from services.core.runtime.tree_removal import remove_tree
from services.core.strategies.registry import with_variables
from services.node.cgroups import Groups
from services.node.isolation import ISOLATION_FILE
from tests.documents import a_learner, a_plan
from tests.testbed.gangs import await_exit, start, teardown
from tests.testbed.server import free_address, own_numbers
from tests.testbed.signals import kill_all
from tests.waiting import HANG_S

_FAST_RECONNECT = (("grpc.initial_reconnect_backoff_ms", 20), ("grpc.max_reconnect_backoff_ms", 20))
ROOT = Path(__file__).parents[2]


def job_id() -> str:
    return make_id("j", now_ms=time.time_ns() // 1_000_000, random_bits=int.from_bytes(os.urandom(8)) % 2**RANDOM_BITS)


def plan(
    commands: Sequence[str],
    *,
    job: str = "",
    attempt: int = 1,
    term: int = 1,
    distribution: str = "none",
    gpus: float = 0,
    env: Mapping[str, str] | None = None,
    memory: int = 2**28,
    tenant: str = "t",
) -> AttemptPlan:
    """One learner per command, with the variables that the Guardian renders."""
    learners = tuple(
        a_learner(
            f"worker-{rank}", command=command, memory=memory, gpus=gpus, token=f"secret-of-{rank}", env=dict(env or {})
        )
        for rank, command in enumerate(commands)
    )
    return with_variables(
        a_plan(
            *learners,
            job=job or job_id(),
            tenant=tenant,
            attempt=attempt,
            term=term,
            distribution=distribution,
            grace=1000,
            store_timeout=1000,
        )
    )


class NodeProcess:
    """The agent; it may be ended and started again with the same folder and address."""

    def __init__(self, root: Path, environment: Mapping[str, str], *, user: int | None = None) -> None:
        """``user``: the uid that the agent runs under; None: the test's own."""
        self.home = Home(root / "home")
        self._user = user
        helper = [sys.executable, "-I", "-S", str(Path(__file__).with_name("tiny_helper.py"))]
        self._log = root / "node.log"
        self._environment = {
            "PATH": os.environ["PATH"],
            "WEFT_HOME": str(self.home.root),
            "WEFT_NODE_GPUS": "4",
            "WEFT_NODE_HELPER_COMMAND": shlex.join(helper),
            **own_numbers(),
            **environment,
        }
        names = ("node", "node-ops")
        self.addresses = {name: free_address() for name in names}
        if user is not None:  # services use folders of their own user only
            (root / "s").mkdir(mode=0o700)
            self.addresses = {name: f"unix:{root}/s/{name}" for name in names}
        (self.home.root / "run").mkdir(parents=True)
        FolderObjectStore.make(self.home / "objects")
        self.home.addresses_file.write_text(json.dumps(self.addresses))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, ready: bool = True) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.node"],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                group=self._user,
                extra_groups=None if self._user is None else [],
            )
        if ready:
            options = (("grpc.enable_http_proxy", 0), *_FAST_RECONNECT)
            with grpc.insecure_channel(self.addresses["node"], options=options) as channel:
                self._await_ready(grpc.channel_ready_future(channel))

    def _await_ready(self, future: grpc.Future[None]) -> None:
        """AssertionError with the last line of the log if the agent ends, mostly as this machine lacks something."""
        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline:
            with suppress(grpc.FutureTimeoutError):
                future.result(timeout=0.2)
                return
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"the node agent ended: {self.log.splitlines()[-1]}")
        raise AssertionError(f"the node agent does not serve: {self.log}")

    def end(self, sign: signal.Signals = signal.SIGTERM) -> int:
        """The exit code of the agent. Learners live on."""
        if self.process is None:
            return 0
        self.process.send_signal(sign)
        code = self.process.wait(HANG_S)
        self.process = None
        return code

    async def cluster(self) -> LocalCluster:
        with _as_user(self._user):
            caller = await identity(Settings(home=self.home.root), "guardian")
            return LocalCluster(self.addresses["node"], caller.credential("node"))

    def folder(self, gang: AttemptPlan, rank: int = 0) -> Path:
        return self.home / "node" / gang.job / str(gang.attempt) / gang.learners[rank].name

    def read(self, gang: AttemptPlan, file: str, rank: int = 0) -> dict[str, Any]:
        """A JSON file of a learner's folder."""
        return dict(json.loads((self.folder(gang, rank) / file).read_text()))

    def output(self, gang: AttemptPlan, rank: int = 0, stream: str = "stdout") -> str:
        path = self.folder(gang, rank) / "runs" / "1" / stream
        return path.read_text() if path.exists() else ""

    @property
    def reported_isolation(self) -> dict[str, Any]:
        return dict(json.loads((self.home / "run" / ISOLATION_FILE).read_text()))

    @property
    def isolation(self) -> str:
        return str(self.reported_isolation["isolation"])

    @property
    def log(self) -> str:
        return self._log.read_text()


@contextmanager
def _as_user(user: int | None) -> Generator[None]:
    """Files are opened as that user; None: as the test's own."""
    if user is None:
        yield
        return
    own = os.geteuid()
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(own)


def living_with(text: str, *, program: str = "") -> list[int]:
    """Pids of processes with the text in their command line or environment; with ``program`` only those running it."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                name = (entry / "comm").read_text().strip()
                content = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if text.encode() in content and program in {"", name}:
                pids.append(int(entry.name))
    return sorted(pids)


@contextmanager
def node_process(
    environment: Mapping[str, str] | None = None, *, user: int | None = None, where: Path | None = None
) -> Generator[NodeProcess]:
    """A running agent in a folder that learners' users can reach. At the end everything of it is removed.

    ``user``: the uid of the agent; None: the test's own. ``where``: the folder in which its folder is made.
    """
    root = Path(tempfile.mkdtemp(prefix="weft-node-", dir=where))
    root.chmod(0o711)
    node = NodeProcess(root, environment or {}, user=user)
    if user is not None:
        for path in (root, *root.rglob("*")):
            os.chown(path, user, user)
    try:
        node.start()
        yield node
    finally:
        node.end(signal.SIGKILL)
        kill_all(lambda: living_with(str(root)))
        Groups.remove_all(node.home / "node" / ".agent")
        remove_tree(root)  # learners of tests make trees that no other program removes


async def output_of(node: NodeProcess, cluster: LocalCluster, command: str) -> list[str]:
    """The lines that the command writes as a learner of a job of its own."""
    gang = plan([f"exec 2>&1; {command}"])
    await start(cluster, gang)
    await await_exit(cluster, gang)
    lines = node.output(gang).splitlines()
    await teardown(cluster, gang)
    return lines
