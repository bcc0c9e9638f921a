"""Which learners are ended when several together use too much of the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node import capacity
from services.node.disk import DiskUse
from services.node.disk_bounds import Share, to_end
from services.node.disk_reserve import Line
from services.node.settings import NodeSettings

MIB = 2**20


def share(name: str, tenant: str, amount: int, *, is_frozen: bool = True, is_being_ended: bool = False) -> Share:
    return Share(Path(name), tenant, amount, is_frozen, is_being_ended)


def names(shares: list[Share]) -> list[str]:
    return [share.folder.name for share in shares]


def test_largest_learner_of_the_tenant_that_has_most_is_ended_first() -> None:
    many = [share(f"small-{number}", "many", 4 - number) for number in range(3)]
    assert names(to_end([share("large", "single", 5), *many], 1)) == ["small-0"]
    assert names(to_end([share("large", "single", 5), *many], 5)) == ["small-0", "large"]


def test_no_learner_is_ended_without_excess() -> None:
    assert to_end([share("large", "t", 5)], 0) == []


def test_all_are_ended_if_that_is_still_too_little() -> None:
    assert names(to_end([share("a", "t", 1), share("b", "t", 2)], 10)) == ["b", "a"]


def test_learner_that_cannot_be_frozen_is_ended_before_a_larger_one() -> None:
    shares = [share("honest", "a", 9), share("forks", "b", 1, is_frozen=False)]
    assert names(to_end(shares, 1)) == ["forks"]


def test_no_learner_is_ended_while_one_that_is_large_enough_is_being_ended() -> None:
    shares = [share("honest", "a", 9), share("killed", "a", 5, is_being_ended=True)]
    assert names(to_end(shares, 5)) == ["killed"]


def counts(**sizes: int) -> dict[Path, tuple[str, DiskUse, bool]]:
    return {Path(name): (name, DiskUse(size * MIB, 1), True) for name, size in sizes.items()}


def of_bytes(reserve: int) -> Line:
    return Line(reserve * MIB, lambda use: use.size)


def test_learner_that_grew_most_is_ended_when_the_reserve_is_touched() -> None:
    line = of_bytes(100)
    assert not line.is_crossed(100 * MIB)
    assert line.is_crossed(90 * MIB)
    assert names(line.cross(90 * MIB, counts(small=10, large=50))) == ["large"]


def test_next_learner_is_ended_only_if_the_others_write_on() -> None:
    line = of_bytes(100)
    line.cross(90 * MIB, counts(keeps=60, writes=20, large=500))
    assert not line.is_crossed(89 * MIB)  # what the ended one wrote is not removed yet
    assert line.is_crossed(40 * MIB)
    assert names(line.cross(40 * MIB, counts(keeps=60, writes=70))) == ["writes"]


def test_no_learner_is_ended_for_what_others_than_learners_wrote() -> None:
    line = of_bytes(100)
    assert line.cross(20 * MIB, counts(small=10, other=20)) == []
    assert not line.is_crossed(15 * MIB)
    assert line.is_crossed(5 * MIB)
    assert line.cross(5 * MIB, counts(small=10, other=20)) == []


def test_reserve_counts_again_from_the_start_once_there_is_room() -> None:
    line = of_bytes(100)
    line.cross(90 * MIB, counts(old=500))
    assert not line.is_crossed(200 * MIB)
    assert names(line.cross(99 * MIB, counts(old=500))) == ["old"]


def test_nothing_is_crossed_without_a_reserve() -> None:
    assert not of_bytes(0).is_crossed(0)


@pytest.mark.parametrize("reserve", [None, 10 * 2**20])
def test_fetched_data_leaves_more_than_the_reserve_at_which_learners_are_ended(
    tmp_path: Path, reserve: int | None
) -> None:
    (tmp_path / "node").mkdir()
    settings = NodeSettings(home=tmp_path, node_disk_reserve=reserve)
    assert capacity.data_keep_free(settings) > capacity.disk_reserve(settings, tmp_path / "node") > 0
