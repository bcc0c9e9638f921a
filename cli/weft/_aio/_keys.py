"""API keys: `client.keys`."""

from __future__ import annotations

import builtins
from typing import Any, Final

from weft._aio._http import AsyncHttp

_KEYS: Final = "/v1/keys"


class AsyncKeys:
    """The keys of the user; for administrators, of all users."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    async def list(self) -> builtins.list[dict[str, Any]]:
        """All keys without their text, revoked ones included: `id`, `name`, `user`, `tenant`, `scope`, `created`,
        `revoked`.
        """
        answer = await self._http.json("GET", _KEYS)
        return builtins.list(answer["keys"])

    async def create(
        self, name: str, *, user: str | None = None, tenant: str | None = None, scope: str | None = None
    ) -> dict[str, Any]:
        """A new key, with its text in `key`: no later answer has it.

        name: where the key is used, for people. user, tenant, scope (`user` or `admin`): for administrators; default:
        the caller's, and `user`.
        """
        body = {"name": name, "user": user, "tenant": tenant, "scope": scope}
        given = {field: value for field, value in body.items() if value is not None}
        return await self._http.json("POST", _KEYS, body=given)

    async def revoke(self, id: str) -> None:  # noqa: A002 - the API's word
        """Ends a key: it stops working within seconds. NotFound where there is none."""
        await self._http.json("DELETE", f"{_KEYS}/{id}")
