"""Jobs whose image is pulled with a secret of the tenant, on the Kubernetes adapter, in virtual time."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.core.domain.errors import SecretInvalid
from services.core.domain.job import Job
from services.core.domain.status import Status
from services.core.use_cases.jobs import history
from tests.simulation.api_server import Document
from tests.simulation.checker import Declared
from tests.simulation.network import Connection
from tests.simulation.pod_platform import PodPlatform
from tests.simulation.virtual_time import run
from tests.testbed.helpers_in_memory import Fate

SPEC = {
    "name": "digits",
    "command": "python train.py",
    "image": "registry.example.org/train:1",
    "image_pull_secret": "registry",
    "retries": {"max": 0, "backoff": "0s"},
}
TYPE = "kubernetes.io/dockerconfigjson"
GUARDIAN = ("guardian", "one")
ONE = Declared.one_learner()


class Bench:
    """A platform with one job that pulls its image with a secret."""

    def __init__(self, platform: PodPlatform) -> None:
        self.platform = platform

    async def submit(self, *, refused: bool = False) -> str:
        job_id = await self.platform.submit_job(SPEC, replace(ONE, refused=refused))
        self.platform.simulator.fates[job_id, "worker-0", 1] = Fate(download_s=0.1, run_s=20, store_s=0.1)
        return job_id

    def objects(self, kind: str) -> list[Document]:
        everything = self.platform.simulated_cluster.server.everything()
        return [document for collection, _, document in everything if collection.rpartition("/")[2] == kind]

    async def reasons(self, job_id: str) -> list[str]:
        """Why it was queued, each time."""
        events = await history(self.platform.jobs, await self.platform.document(job_id))
        return [event.reason for event in events if event.to is Status.QUEUED]

    async def end(self, job_id: str, status: Status) -> Job:
        """The job at its end, when nothing is left of it."""
        job = await self.platform.reached(job_id, status)
        while await self.platform.leftovers():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        assert self.platform.checker.breaches == []
        return job


@asynccontextmanager
async def bench(home: Path) -> AsyncGenerator[Bench]:
    random.seed(0)
    platform = PodPlatform(0, home)
    for place in (("lcm", "one"), GUARDIAN):
        await platform.launch(*place)
    made = Bench(platform)
    try:
        yield made
    finally:
        await platform.close()


def on_a_bench(home: Path, check: Callable[[Bench], Awaitable[None]]) -> None:
    async def checked() -> None:
        async with bench(home) as made:
            await check(made)

    run(checked())


def test_pods_pull_with_a_secret_of_the_attempt_that_is_gone_at_its_end(tmp_path: Path) -> None:
    async def check(made: Bench) -> None:
        job_id = await made.submit()
        await made.platform.reached(job_id, Status.PROCESSING)
        (owner,) = (document for document in made.objects("configmaps") if job_id in document["metadata"]["name"])
        secrets = {document["metadata"]["name"]: document for document in made.objects("secrets")}
        secret = secrets[f"weft-{job_id}-1-pull"]
        assert secret["type"] == TYPE
        (reference,) = secret["metadata"]["ownerReferences"]
        assert reference["uid"] == owner["metadata"]["uid"]
        (pod,) = made.objects("pods")
        assert pod["spec"]["imagePullSecrets"] == [{"name": f"weft-{job_id}-1-pull"}]
        encoded = base64.b64encode(b"ada:secret").decode()
        assert encoded in base64.b64decode(secret["data"][".dockerconfigjson"]).decode()
        for document in (owner, pod, await made.platform.document(job_id)):
            assert encoded not in str(document)
        await made.end(job_id, Status.COMPLETED)

    on_a_bench(tmp_path, check)


def test_job_whose_secret_was_deleted_while_it_waited_fails_and_names_it(tmp_path: Path) -> None:
    async def check(made: Bench) -> None:
        refusal = SecretInvalid("there is no secret 'registry' any more; set it")
        made.platform.image_credentials_of(GUARDIAN).fails = refusal
        job = await made.end(await made.submit(refused=True), Status.FAILED)
        assert (job.state.reason, job.state.message) == ("SecretInvalid", refusal.message)
        assert job.attempt.number == 1

    on_a_bench(tmp_path, check)


@pytest.mark.slow
def test_job_waits_while_the_api_is_away_and_uses_no_try(tmp_path: Path) -> None:
    async def check(made: Bench) -> None:
        guardian = made.platform.connection_of(GUARDIAN)
        guardian.cut.add("api")
        job_id = await made.submit()
        await asyncio.sleep(120)
        assert await made.reasons(job_id) == [""]
        await asyncio.sleep(3_600)
        assert await made.reasons(job_id) == ["", *["SecretsUnavailable"] * 6]
        guardian.cut.discard("api")
        job = await made.end(job_id, Status.COMPLETED)
        assert (job.counters.rollbacks, job.counters.retries) == (0, 0)

    on_a_bench(tmp_path, check)


def test_guardian_that_takes_over_needs_no_api_where_the_secret_was_made(tmp_path: Path) -> None:
    async def check(made: Bench) -> None:
        job_id = await made.submit()
        while not any(document["type"] == TYPE for document in made.objects("secrets")):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.001)
        await made.platform.kill(made.platform.alive[GUARDIAN])
        await made.platform.launch("guardian", "two")
        made.platform.connection_of(("guardian", "two")).cut.add("api")
        await made.end(job_id, Status.COMPLETED)

    on_a_bench(tmp_path, check)


class Crash:
    """Kills a Guardian's process at its n-th request to the cluster or the api, before or after its effect."""

    def __init__(self, connection: Connection, number: int, when: str) -> None:
        self.happened = asyncio.Event()
        self.number = number
        """0: at none."""
        self._connection, self._when = connection, when
        self._execute = connection._execute
        self._count = 0

    async def execute(self, name: str, method: Any, args: Any, kwargs: Any) -> Any:
        counts = name.partition(".")[0] in {"api", "cluster"} and name != "cluster.watch"
        self._count += counts
        dies = counts and self._count == self.number
        if not dies:
            return await self._execute(name, method, args, kwargs)
        if self._when == "after":
            await self._execute(name, method, args, kwargs)
        self._connection.dead.set()
        self.happened.set()
        raise asyncio.CancelledError


async def ends_as_without_a_crash(home: Path, number: int, when: str) -> bool:
    """Whether the n-th request was reached before the job was at work."""
    async with bench(home) as made:
        crash = Crash(made.platform.connection_of(GUARDIAN), number, when)
        vars(made.platform.connection_of(GUARDIAN))["_execute"] = crash.execute
        job_id = await made.submit()
        working = asyncio.create_task(made.platform.reached(job_id, Status.PROCESSING))
        happening = asyncio.create_task(crash.happened.wait())
        await asyncio.wait({working, happening}, return_when=asyncio.FIRST_COMPLETED)
        happened = crash.happened.is_set()
        if happened:
            await made.platform.kill(made.platform.alive[GUARDIAN])
            await made.platform.launch("guardian", "two")
        crash.number = 0
        happening.cancel()
        await working
        job = await made.end(job_id, Status.COMPLETED)
        assert job.attempt.number == 1
        return happened


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_guardian_may_crash_at_each_request_while_it_provisions(tmp_path: Path, when: str) -> None:
    number = 1
    while run(ends_as_without_a_crash(tmp_path / str(number), number, when)):
        number += 1
    assert number > 8
