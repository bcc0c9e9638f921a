"""Named sizes of a learner (contracts.md): a short name for GPUs, CPUs and memory.

The GPU sizes are those of Watson ML, which users of FfDL know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

GB: Final = 10**9
Devices = tuple[tuple[str, int], ...]
"""(name of an extended resource, e.g. rdma/hca, count), sorted by name. None has the count 0."""


def as_devices(counts: Mapping[str, int]) -> Devices:
    """The devices of these counts by name."""
    return tuple(sorted((name, count) for name, count in counts.items() if count))


def joined(devices: Devices, other: Devices) -> Devices:
    """The counts of both, added."""
    if not devices or not other:
        return devices or other
    counts = dict(devices)
    for name, count in other:
        counts[name] = counts.get(name, 0) + count
    return as_devices(counts)


@dataclass(frozen=True, slots=True)
class Size:
    """The resources of one learner."""

    gpus: float
    """Whole GPUs, or a fraction below 1 of one."""
    cpus: float
    """CPU cores."""
    memory: int
    """Bytes."""
    devices: Devices = ()
    """Beside GPUs."""

    def plus(self, other: Size) -> Size:
        """Both together."""
        return Size(
            self.gpus + other.gpus,
            self.cpus + other.cpus,
            self.memory + other.memory,
            joined(self.devices, other.devices),
        )


SIZES: Final[Mapping[str, Size]] = {
    "cpu": Size(0, 1, 1 * GB),
    "k80": Size(1, 4, 24 * GB),
    "k80x2": Size(2, 8, 48 * GB),
    "k80x4": Size(4, 16, 96 * GB),
    "p100": Size(1, 8, 24 * GB),
    "p100x2": Size(2, 16, 48 * GB),
    "v100": Size(1, 26, 24 * GB),
    "v100x2": Size(2, 52, 48 * GB),
}
