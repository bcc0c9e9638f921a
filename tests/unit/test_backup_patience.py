"""A backup outlives a store that is away for a moment."""

from __future__ import annotations

import pytest

from services.core.domain.errors import Duplicate, Unavailable
from services.core.ports.record_store import Record
from services.local.backup.retry_policy import Retrying
from tests.testbed.memory import MemoryRecordStore

ONE = Record(kind="k", id="1", body={"a": 1}, index={})


class Faltering(MemoryRecordStore):
    """Of each insert the first answer is lost, before or after it took place."""

    def __init__(self, *, after: bool) -> None:
        super().__init__()
        self._after = after
        self.calls = 0

    async def insert(self, record: Record) -> Record:
        self.calls += 1
        if self.calls > 1:
            return await super().insert(record)
        if self._after:
            await super().insert(record)
        raise Unavailable("gone for a moment")


@pytest.mark.looptime
@pytest.mark.parametrize("after", [False, True])
async def test_what_was_not_answered_is_written_once(after: bool) -> None:  # noqa: FBT001 - a parameter of the test
    store = Faltering(after=after)
    patient = Retrying(store)
    await patient.insert(ONE)
    assert store.calls == 2
    assert await patient.get("k", "1") == ONE
    with pytest.raises(Duplicate):
        await patient.insert(ONE)


async def test_a_store_that_stays_away_is_told_at_last() -> None:
    store = Faltering(after=False)
    with pytest.raises(Unavailable, match="gone for a moment"):
        await Retrying(store, patience_s=-1).insert(ONE)
    assert store.calls == 1
