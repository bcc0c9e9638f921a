"""Reads a job spec from a file, and knows the line of each field, so that an error that names a field can show it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from weft._errors import InvalidSpec, NotFound
from weft.spec_text import SpecTextError, read_spec_text, read_value

NAMES: Final = ("weft.yaml", "weft.yml", "weft.json", "manifest.yml", "manifest.yaml")


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A spec as it was written."""

    path: Path
    document: dict[str, Any]
    lines: Mapping[str, int]
    """JSON pointer -> line, from 1."""

    settings: dict[str, str] = field(default_factory=dict)
    """JSON pointer -> the ``--set`` of the command line that changed it."""

    def setting_of(self, pointer: str) -> str:
        """The ``--set`` that changed a field, or a part of the document around it; empty: none."""
        return self.settings.get(_nearest(self.settings, pointer), "")

    def change(self, assignment: str) -> None:
        """Carry out ``a.b=c`` of the command line on the document; see `set_field`."""
        parts = set_field(self.document, assignment)
        pointer = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)
        self.settings[pointer] = assignment

    def line_of(self, pointer: str) -> int | None:
        """The line of a field, or of the nearest part of the document around it."""
        nearest = _nearest(self.lines, pointer)
        return self.lines.get(nearest) if nearest else None

    @property
    def code(self) -> Path | None:
        """The folder or zip that ``code:`` names, beside this file; without ``code:`` see `code_file`."""
        named = self.document.get("code")
        if isinstance(named, str):
            return self.path.parent / named
        return self.path.parent if self.code_file else None

    @property
    def code_file(self) -> str:
        """The file beside this one that a command names, where the spec has no ``code:``; else empty.

        ``code: null`` says that there is no code.
        """
        if "code" in self.document:
            return ""
        roles = self.document.get("roles")
        speakers = [self.document, *(roles.values() if isinstance(roles, dict) else ())]
        commands = [speaker.get("command") for speaker in speakers if isinstance(speaker, dict)]
        for word in (word for command in commands for word in _words(command)):
            is_inside = not word.startswith("/") and ".." not in word.split("/")
            if is_inside and os.path.isfile(self.path.parent / word):  # noqa: PTH113 - false for a name that is too long
                return word
        return ""


def _nearest(known: Mapping[str, object], pointer: str) -> str:
    """The pointer of a field, or of the nearest part of the document around it, that is known; empty: none."""
    while pointer and pointer not in known:
        pointer = pointer.rpartition("/")[0]
    return pointer


def _words(command: object) -> list[str]:
    """The words of a command, as a shell would split it, roughly."""
    if isinstance(command, list):
        return [word for word in command if isinstance(word, str)]
    return re.split(r"[\s;&|'\"=()<>]+", command) if isinstance(command, str) else []


def find_spec(folder: Path) -> Path:
    """The spec in a folder. NotFound where there is none."""
    for name in NAMES:
        if (folder / name).is_file():
            return folder / name
    raise NotFound(f"there is no {NAMES[0]} in {folder}; write one with `weft init`, or name a file with -f FILE")


def read_spec(path: Path) -> SpecFile:
    """The spec in a file. InvalidSpec, with line and column, where the text is no YAML or JSON mapping."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"there is no file or folder {path}") from None
    except OSError as failed:
        raise InvalidSpec(f"{path} cannot be read: {failed}") from None
    try:
        spec = read_spec_text(text)
    except SpecTextError as failed:
        place = f":{failed.line}:{failed.column}" if failed.line else ""
        raise InvalidSpec(f"{path}{place}: {failed.problem}") from None
    # A copy in which the parts that are aliases of one anchor are apart: --set changes one of them.
    return SpecFile(path, as_json(spec.document, str(path)), spec.lines)


def as_json(document: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """The document as JSON would have it (keys become text). InvalidSpec where JSON has no such value."""
    try:
        text = json.dumps(document, allow_nan=False, ensure_ascii=False)
        text.encode()  # a lone surrogate cannot be sent
        plain: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as failed:
        raise InvalidSpec(f"{where}: this cannot be written as JSON: {failed}") from None
    return plain


# --- --set ----------------------------------------------------------------------------


def read_assignment(assignment: str) -> tuple[list[str], object]:
    """The path and the value of ``a.b=c``; the value is read as YAML. Raises InvalidSpec."""
    path, equals, text = assignment.partition("=")
    parts = path.strip().split(".")
    if not equals or not all(parts):
        raise InvalidSpec(f"--set {assignment}: write it as field=value, e.g. --set resources.gpus=1")
    try:
        return parts, read_value(text)
    except SpecTextError as failed:
        raise InvalidSpec(f"--set {assignment}: the value is no YAML ({failed.problem})") from None


def set_field(document: dict[str, Any], assignment: str) -> list[str]:
    """Carry out ``a.b=c`` on a spec, making what is missing; the value is read as YAML (``null`` removes the field).

    Returns the path that was set.
    """
    parts, value = read_assignment(assignment)
    here: Any = document
    for part in parts[:-1]:
        here = _into(here, part, assignment)
    _put(here, parts[-1], value, assignment)
    return parts


def _into(here: Any, part: str, assignment: str) -> Any:
    if isinstance(here, list) and part.isdigit() and int(part) < len(here):
        return here[int(part)]
    if isinstance(here, dict):
        if here.get(part) is None:
            here[part] = {}
        return here[part]
    raise InvalidSpec(f"--set {assignment}: '{part}' names a field of a value that has none")


def _put(here: Any, part: str, value: object, assignment: str) -> None:
    if isinstance(here, list) and part.isdigit() and int(part) < len(here):
        here[int(part)] = value
    elif isinstance(here, dict):
        if value is None:
            here.pop(part, None)
        else:
            here[part] = value
    else:
        raise InvalidSpec(f"--set {assignment}: '{part}' names a field of a value that has none")
