"""Which jobs are admitted and where: whole gangs, in order, with a reason for every job that waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.errors import InvalidRequest
from services.core.domain.sizes import SIZES, Size
from services.core.domain.spec import parse_spec
from services.core.ports.cluster import Node
from services.lcm.scheduling.fifo import decide
from services.lcm.scheduling.placement import (
    Free,
    Gang,
    all_free,
    describe_excess,
    describe_shortage,
    fits_as_placed,
    gang_of,
    pieces,
    place,
    subtract,
)
from services.lcm.scheduling.policies import find_policy
from services.lcm.scheduling.policy import Decision, Waiter

GB = 10**9


def waiting(name: str, **fields: Any) -> Waiter:
    spec = parse_spec({"name": name, "command": "true", "resources": {"cpus": 1, "memory": "1GB"}, **fields})
    return Waiter(name, attempt=0, since=0, not_before=0, holds=False, gang=gang_of(spec, SIZES))


def gang(name: str, **fields: Any) -> Gang:
    parsed = waiting(name, **fields).gang
    assert parsed is not None
    return parsed


def nodes(count: int, *, cpus: float = 4, gpus: int = 0) -> list[Free]:
    return all_free([Node(name=f"n{i}", cpus=cpus, memory=16 * GB, gpus=gpus, gpu_type="v100") for i in range(count)])


def decisions(*queue: Waiter, free: list[Free], now: int = 0) -> dict[str, Decision]:
    decided = decide(queue, free=free, capacity=nodes(2, gpus=4), now=now)
    return {decision.job.id: decision for decision in decided}


def test_a_gang_that_fits_is_placed_whole() -> None:
    decided = decisions(waiting("a", learners=3), free=nodes(2))
    assert set(decided["a"].placement or {}) == {"worker-0", "worker-1", "worker-2"}


def test_a_gang_that_fits_only_in_part_is_not_placed_and_the_message_says_what_is_short() -> None:
    decided = decisions(waiting("a", learners=8), free=nodes(1))
    assert decided["a"].placement is None
    assert decided["a"].pending_reason == "WaitingForCapacity"
    assert "8 CPUs (4 free)" in decided["a"].message


def test_jobs_behind_a_waiting_gang_wait_so_that_it_does_not_starve() -> None:
    decided = decisions(waiting("big", learners=8), waiting("small"), free=nodes(1))
    assert decided["small"].placement is None
    assert (decided["small"].pending_reason, decided["small"].position) == ("WaitingInQueue", 2)
    assert "big" in decided["small"].message


def test_a_job_that_can_never_fit_blocks_no_other() -> None:
    decided = decisions(waiting("huge", learners=100), waiting("small"), free=nodes(1))
    assert decided["huge"].pending_reason == "TooLargeForCluster"
    assert decided["small"].placement == {"worker-0": "n0"}


def test_what_is_larger_than_the_cluster_is_said_with_the_units_of_both_amounts() -> None:
    """ "it requests 900 GB of memory, and this cluster has 25.28"."""
    large = gang("x", resources={"cpus": 1, "gpus": 1, "memory": "900GB"})
    assert (
        describe_excess(large, [Free("n0", 2, 25 * GB, 0)])
        == "it requests 1 GPU, and this cluster has 0 GPUs; 900 GB of memory, and this cluster has 25 GB"
    )


def test_small_and_large_amounts_of_memory_have_units_that_people_read() -> None:
    """ "0.0671 GB of memory" and "1.02e+03 GB"."""
    small = gang("x", resources={"cpus": 1, "memory": "64MiB"})
    assert describe_shortage(small, [Free("n0", 0, 0, 0)]).endswith("67.1 MB of memory (0 GB free)")
    large = gang("x", resources={"cpus": 1, "memory": "2TB"})
    assert describe_excess(large, [Free("n0", 2, 1024 * GB, 0)]).endswith(
        "2 TB of memory, and this cluster has 1.02 TB"
    )


def test_a_job_in_back_off_or_still_releasing_blocks_no_other() -> None:
    late, held = replace(waiting("late"), not_before=2500), replace(waiting("held"), attempt=1, holds=True)
    decided = decisions(late, held, waiting("small"), free=nodes(1), now=1000)
    assert (decided["late"].pending_reason, decided["held"].pending_reason) == ("BackOff", "Releasing")
    assert "2 s" in decided["late"].message
    assert decided["small"].placement is not None


def test_two_jobs_are_not_given_the_same_hardware() -> None:
    decided = decisions(waiting("a", learners=3), waiting("b", learners=3), free=nodes(1))
    assert decided["a"].placement is not None
    assert decided["b"].placement is None


def test_pack_takes_the_tightest_node_and_spread_the_emptiest() -> None:
    free = [Free("roomy", 8, 16 * GB, 4), Free("tight", 2, 16 * GB, 1)]
    packed = gang("a", resources={"cpus": 1, "memory": "1GB", "gpus": 1})
    spread = gang("b", resources={"cpus": 1, "memory": "1GB", "gpus": 1}, placement="spread")
    assert place(packed, free) == {"worker-0": "tight"}
    assert place(spread, free) == {"worker-0": "roomy"}


def test_gpus_of_another_type_do_not_count() -> None:
    wanted = gang("a", resources={"gpus": 1, "cpus": 1, "memory": "1GB", "gpu_type": "h100"})
    assert place(wanted, nodes(1, gpus=4)) is None


def with_devices(**counts: int) -> list[Free]:
    """Nodes of these names with so many network adapters."""
    return all_free(
        [
            Node(name=name, cpus=4, memory=16 * GB, gpus=0, devices=(("rdma/hca", count),) if count else ())
            for name, count in counts.items()
        ]
    )


HCA = {"cpus": 1, "memory": "1GB", "devices": {"rdma/hca": 1}}


def test_a_learner_with_a_device_is_placed_where_one_is_free() -> None:
    free = with_devices(a=0, b=1, c=2)
    assert place(gang("a", resources=HCA, learners=3), free) == {"worker-0": "b", "worker-1": "c", "worker-2": "c"}
    assert place(gang("a", resources=HCA, learners=4), free) is None
    assert fits_as_placed(free, gang("a", resources=HCA), {"worker-0": "c"})
    assert not fits_as_placed(free, gang("a", resources=HCA), {"worker-0": "a"})


def test_a_role_that_needs_devices_is_placed_before_one_that_needs_none() -> None:
    roles = {"ps": {"count": 1, "cpus": 4, "devices": {}}, "worker": {"count": 1, "cpus": 3}}
    placed = place(gang("a", roles=roles, resources=HCA), with_devices(a=1, b=0))
    assert placed == {"worker-0": "a", "ps-0": "b"}


def test_a_job_that_waits_for_a_device_says_which_one_is_short() -> None:
    capacity = with_devices(a=1, b=1)
    (first, second) = decide(
        [waiting("a", resources=HCA, learners=2), waiting("b", resources=HCA)], free=capacity, capacity=capacity, now=0
    )
    assert first.placement is not None
    assert second.pending_reason == "WaitingForCapacity"
    assert second.message.startswith(
        "its learner needs 1 CPU (6 free), 1 GB of memory (30 GB free), 1 rdma/hca (0 free)"
    )


def test_a_job_with_more_devices_than_the_cluster_has_says_so_and_blocks_no_other() -> None:
    capacity = with_devices(a=1, b=0)
    huge, small = decide(
        [waiting("huge", resources=HCA, learners=2), waiting("small", resources=HCA)],
        free=capacity,
        capacity=capacity,
        now=0,
    )
    assert huge.pending_reason == "TooLargeForCluster"
    assert huge.message.startswith("it requests 2 rdma/hca, and this cluster has 1")
    assert small.placement == {"worker-0": "a"}


def test_devices_of_a_job_that_holds_them_are_given_to_no_other() -> None:
    held = gang("a", resources=HCA)
    left = subtract(with_devices(a=2), pieces(held, {"worker-0": "a"}))
    assert [node.devices for node in left] == [(("rdma/hca", 1),)]
    (none,) = subtract(left, pieces(held, {"worker-0": "a"}))
    assert place(held, [none]) is None


def with_slots(**slots: int | None) -> list[Free]:
    """Nodes of these names that may have so many more learners."""
    return all_free([Node(name=name, cpus=64, memory=64 * GB, gpus=0, slots=more) for name, more in slots.items()])


def test_a_node_gets_no_more_learners_than_it_has_pod_slots() -> None:
    """Learners were pinned to a node with 110 pods, where the scheduler found "Too many pods" until the job failed."""
    free = with_slots(a=0, b=1, c=2)
    assert place(gang("a", learners=3), free) == {"worker-0": "b", "worker-1": "c", "worker-2": "c"}
    assert place(gang("a", learners=4), free) is None
    assert fits_as_placed(free, gang("a"), {"worker-0": "b"})
    assert not fits_as_placed(free, gang("a", learners=2), {"worker-0": "b", "worker-1": "b"})
    assert place(gang("a", learners=4), with_slots(a=0, b=None)) is not None


def test_learners_that_are_there_take_slots_of_their_node_whatever_their_size() -> None:
    held = gang("a", learners=2)
    (left,) = subtract(with_slots(a=2), pieces(held, {"worker-0": "a", "worker-1": "a"}))
    assert left.slots == 0
    assert place(gang("b", resources={"cpus": 0.1, "memory": "1MiB"}), [left]) is None
    (unbounded,) = subtract(with_slots(a=None), pieces(held, {"worker-0": "a", "worker-1": "a"}))
    assert unbounded.slots is None


def test_a_job_that_waits_for_a_pod_slot_says_so() -> None:
    capacity = with_slots(a=1)
    (first, second) = decide([waiting("a"), waiting("b")], free=capacity, capacity=capacity, now=0)
    assert first.placement is not None
    assert second.pending_reason == "WaitingForCapacity"
    assert second.message.endswith("1 pod slot (0 free); it starts when enough is free")


def test_a_gang_of_more_pods_than_all_nodes_may_have_says_so_and_blocks_no_other() -> None:
    capacity = with_slots(a=2)
    huge, small = decide([waiting("huge", learners=3), waiting("small")], free=capacity, capacity=capacity, now=0)
    assert huge.pending_reason == "TooLargeForCluster"
    assert "3 pod slots (2 in all)" in huge.message
    assert small.placement == {"worker-0": "a"}


def for_gpus_only(*names: str) -> list[Free]:
    """Nodes "gpu" and "cpu", of which those with these names take learners with GPUs only."""
    return all_free(
        [
            Node(name=name, cpus=4, memory=16 * GB, gpus=gpus, only_gpus=name in names)
            for name, gpus in (("gpu", 4), ("cpu", 0))
        ]
    )


def test_a_learner_without_gpus_is_not_placed_on_a_node_for_gpus_only() -> None:
    assert set((place(gang("a", learners=8), for_gpus_only()) or {}).values()) == {"cpu", "gpu"}
    assert set((place(gang("a", learners=4), for_gpus_only("gpu")) or {}).values()) == {"cpu"}
    assert place(gang("a", learners=5), for_gpus_only("gpu")) is None
    one_gpu = {"resources": {"gpus": 1, "cpus": 1, "memory": "1GB"}}
    assert set((place(gang("a", learners=4, **one_gpu), for_gpus_only("gpu")) or {}).values()) == {"gpu"}


def test_what_is_free_on_nodes_for_gpus_only_is_not_counted_for_a_job_without_gpus() -> None:
    small, large = gang("a", learners=4), gang("b", learners=5)
    nodes_free = for_gpus_only("gpu")
    assert describe_shortage(small, subtract(nodes_free, pieces(small, {"worker-0": "cpu"}))).startswith(
        "its 4 learners need 4 CPUs (3 free)"
    )
    assert describe_excess(large, nodes_free) == (
        "it requests 5 CPUs, and this cluster has 4 CPUs, without the nodes that are only for learners with GPUs"
    )
    assert "without the nodes" not in describe_excess(large, for_gpus_only())


def test_ten_tenths_of_a_gpu_fit_on_one_gpu() -> None:
    wanted = gang("a", learners=10, resources={"gpus": 0.1, "cpus": 0.1, "memory": "1MiB"})
    assert place(wanted, [Free("n", 1, GB, 1)]) is not None


def test_learners_on_a_removed_node_use_nothing_of_other_nodes() -> None:
    wanted = gang("a", learners=2)
    there = [Free("n0", 4, 16 * GB, 0)]
    assert [node.cpus for node in subtract(there, pieces(wanted, {"worker-0": "n0", "worker-1": "gone"}))] == [3]


def test_an_admission_fits_only_if_every_learner_fits_on_its_node() -> None:
    wanted = gang("a", learners=2)
    placed = {"worker-0": "n0", "worker-1": "n0"}
    assert fits_as_placed([Free("n0", 2, 16 * GB, 0)], wanted, placed)
    assert not fits_as_placed([Free("n0", 1, 16 * GB, 0)], wanted, placed)
    assert not fits_as_placed([Free("n1", 9, 16 * GB, 0)], wanted, placed)
    assert not fits_as_placed([Free("n0", 2, 16 * GB, 0)], wanted, {"worker-0": "n0"})


def test_the_message_says_that_no_node_can_take_a_whole_learner() -> None:
    decided = decisions(
        waiting("a", learners=2, resources={"cpus": 3, "memory": "1GB"}),
        free=[
            Free("n0", 2, 16 * GB, 0),
            Free("n1", 4, 16 * GB, 0),
        ],
    )
    assert "6 CPUs (6 free)" in decided["a"].message
    assert "could each take a whole learner" in decided["a"].message


def test_a_node_that_is_not_ready_has_no_capacity() -> None:
    assert all_free([Node(name="n", cpus=4, memory=GB, gpus=0, ready=False)]) == []


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), max_size=12),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=4),
)
def test_no_node_is_ever_overcommitted(gangs: list[tuple[int, int]], sizes: list[tuple[int, int]]) -> None:
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
    assert all(node.cpus >= 0 and node.gpus >= 0 and node.memory >= 0 for node in left)


def test_an_unknown_policy_is_refused_with_the_names_of_those_there_are() -> None:
    with pytest.raises(InvalidRequest, match="WEFT_POLICY=lottery is no scheduling policy; there are: fifo"):
        find_policy("lottery")


def test_learner_of_next_to_nothing_is_charged_for_its_shim_and_its_helper() -> None:
    """10,000 learners of 0.0001 CPU were accepted on one machine."""
    tiny = {"name": "x", "command": "true", "learners": 3, "resources": {"cpus": 0.0001, "memory": "1MiB"}}
    least = Size(0, 0.01, 32 * 2**20)
    gang = gang_of(parse_spec(tiny), SIZES, least)
    assert {size for _, size, _ in gang.learners} == {least}
    own = gang_of(parse_spec({**tiny, "resources": {"cpus": 2, "memory": "1GB"}}), SIZES, least)
    assert {size for _, size, _ in own.learners} == {Size(0, 2, 10**9)}
    assert place(gang, [Free("n", 0.02, 10**12, 0)]) is None
