"""Commands about jobs, as a user types them; the jobs run nowhere: there is an api and no more."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from tests.testbed.answers import check_answer, check_type
from tests.testbed.api import SPEC, Api, running_api
from tests.testbed.terminal import Terminal
from weft import AsyncClient, InvalidSpec


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    with capture_logs():  # the log of the api, and no part of an answer
        async with running_api(tmp_path) as api:
            yield api


@pytest.fixture
def weft(api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(api, monkeypatch, capsys)


async def test_last_is_never_the_job_before_the_one_that_was_deleted(api: Api, weft: Terminal) -> None:
    before, last = await api.submit(), await api.submit({**SPEC, "name": "the-last"})
    assert (await weft("show", "@last", "-o", "name")).out.strip() == last["id"]
    assert (await weft("delete", "@last", "--kill", "--yes")).code == 0
    for command in ("show", "kill", "delete"):
        refused = await weft(command, "@last")
        assert (refused.code, refused.out) == (4, "")
        assert f"@last is the-last ({last['id']}), and it was deleted" in refused.err
    assert (await weft("list", "-o", "name")).out.split() == [before["id"]]
    await api.submit({**SPEC, "name": "after-that"})
    assert "after-that" in (await weft("show", "@last")).out


async def test_list_of_deleted_jobs_shows_when_they_were_deleted(api: Api) -> None:
    kept, deleted = await api.submit(), await api.submit()
    assert (await api.admin.delete(f"/v1/jobs/{deleted['id']}?kill=true")).status_code == 204
    assert [job["id"] for job in (await api.admin.get("/v1/jobs")).json()["jobs"]] == [kept["id"]]
    listed = (await api.admin.get("/v1/jobs?deleted=true")).json()["jobs"]
    assert [(job["id"], "deleted" in job) for job in listed] == [(deleted["id"], True), (kept["id"], False)]


async def test_a_list_that_ends_early_says_so_and_goes_on_at_next(api: Api, weft: Terminal) -> None:
    ids = [(await api.submit())["id"] for _ in range(25)][::-1]
    listed = await weft("list")
    assert "these are the newest 20; --all shows all" in listed.err
    assert len(listed.out.splitlines()) == 21
    first = await weft("list", "-o", "json")
    assert ([job["id"] for job in first.json["jobs"]], first.json["next"]) == (ids[:20], ids[19])
    assert json.loads(first.err) == {"note": "these are the newest 20; --all shows all, -n N more of them"}
    rest = await weft("list", "-o", "json", "--after", first.json["next"])
    assert ([job["id"] for job in rest.json["jobs"]], rest.json["next"], rest.err) == (ids[20:], None, "")
    for words in (["-o", "name"], ["-n", "25", "-o", "name"], ["--all", "-o", "name"]):
        whole = await weft("list", *words)
        assert (whole.out.split(), whole.err) == (ids, "")
    assert (await weft("list", "-o", "name", "-n", "3")).out.split() == ids[:3]


async def test_errors_are_json_for_programs(api: Api, weft: Terminal) -> None:
    unknown = await weft("show", "nobody", "-o", "json")
    error = json.loads(unknown.err)
    check_type("Error", error["error"])
    assert (unknown.code, unknown.out, error["error"]["code"], error["error"]["exit_code"]) == (4, "", "not-found", 4)
    usage = await weft("show", "--nonsense", "--output=json")
    assert (usage.code, json.loads(usage.err)["error"]["code"]) == (2, "usage")
    several = await weft("kill", "a", "b", "--yes", "--json")
    assert [json.loads(line)["error"]["code"] for line in several.err.splitlines()] == ["not-found"] * 2
    as_yaml = await weft("show", "nobody", "-o", "yaml")
    assert yaml.safe_load(as_yaml.err)["error"]["code"] == "not-found"


async def test_events_have_the_same_json_as_the_api(api: Api, weft: Terminal) -> None:
    job = await api.submit()
    events = (await weft("events", job["id"], "-o", "json")).json
    assert events == (await api.admin.get(f"/v1/jobs/{job['id']}/history")).json()
    assert (events["events"][0]["from"], events["events"][0]["to"], events["events"][0]["time"][-1]) == (
        None,
        "QUEUED",
        "Z",
    )


async def test_an_admin_adds_a_user_lists_keys_and_removes_the_user(api: Api, weft: Terminal) -> None:
    added = (await weft("user", "add", "ada", "--tenant", "acme", "-o", "json")).json
    check_answer("user add", added)
    async with api.client(added["key"]) as ada:
        assert (await ada.get("/v1/whoami")).json()["user"] == "ada"
    made = (await weft("key", "create", "laptop", "--user", "ada", "--tenant", "acme", "-o", "json")).json
    listed = (await weft("user", "-o", "json")).json
    check_answer("user", listed)
    shown = [(user["user"], user["tenant"], user["scope"], user["keys"]) for user in listed["users"]]
    assert shown == [("ada", "acme", "user", 2), ("admin", "default", "admin", 1)]
    assert {added["id"], made["id"]} <= set((await weft("key", "-o", "name")).out.split())
    revoked = (await weft("key", "revoke", made["id"], "-o", "json")).json
    check_answer("key revoke", revoked)
    refused = await weft("user", "remove", "ada", "--tenant", "acme")
    assert (refused.code, "give --yes" in refused.err) == (2, True)
    removed = (await weft("user", "remove", "ada", "--tenant", "acme", "--yes", "-o", "json")).json
    check_answer("user remove", removed)
    assert removed["revoked"] == [added["id"]]
    assert (await weft("user", "remove", "ada", "--tenant", "acme", "--yes")).code == 4


async def test_queue_lists_the_jobs_that_wait(api: Api, weft: Terminal) -> None:
    job = await api.submit()
    waiting = (await weft("queue", "-o", "json")).json
    check_answer("queue", waiting)
    assert [entry["id"] for entry in waiting["waiting"]] == [job["id"]]
    assert job["id"] in (await weft("queue")).out


async def test_sdk_error_names_every_wrong_field_and_the_nearest_one(api: Api) -> None:
    async with AsyncClient(api.url, api.admin_key) as client:
        with pytest.raises(InvalidSpec) as refused:
            await client.jobs.submit({"nmae": "x", "name": "x", "command": "true", "framwork": "jax"})
    text = str(refused.value)
    assert "framwork: there is no field 'framwork' (did you mean 'framework'?)" in text
    assert "nmae: there is no field 'nmae' (did you mean 'name'?)" in text


async def test_memory_limits_that_are_not_enforced_are_named_in_plan_show_and_cluster(
    api: Api, weft: Terminal, tmp_path: Path
) -> None:
    report = {"isolation": "trusted", "why": "no control groups", "enforced": ["cpu"]}
    (api.settings.home / "run" / "node-isolation.json").write_text(json.dumps(report))
    warning = "this machine does not enforce memory limits"
    plan = (await api.admin.post("/v1/jobs?dry_run=true", json=SPEC)).json()
    job = await api.submit()
    assert [text.startswith(warning) for text in (*plan["warnings"], *job["warnings"])] == [True, True]
    assert "no control groups" in job["warnings"][0]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "weft.yaml").write_text("name: mine\ncommand: python3 train.py\n")
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "run.sh").write_text("exec python3 train.py\n")
    (folder / "run.sh").chmod(0o755)
    (folder / ".env").write_text("PASSWORD=secret\n")
    (folder / "id_rsa").write_text("secret")
    return folder


async def test_without_code_the_folder_of_the_spec_is_sent_and_the_plan_says_so(weft: Terminal, project: Path) -> None:
    plan = await weft("train", project, "--dry-run")
    assert "upload    3 files" in plan.out
    assert "because the command names train.py" in plan.out
    assert "left out  .env, id_rsa" in plan.out
    (project / "weft.yaml").write_text("name: mine\ncommand: python3 train.py\ncode: null\n")
    assert "upload" not in (await weft("train", project, "--dry-run")).out
    (project / "weft.yaml").write_text("name: mine\ncommand: python3 other.py\n")
    assert "upload" not in (await weft("train", project, "--dry-run")).out


async def test_downloaded_code_is_unpacked_and_replaces_no_local_file(weft: Terminal, project: Path) -> None:
    job = (await weft("train", project, "-o", "name")).out.strip()
    out = project / "again"
    assert (await weft("download", job, out, "--code")).code == 0
    assert sorted(path.name for path in out.iterdir()) == [".weft-download", "run.sh", "train.py", "weft.yaml"]
    assert ((out / "run.sh").stat().st_mode & 0o100, (out / "train.py").stat().st_mode & 0o100) == (0o100, 0)
    assert "left out  .env, again/run.sh" in (await weft("train", project, "--dry-run")).out
    assert (await weft("download", job, out, "--code")).code == 0, "its own files may be replaced"
    (out / "train.py").write_text("print('changed by me')\n")
    refused = await weft("download", job, out, "--code")
    assert (refused.code, "train.py is there already" in refused.err, "--force" in refused.err) == (5, True, True)
    assert "changed by me" in (out / "train.py").read_text()
    assert (await weft("download", job, out, "--code", "--force")).code == 0
    assert "hello" in (out / "train.py").read_text()
    assert (await weft("download", job, out, "--code", "--zip", "-o", "name")).out.strip() == str(out / "code.zip")


async def test_code_of_a_job_is_downloaded_edited_and_submitted_again(weft: Terminal, project: Path) -> None:
    """`weft train` said that the folder "holds no file to upload"."""
    job = (await weft("train", project, "-o", "name")).out.strip()
    out = project.parent / "again"
    assert (await weft("download", job, out, "--code")).code == 0
    assert "code      3 files, 74 B; the platform has it already" in (await weft("train", out, "--dry-run")).out
    (out / "train.py").write_text("print('changed by me')\n")
    again = (await weft("train", out, "-o", "name")).out.strip()
    difference = (await weft("diff", job, again)).out
    assert "~ train.py" in difference
    assert "run.sh" not in difference


async def test_an_array_is_a_group_that_is_listed_waited_for_killed_and_deleted_as_one(
    api: Api, weft: Terminal, project: Path
) -> None:
    other = await api.submit()
    words = ("train", project, "--array", "lr=0.1,0.01", "--array", "resources.cpus=1,2", "--repeat", 2)
    made = await weft(*words, "--idempotency-key", "night", "-o", "json")
    check_answer("train --array", made.json)
    group, jobs = made.json["group"], made.json["jobs"]
    shown = [(job["spec"]["env"], job["resources"]["cpus"]) for job in jobs]
    assert shown == [({"lr": lr, "SEED": seed}, cpus) for lr in ("0.1", "0.01") for cpus in (1, 2) for seed in "01"]
    assert [job["name"] for job in jobs] == [f"mine-{number}" for number in range(1, 9)]
    again = await weft(*words, "--idempotency-key", "night", "-o", "name")
    assert again.out.split() == [job["id"] for job in jobs], "the same key makes the same jobs"
    listed = (await weft("list", "--group", group, "-o", "name")).out.split()
    assert sorted(listed) == sorted(job["id"] for job in jobs)
    assert (await weft("wait", "--group", group, "--timeout", "0")).code == 101
    assert (await weft("kill", "--group", group, "--yes")).code == 0
    assert (await weft("wait", "--group", group)).code == 103
    assert (await weft("delete", "-l", f"group={group}", "--yes")).code == 0
    assert (await weft("list", "-o", "name")).out.split() == [other["id"]]
    gone = await weft("kill", "--group", group, "--yes")
    assert (gone.code, f"no job has the tag 'group={group}'" in gone.err) == (4, True)
    assert "name jobs, or give --group NAME or -l TAG" in (await weft("kill")).err


@pytest.mark.parametrize("array", ["lr", "lr=", "1r=2", "=3"])
async def test_an_array_that_is_no_list_of_values_is_a_usage_error(weft: Terminal, project: Path, array: str) -> None:
    refused = await weft("train", project, "--array", array)
    assert (refused.code, "write it as NAME=VALUE,VALUE" in refused.err) == (2, True)
