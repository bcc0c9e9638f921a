"""The isolation that learners get on this machine: chosen once, when the agent starts, and shown by `weft status`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from services.core.domain.errors import WeftError
from services.core.runtime.durable_files import write_json
from services.node import capacity
from services.node.sandbox import Sandbox, find_sandbox

ISOLATION_FILE: Final = "node-isolation.json"
"""In WEFT_HOME/run: ``{isolation, why, enforced}``."""


@dataclass(frozen=True, slots=True)
class Isolation:
    name: str
    """process | sandbox."""
    sandbox: Sandbox | None
    why: str
    """Why it is not a better one; empty: there is none better."""

    def write(self, run: Path, enforced: Sequence[str], unenforced: str) -> None:
        """Writes ``ISOLATION_FILE``, for people: nothing is decided from it."""
        why = "; ".join(filter(None, (self.why, unenforced)))
        run.mkdir(parents=True, exist_ok=True)
        write_json(run / ISOLATION_FILE, {"isolation": self.name, "why": why, "enforced": list(enforced)})


def choose(wanted: Literal["auto", "process", "sandbox"], *, user: int | None) -> Isolation:
    """``user``: a uid that learners run under; None if that is the agent's own.

    WeftError if ``wanted`` does not work on this machine.
    """
    if wanted == "process":
        return Isolation("process", None, "chosen by WEFT_NODE_ISOLATION=process")
    sandbox, why = find_sandbox(user, capacity.gpu_minors())
    if sandbox is None:
        if wanted == "sandbox":
            raise WeftError(f"WEFT_NODE_ISOLATION=sandbox does not work: {why}; or set WEFT_NODE_ISOLATION=auto")
        return Isolation("process", None, why)
    return Isolation("sandbox", sandbox, why)
