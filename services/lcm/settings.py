"""Settings of the life-cycle manager."""

from __future__ import annotations

from pydantic import Field

from services.core.runtime.settings import Settings


class LcmSettings(Settings):
    policy: str = Field(default="fifo", description="Scheduling policy: the order in which waiting jobs are admitted.")
    queue_scan: int = Field(
        default=5_000, gt=0,
        description="How many waiting jobs are read at a time. A round reads on until a job waits for hardware; no job"
        " behind that one could be admitted.",
    )  # fmt: skip
    history_batch: int = Field(default=500, gt=0, description="How many jobs' history one sweep copies.")
    learner_min_cpus: float = Field(
        default=0.01, ge=0,
        description="CPU cores that each learner is charged at least when it is placed, for its shim and its helper.",
    )  # fmt: skip
    learner_min_memory: int = Field(
        default=32 * 2**20, ge=0,
        description="Memory that each learner is charged at least when it is placed, in bytes. See `learner_min_cpus`.",
    )  # fmt: skip
    collect_s: float = Field(
        default=10, gt=0,
        description="How often leftovers of released jobs are searched for, in seconds. Those found twice in a row are"
        " removed.",
    )  # fmt: skip
    quarantine_s: float = Field(
        default=30, gt=0,
        description="Pause between two searches for unreadable job documents, in seconds. A search reads the next 1,000"
        " documents of the store. Documents of jobs that wait or hold hardware are checked in every round.",
    )  # fmt: skip
