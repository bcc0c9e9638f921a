"""The way in: `weft.Client()`."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from weft._errors import WeftError
from weft._http import Http
from weft._jobs import Jobs
from weft._profile import Profile, resolve

if TYPE_CHECKING:
    import httpx2


class Client:
    """A platform, seen through one key.

        with weft.Client() as client:
            job = client.jobs.submit("weft.yaml")
            for line in job.logs(follow=True):
                print(line.text)
            print(job.wait().status, job.metrics("loss").values[-1])

    Without arguments it uses WEFT_URL and WEFT_KEY, else the profile that WEFT_PROFILE names, else the current profile
    (`weft profile`). Threads may share a client. Errors are those of `weft.WeftError`.
    """

    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        profile: str | None = None,
        *,
        transport: httpx2.BaseTransport | None = None,
        on_wait: Callable[[WeftError], None] = lambda _why: None,
    ) -> None:
        """``transport``: another way than the network. ``on_wait`` hears why a request is about to be tried again."""
        self.profile: Profile = resolve(base_url, key, profile)
        self._http = Http(self.profile, transport=transport, on_wait=on_wait)
        self.jobs = Jobs(self._http)

    @property
    def url(self) -> str:
        return self.profile.url

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def version(self) -> dict[str, Any]:
        """`version`, `api` and `capabilities` of the platform."""
        return self._http.json("GET", "/v1/version")

    def whoami(self) -> dict[str, Any]:
        """`user`, `tenant`, `scope`, `key_id` and `permissions` of the key."""
        return self._http.json("GET", "/v1/whoami")

    def queue(self) -> list[dict[str, Any]]:
        """The jobs that wait, in order, each with its reason."""
        return list(self._http.json("GET", "/v1/queue")["waiting"])

    def cluster(self) -> dict[str, Any]:
        """Nodes, totals and what is used."""
        return self._http.json("GET", "/v1/cluster")

    def frameworks(self) -> list[dict[str, Any]]:
        """The environments that a job may name."""
        return list(self._http.json("GET", "/v1/frameworks")["frameworks"])

    def sizes(self) -> list[dict[str, Any]]:
        """The T-shirt sizes of learners."""
        return list(self._http.json("GET", "/v1/sizes")["sizes"])
