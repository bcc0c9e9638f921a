"""What the api learns from the other services: the cluster, the queue, whether a job would fit."""

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
    """The job, once the dispatcher has seen it."""
    job = dict(api.get(f"/v1/jobs/{job_id}").json())
    return job if "queue_position" in job else None


def listed(api: httpx2.Client, job_id: str) -> dict[str, Any]:
    [job] = [job for job in api.get("/v1/jobs").json()["jobs"] if job["id"] == job_id]
    return dict(job)


def told(api: httpx2.Client, job_id: str) -> dict[str, Any]:
    return dict(api.get(f"/v1/jobs/{job_id}/explain").json())


def places(api: httpx2.Client) -> dict[str, int]:
    """Job -> its place in the queue, in the order in which they are shown."""
    waiting = api.get("/v1/queue").json()["waiting"]
    return {one["id"]: one["position"] for one in waiting if "position" in one}


def test_the_cluster_is_shown_with_what_is_in_use(api: httpx2.Client) -> None:
    cluster = api.get("/v1/cluster").json()
    [node] = cluster["nodes"]
    assert (node["cpus"], node["ready"]) == (4, True)
    assert cluster["total"] == {"cpus": 4, "memory": node["memory"], "gpus": node["gpus"]}
    assert cluster["isolation"] in {"process", "sandbox"}
    assert cluster["used"]["cpus"] <= 4


def test_a_plan_says_whether_it_would_fit(api: httpx2.Client) -> None:
    assert eventually(lambda: plan(api)["fits"] == "now")
    never = plan(api, learners=100)
    assert never["fits"] == "never"
    assert "50 CPUs (4 in all)" in never["fits_message"]
    assert never["warnings"] == [never["fits_message"]]


def test_a_job_that_can_never_run_does_not_make_the_next_one_seem_to_wait(api: httpx2.Client) -> None:
    assert eventually(lambda: plan(api)["fits"] == "now")
    large = api.post("/v1/jobs", json={**SPEC, "learners": 100}).json()["id"]
    try:
        eventually(lambda: (shown(api, large) or {}).get("pending_reason") == "NoMatchingFlavor")
        eventually(lambda: plan(api)["fits"] == "now")
    finally:
        assert api.delete(f"/v1/jobs/{large}", params={"kill": "true"}).status_code == 204


def test_who_waits_is_told_where_and_why(api: httpx2.Client) -> None:
    large = api.post("/v1/jobs", json={**SPEC, "learners": 100})
    assert large.status_code == 201
    assert "this cluster can never hold it" in large.json()["warnings"][0]
    behind = api.post("/v1/jobs", json=SPEC).json()
    ids = [large.json()["id"], behind["id"]]
    try:
        first = eventually(lambda: shown(api, ids[0])) or {}
        assert first["queue_position"] == 1
        assert first["pending_reason"]
        assert first["pending_message"]
        # The dispatcher has a second to say so; what it does not is left out, and so is the place of who just left.
        eventually(lambda: told(api, ids[0])["summary"].startswith("waits at place 1: "))
        eventually(lambda: ids[0] in places(api))
        assert list(places(api).values()) == sorted(places(api).values())
        eventually(lambda: listed(api, ids[0]).get("queue_position") == 1)
    finally:
        for job in ids:
            assert api.delete(f"/v1/jobs/{job}", params={"kill": "true"}).status_code == 204
    assert api.get("/v1/queue").json() == {"waiting": []}
