"""Who is admitted and where: whole gangs, in order, with a reason for everyone who waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.sizes import SIZES
from services.core.domain.spec import parse_spec
from services.core.ports.cluster import Node
from services.lcm.scheduling.fifo import Decision, Waiter, decide
from services.lcm.scheduling.placement import Free, Gang, all_free, fits_as_placed, gang_of, pieces, place, subtract

GB = 10**9


def waiting(name: str, **fields: Any) -> Waiter:
    spec = parse_spec({"name": name, "command": "true", "resources": {"cpus": 1, "memory": "1GB"}, **fields})
    return Waiter(name, attempt=0, since=0, not_before=0, holds=False, gang=gang_of(spec, SIZES))


def asked(name: str, **fields: Any) -> Gang:
    wanted = waiting(name, **fields).gang
    assert wanted is not None
    return wanted


def nodes(count: int, *, cpus: float = 4, gpus: int = 0) -> list[Free]:
    return all_free([Node(name=f"n{i}", cpus=cpus, memory=16 * GB, gpus=gpus, gpu_type="v100") for i in range(count)])


def decisions(*queue: Waiter, free: list[Free], now: int = 0) -> dict[str, Decision]:
    found = decide(queue, free=free, capacity=nodes(2, gpus=4), now=now)
    return {one.job.id: one for one in found}


def test_a_gang_that_fits_is_placed_whole() -> None:
    found = decisions(waiting("a", learners=3), free=nodes(2))
    assert set(found["a"].placement or {}) == {"worker-0", "worker-1", "worker-2"}


def test_a_gang_that_fits_only_in_part_gets_nothing_and_says_what_is_short() -> None:
    found = decisions(waiting("a", learners=8), free=nodes(1))
    assert found["a"].placement is None
    assert found["a"].pending_reason == "WaitingForCapacity"
    assert "8 CPUs (4 free)" in found["a"].message


def test_whoever_comes_behind_a_blocked_gang_waits_so_that_the_gang_does_not_starve() -> None:
    found = decisions(waiting("big", learners=8), waiting("small"), free=nodes(1))
    assert found["small"].placement is None
    assert (found["small"].pending_reason, found["small"].position) == ("WaitingInQueue", 2)
    assert "big" in found["small"].message


def test_a_job_that_can_never_fit_blocks_nobody() -> None:
    found = decisions(waiting("huge", learners=100), waiting("small"), free=nodes(1))
    assert found["huge"].pending_reason == "NoMatchingFlavor"
    assert found["small"].placement == {"worker-0": "n0"}


def test_a_job_in_back_off_or_still_releasing_blocks_nobody() -> None:
    late, held = replace(waiting("late"), not_before=2500), replace(waiting("held"), attempt=1, holds=True)
    found = decisions(late, held, waiting("small"), free=nodes(1), now=1000)
    assert (found["late"].pending_reason, found["held"].pending_reason) == ("BackOff", "Releasing")
    assert "2 s" in found["late"].message
    assert found["small"].placement is not None


def test_two_jobs_are_not_given_the_same_hardware() -> None:
    found = decisions(waiting("a", learners=3), waiting("b", learners=3), free=nodes(1))
    assert found["a"].placement is not None
    assert found["b"].placement is None


def test_pack_takes_the_tightest_node_and_spread_the_emptiest() -> None:
    free = [Free("roomy", 8, 16 * GB, 4), Free("tight", 2, 16 * GB, 1)]
    packed = asked("a", resources={"cpus": 1, "memory": "1GB", "gpus": 1})
    spread = asked("b", resources={"cpus": 1, "memory": "1GB", "gpus": 1}, placement="spread")
    assert place(packed, free) == {"worker-0": "tight"}
    assert place(spread, free) == {"worker-0": "roomy"}


def test_gpus_of_another_type_do_not_count() -> None:
    spec = asked("a", resources={"gpus": 1, "cpus": 1, "memory": "1GB", "gpu_type": "h100"})
    assert place(spec, nodes(1, gpus=4)) is None


def test_tenths_of_a_gpu_add_up_to_a_whole_one() -> None:
    spec = asked("a", learners=10, resources={"gpus": 0.1, "cpus": 0.1, "memory": "1MiB"})
    assert place(spec, [Free("n", 1, GB, 1)]) is not None


def test_what_lies_on_a_node_that_is_gone_takes_nothing_from_the_others() -> None:
    spec = asked("a", learners=2)
    there = [Free("n0", 4, 16 * GB, 0)]
    assert [one.cpus for one in subtract(there, pieces(spec, {"worker-0": "n0", "worker-1": "gone"}))] == [3]


def test_an_admission_stands_only_where_every_learner_still_has_its_place() -> None:
    spec = asked("a", learners=2)
    placed = {"worker-0": "n0", "worker-1": "n0"}
    assert fits_as_placed([Free("n0", 2, 16 * GB, 0)], spec, placed)
    assert not fits_as_placed([Free("n0", 1, 16 * GB, 0)], spec, placed)
    assert not fits_as_placed([Free("n1", 9, 16 * GB, 0)], spec, placed)
    assert not fits_as_placed([Free("n0", 2, 16 * GB, 0)], spec, {"worker-0": "n0"})


def test_a_gang_that_would_fit_but_for_the_nodes_edges_is_told_so() -> None:
    found = decisions(waiting("a", learners=2, resources={"cpus": 3, "memory": "1GB"}), free=[
        Free("n0", 2, 16 * GB, 0), Free("n1", 4, 16 * GB, 0),
    ])  # fmt: skip
    assert "6 CPUs (6 free)" in found["a"].message
    assert "could each take a whole learner" in found["a"].message


def test_a_node_that_is_not_ready_holds_nobody() -> None:
    assert all_free([Node(name="n", cpus=4, memory=GB, gpus=0, ready=False)]) == []


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), max_size=12),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=4),
)
def test_no_node_is_ever_promised_more_than_it_has(gangs: list[tuple[int, int]], sizes: list[tuple[int, int]]) -> None:
    cluster = [Free(f"n{i}", cpus, 64 * GB, gpus) for i, (cpus, gpus) in enumerate(sizes)]
    queue = [
        waiting(f"j{i:02}", learners=count, resources={"cpus": 1, "memory": "1GB", "gpus": gpus})
        for i, (count, gpus) in enumerate(gangs)
    ]
    left = list(cluster)
    for decision in decide(queue, free=cluster, capacity=cluster, now=0):
        if decision.placement is not None and decision.job.gang is not None:
            assert len(decision.placement) == len(decision.job.gang.learners)
            left = subtract(left, pieces(decision.job.gang, decision.placement))
    assert all(one.cpus >= 0 and one.gpus >= 0 and one.memory >= 0 for one in left)
