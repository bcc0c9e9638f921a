"""Converts frozen dataclasses to JSON documents and back, and keeps unknown keys.

A document written by a newer version may have keys without a field in this version. ``load`` puts them into the
``extra`` of their dataclass and ``dump`` writes them again, so a rolling upgrade loses nothing (architecture.md,
"Versions").
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Final, TypeVar

T = TypeVar("T")
MALFORMED: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""The errors that reading a damaged document may raise: parsing its text, ``load``, and taking values out of it."""


def dump(value: object) -> Any:
    """Returns a JSON value: a mapping for a dataclass, the value of an enum, a list for a tuple."""
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
    """Returns the dataclass ``kind`` with the values of ``document``.

    Missing keys take the fields' defaults. Unknown keys go into ``extra``, or are dropped where ``kind`` has no such
    field. Raises TypeError or ValueError where a value does not have the field's type, where a key without a default
    is missing, and for integers that do not fit 64 bits.
    """
    if not isinstance(document, Mapping):
        raise TypeError(f"{kind.__name__} is written as a mapping, not as {type(document).__name__}")
    values: Mapping[str, Any] = document
    untyped: type = kind
    hints = _hints(untyped)
    known = {name: _value(hints[name], value) for name, value in values.items() if name in hints}
    if "extra" in _names(untyped):
        known["extra"] = {name: value for name, value in values.items() if name not in hints}
    return kind(**known)


@cache
def _hints(kind: type) -> dict[str, Any]:
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
        _check_type(item, (list, tuple), "list")
        return tuple(_value(args[0], element) for element in item)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        _check_type(item, (Mapping,), "mapping")
        return {key: _value(args[1], value) for key, value in item.items()}
    kind: type[Any] = hint
    if dataclasses.is_dataclass(kind):
        return load(kind, item)
    if issubclass(kind, Enum):
        return kind(item)
    if hint is float and isinstance(item, int) and not isinstance(item, bool):
        return _float(item)
    _check_type(item, (hint,), hint.__name__)
    if isinstance(item, bool) and hint is not bool:  # isinstance(True, int) holds
        raise TypeError(f"expected {hint.__name__}, found bool")
    if hint is int and not -(2**63) <= item < 2**63:
        raise ValueError("the number is too large")
    return item


def _check_type(item: Any, kinds: tuple[type, ...], name: str) -> None:
    if not isinstance(item, kinds):
        raise TypeError(f"expected {name}, found {type(item).__name__}")


def _float(item: int) -> float:
    try:
        return float(item)
    except OverflowError as error:
        raise ValueError("the number is too large") from error
