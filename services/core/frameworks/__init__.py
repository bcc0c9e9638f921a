"""The framework library: which pinned environments a job may ask for by name.

A job says `framework: {name: jax, version: "0.10"}`; this module turns that into one
entry with one lock file, always the same for the same release of Weft, so that a
training can be repeated. It only reads files of this package; building the
environment is the node's business, suggesting a nearest name the caller's
(`names()`).
"""

from __future__ import annotations

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
    """What a job spec says, in lower case: "jax"."""

    version: str
    """Dotted numbers: "0.10.2"."""

    python: str
    """Interpreters it runs on, as a version specifier: ">=3.11"."""

    size_mb: int
    """Installed size in MB, roughly; for telling people before a first download."""

    description: str
    """One line for people."""

    package: str | None = None
    """Distribution that gives the entry its version; None for the bare interpreter."""

    lock: str | None = None
    """File name of the requirements with hashes; None: there is nothing to install."""

    aliases: tuple[str, ...] = ()
    """Other names for it, in lower case."""

    def lock_text(self) -> str:
        """The requirements with hashes, as `uv pip sync` reads them; "" for none."""
        if self.lock is None:
            return ""
        return resources.files(__name__).joinpath(self.lock).read_text(encoding="utf-8")


@cache
def library() -> tuple[Framework, ...]:
    """Every entry, by name, the newest version of a name first."""
    return parse(resources.files(__name__).joinpath("library.toml").read_text(encoding="utf-8"))


def parse(text: str) -> tuple[Framework, ...]:
    """The entries of a library.toml, sorted as `library` gives them.

    Raises ValueError, which names the entry, for an unknown or missing key, a version
    that is not dotted numbers, or a name, alias and version given twice.
    """
    entries = [_entry(table) for table in tomllib.loads(text).get("framework", [])]
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        for name in (entry.name, *entry.aliases):
            if (name, entry.version) in seen:
                raise ValueError(f"{name} {entry.version} is in the library twice")
            seen.add((name, entry.version))
    entries.sort(key=lambda entry: _numbers(entry.version), reverse=True)
    entries.sort(key=lambda entry: entry.name)
    return tuple(entries)


def names() -> tuple[str, ...]:
    """Every name a job spec may use, aliases included, sorted."""
    return tuple(sorted({name for entry in library() for name in (entry.name, *entry.aliases)}))


def find(name: str, version: str | None = None) -> Framework | None:
    """The newest entry of that name whose version begins so, or None.

    name: an entry's name or alias, in any case.
    version: whole components from the left, "0.10" for 0.10.2 (but not "0.1");
        None or "" for the newest.
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
        raise ValueError(f"library entry {entry.name!r}: version {entry.version!r} is no number")
    return entry


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _begins(version: str, prefix: str) -> bool:
    parts = prefix.split(".") if prefix else []
    return version.split(".")[: len(parts)] == parts
