"""Comparing jobs: statistics over groups, differences, copies; over the real metrics service."""

from __future__ import annotations

import asyncio
import io
import math
import statistics as reference
import zipfile
from contextlib import AsyncExitStack
from typing import Any

from tests.testbed.api import SPEC, Api
from tests.testbed.etcd import Etcd
from tests.testbed.learner_telemetry import Learner, running_learner
from tests.testbed.metrics import MetricsProcess
from tests.waiting import until
from weft import AsyncClient


def packed(**files: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{name}.py", text)
    return out.getvalue()


async def statistics(api: Api, **params: Any) -> dict[str, Any]:
    reply = await api.admin.get("/v1/statistics", params=params)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def test_statistics_over_seeds_are_exact_for_each_group(api: Api, metrics: MetricsProcess, etcd: Etcd) -> None:
    values = {
        (rate, seed): [math.sin(seed + step) * rate for step in range(20 if seed else 10)]
        for rate in (1, 100)
        for seed in range(3)
    }
    async with AsyncExitStack() as stack:
        learners: dict[tuple[int, int], Learner] = {}
        for (rate, seed), column in values.items():
            spec = {**SPEC, "name": f"run-{seed}", "env": {"LR": str(rate), "SEED": str(seed)}}
            learner = await stack.enter_async_context(running_learner(api, metrics, etcd, spec))
            learners[rate, seed] = learner
            await learner.write_points(*column)
        silent = (await api.submit({**SPEC, "env": {"LR": "1", "SEED": "9"}}))["id"]
        ids = [learner.job for learner in learners.values()]
        reply = await statistics(api, name="loss", job=[*ids, silent], **{"except": "env.SEED"})
        assert (reply["without"], reply["truncated"]) == ([silent], False)
        by_rate = {group["key"]["env.LR"]: group for group in reply["groups"]}
        assert sorted(by_rate) == ["1", "100"]
        for rate in (1, 100):
            group = by_rate[str(rate)]
            assert set(group["jobs"]) == {learners[rate, seed].job for seed in range(3)}
            assert (group["steps"], group["n"]) == (list(range(20)), [3] * 10 + [2] * 10)
            for step in range(20):
                at = [values[rate, seed][step] for seed in range(3) if step < len(values[rate, seed])]
                assert math.isclose(group["mean"][step], reference.fmean(at), rel_tol=1e-12, abs_tol=1e-12)
                assert math.isclose(group["std"][step], reference.pstdev(at), rel_tol=1e-9, abs_tol=1e-12)
                assert (group["min"][step], group["max"][step]) == (min(at), max(at))
        await learners[1, 0].write_points(7.0, 8.0, name="acc")
        both = await statistics(api, name="loss", also=["acc", "none", "loss"], job=ids, **{"except": "env.SEED"})
        assert [group for group in both["groups"] if group["name"] == "loss"] == reply["groups"]
        [of_one] = [group for group in both["groups"] if group["name"] != "loss"]
        assert (of_one["name"], of_one["jobs"], of_one["mean"]) == ("acc", [learners[1, 0].job], [7.0, 8.0])
        assert (of_one["key"], both["without"]) == ({"env.LR": "1"}, [])
        long: dict[str, Any] = {"name": "loss", "also": ["a", "b"], "job": ids, "max_points": 3334}
        assert (await api.admin.get("/v1/statistics", params=long)).status_code == 400

        async def whole() -> list[dict[str, Any]]:
            """The groups, once all jobs were compared with the filter: a search has a second."""
            answer = await statistics(api, name="loss", q="metric.loss<1000", max_points=5)
            return [] if answer["truncated"] else list(answer["groups"])

        [group] = await until(whole)
        assert (len(group["steps"]), group["key"], group["n"][0]) == (5, {}, 6)
        by_seed = await statistics(api, name="loss", job=ids, by="env.SEED")
        assert sorted(group["key"]["env.SEED"] for group in by_seed["groups"]) == ["0", "1", "2"]
        assert (await statistics(api, name="none", job=ids))["groups"] == []


async def test_statistics_leave_out_a_job_whose_metrics_are_damaged(
    api: Api, metrics: MetricsProcess, etcd: Etcd
) -> None:
    async with running_learner(api, metrics, etcd) as good, running_learner(api, metrics, etcd) as bad:
        await good.write_points(1.0, 2.0)
        await bad.write_points(3.0, 4.0)
        await asyncio.to_thread(metrics.stop)
        (metrics.home / "metrics" / bad.job / "index.sqlite").write_bytes(b"no database" * 1000)
        metrics.start()

        async def computed() -> dict[str, Any] | None:
            reply = await api.admin.get("/v1/statistics", params={"name": "loss", "job": [good.job, bad.job]})
            return dict(reply.json()) if reply.status_code != 503 else None

        await until(computed)
        reply = await statistics(api, name="loss", job=[good.job, bad.job])
        assert reply["without"] == [bad.job]
        assert [group["mean"] for group in reply["groups"]] == [[1.0, 2.0]]


async def test_statistics_need_jobs_of_the_own_tenant_and_one_way_to_name_them(api: Api) -> None:
    job = (await api.submit())["id"]
    async with api.client(await api.key("ada", "acme")) as ada:
        assert (await ada.get("/v1/statistics", params={"name": "loss", "job": job})).status_code == 404
        reply = (await ada.get("/v1/statistics", params={"name": "loss", "q": ""})).json()
        assert reply == {"groups": [], "without": [], "truncated": False}
    for params in (
        {"name": "loss"},
        {"job": job},
        {"name": "loss", "job": job, "q": ""},
        {"name": "loss", "q": "("},
        {"name": "loss", "job": job, "by": "a", "except": "b"},
        {"name": "loss", "job": job, "context": "x"},
        {"name": "loss", "job": job, "max_points": 1},
    ):
        assert (await api.admin.get("/v1/statistics", params=params)).status_code == 400, params


async def test_a_difference_names_fields_files_and_digests(api: Api) -> None:
    def submission(code: bytes, spec: str) -> dict[str, Any]:
        return {"spec": ("s", spec.encode(), "application/yaml"), "code": ("c", code, "application/zip")}

    spec = "name: a\ncommand: python train.py\nenv: {LR: '0.1'}\n"
    first = packed(train="print(1)", same="x", old="y")
    a = (await api.admin.post("/v1/jobs", files=submission(first, spec))).json()
    second = packed(train="print(2)", same="x", new="z")
    b = (await api.admin.post("/v1/jobs", files=submission(second, spec.replace("0.1", "0.2")))).json()
    difference = (await api.admin.get("/v1/diff", params={"a": a["id"], "b": b["id"]})).json()
    assert difference["spec"] == [{"path": "env.LR", "a": "0.1", "b": "0.2"}]
    assert (difference["code"]["a"], difference["code"]["b"]) == (a["code_digest"], b["code_digest"])
    assert difference["code"]["compared"]
    assert {file["path"]: file["change"] for file in difference["code"]["files"]} == {
        "new.py": "added",
        "old.py": "removed",
        "train.py": "changed",
    }
    same = (await api.admin.get("/v1/diff", params={"a": a["id"], "b": a["id"]})).json()
    assert (same["spec"], same["code"]["files"], same["environment"]) == ([], [], [])
    plain = (await api.submit())["id"]
    removed = (await api.admin.get("/v1/diff", params={"a": a["id"], "b": plain})).json()["code"]
    assert {file["change"] for file in removed["files"]} == {"removed"}
    async with api.client(await api.key("ada", "acme")) as ada:
        assert (await ada.get("/v1/diff", params={"a": a["id"], "b": b["id"]})).status_code == 404


async def test_a_clone_has_the_same_code_and_the_changed_fields(api: Api) -> None:
    files = {
        "spec": ("s", b"name: a\ncommand: c\nenv: {SEED: '1'}", "application/yaml"),
        "code": ("c", packed(train="x"), "application/zip"),
    }
    job = (await api.admin.post("/v1/jobs", files=files)).json()
    url = f"/v1/jobs/{job['id']}/clone"
    changes = {"set": {"env.SEED": "2", "learners": 3, "tags": ["copy"]}, "name": "b"}
    planned = await api.admin.post(url, params={"dry_run": "true"}, json=changes)
    assert (planned.status_code, planned.json()["learners"]) == (200, 3)
    made = await api.admin.post(url, json=changes)
    copy = made.json()
    assert (made.status_code, made.headers["location"]) == (201, f"/v1/jobs/{copy['id']}")
    assert copy["id"] != job["id"]
    assert (copy["name"], copy["learners"], copy["tags"], copy["code_digest"]) == ("b", 3, ["copy"], job["code_digest"])
    assert copy["spec"]["env"] == {"SEED": "2"}
    assert (await api.admin.post(url, json={})).json()["spec"] == job["spec"]


async def test_a_wrong_clone_is_refused_with_the_field_and_makes_no_job(api: Api) -> None:
    job = (await api.submit())["id"]
    before = len((await api.admin.get("/v1/jobs")).json()["jobs"])
    url = f"/v1/jobs/{job}/clone"
    wrong = await api.admin.post(url, json={"set": {"comand": "x"}})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid-spec")
    assert "command" in wrong.json()["errors"][0]["hint"]
    bodies: list[dict[str, Any]] = [
        {"sett": {}},
        {"set": 3},
        {"set": {"name.first": "x"}},
        {"set": {"env.X": "y" * 300_000}},
        {"set": {"." * 5_000: "x"}},
    ]
    for body in bodies:
        assert (await api.admin.post(url, json=body)).status_code in {400, 413}, str(body)[:50]
    async with api.client(await api.key("ada", "acme")) as ada:
        assert (await ada.post(url, json={})).status_code == 404
    assert len((await api.admin.get("/v1/jobs")).json()["jobs"]) == before


async def test_the_sdk_compares_and_copies_jobs(api: Api) -> None:
    job = (await api.submit({**SPEC, "env": {"SEED": "1"}}))["id"]
    async with AsyncClient(api.url, api.admin_key) as client:
        copy = await client.jobs.clone(job, set={"env.SEED": "2"}, name="copy")
        difference = await client.jobs.diff(job, copy.id)
        assert [field["path"] for field in difference["spec"]] == ["env.SEED", "name"]
        listed = [entry.id async for entry in client.jobs.list(q="env.SEED=2", metrics=["loss"], order="oldest")]
        assert listed == [copy.id]
        both = await client.jobs.statistics("loss", jobs=[job, copy.id], but=["env.SEED"], also=["acc"])
        assert both["without"] == [job, copy.id]
        assert (await client.session_code())["code"].startswith("weft_c")
