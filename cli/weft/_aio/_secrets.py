"""Secrets of the tenant: `client.secrets`."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from weft._aio._http import AsyncHttp

_SECRETS: Final = "/v1/secrets"


class AsyncSecrets:
    """The secrets of the tenant. The platform never returns a value. ``tenant``: for administrators."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    async def list(self, *, tenant: str | None = None) -> builtins.list[dict[str, Any]]:
        """All secrets without their values: `name`, `keys`, `created`, `changed`, `changed_by`, `damaged`."""
        answer = await self._http.json("GET", _SECRETS, params={"tenant": tenant})
        return builtins.list(answer["secrets"])

    async def set(self, name: str, values: Mapping[str, str], *, tenant: str | None = None) -> dict[str, Any]:
        """Creates a secret, or replaces all of its keys. The answer is as in `list`.

        name: a DNS label. values: 1 to 16 keys, the values together at most 64 KiB.
        """
        return await self._http.json("PUT", _path(name), params={"tenant": tenant}, body={"values": dict(values)})

    async def delete(self, name: str, *, tenant: str | None = None) -> None:
        """Removes a secret. NotFound where there is none."""
        await self._http.json("DELETE", _path(name), params={"tenant": tenant})


def _path(name: str) -> str:
    return f"{_SECRETS}/{quote(name, safe='')}"
