"""A running job with one learner that writes lines and points, for tests of logs, metrics and live streams."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain.job import Job, admitted, moved, released
from services.core.domain.status import Status
from services.core.gen.weft.v1 import metrics_pb2 as pb
from tests.testbed import identities
from tests.testbed.api import SPEC, Api, running_api
from tests.testbed.etcd import Etcd
from tests.testbed.metrics import Helper, MetricsProcess
from tests.waiting import HANG_S


def api_over(home: Path, metrics: str, **settings: Any) -> Any:
    async def install() -> None:
        identities.install(home)

    return running_api(home, {"metrics": metrics}, before=install, **settings)


class Learner:
    """The learner of a running job."""

    def __init__(self, api: Api, job_id: str, helper: Helper) -> None:
        self.api, self.job, self.helper = api, job_id, helper
        self.lines = self.points = 0

    async def write_lines(self, *texts: str) -> None:
        await self.helper.append(self.helper.lines(self.lines, texts))
        self.lines += len(texts)

    async def write_points(self, *values: float, name: str = "loss") -> None:
        await self.helper.append(self.helper.points(self.points, values, name))
        self.points += len(values)

    async def complete_and_release(self) -> None:
        """Marks the job as completed and released, as a Guardian does."""
        await self._move(Status.COMPLETED)
        await self._release()

    async def halt_and_release(self) -> None:
        """Marks the job as halted and released, as a Guardian does."""
        await self._move(Status.HALTING)
        await self._move(Status.HALTED)
        await self._release()

    async def _move(self, status: Status) -> None:
        await self.api.change(
            self.job, lambda document: moved(document, status, actor="guardian", now=document.updated)
        )

    async def _release(self) -> None:
        await self.api.change(self.job, lambda document: released(document, now=document.updated))


@asynccontextmanager
async def running_learner(
    api: Api, metrics: MetricsProcess, etcd: Etcd, spec: Mapping[str, Any] = SPEC
) -> AsyncGenerator[Learner]:
    job = (await api.submit(spec))["id"]

    def run(document: Job) -> Job:
        document = admitted(document, placement={"worker-0": "here"}, dispatcher_term=1, now=document.updated)
        return moved(document, Status.PROCESSING, actor="guardian", now=document.updated)

    await api.change(job, run)
    status = EtcdStatusStore(etcd.address, timeout_s=HANG_S)
    await status.put(f"/jobs/{job}/attempt", json.dumps({"attempt": 1, "learners": 1}))
    helper = Helper(metrics, job)
    await helper.call("Hello", pb.HelloRequest(protocol=1))  # the service may still be starting
    try:
        yield Learner(api, job, helper)
    finally:
        await helper.close()
        await status.close()
