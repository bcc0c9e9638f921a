"""A job with one learner that says things, seen through the api: for what logs, metrics and live streams do."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.bootstrap.wiring import SERVICE_SECRET, installation_secrets
from services.core.domain.job import Job, admitted, moved, released
from services.core.domain.status import Status
from services.core.gen.weft.v1 import metrics_pb2 as pb
from services.core.runtime.settings import Settings
from tests.testbed.api import Api, running_api
from tests.testbed.etcd import Etcd
from tests.testbed.metrics import SECRET, Helper, MetricsProcess


def api_over(home: Path, metrics: str, **settings: Any) -> Any:
    async def keep() -> None:
        await installation_secrets(Settings(home=home)).put(SERVICE_SECRET, SECRET)

    return running_api(home, {"metrics": metrics}, before=keep, **settings)


class Learner:
    """A running job with one learner that says things."""

    def __init__(self, api: Api, job_id: str, helper: Helper) -> None:
        self.api, self.job, self.helper = api, job_id, helper
        self.lines = self.points = 0

    async def says(self, *texts: str) -> None:
        await self.helper.append(self.helper.lines(self.lines, texts))
        self.lines += len(texts)

    async def instrumentation(self, *values: float, name: str = "loss") -> None:
        await self.helper.append(self.helper.points(self.points, values, name))
        self.points += len(values)

    async def ends(self) -> None:
        """Completed and released, as a Guardian writes it."""
        await self.api.change(self.job, lambda one: moved(one, Status.COMPLETED, actor="guardian", now=one.updated))
        await self.api.change(self.job, lambda one: released(one, now=one.updated))


@asynccontextmanager
async def learning(api: Api, metrics: MetricsProcess, etcd: Etcd) -> AsyncGenerator[Learner]:
    job = (await api.submit())["id"]

    def run(one: Job) -> Job:
        one = admitted(one, placement={"worker-0": "here"}, dispatcher_term=1, now=one.updated)
        return moved(one, Status.PROCESSING, actor="guardian", now=one.updated)

    await api.change(job, run)
    status = EtcdStatusStore(etcd.address)
    await status.put(f"/jobs/{job}/attempt", json.dumps({"attempt": 1, "learners": 1}))
    helper = Helper(metrics, job)
    await helper.call("Hello", pb.HelloRequest(protocol=1))  # the service may still be starting
    try:
        yield Learner(api, job, helper)
    finally:
        await helper.close()
        await status.close()
