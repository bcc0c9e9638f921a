"""What the node agent of this machine reported at its start: how learners are isolated, and which limits the kernel
enforces.

The agent writes ``run/node-isolation.json``; other clusters have no such file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from services.core.domain.codec import MALFORMED
from services.core.runtime.home import Home


@dataclass(frozen=True, slots=True)
class IsolationReport:
    """One report."""

    name: str
    """sandbox | process | trusted."""
    why: str
    """Why it is not more; may be empty."""
    enforced: tuple[str, ...]
    """The limits that the kernel enforces: of memory, pids and cpu."""

    @property
    def memory_warning(self) -> str:
        """What a job's owner should know if memory is not limited; else empty."""
        if "memory" in self.enforced:
            return ""
        why = f" ({self.why})" if self.why else ""
        return f"this machine does not enforce memory limits: a learner may use more than resources.memory{why}"


def read_isolation(home: Home) -> IsolationReport | None:
    """The report; None where there is none, or it cannot be read. It reads a file."""
    try:
        report = json.loads((home / "run" / "node-isolation.json").read_text())
        enforced = tuple(str(name) for name in report["enforced"])
        return IsolationReport(str(report["isolation"]), str(report["why"]), enforced)
    except (OSError, *MALFORMED):
        return None
