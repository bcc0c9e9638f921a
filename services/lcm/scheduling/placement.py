"""Places the learners of one gang on nodes: all of them or none.

``pack`` fills the tightest node that fits first, so that whole nodes stay free for big gangs; ``spread`` takes the
emptiest. Learners are placed largest first: the classic best-fit-decreasing order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from services.core.domain.learner import learner_name
from services.core.domain.sizes import Size
from services.core.domain.spec import JobSpec
from services.core.ports.cluster import Node

_EPSILON: Final = 1e-9
"""CPUs and GPU fractions are floats: 0.1 + 0.2 must still fit into 0.3."""


@dataclass(frozen=True, slots=True)
class Gang:
    """The part of a job's spec that scheduling and its counters need. Equal gangs go to the same nodes.

    The dispatcher keeps one for each job that waits or holds hardware, and one object for all equal gangs: the whole
    spec would need many times the memory.
    """

    learners: tuple[tuple[str, Size, str | None], ...]
    """(name, resources, GPU type or None), largest first."""
    placement: str
    gpu_type: str
    framework: str
    max_pending: int | None
    """Milliseconds."""
    _hash: int = field(init=False, repr=False, compare=False)
    """Computed once: a policy looks up the gang of each waiting job in each round; it may have 1,000 learners."""

    def __post_init__(self) -> None:
        values = (self.learners, self.placement, self.gpu_type, self.framework, self.max_pending)
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Free:
    """The free resources of one node."""

    node: str
    cpus: float
    memory: int
    """Bytes."""
    gpus: float
    gpu_type: str = ""

    def fits(self, size: Size, gpu_type: str | None) -> bool:
        """True if a learner of this size, which may need GPUs of one type, fits here."""
        typed = not size.gpus or gpu_type is None or gpu_type == self.gpu_type
        return (
            typed
            and self.cpus + _EPSILON >= size.cpus
            and self.memory >= size.memory
            and self.gpus + _EPSILON >= size.gpus
        )

    def minus(self, size: Size) -> Free:
        """This node with ``size`` taken from it; may become negative."""
        return replace(self, cpus=self.cpus - size.cpus, memory=self.memory - size.memory, gpus=self.gpus - size.gpus)


@dataclass(frozen=True, slots=True)
class Piece:
    """Resources of one node that something holds."""

    node: str
    size: Size


Placed = tuple[Gang, Mapping[str, str]]
"""A gang and its placement: learner -> node."""


def all_free(nodes: Iterable[Node]) -> list[Free]:
    """The resources of the ready nodes, as if nothing ran on them."""
    return [Free(node.name, node.cpus, node.memory, node.gpus, node.gpu_type) for node in nodes if node.ready]


NOTHING: Final = Size(0, 0, 0)


def gang_of(spec: JobSpec, sizes: Mapping[str, Size], least: Size = NOTHING, overhead: Size = NOTHING) -> Gang:
    """The gang of a spec; ``sizes`` are the named sizes that the spec may use.

    ``least``: what each learner is charged at least, for its shim and its helper. ``overhead``: what it is charged
    besides its own size, for a helper with resources of its own.
    """
    charged = {name: _plus(_at_least(spec.role_resources(name, sizes), least), overhead) for name in spec.roles}
    learners = [
        (learner_name(name, index), charged[name], role.gpu_type or spec.resources.gpu_type)
        for name, role in spec.roles.items()
        for index in range(role.count)
    ]
    return Gang(
        learners=tuple(sorted(learners, key=lambda learner: (-learner[1].gpus, -learner[1].cpus, -learner[1].memory))),
        placement=spec.placement,
        gpu_type=spec.resources.gpu_type or "",
        framework=spec.framework.name if spec.framework else "",
        max_pending=spec.max_pending,
    )


def _at_least(size: Size, least: Size) -> Size:
    return Size(max(size.gpus, least.gpus), max(size.cpus, least.cpus), max(size.memory, least.memory))


def _plus(size: Size, other: Size) -> Size:
    return Size(size.gpus + other.gpus, size.cpus + other.cpus, size.memory + other.memory)


def place(gang: Gang, free: Sequence[Free]) -> dict[str, str] | None:
    """Returns learner -> node for the whole gang, or None if it does not fit."""
    left = {node.node: node for node in free}
    sign = -1 if gang.placement == "spread" else 1
    placement: dict[str, str] = {}
    for learner, size, gpu_type in gang.learners:
        fitting = [node for node in left.values() if node.fits(size, gpu_type)]
        if not fitting:
            return None
        best = min(fitting, key=lambda node: (sign * node.gpus, sign * node.cpus, node.node))
        left[best.node] = best.minus(size)
        placement[learner] = best.node
    return placement


def pieces(gang: Gang, placement: Mapping[str, str]) -> Iterator[Piece]:
    """What each learner of the gang holds where it was placed. A learner without a node yields a piece of none ("")."""
    for learner, size, _ in gang.learners:
        yield Piece(placement.get(learner, ""), size)


def subtract(free: Sequence[Free], held: Iterable[Piece]) -> list[Free]:
    """What is left of ``free`` beside these pieces. Pieces of nodes that are not in ``free`` are ignored."""
    left = {node.node: node for node in free}
    for piece in held:
        if piece.node in left:
            left[piece.node] = left[piece.node].minus(piece.size)
    return list(left.values())


def fits_as_placed(free: Sequence[Free], gang: Gang, placement: Mapping[str, str]) -> bool:
    """True if the gang fits with exactly this placement: each learner has a node, and no node is overcommitted."""
    left = {node.node: node for node in free}
    for learner, size, gpu_type in gang.learners:
        node = left.get(placement.get(learner, ""))
        if node is None or not node.fits(size, gpu_type):
            return False
        left[node.node] = node.minus(size)
    return True


def describe_shortage(gang: Gang, free: Sequence[Free]) -> str:
    """Says what the gang needs and what is free, for people."""
    sizes = [size for _, size, _ in gang.learners]
    needed, there = _totals(sizes), _totals(free)
    parts = [
        f"{_counted(needed[0], 'GPU')} ({_number(there[0])} free)",
        f"{_counted(needed[1], 'CPU')} ({_number(there[1])} free)",
        f"{needed[2]:.3g} GB of memory ({there[2]:.3g} GB free)",
    ]
    text = ("its learner needs " if len(sizes) == 1 else f"its {len(sizes)} learners need ") + ", ".join(
        parts[0 if needed[0] else 1 :]
    )
    enough = all(has + _EPSILON >= need for has, need in zip(there, needed, strict=True))
    return text + (", not on nodes that could each take a whole learner" if enough else "")


def describe_excess(gang: Gang, capacity: Sequence[Free]) -> str:
    """Says what the gang needs and the whole cluster does not have, for people."""
    needed, there = _totals([size for _, size, _ in gang.learners]), _totals(capacity)
    short = [
        f"{_counted(need, unit)}{of}, and this cluster has {_counted(has, unit)}"
        for (unit, of), need, has in zip(_UNITS, needed, there, strict=True)
        if has + _EPSILON < need
    ]
    if short:
        return f"it requests {'; '.join(short)}"
    return describe_shortage(gang, capacity).replace(" free)", " in all)")


_UNITS: Final = (("GPU", ""), ("CPU", ""), ("GB", " of memory"))
"""Unit, and of what."""


def _counted(value: float, unit: str) -> str:
    return f"{_number(value)} {unit}{'' if unit == 'GB' or value == 1 else 's'}"


def _totals(amounts: Sequence[Size] | Sequence[Free]) -> tuple[float, float, float]:
    """(GPUs, CPUs, GB of memory)."""
    return (
        sum(amount.gpus for amount in amounts),
        sum(amount.cpus for amount in amounts),
        sum(amount.memory for amount in amounts) / 1e9,
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
