"""The forms in which a program gives a spec to `submit`: a mapping, a path, a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from weft._errors import InvalidSpec


class SpecLike(Protocol):
    """Anything that can say itself as a JSON object, e.g. a pydantic model."""

    def model_dump(self, *, mode: str, exclude_defaults: bool) -> dict[str, Any]: ...


def read_given(spec: Any) -> tuple[dict[str, Any], Path | None]:
    """The spec's document, and the code that it names."""
    from weft._spec_file import as_json, find_spec, read_spec  # noqa: PLC0415 - as with archives

    if isinstance(spec, str) or hasattr(spec, "__fspath__"):
        path = Path(spec)
        file = read_spec(find_spec(path) if path.is_dir() else path)
        return file.document, file.code
    if isinstance(spec, Mapping):
        document = as_json(spec, "the spec")
    elif hasattr(spec, "model_dump"):
        document = as_json(spec.model_dump(mode="json", exclude_defaults=True), "the spec")
    elif dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        document = as_json(dataclasses.asdict(spec), "the spec")
    else:
        raise InvalidSpec(f"a spec is a mapping, a path or a model, not a {type(spec).__name__}")
    named = document.get("code")
    return document, Path(named) if isinstance(named, str) else None
