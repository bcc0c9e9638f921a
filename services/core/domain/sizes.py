"""Named sizes of a learner (contracts.md): a short name for GPUs, CPUs and memory.

The GPU sizes are those of Watson ML, which users of FfDL know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

GB: Final = 10**9


@dataclass(frozen=True, slots=True)
class Size:
    """The resources of one learner."""

    gpus: float
    """Whole GPUs, or a fraction below 1 of one."""
    cpus: float
    """CPU cores."""
    memory: int
    """Bytes."""


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
