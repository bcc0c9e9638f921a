"""Prometheus metrics of the api: FfDL's names where FfDL has the metric; requests, errors and durations by route."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.core.domain.errors import InvalidArchive, NoSpace, TooLarge
from services.core.domain.spec import JobSpec

_SECONDS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
_KIND_LABELS: Final = ("framework", "version", "gpus", "cpus", "memory")
_MOST_KINDS: Final = 500
"""Different kinds of jobs that are counted one by one. Users choose them, and each time series is kept for ever."""


class Instrumentation:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.created = Counter("trainer_trainings_create", "Jobs accepted.", _KIND_LABELS, registry=registry)
        self._kinds: set[tuple[str, ...]] = set()
        self.deleted = Counter("trainer_trainings_delete", "Jobs deleted.", registry=registry)
        self.halted = Counter("trainer_trainings_halt", "Halts requested.", registry=registry)
        self.code_refused = Counter(
            "trainer_uploadmodel_failed", "Code archives that were refused.", ("kind",), registry=registry
        )
        self.downloads = Counter("trainer_model_download", "Artifacts downloaded.", registry=registry)
        self.requests = Counter(
            "weft_http_requests", "Requests answered.", ("method", "route", "status"), registry=registry
        )
        self.seconds = Histogram(
            "weft_http_request_seconds",
            "Until the answer's head was sent.",
            ("method", "route"),
            buckets=_SECONDS,
            registry=registry,
        )
        self.calls = Counter("weft_grpc_calls", "Calls ended.", ("method", "code"), registry=registry)
        self.call_seconds = Histogram(
            "weft_grpc_call_seconds", "Until the call ended.", ("method",), buckets=_SECONDS, registry=registry
        )
        self.running = Gauge("weft_http_requests_in_flight", "Requests being answered now.", registry=registry)
        self.connections = Gauge(
            "weft_api_connections", "Connections of clients now.", ("listener",), registry=registry
        )
        self.connections_refused = Counter(
            "weft_api_connections_refused",
            "Connections that were closed for a bound: of one client, of all, or in "
            "favour of another client (evicted).",
            ("listener", "why"),
            registry=registry,
        )
        self.followers = Gauge("weft_followers", "Live streams being read now.", registry=registry)

    @contextmanager
    def counting_refused_code(self) -> Generator[None]:
        """Counts code that is refused inside it, by whose fault it is: ``user`` or ``weft``."""
        try:
            yield
        except (InvalidArchive, TooLarge, NoSpace) as error:
            self.code_refused.labels("weft" if isinstance(error, NoSpace) else "user").inc()
            raise

    def count_accepted(self, spec: JobSpec) -> None:
        """Counts a new job by its framework and the size of its first role; beyond ``_MOST_KINDS`` as "other"."""
        first = spec.role_resources(next(iter(spec.roles)))
        framework = spec.framework
        kind: tuple[str, ...] = (
            framework.name if framework else "",
            framework.version if framework else "",
            f"{first.gpus:g}",
            f"{first.cpus:g}",
            str(first.memory),
        )
        if kind not in self._kinds and len(self._kinds) >= _MOST_KINDS:
            kind = ("other",) * len(_KIND_LABELS)
        self._kinds.add(kind)
        self.created.labels(*kind).inc()
