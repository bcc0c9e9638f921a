"""Which GPUs are allocated and idle: what jobs use of them, over the real metrics service."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from services.core.gen.weft.v1 import metrics_pb2 as pb
from tests.testbed.api import SPEC, Api
from tests.testbed.etcd import Etcd
from tests.testbed.learner_telemetry import Learner, running_learner
from tests.testbed.metrics import MetricsProcess
from tests.waiting import until

GPUS: dict[str, Any] = {**SPEC, "resources": {"cpus": 1, "memory": "64MiB", "gpus": 2}}
MINUTE_MS = 60_000


def now_ms() -> int:
    return round(time.time() * 1000)


async def measured(learner: Learner, values: Mapping[str, float], *, minutes_ago: int, sample: int = 0) -> None:
    """A measurement of the learner's usage is stored."""
    taken = now_ms() - minutes_ago * MINUTE_MS
    points = [
        pb.MetricPoint(offset=sample, time_ms=taken, name=name, value=value, context={"weft": "usage"})
        for name, value in values.items()
    ]
    source = learner.helper.source("usage")
    await learner.helper.append(pb.SourceBatch(source=source, start=sample, end=sample + 1, points=points))


async def trains_for(learner: Learner, minutes: int) -> None:
    """The job has trained for so long."""
    since = now_ms() - minutes * MINUTE_MS
    await learner.api.change(
        learner.job, lambda document: replace(document, state=replace(document.state, since=since))
    )


async def gpu_jobs(client: httpx2.AsyncClient) -> list[dict[str, Any]]:
    """They are left out of an answer for which the metrics service did not answer in time."""

    async def answered() -> list[list[dict[str, Any]]]:
        cluster = (await client.get("/v1/cluster")).json()
        return [cluster["gpu_jobs"]] if "gpu_jobs" in cluster else []

    [jobs] = await until(answered)
    return list(jobs)


async def gpu_use(api: Api) -> dict[str, Any]:
    """Of the only job that trains with GPUs: (GPUs, idle, used, cpus)."""
    [use] = await gpu_jobs(api.admin)
    return {name: use[name] for name in ("gpus", "idle", "used", "cpus")}


async def test_gpus_that_were_not_used_for_minutes_are_idle(api: Api, metrics: MetricsProcess, etcd: Etcd) -> None:
    async with running_learner(api, metrics, etcd, GPUS) as learner:
        await trains_for(learner, 30)
        await measured(learner, {"system/cpu": 1.0, "system/gpu": 1.9}, minutes_ago=20)  # before the window
        await measured(learner, {"system/cpu": 1.0, "system/gpu": 0.01}, minutes_ago=5, sample=1)
        await measured(learner, {"system/cpu": 0.5, "system/gpu": 0.0}, minutes_ago=1, sample=2)
        assert await gpu_use(api) == {"gpus": 2, "idle": 2, "used": 0.01, "cpus": 1.0}


async def test_gpus_that_were_used_once_within_the_window_are_not_idle(
    api: Api, metrics: MetricsProcess, etcd: Etcd
) -> None:
    async with running_learner(api, metrics, etcd, GPUS) as learner:
        await trains_for(learner, 30)
        for sample, used in enumerate([0.0, 0.7, *[0.0] * 7]):
            await measured(learner, {"system/gpu": used}, minutes_ago=9 - sample, sample=sample)
        assert await gpu_use(api) == {"gpus": 2, "idle": 0, "used": 0.7, "cpus": None}


async def test_gpus_of_a_job_that_began_within_the_window_are_not_idle_yet(
    api: Api, metrics: MetricsProcess, etcd: Etcd
) -> None:
    async with running_learner(api, metrics, etcd, GPUS) as learner:
        await trains_for(learner, 2)
        await measured(learner, {"system/cpu": 0.0, "system/gpu": 0.0}, minutes_ago=1)
        assert await gpu_use(api) == {"gpus": 2, "idle": 0, "used": 0, "cpus": 0}


@pytest.mark.parametrize(("cpus", "idle"), [(0.01, 2), (0.9, 0)])
async def test_without_a_measurement_of_gpus_the_use_of_cpus_says_if_they_are_idle(
    api: Api, metrics: MetricsProcess, etcd: Etcd, cpus: float, idle: float
) -> None:
    async with running_learner(api, metrics, etcd, GPUS) as learner:
        await trains_for(learner, 30)
        await measured(learner, {"system/cpu": cpus}, minutes_ago=1)
        assert await gpu_use(api) == {"gpus": 2, "idle": idle, "used": None, "cpus": cpus}


async def test_gpus_of_which_nothing_is_measured_are_not_called_idle(
    api: Api, metrics: MetricsProcess, etcd: Etcd
) -> None:
    async with running_learner(api, metrics, etcd, GPUS) as learner:
        await trains_for(learner, 30)
        await learner.write_points(0.0, name="system/gpu")  # a training's own metric of that name
        assert await gpu_use(api) == {"gpus": 2, "idle": 0, "used": None, "cpus": None}


async def test_a_user_sees_the_gpus_of_the_own_tenants_jobs_only_and_none_without_gpus(
    api: Api, metrics: MetricsProcess, etcd: Etcd
) -> None:
    key = await api.key("grace", "vision")
    async with running_learner(api, metrics, etcd, GPUS), running_learner(api, metrics, etcd):
        assert len(await gpu_jobs(api.admin)) == 1
        async with api.client(key) as grace:
            assert await gpu_jobs(grace) == []


async def test_the_cluster_answer_does_without_the_use_of_gpus_while_the_metrics_service_is_away(
    api: Api, metrics: MetricsProcess, etcd: Etcd
) -> None:
    async with running_learner(api, metrics, etcd, GPUS):
        metrics.kill()
        try:
            assert "gpu_jobs" not in (await api.admin.get("/v1/cluster")).json()
        finally:
            metrics.start()
