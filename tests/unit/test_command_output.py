"""docs/command-output.md describes the JSON of every command."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click

from tests.testbed.answers import api_types
from weft._cli.answers import by_command, types
from weft._cli.main import COMMANDS, weft

ROOT = Path(__file__).parents[2]


def test_page_of_command_output_is_current() -> None:
    script = ROOT / "scripts" / "command_output.py"
    assert subprocess.run([sys.executable, script, "--check"], check=False, cwd=ROOT).returncode == 0


def test_page_of_messages_is_current() -> None:
    script = ROOT / "scripts" / "messages.py"
    done = subprocess.run([sys.executable, script, "--check"], check=False, cwd=ROOT)
    assert done.returncode == 0, "a message has changed: run `python scripts/messages.py`, and read it"


def test_a_command_declares_its_json_in_its_own_module() -> None:
    """A new command touched the table of commands and a second file with the JSON of all."""
    for section in COMMANDS.values():
        for command, (home, _summary) in section.items():
            assert command in import_module(f"weft._cli.commands.{home}").ANSWERS


def test_every_command_has_a_schema() -> None:
    commands = {name for section in COMMANDS.values() for name in section}
    assert {command.split()[0] for command in by_command()} == commands


def test_every_action_of_a_command_has_a_schema() -> None:
    """E.g. `weft key create`: the choices of an argument "action", but the one that the plain command means."""
    context = click.Context(weft)
    commands = [(name, weft.get_command(context, name)) for name in weft.list_commands(context)]
    actions = {
        f"{name} {action}"
        for name, command in commands
        for argument in (command.params if command else [])
        if argument.name == "action" and isinstance(argument.type, click.Choice)
        for action in argument.type.choices
        if action != argument.default
    }
    assert actions
    assert actions <= set(by_command())


def test_every_type_of_a_schema_is_defined() -> None:
    plain = {"text", "integer", "number", "flag", "time", "object", "null"}
    known = plain | set(types()) | set(api_types())
    kinds = [answer for answer in by_command().values() if isinstance(answer, str)]
    kinds += [kind for answer in by_command().values() if isinstance(answer, dict) for kind, _ in answer.values()]
    kinds += [kind for fields in types().values() for kind, _ in fields.values()]
    words = {word for kind in kinds for word in re.split(r" of | or | ", kind)} - {"list", "map", "stream"}
    assert words - known == set()
