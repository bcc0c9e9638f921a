"""Which tier learners get on this machine: chosen once, at the agent's start; noted where `weft status` finds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from services.core.domain.errors import WeftError
from services.node import capacity
from services.node.files import write_json
from services.node.sandbox import Sandbox, find

TIER_FILE: Final = "node-tier.json"
"""In WEFT_HOME/run: ``{tier, why, enforced}``."""


@dataclass(frozen=True, slots=True)
class Tier:
    name: str
    """process | sandbox."""
    sandbox: Sandbox | None
    why: str
    """Why it is not better; empty: it is the best there is."""

    def note(self, run: Path, enforced: Sequence[str], unenforced: str) -> None:
        """For people: nothing is decided from it."""
        why = "; ".join(filter(None, (self.why, unenforced)))
        run.mkdir(parents=True, exist_ok=True)
        write_json(run / TIER_FILE, {"tier": self.name, "why": why, "enforced": list(enforced)})


def choose(wanted: Literal["auto", "process", "sandbox"], *, user: int | None) -> Tier:
    """``user``: one whom learners run as; None where that is ourselves. WeftError where ``wanted`` is not to be had."""
    if wanted == "process":
        return Tier("process", None, "chosen by WEFT_NODE_TIER=process")
    sandbox, why = find(user, capacity.gpu_minors())
    if sandbox is None:
        if wanted == "sandbox":
            raise WeftError(f"WEFT_NODE_TIER=sandbox cannot be had: {why}; or set WEFT_NODE_TIER=auto")
        return Tier("process", None, why)
    return Tier("sandbox", sandbox, why)
