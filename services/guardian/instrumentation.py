"""What the guardian service counts for Prometheus. FfDL's names where the thing is the same."""

from __future__ import annotations

import re
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from services.core.domain.job import Job, Verdict
from services.core.domain.status import Status

_REASON: Final = re.compile(r"[A-Za-z]{1,40}")


class Instrumentation:
    """One per process; ``registry`` is Prometheus's own, or a test's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.running = Gauge("weft_guardian_running", "Guardians hosted by this process.", registry=registry)
        self.claims = Counter("weft_guardian_claims", "Jobs claimed: new, or taken over.", ("kind",), registry=registry)
        self.crashes = Counter(
            "weft_guardian_crashes", "Guardians that ended by an error of ours; each is started again.",
            registry=registry,
        )  # fmt: skip
        self._succeeded = Counter("trainer_trainings_success", "Jobs that completed.", registry=registry)
        self._failed = Counter("trainer_trainings_failed", "Jobs that failed.", ("reason",), registry=registry)
        self._killed = Counter(
            "lcm_trainings_killed", "Jobs killed, and how far they were.", ("progress",), registry=registry
        )
        self._undone = Counter(
            "lcm_trainings_launch_failed", "Attempts that were not provisioned and were undone.", ("reason",),
            registry=registry,
        )  # fmt: skip
        self._retried = Counter(
            "weft_trainings_retried", "Attempts that are tried again.", ("reason",), registry=registry
        )

    def ended(self, job: Job, verdict: Verdict) -> None:
        """``job`` as it was before its attempt ended."""
        reason = verdict.reason if _REASON.fullmatch(verdict.reason) else "Other"
        if verdict.to is Status.COMPLETED:
            self._succeeded.inc()
        elif verdict.to is Status.FAILED:
            self._failed.labels(reason).inc()
        elif verdict.to is Status.KILLED:
            self._killed.labels(str(job.status)).inc()
        elif verdict.to is Status.QUEUED and job.attempt.committed:
            self._retried.labels(reason).inc()
        elif verdict.to is Status.QUEUED:
            self._undone.labels(reason).inc()
