"""What the learners of a job use of the hardware, as every entry point shows it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

from services.api.answers import Answer, doc
from services.core.domain.usage import CPU, GPU, GPU_MEMORY, MEMORY
from services.core.ports.metric_store import Aggregate


class LearnerUsage(Answer):
    """What a learner uses of the hardware, now and at most. Null: it was not measured."""

    rank: Annotated[int, doc("Rank of the learner, over all roles.")]
    cpus: Annotated[float | None, doc("CPU cores in use when they were measured last.")]
    max_cpus: Annotated[float | None, doc("The most CPU cores that were measured.")]
    memory: Annotated[int | None, doc("Bytes of memory in use when it was measured last.")]
    max_memory: Annotated[int | None, doc("The most bytes of memory that were measured.")]
    gpus: Annotated[float | None, doc("GPUs in use, e.g. 1.4 of 2, when they were measured last.")]
    max_gpus: Annotated[float | None, doc("The most GPUs in use that were measured.")]
    gpu_memory: Annotated[int | None, doc("Bytes of GPU memory in use when it was measured last.")]
    max_gpu_memory: Annotated[int | None, doc("The most bytes of GPU memory that were measured.")]


def usage_answer(aggregates: Sequence[Aggregate]) -> list[LearnerUsage]:
    """One entry for each learner, by rank."""
    of_ranks: dict[int, dict[str, Aggregate]] = {}
    for aggregate in aggregates:
        if math.isfinite(aggregate.last) and math.isfinite(aggregate.high):
            of_ranks.setdefault(aggregate.rank, {})[aggregate.name] = aggregate
    return [_learner_usage(rank, of_ranks[rank]) for rank in sorted(of_ranks)]


def _learner_usage(rank: int, of: Mapping[str, Aggregate]) -> LearnerUsage:
    def now_and_most(name: str) -> tuple[float, float] | tuple[None, None]:
        return (of[name].last, of[name].high) if name in of else (None, None)

    def bytes_of(name: str) -> tuple[int, int] | tuple[None, None]:
        now, most = now_and_most(name)
        return (None, None) if now is None or most is None else (round(now), round(most))

    (cpus, max_cpus), (memory, max_memory) = now_and_most(CPU), bytes_of(MEMORY)
    (gpus, max_gpus), (gpu_memory, max_gpu_memory) = now_and_most(GPU), bytes_of(GPU_MEMORY)
    return LearnerUsage(
        rank=rank,
        cpus=cpus,
        max_cpus=max_cpus,
        memory=memory,
        max_memory=max_memory,
        gpus=gpus,
        max_gpus=max_gpus,
        gpu_memory=gpu_memory,
        max_gpu_memory=max_gpu_memory,
    )
