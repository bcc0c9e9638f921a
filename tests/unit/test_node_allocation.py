"""The user, the GPUs and the ports that an attempt gets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.errors import ResourceExhausted
from services.core.domain.plan import AttemptPlan, LearnerPlan, Part, PartKind
from services.core.strategies.registry import with_variables
from services.node.allocation import Pool, Taken, pick_gpus, pick_ports, pick_uid
from tests.documents import a_learner, a_plan

UIDS = Pool(70_000, 100)
PORTS = Pool(20_000, 50)


def learners(*gpus: float) -> list[LearnerPlan]:
    return [a_learner(f"worker-{rank}", gpus=count) for rank, count in enumerate(gpus)]


def attempt(job: str, number: int = 1, distribution: str = "jax") -> AttemptPlan:
    return with_variables(a_plan(*learners(0, 0), job=job, attempt=number, distribution=distribution))


def every_port_is_free(port: int) -> bool:
    return port > 0


def with_port_of(rank: int, gang: AttemptPlan) -> AttemptPlan:
    """The plan, in which a variable also refers to the port of this learner."""
    port = {"EXTRA": (Part(PartKind.PORT, gang.learners[rank].name),)}
    return replace(gang, variables={**gang.variables, **port})


def test_a_job_keeps_its_user_over_its_attempts() -> None:
    assert pick_uid("a", Taken(uids={70_005: "a", 70_006: "b"}), UIDS) == 70_005


def test_no_two_jobs_have_one_user() -> None:
    uids: dict[int, str] = {}
    for number in range(100):
        uids[pick_uid(f"job{number}", Taken(uids=uids), UIDS)] = f"job{number}"
    assert len(uids) == 100
    with pytest.raises(ResourceExhausted, match="user ids"):
        pick_uid("one-more", Taken(uids=uids), UIDS)


def test_the_next_job_does_not_get_the_user_that_the_last_one_left() -> None:
    assert len({pick_uid(f"job{number}", Taken(), UIDS) for number in range(20)}) > 10


def test_only_learners_that_others_connect_to_get_a_port() -> None:
    assert pick_ports(attempt("a", distribution="none"), Taken(), PORTS, every_port_is_free) == {}
    assert pick_ports(attempt("a", distribution="torchrun"), Taken(), PORTS, every_port_is_free).keys() == {"worker-0"}


def test_learners_of_one_attempt_get_different_ports() -> None:
    ports = pick_ports(with_port_of(1, attempt("a")), Taken(), PORTS, every_port_is_free)
    assert ports.keys() == {"worker-0", "worker-1"}
    assert ports["worker-0"] != ports["worker-1"]


def test_an_attempt_gets_all_of_its_ports_or_an_error() -> None:
    with pytest.raises(ResourceExhausted, match="ports"):
        pick_ports(with_port_of(1, attempt("a")), Taken(), PORTS, lambda port: port == 20_033)


def test_no_two_attempts_have_one_port() -> None:
    ports: set[int] = set()
    for number in range(50):
        ports.add(pick_ports(attempt("a", number), Taken(ports=ports), PORTS, every_port_is_free)["worker-0"])
    assert ports == set(range(20_000, 20_050))
    with pytest.raises(ResourceExhausted, match="ports"):
        pick_ports(attempt("b"), Taken(ports=ports), PORTS, every_port_is_free)


def test_a_port_with_a_listener_is_not_given() -> None:
    assert pick_ports(attempt("a"), Taken(), PORTS, lambda port: port == 20_033) == {"worker-0": 20_033}


def test_whole_gpus_are_not_shared() -> None:
    picked = pick_gpus(learners(1, 2, 0), Taken(gpus={0: 0.5}), 4)
    assert picked == {"worker-0": (3,), "worker-1": (1, 2), "worker-2": ()}


def test_fractions_share_the_gpu_that_has_least_left() -> None:
    assert pick_gpus(learners(0.5), Taken(gpus={1: 0.5, 2: 0.25}), 4) == {"worker-0": (1,)}
    assert pick_gpus(learners(0.6), Taken(gpus={1: 0.5}), 4) == {"worker-0": (0,)}
    assert set(pick_gpus(learners(1 / 3, 1 / 3, 1 / 3), Taken(), 1).values()) == {(0,)}


@pytest.mark.parametrize("requested", [(1, 1, 1), (3,), (0.6, 0.6, 0.6), (2, 0.1)])
def test_a_gang_that_does_not_fit_gets_nothing_and_a_reason(requested: tuple[float, ...]) -> None:
    with pytest.raises(ResourceExhausted, match=r"request [\d.]+ GPUs together; 2 of 2 are free"):
        pick_gpus(learners(*requested), Taken(), 2)


@given(
    st.lists(st.sampled_from([0, 0.1, 0.25, 0.5, 0.9, 1, 2, 3]), max_size=8),
    st.dictionaries(st.integers(0, 5), st.sampled_from([0.1, 0.5, 1.0])),
)
def test_no_gpu_is_given_out_more_than_once(requested: list[float], used: dict[int, float]) -> None:
    try:
        picked = pick_gpus(learners(*requested), Taken(gpus=used), 6)
    except ResourceExhausted:
        return
    total = dict(used)
    for rank, gpus in enumerate(requested):
        mine = picked[f"worker-{rank}"]
        assert len(mine) == (gpus if gpus >= 1 else int(gpus > 0))
        for index in mine:
            total[index] = total.get(index, 0) + min(1, gpus)
    assert all(part <= 1 + 1e-6 for part in total.values())
