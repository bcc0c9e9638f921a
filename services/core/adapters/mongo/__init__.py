"""MongoDB: where jobs and records live past one machine."""

from services.core.adapters.mongo.check import check_store
from services.core.adapters.mongo.jobs import MongoJobStore
from services.core.adapters.mongo.records import MongoRecordStore

__all__ = ["MongoJobStore", "MongoRecordStore", "check_store"]
