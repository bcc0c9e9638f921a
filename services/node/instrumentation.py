"""The Prometheus metrics of the node agent."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class Instrumentation:
    """One per process; ``registry`` is Prometheus's own, or a test's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.learners = Gauge("weft_node_learners", "Learners whose shim lives", registry=registry)
        self.starts = Counter("weft_node_shim_starts", "Shims started", registry=registry)
        self.helper_starts = Counter("weft_node_helper_starts", "Helpers started for the first time", registry=registry)
        self.helper_restarts = Counter("weft_node_helper_restarts", "Helpers started again", registry=registry)
        self.lost = Counter("weft_node_learners_lost", "Learners that vanished with their shim", registry=registry)
        self.disk = Gauge("weft_node_disk_bytes", "Bytes that running learners have written", registry=registry)
        self.disk_exceeded = Counter(
            "weft_node_disk_exceeded",
            "Learners that were ended because they wrote too much",
            ["bound"],
            registry=registry,
        )
        self.ports_taken = Counter(
            "weft_node_ports_taken",
            "Learners that were ended because they listened on a port of another job",
            registry=registry,
        )
        self.disk_free = Gauge(
            "weft_node_disk_free_bytes",
            "Free bytes of the learners' file system, while there are learners",
            registry=registry,
        )
        self.cache = Gauge("weft_node_cache_bytes", "Bytes in the caches", ["cache"], registry=registry)
        self.cache_removed = Counter(
            "weft_node_cache_removed", "Entries of caches that were removed to keep to the bound", registry=registry
        )
        self.gpus = Gauge("weft_node_gpus", "GPU slots of this machine", ["state"], registry=registry)

    def count_gpus(self, total: int, used: float) -> None:
        self.gpus.labels("total").set(total)
        self.gpus.labels("used").set(used)
