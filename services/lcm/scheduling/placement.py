"""Where the learners of one gang go: all of them or none.

``pack`` fills the tightest node that fits first, so that whole nodes stay free for big gangs; ``spread`` takes the
emptiest. Learners are placed largest first: the classic best-fit-decreasing order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from services.core.domain.learner import learner_name
from services.core.domain.sizes import Size
from services.core.domain.spec import JobSpec
from services.core.ports.cluster import Node

_EPSILON: Final = 1e-9
"""CPUs and GPU fractions are floats: 0.1 + 0.2 must still fit into 0.3."""


@dataclass(frozen=True, slots=True)
class Gang:
    """What of a job's spec its placement rests on, and what is counted of it: equal ones go to the same nodes.

    A small part of the spec, and one for thousands of alike jobs: this is what is kept of each job that waits.
    """

    learners: tuple[tuple[str, Size, str | None], ...]
    """(name, what it needs, GPU type), largest first."""
    placement: str
    gpu_type: str
    framework: str
    max_pending: int | None
    """Milliseconds."""


@dataclass(frozen=True, slots=True)
class Free:
    """What is left of one node."""

    node: str
    cpus: float
    memory: int
    gpus: float
    gpu_type: str = ""

    def fits(self, want: Size, gpu_type: str | None) -> bool:
        typed = not want.gpus or gpu_type is None or gpu_type == self.gpu_type
        return (
            typed
            and self.cpus + _EPSILON >= want.cpus
            and self.memory >= want.memory
            and self.gpus + _EPSILON >= want.gpus
        )

    def less(self, want: Size) -> Free:
        return replace(self, cpus=self.cpus - want.cpus, memory=self.memory - want.memory, gpus=self.gpus - want.gpus)


def whole(nodes: Iterable[Node]) -> list[Free]:
    """The nodes as if nothing ran on them; one that is not ready has nothing."""
    return [Free(node.name, node.cpus, node.memory, node.gpus, node.gpu_type) for node in nodes if node.ready]


def gang(spec: JobSpec, sizes: Mapping[str, Size]) -> Gang:
    """Every learner of the job, sizes in numbers."""
    learners = [
        (learner_name(name, index), spec.role_resources(name, sizes), role.gpu_type or spec.resources.gpu_type)
        for name, role in spec.roles.items()
        for index in range(role.count)
    ]
    return Gang(
        learners=tuple(sorted(learners, key=lambda one: (-one[1].gpus, -one[1].cpus, -one[1].memory))),
        placement=spec.placement,
        gpu_type=spec.resources.gpu_type or "",
        framework=spec.framework.name if spec.framework else "",
        max_pending=spec.max_pending,
    )


def place(gang: Gang, free: Sequence[Free]) -> dict[str, str] | None:
    """Learner -> node for the whole gang, or None where it does not fit."""
    left = {one.node: one for one in free}
    sign = -1 if gang.placement == "spread" else 1
    placement: dict[str, str] = {}
    for learner, want, gpu_type in gang.learners:
        fitting = [one for one in left.values() if one.fits(want, gpu_type)]
        if not fitting:
            return None
        best = min(fitting, key=lambda one: (sign * one.gpus, sign * one.cpus, one.node))
        left[best.node] = best.less(want)
        placement[learner] = best.node
    return placement


Placed = tuple[Gang, Mapping[str, str]]
"""A gang, and where each of its learners lies."""


def taken(free: Sequence[Free], gangs: Iterable[Placed]) -> list[Free]:
    """What is left once these gangs lie where they were placed."""
    left = {one.node: one for one in free}
    for gang, placement in gangs:
        for learner, want, _ in gang.learners:
            node = placement.get(learner, "")
            if node in left:
                left[node] = left[node].less(want)
    return list(left.values())


def without(free: Sequence[Free], pieces: Iterable[tuple[str, Size]]) -> list[Free]:
    """What is left beside (node, size) that somebody has, whoever it is."""
    left = {one.node: one for one in free}
    for node, size in pieces:
        if node in left:
            left[node] = left[node].less(size)
    return list(left.values())


def fits_at(free: Sequence[Free], gang: Gang, placement: Mapping[str, str]) -> bool:
    """Whether the gang may lie where it was placed: every learner has a node, and no node is promised too much."""
    left = {one.node: one for one in free}
    for learner, want, gpu_type in gang.learners:
        node = left.get(placement.get(learner, ""))
        if node is None or not node.fits(want, gpu_type):
            return False
        left[node.node] = node.less(want)
    return True


def shortage(gang: Gang, free: Sequence[Free]) -> str:
    """In words, what the gang needs and what there is."""
    need = [want for _, want, _ in gang.learners]
    wanted = [sum(want.gpus for want in need), sum(want.cpus for want in need), sum(want.memory for want in need) / 1e9]
    there = [sum(one.gpus for one in free), sum(one.cpus for one in free), sum(one.memory for one in free) / 1e9]
    parts = [
        f"{_number(wanted[0])} GPUs ({_number(there[0])} free)",
        f"{_number(wanted[1])} CPUs ({_number(there[1])} free)",
        f"{wanted[2]:.3g} GB of memory ({there[2]:.3g} GB free)",
    ]
    text = ("its learner needs " if len(need) == 1 else f"its {len(need)} learners need ") + ", ".join(
        parts[0 if wanted[0] else 1 :]
    )
    enough = all(has + _EPSILON >= wants for has, wants in zip(there, wanted, strict=True))
    return text + (", not on nodes that could each take a whole learner" if enough else "")


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
