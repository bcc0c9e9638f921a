"""The isolations of this machine, each with and without root, as parameters of tests."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.node import NodeProcess, node_process
from tests.testbed.server import slot

_UNPRIVILEGED_FIRST = 64_101
"""The first uid of agents without root. No account of a system has it. Each test process has its own: the kernel limits
the processes of all agents of one uid together.
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """An agent that runs learners in one isolation."""

    isolation: str
    root: bool

    @property
    def name(self) -> str:
        return f"{self.isolation}-{'root' if self.root else 'user'}"

    @contextmanager
    def node(
        self, environment: Mapping[str, str] | None = None, *, where: Path | None = None
    ) -> Generator[NodeProcess]:
        """``where``: the folder in which that of the agent is made."""
        user = _UNPRIVILEGED_FIRST + slot() if not self.root and os.geteuid() == 0 else None
        with node_process(
            {"WEFT_NODE_ISOLATION": self.isolation, **(environment or {})}, user=user, where=where
        ) as node:
            yield node


VARIANTS = tuple(
    Variant(isolation, root)
    for root in ((True, False) if os.geteuid() == 0 else (False,))
    for isolation in ("process", "sandbox")
)
"""All that the user of the tests can run."""
