"""Which learners are ended when several together use too much of the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node import capacity
from services.node.disk import DiskUse
from services.node.disk_bounds import Share, to_end
from services.node.disk_reserve import Line
from services.node.learner_disk import Baseline
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


def sizes(free: int, **of_learners: int) -> Baseline:
    return Baseline({Path(name): DiskUse(size * MIB, 1) for name, size in of_learners.items()}, free * MIB)


def without_round(reserve: int) -> Line:
    return Line(reserve * MIB, lambda use: use.size)


def of_bytes(reserve: int) -> Line:
    """There were no learners while there was room."""
    line = without_round(reserve)
    line.is_crossed(reserve * MIB, sizes(reserve))
    return line


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
    assert not line.is_crossed(200 * MIB, sizes(200, old=400))
    assert names(line.cross(99 * MIB, counts(old=500))) == ["old"]


def test_large_learner_that_writes_nothing_is_not_ended_for_what_the_operator_copies() -> None:
    line = without_round(100)
    assert not line.is_crossed(900 * MIB, sizes(900, large=5000, small=1))
    assert line.is_crossed(90 * MIB)
    assert line.cross(90 * MIB, counts(large=5010, small=1)) == []


def test_learner_that_grew_is_ended_at_the_first_touch_and_not_a_larger_one_that_did_not() -> None:
    line = without_round(100)
    assert not line.is_crossed(900 * MIB, sizes(900, large=5000, grows=1))
    assert line.is_crossed(90 * MIB)
    assert names(line.cross(90 * MIB, counts(large=5000, grows=800))) == ["grows"]


def test_growth_counts_from_when_there_was_plenty_of_room() -> None:
    line = without_round(100)
    assert not line.is_crossed(300 * MIB, sizes(300, slow=1, fast=1))
    assert not line.is_crossed(150 * MIB, sizes(150, slow=151, fast=1))
    assert names(line.cross(90 * MIB, counts(slow=151, fast=61))) == ["slow"]


def test_growth_counts_anew_once_there_is_more_room() -> None:
    line = without_round(100)
    assert not line.is_crossed(110 * MIB, sizes(110))
    assert not line.is_crossed(190 * MIB, sizes(190, large=50))
    assert line.cross(90 * MIB, counts(large=50)) == []


def test_room_that_came_back_after_the_last_count_counts_as_lost_when_it_is_used_up_again() -> None:
    line = of_bytes(100)
    assert names(line.cross(90 * MIB, counts(ended=500))) == ["ended"]
    assert not line.is_crossed(500 * MIB)  # what it wrote is removed
    assert line.cross(95 * MIB, counts(starts=20)) == []  # the operator wrote most


def test_without_an_earlier_count_none_is_ended_until_the_next() -> None:
    line = without_round(100)
    assert line.is_crossed(90 * MIB)
    assert line.cross(90 * MIB, counts(large=500, grows=5)) == []
    assert line.is_crossed(44 * MIB)
    assert names(line.cross(44 * MIB, counts(large=500, grows=51))) == ["grows"]


def test_without_an_earlier_count_the_largest_is_ended_if_almost_nothing_is_left() -> None:
    assert names(without_round(100).cross(2 * MIB, counts(large=500, small=5))) == ["large"]


def test_round_while_the_reserve_was_touched_is_no_baseline() -> None:
    line = without_round(100)
    assert not line.is_crossed(150 * MIB, sizes(60, large=500))
    assert line.cross(90 * MIB, counts(large=540)) == []


def test_nothing_is_crossed_without_a_reserve() -> None:
    assert not of_bytes(0).is_crossed(0)


@pytest.mark.parametrize("reserve", [None, 10 * 2**20])
def test_fetched_data_leaves_more_than_the_reserve_at_which_learners_are_ended(
    tmp_path: Path, reserve: int | None
) -> None:
    (tmp_path / "node").mkdir()
    settings = NodeSettings(home=tmp_path, node_disk_reserve=reserve)
    assert capacity.data_keep_free(settings) > capacity.disk_reserve(settings, tmp_path / "node") > 0
