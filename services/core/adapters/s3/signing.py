"""Signature version 4 in a query string: a URL for one method and one key, valid for a few minutes.

obstore signs plain keys only, not the parts of an upload. Signing sends nothing, so it works while the store is away.
https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from services.core.adapters.s3.bucket import Bucket
from services.core.domain.errors import InvalidRequest
from services.core.ports.object_urls import ObjectRequest

URL_S: Final = 300
"""Validity of a URL, in seconds: enough for a wrong clock; URLs are requested right before their use."""
_PARTS_MAX: Final = 10_000
_ALGORITHM: Final = "AWS4-HMAC-SHA256"


class Signer:
    """See ``services.core.ports.object_urls.ObjectUrls``."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._host = urlsplit(bucket.endpoint).netloc

    def url(self, request: ObjectRequest) -> str:
        return self.sign(request.method, self._bucket.full(request.key), _query(request))

    def sign(self, method: str, key: str, query: Mapping[str, str], *, now: float | None = None) -> str:
        """The URL of any S3 request. ``key``: in the bucket, empty for the bucket itself. ``now``: Unix seconds."""
        bucket = self._bucket
        time_ = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        scope = f"{time_[:8]}/{bucket.region}/s3/aws4_request"
        signed = {
            **query,
            "X-Amz-Algorithm": _ALGORITHM,
            "X-Amz-Credential": f"{bucket.credentials.access_key}/{scope}",
            "X-Amz-Date": time_,
            "X-Amz-Expires": str(URL_S),
            "X-Amz-SignedHeaders": "host",
        }
        if bucket.credentials.session_token:
            signed["X-Amz-Security-Token"] = bucket.credentials.session_token
        path = quote(f"/{bucket.name}/{key}" if key else f"/{bucket.name}", safe="/~")
        words = "&".join(sorted(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in signed.items()))
        canonical = "\n".join([method, path, words, f"host:{self._host}", "", "host", "UNSIGNED-PAYLOAD"])
        text = "\n".join([_ALGORITHM, time_, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        signature = hmac.new(self._key(scope), text.encode(), hashlib.sha256).hexdigest()
        return f"{bucket.endpoint}{path}?{words}&X-Amz-Signature={signature}"

    def _key(self, scope: str) -> bytes:
        key = b"AWS4" + self._bucket.credentials.secret_key.encode()
        for word in scope.split("/"):
            key = hmac.new(key, word.encode(), hashlib.sha256).digest()
        return key


def _query(request: ObjectRequest) -> Mapping[str, str]:
    match request.verb:
        case "begin":
            return {"uploads": ""}
        case "part":
            if not 1 <= request.part <= _PARTS_MAX:
                raise InvalidRequest(f"an upload has parts 1 to {_PARTS_MAX}, not {request.part}")
            return {"partNumber": str(request.part), "uploadId": _upload(request)}
        case "complete" | "abort":
            return {"uploadId": _upload(request)}
        case _:
            return {}


def _upload(request: ObjectRequest) -> str:
    if not request.upload:
        raise InvalidRequest(f"'{request.verb}' needs the name of an upload")
    return request.upload
