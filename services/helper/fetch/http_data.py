"""Data behind a URL: downloaded once per tenant, and checked with its ETag afterwards.

All learners of a gang on this machine take the same file, with or without an ETag (``DataVersions``).
"""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urljoin, urlsplit

from services.core.domain.plan import Input
from services.core.runtime.learner_folder import Assignment
from services.helper.fetch.addresses import DENIED, CheckedUrl, check_url
from services.helper.fetch.download import NOT_FOUND, TemporaryFailure, give, keep, locked_place, refresh
from services.helper.fetch.progress import FetchFailed, FetchProgress
from services.helper.fetch.versions import DataVersions
from services.helper.settings import HelperSettings

_REDIRECTS: Final = 5
_MOVED: Final = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class _Url:
    """See ``services.helper.fetch.download.Remote``."""

    address: str
    name: str
    allowed: tuple[str, ...]

    @contextlib.contextmanager
    def get(self, headers: dict[str, str]) -> Generator[http.client.HTTPResponse]:
        """The response to GET. Each redirect is checked like the first address."""
        url = self.address
        for _ in range(_REDIRECTS + 1):
            checked: CheckedUrl = check_url(url, self.allowed)
            with contextlib.closing(checked.connect()) as connection:
                connection.request(
                    "GET", checked.target, headers={"User-Agent": "weft", "Accept-Encoding": "identity", **headers}
                )
                with connection.getresponse() as response:
                    location = response.headers.get("Location")
                    if response.status not in _MOVED or not location:
                        yield response
                        return
                    url = urljoin(url, location)
        raise FetchFailed(NOT_FOUND, f"{url} is behind too many redirects")

    def check(self, response: http.client.HTTPResponse) -> None:
        if response.status in {200, 206}:
            return
        if response.status in {401, 403}:
            raise FetchFailed(
                DENIED,
                f"{self.address} answers {response.status}: it is not public; secrets are for stores of type s3 only",
            )
        if response.status in {408, 425, 429} or response.status >= 500:
            raise TemporaryFailure(f"the server answers {response.status}")
        raise FetchFailed(NOT_FOUND, f"{self.address} answers {response.status} {response.reason}; check the address")


def fetch_http(
    entry: Input,
    target: Path,
    assignment: Assignment,
    *,
    settings: HelperSettings,
    versions: DataVersions,
    progress: FetchProgress,
) -> str:
    """Makes ``target/<file name>`` the file behind the URL, read-only. Returns its digest.

    Raises FetchFailed where it is not allowed, too large, missing, or unavailable after several tries (an outage).
    """
    url = _url(entry)
    name = unquote(urlsplit(url).path).rsplit("/", 1)[-1]
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise FetchFailed(DENIED, f"{url} names no file; give the address of one file, e.g. https://host/data.csv")
    with locked_place(assignment, url, name, progress) as place:
        body, digest = versions.file(entry), versions.digest(entry)
        if digest is None or not body.exists():
            digest = refresh(
                _Url(url, name, settings.http_allow),
                place,
                settings.http_max_bytes,
                progress,
                keep_free=assignment.data_keep_free,
                report=progress.report_bytes,
            )
            body = keep(place / "body", body)
        target.mkdir(mode=0o755)
        give(body, target / name, shared=assignment.owner is not None, keep_free=assignment.data_keep_free)
    return digest


def _url(entry: Input) -> str:
    if not entry.path:
        return entry.location
    return entry.location.rstrip("/") + "/" + quote(entry.path.lstrip("/"), safe="/%?=&+~")
