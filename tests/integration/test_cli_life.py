"""Every command against the running platform, with text and JSON output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.local.commands import PLATFORM
from tests.testbed.answers import check_answer
from tests.testbed.cli import SPEC, TRAIN, Weft, variables
from tests.testbed.platform import Platform
from tests.waiting import HANG_S, eventually
from weft import Client
from weft._cli.answers import by_command
from weft._profile import Config, Profile, read_config, write_config
from weft._spec_file import read_spec

CHECKS = ("two learners", "walls", "gpu")
"""Of `weft conformance`: those that take longest."""


def every_command(form: str, platform: Platform, code: Path, folder: Path) -> list[tuple[str, list[str]]]:
    """(Form of a command in docs/command-output.md, what a user types), in an order in which each has an effect.

    ``JOB``, ``LONG`` and ``KEY`` stand for ids of answers before.
    """
    home, saved, ada = str(platform.home.root), str(folder / "saved.weft"), f"ada-{form}"
    train, here = ["train", str(code), "--name", f"forms-{form}"], ["--home", home]
    checks = [word for check in CHECKS for word in ("--skip", check)]
    key_file = folder / "access-key"
    key_file.write_text("AKIA-not-shown\n")
    typed = [
        ("init", ["init", str(folder / "new")]),
        ("train --dry-run", [*train, "--dry-run"]),
        ("train", train),
        ("logs", ["logs", "JOB", "-f"]),
        ("metrics -f", ["metrics", "-f", "JOB"]),
        ("events -f", ["events", "-f", "JOB"]),
        ("wait", ["wait", "JOB"]),
        ("list", ["list"]),
        ("show", ["show", "JOB"]),
        ("logs", ["logs", "JOB"]),
        ("events", ["events", "JOB"]),
        ("explain", ["explain", "JOB"]),
        ("metrics", ["metrics", "JOB"]),
        ("watch", ["watch", "JOB"]),
        ("download", ["download", "JOB", str(folder / "out")]),
        ("train", [*train, "--set", "env.SLEEP=60"]),
        ("halt", ["halt", "LONG"]),
        ("wait", ["wait", "LONG"]),
        ("usage", ["usage"]),
        ("resume", ["resume", "LONG"]),
        ("kill", ["kill", "LONG"]),
        ("wait", ["wait", "LONG"]),
        ("diff", ["diff", "JOB", "LONG"]),
        ("metrics JOB JOB", ["metrics", "JOB", "LONG"]),
        ("clone", ["clone", "LONG", "--set", "env.SLEEP=0"]),
        ("train --array", [*train, "--array", "SLEEP=0", "--repeat", "2", "--group", f"pair-{form}"]),
        ("delete", ["delete", "JOB", "LONG", "--yes"]),
        ("up", ["up", *here]),
        ("status", ["status", *here]),
        ("doctor", ["doctor", *here]),
        ("backup", ["backup", saved, *here]),
        ("backup --verify", ["backup", saved, "--verify", *here]),
        ("restore --dry-run", ["restore", saved, "--dry-run", *here]),
        ("restore", ["restore", saved, "--key", f"{saved}.key", "--home", str(folder / "restored")]),
        ("master-key", ["master-key", *here]),
        ("down", ["down", "--home", str(folder / "nothing-here")]),
        ("login", ["login", platform.url, "--name", "here"]),
        ("whoami", ["whoami"]),
        ("profile", ["profile"]),
        ("dashboard", ["dashboard", "--no-open"]),
        ("logout", ["logout", "here"]),
        ("user", ["user"]),
        ("user add", ["user", "add", ada]),
        ("user remove", ["user", "remove", ada, "--yes"]),
        ("key", ["key"]),
        ("key create", ["key", "create", "laptop"]),
        ("key revoke", ["key", "revoke", "KEY"]),
        ("secret set", ["secret", "set", "s3", f"access_key=@{key_file}"]),
        ("secret", ["secret"]),
        ("secret delete", ["secret", "delete", "s3", "--yes"]),
        ("cluster", ["cluster"]),
        ("queue", ["queue"]),
        ("version", ["version"]),
        ("completion", ["completion", "bash"]),
        ("frameworks", ["frameworks"]),
        ("sizes", ["sizes"]),
        ("storage", ["storage"]),
        ("manifests", ["manifests"]),
        ("conformance", ["conformance", *here, *checks]),
    ]
    missing = "a command is missing here, or in docs/command-output.md"
    assert {command for command, _ in typed} == set(by_command()), missing
    return typed


PARSERS: dict[str, Callable[[str], list[Any]]] = {
    "json": lambda text: [json.loads(text)],
    "json stream": lambda text: [json.loads(line) for line in text.splitlines()],
    "yaml": lambda text: [yaml.safe_load(text)],
    "yaml stream": lambda text: list(yaml.safe_load_all(text)),
}


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("weft_up", ["embedded"], indirect=True)
def test_every_command_prints_json_or_yaml_and_nothing_else(
    weft: Weft, client: Client, code: Path, tmp_path: Path, weft_up: Platform, form: str
) -> None:
    """Both forms have the fields that docs/command-output.md describes."""
    ids: dict[str, str] = {}
    for command, words in every_command(form, weft_up, code, tmp_path):
        output = weft(*(ids.get(word, word) for word in words), "-o", form)
        assert output.code in {0, 1, 103}, (words, output.out, output.err)
        assert output.out, (words, output.code, output.err)
        assert "AKIA-not-shown" not in output.out + output.err, words
        expected = by_command()[command]
        is_stream = isinstance(expected, str) and expected.startswith("stream of ")
        answers = PARSERS[f"{form} stream" if is_stream else form](output.out)
        assert answers, words
        for answer in answers:
            check_answer(command, answer)
        match command:
            case "train":
                ids["LONG" if "JOB" in ids else "JOB"] = answers[0]["id"]
                if "LONG" in ids:  # a job that is halted before it is admitted has held no hardware
                    eventually(lambda: client.jobs.get(ids["LONG"]).status == "PROCESSING")
            case "key create":
                ids["KEY"] = answers[0]["id"]
            case "metrics":
                assert {series["name"] for series in answers[0]["series"]} == {"loss"}
            case "download":
                assert [file["kind"] for file in answers[0]["files"]] == ["results", "results"]
            case "usage":
                assert sum(user["jobs"] for user in answers[0]["users"]) >= 2
            case "status":
                assert answers[0]["isolation"]["name"] in {"process", "sandbox", "trusted"}
            case "delete":
                assert answers[0] == {"jobs": [{"id": ids[name], "deleted": True} for name in ("JOB", "LONG")]}
            case _:
                pass


def test_streams_have_consecutive_numbers(weft: Weft, code: Path) -> None:
    job = weft("train", code, "-o", "name").out.strip()
    for words in (["logs", "-f"], ["metrics", "-f"], ["events", "-f"], ["logs"]):
        output = weft(*words, job, "-o", "json")
        assert output.code == 0
        sequence = [json.loads(line)["seq"] for line in output.out.splitlines()]
        numbers_have_gaps = words[0] == "metrics"  # points of the learner's use of the hardware lie between
        assert sequence == (sorted(set(sequence)) if numbers_have_gaps else list(range(1, len(sequence) + 1))), words
        assert sequence, words


def test_show_prints_a_job_as_text(weft: Weft, code: Path, tmp_path: Path) -> None:
    followed = weft("train", code, "--follow", "--name", "seen-by-a-person")
    assert followed.code == 0, followed.err
    assert "2 x 0.5 CPUs, 67 MB" in followed.out
    assert "[PROCESSING]" in followed.out
    assert "worker-1 | \\x1b[2Jhello from 1" in followed.out
    assert "seen-by-a-person COMPLETED" in followed.out
    assert "loss 0.05" in followed.out
    for words in (
        ["list"],
        ["show"],
        ["events"],
        ["explain"],
        ["metrics", "-m", "loss"],
        ["logs"],
        ["logs", "-f"],
        ["wait"],
    ):
        job = ["seen-by-a-person"] if words != ["list"] else []
        output = weft(*words, *job)
        assert output.code == 0, (words, output.err)
        assert output.out.strip()
        assert max(map(len, output.out.splitlines())) <= 80, words
        assert "\x1b" not in output.out
    events = weft("events", "seen-by-a-person").out
    for status in ("QUEUED", "PENDING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED"):
        assert status in events
    output = weft("download", "seen-by-a-person", tmp_path / "out", "--results", "--code", "--logs")
    assert output.code == 0
    assert (tmp_path / "out" / "results" / "worker-0" / "model.txt").read_text() == "weights"
    assert (tmp_path / "out" / "code" / "train.py").read_text() == TRAIN
    assert "hello from 1" in (tmp_path / "out" / "logs" / "worker-1" / "training-log.txt").read_text()


def test_logs_are_chosen_by_learner_text_and_tail(weft: Weft, code: Path) -> None:
    job = weft("train", code, "-o", "name").out.strip()
    assert weft("wait", job).code == 0
    assert weft("logs", job, "--rank", "1").out == "worker-1 | \\x1b[2Jhello from 1\n"
    assert weft("logs", job, "--search", "from [0]").out == "worker-0 | \\x1b[2Jhello from 0\n"
    assert len(weft("logs", job, "--tail", "1").out.splitlines()) == 1
    assert weft("logs", job, "--stream", "stderr").out == ""
    assert len(weft("logs", job, "--since", "1h").out.splitlines()) == 2
    assert weft("logs", job, "--until", "1h").out == ""


@pytest.mark.parametrize(
    ("command", "end"),
    [(["--set", "env.CODE='3'"], 100), (["--set", "command=exec sleep 60", "--set", "learners=1"], 103)],
)
def test_the_exit_code_of_following_is_the_end_of_the_job(
    weft: Weft, code: Path, client: Client, command: list[str], end: int
) -> None:
    job = weft("train", code, *command, "-o", "name").out.strip()
    if end == 103:
        client.jobs.kill(job)
    assert weft("wait", job).code == end
    assert weft("logs", job, "-f").code == end
    assert weft("events", job, "-f").code == end
    assert weft("metrics", job, "-f").code == end


def test_wait_with_a_short_timeout_exits_with_not_finished(weft: Weft, code: Path) -> None:
    job = weft("train", code, "--set", "env.SLEEP=60", "-o", "name").out.strip()
    assert weft("wait", job, "--timeout", "0.1").code == 101
    killed = weft("kill", job, "j" + "0" * 22, "--yes")
    assert (killed.code, killed.out.count(job)) == (4, 1)
    assert weft("wait", job).code == 103


def test_one_key_makes_one_job(weft: Weft, code: Path) -> None:
    words = ("train", code, "--idempotency-key", "once", "--name", "once", "-o", "name")
    first, again = weft(*words), weft(*words)
    assert first.out == again.out
    other = weft("train", code, "--idempotency-key", "once", "--name", "twice")
    assert other.code == 5
    weft("wait", "once")


def test_wrong_spec_errors_name_the_line_and_the_reason(weft: Weft, code: Path) -> None:
    (code / "weft.yaml").write_text(SPEC + "framwork: jax\nmax_runtime: soon\n")
    output = weft("train", code)
    assert (output.code, output.out) == (2, "")
    assert "weft.yaml:7: framwork: there is no field 'framwork' (did you mean 'framework'?)" in output.err
    assert "weft.yaml:8: max_runtime: write a duration" in output.err


def test_an_error_names_the_field_as_the_spec_writes_it_and_the_option_that_set_it(weft: Weft, code: Path) -> None:
    """`weft clone --set` said `/resources/memory`, and `weft train --set` blamed a line of the file that was right."""
    wrong = "resources.memory=2GBB"
    message = "write a size such as 512MiB or 16GB"
    assert weft("train", code, "--dry-run", "--set", wrong).err == f"weft: --set {wrong}: {message}\n"
    job = weft("train", code, "-o", "name").out.strip()
    assert weft("clone", job, "--set", wrong).err == f"weft: resources.memory: {message}\n"


def test_unknown_job_exits_with_not_found(weft: Weft) -> None:
    for words in (["show", "nobody"], ["logs", "j" + "0" * 22], ["download", "@last-one"]):
        output = weft(*words)
        assert output.code in {2, 4}
        assert output.out == ""
        assert output.err.startswith("weft: ")


def test_a_yaml_answer_is_yaml(weft: Weft) -> None:
    assert yaml.safe_load(weft("whoami", "-o", "yaml").out)["user"] == "admin"


def test_a_wrong_key_is_refused_before_it_is_stored(weft: Weft, weft_up: Platform, tmp_path: Path) -> None:
    output = weft("login", weft_up.url, "--key", "weft_k000_wrong")
    assert output.code == 3
    assert not (tmp_path / "config" / "weft" / "config.json").exists()


def test_signing_in_to_a_second_platform_of_a_host_keeps_the_profile_of_the_first(
    weft: Weft, weft_up: Platform, tmp_path: Path
) -> None:
    """Both had the profile `127.0.0.1`: the key of the first was lost."""
    first = Profile("127.0.0.1", "http://127.0.0.1:9", "the-only-copy")
    write_config(Config("127.0.0.1", {"127.0.0.1": first}))
    assert weft("login", weft_up.url, "-o", "name").out == "127.0.0.1-2\n"
    assert weft("login", weft_up.url, "-o", "name").out == "127.0.0.1-2\n"
    config = read_config()
    assert (config.current, config.profiles["127.0.0.1"].key) == ("127.0.0.1-2", "the-only-copy")


def test_a_dry_run_works_without_a_platform(weft: Weft, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_URL", "http://127.0.0.1:9")
    output = weft("train", code, "--dry-run", "-o", "json")
    assert (output.code, output.json["spec"]["name"]) == (0, "cli-life")
    (code / "weft.yaml").write_text(SPEC.replace("grace: 2s", "grace: never"))
    output = weft("train", code, "--dry-run")
    assert output.code == 2
    assert "weft.yaml:6: grace: write a duration" in output.err
    assert weft("train", code).code == 1


@pytest.mark.parametrize("weft_up", ["embedded"], indirect=True)
def test_conformance_of_one_machine_tries_whether_a_learner_reaches_the_stores(weft: Weft, weft_up: Platform) -> None:
    """It failed with "unix:... is no address of the form host:port"."""
    others = ("versions", "job store", "object store", "broker", "rights", "policies", "gang", "two learners", "gpu")
    skipped = [word for check in others for word in ("--skip", check)]
    tried = weft("conformance", "--home", weft_up.home.root, *skipped, "-o", "json").json
    checks = {check["check"]: check for check in tried["checks"]}
    isolated = PLATFORM.status(str(weft_up.home.root))["isolation"]["name"] != "trusted"
    assert checks["walls"]["verdict"] == ("pass" if isolated else "fail")
    assert "etcd" in checks["walls"]["detail"]
    assert checks["clocks"]["verdict"] == "pass"


def test_question_before_a_kill_counts_the_jobs_that_are_known_and_names_the_others(weft: Weft, code: Path) -> None:
    (code / "weft.yaml").write_text(SPEC + "env: {SLEEP: '600'}\n")
    job = weft("train", code, "-o", "name").out.strip()
    refused = weft("kill", job, "mistyped")
    assert "to kill 1 job, and store nothing more of it" in refused.err
    assert "left out: there is no job 'mistyped'" in refused.err
    assert weft("delete", "--kill", job, "--yes").code == 0


def test_down_purge_of_a_mistyped_folder_does_not_say_that_it_was_removed(weft: Weft, tmp_path: Path) -> None:
    gone = weft("down", "--home", tmp_path / "mistyped", "--purge", "--yes")
    assert (gone.code, gone.out) == (0, f"nothing was running; there is no such folder ({tmp_path / 'mistyped'})\n")


def test_up_with_a_home_that_cannot_be_written_shows_the_address_and_the_key(
    weft: Weft, weft_up: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With HOME=/ the platform ran, and the only output was "/.config: Permission denied"."""
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/proc/self")
    shown = weft("up", "--home", weft_up.home.root)
    assert (shown.code, weft_up.url in shown.out) == (0, True)
    assert "key " in shown.out
    assert "no profile was written: /proc/self/.config/weft/config.json: No such file" in shown.err
    assert weft("down", "--home", "/nowhere", "--purge", "--yes").code == 0


def test_restore_over_a_running_platform_names_the_folder_in_the_command_that_stops_it(
    weft: Weft, weft_up: Platform, tmp_path: Path
) -> None:
    """`weft down` alone would have stopped the user's other platform."""
    home = weft_up.home.root
    assert weft("backup", tmp_path / "saved", "--home", home).code == 0
    refused = weft("restore", tmp_path / "saved", "--home", home)
    assert (refused.code, f"`weft down --home {home}`" in refused.err) == (5, True)


def test_a_job_that_printed_and_reported_nothing_says_so(weft: Weft, tmp_path: Path) -> None:
    """`weft logs` printed nothing at all, and `weft metrics` "nothing reported yet" for ever."""
    quiet = "name: quiet\ncommand: '{}'\nresources: {{cpus: 0.5, memory: 64MiB}}\n"
    for command, code, logs in (
        ("true", 0, "it is COMPLETED and has printed nothing\n"),
        ("exit 3", 100, "`weft explain "),
    ):
        (tmp_path / "weft.yaml").write_text(quiet.format(command))
        job = weft("train", tmp_path, "-o", "name").out.strip()
        assert weft("wait", job).code == code
        assert logs in weft("logs", job).err
        assert weft("logs", job, "--search", "x").err == "no line matches\n"
        assert weft("logs", job, "-o", "json").err == ""
        assert weft("metrics", job).err.startswith("nothing was reported; ")


def test_a_list_by_a_mistyped_metric_says_that_no_job_has_reported_it(weft: Weft, code: Path) -> None:
    job = weft("train", code, "-o", "name").out.strip()
    assert weft("wait", job).code == 0
    mistyped = weft("list", "--sort", "lss")
    assert (mistyped.code, "no job of this list has reported 'lss'" in mistyped.err) == (0, True)
    assert "has reported" not in weft("list", "--sort", "loss").err


def test_deletion_of_a_running_job_names_the_command_that_ends_it_first(weft: Weft, code: Path) -> None:
    (code / "weft.yaml").write_text(SPEC + "env: {SLEEP: '600'}\n")
    job = weft("train", code, "-o", "name").out.strip()
    assert f"`weft delete --kill {job}`" in weft("delete", job).err
    assert weft("delete", "--kill", job, "--yes").code == 0


def test_killing_a_job_that_has_ended_is_no_error(weft: Weft, code: Path) -> None:
    job = weft("train", code, "-o", "name").out.strip()
    assert weft("wait", job).code == 0
    killed = weft("kill", job)
    assert (killed.code, killed.out.strip()) == (0, f"{job}: has ended already (COMPLETED)")
    assert "COMPLETED" in weft("halt", job).err


@pytest.mark.parametrize("name", ["2026", "true", "1e3", "a.b-C_1"])
def test_init_writes_a_spec_with_the_name_that_was_given(weft: Weft, tmp_path: Path, name: str) -> None:
    assert weft("init", tmp_path / "new", "--name", name).code == 0
    plan = weft("train", tmp_path / "new", "--dry-run", "-o", "json")
    assert plan.code == 0, plan.err
    assert read_spec(tmp_path / "new" / "weft.yaml").document["name"] == name


def test_jobs_of_an_array_of_the_example_of_init_train_differently(weft: Weft, tmp_path: Path) -> None:
    assert weft("init", tmp_path / "new").code == 0

    def train(**variables: str) -> str:
        done = subprocess.run(
            [sys.executable, tmp_path / "new" / "train.py"],
            env={
                **os.environ,
                "RESULT_DIR": str(tmp_path),
                "CHECKPOINT_DIR": str(tmp_path / str(variables)),
                **variables,
            },
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert train() == train(lr="0.1", SEED="0")
    assert len({train(), train(lr="0.01"), train(SEED="1")}) == 3


def test_init_refuses_a_name_that_no_job_can_have(weft: Weft, tmp_path: Path) -> None:
    refused = weft("init", tmp_path / "new", "--name", "my job!")
    assert (refused.code != 0, "nothing was written" in refused.err, (tmp_path / "new").exists()) == (True, True, False)


def test_unknown_metric_and_job_without_metrics_have_different_errors(weft: Weft, code: Path) -> None:
    job = weft("train", code, "-o", "name").out.strip()
    assert weft("wait", job).code == 0
    assert f"nothing reported under acuracy; `weft metrics {job}` lists" in weft("metrics", job, "-m", "acuracy").err


def test_watch_takes_up_the_live_view_and_metrics_of_several_jobs_are_compared(weft: Weft, code: Path) -> None:
    first, second = (weft("train", code, "--name", name, "-o", "name").out.strip() for name in ("first", "second"))
    watched = weft("watch", first)
    assert (watched.code, "first COMPLETED" in watched.out, "loss 0.05" in watched.out) == (0, True, True)
    assert weft("wait", second).code == 0
    assert weft("watch", second, "-o", "json").json["id"] == second
    compared = weft("metrics", first, second)
    assert [line.split()[:2] for line in compared.out.splitlines()[1:]] == [
        [name, "loss"] for name in ("first", "first", "second", "second")
    ]
    document = weft("metrics", first, second, "-o", "json").json
    check_answer("metrics JOB JOB", document)
    assert [job["name"] for job in document["jobs"]] == ["first", "second"]
    lines = weft("metrics", first, second, "--rank", "0", "-o", "csv").out.splitlines()
    assert lines[0] == "job,metric,context,role,rank,attempt,step,time,value"
    assert len(lines) == 41
    job, metric, _, role, rank, attempt, step, time, value = lines[20].split(",")
    assert (job, metric, role, rank, attempt, step, time[-1], value) == (
        first,
        "loss",
        "worker",
        "0",
        "1",
        "20",
        "Z",
        "0.05",
    )


@pytest.mark.parametrize("what", ["logs", "metrics", "events"])
def test_ctrl_c_ends_following_but_not_the_job(weft: Weft, weft_up: Platform, code: Path, what: str) -> None:
    (code / "weft.yaml").write_text(SPEC + "env: {SLEEP: '600'}\n")
    job = weft("train", code, "-o", "name").out.strip()
    # A shell's background commands ignore Ctrl-C, and so do their children: this one is in the foreground.
    hears = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    follower = subprocess.Popen(
        [sys.executable, "-c", hears + "from weft._cli import program; program()", what, "-f", job],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **variables(weft_up)},
    )
    assert follower.stdout is not None
    try:
        assert any("PROCESSING" in line or "hello" in line or "loss" in line for line in follower.stdout)
        follower.send_signal(signal.SIGINT)
        _, output = follower.communicate(timeout=HANG_S)
        assert follower.returncode == 130
        assert f"the job keeps running. `weft {what} -f {job}` follows it again" in " ".join(output.split())
        assert weft("show", job, "-o", "json").json["status"] in {"PENDING", "DOWNLOADING", "PROCESSING"}
    finally:
        follower.kill()
        follower.communicate()
        assert weft("kill", job).code == 0
