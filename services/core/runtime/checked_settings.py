"""Settings whose wrong values are errors that name the variable, for people who see neither the code nor its trace."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings
from pydantic_settings.exceptions import SettingsError

from services.core.domain.errors import InvalidRequest


class CheckedSettings(BaseSettings):
    """Settings that are read when an instance is made. Raises InvalidRequest for wrong values."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as invalid:
            wrong = [self._shown(error) for error in invalid.errors(include_url=False, include_context=False)]
            raise InvalidRequest(f"wrong settings: {'; '.join(wrong)}; see docs/settings.md") from None
        except SettingsError as unreadable:  # its message has the name of the field, and not the value
            field = re.search(r'field "(\w+)"', str(unreadable))
            name = self._variable(field[1]) if field else str(unreadable)
            raise InvalidRequest(f"wrong settings: {name}: write it as JSON; see docs/settings.md") from None

    @classmethod
    def _shown(cls, error: ErrorDetails) -> str:
        """Says what is wrong with a setting. The value of a ``repr=False`` field is left out: it may be a password."""
        if not error["loc"]:
            return error["msg"]
        name = str(error["loc"][0])
        field = cls.model_fields.get(name)
        given = f"={error['input']}" if field is not None and field.repr else ""
        return f"{cls._variable(name)}{given}: {error['msg']}"

    @classmethod
    def _variable(cls, field: str) -> str:
        return f"{cls.model_config.get('env_prefix', '')}{field}".upper()
