"""Data behind a URL: downloaded once per tenant, then asked for with its ETag only.

The cache is ``$WEFT_HOME/cache/data/<tenant>/<digest of the URL>/``: ``body`` with ``body.json`` (what it is), and
``part`` with ``part.json`` (what it will be) of a download that was cut short, which is resumed by Range. One helper
downloads at a time, the others of the gang wait and then find it. Never shared between tenants: that one has fetched an
address says nothing on whether another may.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import http.client
import json
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urljoin, urlsplit

from services.core.domain.plan import Input
from services.helper.fetch.addresses import DENIED, Checked, check
from services.helper.fetch.watched import Cannot, Watched
from services.helper.folder import Assignment, write_json
from services.helper.settings import FetchSettings

UNAVAILABLE: Final = "DataStoreUnavailable"
_CHUNK: Final = 2**20
_REDIRECTS: Final = 5
_TRIES: Final = 6
_MOVED: Final = frozenset({301, 302, 303, 307, 308})


class _Again(Exception):
    """The server or the way to it failed: another try may do."""


def fetch_http(one: Input, target: Path, assignment: Assignment, settings: FetchSettings, watched: Watched) -> str:
    """``target/<file name>`` is the file behind the URL, read-only; its digest. Cannot."""
    url = one.location.rstrip("/") + "/" + quote(one.path.lstrip("/"), safe="/%?=&+~") if one.path else one.location
    name = unquote(urlsplit(url).path).rsplit("/", 1)[-1]
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise Cannot(DENIED, f"{url} names no file; give the address of one file, e.g. https://host/data.csv")
    data = Path(assignment.cache) / "data"
    data.mkdir(parents=True, exist_ok=True, mode=0o700)  # closed to learners, who get their files by other names
    place = data / assignment.plan.tenant / hashlib.sha256(url.encode()).hexdigest()
    place.mkdir(parents=True, exist_ok=True)
    with _alone(place / "lock", watched, name):
        _refresh(url, name, place, settings, watched)
        described = _read(place / "body.json")
        target.mkdir(mode=0o755)
        _give(place / "body", target / name, shared=assignment.owner is not None)
    return str(described["sha256"])


def _refresh(url: str, name: str, place: Path, settings: FetchSettings, watched: Watched) -> None:
    """The cache holds what the server has now; what it held, where the server cannot be asked."""
    for attempt in range(1, _TRIES + 1):
        try:
            _download(url, name, place, settings, watched)
            return
        except (_Again, OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise
            if (place / "body.json").exists():
                return
            why = str(error) or type(error).__name__
            if attempt == _TRIES:
                raise Cannot(UNAVAILABLE, f"{url} cannot be downloaded: {why}") from error
            watched.say(f"downloading {name}: {why}; trying again")
            watched.wait(min(10.0, 0.5 * 2**attempt))


def _download(url: str, name: str, place: Path, settings: FetchSettings, watched: Watched) -> None:
    have, part = _read(place / "body.json"), _read(place / "part.json")
    headers: dict[str, str] = {}
    resumed = (place / "part").stat().st_size if part and (place / "part").exists() else 0
    if resumed and part.get("etag"):
        headers = {"Range": f"bytes={resumed}-", "If-Range": part["etag"]}
    elif have.get("etag"):
        headers = {"If-None-Match": have["etag"]}
    with _asked(url, settings, headers) as answer:
        if answer.status == 304 and have:
            return
        _check_status(answer, url)
        if answer.status != 206:
            resumed = 0
        length = answer.headers.get("Content-Length", "")
        total = resumed + int(length) if length.isdigit() else None
        if (total or 0) > settings.http_max_bytes:
            raise Cannot("DataTooLarge", f"{url} is larger than the operator allows (WEFT_HTTP_MAX_BYTES)")
        etag = answer.headers.get("ETag", "")
        write_json(place / "part.json", {"etag": "" if etag.startswith("W/") else etag}, durable=False)
        of = f" of {total // 2**20}" if total else ""
        for so_far in _receive(answer, place / "part", resumed, settings.http_max_bytes):
            watched.say(f"downloading {name}: {so_far // 2**20}{of} MiB")
        if total is not None and (place / "part").stat().st_size < total:
            raise _Again(f"the connection broke before its {total} bytes had come")
    with (place / "part").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    (place / "part").chmod(0o444)
    (place / "body.json").unlink(missing_ok=True)  # a body without a description is none
    (place / "part").replace(place / "body")
    write_json(place / "body.json", {"etag": etag, "sha256": digest}, durable=True)
    (place / "part.json").unlink(missing_ok=True)


def _receive(answer: http.client.HTTPResponse, part: Path, have: int, most: int) -> Generator[int]:
    """Writes what comes behind the first ``have`` bytes; how many there are by now."""
    with part.open("r+b" if have else "wb") as file:
        file.truncate(have)
        file.seek(have)
        while chunk := answer.read(_CHUNK):
            have += len(chunk)
            if have > most:
                raise Cannot("DataTooLarge", "the file is larger than the operator allows (WEFT_HTTP_MAX_BYTES)")
            file.write(chunk)
            yield have


@contextlib.contextmanager
def _asked(url: str, settings: FetchSettings, headers: dict[str, str]) -> Generator[http.client.HTTPResponse]:
    """The answer to GET, redirects followed: each to a place that may be asked."""
    for _ in range(_REDIRECTS + 1):
        checked: Checked = check(url, settings.http_allow)
        with contextlib.closing(checked.connect()) as connection:
            connection.request(
                "GET", checked.target, headers={"User-Agent": "weft", "Accept-Encoding": "identity", **headers}
            )
            with connection.getresponse() as answer:
                to = answer.headers.get("Location")
                if answer.status not in _MOVED or not to:
                    yield answer
                    return
                url = urljoin(url, to)
    raise Cannot(UNAVAILABLE, f"{url} is behind too many redirects")


def _check_status(answer: http.client.HTTPResponse, url: str) -> None:
    if answer.status in {200, 206}:
        return
    if answer.status in {401, 403}:
        raise Cannot(DENIED, f"{url} answers {answer.status}: it is not public, and secrets are not available yet")
    if answer.status == 416:
        raise _Again("the file has changed")
    if answer.status in {408, 425, 429} or answer.status >= 500:
        raise _Again(f"the server answers {answer.status}")
    raise Cannot(UNAVAILABLE, f"{url} answers {answer.status} {answer.reason}; check the address")


def _give(body: Path, target: Path, *, shared: bool) -> None:
    """By a second name where the learner is another user, who can read but not change it; else by a copy."""
    if shared:
        with contextlib.suppress(OSError):
            os.link(body, target)
            return
    shutil.copyfile(body, target)


@contextlib.contextmanager
def _alone(path: Path, watched: Watched, name: str) -> Generator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            watched.say(f"waiting for another learner that downloads {name}")
            watched.wait(0.1)
        yield
    finally:
        os.close(fd)


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found
