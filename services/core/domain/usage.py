"""Names of the metrics that the platform measures of each learner: what it uses of the hardware.

They are points like those of the training, in a context of their own, so that a training may report metrics of the same
names. Queries that name no metric leave them out: a curve of the training and one of its memory have little in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CONTEXT_KEY: Final = "weft"
"""No training can report points with this label: the helper removes it."""
USAGE: Final[Mapping[str, str]] = {CONTEXT_KEY: "usage"}
"""The context of all points of usage."""
CPU: Final = "system/cpu"
"""CPU cores in use, averaged since the point before."""
MEMORY: Final = "system/memory"
"""Bytes of memory in use, without pages of files that the kernel can drop."""
GPU: Final = "system/gpu"
"""GPUs in use: the sum of their utilisation, 0 to 1 each."""
GPU_MEMORY: Final = "system/gpu_memory"
"""Bytes of GPU memory in use."""
USAGE_NAMES: Final = (CPU, MEMORY, GPU, GPU_MEMORY)
