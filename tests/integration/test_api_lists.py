"""Lists of jobs: filters, columns with metrics, order; over the real metrics service."""

from __future__ import annotations

import asyncio
import io
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from click.shell_completion import BashComplete
from structlog.testing import capture_logs

from services.api import jobs as jobs_module
from services.core.gen.weft.v1 import metrics_pb2 as pb
from tests.testbed.answers import check_answer
from tests.testbed.api import SPEC, Api
from tests.testbed.etcd import Etcd
from tests.testbed.learner_telemetry import Learner, running_learner
from tests.testbed.metrics import MetricsProcess
from tests.testbed.terminal import Output, Terminal
from tests.waiting import until
from weft._cli.call import Call
from weft._cli.main import weft as group


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


@pytest.fixture
def weft(api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with capture_logs():  # the log of the api, and no part of an answer
        yield Terminal(api, monkeypatch, capsys)


async def with_progress(weft: Terminal, *words: str) -> Output:
    """The list, once it has the progress of a job: it is without if the metrics service takes a second to answer."""

    async def listed() -> Output | None:
        shown = await weft("list", *words)
        return shown if "42 %" in shown.out or "0.42" in shown.out else None

    shown = await until(listed)
    assert shown is not None
    return shown


async def test_list_has_progress_and_a_chosen_metric_and_sorts_by_it(
    api: Api,
    learner: Learner,
    metrics: MetricsProcess,
    etcd: Etcd,
    weft: Terminal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # at 80 some columns are left out
    await learner.write_points(0.9, 0.2, 0.5)
    await learner.helper.call("Beat", pb.BeatRequest(progress=0.42, eta_ms=81_000))
    waiting = (await api.submit())["id"]
    async with running_learner(api, metrics, etcd) as better:
        await better.write_points(0.3)
        shown = await with_progress(weft, "-m", "loss", "-m", "loss:min")
        head, *rows = shown.out.splitlines()
        assert head.split() == ["ID", "NAME", "STATUS", "LEARNERS", "AGE", "TOOK", "DONE", "LOSS", "LOSS:MIN", "WHY"]
        assert [("42 %" in row, row.split()[-2:]) for row in rows if learner.job in row] == [(True, ["0.5", "0.2"])]
        by_metric = (await with_progress(weft, "--sort", "loss", "-o", "json")).json
        assert [job["id"] for job in by_metric["jobs"]] == [better.job, learner.job, waiting]
        check_answer("list", by_metric)
        assert ("progress" in by_metric["jobs"][0], by_metric["jobs"][1]["progress"]) == (False, 0.42)
        reverse = await weft("list", "--sort", "loss:min", "--reverse", "-n", "1", "-o", "name")
        assert reverse.out.split() == [better.job]
        assert (await weft("list", "--reverse")).code == 2


async def test_show_has_progress_metrics_and_usage(api: Api, learner: Learner, weft: Terminal) -> None:
    await learner.write_points(0.9, 0.2, 0.5)
    await learner.helper.call("Beat", pb.BeatRequest(progress=0.42, eta_ms=81_000))
    usage = [
        pb.MetricPoint(offset=offset, time_ms=1000, name=name, value=value, context={"weft": "usage"})
        for name, values in {"system/cpu": (1.5, 0.25), "system/memory": (8e8, 3e8)}.items()
        for offset, value in enumerate(values)
    ]
    await learner.helper.append(pb.SourceBatch(source=learner.helper.source("usage"), end=2, points=usage))
    shown = (await weft("show", learner.job)).out
    lines = [line.split(maxsplit=1) for line in shown.splitlines()]
    assert ["progress", "42 %, 1m21s left"] in lines
    assert ["metrics", "loss 0.5 at step 2; best 0.2 at step 1"] in lines
    assert ["usage", "0.25 CPUs, 300 MB; at most 1.5 CPUs, 800 MB"] in lines
    only = (await weft("show", learner.job, "-m", "loss", "-o", "json")).json
    check_answer("show", only)
    assert [(metric["name"], metric["last"]) for metric in only["metrics"]] == [("loss", 0.5)]
    await learner.complete_and_release()
    lines = [line.split(maxsplit=1) for line in (await weft("show", learner.job)).out.splitlines()]
    assert ["usage", "at most 1.5 CPUs, 800 MB"] in lines
    assert not [line for line in lines if line[0] == "progress"]


async def test_metrics_are_a_parquet_file_and_without_pyarrow_the_message_says_what_is_missing(
    api: Api, learner: Learner, tmp_path: Path
) -> None:
    await learner.write_points(0.9, math.nan, 0.5)
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "pyarrow.py").write_text("raise ImportError('hidden')")
    environment = {**os.environ, "WEFT_URL": api.url, "WEFT_KEY": api.admin_key, "XDG_CONFIG_HOME": str(tmp_path)}
    command = [str(Path(sys.executable).with_name("weft")), "metrics", learner.job, "-o", "parquet"]

    async def run(**more: str) -> tuple[int | None, bytes, str]:
        process = await asyncio.create_subprocess_exec(
            *command, env={**environment, **more}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        return process.returncode, out, err.decode()

    code, out, err = await run()
    assert (code, err) == (0, "")
    table = pq.read_table(io.BytesIO(out)).to_pylist()
    assert [(row["job"], row["metric"], row["step"]) for row in table] == [(learner.job, "loss", at) for at in range(3)]
    assert repr([row["value"] for row in table]) == "[0.9, nan, 0.5]"
    code, out, err = await run(PYTHONPATH=str(tmp_path / "without"))
    assert (code, out) == (2, b"")
    assert "-o parquet needs pyarrow: `pip install pyarrow`" in err


async def test_following_the_logs_of_a_waiting_job_says_what_it_waits_for(
    api: Api, weft: Terminal, tmp_path: Path
) -> None:
    job = await api.submit()
    environment = {**os.environ, "WEFT_URL": api.url, "WEFT_KEY": api.admin_key, "XDG_CONFIG_HOME": str(tmp_path)}
    following = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("weft"),
        "logs",
        "-f",
        job["id"],
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert following.stderr is not None
    try:
        assert (await following.stderr.readline()).decode().startswith("the job waits: ")
        await weft("kill", job["id"], "--yes")
        out, err = await following.communicate()
        assert (following.returncode, out) == (103, b"")
        assert b"KILLED" in err
    finally:
        if following.returncode is None:
            following.kill()
            await following.wait()


async def test_jobs_and_their_metrics_are_completed(api: Api, learner: Learner, weft: Terminal) -> None:
    await learner.write_points(0.9)
    await learner.write_points(0.75, name="accuracy")
    twin = (await api.submit({**SPEC, "name": "twin"}))["id"]
    await api.submit({**SPEC, "name": "twin"})

    def completed(*words: str) -> list[str]:
        shell = BashComplete(group, {"obj": Call()}, "weft", "_WEFT_COMPLETE")
        return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]

    async def offered(*words: str) -> list[str]:
        return await asyncio.to_thread(completed, *words)

    assert await offered("show", "") == ["@last", "twin", "digits"]
    assert twin in await offered("kill", "digits", twin[:4])
    assert await offered("metrics", learner.job, "-m", "") == ["accuracy", "loss"]
    assert await offered("list", "-m", "l") == ["loss"]
    assert await offered("diff", "dig") == ["digits"]


async def test_groups_and_tags_are_completed(api: Api, weft: Terminal) -> None:
    """`weft wait --group` completed nothing, although the name of a group is made up of digits."""
    await api.submit({**SPEC, "tags": ["group=sweep-9cd60e", "nightly"]})
    shell = BashComplete(group, {"obj": Call()}, "weft", "_WEFT_COMPLETE")
    for words, expected in (
        (["wait", "--group"], ["sweep-9cd60e"]),
        (["list", "--group"], ["sweep-9cd60e"]),
        (["kill", "-l"], ["group=sweep-9cd60e", "nightly"]),
    ):
        offered = await asyncio.to_thread(shell.get_completions, words, "")
        assert [item.value for item in offered] == expected


async def test_a_filter_finds_jobs_by_their_fields(api: Api) -> None:
    plain = (await api.submit({**SPEC, "name": "plain"}))["id"]
    tagged = (await api.submit({**SPEC, "name": "tagged", "tags": ["x"], "env": {"LR": "0.1"}}))["id"]
    await api.admin.post(f"/v1/jobs/{plain}/kill")
    for text, expected in (
        ("status=KILLED", [plain]),
        ("status=queued and created<1h", [tagged]),
        ("tag=x", [tagged]),
        ("env.LR=0.1 or name=plain", [tagged, plain]),
        ("not status=KILLED", [tagged]),
        ("user=nobody", []),
        ("created>1d", []),
        ("name~LAI", [plain]),
        ("", [tagged, plain]),
    ):
        assert [job["id"] for job in await listed(api, q=text)] == expected, text
    assert [job["id"] for job in await listed(api, order="oldest")] == [plain, tagged]
    assert [job["id"] for job in await listed(api, order="oldest", q="created<1d", limit=1)] == [plain, tagged]


async def test_a_filter_compares_metrics_of_running_jobs(api: Api, learner: Learner) -> None:
    await api.submit()
    await learner.write_points(0.9, 0.2, 0.4)
    for text, expected in (
        ("metric.loss<0.5", [learner.job]),
        ("metric.loss<0.3", []),
        ("metric.loss.min<0.3", [learner.job]),
        ("status=QUEUED and metric.loss<1", []),
        ("metric.none<1", []),
    ):
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
        "name": "loss",
        "count": 3,
        "last": 0.4,
        "min": 0.2,
        "max": 0.9,
        "best": 0.2,
    }
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
