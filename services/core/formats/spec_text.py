"""Parses the text of a job spec (YAML or JSON) from untrusted users. The reader is the SDK's: ``weft.spec_text``."""

from __future__ import annotations

from typing import Any

from services.core.domain.errors import FieldError, InvalidSpec
from weft.spec_text import SpecTextError, read_spec_text


def parse_spec_text(text: bytes | str, *, kind: str = "yaml") -> dict[str, Any]:
    """Returns the mapping in the text as plain JSON. Raises InvalidSpec, where possible with line and column.

    ``kind``: ``json`` accepts JSON only; ``yaml`` accepts both.
    """
    try:
        return read_spec_text(text, kind=kind).document
    except SpecTextError as failed:
        raise _invalid(failed) from None


def _invalid(failed: SpecTextError) -> InvalidSpec:
    if not failed.language:
        return InvalidSpec(failed.problem)
    if not failed.line:
        return InvalidSpec(f"the spec is not valid {failed.language}: {failed.problem}")
    message = f"line {failed.line}, column {failed.column}: {failed.problem}"
    return InvalidSpec(f"the spec is not valid {failed.language}: {message}", errors=(FieldError("", message),))
