"""The guardian service's Prometheus metrics. Names are FfDL's where FfDL has the same metric."""

from __future__ import annotations

import re
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from services.core.domain.job import Job, Verdict
from services.core.domain.status import Status

_REASON: Final = re.compile(r"[A-Za-z]{1,40}")


class Instrumentation:
    """One per process. ``registry``: Prometheus's default one, or a new one in tests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.running = Gauge("weft_guardian_running", "Guardians in this process.", registry=registry)
        self.claims = Counter("weft_guardian_claims", "Jobs claimed: new, or taken over.", ("kind",), registry=registry)
        self.crashes = Counter(
            "weft_guardian_crashes",
            "Guardians that ended by a bug; each is started again.",
            registry=registry,
        )
        self.contradicted = Counter(
            "weft_guardian_reports_contradicted",
            "Reports of a learner's end that the cluster's record contradicts. They have no effect.",
            registry=registry,
        )
        self.restarts = Counter(
            "weft_learner_restarts",
            "Learners that were started again alone, by whose fault it was (job or infrastructure).",
            ("fault",),
            registry=registry,
        )
        self._succeeded = Counter("trainer_trainings_success", "Jobs that completed.", registry=registry)
        self._failed = Counter("trainer_trainings_failed", "Jobs that failed.", ("reason",), registry=registry)
        self._killed = Counter(
            "lcm_trainings_killed", "Jobs killed, by the status they had.", ("progress",), registry=registry
        )
        self._undone = Counter(
            "lcm_trainings_launch_failed",
            "Attempts that were rolled back before they were provisioned.",
            ("reason",),
            registry=registry,
        )
        self._retried = Counter(
            "weft_trainings_retried", "Attempts after which the job was queued again.", ("reason",), registry=registry
        )

    def ended(self, job: Job, verdict: Verdict) -> None:
        """Counts the end of an attempt. ``job``: as it was before."""
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
