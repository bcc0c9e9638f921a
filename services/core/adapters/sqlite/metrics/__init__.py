"""The metric store: a folder per job with an SQLite file and log segments. ``await SqliteMetricStore.open(root)``."""

from services.core.adapters.sqlite.metrics.store import SqliteMetricStore

__all__ = ["SqliteMetricStore"]
