"""Parses the text of a job spec (YAML or JSON); the platform and the SDK read specs with this module only.

The text may come from untrusted users. The result is plain JSON: mappings with text keys, lists, text, finite numbers,
true, false, null. It has at most ``MAX_DEPTH`` levels and ``MAX_NODES`` values, where the values of an alias count at
each use. So a bomb of aliases or nested brackets costs no more than its bytes, and later code meets no NaN, lone
surrogate or duplicate key.

YAML is parsed by the rules of YAML 1.2, from the parser's events and without PyYAML's constructors. Those follow YAML
1.1, in which the spec's field ``on`` is the boolean True, ``1:30`` is the number 90 and ``no`` is False.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

MAX_DEPTH: Final = 32
MAX_NODES: Final = 50_000
_TOO_DEEP: Final = f"the spec is nested deeper than {MAX_DEPTH} levels"
_TEXT_TAGS: Final = frozenset({"!", "tag:yaml.org,2002:str"})
_INT: Final = re.compile(r"[-+]?[0-9]{1,40}")
_BASED: Final = re.compile(r"0o([0-7]{1,20})|0x([0-9a-fA-F]{1,16})")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: Final[dict[str, bool | None]] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_LONE_SURROGATE: Final = "the spec contains a lone surrogate (U+D800 to U+DFFF): write the character itself"
_MAX_POINTER: Final = 256
"""Characters. Longer ones have no line: thousands of fields below a key of a megabyte would need gigabytes."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class SpecTextError(ValueError):
    """The text is no spec.

    ``line`` and ``column`` count from 1; 0: unknown. ``language``: YAML or JSON where the text breaks its rules, else
    empty (for example where the spec is too large).
    """

    def __init__(self, problem: str, line: int = 0, column: int = 0, language: str = "") -> None:
        super().__init__(problem)
        self.problem, self.line, self.column, self.language = problem, line, column, language


@dataclass(frozen=True, slots=True)
class SpecText:
    """A spec as it was written."""

    document: dict[str, Any]
    lines: Mapping[str, int]
    """JSON pointer of each field -> its line, from 1. Empty for ``kind`` JSON, and for JSON that is no YAML."""


def read_spec_text(text: bytes | str, *, kind: str = "yaml") -> SpecText:
    """Returns the mapping in the text. Raises SpecTextError.

    ``kind``: ``json`` accepts JSON only; ``yaml`` accepts both. Text that begins with '{' is tried as JSON first,
    because YAML 1.1 parsers do not accept all of JSON.
    """
    source = _decoded(text)
    if kind == "json" or source.lstrip()[:1] == "{":
        try:
            document = _mapping(_json(source))
        except json.JSONDecodeError as failed:
            if kind == "json":
                raise SpecTextError(failed.msg.lower(), failed.lineno, failed.colno, "JSON") from None
        except RecursionError:
            raise SpecTextError(_TOO_DEEP) from None
        else:
            return SpecText(document, {} if kind == "json" else _lines(source))
    value, lines = _yaml(source)
    return SpecText(_mapping(value), lines)


def read_value(text: str) -> object:
    """Returns the one YAML value in the text, which need not be a mapping. Raises SpecTextError."""
    return _yaml(text)[0]


def _lines(source: str) -> Mapping[str, int]:
    """The lines of the fields of JSON; none where this YAML parser does not accept it (tabs)."""
    try:
        return _yaml(source)[1]
    except SpecTextError:
        return {}


def _decoded(text: bytes | str) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as failed:
        line = text.count(b"\n", 0, failed.start) + 1
        raise SpecTextError(f"the spec is not UTF-8 text (line {line})") from None


def _mapping(value: object) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    kinds: dict[type, str] = {list: "a list", str: "plain text", type(None): "empty"}
    kind = kinds.get(type(value), "a single value")
    raise SpecTextError(f"a job spec is a mapping of fields, e.g. `name: digits`; this one is {kind}")


# --- JSON ------------------------------------------------------------------------------------------------------------


def _json(source: str) -> object:
    try:
        value = json.loads(
            source, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_integer
        )
    except json.JSONDecodeError:
        raise
    except ValueError as failed:  # from the hooks below, and from Python for numbers of thousands of digits
        raise SpecTextError(str(failed), language="JSON") from None
    _check_json(value)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f"the key '{_printable(key)}' is given twice")
        mapping[key] = value
    return mapping


def _refuse_constant(word: str) -> object:
    raise ValueError(f"{word} is not a number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _integer(text: str) -> int:
    if len(text) > 40:
        raise ValueError("a number is too large")
    return int(text)


def _check_json(value: object) -> None:
    """Checks depth, size and texts of a JSON value. Those of YAML are checked while it is built."""
    unchecked: list[tuple[object, int]] = [(value, 1)]
    nodes = 0
    while unchecked:
        item, depth = unchecked.pop()
        nodes += 1
        _check_limits(depth, nodes)
        if isinstance(item, dict):
            for key in item:
                _check_text(key)
            unchecked.extend((child, depth + 1) for child in item.values())
        elif isinstance(item, list):
            unchecked.extend((child, depth + 1) for child in item)
        elif isinstance(item, str):
            _check_text(item)


def _check_limits(depth: int, nodes: int) -> None:
    if depth > MAX_DEPTH:
        raise SpecTextError(_TOO_DEEP)
    if nodes > MAX_NODES:
        raise SpecTextError(f"the spec has more than {MAX_NODES} values")


def _check_text(text: str) -> None:
    if _SURROGATE.search(text):
        raise SpecTextError(_LONE_SURROGATE)


def _printable(key: str) -> str:
    """Returns a key for a message: at most 60 printable characters."""
    short = key if len(key) <= 60 else key[:57] + "..."
    return "".join(char if char.isprintable() else "?" for char in short)


# --- YAML ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Built:
    """A value, and how many nodes it has with its aliases expanded."""

    value: Any
    nodes: int


def _yaml(source: str) -> tuple[object, Mapping[str, int]]:
    """The value, and the line of each field.

    Parses event by event and stops at the first level too deep: libyaml is quadratic in nested brackets.
    """
    builder = _Builder(yaml.parse(source, Loader=_LOADER))
    try:
        return builder.document(), builder.lines
    except yaml.MarkedYAMLError as failed:
        problem = failed.problem or failed.context or "cannot be read"
        raise _marked(str(problem), failed.problem_mark or failed.context_mark) from None
    except yaml.YAMLError as failed:  # a character that is not allowed in YAML
        problem = getattr(failed, "reason", None) or "cannot be read"
        raise SpecTextError(problem, language="YAML") from None
    except UnicodeEncodeError:
        raise SpecTextError(_LONE_SURROGATE) from None


class _Builder:
    """Builds one document from a stream of parser events."""

    def __init__(self, events: Iterator[Event]) -> None:
        self._events = events
        self._anchors: dict[str, _Built] = {}
        self._nodes = 0
        self.lines: dict[str, int] = {}

    def document(self) -> object:
        built: _Built | None = None
        for event in self._events:
            if not isinstance(event, DocumentStartEvent):
                continue
            if built is not None:
                raise _error_at(event, "one document only, without a second '---'")
            built = self._node(next(self._events), "", 1)
        return built.value if built is not None else None

    def _node(self, event: Event, pointer: str | None, depth: int) -> _Built:
        if isinstance(event, AliasEvent):
            if event.anchor not in self._anchors:
                raise _error_at(event, "an alias (*) of an anchor (&) that is not complete before it")
            built = self._anchors[event.anchor]
            self._count(built.nodes, depth)
            return built
        self._count(1, depth)
        before = self._nodes
        if isinstance(event, ScalarEvent):
            value: object = _scalar(event)
        else:
            if event.tag is not None:  # type: ignore[attr-defined]
                raise _error_at(event, "tags (!) are not allowed")
            is_list = isinstance(event, SequenceStartEvent)
            value = self._sequence(pointer, depth) if is_list else self._map(event, pointer, depth)
        built = _Built(value, 1 + self._nodes - before)
        anchor = getattr(event, "anchor", None)
        if anchor is not None:
            self._anchors[anchor] = built
        return built

    def _count(self, nodes: int, depth: int) -> None:
        self._nodes += nodes
        _check_limits(depth, self._nodes)

    def _has_line(self, pointer: str | None, event: Event) -> None:
        if pointer is not None and event.start_mark is not None:
            self.lines[pointer] = event.start_mark.line + 1

    def _sequence(self, pointer: str | None, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            inner = _inner(pointer, str(len(items)))
            self._has_line(inner, event)
            items.append(self._node(event, inner, depth + 1).value)
        return items

    def _map(self, start: Event, pointer: str | None, depth: int) -> dict[str, Any]:
        assert isinstance(start, MappingStartEvent)  # noqa: S101 - the parser's only other kind of node
        mapping: dict[str, Any] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            if not isinstance(event, ScalarEvent):
                raise _error_at(event, "a key is plain text")
            key = event.value
            _check_text(key)
            if key in mapping:
                raise _error_at(event, f"the key '{_printable(key)}' is given twice")
            inner = _inner(pointer, key)
            self._has_line(inner, event)
            mapping[key] = self._node(next(self._events), inner, depth + 1).value
        return mapping


def _inner(pointer: str | None, key: str) -> str | None:
    """The JSON pointer of a field in the value at ``pointer``; None where it would be too long."""
    if pointer is None or len(pointer) + len(key) >= _MAX_POINTER:
        return None
    return f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"


def _scalar(event: ScalarEvent) -> object:
    """Returns the value of a scalar by YAML 1.2's core schema."""
    text: str = event.value
    _check_text(text)
    if event.tag in _TEXT_TAGS:
        return text
    if event.tag is not None:
        raise _error_at(event, "tags (!) are not allowed")
    if not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if based := _BASED.fullmatch(text):
        return int(based[1], 8) if based[1] else int(based[2], 16)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise _error_at(event, "a number is too large")
        return number
    if _NOT_FINITE.fullmatch(text):
        raise _error_at(event, "a number is finite; in quotes it is text")
    return text


def _error_at(event: Event, problem: str) -> SpecTextError:
    return _marked(problem, event.start_mark)


def _marked(problem: str, mark: Any) -> SpecTextError:
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    return SpecTextError(problem, line, column, "YAML")


_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
