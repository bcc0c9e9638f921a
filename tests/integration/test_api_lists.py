"""Lists of jobs: filters, columns with metrics, order; over the real metrics service."""

from __future__ import annotations

from typing import Any

import pytest

from services.api import jobs as jobs_module
from tests.testbed.api import SPEC, Api
from tests.testbed.learner_telemetry import Learner


async def listed(api: Api, **params: Any) -> list[dict[str, Any]]:
    """All pages of the list."""
    jobs: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        page = await api.admin.get("/v1/jobs", params={**params, **after})
        assert page.status_code == 200, page.text
        jobs += page.json()["jobs"]
        if page.json()["next"] is None:
            return jobs
        after = {"after": page.json()["next"]}


async def test_a_filter_finds_jobs_by_their_fields(api: Api) -> None:
    plain = (await api.submit({**SPEC, "name": "plain"}))["id"]
    tagged = (await api.submit({**SPEC, "name": "tagged", "tags": ["x"], "env": {"LR": "0.1"}}))["id"]
    await api.admin.post(f"/v1/jobs/{plain}/kill")
    for text, expected in (
        ("status=KILLED", [plain]), ("status=queued and created<1h", [tagged]), ("tag=x", [tagged]),
        ("env.LR=0.1 or name=plain", [tagged, plain]), ("not status=KILLED", [tagged]), ("user=nobody", []),
        ("created>1d", []), ("name~LAI", [plain]), ("", [tagged, plain]),
    ):  # fmt: skip
        assert [job["id"] for job in await listed(api, q=text)] == expected, text
    assert [job["id"] for job in await listed(api, order="oldest")] == [plain, tagged]
    assert [job["id"] for job in await listed(api, order="oldest", q="created<1d", limit=1)] == [plain, tagged]


async def test_a_filter_compares_metrics_of_running_jobs(api: Api, learner: Learner) -> None:
    await api.submit()
    await learner.write_points(0.9, 0.2, 0.4)
    for text, expected in (
        ("metric.loss<0.5", [learner.job]), ("metric.loss<0.3", []), ("metric.loss.min<0.3", [learner.job]),
        ("status=QUEUED and metric.loss<1", []), ("metric.none<1", []),
    ):  # fmt: skip
        assert [job["id"] for job in await listed(api, q=text)] == expected, text


async def test_columns_show_last_smallest_largest_and_best_value_with_their_steps(api: Api, learner: Learner) -> None:
    other = (await api.submit())["id"]
    await learner.write_points(0.9, 0.2, 0.4)
    await learner.write_points(0.5, float("nan"), name="accuracy")
    by_id = {job["id"]: job["metrics"] for job in await listed(api, metrics="loss, accuracy,none")}
    assert by_id[other] == []
    loss, accuracy = by_id[learner.job]
    first = learner.points - 5
    assert {key: loss[key] for key in ("name", "count", "last", "min", "max", "best")} == {
        "name": "loss", "count": 3, "last": 0.4, "min": 0.2, "max": 0.9, "best": 0.2,
    }  # fmt: skip
    assert (loss["best_step"], loss["max_step"], loss["last_step"]) == (first + 1, first, first + 2)
    assert (accuracy["last"], accuracy["best"], accuracy["min"]) == ("NaN", 0.5, 0.5)
    [chosen] = [job for job in await listed(api, metrics="loss:max", fields="name") if job["id"] == learner.job]
    assert (chosen["metrics"][0]["best"], sorted(chosen)) == (0.9, ["id", "metrics", "name"])


async def test_a_search_of_a_long_list_stops_and_says_where_to_continue(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "_SEARCHED", 2)
    monkeypatch.setattr(jobs_module, "_SEARCH_S", 0.0)
    wanted = (await api.submit({**SPEC, "name": "wanted"}))["id"]
    for _ in range(5):
        await api.submit()
    page = (await api.admin.get("/v1/jobs", params={"q": "reason!=x and name~want"})).json()
    assert (page["jobs"], page["next"] is None) == ([], False)
    assert [job["id"] for job in await listed(api, q="reason!=x and name~want")] == [wanted]


async def test_a_filter_never_reaches_another_tenant(api: Api) -> None:
    await api.submit()
    async with api.client(await api.key("ada", "acme")) as ada:
        for text in ("tenant=default", "not tenant=acme", "user=admin or user=ada"):
            assert (await ada.get("/v1/jobs", params={"q": text})).json()["jobs"] == []


async def test_a_wrong_filter_or_column_is_refused_with_the_place(api: Api) -> None:
    refused = await api.admin.get("/v1/jobs", params={"q": "statu=FAILED"})
    [error] = refused.json()["errors"]
    assert (refused.status_code, error["pointer"], error["hint"]) == (400, "/query/q", "did you mean 'status'?")
    for params in ({"order": "best"}, {"metrics": ",".join("abcdefghijklmnopqrstuvw")}, {"q": "("}):
        assert (await api.admin.get("/v1/jobs", params=params)).status_code == 400, params
    assert (await api.admin.get("/v1/stream", params={"list": "true", "q": "("})).status_code == 400
