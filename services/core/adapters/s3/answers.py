"""What S3 says, and which error of ours that is.

Whatever may be well a moment later, or once an operator has mended it, is Unavailable: credentials and buckets are the
platform's own, and nobody who asks for an object can do anything about them.
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
    """An operator has to mend it: the address, the credentials, their rights."""


class InTheWay(Conflict):
    """On servers that keep objects in folders: one cannot be where another is a part of its key. They say so for a
    moment, too, while a folder vanishes with its last object.
    """


class UploadGone(Unavailable):
    """The upload was ended by somebody, or never was: begin it again."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""

    @property
    def etag(self) -> str:
        return self.headers.get("etag", "").strip('"')

    def word(self, name: str) -> str:
        """The text of the first element of this name; empty where there is none."""
        found = re.search(rf"<{name}>([^<]*)</{name}>", self.body.decode(errors="replace"))
        return unescape(found[1]).strip() if found is not None else ""


def raise_for(answer: Answer, key: str) -> None:
    """The error that the answer is, if it is one. An upload may be refused with 200 (its body says so)."""
    if answer.status < 300 and b"<Error>" not in answer.body:
        return
    raise error_of(answer.status, answer.word("Code"), answer.word("Message"), key)


_FULL: Final = (NoSpace, "the object store is full; make room there, and try again")
_SHAPE: Final = (InTheWay, "{key} cannot be stored: a part of it is an object, or objects lie below it")
_REFUSED: Final = (
    Refused,
    "the object store refuses the platform's credentials ({code}); see WEFT_S3_ACCESS_KEY and the bucket's policy",
)
_BY_CODE: Final[dict[str, tuple[type[WeftError], str]]] = {
    "InsufficientStorage": _FULL,
    "QuotaExceeded": _FULL,
    "XMinioStorageFull": _FULL,
    "XMinioAdminBucketQuotaExceeded": _FULL,
    "ExistingObjectIsDirectory": _SHAPE,
    "ExistingObjectIsFile": _SHAPE,
    "ObjectParentIsFile": _SHAPE,
    "DirectoryObjectContainsData": _SHAPE,
    "NoSuchUpload": (UploadGone, "the upload of {key} is not there any more"),
    "NoSuchBucket": (Refused, "the object store's bucket is not there; see WEFT_OBJECT_STORE"),
    "XAdminUserNotFound": _REFUSED,  # versitygw's word, with 404
    **dict.fromkeys(
        ("PermanentRedirect", "AuthorizationHeaderMalformed", "AuthorizationQueryParametersError"),
        (Refused, "the object store is in another region, or is no S3 ({code}); see WEFT_S3_REGION, WEFT_S3_ENDPOINT"),
    ),
    "EntityTooLarge": (TooLarge, "{key} is larger than the object store takes"),
    "KeyTooLongError": (InvalidRequest, "the object store takes no key of this length"),
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


def error_of(status: int, code: str, said: str, key: str) -> WeftError:
    """``code``: S3's word; may be empty, where an answer has no body (HEAD)."""
    found = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if found is not None:
        kind, text = found
        message = text.format(key=key, code=code or status)
    elif status >= 500 or status in _AGAIN or code in _AGAIN_CODES:
        kind, message = Unavailable, f"the object store answers {status} {code}".rstrip()
    else:
        kind, message = Internal, f"the object store answers {status} {code} {said[:200]}".rstrip()
    return kind(message, retry_after_s=RETRY_AFTER_S if issubclass(kind, Unavailable) else None)
