"""Stores that forget: for simulations and for tests of use cases. They pass the contract suites of the real ones."""

from services.core.adapters.memory.jobs import MemoryJobStore
from services.core.adapters.memory.records import MemoryRecordStore

__all__ = ["MemoryJobStore", "MemoryRecordStore"]
