"""What the learners of a job report and use, in words: progress, and usage of the hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft._cli.text import count, size, span


def progress_text(reported: Mapping[str, Any]) -> str:
    """e.g. ``42 %, 1m21s left``; empty if the job does not report it."""
    fraction, left = reported.get("progress"), reported.get("eta_ms")
    if not isinstance(fraction, (int, float)):
        return ""
    share = f"{fraction * 100:.0f} %"
    return f"{share}, {span(left / 1000)} left" if isinstance(left, (int, float)) and fraction < 1 else share


def usage_text(usage: Sequence[Mapping[str, Any]], *, ended: bool, by_rank: bool = False) -> str:
    """What all learners use together, and one at most; empty if nothing was measured.

    ``ended``: the job runs no more. ``by_rank``: a line for each learner.
    """
    if not usage:
        return ""
    if by_rank and len(usage) > 1:
        return "\n".join(f"rank {learner['rank']}: {usage_text([learner], ended=ended)}" for learner in usage)
    together = {name: sum(learner.get(name) or 0 for learner in usage) for name in _NAMES if _known(usage, name)}
    most = {name: max(learner.get(f"max_{name}") or 0 for learner in usage) for name in _NAMES if _known(usage, name)}
    at_most = f"{'one learner ' if len(usage) > 1 else ''}at most {_amounts(most)}"
    return at_most if ended else f"{_amounts(together)}; {at_most}"


_NAMES = ("cpus", "memory", "gpus", "gpu_memory")


def _known(usage: Sequence[Mapping[str, Any]], name: str) -> bool:
    return any(learner.get(name) is not None for learner in usage)


def _amounts(of: Mapping[str, float]) -> str:
    parts = []
    if "cpus" in of:
        parts.append(count(round(of["cpus"], 2), "CPU"))
    if "memory" in of:
        parts.append(size(of["memory"]))
    if "gpus" in of:
        parts.append(count(round(of["gpus"], 2), "GPU"))
    if "gpu_memory" in of:
        parts.append(f"{size(of['gpu_memory'])} of GPU memory")
    return ", ".join(parts)
