"""Reads a job spec from YAML or JSON, and remembers where each field stands.

The platform judges the spec; here only the text is read, by the same rules as the platform's own reader
(services.core.formats.spec_text; a test keeps them equal): the words of YAML 1.2, since by those of YAML 1.1, which
PyYAML follows, the spec's field ``on`` is the boolean true and ``1:30`` is the number 90; a key given twice is an
error. Every field's line is known, so that an error that names a field can name its line, too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from weft._errors import InvalidSpec, NotFound

NAMES: Final = ("weft.yaml", "weft.yml", "weft.json", "manifest.yml", "manifest.yaml")


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


def find_spec(folder: Path) -> Path:
    """The spec in a folder. NotFound where there is none."""
    for name in NAMES:
        if (folder / name).is_file():
            return folder / name
    raise NotFound(f"there is no {NAMES[0]} in {folder}; write one with `weft init`, or name a file with -f FILE")


def read_spec(path: Path) -> SpecFile:
    """The spec in a file. InvalidSpec, with line and column, where the text is no YAML or JSON mapping."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise NotFound(f"there is no file or folder {path}") from None
    except (OSError, UnicodeDecodeError) as failed:
        raise InvalidSpec(f"{path} cannot be read: {failed}") from None
    try:
        return _parsed(path, text)
    except InvalidSpec:
        # Not all JSON is YAML to this parser (tabs); such a file has no lines.
        if text.lstrip().startswith("{") and (document := _json(text)) is not None:
            return SpecFile(path, as_json(document, str(path)), {})
        raise


def _json(text: str) -> dict[str, Any] | None:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            raise ValueError("a key is given twice")
        return mapping

    try:
        document = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _parsed(path: Path, text: str) -> SpecFile:
    try:
        node = _compose(text)
        if not isinstance(node, yaml.MappingNode):
            raise InvalidSpec(f"{path}: a job spec is a mapping of fields, e.g. 'name: digits'")
        reader = _Reader()
        document = reader.read(node, "", 1)
    except yaml.MarkedYAMLError as broken:
        mark = broken.problem_mark or broken.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise InvalidSpec(f"{path}{place}: {broken.problem or broken.context}") from None
    except yaml.YAMLError as broken:
        raise InvalidSpec(f"{path}: {getattr(broken, 'reason', None) or broken}") from None
    except RecursionError:
        raise InvalidSpec(f"{path}: the spec is nested deeper than {_MAX_DEPTH} levels") from None
    return SpecFile(path, as_json(document, str(path)), reader.lines)


def as_json(document: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """The document as JSON would have it (keys become text). InvalidSpec where JSON has no such value."""
    try:
        text = json.dumps(document, allow_nan=False, ensure_ascii=False)
        text.encode()  # a lone surrogate cannot be sent
        plain: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as failed:
        raise InvalidSpec(f"{where}: JSON cannot say this: {failed}") from None
    return plain


# --- YAML 1.2 on PyYAML's tree --------------------------------------------------------

_MAX_DEPTH: Final = 32
_MAX_NODES: Final = 50_000
_PLAIN: Final = "plain"
_TEXT: Final = "tag:yaml.org,2002:str"
_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT: Final = re.compile(r"[-+]?[0-9]{1,40}")
_BASED: Final = re.compile(r"0o([0-7]{1,20})|0x([0-9a-fA-F]{1,16})")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


class _Tree(yaml.SafeLoader):
    """Gives the tree of nodes; marks what was written without quotes and tag, for `_scalar` to read."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _TEXT
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]


def _compose(text: str) -> yaml.Node | None:
    loader = _Tree(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


@dataclass(slots=True)
class _Reader:
    """Makes plain values of a tree, and notes the line of every field."""

    lines: dict[str, int] = field(default_factory=dict)
    nodes: int = 0

    def read(self, node: yaml.Node, pointer: str, depth: int) -> Any:
        self.nodes += 1
        if depth > _MAX_DEPTH:
            raise _refused(node, f"the spec is nested deeper than {_MAX_DEPTH} levels")
        if self.nodes > _MAX_NODES:
            raise _refused(node, f"the spec has more than {_MAX_NODES} values")
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if node.tag not in {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}:
            raise _refused(node, "tags (!) are not allowed")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, pointer, depth)
        items: list[Any] = []
        for place, item in enumerate(node.value):
            self.lines[f"{pointer}/{place}"] = item.start_mark.line + 1
            items.append(self.read(item, f"{pointer}/{place}", depth + 1))
        return items

    def _mapping(self, node: yaml.MappingNode, pointer: str, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused(key, "a key is plain text")
            if key.value in mapping:
                raise _refused(key, f"the key '{key.value}' is given twice")
            inner = f"{pointer}/{key.value.replace('~', '~0').replace('/', '~1')}"
            self.lines[inner] = key.start_mark.line + 1
            mapping[key.value] = self.read(value, inner, depth + 1)
        return mapping


def _scalar(node: yaml.ScalarNode) -> object:
    text: str = node.value
    if node.tag == _TEXT:
        return text
    if node.tag != _PLAIN:
        raise _refused(node, "tags (!) are not allowed")
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if based := _BASED.fullmatch(text):
        return int(based[1], 8) if based[1] else int(based[2], 16)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise _refused(node, "a number is too large")
        return number
    if _NOT_FINITE.fullmatch(text):
        raise _refused(node, "a number is finite; in quotes it is text")
    return text


def _refused(node: yaml.Node, what: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark)


# --- --set ----------------------------------------------------------------------------


def set_field(document: dict[str, Any], assignment: str) -> None:
    """Carry out ``a.b=c`` on a spec, making what is missing; the value is read as YAML (``null`` removes the field)."""
    path, equals, text = assignment.partition("=")
    parts = path.strip().split(".")
    if not equals or not all(parts):
        raise InvalidSpec(f"--set {assignment}: write it as field=value, e.g. --set resources.gpus=1")
    try:
        node = _compose(text)
        value = _Reader().read(node, "", 1) if node is not None else None
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
    raise InvalidSpec(f"--set {assignment}: '{part}' is no field of what stands there")


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
