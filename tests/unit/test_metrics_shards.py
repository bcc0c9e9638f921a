"""Which shard owns a job, and which numbers a volume accepts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from services.core.domain.errors import InvalidRequest
from services.core.domain.shards import Shards
from services.metrics.shards.volume import FILE, Agreed, Volume, check

JOBS = [f"j{number:06}" for number in range(3_000)]


def test_jobs_are_spread_evenly_over_the_shards() -> None:
    counts = Counter(Shards(4).owner(job) for job in JOBS)
    assert set(counts) == {0, 1, 2, 3}
    assert max(counts.values()) < 1.2 * min(counts.values())


@pytest.mark.parametrize(("before", "count"), [(1, 2), (2, 5), (5, 2), (3, 1)])
def test_only_jobs_move_that_must(before: int, count: int) -> None:
    shards = Shards(count, before)
    moving = [job for job in JOBS if shards.former_owner(job) is not None]
    for job in moving:
        assert shards.former_owner(job) == Shards(before).owner(job) != shards.owner(job)
        if count > before:
            assert shards.owner(job) >= before, "to a new shard"
        else:
            assert Shards(before).owner(job) >= count, "away from one that goes"
    expected = abs(count - before) / max(count, before)
    assert len(moving) / len(JOBS) == pytest.approx(expected, abs=0.05)


def test_owner_of_a_job_never_changes_between_versions() -> None:
    """Stored jobs lie where these numbers say."""
    assert [Shards(3).owner(job) for job in JOBS[:8]] == [2, 2, 0, 0, 2, 2, 0, 1]


@pytest.mark.parametrize("number", [0, -1, 65])
def test_impossible_numbers_of_shards_are_refused(number: int) -> None:
    with pytest.raises(InvalidRequest):
        Shards(number)
    with pytest.raises(InvalidRequest):
        Shards(1, number)


MINE = [job for job in JOBS if Shards(3).owner(job) == 1][:5]
OF_ALL = JOBS[:50]


@pytest.mark.parametrize(
    ("shards", "agreed", "jobs"),
    [
        (Shards(3), None, []),
        (Shards(3), None, MINE),
        (Shards(3), Agreed(3, None), MINE),
        (Shards(3, 2), None, MINE),
        (Shards(3, 2), Agreed(2, None), []),
        (Shards(3, 2), Agreed(3, 2), MINE),
        (Shards(3), Agreed(3, 2, moved=True), MINE),
        (Shards(2, 3), Agreed(3, 2, moved=True), MINE),
    ],
)
def test_a_volume_accepts_numbers_that_continue_its_own(shards: Shards, agreed: Agreed | None, jobs: list[str]) -> None:
    check(shards, 1, agreed, jobs)


@pytest.mark.parametrize(
    ("shards", "agreed", "jobs", "advice"),
    [
        (Shards(3), None, OF_ALL, "SHARDS_BEFORE"),
        (Shards(3), Agreed(2, None), [], "WEFT_METRICS_SHARDS=2, or, to move its jobs, WEFT_METRICS_SHARDS_BEFORE=2"),
        (Shards(2, 3), Agreed(3, 2), MINE, "from 2 to 3 shards is not complete"),
        (Shards(3), Agreed(3, 2), MINE, "from 2 to 3 shards is not complete"),
        (Shards(4, 3), Agreed(3, 2), MINE, "from 2 to 3 shards is not complete"),
        (Shards(1), None, [], "numbered from 0"),
    ],
)
def test_a_volume_refuses_other_numbers_and_says_what_to_set(
    shards: Shards, agreed: Agreed | None, jobs: list[str], advice: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(shards, 1, agreed, jobs)
    assert advice in refused.value.message


def test_agreed_numbers_are_read_back_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    assert volume.read() is None
    assert volume.record(Agreed(3, 1, moved=True))
    assert volume.read() == Agreed(3, 1, moved=True)
    (tmp_path / FILE).write_text('{"count": 3}')
    with pytest.raises(InvalidRequest, match="restore it"):
        volume.read()
