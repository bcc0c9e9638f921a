"""The container images of the library's entries: their names, and which of them an installation has.

An image's tag has the digest of its lock, so that a changed lock gives another image: nodes keep images by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from services.core.frameworks import Framework, find

_NAMESPACE: Final = "weft"
_DIGITS: Final = 8
"""Of the lock's digest in a tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryImages:
    """What the operator says about images of the library."""

    registry: str | None = None
    """Registry and path before the names of all images; empty: nodes have them by their names. None: there are none."""
    named: Mapping[str, str] = field(default_factory=dict)
    """``<name>-<version>`` -> image, which counts before the registry. The version may be its first components."""

    def of(self, entry: Framework) -> str:
        """Returns the image of an entry; empty: this installation has none.

        Of several versions in ``named`` that are the entry's, the longest counts.
        """
        keys = [key for key in self.named if _names(key, entry)]
        if keys:
            return self.named[max(keys, key=len)]
        if self.registry is None:
            return ""
        return f"{self._folder()}{image_name(entry)}"

    def of_id(self, framework: str) -> str:
        """The same for ``<name>-<version>``; empty also for an entry that the library does not have."""
        name, _, version = framework.rpartition("-")
        entry = find(name, version) if name else None
        return self.of(entry) if entry is not None else ""

    def prefixes(self) -> set[str]:
        """What the names of the images begin with.

        Of the registry it is the folder: an upgrade may change the tags, and meanwhile two versions of Weft run.
        """
        if self.registry is None:
            return {*self.named.values()}
        return {*self.named.values(), f"{self._folder()}{_NAMESPACE}/"}

    def _folder(self) -> str:
        return f"{self.registry.rstrip('/')}/" if self.registry else ""


def image_name(entry: Framework) -> str:
    """Returns the name that `make images` gives the entry's image: ``weft/jax:0.10.2-3f1c9a07``."""
    return f"{_NAMESPACE}/{entry.name}:{entry.version}-{entry.lock_digest.removeprefix('sha256:')[:_DIGITS]}"


def _names(key: str, entry: Framework) -> bool:
    """True if the key is the entry's name with its version, or with the first components of it."""
    for name in (entry.name, *entry.aliases):
        prefix = key.removeprefix(f"{name}-")
        if prefix != key and prefix and f"{entry.version}.".startswith(f"{prefix}."):
            return True
    return False
