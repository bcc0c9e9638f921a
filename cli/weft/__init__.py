"""Weft: train deep-learning models on a shared platform.

The same package serves three readers: a program that submits jobs (`weft.Client`),
the command line, and the code inside a learner (`weft.report`,
`weft.checkpoint_requested`, `weft.progress`).

`import weft` loads nothing but this file: a learner has neither an HTTP client nor
anything else of ours installed, and `weft --help` has 150 ms. Each name is fetched
from its module when it is first used (PEP 562) and kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft._learner import checkpoint_requested, progress, report

# Public name -> the private module that defines it.
_HOMES = {
    "checkpoint_requested": "weft._learner",
    "progress": "weft._learner",
    "report": "weft._learner",
}

__all__ = ["checkpoint_requested", "progress", "report"]


def __getattr__(name: str) -> object:
    """Fetch a public name from its module. Unknown names: AttributeError."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value  # the next use does not come through here
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
