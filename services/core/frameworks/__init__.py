"""The framework library: the pinned environments that a job spec names as `framework: {name: jax, version: "0.10"}`.

An entry has one lock file. In one release of Weft a name and version always give the same entry, so that a training can
be repeated. This package only reads its own files; the node agent builds the environments.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

_VERSION = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One environment of the library."""

    name: str
    """The name in a job spec, in lower case: "jax"."""

    version: str
    """Dotted numbers: "0.10.2"."""

    python: str
    """Python versions it runs on, as a version specifier: ">=3.11"."""

    size_mb: int
    """Approximate installed size in MB; shown before the first download."""

    description: str
    """One line for people."""

    package: str | None = None
    """Distribution whose version is the entry's; None for the bare interpreter."""

    lock: str | None = None
    """File name of the pinned requirements; None: there is nothing to install."""

    aliases: tuple[str, ...] = ()
    """Other names of it, in lower case."""

    def lock_text(self) -> str:
        """Returns the pinned requirements with hashes, for `uv pip sync`; empty where there are none."""
        if self.lock is None:
            return ""
        return resources.files(__name__).joinpath(self.lock).read_text(encoding="utf-8")

    @property
    def lock_digest(self) -> str:
        """``sha256:<hex>`` of ``lock_text``: entries with equal ones have the same packages."""
        return _lock_digest(self)


@cache
def library() -> tuple[Framework, ...]:
    """Returns all entries, sorted by name, the newest version of a name first."""
    return parse(resources.files(__name__).joinpath("library.toml").read_text(encoding="utf-8"))


def parse(text: str) -> tuple[Framework, ...]:
    """Returns the entries of a library.toml, sorted as `library` does.

    Raises ValueError, which names the entry, for an unknown or missing key, for a version that is not dotted numbers,
    and for a name or alias that occurs twice with the same version.
    """
    entries = [_entry(table) for table in tomllib.loads(text).get("framework", [])]
    versions: set[tuple[str, str]] = set()
    for entry in entries:
        for name in (entry.name, *entry.aliases):
            if (name, entry.version) in versions:
                raise ValueError(f"{name} {entry.version} is in the library twice")
            versions.add((name, entry.version))
    entries.sort(key=lambda entry: _numbers(entry.version), reverse=True)
    entries.sort(key=lambda entry: entry.name)
    return tuple(entries)


def names() -> tuple[str, ...]:
    """Returns all names and aliases, sorted."""
    return tuple(sorted({name for entry in library() for name in (entry.name, *entry.aliases)}))


def find(name: str, version: str | None = None) -> Framework | None:
    """Returns the newest entry with this name and version, or None.

    ``name``: a name or alias, in any case. ``version``: the first components of a version, e.g. "0.10" for 0.10.2, but
    not "0.1"; None or "" for any.
    """
    wanted = name.lower()
    for entry in library():
        if wanted in (entry.name, *entry.aliases) and _begins(entry.version, version or ""):
            return entry
    return None


def _entry(table: dict[str, Any]) -> Framework:
    try:
        fields: dict[str, Any] = {**table, "aliases": tuple(table.get("aliases", ()))}
        entry = Framework(**fields)
    except TypeError as error:
        raise ValueError(f"library entry {table.get('name', table)!r}: {error}") from error
    if not _VERSION.fullmatch(entry.version):
        raise ValueError(f"library entry {entry.name!r}: version {entry.version!r} is not dotted numbers")
    return entry


@cache
def _lock_digest(entry: Framework) -> str:
    return f"sha256:{hashlib.sha256(entry.lock_text().encode()).hexdigest()}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _begins(version: str, prefix: str) -> bool:
    parts = prefix.split(".") if prefix else []
    return version.split(".")[: len(parts)] == parts
