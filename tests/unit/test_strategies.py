"""The variables that each distribution strategy renders, and how a cluster fills their placeholders."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.core import strategies
from services.core.domain.codec import dump, load
from services.core.domain.errors import InvalidRequest
from services.core.domain.plan import (
    SCHEMA,
    AttemptPlan,
    ClusterValues,
    Folder,
    Part,
    PartKind,
    fill,
    learners_with_ports,
)
from services.core.domain.spec import RUNNABLE_DISTRIBUTIONS, is_reserved_variable
from services.core.strategies.registry import STRATEGIES, with_variables
from tests.documents import a_learner, a_plan

DEFAULTS = {"LANG", "USER", "LOGNAME", "OMP_NUM_THREADS", "PYTHONPATH", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}
"""What users may set as well."""


def gang(distribution: str, env: Mapping[str, str] | None = None) -> AttemptPlan:
    """Two workers with two GPUs each, and a parameter server without."""
    learners = tuple(
        a_learner(f"{role}-{index}", rank=rank, cpus=4, gpus=gpus, token="secret", env=env or {})
        for rank, (role, index, gpus) in enumerate((("worker", 0, 2), ("worker", 1, 2), ("ps", 0, 0)))
    )
    return with_variables(a_plan(*learners, job="j1", attempt=3, distribution=distribution))


def values(plan: AttemptPlan, rank: int, *, interface: str | None = "eth1") -> ClusterValues:
    """A cluster whose learners have hosts of their own."""
    return ClusterValues(
        address_of=lambda name: f"{name}.hosts",
        port_of=lambda _: 29_500,
        interface=interface,
        folders={folder: f"/f/{folder}" for folder in Folder},
        gpu_count=int(plan.learners[rank].gpus),
    )


def filled(plan: AttemptPlan, rank: int, *, interface: str | None = "eth1") -> dict[str, str]:
    return fill({**plan.variables, **plan.learners[rank].variables}, values(plan, rank, interface=interface))


def base(rank: int, role: str, gpus: int) -> dict[str, str]:
    """The variables of every learner, with any distribution."""
    return {
        "LANG": "C.UTF-8",
        "USER": "weft",
        "LOGNAME": "weft",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": "/f/sdk",
        "JOB_STATE_DIR": "/f/job-state",
        "MODEL_DIR": "/f/model",
        "DATA_DIR": "/f/data",
        "RESULT_DIR": "/f/result",
        "CHECKPOINT_DIR": "/f/checkpoint",
        "LOG_DIR": "/f/log",
        "HOME": "/f/home",
        "TMPDIR": "/f/temporary",
        "TRAINING_ID": "j1",
        "LEARNER_ID": str(rank + 1),
        "NUM_LEARNERS": "3",
        "GPU_COUNT": str(gpus),
        "WEFT_JOB_ID": "j1",
        "WEFT_ATTEMPT": "3",
        "WEFT_ROLE": role,
        "WEFT_RANK": str(rank),
        "WEFT_WORLD_SIZE": "3",
        "OMP_NUM_THREADS": "4",
    }


LEARNERS = [(0, "worker", 2), (1, "worker", 2), (2, "ps", 0)]


@pytest.mark.parametrize(("rank", "role", "gpus"), LEARNERS)
def test_none_renders_identity_and_folders_only(rank: int, role: str, gpus: int) -> None:
    assert filled(gang("none"), rank) == base(rank, role, gpus)
    assert learners_with_ports(gang("none")) == []


@pytest.mark.parametrize(("rank", "role", "gpus"), LEARNERS)
def test_torchrun_meets_at_rank_0(rank: int, role: str, gpus: int) -> None:
    plan = gang("torchrun")
    assert filled(plan, rank) == {
        **base(rank, role, gpus),
        "MASTER_ADDR": "worker-0.hosts",
        "MASTER_PORT": "29500",
        "RANK": str(rank),
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "PET_NNODES": "3",
        "PET_NPROC_PER_NODE": str(max(1, gpus)),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": "worker-0.hosts",
        "PET_MASTER_PORT": "29500",
        "GLOO_SOCKET_IFNAME": "eth1",
        "NCCL_SOCKET_IFNAME": "eth1",
    }
    assert learners_with_ports(plan) == ["worker-0"]


@pytest.mark.parametrize(("rank", "role", "gpus"), LEARNERS)
def test_jax_meets_at_rank_0(rank: int, role: str, gpus: int) -> None:
    plan = gang("jax")
    assert filled(plan, rank) == {
        **base(rank, role, gpus),
        "JAX_COORDINATOR_ADDRESS": "worker-0.hosts:29500",
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": str(rank),
    }
    assert learners_with_ports(plan) == ["worker-0"]


def test_a_cluster_that_names_no_interface_leaves_its_variables_out() -> None:
    present = filled(gang("torchrun"), 0)
    assert present.keys() - filled(gang("torchrun"), 0, interface=None).keys() == {
        "GLOO_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
    }


def test_users_values_win_over_defaults_and_never_over_reserved_variables() -> None:
    users = dict.fromkeys([*DEFAULTS, "RANK", "WEFT_RANK"], "mine")
    plain, env = filled(gang("torchrun"), 1), filled(gang("torchrun", users), 1)
    assert {name for name in env if env[name] == "mine"} == DEFAULTS - {"PYTHONPATH"}
    assert env["PYTHONPATH"] == "/f/sdk:mine"
    assert (env["RANK"], env["WEFT_RANK"]) == (plain["RANK"], plain["WEFT_RANK"]) == ("1", "1")


@pytest.mark.parametrize("distribution", RUNNABLE_DISTRIBUTIONS)
def test_users_may_set_none_of_the_variables_that_only_weft_sets(distribution: str) -> None:
    assert {name for name in filled(gang(distribution), 0) if not is_reserved_variable(name)} <= DEFAULTS


@settings(max_examples=50)
@given(st.text())
@example('{"kind":"folder","value":"sdk"}')
@example('[{"kind":"port","value":"worker-0"}]')
@example("${PORT} {address} %(folder)s")
@example("worker-0")
def test_users_text_is_never_taken_for_a_placeholder(value: str) -> None:
    plan = gang("torchrun", {"LANG": value, "PYTHONPATH": value, "GLOO_SOCKET_IFNAME": value, "MINE": value})
    stored = load(AttemptPlan, json.loads(json.dumps(dump(plan))))
    env = filled(stored, 0)
    assert (env["LANG"], env["GLOO_SOCKET_IFNAME"], stored.learners[0].env["MINE"]) == (value, value, value)
    assert env["PYTHONPATH"] == (f"/f/sdk:{value}" if value else "/f/sdk")


@pytest.mark.parametrize("distribution", RUNNABLE_DISTRIBUTIONS)
def test_a_plan_with_variables_is_read_back_as_it_was_written(distribution: str) -> None:
    plan = gang(distribution)
    assert load(AttemptPlan, json.loads(json.dumps(dump(plan)))) == plan
    assert plan.schema == SCHEMA


def test_a_placeholder_that_is_not_in_the_closed_set_is_refused() -> None:
    with pytest.raises(ValueError, match="environment-of-the-agent"):
        load(Part, {"kind": "environment-of-the-agent", "value": "HOME"})
    with pytest.raises(ValueError, match="etc"):
        fill({"X": (Part(PartKind.FOLDER, "/etc"),)}, values(gang("none"), 0))


def test_a_plan_of_ten_thousand_learners_fits_into_one_message() -> None:
    plan = gang("torchrun")
    learner = dump(plan.learners[1])
    assert len(json.dumps(learner)) * 10_000 + len(json.dumps(dump(plan))) < 14 * 2**20


def test_a_distribution_without_a_strategy_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=f"'ray' is not available; there are: {', '.join(sorted(STRATEGIES))}"):
        gang("ray")


def test_every_strategy_is_a_module_named_after_its_distribution() -> None:
    modules = {module.name for module in pkgutil.iter_modules([str(Path(strategies.__file__).parent)])}
    expected = {name.replace("-", "_") for name in RUNNABLE_DISTRIBUTIONS}
    assert modules - {"base", "parts", "registry"} == expected == {name.replace("-", "_") for name in STRATEGIES}
