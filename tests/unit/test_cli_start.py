"""The command line before any command runs: fast, complete, and helpful when it is mistyped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from weft._cli.main import ALIASES, COMMANDS, run, weft

HEAVY = {"httpx2", "pydantic", "rich", "yaml", "pathspec", "services", "asyncio", "importlib.metadata"}
NAMES = [name for section in COMMANDS.values() for name in section]


def command(name: str) -> click.Command:
    found = weft.get_command(click.Context(weft), name)
    assert found is not None
    return found


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
def test_every_command_prints_in_any_form(name: str) -> None:
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
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("weft: ")
    assert says in said.err
    assert "Traceback" not in said.err


def test_aliases_lead_to_commands() -> None:
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


def test_a_failure_shows_its_trace_only_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("WEFT_URL", "WEFT_KEY", "WEFT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    assert run(["list"]) == 3
    assert "Traceback" not in capsys.readouterr().err
    assert run(["list", "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_weft_alone_shows_its_help_and_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("Usage: weft")
    assert "weft: " not in said.out
    assert said.err == ""


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_examples_line_by_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run([name, "--help"])
    said = capsys.readouterr().out
    assert "\\b" not in said
    if name == "train":
        assert "  weft train FOLDER             the job in another folder\n" in said


def test_a_folder_of_code_that_is_missing_is_named_with_the_spec_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "weft.yaml").write_text("name: x\ncommand: ls\ncode: nowhere\n")
    assert run(["train", str(tmp_path)]) == 4
    said = capsys.readouterr().err
    assert f"{tmp_path / 'weft.yaml'}: code: there is no folder or zip {tmp_path / 'nowhere'}" in said
