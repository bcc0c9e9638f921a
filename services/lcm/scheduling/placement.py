"""Places the learners of one gang on nodes: all of them or none.

``pack`` fills the tightest node that fits first, so that whole nodes stay free for big gangs; ``spread`` takes the
emptiest. Learners are placed largest first: the classic best-fit-decreasing order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final

from services.core.domain.learner import learner_name
from services.core.domain.sizes import Devices, Size, joined
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
    devices: Devices = ()
    """Beside GPUs. A count may be negative."""
    slots: int | None = None
    """How many more learners it may have, whatever they need; None: there is no such bound. May be negative."""
    only_gpus: bool = False
    """It takes learners that need a GPU only."""

    def fits(self, size: Size, gpu_type: str | None) -> bool:
        """True if a learner of this size, which may need GPUs of one type, fits here."""
        typed = not size.gpus or gpu_type is None or gpu_type == self.gpu_type
        return (
            typed
            and (size.gpus > 0 or not self.only_gpus)
            and self.cpus + _EPSILON >= size.cpus
            and self.memory >= size.memory
            and self.gpus + _EPSILON >= size.gpus
            and (not size.devices or _has(self.devices, size.devices))
            and (self.slots is None or self.slots > 0)
        )

    def minus(self, size: Size) -> Free:
        """This node with a learner of ``size`` taken from it; may become negative."""
        return replace(
            self,
            cpus=self.cpus - size.cpus,
            memory=self.memory - size.memory,
            gpus=self.gpus - size.gpus,
            devices=joined(self.devices, tuple((name, -count) for name, count in size.devices)),
            slots=None if self.slots is None else self.slots - 1,
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """Resources of one node that something holds."""

    node: str
    size: Size


Placed = tuple[Gang, Mapping[str, str]]
"""A gang and its placement: learner -> node."""


def all_free(nodes: Iterable[Node]) -> list[Free]:
    """The resources of the ready nodes, as if nothing ran on them."""
    return [
        Free(node.name, node.cpus, node.memory, node.gpus, node.gpu_type, node.devices, node.slots, node.only_gpus)
        for node in nodes
        if node.ready
    ]


NOTHING: Final = Size(0, 0, 0)


def gang_of(spec: JobSpec, sizes: Mapping[str, Size], least: Size = NOTHING, overhead: Size = NOTHING) -> Gang:
    """The gang of a spec; ``sizes`` are the named sizes that the spec may use.

    ``least``: what each learner is charged at least, for its shim and its helper. ``overhead``: what it is charged
    besides its own size, for a helper with resources of its own.
    """
    charged = {name: _at_least(spec.role_resources(name, sizes), least).plus(overhead) for name in spec.roles}
    learners = [
        (learner_name(name, index), charged[name], role.gpu_type or spec.resources.gpu_type)
        for name, role in spec.roles.items()
        for index in range(role.count)
    ]
    return Gang(
        learners=tuple(sorted(learners, key=lambda learner: _largest_first(learner[1]))),
        placement=spec.placement,
        gpu_type=spec.resources.gpu_type or "",
        framework=spec.framework.name if spec.framework else "",
        max_pending=spec.max_pending,
    )


def _at_least(size: Size, least: Size) -> Size:
    return replace(
        size, gpus=max(size.gpus, least.gpus), cpus=max(size.cpus, least.cpus), memory=max(size.memory, least.memory)
    )


def _largest_first(size: Size) -> tuple[float, float, float, int]:
    """A key to sort by. Learners with devices come first: fewer nodes have them."""
    return -sum(count for _, count in size.devices), -size.gpus, -size.cpus, -size.memory


def _has(devices: Devices, needed: Devices) -> bool:
    there = dict(devices)
    return all(there.get(name, 0) >= count for name, count in needed)


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
    free, left_out = _open_to(sizes, free)
    needed, there = _totals(sizes), _totals(free)
    devices, present = _devices(sizes), dict(_devices(free))
    parts = [
        f"{_counted(needed[0], 'GPU')} ({_number(there[0])} free)",
        f"{_counted(needed[1], 'CPU')} ({_number(there[1])} free)",
        f"{_memory(needed[2])} of memory ({_memory(there[2])} free)",
    ]
    parts = parts if needed[0] else parts[1:]
    parts += [f"{count} {name} ({present.get(name, 0)} free)" for name, count in devices]
    slots = _slots(free)
    short_of_slots = slots is not None and slots < len(sizes)
    parts += [f"{_counted(len(sizes), 'pod slot')} ({slots} free)"] if short_of_slots else []
    text = ("its learner needs " if len(sizes) == 1 else f"its {len(sizes)} learners need ") + ", ".join(parts)
    enough = all(has + _EPSILON >= need for has, need in zip(there, needed, strict=True))
    enough = enough and all(present.get(name, 0) >= count for name, count in devices) and not short_of_slots
    return text + (", not on nodes that could each take a whole learner" if enough else "") + left_out


def describe_excess(gang: Gang, capacity: Sequence[Free]) -> str:
    """Says what the gang needs and the whole cluster does not have, for people."""
    sizes = [size for _, size, _ in gang.learners]
    capacity, left_out = _open_to(sizes, capacity)
    short = [
        f"{_counted(need, unit)}{of}, and this cluster has {_counted(has, unit)}"
        for (unit, of), need, has in zip(_UNITS, _totals(sizes), _totals(capacity), strict=True)
        if has + _EPSILON < need
    ]
    present = dict(_devices(capacity))
    short += [
        f"{count} {name}, and this cluster has {present.get(name, 0)}"
        for name, count in _devices(sizes)
        if present.get(name, 0) < count
    ]
    if short:
        return f"it requests {'; '.join(short)}{left_out}"
    return describe_shortage(gang, capacity).replace(" free)", " in all)") + left_out


def _open_to(sizes: Sequence[Size], nodes: Sequence[Free]) -> tuple[Sequence[Free], str]:
    """The nodes that a gang of these sizes may use, and what to add for people where others are left out."""
    if any(size.gpus > 0 for size in sizes):
        return nodes, ""
    usable = [node for node in nodes if not node.only_gpus]
    return usable, ", without the nodes that are only for learners with GPUs" if len(usable) < len(nodes) else ""


_UNITS: Final = (("GPU", ""), ("CPU", ""), ("GB", " of memory"))
"""Unit, and of what."""


def _counted(value: float, unit: str) -> str:
    return _memory(value) if unit == "GB" else f"{_number(value)} {unit}{'' if value == 1 else 's'}"


def _memory(gigabytes: float) -> str:
    """In three digits: 67.1 MB, 25 GB, 1.02 TB."""
    if gigabytes >= 999.5:
        return f"{gigabytes / 1000:.3g} TB"
    return f"{gigabytes:.3g} GB" if gigabytes >= 0.9995 or gigabytes == 0 else f"{gigabytes * 1000:.3g} MB"


def _totals(amounts: Sequence[Size] | Sequence[Free]) -> tuple[float, float, float]:
    """(GPUs, CPUs, GB of memory)."""
    return (
        sum(amount.gpus for amount in amounts),
        sum(amount.cpus for amount in amounts),
        sum(amount.memory for amount in amounts) / 1e9,
    )


def _slots(free: Sequence[Free]) -> int | None:
    """How many learners all nodes together may have beside those that are there; None: there is no bound."""
    bounds = [node.slots for node in free]
    return None if None in bounds else sum(max(0, slots) for slots in bounds if slots is not None)


def _devices(amounts: Sequence[Size] | Sequence[Free]) -> Devices:
    return reduce(joined, (amount.devices for amount in amounts), ())


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
