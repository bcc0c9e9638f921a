"""The bucket of the objects, and its credentials."""

from __future__ import annotations

import configparser
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from services.core.domain.errors import InvalidRequest, WeftError
from services.core.ports.object_store import check_key

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_HOW: Final = "write it as s3://bucket or s3://bucket/prefix"


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, addressed by path (``endpoint/bucket/key``), which every server supports."""

    name: str
    prefix: str
    """Precedes every key; empty, or ends with '/'."""
    endpoint: str
    region: str
    credentials: Credentials = field(repr=False)

    @property
    def label(self) -> str:
        """The bucket's name in messages."""
        return f"s3://{self.name}/{self.prefix} at {self.endpoint}"

    def full(self, key: str) -> str:
        """The key in the bucket. Raises InvalidRequest."""
        check_key(key)
        if self.prefix:
            check_key(self.prefix + key)
        return self.prefix + key


def bucket(uri: str, *, endpoint: str, region: str, credentials: Credentials) -> Bucket:
    """Parses ``s3://bucket[/prefix]``. The default endpoint is Amazon's in the region. Raises InvalidRequest."""
    scheme, _, rest = uri.partition("://")
    name, _, prefix = rest.partition("/")
    if scheme != "s3" or _BUCKET.fullmatch(name) is None:
        raise InvalidRequest(f"WEFT_OBJECT_STORE names no bucket; {_HOW} (names have 3 to 63 letters a-z, digits, - .)")
    prefix = prefix.strip("/")
    try:
        if prefix:
            check_key(prefix)
    except WeftError as error:
        raise InvalidRequest(f"the prefix of WEFT_OBJECT_STORE is invalid: {error.message}; {_HOW}") from None
    place = (endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/")
    parts = urlsplit(place)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path or parts.query or parts.username:
        raise InvalidRequest("WEFT_S3_ENDPOINT is not an address; write https://host or http://host:port")
    if not credentials.access_key or not credentials.secret_key:
        raise InvalidRequest(
            "there are no credentials for the object store; set WEFT_S3_ACCESS_KEY and WEFT_S3_SECRET_KEY, "
            "or WEFT_S3_CREDENTIALS_FILE"
        )
    return Bucket(name, prefix + "/" if prefix else "", place, region, credentials)


def read_credentials(path: Path) -> Credentials:
    """Reads a file of Amazon's tools (``[default] aws_access_key_id=... aws_secret_access_key=...``).

    Raises InvalidRequest if it cannot be used.
    """
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(path.read_text())
        section = parser["default"]
        return Credentials(
            section["aws_access_key_id"], section["aws_secret_access_key"], section.get("aws_session_token", "")
        )
    except (OSError, configparser.Error, KeyError, UnicodeDecodeError) as error:
        # Only the kind of error: the parser's message quotes a line, which may contain the secret.
        raise InvalidRequest(
            f"WEFT_S3_CREDENTIALS_FILE {path} cannot be used ({type(error).__name__}); it has a section [default] with "
            "aws_access_key_id and aws_secret_access_key"
        ) from None
