"""Where the objects of a data store of type s3 are: pure.

A plan names them by ``location`` and ``path``, as all inputs; the secret that reads them is in neither.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

REGION: Final = "us-east-1"
"""The region of a data store that names none."""
NEEDED_KEYS: Final = ("access_key", "secret_key")
"""Keys that a secret has for data stores of type s3."""
HOW_TO_SET: Final = "`weft secret set {name} access_key=@FILE secret_key=@FILE`"
"""For messages; ``name``: of the secret."""
SESSION_TOKEN: Final = "session_token"  # noqa: S105 - the name of a key, not its value
"""A key that it may have as well."""
_URL: Final = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>.*))?", re.DOTALL)
_ENDPOINT: Final = re.compile(r"https?://(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::(?P<port>\d{1,5}))?/?")
_REGION: Final = re.compile(r"[a-z0-9-]{1,32}")
_PORTS: Final = range(1, 65_536)


class S3Objects(NamedTuple):
    """Objects of one bucket."""

    endpoint: str
    """``https://host`` or ``http://host:port``."""
    bucket: str
    key: str
    """Of one object; empty or with a final '/': all objects whose keys begin with it."""

    @property
    def is_folder(self) -> bool:
        """Whether these are all objects below a folder."""
        return not self.key or self.key.endswith("/")

    def has(self, key: str) -> bool:
        """Whether the object of this key is one of them."""
        return key.startswith(self.key) if self.is_folder else key == self.key


def wrong_credentials(values: Mapping[str, str]) -> str:
    """Returns what a secret with these values lacks for data stores of type s3; empty: nothing."""
    missing = " and ".join(key for key in NEEDED_KEYS if key not in values)
    return f"has no {missing}" if missing else ""


def wrong_field(url: str | None, endpoint: str | None, region: str | None) -> str:
    """Returns what is wrong in the fields of a data store, with how to write it; empty: nothing."""
    match = _URL.fullmatch(url or "")
    prefix = (match["prefix"] or "").removesuffix("/") if match is not None else ""
    if match is None or (prefix and {"", ".", ".."} & set(prefix.split("/"))):
        return "a data store of type s3 needs 'url', s3://bucket or s3://bucket/prefix"
    if endpoint is not None:
        place = _ENDPOINT.fullmatch(endpoint)
        if place is None or (place["port"] is not None and int(place["port"]) not in _PORTS):
            return "'endpoint' is the address of an S3 server, https://host or http://host:port"
    if region is not None and _REGION.fullmatch(region) is None:
        return "'region' has lower-case letters, digits and '-', e.g. eu-central-1"
    return ""


def s3_location(url: str, endpoint: str | None, region: str | None) -> str:
    """Returns the ``location`` of a plan's input: ``<endpoint>/<bucket>/<prefix>``. The fields have been checked.

    Without an endpoint it is Amazon's in the region.
    """
    bucket, _, prefix = url.removeprefix("s3://").removesuffix("/").partition("/")
    place = (endpoint or f"https://s3.{region or REGION}.amazonaws.com").removesuffix("/")
    return f"{place}/{bucket}/{prefix}" + ("/" if prefix else "")


def s3_objects(location: str, path: str) -> S3Objects:
    """Returns the objects of a plan's input."""
    scheme, _, host, bucket, prefix = location.split("/", 4)
    return S3Objects(f"{scheme}//{host}", bucket, prefix + path)
