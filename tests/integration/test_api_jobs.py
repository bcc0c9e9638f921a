"""Jobs over HTTP: submit, list, halt, resume, kill, delete."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.core.domain.job import Job, admitted, moved, released
from services.core.domain.status import Status
from tests.testbed.api import SPEC, Api, a_zip, running_api
from tests.waiting import HANG_S, until

ZIP = a_zip()
DIGEST = "sha256:" + hashlib.sha256(ZIP).hexdigest()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running_api(tmp_path) as api:
        yield api


def multipart(spec: Any = SPEC, code: bytes | None = ZIP) -> dict[str, Any]:
    files: dict[str, Any] = {"spec": ("spec.yml", json.dumps(spec), "application/yaml")}
    if code is not None:
        files["code"] = ("code.zip", code, "application/zip")
    return {"files": files}


def run_to(*path: Status, reason: str = "") -> Any:
    """A change of a queued job as the dispatcher and a Guardian make it: admitted, then through these statuses."""

    def change(job: Job) -> Job:
        job = admitted(job, placement={"worker-0": "here"}, dispatcher_term=1, now=job.updated)
        for status in path:
            job = moved(job, status, actor="guardian", now=job.updated, reason=reason)
        return job

    return change


def ended(job: Job) -> Job:
    return released(run_to(Status.PROCESSING, Status.STORING, Status.COMPLETED)(job), now=job.updated)


async def test_a_job_with_code_is_durable_and_its_code_can_be_downloaded(api: Api) -> None:
    made = await api.admin.post("/v1/jobs", **multipart())
    assert made.status_code == 201, made.text
    job = made.json()
    assert made.headers["location"] == f"/v1/jobs/{job['id']}"
    assert made.headers["etag"] == '"1"'
    assert (job["status"], job["code_digest"], job["warnings"], job["learners"]) == ("QUEUED", DIGEST, [], 1)
    assert job["spec"] == {**SPEC, "roles": {"worker": {"count": 1}}}
    stored = await api.store.get(job["id"])
    assert stored is not None
    assert [event.actor for event in stored.history_tail] == ["user:admin"]
    code = await api.admin.get(f"/v1/jobs/{job['id']}/artifacts/code.zip")
    assert code.content == ZIP
    assert list((api.settings.home / "uploads").iterdir()) == []


async def test_code_that_was_uploaded_before_is_named_by_its_digest(api: Api) -> None:
    first = (await api.admin.post("/v1/jobs", **multipart())).json()
    again = await api.submit(params={"code_digest": DIGEST})
    assert again["id"] != first["id"]
    assert again["code_digest"] == DIGEST
    unknown = await api.admin.post("/v1/jobs", json=SPEC, params={"code_digest": "sha256:" + "0" * 64})
    assert (unknown.status_code, unknown.json()["errors"][0]["pointer"]) == (400, "/code_digest")


async def test_a_spec_may_come_as_yaml_or_json_and_either_part_first(api: Api) -> None:
    yaml = await api.admin.post(
        "/v1/jobs", content=b"name: x\ncommand: 'true'\n", headers={"Content-Type": "application/yaml"}
    )
    assert yaml.status_code == 201
    boundary = b"--b\r\n"
    body = (
        boundary
        + b'Content-Disposition: form-data; name="code"; filename="c"\r\n\r\n'
        + ZIP
        + b"\r\n"
        + boundary
        + b'Content-Disposition: form-data; name="spec"\r\n\r\nname: x\ncommand: "true"\r\n--b--\r\n'
    )
    swapped = await api.admin.post(
        "/v1/jobs", content=body, headers={"Content-Type": "multipart/form-data; boundary=b"}
    )
    assert (swapped.status_code, swapped.json()["code_digest"]) == (201, DIGEST)


async def test_a_dry_run_answers_with_a_plan_and_creates_nothing(api: Api) -> None:
    spec = {**SPEC, "learners": 2, "framework": "jax:0.10", "resources": {"size": "k80"}}
    plan = await api.admin.post("/v1/jobs", json=spec, params={"dry_run": "true", "code_digest": DIGEST})
    assert plan.status_code == 200, plan.text
    answer = plan.json()
    assert answer["dry_run"] is True
    assert answer["resources"]["total"] == {"cpus": 8, "memory": 48_000_000_000, "gpus": 2}
    assert answer["resources"]["roles"]["worker"] == {"count": 2, "cpus": 4, "memory": 24_000_000_000, "gpus": 1}
    assert answer["framework"]["name"] == "jax"
    assert answer["code"] == {"digest": DIGEST, "stored": False}
    assert answer["fits"] == "unknown"
    assert answer["limits"] == {"max_code_bytes": 512 * 2**20, "max_spec_bytes": 256 * 1024}
    with_code = await api.admin.post("/v1/jobs", params={"dry_run": "true"}, **multipart(spec))
    assert with_code.json()["code"] == {"digest": DIGEST, "stored": False}
    assert (await api.admin.get("/v1/jobs")).json() == {"jobs": [], "next": None}


@pytest.mark.parametrize(
    ("spec", "pointer", "says"),
    [
        ({**SPEC, "framework": "jaxx"}, "/framework", "did you mean 'jax'?"),
        ({**SPEC, "framework": "jax:7"}, "/framework/version", "there are: 0.10"),
        ({**SPEC, "comand": "x"}, "/comand", "did you mean 'command'?"),
        ({**SPEC, "distribution": "mpi"}, "/distribution", "not available"),
        ({**SPEC, "code": "."}, "/code", "none was sent"),
        ({"name": "x"}, "/command", "required"),
    ],
)
async def test_an_invalid_spec_is_refused_with_the_pointer_to_the_field(
    api: Api, spec: Any, pointer: str, says: str
) -> None:
    refused = await api.admin.post("/v1/jobs", json=spec)
    assert refused.status_code == 400
    assert refused.headers["content-type"] == "application/problem+json"
    problem = refused.json()
    assert (problem["code"], problem["type"]) == ("invalid-spec", "urn:weft:error:invalid-spec")
    assert [error for error in problem["errors"] if error["pointer"] == pointer]
    assert says in problem["detail"]
    assert len(problem["trace_id"]) == 32
    assert (await api.admin.get("/v1/jobs")).json()["jobs"] == []


async def test_a_submit_under_the_same_key_replays_and_another_body_is_a_mismatch(api: Api) -> None:
    key = {"Idempotency-Key": "a-1"}
    first = await api.admin.post("/v1/jobs", headers=key, **multipart())
    again = await api.admin.post("/v1/jobs", headers=key, **multipart())
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    other = await api.admin.post("/v1/jobs", headers=key, **multipart({**SPEC, "name": "other"}))
    assert (other.status_code, other.json()["code"]) == (422, "idempotency-mismatch")
    other_code = await api.admin.post("/v1/jobs", headers=key, **multipart(code=a_zip({"a": "b"})))
    assert other_code.status_code == 422
    without_code = await api.admin.post("/v1/jobs", headers=key, json=SPEC)
    assert without_code.status_code == 422
    assert len((await api.admin.get("/v1/jobs")).json()["jobs"]) == 1


async def test_sixteen_concurrent_submits_under_one_key_make_one_job(api: Api) -> None:
    key = {"Idempotency-Key": "race"}
    answers = await asyncio.gather(*(api.admin.post("/v1/jobs", headers=key, **multipart()) for _ in range(16)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 15
    assert len((await api.admin.get("/v1/jobs")).json()["jobs"]) == 1


async def test_the_key_of_a_deleted_job_creates_no_second_job(api: Api) -> None:
    key = {"Idempotency-Key": "gone"}
    job = await api.submit(headers=key)
    assert (await api.admin.delete(f"/v1/jobs/{job['id']}", params={"kill": "true"})).status_code == 204
    again = await api.submit(headers=key)
    assert again["id"] == job["id"]
    assert again["deleted"]


async def test_two_users_can_submit_under_the_same_key(api: Api) -> None:
    key = {"Idempotency-Key": "mine"}
    job = await api.submit(headers=key)
    async with api.client(await api.key("bob", "default")) as bob:
        other = await bob.post("/v1/jobs", json={**SPEC, "name": "bobs"}, headers=key)
        assert (other.status_code, other.json()["user"]) == (201, "bob")
        assert other.json()["id"] != job["id"]


async def test_paging_lists_every_job_once_while_new_jobs_are_submitted(api: Api) -> None:
    made = [(await api.submit({**SPEC, "name": f"n{place}"}))["id"] for place in range(7)]
    listed: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = (await api.admin.get("/v1/jobs", params={"limit": 3, **after})).json()
        listed += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
        await api.submit()
    assert listed == made[::-1]


async def test_lists_are_filtered_and_limited_to_the_requested_fields(api: Api) -> None:
    tagged = await api.submit({**SPEC, "name": "tagged", "tags": ["x", "y"]})
    killed = await api.submit()
    await api.admin.post(f"/v1/jobs/{killed['id']}/kill")

    async def ids(**params: Any) -> list[str]:
        answer = await api.admin.get("/v1/jobs", params=params)
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["jobs"]]

    assert await ids(tag="y") == [tagged["id"]]
    assert await ids(name="digits") == [killed["id"]]
    assert await ids(status="killed") == [killed["id"]]
    assert await ids(status="KILLED,QUEUED") == [killed["id"], tagged["id"]]
    assert await ids(status=["KILLED", "QUEUED"]) == [killed["id"], tagged["id"]]
    assert await ids(user="nobody") == []
    cut = (await api.admin.get("/v1/jobs", params={"fields": "name,status"})).json()["jobs"]
    assert cut[0] == {"id": killed["id"], "name": "digits", "status": "KILLED"}


@pytest.mark.parametrize(
    ("params", "pointer"),
    [
        ({"limit": "501"}, "/query/limit"),
        ({"limit": "ten"}, "/query/limit"),
        ({"status": "RUNING"}, "/query/status"),
        ({"fields": "nme"}, "/query/fields"),
        ({"after": "zzz"}, "/query/after"),
    ],
)
async def test_an_invalid_parameter_is_refused_with_its_pointer(api: Api, params: dict[str, str], pointer: str) -> None:
    refused = await api.admin.get("/v1/jobs", params=params)
    assert refused.status_code == 400
    assert [error["pointer"] for error in refused.json()["errors"]] == [pointer]
    assert next(iter(params.values())) not in refused.text


async def test_a_queued_job_is_halted_resumed_and_killed_at_once(api: Api) -> None:
    job = (await api.submit())["id"]
    halted = await api.admin.patch(f"/v1/jobs/{job}", json={"desired": "halt"})
    assert (halted.status_code, halted.json()["status"]) == (202, "HALTED")
    assert (halted.json()["generation"], halted.json()["observed_generation"], halted.headers["etag"]) == (2, 2, '"2"')
    resumed = await api.admin.post(f"/v1/jobs/{job}/resume")
    assert (resumed.status_code, resumed.json()["status"]) == (202, "QUEUED")
    killed = await api.admin.post(f"/v1/jobs/{job}/kill")
    assert (killed.json()["status"], killed.json()["at_rest"]) == ("KILLED", True)
    events = (await api.admin.get(f"/v1/jobs/{job}/history")).json()["events"]
    assert [event["to"] for event in events] == ["QUEUED", "HALTED", "RESUMED", "QUEUED", "KILLED"]
    assert [event["seq"] for event in events] == [1, 2, 3, 4, 5]
    assert {event["actor"] for event in events} == {"user:admin"}
    later = (await api.admin.get(f"/v1/jobs/{job}/history", params={"after": 3})).json()["events"]
    assert [event["seq"] for event in later] == [4, 5]


async def test_halting_a_running_job_sets_desired_and_impossible_changes_are_refused(api: Api) -> None:
    job = (await api.submit())["id"]
    await api.change(job, run_to(Status.PROCESSING))
    early = await api.admin.post(f"/v1/jobs/{job}/resume")
    assert (early.status_code, early.json()["code"]) == (409, "illegal-transition")
    halted = (await api.admin.post(f"/v1/jobs/{job}/halt")).json()
    assert (halted["status"], halted["desired"], halted["generation"], halted["observed_generation"]) == (
        "PROCESSING",
        "halt",
        2,
        0,
    )
    same = (await api.admin.post(f"/v1/jobs/{job}/halt")).json()
    assert same["generation"] == 2
    done = (await api.submit())["id"]
    await api.change(done, ended)
    late = await api.admin.post(f"/v1/jobs/{done}/halt")
    assert (late.status_code, late.json()["code"]) == (409, "illegal-transition")


async def test_if_match_allows_changes_only_at_that_generation(api: Api) -> None:
    job = (await api.submit())["id"]
    etag = (await api.admin.get(f"/v1/jobs/{job}")).headers["etag"]
    wrong = await api.admin.post(f"/v1/jobs/{job}/halt", headers={"If-Match": '"7"'})
    assert (wrong.status_code, wrong.json()["code"]) == (412, "precondition-failed")
    weak = await api.admin.post(f"/v1/jobs/{job}/halt", headers={"If-Match": f"W/{etag}"})
    assert weak.status_code == 412
    right = await api.admin.post(f"/v1/jobs/{job}/halt", headers={"If-Match": etag})
    assert right.status_code == 202
    stale = await api.admin.patch(f"/v1/jobs/{job}", json={"desired": "kill"}, headers={"If-Match": etag})
    assert stale.status_code == 412
    anything = await api.admin.patch(f"/v1/jobs/{job}", json={"desired": "kill"}, headers={"If-Match": "*"})
    assert anything.status_code == 202


@pytest.mark.parametrize("body", [{}, {"desired": "stop"}, {"desired": "halt", "x": 1}, {"desired": None}, [], 3])
async def test_an_invalid_desired_body_is_refused(api: Api, body: Any) -> None:
    job = (await api.submit())["id"]
    refused = await api.admin.patch(f"/v1/jobs/{job}", json=body)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid-request")
    assert (await api.admin.get(f"/v1/jobs/{job}")).json()["generation"] == 1


async def test_a_live_job_is_deleted_only_with_kill(api: Api) -> None:
    job = (await api.submit())["id"]
    refused = await api.admin.delete(f"/v1/jobs/{job}")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    gone = await api.admin.delete(f"/v1/jobs/{job}", params={"kill": "true"})
    assert (gone.status_code, gone.content) == (204, b"")
    for request in (api.admin.get, api.admin.delete):
        missing = await request(f"/v1/jobs/{job}")
        assert (missing.status_code, missing.json()["code"]) == (404, "not-found")
    assert (await api.admin.get(f"/v1/jobs/{job}/history")).status_code == 404
    assert (await api.admin.get("/v1/jobs")).json()["jobs"] == []
    stored = await api.store.get(job)
    assert stored is not None
    assert (stored.status, bool(stored.deleted)) == (Status.KILLED, True)


async def test_if_match_allows_a_deletion_only_at_that_generation(api: Api) -> None:
    job = (await api.submit())["id"]
    url, etag = f"/v1/jobs/{job}", (await api.admin.get(f"/v1/jobs/{job}")).headers["etag"]
    for wrong in ('"7"', f"W/{etag}"):
        for params in ({}, {"kill": "true"}):
            refused = await api.admin.delete(url, params=params, headers={"If-Match": wrong})
            assert (refused.status_code, refused.json()["code"]) == (412, "precondition-failed")
    assert (await api.admin.get(url)).json()["desired"] == "run", "it is not killed"
    await api.change(job, ended)
    assert (await api.admin.delete(url, headers={"If-Match": '"7"'})).status_code == 412
    assert (await api.admin.get(url)).status_code == 200
    assert (await api.admin.delete(url, headers={"If-Match": etag})).status_code == 204


async def test_delete_with_kill_and_if_match_deletes_the_job_that_it_killed(api: Api) -> None:
    job = (await api.submit())["id"]
    etag = (await api.admin.get(f"/v1/jobs/{job}")).headers["etag"]
    gone = await api.admin.delete(f"/v1/jobs/{job}", params={"kill": "true"}, headers={"If-Match": etag})
    assert gone.status_code == 204, gone.text


async def test_delete_with_kill_waits_until_the_hardware_is_released(tmp_path: Path) -> None:
    async with running_api(tmp_path, delete_wait_s=HANG_S) as api:
        job = (await api.submit())["id"]
        await api.change(job, run_to(Status.PROCESSING))
        deleting = asyncio.create_task(api.admin.delete(f"/v1/jobs/{job}", params={"kill": "true"}))

        async def kill_is_set() -> bool:
            document = await api.store.get(job)
            return document is not None and document.desired.value == "kill"

        await until(kill_is_set)
        await api.change(job, lambda document: moved(document, Status.KILLED, actor="guardian", now=document.updated))
        assert not deleting.done()
        await api.change(job, lambda document: released(document, now=document.updated))
        assert (await deleting).status_code == 204


async def test_delete_answers_retry_after_if_the_kill_takes_longer(tmp_path: Path) -> None:
    async with running_api(tmp_path, delete_wait_s=0.05) as api:
        job = (await api.submit())["id"]
        await api.change(job, run_to(Status.PROCESSING))
        slow = await api.admin.delete(f"/v1/jobs/{job}", params={"kill": "true"})
        assert (slow.status_code, slow.headers["retry-after"]) == (409, "2")
        assert (await api.admin.get(f"/v1/jobs/{job}")).json()["desired"] == "kill"


async def test_an_ended_job_is_deleted_without_kill(api: Api) -> None:
    job = (await api.submit())["id"]
    await api.change(job, ended)
    assert (await api.admin.get(f"/v1/jobs/{job}")).json()["at_rest"] is True
    assert (await api.admin.delete(f"/v1/jobs/{job}")).status_code == 204


async def test_a_job_is_explained(api: Api) -> None:
    job = (await api.submit())["id"]
    explanation = (await api.admin.get(f"/v1/jobs/{job}/explain")).json()
    assert (explanation["status"], explanation["summary"]) == ("QUEUED", "waits to be admitted")
    assert "queue_position" not in explanation
    await api.change(job, lambda document: replace(ended(document)))
    explanation = (await api.admin.get(f"/v1/jobs/{job}/explain")).json()
    assert explanation["summary"].startswith("is COMPLETED")
    assert explanation["hints"][0] == f"`weft download {job}` fetches its results"


async def test_a_missing_metrics_service_is_named_in_the_error(api: Api) -> None:
    job = (await api.submit())["id"]
    answer = await api.admin.get(f"/v1/jobs/{job}/logs")
    assert answer.status_code == 503
    assert answer.json()["detail"] == "the metrics service is not there yet"


async def test_tenants_cannot_see_each_other(api: Api) -> None:
    ours = (await api.submit())["id"]
    async with api.client(await api.key("eve", "evil")) as eve:
        theirs = (await eve.post("/v1/jobs", **multipart())).json()
        assert theirs["tenant"] == "evil"
        missing = ours[:-1] + ("0" if ours[-1] != "0" else "1")
        for path in (
            "",
            "/history",
            "/explain",
            "/logs",
            "/metrics",
            "/progress",
            "/events",
            "/artifacts",
            "/artifacts/code.zip",
        ):
            foreign, absent = await eve.get(f"/v1/jobs/{ours}{path}"), await eve.get(f"/v1/jobs/{missing}{path}")
            assert (foreign.status_code, absent.status_code) == (404, 404), path
            same = {key: value for key, value in foreign.json().items() if key != "trace_id"}
            assert json.dumps(same).replace(ours, missing) == json.dumps(
                {key: value for key, value in absent.json().items() if key != "trace_id"}
            )
        for action in ("halt", "resume", "kill"):
            assert (await eve.post(f"/v1/jobs/{ours}/{action}")).status_code == 404
        assert (await eve.patch(f"/v1/jobs/{ours}", json={"desired": "kill"})).status_code == 404
        assert (await eve.delete(f"/v1/jobs/{ours}", params={"kill": "true"})).status_code == 404
        assert [job["id"] for job in (await eve.get("/v1/jobs")).json()["jobs"]] == [theirs["id"]]
        assert (await eve.get("/v1/jobs", params={"tenant": "default"})).status_code == 403
        assert (await eve.get("/v1/jobs", params={"tenant": "*"})).status_code == 403
        assert (await eve.post("/v1/jobs", json=SPEC, params={"tenant": "default"})).status_code == 403
        assert [job["id"] for job in (await eve.get("/v1/queue")).json()["waiting"]] == [theirs["id"]]
    mine = (await api.admin.get("/v1/jobs")).json()["jobs"]
    assert [job["id"] for job in mine] == [ours]
    everything = (await api.admin.get("/v1/jobs", params={"tenant": "*"})).json()["jobs"]
    assert {job["id"] for job in everything} == {ours, theirs["id"]}
    foreign_code = await api.admin.post("/v1/jobs", json=SPEC, params={"code_digest": DIGEST})
    assert foreign_code.status_code == 400
    there = await api.admin.post("/v1/jobs", json=SPEC, params={"code_digest": DIGEST, "tenant": "evil"})
    assert (there.status_code, there.json()["tenant"]) == (201, "evil")


async def test_a_submit_is_counted_by_framework_and_resources(api: Api) -> None:
    await api.submit({**SPEC, "framework": "numpy"})
    shape = 'cpus="1",framework="numpy",gpus="0",memory="1000000000",version=""'
    assert f"trainer_trainings_create_total{{{shape}}} 1.0" in api.measured()
    answered = 'weft_http_requests_total{method="POST",route="/v1/jobs",status="201"} 1.0'
    await until(lambda: answered in api.measured())  # counted once the answer is on its way
