"""Frozen dataclasses <-> JSON documents, keeping what it does not know.

A document written by a newer version may carry keys this one has no field for. They go into the ``extra`` of their
dataclass and come out again on the next write, so a rolling upgrade loses nothing (architecture.md, Versions).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def dump(value: object) -> Any:
    """A JSON value: dataclasses become mappings, enums their values, tuples lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        known = {f.name: dump(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name != "extra"}
        return {**getattr(value, "extra", {}), **known}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): dump(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [dump(item) for item in value]
    return value


def load(kind: type[T], document: object) -> T:
    """The dataclass of a document. Missing keys take their defaults; ValueError or TypeError where it does not fit."""
    if not isinstance(document, Mapping):
        raise TypeError(f"{kind.__name__} is written as a mapping, not as {type(document).__name__}")
    given: Mapping[str, Any] = document
    plain: type = kind
    fields = _fields(plain)
    known = {name: _value(fields[name], item) for name, item in given.items() if name in fields}
    if "extra" in _names(plain):
        known["extra"] = {name: item for name, item in given.items() if name not in fields}
    return kind(**known)


@cache
def _fields(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {name: hints[name] for name in _names(kind) if name != "extra"}


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _value(hint: Any, item: Any) -> Any:
    if hint is Any:
        return item
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        if item is None:
            return None
        return _value(next(arg for arg in args if arg is not type(None)), item)
    if origin is tuple:
        _demand(item, (list, tuple), "list")
        return tuple(_value(args[0], each) for each in item)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        _demand(item, (Mapping,), "mapping")
        return {key: _value(args[1], each) for key, each in item.items()}
    kind: type[Any] = hint
    if dataclasses.is_dataclass(kind):
        return load(kind, item)
    if issubclass(kind, Enum):
        return kind(item)
    if hint is float and isinstance(item, int) and not isinstance(item, bool):
        return _float(item)
    _demand(item, (hint,), hint.__name__)
    if isinstance(item, bool) and hint is not bool:
        raise TypeError(f"expected {hint.__name__}, found bool")
    if hint is int and not -(2**63) <= item < 2**63:
        raise ValueError("a number without bounds")
    return item


def _demand(item: Any, kinds: tuple[type, ...], name: str) -> None:
    if not isinstance(item, kinds):
        raise TypeError(f"expected {name}, found {type(item).__name__}")


def _float(item: int) -> float:
    try:
        return float(item)
    except OverflowError as error:
        raise ValueError("a number without bounds") from error
