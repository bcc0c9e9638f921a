"""Translates responses of S3 to WeftErrors.

Errors that may pass, or that an operator has to mend, are Unavailable: credentials and buckets are the platform's own,
and the users of objects cannot change them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import unescape
from typing import Final

from services.core.domain.errors import (
    Conflict,
    Duplicate,
    Internal,
    InvalidRequest,
    NoSpace,
    NotFound,
    TooLarge,
    Unavailable,
    WeftError,
)

RETRY_AFTER_S: Final = 1.0


class Refused(Unavailable):
    """An operator has to mend the address, the credentials or their rights."""


class InTheWay(Conflict):
    """On servers that keep objects in folders, a key cannot contain another object's key as a folder. They also report
    this for a moment while a folder is removed with its last object.
    """


class UploadGone(Unavailable):
    """The upload was aborted or never existed: begin again."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""

    @property
    def etag(self) -> str:
        return self.headers.get("etag", "").strip('"')

    def element(self, name: str) -> str:
        """The text of the first XML element of this name; empty without one."""
        match = re.search(rf"<{name}>([^<]*)</{name}>", self.body.decode(errors="replace"))
        return unescape(match[1]).strip() if match is not None else ""


def raise_for(answer: Answer, key: str) -> None:
    """Raises the error of an answer, if it is one. S3 may refuse to complete an upload with status 200."""
    if answer.status < 300 and b"<Error>" not in answer.body:
        return
    raise error_of(answer.status, answer.element("Code"), answer.element("Message"), key)


_FULL: Final = (NoSpace, "the object store is full; make room there, and try again")
_IN_THE_WAY: Final = (InTheWay, "{key} cannot be stored: a part of it is an object, or objects lie below it")
_REFUSED: Final = (
    Refused,
    "the object store refuses the platform's credentials ({code}); see WEFT_S3_ACCESS_KEY and the bucket's policy",
)
_BY_CODE: Final[dict[str, tuple[type[WeftError], str]]] = {
    "InsufficientStorage": _FULL,
    "QuotaExceeded": _FULL,
    "XMinioStorageFull": _FULL,
    "XMinioAdminBucketQuotaExceeded": _FULL,
    "ExistingObjectIsDirectory": _IN_THE_WAY,
    "ExistingObjectIsFile": _IN_THE_WAY,
    "ObjectParentIsFile": _IN_THE_WAY,
    "DirectoryObjectContainsData": _IN_THE_WAY,
    "NoSuchUpload": (UploadGone, "the upload of {key} does not exist any more"),
    "NoSuchBucket": (Refused, "the object store's bucket does not exist; see WEFT_OBJECT_STORE"),
    "XAdminUserNotFound": _REFUSED,  # versitygw's code, with 404
    **dict.fromkeys(
        ("PermanentRedirect", "AuthorizationHeaderMalformed", "AuthorizationQueryParametersError"),
        (Refused, "the object store is in another region, or is not S3 ({code}); see WEFT_S3_REGION, WEFT_S3_ENDPOINT"),
    ),
    "EntityTooLarge": (TooLarge, "{key} is larger than the object store accepts"),
    "KeyTooLongError": (InvalidRequest, "the object store does not accept a key of this length"),
}
_BY_STATUS: Final[dict[int, tuple[type[WeftError], str]]] = {
    401: _REFUSED,
    403: _REFUSED,
    404: (NotFound, "there is no object {key}"),
    412: (Duplicate, "there is an object {key}"),
    507: _FULL,
}
_AGAIN: Final = frozenset({408, 409, 429})
_AGAIN_CODES: Final = frozenset({"RequestTimeout", "BadDigest", "IncompleteBody"})


def error_of(status: int, code: str, text: str, key: str) -> WeftError:
    """The WeftError for a status and S3's error code, which is empty for an answer without a body (HEAD)."""
    known = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if known is not None:
        kind, template = known
        message = template.format(key=key, code=code or status)
    elif status >= 500 or status in _AGAIN or code in _AGAIN_CODES:
        kind, message = Unavailable, f"the object store answers {status} {code}".rstrip()
    else:
        kind, message = Internal, f"the object store answers {status} {code} {text[:200]}".rstrip()
    return kind(message, retry_after_s=RETRY_AFTER_S if issubclass(kind, Unavailable) else None)
