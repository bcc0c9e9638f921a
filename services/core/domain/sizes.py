"""T-shirt sizes of one learner (contracts.md): a short word for GPUs, CPUs and memory.

The first seven are those of Watson ML, which FfDL's users know. Operators define their own in the settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

GB: Final = 10**9


@dataclass(frozen=True, slots=True)
class Size:
    """What one learner of this size gets."""

    gpus: float
    cpus: float
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
