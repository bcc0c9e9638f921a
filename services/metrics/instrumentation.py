"""Prometheus metrics of the metrics service."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram


class Instrumentation:
    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.lines = Counter("weft_metrics_lines", "Log lines taken in", registry=registry)
        self.points = Counter("weft_metrics_points", "Metric points taken in", registry=registry)
        self.refused = Counter(
            "weft_metrics_batches_refused", "Batches that did not begin at the committed offset", registry=registry
        )
        self.left_out = Counter(
            "weft_metrics_left_out", "Lines and points beyond a bound of their job", ["bound"], registry=registry
        )
        self.append_seconds = Histogram(
            "weft_metrics_append_seconds",
            "From the arrival of an append to its being durable",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
            registry=registry,
        )
        self.followers = Gauge("weft_metrics_followers", "Open follows", ["what"], registry=registry)
        self.reports = Counter(
            "weft_metrics_reports", "Learners' reports: written, unchanged or stale", ["result"], registry=registry
        )
        self.learners = Gauge("weft_metrics_learners_seen", "Learners heard of in the last hour", registry=registry)
        self.moving = Gauge(
            "weft_metrics_jobs_to_move", "Jobs that this shard has still to fetch from another one", registry=registry
        )
