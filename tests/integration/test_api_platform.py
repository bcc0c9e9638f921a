"""Answers for which the api asks other services: the cluster, the queue, whether a job fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.testbed.platform import Platform
from tests.waiting import HANG_S, eventually

SPEC: dict[str, Any] = {"name": "api", "command": "true", "resources": {"cpus": 0.5, "memory": "64MiB"}}


@pytest.fixture
def api(weft_up: Platform) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {weft_up.key}"}
    with httpx2.Client(base_url=weft_up.url, headers=headers, trust_env=False, timeout=HANG_S) as client:
        yield client


def plan(api: httpx2.Client, **fields: Any) -> dict[str, Any]:
    answer = api.post("/v1/jobs", params={"dry_run": "true"}, json={**SPEC, **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def plan_that(api: httpx2.Client, fits: str, **fields: Any) -> dict[str, Any]:
    """The plan once it says so: it is unknown where the dispatcher did not answer within its second."""

    def answered() -> dict[str, Any]:
        planned = plan(api, **fields)
        return planned if planned["fits"] == fits else {}

    return eventually(answered)


def shown(api: httpx2.Client, job_id: str) -> dict[str, Any] | None:
    """The job with its place in the queue; None before the dispatcher knows it."""
    job = dict(api.get(f"/v1/jobs/{job_id}").json())
    return job if "queue_position" in job else None


def listed(api: httpx2.Client, job_id: str) -> dict[str, Any]:
    [job] = [job for job in api.get("/v1/jobs").json()["jobs"] if job["id"] == job_id]
    return dict(job)


def explanation(api: httpx2.Client, job_id: str) -> dict[str, Any]:
    return dict(api.get(f"/v1/jobs/{job_id}/explain").json())


def places(api: httpx2.Client) -> dict[str, int]:
    """Job -> its place in the queue, in the order of the answer."""
    waiting = api.get("/v1/queue").json()["waiting"]
    return {job["id"]: job["position"] for job in waiting if "position" in job}


def with_nodes(api: httpx2.Client) -> dict[str, Any]:
    """The cluster; empty where the dispatcher did not answer within its second."""
    cluster = dict(api.get("/v1/cluster").json())
    return cluster if "nodes" in cluster else {}


def delete(api: httpx2.Client, job_id: str) -> None:
    """Deletes it with ``kill``: the answer is 409 until the job has ended."""
    eventually(lambda: api.delete(f"/v1/jobs/{job_id}", params={"kill": "true"}).status_code == 204)


def warned_of(api: httpx2.Client, **fields: Any) -> dict[str, Any]:
    """Submits a job. The answer has no warning where the dispatcher did not answer within its second."""

    def submit() -> dict[str, Any]:
        made = api.post("/v1/jobs", json={**SPEC, **fields})
        assert made.status_code == 201
        job = dict(made.json())
        if not job["warnings"]:
            delete(api, job["id"])
        return job if job["warnings"] else {}

    return eventually(submit)


def test_the_cluster_answer_has_nodes_and_use(api: httpx2.Client) -> None:
    cluster = eventually(lambda: with_nodes(api))
    [node] = cluster["nodes"]
    assert (node["cpus"], node["ready"]) == (4, True)
    assert cluster["total"] == {"cpus": 4, "memory": node["memory"], "gpus": node["gpus"]}
    assert cluster["isolation"] in {"process", "sandbox", "trusted"}
    assert cluster["used"]["cpus"] <= 4
    assert cluster["used"] == node["used"]  # of the only node


def test_a_plan_tells_if_the_job_fits(api: httpx2.Client) -> None:
    plan_that(api, "now")
    never = plan_that(api, "never", learners=100)
    assert "it requests 50 CPUs, and this cluster has 4" in never["fits_message"]
    assert never["warnings"] == [never["fits_message"]]


def test_a_job_that_never_fits_does_not_delay_the_plan_of_the_next_job(api: httpx2.Client) -> None:
    plan_that(api, "now")
    large = api.post("/v1/jobs", json={**SPEC, "learners": 100}).json()["id"]
    try:
        eventually(lambda: (shown(api, large) or {}).get("pending_reason") == "TooLargeForCluster")
        plan_that(api, "now")
    finally:
        delete(api, large)


def test_a_waiting_job_shows_its_position_and_reason(api: httpx2.Client) -> None:
    large = warned_of(api, learners=100)
    assert "and this cluster has" in large["warnings"][0]
    behind = api.post("/v1/jobs", json=SPEC).json()
    ids = [large["id"], behind["id"]]
    try:
        first = eventually(lambda: shown(api, ids[0])) or {}
        assert first["queue_position"] == 1
        assert first["pending_reason"]
        assert first["pending_message"]
        # The dispatcher has one second to answer, and a job that has just left has no place: then fields are left out.
        eventually(lambda: explanation(api, ids[0])["summary"].startswith("waits at place 1: "))
        eventually(lambda: ids[0] in places(api))
        assert list(places(api).values()) == sorted(places(api).values())
        eventually(lambda: listed(api, ids[0]).get("queue_position") == 1)
    finally:
        for job in ids:
            delete(api, job)
    assert api.get("/v1/queue").json() == {"waiting": []}
