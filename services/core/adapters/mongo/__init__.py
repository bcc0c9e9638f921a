"""Job and record stores on MongoDB, for several machines."""

from services.core.adapters.mongo.check import trusted
from services.core.adapters.mongo.connection import close
from services.core.adapters.mongo.jobs import MongoJobStore
from services.core.adapters.mongo.records import MongoRecordStore

__all__ = ["MongoJobStore", "MongoRecordStore", "close", "trusted"]
