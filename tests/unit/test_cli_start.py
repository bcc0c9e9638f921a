"""The command line before any command runs: start time, help, and errors for mistyped commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests.testbed.scripted_http import Answer, Request, json_answer, scripted
from tests.waiting import HANG_S
from weft._cli.main import ALIASES, COMMANDS, run, weft
from weft._version import SDK_VERSION

ROOT = Path(__file__).parents[2]
HEAVY = {"httpx2", "pydantic", "rich", "yaml", "pathspec", "services", "asyncio", "importlib.metadata"}
NAMES = [name for section in COMMANDS.values() for name in section]


def command(name: str) -> click.Command:
    loaded = weft.get_command(click.Context(weft), name)
    assert loaded is not None
    return loaded


def loaded_after(*arguments: str) -> set[str]:
    """Modules that one run of `weft` has imported, in an interpreter of its own."""
    code = (
        "import json, sys; from weft._cli.main import run; run(sys.argv[1:]); "
        "print('\\n' + json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [("--help",), ("trian",), ()])
def test_help_and_typing_errors_load_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert not loaded_after(*arguments) & HEAVY


def test_help_imports_few_modules_of_our_own() -> None:
    ours = {name for name in loaded_after("--help") if name.startswith("weft")}
    assert ours <= {"weft", "weft._cli", "weft._cli.main", "weft._cli.call"}


def test_a_list_of_jobs_is_printed_without_libraries_that_take_long_to_import() -> None:
    code = (
        "import sys; import weft._client, weft._cli.commands.jobs; from weft._cli.job_table import job_table; "
        "job = {'id': 'j1', 'name': 'n', 'status': 'QUEUED', 'created': '2026-11-22T00:00:00.000Z'}; "
        "assert 'QUEUED' in job_table([job], (), False); "
        "print(sorted(set(sys.modules) & {'rich', 'yaml', 'asyncio', 'anyio', 'pathspec', 'pydantic'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


LIBRARIES = {
    "pydantic",
    "pydantic_settings",
    "pydantic_core",
    "rich",
    "yaml",
    "pathspec",
    "structlog",
    "grpc",
    "kubernetes",
}
"""Libraries that take long to import. Commands that only show something need none of them."""
SLOW_MODULES = {
    "asyncio",
    "concurrent.futures",
    "difflib",
    "email",
    "hashlib",
    "http.client",
    "httpcore2",
    "httpx2",
    "importlib.metadata",
    "anyio",
    "ssl",
    "subprocess",
    "tempfile",
    "urllib.request",
}
"""Modules that together take longer to import than these commands may take."""
NOT_FOR_SHOWING = {"services", "encodings.idna", "shutil", "traceback", "unicodedata", "weft._records"}
"""Of a tenth of the time of `weft list`, which needs none of them."""


JOB = {
    "id": "j01m7z92xb6n2cp2729b7cb",
    "name": "n",
    "status": "COMPLETED",
    "at_rest": True,
    "attempt": {"number": 1},
    "created": "2026-11-22T00:00:00.000Z",
    "finished": "2026-11-22T00:01:00.000Z",
    "user": "u",
    "tenant": "t",
    "startup": [{"step": "queue", "began": "2026-11-22T00:00:00.000Z", "ended": "2026-11-22T00:00:01.000Z"}],
}


PROGRAM = "from weft._cli import program; program()"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_a_terminal_without_utf_8_gets_escapes_for_what_it_lacks(form: str, encoding: str, tmp_path: Path) -> None:
    """As with LANG=en_US: an ellipsis, or one line of a log, ended the command as "a fault of weft itself"."""
    (tmp_path / "weft").mkdir()
    profiles = {"local": {"url": "http://127.0.0.1:1", "key": "k", "home": "/srv/é…Ω"}}
    (tmp_path / "weft" / "config.json").write_text(json.dumps({"profiles": profiles}))
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "XDG_CONFIG_HOME": str(tmp_path), "COLUMNS": "200"}
    words = [sys.executable, "-c", PROGRAM, "profile", "-o", form]
    done = subprocess.run(words, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    out = done.stdout.decode(encoding)
    if form == "json":
        assert json.loads(out)["profiles"][0]["home"] == "/srv/é…Ω"
    elif form == "yaml":
        assert yaml.safe_load(out)["profiles"][0]["home"] == "/srv/é…Ω"
    else:
        assert {"latin-1": "é\\u2026\\u03a9", "utf-8": "é…Ω"}[encoding] in out


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("arguments", "stderr_is_closed", "code"),
    [
        (["--help"], False, 0),
        (["list", "--help"], False, 0),
        (["completion", "bash"], False, 0),
        (["completion", "bash"], True, 0),
        (["trian"], False, 2),
        (["trian"], True, 2),
        (["--profile", "none", "list", "-o", "json"], True, 4),
    ],
)
def test_a_closed_pipe_does_not_change_the_exit_code(
    arguments: list[str], code: int, unbuffered: str, tmp_path: Path, *, stderr_is_closed: bool
) -> None:
    """`weft logs JOB | head` ended with 1 under `set -o pipefail`."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "XDG_CONFIG_HOME": str(tmp_path)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdout=writer,
            stderr=writer if stderr_is_closed else subprocess.PIPE,
            env=environment,
            check=False,
        )
    finally:
        os.close(writer)
    assert done.returncode == code
    assert b"Traceback" not in (done.stderr or b"")
    assert code != 0 or not done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_takes_the_first_lines_of_a_log_ends_the_command_without_an_error(
    unbuffered: str, tmp_path: Path
) -> None:
    line = {"attempt": 1, "role": "worker", "rank": 0, "stream": "stdout", "time": "2026-11-21T13:20:00.123Z"}
    lines = [{**line, "seq": number, "text": "x" * 300} for number in range(1, 1001)]  # more than a pipe holds

    def answer(request: Request, _n: int) -> Answer:
        return json_answer({"lines": lines, "next": 1000, "more": False} if "/logs" in request.path else JOB)

    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "XDG_CONFIG_HOME": str(tmp_path), "WEFT_KEY": "weft_k"}
    with scripted(answer) as server:
        command = [sys.executable, "-c", PROGRAM, "logs", str(JOB["id"])]
        environment["WEFT_URL"] = server.url
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            assert running.stdout.readline() == b"x" * 300 + b"\n"
            running.stdout.close()
            assert (running.wait(HANG_S), running.stderr.read()) == (0, b"")


@pytest.fixture
def api() -> Generator[str]:
    """The address of an API that answers every request with a job, a page of jobs and an explanation in one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({**JOB, "jobs": [JOB], "next": None, "summary": "is COMPLETED", "hints": ["do"]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - the name of the base class

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (("list",), NOT_FOR_SHOWING),
        (("show", JOB["id"]), NOT_FOR_SHOWING),
        (("explain", JOB["id"]), NOT_FOR_SHOWING),
        (("status",), set[str]()),
        (("down", "--yes"), set[str]()),
    ],
)
def test_list_show_and_status_are_fast_because_they_import_little(
    arguments: tuple[str, ...], more: set[str], api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("WEFT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WEFT_URL", api)
    monkeypatch.setenv("WEFT_KEY", "weft_k")
    loaded = loaded_after(*arguments)
    assert loaded & (LIBRARIES | SLOW_MODULES | more) == set()


def test_importing_the_sdk_loads_nothing_heavy() -> None:
    code = "import sys, weft; print(sorted(set(sys.modules) & {'httpx2', 'rich', 'yaml', 'click', 'pathspec'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", NAMES)
def test_command_list_and_command_help_agree(name: str) -> None:
    summary = next(section[name][1] for section in COMMANDS.values() if name in section)
    first = (command(name).help or "").split("\n\n")[0].replace("\n", " ").strip()
    assert first == summary


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_that_fits_eighty_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: weft {name}")
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("name", NAMES)
def test_every_option_says_what_it_is_for(name: str) -> None:
    options = [param for param in command(name).params if isinstance(param, click.Option)]
    assert [option.name for option in options if not option.help and not option.hidden] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_the_common_options(name: str) -> None:
    flags = {flag for param in command(name).params for flag in param.opts}
    assert {"-o", "--output", "--profile", "--debug"} <= flags


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["trian"], "did you mean 'train'?"),
        (["lst"], "did you mean 'list'?"),
        (["xyzzy"], "`weft --help` lists what there is"),
        (["list", "--stauts", "X"], "--status"),
        (["list", "-o", "jsn"], "'json'"),
        (["show"], "JOB"),
        (["train", "-h", "resorces"], "did you mean 'resources'?"),
    ],
)
def test_mistyped_command_suggests_the_nearest_in_one_line(
    typed: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("weft: ")
    assert says in output.err
    assert "Traceback" not in output.err


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("train", "--detach"), "weft: No such option '--detach'. Did you mean '--no-follow'?"),
        (("list", "--detach"), "weft: No such option '--detach'."),
        (("train", "--no-folow"), "weft: No such option '--no-folow'. Did you mean '--no-follow'?"),
        (("completion",), "weft: Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish"),
    ],
)
def test_wrong_use_is_one_line_and_suggests_no_option_that_looks_different(
    typed: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--detach` was answered with '--metric' and '--set'."""
    assert run(list(typed)) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == says
    assert second == f"  `weft {typed[0]} --help` says how it is used."


def test_aliases_resolve_to_commands() -> None:
    for alias, name in ALIASES.items():
        assert command(alias) is command(name)


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("resources.gpus", ["number", "a fraction below 1 shares one", "at least 0"]),
        ("grace", ["duration", 'default: "30s"']),
        ("roles.worker.count", ["whole number (required)"]),
        ("retries", ["retries.max", "retries.backoff"]),
        ("learners", ["Shorthand"]),
        ("inputs.0.mount", ["text"]),
        ("framework", ["text or mapping", "framework.version"]),
    ],
)
def test_a_field_of_the_spec_is_explained(field: str, says: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "-h", field]) == 0
    out = capsys.readouterr().out
    assert [text for text in says if text not in out] == []


def test_failure_shows_its_trace_only_with_debug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("WEFT_URL", "WEFT_KEY", "WEFT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    assert run(["list"]) == 3
    assert "Traceback" not in capsys.readouterr().err
    assert run(["list", "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_weft_without_arguments_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    output = capsys.readouterr()
    assert output.out.startswith("Usage: weft")
    assert "weft: " not in output.out
    assert output.err == ""


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_examples_line_by_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run([name, "--help"])
    output = capsys.readouterr().out
    assert "\\b" not in output
    if name == "train":
        assert "  weft train FOLDER             the job in another folder\n" in output


def test_missing_code_folder_error_names_folder_and_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "weft.yaml").write_text("name: x\ncommand: ls\ncode: nowhere\n")
    assert run(["train", str(tmp_path)]) == 4
    output = capsys.readouterr().err
    assert f"{tmp_path / 'weft.yaml'}: code: there is no folder or zip {tmp_path / 'nowhere'}" in output


def test_version_of_the_command_line_is_that_of_its_distribution() -> None:
    project = tomllib.loads((ROOT / "cli" / "pyproject.toml").read_text())["project"]
    assert project["version"] == SDK_VERSION


@pytest.mark.parametrize(("typed", "hint"), [("shwo", "did you mean 'show'?"), ("tenants", "`weft --help` lists")])
def test_an_unknown_command_suggests_one_that_looks_alike_and_no_other(
    capsys: pytest.CaptureFixture[str], typed: str, hint: str
) -> None:
    """`weft tenants` was answered by "did you mean 'events'?"."""
    assert run([typed]) == 2
    assert hint in capsys.readouterr().err
