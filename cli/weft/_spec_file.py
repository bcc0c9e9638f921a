"""Reads a job spec from YAML or JSON, and remembers where each field stands.

The platform judges the spec; here only the text is read. Three things are done that a plain YAML reader does not:
a key that is there twice is an error (YAML would keep the last without a word), times and dates stay text (JSON has
none), and every field's line is known, so that an error that names a field can name its line, too.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from weft._errors import FieldError, InvalidSpec, NotFound

NAMES = ("weft.yaml", "weft.yml", "weft.json", "manifest.yml", "manifest.yaml")


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A spec as it was written."""

    path: Path
    document: dict[str, Any]
    lines: Mapping[str, int]
    """JSON pointer -> line, from 1."""

    def line_of(self, pointer: str) -> int | None:
        """The line of a field, or of the nearest part of the document around it."""
        while pointer not in self.lines and pointer:
            pointer = pointer.rpartition("/")[0]
        return self.lines.get(pointer) if pointer else None

    @property
    def code(self) -> Path | None:
        """The folder or zip that ``code:`` names, beside this file; None where the spec names none."""
        named = self.document.get("code")
        return (self.path.parent / named) if isinstance(named, str) else None


class _Loader(yaml.SafeLoader):
    """Safe YAML without times, refusing keys that are there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - the library's signature
        seen: set[str] = set()
        for key, _value in node.value:
            name = str(key.value)
            if name in seen and name != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"'{name}' is there twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def find_spec(folder: Path) -> Path:
    """The spec in a folder. NotFound where there is none."""
    for name in NAMES:
        if (folder / name).is_file():
            return folder / name
    raise NotFound(f"there is no {NAMES[0]} in {folder}; write one with `weft init`, or name a file with -f FILE")


def read_spec(path: Path) -> SpecFile:
    """The spec in a file. InvalidSpec, with line and column, where the text is no YAML or JSON mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as failed:
        raise InvalidSpec(f"{path} cannot be read: {failed}") from None
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            document = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as broken:
        mark = broken.problem_mark or broken.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise InvalidSpec(f"{path}{place}: {broken.problem or broken.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as broken:
        raise InvalidSpec(f"{path}: {broken}") from None
    if not isinstance(document, dict):
        raise InvalidSpec(f"{path}: a job spec is a mapping of fields, e.g. 'name: digits'")
    plain = as_json(document, str(path))  # refuses what refers to itself
    lines: dict[str, int] = {}
    _note_lines(node, "", lines)
    return SpecFile(path, plain, lines)


def as_json(document: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """The document as JSON would have it (keys become text). InvalidSpec where JSON has no such value."""
    try:
        found: dict[str, Any] = json.loads(json.dumps(document, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as failed:
        raise InvalidSpec(f"{where}: JSON cannot say this: {failed}") from None
    return found


def _note_lines(node: yaml.Node | None, pointer: str, lines: dict[str, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = f"{pointer}/{str(key.value).replace('~', '~0').replace('/', '~1')}"
            lines[inner] = key.start_mark.line + 1
            _note_lines(value, inner, lines)
    elif isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            lines[f"{pointer}/{place}"] = value.start_mark.line + 1
            _note_lines(value, f"{pointer}/{place}", lines)


def set_field(document: dict[str, Any], assignment: str) -> None:
    """Carry out ``a.b=c`` on a spec, making what is missing; the value is read as YAML (``null`` removes the field)."""
    path, equals, text = assignment.partition("=")
    parts = path.strip().split(".")
    if not equals or not all(parts):
        raise InvalidSpec(f"--set {assignment}: write it as field=value, e.g. --set resources.gpus=1")
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - _Loader is a SafeLoader
    except yaml.YAMLError as broken:
        raise InvalidSpec(f"--set {assignment}: the value is no YAML ({broken})") from None
    here: Any = document
    for part in parts[:-1]:
        here = _into(here, part, assignment)
    _put(here, parts[-1], value, assignment)


def _into(here: Any, part: str, assignment: str) -> Any:
    if isinstance(here, list) and part.isdigit() and int(part) < len(here):
        return here[int(part)]
    if isinstance(here, dict):
        if here.get(part) is None:
            here[part] = {}
        return here[part]
    raise InvalidSpec(f"--set {assignment}: '{part}' is no field of what stands there", errors=(FieldError("", part),))


def _put(here: Any, part: str, value: object, assignment: str) -> None:
    if isinstance(here, list) and part.isdigit() and int(part) < len(here):
        here[int(part)] = value
    elif isinstance(here, dict):
        if value is None:
            here.pop(part, None)
        else:
            here[part] = value
    else:
        raise InvalidSpec(f"--set {assignment}: '{part}' is no field of what stands there")
