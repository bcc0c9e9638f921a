"""The way in: `weft.AsyncClient()`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from weft._aio._http import AsyncHttp
from weft._aio._jobs import AsyncJobs
from weft._aio._keys import AsyncKeys
from weft._aio._secrets import AsyncSecrets
from weft._errors import WeftError
from weft._profile import Profile, resolve
from weft._times import time_text
from weft._users import users_of

if TYPE_CHECKING:
    import httpx2


class AsyncClient:
    """A platform, seen through one key.

        async with weft.AsyncClient() as client:
            job = await client.jobs.submit("weft.yaml")
            async for line in job.logs(follow=True):
                print(line.text)
            job = await job.wait()
            loss = await job.metrics("loss")
            print(job.status, loss.values[-1])

    Without arguments it uses WEFT_URL and WEFT_KEY, else the profile that WEFT_PROFILE names, else the current profile
    (`weft profile`). Tasks of one event loop may share a client. Errors are those of `weft.WeftError`.
    """

    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        profile: str | None = None,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        on_wait: Callable[[WeftError], None] = lambda _why: None,
    ) -> None:
        """``transport``: another way than the network. ``on_wait`` hears why a request is about to be tried again."""
        self.profile: Profile = resolve(base_url, key, profile)
        self._http = AsyncHttp(self.profile, transport=transport, on_wait=on_wait)
        self.jobs = AsyncJobs(self._http)
        self.keys = AsyncKeys(self._http)
        self.secrets = AsyncSecrets(self._http)

    @property
    def url(self) -> str:
        return self.profile.url

    async def close(self) -> None:
        await self._http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def version(self) -> dict[str, Any]:
        """`version`, `api` and `capabilities` of the platform."""
        return await self._http.json("GET", "/v1/version")

    async def whoami(self) -> dict[str, Any]:
        """`user`, `tenant`, `scope`, `key_id` and `permissions` of the key."""
        return await self._http.json("GET", "/v1/whoami")

    async def session_code(self) -> dict[str, Any]:
        """A one-time `code`, with which a browser signs in to the dashboard until `expires`."""
        return await self._http.json("POST", "/v1/session/codes")

    async def users(self) -> list[dict[str, Any]]:
        """The users who have a key: `user`, `tenant`, `scope`, `keys` (how many), `created` (of the first).

        Administrators see all users, others themselves.
        """
        return users_of(await self.keys.list())

    async def queue(self, *, tenant: str | None = None) -> list[dict[str, Any]]:
        """The jobs that wait, in order, each with its reason. ``tenant``: for administrators; ``*``: all."""
        answer = await self._http.json("GET", "/v1/queue", params={"tenant": tenant})
        return list(answer["waiting"])

    async def cluster(self, *, tenant: str | None = None) -> dict[str, Any]:
        """Nodes, totals and current use. ``tenant``: whose jobs are counted; for administrators; ``*``: all."""
        return await self._http.json("GET", "/v1/cluster", params={"tenant": tenant})

    async def usage(
        self, *, since: datetime | None = None, until: datetime | None = None, tenant: str | None = None
    ) -> dict[str, Any]:
        """GPU-hours and CPU-hours that jobs held in [since, until), by tenant and user: `users`, `since`, `until`.

        By default the last 30 days. ``tenant``: for administrators; ``*``: all.
        """
        return await self._http.json("GET", "/v1/usage", params=_window(since, until, tenant))

    async def usage_csv(
        self, *, since: datetime | None = None, until: datetime | None = None, tenant: str | None = None
    ) -> str:
        """As `usage`, as the text of a CSV file with a line for each tenant and user."""
        params = {**_window(since, until, tenant), "format": "csv"}
        return await self._http.text("/v1/usage", params=params)

    async def storage(self) -> dict[str, Any]:
        """What the tenant has in the object store: `bytes`, `objects`, bytes by `kinds`, `measured`, `complete`."""
        return await self._http.json("GET", "/v1/storage")

    async def frameworks(self) -> list[dict[str, Any]]:
        """The environments that a job may name."""
        answer = await self._http.json("GET", "/v1/frameworks")
        return list(answer["frameworks"])

    async def sizes(self) -> list[dict[str, Any]]:
        """The T-shirt sizes of learners."""
        answer = await self._http.json("GET", "/v1/sizes")
        return list(answer["sizes"])


def _window(since: datetime | None, until: datetime | None, tenant: str | None) -> dict[str, Any]:
    times = {name: None if time is None else time_text(time) for name, time in (("since", since), ("until", until))}
    return {**times, "tenant": tenant}
