"""Where the objects are, and who we are there."""

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
    """Addressed by path (``endpoint/bucket/key``), which every server understands."""

    name: str
    prefix: str
    """Empty, or ends with '/': what stands before every key."""
    endpoint: str
    region: str
    credentials: Credentials = field(repr=False)

    @property
    def label(self) -> str:
        """For people."""
        return f"s3://{self.name}/{self.prefix} at {self.endpoint}"

    def full(self, key: str) -> str:
        """The key in the bucket. InvalidRequest."""
        check_key(key)
        if self.prefix:
            check_key(self.prefix + key)
        return self.prefix + key


def bucket(uri: str, *, endpoint: str, region: str, credentials: Credentials) -> Bucket:
    """From ``s3://bucket[/prefix]``. Without an endpoint: Amazon's of the region. InvalidRequest says what is wrong."""
    scheme, _, rest = uri.partition("://")
    name, _, prefix = rest.partition("/")
    if scheme != "s3" or _BUCKET.fullmatch(name) is None:
        raise InvalidRequest(f"WEFT_OBJECT_STORE names no bucket; {_HOW} (names have 3 to 63 letters a-z, digits, - .)")
    prefix = prefix.strip("/")
    try:
        if prefix:
            check_key(prefix)
    except WeftError as error:
        raise InvalidRequest(f"the prefix of WEFT_OBJECT_STORE cannot be: {error.message}; {_HOW}") from None
    place = (endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/")
    parts = urlsplit(place)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path or parts.query or parts.username:
        raise InvalidRequest("WEFT_S3_ENDPOINT is no address; write https://host or http://host:port")
    if not credentials.access_key or not credentials.secret_key:
        raise InvalidRequest(
            "there are no credentials for the object store; set WEFT_S3_ACCESS_KEY and WEFT_S3_SECRET_KEY, "
            "or WEFT_S3_CREDENTIALS_FILE"
        )
    return Bucket(name, prefix + "/" if prefix else "", place, region, credentials)


def read_credentials(path: Path) -> Credentials:
    """From a file as Amazon's tools write it (``[default] aws_access_key_id=... aws_secret_access_key=...``)."""
    found = configparser.ConfigParser(interpolation=None)
    try:
        found.read_string(path.read_text())
        section = found["default"]
        return Credentials(
            section["aws_access_key_id"], section["aws_secret_access_key"], section.get("aws_session_token", "")
        )
    except (OSError, configparser.Error, KeyError, UnicodeDecodeError) as error:
        # The kind alone: what a parser says quotes the line, and the line may be the secret.
        raise InvalidRequest(
            f"WEFT_S3_CREDENTIALS_FILE {path} cannot be used ({type(error).__name__}); it has a section [default] with "
            "aws_access_key_id and aws_secret_access_key"
        ) from None
