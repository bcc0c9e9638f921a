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


def test_the_cluster_answer_has_nodes_and_use(api: httpx2.Client) -> None:
    cluster = api.get("/v1/cluster").json()
    [node] = cluster["nodes"]
    assert (node["cpus"], node["ready"]) == (4, True)
    assert cluster["total"] == {"cpus": 4, "memory": node["memory"], "gpus": node["gpus"]}
    assert cluster["isolation"] in {"process", "sandbox", "trusted"}
    assert cluster["used"]["cpus"] <= 4
    assert cluster["used"] == node["used"]  # of the only node


def test_a_plan_tells_if_the_job_fits(api: httpx2.Client) -> None:
    assert eventually(lambda: plan(api)["fits"] == "now")
    never = plan(api, learners=100)
    assert never["fits"] == "never"
    assert "it requests 50 CPUs, and this cluster has 4" in never["fits_message"]
    assert never["warnings"] == [never["fits_message"]]


def test_a_job_that_never_fits_does_not_delay_the_plan_of_the_next_job(api: httpx2.Client) -> None:
    assert eventually(lambda: plan(api)["fits"] == "now")
    large = api.post("/v1/jobs", json={**SPEC, "learners": 100}).json()["id"]
    try:
        eventually(lambda: (shown(api, large) or {}).get("pending_reason") == "TooLargeForCluster")
        eventually(lambda: plan(api)["fits"] == "now")
    finally:
        assert api.delete(f"/v1/jobs/{large}", params={"kill": "true"}).status_code == 204


def test_a_waiting_job_shows_its_position_and_reason(api: httpx2.Client) -> None:
    large = api.post("/v1/jobs", json={**SPEC, "learners": 100})
    assert large.status_code == 201
    assert "and this cluster has" in large.json()["warnings"][0]
    behind = api.post("/v1/jobs", json=SPEC).json()
    ids = [large.json()["id"], behind["id"]]
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
            assert api.delete(f"/v1/jobs/{job}", params={"kill": "true"}).status_code == 204
    assert api.get("/v1/queue").json() == {"waiting": []}
