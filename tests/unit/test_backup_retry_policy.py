"""A backup outlives a store that is away for a moment."""

from __future__ import annotations

import pytest

from services.core.domain.errors import Duplicate, Unavailable
from services.core.ports.record_store import Record
from services.local.backup.retry_policy import Retrying
from tests.testbed.memory import MemoryRecordStore

RECORD = Record(kind="k", id="1", body={"a": 1}, index={})


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
async def test_write_whose_answer_was_lost_is_made_once(after: bool) -> None:  # noqa: FBT001 - a parameter of the test
    store = Faltering(after=after)
    retrying = Retrying(store)
    await retrying.insert(RECORD)
    assert store.calls == 2
    assert await retrying.get("k", "1") == RECORD
    with pytest.raises(Duplicate):
        await retrying.insert(RECORD)


async def test_unavailable_is_raised_after_the_retry_limit() -> None:
    store = Faltering(after=False)
    with pytest.raises(Unavailable, match="gone for a moment"):
        await Retrying(store, retry_for_s=-1).insert(RECORD)
    assert store.calls == 1
