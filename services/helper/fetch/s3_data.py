"""Data in the tenant's own S3 store: one object, or all objects below a prefix, each downloaded once per tenant.

The helper has no credentials: the metrics service signs a URL for each request (``services.metrics.data_signing``).
Such a URL stays in memory; messages have the address without the signature. The store's address is checked like that of
other downloads, and no redirect is followed. The list is the word of a server that anyone may run: names, their number
and sizes are checked before anything is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote, urlsplit

from services.core.domain.errors import PermissionDenied, Unavailable
from services.core.domain.outages import Outage
from services.core.domain.plan import Input
from services.core.domain.s3_data import S3Objects, s3_objects
from services.core.domain.text import storable
from services.core.runtime.learner_folder import Assignment
from services.helper.fetch.addresses import DENIED, check_url
from services.helper.fetch.download import (
    NOT_FOUND,
    TOO_LARGE,
    TRIES,
    ReportBytes,
    TemporaryFailure,
    described,
    give,
    locked_place,
    refresh,
    why_failed,
)
from services.helper.fetch.progress import FetchFailed, FetchProgress
from services.helper.fetch.s3_list import Listed, UnreadableList, read_page
from services.helper.fetch.versions import DataVersions
from services.helper.objects import UrlSigner
from services.helper.settings import HelperSettings

SECRET_INVALID: Final = "SecretInvalid"  # noqa: S105 - a reason
"""The secret is missing, lacks a key, or the store refuses it."""
MOST_OBJECTS: Final = 100_000
"""Of one input. A larger set belongs into archives: each object costs a request."""
_KEYS: Final = 16 * 2**20
"""Characters of all keys of an input: each helper has them in memory."""
_CHUNK: Final = 64 * 1024
_ERROR_BYTES: Final = 64 * 1024
_NAME_BYTES: Final = 255
_PAUSE_MOST_S: Final = 2.0
_CODE: Final = re.compile(rb"<Code>([A-Za-z]{1,64})</Code>")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_REFUSED: Final = {
    "InvalidAccessKeyId": "does not know the access key",
    "SignatureDoesNotMatch": "refuses the secret key",
    "ExpiredToken": "says that the session token has expired",
    "InvalidToken": "refuses the session token",
    "AccessDenied": "denies access to this",
}
"""Codes of a store's errors, which are not quoted: a hostile server could send back what was signed."""
_CLOCK: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_PLACE: Final = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect", "IllegalLocation"})
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Store:
    """The objects of an input, as this helper reaches them."""

    entry: Input
    objects: S3Objects
    signer: UrlSigner
    allowed: tuple[str, ...]
    progress: FetchProgress

    def address(self, key: str) -> str:
        """For messages, and as the key of the cache."""
        return f"{self.objects.endpoint}/{self.objects.bucket}/{quote(key)}"

    @contextlib.contextmanager
    def get(self, key: str, headers: dict[str, str], *, after: str = "") -> Generator[http.client.HTTPResponse]:
        """The response to GET of an object, or without a key of the page of the list after a token."""
        # The unsigned address is checked, and is the one in errors.
        checked = check_url(f"{self.objects.endpoint}/", self.allowed)
        signed = urlsplit(self._signed(key, after))
        with contextlib.closing(checked.connect()) as connection:
            # The host as it was signed: with its port, also where that is the usual one, and with its capitals.
            sent = {"Host": signed.netloc, "User-Agent": "weft", "Accept-Encoding": "identity", **headers}
            connection.request("GET", f"{signed.path}?{signed.query}", headers=sent)
            with connection.getresponse() as response:
                yield response

    def _signed(self, key: str, after: str) -> str:
        """Waits while the platform cannot sign."""
        pause_s = 0.05
        while True:
            try:
                return asyncio.run(self.signer.call(lambda intake: intake.sign_data(self.entry.mount, key, after)))
            except Unavailable as away:
                self.progress.report(f"waiting: {away.message}")
                self.progress.wait(pause_s)
                pause_s = min(_PAUSE_MOST_S, pause_s * 2)
            except PermissionDenied as denied:
                raise FetchFailed(SECRET_INVALID, f"data store for '{self.entry.mount}': {denied.message}") from None

    def check(self, response: http.client.HTTPResponse, key: str) -> None:
        """Raises FetchFailed or TemporaryFailure unless the status is 200 or 206."""
        status, address = response.status, self.address(key)
        if status in {200, 206}:
            return
        match = _CODE.search(response.read(_ERROR_BYTES))
        code = match[1].decode() if match is not None else ""
        if status in {408, 425, 429} or status >= 500 or code in _CLOCK:
            clocks = ": its clock and that of the platform differ" if code in _CLOCK else ""
            raise TemporaryFailure(f"the server answers {status}{clocks}")
        if status in {301, 302, 307, 308} or code in _PLACE:
            raise FetchFailed(NOT_FOUND, f"{address} is in another place; correct `endpoint` and `region` of its store")
        if status in {400, 401, 403}:
            raise FetchFailed(
                SECRET_INVALID,
                f"the store of {address} {_REFUSED.get(code, f'answers {status}')}; correct the secret"
                f" '{self.entry.secret}' (`weft secret set {self.entry.secret}`) or what its key may read",
            )
        folder = "" if self.objects.is_folder else "; for all objects below a folder write its path with a final '/'"
        raise FetchFailed(NOT_FOUND, f"{address} answers {status}: there is no such bucket or object{folder}")


@dataclass(frozen=True, slots=True)
class _Object:
    """See ``services.helper.fetch.download.Remote``."""

    store: _Store
    key: str

    @property
    def address(self) -> str:
        return self.store.address(self.key)

    @property
    def name(self) -> str:
        return storable(self.key)

    def get(self, headers: dict[str, str]) -> contextlib.AbstractContextManager[http.client.HTTPResponse]:
        return self.store.get(self.key, headers)

    def check(self, response: http.client.HTTPResponse) -> None:
        self.store.check(response, self.key)


def fetch_s3(
    entry: Input,
    target: Path,
    assignment: Assignment,
    *,
    settings: HelperSettings,
    versions: DataVersions,  # noqa: ARG001 - the caller compares digests; nothing is kept of the attempt
    progress: FetchProgress,
    signer: UrlSigner,
) -> str:
    """Makes ``target`` a folder with the objects, read-only, by their names below the input's path.

    Returns their digest. Raises FetchFailed where they are missing, too large, not allowed or unavailable after several
    tries (an outage).
    """
    store = _Store(entry, s3_objects(entry.location, entry.path), signer, settings.http_allow, progress)
    hashing = hashlib.sha256()

    def fetch(key: str, name: str, listed: Listed | None, report: ReportBytes, *, most: int) -> int:
        """Returns the bytes of the object. ``most``: of them."""
        with locked_place(assignment, f"s3 {store.address(key)}", storable(key), progress) as place:
            digest = _cached(place, listed) or refresh(
                _Object(store, key),
                place,
                most,
                progress,
                keep_free=assignment.data_keep_free,
                report=report,
            )
            path = target / name
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            size = (place / "body").stat().st_size
            give(place / "body", path, shared=assignment.owner is not None, keep_free=assignment.data_keep_free)
        hashing.update(f"{name}\0{digest}\n".encode())
        return size

    target.mkdir(mode=0o755)
    if not store.objects.is_folder:
        key = store.objects.key
        name = _names([key], key[: key.rfind("/") + 1])[0]
        fetch(key, name, None, progress.report_bytes, most=settings.http_max_bytes)
        return hashing.hexdigest()
    listed = _list(store)
    names = _names([item.key for item in listed], store.objects.key)
    total, done = sum(item.size for item in listed), 0
    if total > settings.http_max_bytes:
        raise FetchFailed(
            TOO_LARGE,
            f"the objects of {store.address(store.objects.key)} are larger than the operator allows"
            " (WEFT_HTTP_MAX_BYTES)",
        )
    for item, name in sorted(zip(listed, names, strict=True), key=lambda pair: pair[1]):
        before = done

        def report(received: int, _: int | None, before: int = before) -> None:
            progress.report_bytes(before + received, total)

        # Its size in the list is the server's word: all objects together are bounded by what has come.
        done += fetch(item.key, name, item, report, most=settings.http_max_bytes - done)
        progress.report_bytes(done, total)
    return hashing.hexdigest()


def _cached(place: Path, listed: Listed | None) -> str:
    """The digest of the cached file if it is the one that the list names; else empty."""
    cached = described(place)
    if listed is None or not listed.etag or str(cached.get("etag", "")).strip('"') != listed.etag:
        return ""
    try:
        return str(cached["sha256"]) if (place / "body").stat().st_size == listed.size else ""
    except OSError:
        return ""


def _list(store: _Store) -> list[Listed]:
    """All objects of the input, without the empty ones that stand for folders. At least one."""
    objects: list[Listed] = []
    size = 0
    after, tokens = "", set[str]()
    address = store.address(store.objects.key)
    while True:
        store.progress.report(f"listing {address}: {len(objects)} objects")
        page, after = _tried(store, lambda after=after: _page(store, after))  # type: ignore[misc]
        objects += [item for item in page if item.size or not item.key.endswith("/")]
        size += sum(len(item.key) + len(item.etag) for item in page)
        if len(objects) > MOST_OBJECTS or size > _KEYS:
            raise FetchFailed(
                TOO_LARGE,
                f"{address} has more than {MOST_OBJECTS} objects, or their keys are too long together; put them into"
                " fewer, larger archives",
            )
        if not after:
            break
        if not page or after in tokens:
            raise FetchFailed(DENIED, f"the list of {address} does not end")
        tokens.add(after)
    if not objects:
        raise FetchFailed(NOT_FOUND, f"there is no object below {address}; correct `url` of its store, or `path`")
    return objects


def _tried(store: _Store, call: Callable[[], Result]) -> Result:
    """Tries again if the server fails."""
    for attempt in range(1, TRIES + 1):
        try:
            return call()
        except (TemporaryFailure, OSError, http.client.HTTPException) as error:
            why = why_failed(error)
            if attempt == TRIES:
                raise FetchFailed(
                    Outage.DATA_STORE_UNAVAILABLE, f"{store.objects.endpoint} cannot list the objects: {why}"
                ) from error
            store.progress.report(f"listing: {why}; trying again")
            store.progress.wait(min(10.0, 0.5 * 2**attempt))
    raise AssertionError


def _page(store: _Store, after: str) -> tuple[list[Listed], str]:
    """A page of the list, and the token of the next; empty: it is the last."""
    unreadable = FetchFailed(DENIED, f"{store.objects.endpoint} sends a list that cannot be read")
    with store.get("", {}, after=after) as response:
        store.check(response, store.objects.key)
        try:
            page, after = read_page(_received(response, store.progress))
        except UnreadableList:
            raise unreadable from None
    if any(not store.objects.has(item.key) for item in page):
        raise unreadable
    return page, after


def _received(response: http.client.HTTPResponse, progress: FetchProgress) -> Generator[bytes]:
    """The body as it comes. Raises TemporaryFailure if the connection broke, FetchCancelled after a stop."""
    while chunk := response.read(_CHUNK):
        progress.check()
        yield chunk
    if response.length:
        raise TemporaryFailure("the connection broke before the whole list had come")


def _names(keys: Sequence[str], base: str) -> list[str]:
    """The objects' names below their folder. Raises FetchFailed for names that are no files there."""
    names = [key.removeprefix(base) for key in keys]
    files, folders, size = set(names), set[str](), 0
    for name in names:
        parts = name.split("/")
        if (
            {"", ".", ".."} & set(parts)
            or _CONTROL.search(name)
            or any(len(part.encode(errors="replace")) > _NAME_BYTES for part in parts)
        ):
            raise _no_file(base + name)
        folder = name.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            size += len(folder)
            if len(folders) > MOST_OBJECTS or size > _KEYS:
                raise FetchFailed(TOO_LARGE, f"the objects below '{storable(base)[:300]}' are in too many folders")
            folder = folder.rpartition("/")[0]
    if both := files & folders:
        raise _no_file(base + min(both))
    if len(files) != len(names):
        raise FetchFailed(DENIED, "two objects have the same name")
    return names


def _no_file(key: str) -> FetchFailed:
    return FetchFailed(DENIED, f"the object '{storable(key)[:300]}' has a name that no file can have")
