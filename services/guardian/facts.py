"""What is known of a job's learners, from their helpers and from the cluster: pure.

A helper may be dead, slow or cut off; the cluster's own word on a process always counts. Where the cluster has seen an
exit that the helper has not told yet, the exit is a fact already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from services.core.domain.learner import LearnerStatus
from services.core.domain.spec import JobSpec
from services.core.domain.status import PHASE_ORDER, Phase
from services.core.ports.cluster import Observation


def learners(
    spec: JobSpec, attempt: int, reported: Mapping[str, LearnerStatus], observed: Observation | None
) -> dict[str, LearnerStatus]:
    """The learners of the attempt by name, each with its exit as soon as anybody knows it."""
    merged = dict(reported)
    for process in observed.learners if observed is not None else ():
        if process.attempt != attempt or process.exit is None:
            continue
        known = merged.get(process.name)
        if known is None:
            role = process.name.rpartition("-")[0]
            if role not in spec.roles:
                continue
            known = LearnerStatus(
                name=process.name, role=role, rank=_rank(spec, process.name), attempt=attempt, seq=0,
                phase=Phase.PROCESSING,
            )  # fmt: skip
        merged[process.name] = replace(known, exit=process.exit) if known.exit is None else known
    return merged


def _rank(spec: JobSpec, learner: str) -> int:
    role, _, index = learner.rpartition("-")
    before = 0
    for name, each in spec.roles.items():
        if name == role:
            break
        before += each.count
    return before + int(index)


def all_reported(spec: JobSpec, known: Mapping[str, LearnerStatus]) -> bool:
    """Whether every learner has a helper at work: the attempt is provisioned."""
    return len(known) == spec.learners


def unstored(known: Mapping[str, LearnerStatus], observed: Observation | None, attempt: int) -> list[str]:
    """Learners whose results are not stored yet. One that never ran and never reported has none."""
    there = {
        one.name
        for one in (observed.learners if observed is not None else ())
        if one.attempt == attempt and (one.started is not None or one.name in known)
    }
    return sorted(
        name for name in there if name not in known or PHASE_ORDER[known[name].phase] < PHASE_ORDER[Phase.STORED]
    )


def digests(known: Mapping[str, LearnerStatus]) -> tuple[str, str]:
    """(environment, data): what the helpers resolved, the same for all learners of an attempt; "" while unknown."""
    return (
        next((one.env_digest for one in known.values() if one.env_digest), ""),
        next((one.data_digest for one in known.values() if one.data_digest), ""),
    )
