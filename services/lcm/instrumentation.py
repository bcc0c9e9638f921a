"""The life-cycle manager's Prometheus metrics. Names are FfDL's where FfDL has the same metric."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.lcm.scheduling.placement import Gang

_ROUND_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Instrumentation:
    """One per process. ``registry``: Prometheus's default one, or a new one in tests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._admitted = Counter("lcm_trainings", "Gangs admitted.", ("framework",), registry=registry)
        self._waiting = Gauge("trainer_queue_size", "Jobs that wait.", ("gpuType",), registry=registry)
        self.holding = Gauge("weft_lcm_jobs_holding", "Jobs that hold hardware.", registry=registry)
        self.held = Gauge(
            "weft_lcm_admission_held", "1 while an almost full disk stops admission, else 0.", registry=registry
        )
        self.term = Gauge(
            "weft_lcm_dispatcher_term",
            "Term of this dispatcher; 0 while it does not lead.",
            registry=registry,
        )
        self.round_s = Histogram(
            "weft_lcm_round_seconds",
            "Duration of one round: reading everything, admitting what fits.",
            buckets=_ROUND_S,
            registry=registry,
        )
        self.withdrawn = Counter(
            "weft_lcm_admissions_withdrawn",
            "Admissions of an older dispatcher that were withdrawn.",
            registry=registry,
        )
        self.deleted_jobs = Counter("weft_deleted_jobs", "Deleted jobs whose data was erased.", registry=registry)
        self.deleted_objects = Counter("weft_deleted_objects", "Objects that were erased.", registry=registry)
        self.deleted_bytes = Counter("weft_deleted_bytes", "Size of the objects that were erased.", registry=registry)
        self.collected = Counter(
            "weft_lcm_collected", "Jobs whose leftovers were removed.", ("where",), registry=registry
        )

        self.guardians = Counter(
            "weft_lcm_guardians",
            "Guardians with a Kubernetes Job of their own, by what was done.",
            ("action",),
            registry=registry,
        )

    def admitted(self, gang: Gang) -> None:
        """Counts one more gang."""
        self._admitted.labels(gang.framework).inc()

    def waiting(self, gangs: Iterable[Gang | None]) -> None:
        """Sets the gauge to the gangs that wait now, by GPU type."""
        self._waiting.clear()
        for gpu_type, count in Tally(gang.gpu_type if gang else "" for gang in gangs).items():
            self._waiting.labels(gpu_type).set(count)
