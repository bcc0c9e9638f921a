"""The environment of a learner on this machine: what the Guardian rendered, with the placeholders filled."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from services.core.domain.plan import AttemptPlan, LearnerPlan
from services.core.runtime.learner_folder import JOB_FOLDERS
from services.core.strategies.base import FOLDER_VARIABLES
from services.core.strategies.registry import with_variables
from services.node.environment import BASE_PATH, fill_environment
from services.node.learner_supervisor import helper_environment
from tests.documents import a_learner, a_plan


def learner(rank: int = 0, *, cpus: float = 2.5, gpus: float = 0, env: Mapping[str, str] | None = None) -> LearnerPlan:
    return a_learner(f"worker-{rank}", cpus=cpus, gpus=gpus, env=env or {})


def attempt(*learners: LearnerPlan, distribution: str = "none") -> AttemptPlan:
    return a_plan(*learners, job="j1", attempt=2, distribution=distribution)


def environment(gang: AttemptPlan, rank: int = 0, gpus: tuple[int, ...] = ()) -> dict[str, str]:
    plan = with_variables(gang)
    return fill_environment(
        plan, plan.learners[rank], job_dir="/n/job", sdk="/sdk", gpus=gpus, ports={"worker-0": 20_001}
    )


def test_a_learner_has_its_identity_in_ffdls_and_in_wefts_variables() -> None:
    env = environment(attempt(learner(0), learner(1), learner(2)), rank=1)
    assert {name: env[name] for name in ("TRAINING_ID", "LEARNER_ID", "NUM_LEARNERS", "GPU_COUNT")} == {
        "TRAINING_ID": "j1",
        "LEARNER_ID": "2",
        "NUM_LEARNERS": "3",
        "GPU_COUNT": "0",
    }
    assert {name: value for name, value in env.items() if name.startswith("WEFT_")} == {
        "WEFT_JOB_ID": "j1",
        "WEFT_ATTEMPT": "2",
        "WEFT_ROLE": "worker",
        "WEFT_RANK": "1",
        "WEFT_WORLD_SIZE": "3",
    }


def test_all_folder_variables_point_below_the_learners_own_folder() -> None:
    env = environment(attempt(learner()))
    assert env["JOB_STATE_DIR"] == "/n/job"
    assert {name: env[name] for name in FOLDER_VARIABLES if name != "JOB_STATE_DIR"} == {
        name: f"/n/job/{JOB_FOLDERS[folder]}" for name, folder in FOLDER_VARIABLES.items() if name != "JOB_STATE_DIR"
    }
    assert (env["MODEL_DIR"], env["CHECKPOINT_DIR"]) == ("/n/job/model-code", "/n/job/checkpoints")


def test_nothing_of_the_agents_environment_is_in_the_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "of-the-agent")
    env = environment(attempt(learner()))
    assert "CANARY" not in env
    assert env["PATH"] == BASE_PATH
    assert (env["USER"], env["LOGNAME"], env["LANG"], env["PYTHONUNBUFFERED"]) == ("weft", "weft", "C.UTF-8", "1")
    assert all(isinstance(value, str) for value in env.values())


def test_users_variables_win_over_defaults() -> None:
    users = {"A": "b", "OMP_NUM_THREADS": "7", "PATH": "/mine", "PYTHONPATH": "/lib", "LANG": "tlh", "USER": "me"}
    env = environment(attempt(learner(env=users)))
    assert {name: env[name] for name in users} == {**users, "PYTHONPATH": "/sdk:/lib"}


def test_threads_follow_the_requested_cpus() -> None:
    threads = [environment(attempt(learner(cpus=cpus)))["OMP_NUM_THREADS"] for cpus in (0.5, 1, 2.5, 16)]
    assert threads == ["1", "1", "2", "16"]


def test_a_learner_sees_the_gpus_that_it_was_given_and_no_others() -> None:
    assert environment(attempt(learner()))["CUDA_VISIBLE_DEVICES"] == ""
    env = environment(attempt(learner(gpus=2)), gpus=(1, 3))
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"], env["GPU_COUNT"]) == ("1,3", "PCI_BUS_ID", "2")


def test_torchrun_has_the_rendezvous_for_python_and_for_torchrun() -> None:
    gang = attempt(learner(0, gpus=2), learner(1, gpus=2), distribution="torchrun")
    env = environment(gang, rank=1, gpus=(2, 3))
    plain = {name: env[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")}
    assert plain == {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "20001",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
    }
    assert {name: value for name, value in env.items() if name.startswith("PET_")} == {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "20001",
    }
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("lo", "lo")


def test_jax_has_the_coordinators_address() -> None:
    env = environment(attempt(learner(0), learner(1), distribution="jax"), rank=1)
    assert {name: value for name, value in env.items() if name.startswith("JAX_")} == {
        "JAX_COORDINATOR_ADDRESS": "127.0.0.1:20001",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
    }


def test_learners_of_one_gang_have_their_own_values_only() -> None:
    gang = attempt(learner(0, env={"LANG": "tlh"}), replace(learner(1), role="ps", name="ps-0"), distribution="jax")
    first, second = environment(gang, rank=0), environment(gang, rank=1)
    different = {name: (first[name], second[name]) for name in first if first[name] != second[name]}
    assert different == {
        "LANG": ("tlh", "C.UTF-8"),
        "LEARNER_ID": ("1", "2"),
        "WEFT_ROLE": ("worker", "ps"),
        "WEFT_RANK": ("0", "1"),
        "JAX_PROCESS_ID": ("0", "1"),
    }
    assert first.keys() == second.keys()


def test_a_helper_gets_the_operators_settings_but_no_password_of_a_store() -> None:
    given = {
        "WEFT_DATA_PATHS": "/data",
        "HTTPS_PROXY": "http://proxy",
        "SECRET": "x",
        "PATH": "/bin",
        "WEFT_JOB_STORE": "mongodb://weft:hunter2@db/",
        "WEFT_BROKER_URL": "amqp://weft:hunter2@mq",
        "WEFT_S3_ACCESS_KEY": "weft",
        "WEFT_S3_SECRET_KEY": "hunter2",
        "WEFT_S3_SESSION_TOKEN": "hunter2",
        "WEFT_S3_CREDENTIALS_FILE": "/s3",
        "WEFT_OBJECT_STORE": "s3://bucket",
    }
    env = helper_environment(given)
    assert (env["WEFT_DATA_PATHS"], env["HTTPS_PROXY"], env["PATH"]) == ("/data", "http://proxy", "/bin")
    withheld = {"SECRET", "WEFT_JOB_STORE", "WEFT_BROKER_URL", *(name for name in given if name.startswith("WEFT_S3_"))}
    assert {name for name in given if name not in env} == withheld
    assert "hunter2" not in str(env)
