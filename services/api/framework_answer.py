"""An entry of the framework library as every entry point shows it."""

from __future__ import annotations

from typing import Annotated

from services.api.answers import Answer, doc
from services.core.frameworks import Framework
from services.core.frameworks.images import LibraryImages


class FrameworkEntry(Answer):
    """An environment that a spec may name."""

    id: Annotated[str, doc("Name and version, e.g. jax-0.10.2.")]
    name: Annotated[str, doc("Name of the framework, in lower case.")]
    version: Annotated[str, doc("Full version.")]
    aliases: Annotated[list[str], doc("Other names of the framework.")]
    python: Annotated[str, doc("Python versions that it runs on, as a version specifier.")]
    size_mb: Annotated[int, doc("Installed size in MB, roughly.")]
    description: Annotated[str, doc("One line about it.")]
    lock_digest: Annotated[str, doc("sha256:<hex> of its locked packages: equal ones install the same.")]
    image: Annotated[str, doc("Container image of learners in pods; empty: there is none, or learners are no pods.")]


def framework_answer(entry: Framework, images: LibraryImages | None) -> FrameworkEntry:
    """The entry as users see it. ``images``: None where learners are no pods."""
    return FrameworkEntry(
        id=f"{entry.name}-{entry.version}",
        name=entry.name,
        version=entry.version,
        aliases=list(entry.aliases),
        python=entry.python,
        size_mb=entry.size_mb,
        description=entry.description,
        lock_digest=entry.lock_digest,
        image=images.of(entry) if images is not None else "",
    )
