"""Job and record stores in SQLite files, for one machine: ``await SqliteJobStore.open(path)``."""

from services.core.adapters.sqlite.database import Database
from services.core.adapters.sqlite.jobs import SqliteJobStore
from services.core.adapters.sqlite.records import SqliteRecordStore

__all__ = ["Database", "SqliteJobStore", "SqliteRecordStore"]
