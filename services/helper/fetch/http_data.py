"""Data behind a URL: downloaded once per tenant, and checked with its ETag afterwards.

The cache is ``$WEFT_HOME/cache/data/<tenant>/<digest of the URL>/``: ``body`` with ``body.json`` (its ETag and digest),
and ``part`` with ``part.json`` (the same of an interrupted download, which is resumed by Range). One helper downloads
at a time; the others of the gang wait and take the same file, with or without an ETag (``DataVersions``). Never shared
between tenants: one tenant's access to an address does not mean that another has it.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urljoin, urlsplit

from services.core.domain.errors import NoSpace
from services.core.domain.outages import Outage
from services.core.domain.plan import Input
from services.core.runtime.durable_files import FULL, read_json, write_json
from services.core.runtime.learner_folder import Assignment
from services.helper.fetch.addresses import DENIED, CheckedUrl, check_url
from services.helper.fetch.lock import hold_lock
from services.helper.fetch.progress import FetchFailed, FetchProgress
from services.helper.fetch.space import check_space
from services.helper.fetch.versions import DataVersions
from services.helper.settings import HelperSettings

NOT_FOUND: Final = "DataNotFound"
"""The store answers, and has no such file: the spec is wrong."""
_CHUNK: Final = 2**20
_REDIRECTS: Final = 5
_TRIES: Final = 4
"""Seven seconds of pauses. After that the hardware is given back, and the job is tried again later."""
_NO_SUCH_HOST: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
_MOVED: Final = frozenset({301, 302, 303, 307, 308})


class _TemporaryFailure(Exception):
    """The server or the connection failed; another try may succeed."""


class _PartRefused(Exception):
    """The server has nothing behind ``part``: it is the whole file, whose helper ended before the last step."""


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
    data = Path(assignment.cache) / "data"
    data.mkdir(parents=True, exist_ok=True, mode=0o700)  # closed to learners, who get their files by other names
    place = data / assignment.plan.tenant / hashlib.sha256(url.encode()).hexdigest()
    place.mkdir(parents=True, exist_ok=True)
    with hold_lock(place / "lock", progress, f"waiting for another learner that downloads {name}"):
        os.utime(place / "lock")  # used now: the cache removes what was not used for longest
        body, digest = versions.file(entry), versions.digest(entry)
        if digest is None or not body.exists():
            _refresh(url, name, place, settings, progress, keep_free=assignment.data_keep_free)
            digest = str(_read(place / "body.json")["sha256"])
            body = _keep(place / "body", body)
        target.mkdir(mode=0o755)
        _give(body, target / name, shared=assignment.owner is not None, keep_free=assignment.data_keep_free)
    return digest


def _url(entry: Input) -> str:
    if not entry.path:
        return entry.location
    return entry.location.rstrip("/") + "/" + quote(entry.path.lstrip("/"), safe="/%?=&+~")


def _refresh(
    url: str, name: str, place: Path, settings: HelperSettings, progress: FetchProgress, *, keep_free: int
) -> None:
    """Brings the cache up to date. An unavailable server leaves a cached file in use. A full disk keeps no part."""
    for attempt in range(1, _TRIES + 1):
        try:
            _download(url, name, place, settings, progress, keep_free=keep_free)
            return
        except (FetchFailed, NoSpace):  # nothing will be resumed
            (place / "part").unlink(missing_ok=True)
            raise
        except (_TemporaryFailure, OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in FULL:
                (place / "part").unlink(missing_ok=True)
                raise
            if (place / "body.json").exists():
                return
            why = str(error) or type(error).__name__
            if attempt == _TRIES:
                # A name server that does not answer is EAI_AGAIN; this one says that there is no such host.
                unknown = isinstance(error, socket.gaierror) and error.errno in _NO_SUCH_HOST
                reason = NOT_FOUND if unknown else Outage.DATA_STORE_UNAVAILABLE
                raise FetchFailed(reason, f"{url} cannot be downloaded: {why}") from error
            progress.report(f"downloading {name}: {why}; trying again")
            progress.wait(min(10.0, 0.5 * 2**attempt))


def _download(
    url: str, name: str, place: Path, settings: HelperSettings, progress: FetchProgress, *, keep_free: int
) -> None:
    try:
        _continue(url, name, place, settings, progress, keep_free=keep_free)
    except _PartRefused:
        (place / "part").unlink()
        _continue(url, name, place, settings, progress, keep_free=keep_free)


def _continue(
    url: str, name: str, place: Path, settings: HelperSettings, progress: FetchProgress, *, keep_free: int
) -> None:
    """Downloads what is missing: the rest of ``part``, or everything. Raises _PartRefused."""
    cached, part = _read(place / "body.json"), _read(place / "part.json")
    headers: dict[str, str] = {}
    resumed = (place / "part").stat().st_size if part and (place / "part").exists() else 0
    if resumed and part.get("etag"):
        headers = {"Range": f"bytes={resumed}-", "If-Range": part["etag"]}
    elif cached.get("etag"):
        headers = {"If-None-Match": cached["etag"]}
    with _get(url, settings, headers) as response:
        if response.status == 304 and cached:
            return
        if response.status == 416 and resumed:
            raise _PartRefused
        _check_status(response, url)
        if response.status != 206:
            resumed = 0
        length = response.headers.get("Content-Length", "")
        total = resumed + int(length) if length.isdigit() else None
        if (total or 0) > settings.http_max_bytes:
            raise FetchFailed("DataTooLarge", f"{url} is larger than the operator allows (WEFT_HTTP_MAX_BYTES)")
        etag = response.headers.get("ETag", "")
        if not resumed:  # before part.json has another version's ETag
            (place / "part").unlink(missing_ok=True)
        check_space(place, keep_free, (total or 0) - resumed, name)
        write_json(place / "part.json", {"etag": "" if etag.startswith("W/") else etag}, durable=False)
        progress.report(f"downloading {name}")
        for received in _receive(response, place / "part", resumed, settings.http_max_bytes):
            check_space(place, keep_free, max(_CHUNK, (total or 0) - received), name)
            progress.report_bytes(received, total)
        if total is not None and (place / "part").stat().st_size < total:
            raise _TemporaryFailure(f"the connection broke before its {total} bytes had come")
    with (place / "part").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    (place / "part").chmod(0o444)
    (place / "body.json").unlink(missing_ok=True)  # a body counts only with its description
    (place / "part").replace(place / "body")
    write_json(place / "body.json", {"etag": etag, "sha256": digest})
    (place / "part.json").unlink(missing_ok=True)


def _receive(response: http.client.HTTPResponse, part: Path, size: int, limit: int) -> Generator[int]:
    """Writes the response behind the first ``size`` bytes of ``part``; yields its size after each chunk."""
    with part.open("r+b" if size else "wb") as file:
        file.truncate(size)
        file.seek(size)
        while chunk := response.read(_CHUNK):
            size += len(chunk)
            if size > limit:
                raise FetchFailed("DataTooLarge", "the file is larger than the operator allows (WEFT_HTTP_MAX_BYTES)")
            file.write(chunk)
            yield size


@contextlib.contextmanager
def _get(url: str, settings: HelperSettings, headers: dict[str, str]) -> Generator[http.client.HTTPResponse]:
    """The response to GET. Each redirect is checked like the first address."""
    for _ in range(_REDIRECTS + 1):
        checked: CheckedUrl = check_url(url, settings.http_allow)
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


def _check_status(response: http.client.HTTPResponse, url: str) -> None:
    if response.status in {200, 206}:
        return
    if response.status in {401, 403}:
        raise FetchFailed(
            DENIED, f"{url} answers {response.status}: it is not public, and secrets are not available yet"
        )
    if response.status in {408, 425, 429} or response.status >= 500:
        raise _TemporaryFailure(f"the server answers {response.status}")
    raise FetchFailed(NOT_FOUND, f"{url} answers {response.status} {response.reason}; check the address")


def _keep(body: Path, kept: Path) -> Path:
    """Gives the body a second name for the attempt, and returns the name to use.

    The caches may lie on another file system than the learners' folders: then there is the body's own name only, and
    another job of the tenant may replace it by a newer version.
    """
    kept.unlink(missing_ok=True)
    try:
        os.link(body, kept)
    except OSError:
        return body
    return kept


def _give(body: Path, target: Path, *, shared: bool, keep_free: int) -> None:
    """``shared``: the learner is another user, who can read but not change the file: a hard link. Else a copy."""
    if shared:
        with contextlib.suppress(OSError):
            os.link(body, target)
            return
    check_space(target.parent, keep_free, body.stat().st_size, target.name)
    shutil.copyfile(body, target)


def _read(path: Path) -> dict[str, Any]:
    """Empty for a missing or unreadable file."""
    try:
        return read_json(path) or {}
    except (TypeError, ValueError):
        return {}
