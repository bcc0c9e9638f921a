"""The simulated platform on Kubernetes: each process has the real adapter, over the simulated API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from services.api.pull_secrets import PullSecrets
from services.core.adapters.kubernetes.cluster import KubernetesCluster
from services.core.adapters.kubernetes.options import KubernetesOptions
from services.core.domain.errors import SecretsUnavailable, Unavailable, WeftError
from services.core.domain.plan import AttemptPlan
from services.core.ports.cluster import Observation
from services.core.use_cases.tenant_secrets import StoredSecret, encoded
from services.metrics.attempts import Stop
from tests.simulation.network import Connection
from tests.simulation.pod_checker import PodChecker
from tests.simulation.simulated_api import CURRENT_CALL, ApiTrouble, PortCall, SimulatedApi
from tests.simulation.simulated_kubernetes import SimulatedKubernetes
from tests.simulation.simulated_platform import NODES, ProcessClock, SimulatedPlatform
from tests.testbed.control_plane import Process
from tests.testbed.memory.cluster import MemoryLearner

OPTIONS: Final = KubernetesOptions(
    helper_image="helper:1",
    learner_image="learner:1",
    entry_script="",
    addresses={},
    helper_cpus=0,
    helper_memory=0,
    lcm_account="platform/weft-lcm",
    guardian_account="platform/weft-guardian",
)
HURRY: Final = 0.25
"""What learners begin after the last fault takes this share of its time."""


class ImageCredentials:
    """The api's decision on credentials of images, over the connection of a process. The tenant has every secret."""

    def __init__(self, connection: Connection) -> None:
        secret = StoredSecret(created=0, changed=0, changed_by="", values={"username": "ada", "password": "secret"})
        self._value = encoded(secret)
        decision: Any = PullSecrets(connection.job_store, self)  # type: ignore[arg-type]
        self._api = connection.wrap(decision, "api")
        self.fails: WeftError | None = None
        """What the api says instead."""

    async def get(self, name: str) -> bytes:
        """The secret, as of a SecretStore."""
        return self._value

    async def docker_config(self, job: str, *, attempt: int, term: int) -> str:
        if self.fails is not None:
            raise self.fails
        try:
            return str(await self._api.docker_config(job, attempt=attempt, term=term))
        except Unavailable as away:
            raise SecretsUnavailable(away.message) from away

    async def close(self) -> None:
        """Nothing is open."""


class ProcessCluster(KubernetesCluster):
    """The adapter in one process. It says for which call of the port it makes its requests."""

    def __init__(self, api: SimulatedApi, connection: Connection, clock: ProcessClock, checker: PodChecker) -> None:
        self.image_credentials = ImageCredentials(connection)
        status = connection.wrap(connection.etcd, "status")
        super().__init__(api, OPTIONS, status, credentials=self.image_credentials, now_ms=clock.now_ms)
        self._connection, self._checker = connection, checker

    async def capacity(self) -> Any:
        await self._connection.begin("cluster.capacity")
        return await super().capacity()

    async def jobs(self, *, cached: bool = False) -> Any:
        await self._connection.begin("cluster.jobs")
        return await super().jobs(cached=cached)

    async def observe(self, job_id: str, *, cached: bool = False) -> Observation:
        await self._connection.begin("cluster.observe")
        if not cached:
            self._checker.observed(self._connection.name, job_id)
        return await super().observe(job_id, cached=cached)

    async def do(self, step: str, plan: AttemptPlan) -> None:
        async with self._call(PortCall("do", plan.job, plan.attempt, plan.term, step=step)):
            await super().do(step, plan)

    async def stop(self, job_id: str, *, attempt: int, term: int, generation: int, cause: str, grace_ms: int) -> None:
        async with self._call(PortCall("stop", job_id, attempt, term, cause=cause)):
            await super().stop(
                job_id, attempt=attempt, term=term, generation=generation, cause=cause, grace_ms=grace_ms
            )

    async def teardown(self, job_id: str, *, attempt: int, term: int) -> None:
        async with self._call(PortCall("teardown", job_id, attempt, term)):
            await super().teardown(job_id, attempt=attempt, term=term)

    @asynccontextmanager
    async def _call(self, call: PortCall) -> AsyncGenerator[None]:
        await self._connection.begin(f"cluster.{call.name}")
        await self._connection.begin(f"cluster.{call.step}")
        token = CURRENT_CALL.set(call)
        try:
            yield
        finally:
            CURRENT_CALL.reset(token)
        if call.step != "reserve":  # the owner has the term, the pods may not have it yet
            self._checker.carried_out(call.job, call.attempt, call.term, seals=call.name == "teardown")


class PodPlatform(SimulatedPlatform):
    """``simulated_cluster`` is the cluster behind the API server."""

    def new_checker(self) -> PodChecker:
        nodes = {node.name: (node.cpus, node.gpus) for node in NODES}
        return PodChecker(nodes, asyncio.get_running_loop().time)

    def new_cluster(self, clock: ProcessClock) -> Any:
        """Every second seed has a cluster with native gangs, and every fourth one whose scheduler departs from Weft."""
        self.trouble = ApiTrouble()
        self._clusters: dict[str, ProcessCluster] = {}
        kubernetes = SimulatedKubernetes(
            NODES, self.checker, self.network.chance, now_ms=clock.now_ms, native_gangs=self._seed % 2 == 1
        )
        kubernetes.departs = self._seed % 4 == 1
        return kubernetes

    def __post_init__(self) -> None:
        super().__post_init__()
        kubernetes = self.simulated_cluster
        kubernetes.stop_of, kubernetes.silence = self._stop_of, self.simulator.silent.add
        kubernetes.cut_off, kubernetes.end_helper = self.simulator.cut_off_for_a_while, self.simulator.end_helper

    async def _stop_of(self, learner: MemoryLearner) -> Stop | None:
        return None if learner in self.simulator.cut_off else self.metrics.stop_of(learner)

    def _connection(self, name: str) -> Connection:
        return Connection(name, self.network, self.job_store, self.etcd, local={"hints", "cluster"})

    def cluster_of(self, connection: Connection, clock: ProcessClock) -> Any:
        api = SimulatedApi(self.simulated_cluster.server, connection, self.trouble)
        self._clusters[connection.name] = ProcessCluster(api, connection, clock, self.checker)
        return self._clusters[connection.name]

    def image_credentials_of(self, name: tuple[str, str]) -> ImageCredentials:
        return self._clusters[self.connection_of(name).name].image_credentials

    async def kill(self, process: Process) -> None:
        await super().kill(process)
        connection: Any = process.wire
        await self._clusters.pop(connection.name).close()

    async def close(self) -> None:
        await super().close()
        await self.simulated_cluster.close()

    def hurry(self) -> None:
        """Of jobs that fail three times and wait for one another, pulls and training alone take more than 30 s."""
        self.simulator.pace = self.simulated_cluster.pace = HURRY

    async def leftovers(self) -> list[str]:
        objects: list[str] = self.simulated_cluster.leftovers()
        return self.keys() + objects
