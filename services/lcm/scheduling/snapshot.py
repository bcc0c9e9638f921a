"""The cluster and the queue at one moment, as the dispatcher counted them: answers whether a new gang fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from services.core.domain.sizes import Size
from services.core.domain.status import PendingReason
from services.core.ports.cluster import Node
from services.lcm.scheduling.placement import Gang, Piece, Placed, pieces
from services.lcm.scheduling.policy import Decision, QueueWalk


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a gang would be admitted if it were submitted now."""

    verdict: Literal["now", "later", "never"]
    message: str = ""
    """Why not now."""


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """One node and what is held of it."""

    node: Node
    used: Size
    jobs: Sequence[str]
    """Ids of the jobs that hold something of it, sorted."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Made by the dispatcher after its walk through the queue; never changes."""

    nodes: Sequence[Node]
    placed: Mapping[str, Placed]
    """By job id: jobs that hold hardware and whose spec can be read."""
    unreadable: Mapping[str, Sequence[Piece]]
    """By job id: what other jobs hold."""
    walk: QueueWalk
    """After the last job that it decided for."""
    time_s: float
    """When the reading began, on the boot-time clock."""
    waiting: Mapping[str, Decision]
    """By job id, in order: the decisions for jobs that wait."""

    def fit(self, gang: Gang) -> Fit:
        """The decision that the dispatcher would take for this gang, behind all jobs that wait."""
        decision = self.walk.preview(gang)
        if decision.placement is not None:
            return Fit("now")
        never = decision.pending_reason is PendingReason.TOO_LARGE_FOR_CLUSTER
        return Fit("never" if never else "later", decision.message)

    def usage(self) -> list[NodeUsage]:
        """Every node of the cluster, ready or not, in the cluster's order."""
        used: dict[str, Size] = {node.name: Size(0, 0, 0) for node in self.nodes}
        jobs: dict[str, set[str]] = {node.name: set() for node in self.nodes}
        for job_id, piece in self._held():
            before = used.get(piece.node)
            if before is not None:
                used[piece.node] = before.plus(piece.size)
                jobs[piece.node].add(job_id)
        return [NodeUsage(node, used[node.name], sorted(jobs[node.name])) for node in self.nodes]

    def _held(self) -> Iterator[tuple[str, Piece]]:
        for job_id, placed in self.placed.items():
            yield from ((job_id, piece) for piece in pieces(*placed))
        for job_id, held in self.unreadable.items():
            yield from ((job_id, piece) for piece in held)
