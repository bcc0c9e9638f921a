"""A file that is downloaded into a cache: once, resumed after an interruption, and checked with its ETag afterwards.

A place in the cache has ``body`` with ``body.json`` (its ETag and digest), and ``part`` with ``part.json`` (the same of
an interrupted download, which is resumed by Range). One helper downloads at a time; the others of the gang wait and
take the same file. Never shared between tenants: one tenant's access to an address does not mean that another has it.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import shutil
import socket
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol

from services.core.domain.errors import NoSpace
from services.core.domain.outages import Outage
from services.core.runtime.durable_files import FULL, read_json, write_json
from services.core.runtime.learner_folder import Assignment
from services.helper.fetch.lock import hold_lock
from services.helper.fetch.progress import FetchFailed, FetchProgress
from services.helper.fetch.space import check_space

NOT_FOUND: Final = "DataNotFound"
"""The store answers, and has no such file: the spec is wrong."""
TOO_LARGE: Final = "DataTooLarge"
TRIES: Final = 4
"""Seven seconds of pauses. After that the hardware is given back, and the job is tried again later."""
_CHUNK: Final = 2**20
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-", re.IGNORECASE)
_NO_SUCH_HOST: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
ReportBytes = Callable[[int, int | None], None]
"""Called with the bytes received, and the size of the file (None: unknown). May raise FetchCancelled."""


class TemporaryFailure(Exception):
    """The server or the connection failed; another try may succeed."""


def why_failed(error: Exception) -> str:
    """What failed, for messages: without words of the server, which could send back a signed request."""
    foreign = isinstance(error, http.client.HTTPException) and not isinstance(error, OSError)
    return type(error).__name__ if foreign else str(error) or type(error).__name__


class _PartRefused(TemporaryFailure):
    """The server has nothing that continues ``part``.

    Either that is the whole file, whose helper ended before the last step, or the file has changed: a server that
    ignores If-Range sends the end of its new version.
    """


class Remote(Protocol):
    """A file on a server."""

    @property
    def address(self) -> str:
        """Its address for messages, without credentials."""
        ...

    @property
    def name(self) -> str:
        """Its name for messages."""
        ...

    def get(self, headers: dict[str, str]) -> AbstractContextManager[http.client.HTTPResponse]:
        """The response to GET with these headers. Raises FetchFailed, TemporaryFailure, OSError, HTTPException."""
        ...

    def check(self, response: http.client.HTTPResponse) -> None:
        """Raises FetchFailed or TemporaryFailure unless the status is 200 or 206."""
        ...


@contextlib.contextmanager
def locked_place(assignment: Assignment, address: str, name: str, progress: FetchProgress) -> Generator[Path]:
    """Yields the tenant's place in the cache for what is at an address, under its lock."""
    data = Path(assignment.cache) / "data"
    data.mkdir(parents=True, exist_ok=True, mode=0o700)  # closed to learners, who get their files by other names
    place = data / assignment.plan.tenant / hashlib.sha256(address.encode()).hexdigest()
    with contextlib.ExitStack() as stack:
        while True:
            # Not with ``exist_ok``: it raises FileExistsError, too, if the folder is removed before it is looked at.
            try:
                place.mkdir(parents=True)
            except FileExistsError:
                if any(path.is_symlink() and not path.exists() for path in (place.parent, place)):
                    raise  # for example a folder on a disk that is not mounted
            locking = hold_lock(place / "lock", progress, f"waiting for another learner that downloads {name}")
            try:
                lock = stack.enter_context(locking)
                if os.path.samestat(os.fstat(lock), (place / "lock").stat()):
                    break
            except FileNotFoundError:
                pass
            stack.close()  # the cache has removed the place meanwhile, with this lock
        os.utime(place / "lock")  # used now: the cache removes what was not used for longest
        yield place


def described(place: Path) -> dict[str, Any]:
    """ETag and digest of ``place/body``; empty where there is none."""
    return _read(place / "body.json")


def refresh(
    remote: Remote, place: Path, max_bytes: int, progress: FetchProgress, *, keep_free: int, report: ReportBytes
) -> str:
    """Brings ``place/body`` up to date. Returns its digest.

    Uses the cached file while the server is unavailable. Removes a partial file when the disk is full.
    Raises FetchFailed, FetchCancelled.
    ``max_bytes``: of the file; ``keep_free``: bytes of the disk that are left free; ``report``: called as bytes arrive.
    """
    for attempt in range(1, TRIES + 1):
        try:
            _download(remote, place, max_bytes, progress, keep_free=keep_free, report=report)
            break
        except (FetchFailed, NoSpace):  # nothing will be resumed
            (place / "part").unlink(missing_ok=True)
            raise
        except (TemporaryFailure, OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in FULL:
                (place / "part").unlink(missing_ok=True)
                raise
            if (place / "body.json").exists():
                break
            why = why_failed(error)
            if attempt == TRIES:
                # A name server that does not answer is EAI_AGAIN; this one says that there is no such host.
                unknown = isinstance(error, socket.gaierror) and error.errno in _NO_SUCH_HOST
                reason = NOT_FOUND if unknown else Outage.DATA_STORE_UNAVAILABLE
                raise FetchFailed(reason, f"{remote.address} cannot be downloaded: {why}") from error
            progress.report(f"downloading {remote.name}: {why}; trying again")
            progress.wait(min(10.0, 0.5 * 2**attempt))
    return str(described(place)["sha256"])


def _download(
    remote: Remote, place: Path, max_bytes: int, progress: FetchProgress, *, keep_free: int, report: ReportBytes
) -> None:
    try:
        _continue(remote, place, max_bytes, progress, keep_free=keep_free, report=report)
    except _PartRefused:
        (place / "part").unlink(missing_ok=True)
        _continue(remote, place, max_bytes, progress, keep_free=keep_free, report=report)


def _continue(
    remote: Remote, place: Path, max_bytes: int, progress: FetchProgress, *, keep_free: int, report: ReportBytes
) -> None:
    """Downloads what is missing: the rest of ``part``, or everything. Raises _PartRefused."""
    cached, part = described(place), _read(place / "part.json")
    headers: dict[str, str] = {}
    resumed = (place / "part").stat().st_size if part and (place / "part").exists() else 0
    if resumed and part.get("etag"):
        headers = {"Range": f"bytes={resumed}-", "If-Range": part["etag"]}
    elif cached.get("etag"):
        headers = {"If-None-Match": cached["etag"]}
    with remote.get(headers) as response:
        if response.status == 304 and cached:
            return
        if response.status == 416 and resumed:
            raise _PartRefused("the server has nothing behind the part that was received")
        remote.check(response)
        if response.status == 206 and not ("Range" in headers and _continues(response, resumed, part["etag"])):
            raise _PartRefused("the server sends a part of the file that does not continue the received one")
        if response.status != 206:
            resumed = 0
        length = response.headers.get("Content-Length", "")
        total = resumed + int(length) if _LENGTH.fullmatch(length) else None
        if (total or 0) > max_bytes:
            raise FetchFailed(TOO_LARGE, f"{remote.address} is larger than the operator allows (WEFT_HTTP_MAX_BYTES)")
        etag = response.headers.get("ETag", "")
        if not resumed:  # before part.json has another version's ETag
            (place / "part").unlink(missing_ok=True)
        check_space(place, keep_free, (total or 0) - resumed, remote.name)
        write_json(place / "part.json", {"etag": "" if etag.startswith("W/") else etag}, durable=False)
        progress.report(f"downloading {remote.name}")
        for received in _receive(response, place / "part", resumed, max_bytes):
            check_space(place, keep_free, max(_CHUNK, (total or 0) - received), remote.name)
            report(received, total)
        if total is not None and (place / "part").stat().st_size < total:
            raise TemporaryFailure(f"the connection broke before its {total} bytes had come")
    with (place / "part").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    (place / "part").chmod(0o444)
    (place / "body.json").unlink(missing_ok=True)  # a body counts only with its description
    (place / "part").replace(place / "body")
    write_json(place / "body.json", {"etag": etag, "sha256": digest})
    (place / "part.json").unlink(missing_ok=True)


def _continues(response: http.client.HTTPResponse, start: int, etag: str) -> bool:
    """Whether a 206 has the bytes from ``start`` of the version with this ETag (RFC 9110, 15.3.7)."""
    content_range = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
    is_next = content_range is not None and int(content_range[1]) == start
    return is_next and response.headers.get("ETag", "") == etag


def _receive(response: http.client.HTTPResponse, part: Path, size: int, limit: int) -> Generator[int]:
    """Writes the response behind the first ``size`` bytes of ``part``; yields its size after each chunk."""
    with part.open("r+b" if size else "wb") as file:
        file.truncate(size)
        file.seek(size)
        while chunk := response.read(_CHUNK):
            size += len(chunk)
            if size > limit:
                raise FetchFailed(TOO_LARGE, "the file is larger than the operator allows (WEFT_HTTP_MAX_BYTES)")
            file.write(chunk)
            yield size


def keep(body: Path, kept: Path) -> Path:
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


def give(body: Path, target: Path, *, shared: bool, keep_free: int) -> None:
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
