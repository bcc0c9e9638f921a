"""Settings of the life-cycle manager."""

from __future__ import annotations

from pydantic import Field

from services.core.runtime.settings import Settings


class LcmSettings(Settings):
    policy: str = Field(default="fifo", description="Scheduling policy: the order in which waiting jobs are admitted.")
    queue_scan: int = Field(
        default=5_000,
        gt=0,
        description="How many waiting jobs a round puts in order and decides for at a time. It continues until a job"
        " waits for hardware; no job behind that one could be admitted.",
    )
    history_batch: int = Field(default=500, gt=0, description="How many jobs' history one sweep copies.")
    learner_min_cpus: float = Field(
        default=0.01,
        ge=0,
        description="CPU cores that each learner is charged at least when it is placed, for its shim and its helper.",
    )
    learner_min_memory: int = Field(
        default=32 * 2**20,
        ge=0,
        description="Memory that each learner is charged at least when it is placed, in bytes. See `learner_min_cpus`.",
    )
    collect_s: float = Field(
        default=10,
        gt=0,
        description="How often leftovers of released jobs are searched for, in seconds. Those found twice in a row are"
        " removed.",
    )
    deleted_keep_s: float = Field(
        default=7 * 86_400,
        ge=0,
        description="How long the objects, logs and metrics of a deleted job are kept, in seconds: an operator can"
        " still save them. 0: they are erased at once. Its document and history stay.",
    )
    code_grace_s: float = Field(
        default=600,
        ge=120,
        description="Code that no job names is removed so many seconds after that was found: a submission under way"
        " must be able to keep it. At least twice what a submission may take from its check to its answer.",
    )
    unnamed_code_s: float = Field(
        default=3_600,
        gt=0,
        description="Pause between two searches for stored code that no job names, e.g. of submissions that were cut"
        " off, in seconds. A search reads the names of at most 10,000 archives.",
    )
    quarantine_s: float = Field(
        default=30,
        gt=0,
        description="Pause between two searches for unreadable job documents, in seconds. A search reads the next 250"
        " documents of the store. Documents of jobs that wait or hold hardware are checked in every round.",
    )
