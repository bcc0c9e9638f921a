"""Stores that forget: for simulations and for tests of use cases. They pass the contract suites of the real ones."""

from tests.testbed.memory.jobs import MemoryJobStore
from tests.testbed.memory.records import MemoryRecordStore

__all__ = ["MemoryJobStore", "MemoryRecordStore"]
