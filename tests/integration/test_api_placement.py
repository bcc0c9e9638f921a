"""Whether a job fits, and what of the cluster is in use: the api shows the life-cycle manager's answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from services.core.adapters.rpc.server import serve
from services.core.gen.weft.v1 import control_pb2, control_pb2_grpc
from services.core.ports.cluster import ISOLATION_LABEL, Node
from services.lcm.settings import LcmSettings
from tests.testbed.api import SPEC, Api, running_api
from tests.testbed.identities import guard, install
from tests.testbed.lcm import running_lcm
from tests.testbed.server import free_address
from tests.waiting import until

GB = 10**9
RECENT_S = 2.0
"""For so long the answer about a spec serves other submissions that need the same."""


@dataclass
class Installation:
    """An api, whose life-cycle manager starts and stops with ``nodes`` for learners."""

    api: Api
    home: Path
    address: str
    lcm: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start_lcm(self, *nodes: Node) -> None:
        settings = LcmSettings(home=self.home / "lcm")
        running = running_lcm(settings, self.api.store, nodes, address=self.address)
        await self.lcm.enter_async_context(running)

    async def fits(self, **fields: Any) -> tuple[str, str]:
        """(verdict, message) of a dry run."""
        answer = await self.api.admin.post("/v1/jobs", json={**SPEC, **fields}, params={"dry_run": "true"})
        assert answer.status_code == 200, answer.text
        plan = answer.json()
        return plan["fits"], plan["fits_message"]

    async def cluster(self) -> dict[str, Any]:
        answer = await self.api.admin.get("/v1/cluster")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def admitted(self, **fields: Any) -> None:
        """Submits a job and returns once it holds its hardware."""
        job = await self.api.submit({**SPEC, **fields})

        async def status() -> str:
            return str((await self.api.admin.get(f"/v1/jobs/{job['id']}")).json()["status"])

        await until(lambda: _is(status, "PENDING"))


async def _is(read: Any, value: str) -> bool:
    return bool(await read() == value)


async def _keep_secret(home: Path) -> None:
    install(home)


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    address = free_address()
    async with running_api(tmp_path, {"lcm": address}, before=lambda: _keep_secret(tmp_path)) as api:
        installation = Installation(api, tmp_path, address)
        async with installation.lcm:
            yield installation


def node(name: str, *, cpus: float = 4, gpus: int = 0) -> Node:
    labels = {ISOLATION_LABEL: "process"}
    return Node(name=name, cpus=cpus, memory=16 * GB, gpus=gpus, gpu_type="v100" if gpus else "", labels=labels)


async def test_two_cpu_only_ps_and_a_gpu_worker_leave_no_gpu_free_in_a_dry_run(installation: Installation) -> None:
    await installation.start_lcm(node("with-gpu", cpus=1, gpus=1), node("without"))
    one_gpu = {"resources": {"cpus": 0.1, "memory": "1GB", "gpus": 1}}
    assert await fit(installation, "now", one_gpu) == ""
    small = {"cpus": 1, "memory": "1GB"}
    roles = {"ps": {"count": 2, **small}, "worker": {"count": 1, "gpus": 1, **small}}
    await installation.admitted(roles=roles)
    assert "1 GPU (0 free)" in await fit(installation, "later", one_gpu)


async def fit(installation: Installation, verdict: str, fields: dict[str, Any]) -> str:
    """Returns the message once a dry run has this verdict. It is unknown where no answer came within a second."""

    async def answered() -> list[str]:
        given, message = await installation.fits(**fields)
        assert given in {verdict, "now", "unknown"}
        return [message] if given == verdict else []

    [message] = await until(answered)
    return message


async def test_a_dry_run_says_that_no_single_node_is_large_enough(installation: Installation) -> None:
    await installation.start_lcm(node("a"), node("b"))
    await fit(installation, "now", {"learners": 2, "resources": {"cpus": 4, "memory": "1GB"}})
    message = await fit(installation, "never", {"resources": {"cpus": 8, "memory": "1GB"}})
    assert "8 CPUs (8 in all)" in message
    assert "not on nodes that could each take a whole learner" in message


async def test_whether_a_job_fits_is_unknown_while_the_life_cycle_manager_is_away(installation: Installation) -> None:
    verdict, message = await installation.fits()
    assert verdict == "unknown"
    assert "the lcm service does not answer" in message
    await installation.start_lcm(node("a"))
    await fit(installation, "now", {})
    await installation.lcm.aclose()
    verdict, message = await installation.fits(learners=1000)
    assert verdict == "unknown"
    assert "the lcm service does not answer" in message
    job = await installation.api.submit({**SPEC, "learners": 1000})
    assert job["warnings"] == []


async def test_the_cluster_is_shown_as_the_dispatcher_counts_it(installation: Installation) -> None:
    assert set(await installation.cluster()) == {"jobs", "gpu_idle_s", "gpu_jobs"}
    await installation.start_lcm(node("a", gpus=2), node("b"))
    await installation.admitted(learners=2, resources={"cpus": 1.5, "memory": "2GB", "gpus": 1})

    async def in_use() -> dict[str, Any]:
        answer = await installation.cluster()
        return answer if answer.get("used", {}).get("gpus") else {}

    shown = await until(in_use)
    assert [tuple(listed[name] for name in ("name", "cpus", "gpus", "ready")) for listed in shown["nodes"]] == [
        ("a", 4, 2, True),
        ("b", 4, 0, True),
    ]
    assert (shown["isolation"], shown["total"]) == ("process", {"cpus": 8, "memory": 32 * GB, "gpus": 2})
    assert shown["used"] == {"cpus": 3, "memory": 4 * GB, "gpus": 2}


@dataclass
class PlannedQueue:
    """The life-cycle manager's answers of whether specs fit: 50 learners are too many. It is busy until ``free``."""

    specs: list[bytes] = field(default_factory=list)
    """Specs of the requests that it got, as JSON."""
    free: asyncio.Event = field(default_factory=asyncio.Event)

    def register(self, server: grpc.aio.Server) -> None:
        specs, free = self.specs, self.free

        class Queue(control_pb2_grpc.QueueServicer):
            async def Fit(self, request: control_pb2.FitRequest, context: Any) -> control_pb2.FitReply:  # noqa: N802
                specs.append(request.spec)
                await free.wait()
                large = b"50" in request.spec
                return control_pb2.FitReply(verdict="never" if large else "now", message="too large" if large else "")

        # Only one RPC of the generated base class is needed: mypy counts the others as abstract.
        control_pb2_grpc.add_QueueServicer_to_server(Queue(), server)  # type: ignore[abstract]


@pytest.fixture
async def queue(installation: Installation) -> AsyncIterator[PlannedQueue]:
    """Connected, and free."""
    planned = PlannedQueue()
    planned.free.set()
    server = await serve(installation.address, guard("lcm"), planned.register)
    await fit(installation, "now", {})  # connected: from here on each question reaches the server
    planned.specs.clear()
    yield planned
    planned.free.set()
    await server.stop(None)


async def warned(installation: Installation) -> list[str]:
    """Warnings of a submit that is too large: none where no answer came within a second."""
    return list((await installation.api.submit({**SPEC, "learners": 50}))["warnings"])


async def test_submissions_in_a_row_do_not_each_wait_for_the_life_cycle_manager(
    installation: Installation, queue: PlannedQueue
) -> None:
    began = time.monotonic()
    for number in range(30):
        assert (await installation.api.submit({**SPEC, "name": f"digits-{number}"}))["warnings"] == []
    assert await until(lambda: warned(installation)) == ["too large"]
    # Once for each of the two specs, and once more whenever the last answer had become too old.
    assert 2 <= len(queue.specs) <= 2 + (time.monotonic() - began) / RECENT_S


async def test_submissions_during_a_storm_do_not_wait_for_the_busy_life_cycle_manager(
    installation: Installation, queue: PlannedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await until(lambda: warned(installation)) == ["too large"]
    monkeypatch.setattr("services.api.platform._RECENT_S", 0.0)
    queue.free.clear()
    queue.specs.clear()
    for _ in range(5):
        assert await warned(installation) == ["too large"]  # the last answer: a new one is on its way
    assert queue.specs
    queue.free.set()
    assert await until(lambda: warned(installation)) == ["too large"]
