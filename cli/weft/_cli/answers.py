"""The JSON of every command: `scripts/command_output.py` makes docs/command-output.md from it, and tests compare both.

Each module of commands declares its own: ``ANSWERS``, and ``TYPES`` for what is nested in them. A type is a word: text,
integer, number, flag, time, object, or the name of one of the ``TYPES``, or of an answer of the API
(docs/api-reference.md). ``list of T``, ``map of T`` and ``T or null`` combine them. A name that ends in ``?`` may be
absent. No command imports this module but for its types.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Final

from weft._cli.main import COMMANDS

Fields = dict[str, tuple[str, str]]
"""Name of a field -> (type, what it holds)."""
Answers = dict[str, Fields | str]
"""Command -> its fields, or the type that it prints. ``stream of T``: one JSON object on each line."""
Types = dict[str, Fields]

_ERRORS: Final[Types] = {
    "Error": {
        "code": ("text", "Stable code of the API (docs/api.md), or usage, machine, error, fault of the command line."),
        "message": ("text", "What happened and what to do."),
        "errors": ("list of object", "Wrong fields: pointer, message, hint and place (FILE:LINE) of each."),
        "exit_code": ("integer", "Exit code of the command."),
        "retryable": ("flag", "The same command may succeed later."),
        "trace_id": ("text", "Finds the request in the platform's logs; may be empty."),
    },
}


@cache
def by_command() -> Answers:
    """The answers of all commands, in the order of `weft --help`."""
    declared = {command: answer for module in _modules() for command, answer in module.ANSWERS.items()}
    names = [name for section in COMMANDS.values() for name in section]
    return {
        command: declared[command]
        for command in sorted(declared, key=lambda command: names.index(command.partition(" ")[0]))
    }


@cache
def types() -> Types:
    """The types of the command line, in the order of the commands."""
    return {name: fields for module in _modules() for name, fields in getattr(module, "TYPES", {}).items()} | _ERRORS


def _modules() -> Iterator[ModuleType]:
    homes = dict.fromkeys(module for section in COMMANDS.values() for module, _summary in section.values())
    return (import_module(f"weft._cli.commands.{home}") for home in homes)
