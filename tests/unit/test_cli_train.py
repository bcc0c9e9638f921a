"""`weft train` and `weft clone`: which code is sent, all jobs of a group, and what a lost answer leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.scripted_http import Answer, Request, json_answer, scripted
from weft._cli.main import run

SPEC = "name: mine\ncommand: python train.py\nresources: {memory: 1GB}\n"


class Api:
    """Accepts jobs. ``at_submit`` is called with the number of each, from 0, and may answer in its place."""

    def __init__(self, at_submit: Callable[[int], Answer | None] = lambda _number: None) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        """By idempotency key."""
        self.plans = 0
        self._at_submit = at_submit

    def __call__(self, request: Request, _n: int) -> Answer:
        spec = json.loads(request.body)
        if "dry_run" in request.path:
            self.plans += 1
            if spec.get("resources", {}).get("memory") == "2GBB":
                wrong = [{"pointer": "/resources/memory", "message": "2GBB is no size"}]
                return json_answer({"code": "invalid-spec", "detail": "1 wrong", "errors": wrong}, 400)
            return json_answer({"dry_run": True, "spec": spec, "fits": "now", "warnings": []})
        if (refused := self._at_submit(len(self.jobs))) is not None:
            return refused
        job = {"id": f"j{len(self.jobs)}", "name": spec["name"], "status": "QUEUED", "spec": spec}
        return json_answer(self.jobs.setdefault(request.headers["idempotency-key"], job), 201)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "weft.yaml").write_text(SPEC)
    monkeypatch.setenv("WEFT_KEY", "weft_k_s")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "1000")
    return tmp_path / "weft.yaml"


@pytest.fixture
def train(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def command(api: Api, *words: str) -> int:
        with scripted(api) as server:
            monkeypatch.setenv("WEFT_URL", server.url)
            return run(["train", "-f", str(folder), *words])

    return command


Train = Callable[..., int]


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_an_array_with_a_value_that_is_refused_submits_no_job(
    train: Train, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    api = Api()
    code = train(api, "--array", "resources.memory=1GB,2GBB", "--repeat", "3", *words)
    assert (code, api.jobs) == (2, {})
    err = capsys.readouterr().err
    assert "no job of the group was submitted: the platform refuses the job with resources.memory=2GBB SEED=0" in err
    assert "2GBB is no size" in err


def test_an_array_is_planned_once_for_all_repetitions(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    api = Api()
    assert train(api, "--array", "lr=0.1,0.01", "--repeat", "3") == 0
    assert (len(api.jobs), api.plans) == (6, 1 + 2)
    out = capsys.readouterr().out
    assert "submitted j5  mine-6  lr=0.01 SEED=2" in out
    assert "6 jobs of the group mine-" in out


def test_an_array_that_removes_a_field_is_submitted_and_shown(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    api = Api()
    assert train(api, "--array", "resources.memory=null,2GB") == 0
    assert [job["spec"]["resources"] for job in api.jobs.values()] == [{}, {"memory": "2GB"}]
    assert "submitted j0  mine-1  resources.memory=null\n" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["table", "json", "name"])
def test_an_array_that_stops_half_way_names_its_jobs_and_is_continued(
    train: Train, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    full = json_answer({"code": "no-space", "detail": "there is no space"}, 507)
    api = Api(lambda number: full if number == 2 else None)
    words = ("--array", "lr=1,2,3,4", "-o", form)
    refused = train(api, *words)
    shown = capsys.readouterr()
    assert refused not in {0, 130}
    assert "there is no space" in shown.err
    [group] = {tag for job in api.jobs.values() for tag in job["spec"]["tags"]}
    assert f"stopped after 2 of 4 jobs of the group {group.removeprefix('group=')}. " in shown.err
    match form:
        case "table":
            assert "submitted j0  mine-1  lr=1\nsubmitted j1  mine-2  lr=2\n" in shown.out
        case "json":
            assert [job["id"] for job in json.loads(shown.out)["jobs"]] == ["j0", "j1"]
        case _:
            assert shown.out == "j0\nj1\n"
    key = shown.err.partition("--idempotency-key ")[2].split()[0]
    api._at_submit = lambda _number: None
    assert train(api, *words, "--idempotency-key", key) == 0
    assert [job["spec"]["env"]["lr"] for job in api.jobs.values()] == ["1", "2", "3", "4"]
    assert {tag for job in api.jobs.values() for tag in job["spec"]["tags"]} == {group}


def test_an_array_that_is_interrupted_names_its_jobs(
    train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from weft._jobs import Jobs  # noqa: PLC0415

    submit, count = Jobs.submit_document, 0

    def interrupted(*arguments: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return submit(*arguments, **more)

    monkeypatch.setattr(Jobs, "submit_document", interrupted)
    api = Api()
    assert train(api, "--array", "lr=1,2,3", "--group", "sweep") == 130
    shown = capsys.readouterr()
    assert "submitted j1  mine-2  lr=2\n" in shown.out
    assert "stopped after 2 of 3 jobs of the group sweep. `weft list --group sweep` shows" in shown.err
    assert "`weft kill --group sweep` ends them" in shown.err


@pytest.mark.parametrize("words", [("--follow",), ("--wait-placed", "5")])
def test_following_a_group_is_refused_with_the_command_that_waits_for_it(
    train: Train, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """It was ignored: the jobs were submitted, and the command ended."""
    api = Api()
    assert train(api, "--array", "lr=1,2", *words) == 2
    assert api.jobs == {}
    assert f"{words[0]} is for one job; `weft wait --group NAME` waits for all jobs" in capsys.readouterr().err


UNAVAILABLE = [
    Answer(200, b"x" * 50, cut_after=10),
    json_answer({"code": "unavailable", "detail": "a store is away"}, 503),
    Answer(502, b"<html>"),
    Answer(504, b"<html>"),
]
REPEAT = "the job may have been submitted. The same command with "


@pytest.mark.parametrize("answer", UNAVAILABLE, ids=["cut", "503", "502", "504"])
def test_a_submit_without_an_answer_says_how_it_is_repeated(
    train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    monkeypatch.setattr("weft._http.RETRY_FOR_S", 0.0)
    api = Api(lambda _number: answer)
    assert train(api, "--no-follow") == 1
    assert f"{REPEAT}--idempotency-key " in capsys.readouterr().err


def test_a_submit_that_is_refused_is_not_said_to_be_submitted(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    api = Api(lambda _number: json_answer({"code": "no-space", "detail": "there is no space"}, 507))
    assert train(api, "--no-follow") == 1
    shown = capsys.readouterr().err
    assert "there is no space" in shown
    assert REPEAT not in shown


@pytest.mark.parametrize("answer", UNAVAILABLE, ids=["cut", "503", "502", "504"])
def test_a_clone_without_an_answer_says_how_it_is_repeated(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    """The copy has the name of the job, so the command that repeats it gives the id."""
    monkeypatch.setattr("weft._http.RETRY_FOR_S", 0.0)
    clones: list[tuple[str, str]] = []

    def api(request: Request, _n: int) -> Answer:
        if request.method == "GET":
            return json_answer({"jobs": [{"id": "j1", "name": "mine", "status": "COMPLETED"}], "next": None})
        clones.append((request.path, request.headers["idempotency-key"]))
        return answer if len(clones) == 1 else json_answer({"id": "j2", "name": "mine", "status": "QUEUED"}, 201)

    with scripted(api) as server:
        monkeypatch.setenv("WEFT_URL", server.url)
        assert run(["clone", "mine", "--no-follow"]) == 1
        shown = capsys.readouterr().err
        assert f"{REPEAT}the id j1 and --idempotency-key {clones[0][1]} submits it" in shown
        assert run(["clone", "mine", "--no-follow", "--idempotency-key", clones[0][1]]) == 0
    assert clones == [clones[0]] * 2


def test_the_folder_beside_a_spec_file_is_the_code_that_is_sent(
    train: Train, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of the spec was sent, and the folder of the command line ignored."""
    (folder.parent / "train.py").write_text("wrong")
    code = folder.parent / "mine"
    code.mkdir()
    (code / "train.py").write_text("right")
    (code / "only-here.py").write_text("")
    assert train(Api(), str(code), "--dry-run") == 0
    out = capsys.readouterr().out
    assert "2 files" in out
    assert "only-here.py" in out
    assert "(the spec's folder" not in out


def test_a_mistyped_folder_beside_a_spec_file_is_refused(
    train: Train, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder.parent / "train.py").write_text("")
    api = Api()
    assert train(api, str(folder.parent / "mnie")) == 4
    assert (api.jobs, api.plans) == ({}, 0)
    assert f"there is no folder or zip {folder.parent / 'mnie'}" in capsys.readouterr().err
