"""Adapters in memory, for tests of use cases and for the simulation. They pass the contract suites of their ports."""

from tests.testbed.memory.jobs import MemoryJobStore
from tests.testbed.memory.records import MemoryRecordStore

__all__ = ["MemoryJobStore", "MemoryRecordStore"]
