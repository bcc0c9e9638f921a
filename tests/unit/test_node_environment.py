"""What a learner finds in its environment."""

from collections.abc import Mapping

from services.core.domain.plan import AttemptPlan, LearnerPlan
from services.core.domain.spec import RESERVED_ENV, RESERVED_PREFIXES
from services.node.environment import BASE_PATH, FOLDERS, render
from services.node.learner_supervisor import helper_environment


def learner(rank: int = 0, *, cpus: float = 2.5, gpus: float = 0, env: Mapping[str, str] | None = None) -> LearnerPlan:
    return LearnerPlan(
        name=f"worker-{rank}", role="worker", rank=rank, command="true", cpus=cpus, memory=1, gpus=gpus, node="local",
        token="t", env=env or {},
    )  # fmt: skip


def attempt(*learners: LearnerPlan, distribution: str = "none") -> AttemptPlan:
    return AttemptPlan(
        job="j1", tenant="t", attempt=2, term=1, learners=learners, distribution=distribution, framework="",
        code_digest="", inputs=(), grace=0, store_timeout=0, checkpoint_keep=1,
    )  # fmt: skip


def rendered(one: LearnerPlan, of: AttemptPlan | None = None, gpus: tuple[int, ...] = ()) -> dict[str, str]:
    return render(of or attempt(one), one, job_dir="/n/job", sdk="/sdk", gpus=gpus, ports={"master": 20_001})


def test_a_learner_knows_who_it_is_in_ffdls_words_and_in_wefts() -> None:
    gang = attempt(learner(0), learner(1), learner(2))
    env = rendered(gang.learners[1], gang)
    assert {name: env[name] for name in ("TRAINING_ID", "LEARNER_ID", "NUM_LEARNERS", "GPU_COUNT")} == {
        "TRAINING_ID": "j1", "LEARNER_ID": "2", "NUM_LEARNERS": "3", "GPU_COUNT": "0",
    }  # fmt: skip
    assert {name: value for name, value in env.items() if name.startswith("WEFT_")} == {
        "WEFT_JOB_ID": "j1", "WEFT_ATTEMPT": "2", "WEFT_ROLE": "worker", "WEFT_RANK": "1", "WEFT_WORLD_SIZE": "3",
    }  # fmt: skip


def test_its_folders_are_its_own() -> None:
    env = rendered(learner())
    assert env["JOB_STATE_DIR"] == "/n/job"
    assert {env[name] for name in FOLDERS} == {f"/n/job/{folder}" for folder in FOLDERS.values()}


def test_it_is_built_from_nothing() -> None:
    env = rendered(learner())
    assert env["PATH"] == BASE_PATH
    assert (env["USER"], env["LOGNAME"], env["LANG"], env["PYTHONUNBUFFERED"]) == ("weft", "weft", "C.UTF-8", "1")
    assert all(isinstance(value, str) for value in env.values())


def test_users_variables_are_there_and_win_over_defaults() -> None:
    env = rendered(learner(env={"A": "b", "OMP_NUM_THREADS": "7", "PATH": "/mine", "PYTHONPATH": "/lib"}))
    assert (env["A"], env["OMP_NUM_THREADS"], env["PATH"], env["PYTHONPATH"]) == ("b", "7", "/mine", "/sdk:/lib")


def test_threads_follow_the_cpus_asked_for() -> None:
    assert [rendered(learner(cpus=cpus))["OMP_NUM_THREADS"] for cpus in (0.5, 1, 2.5, 16)] == ["1", "1", "2", "16"]


def test_who_asked_for_no_gpu_sees_none() -> None:
    assert rendered(learner())["CUDA_VISIBLE_DEVICES"] == ""
    env = rendered(learner(gpus=2), gpus=(1, 3))
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"], env["GPU_COUNT"]) == ("1,3", "PCI_BUS_ID", "2")


def test_torchrun_finds_its_meeting_point_both_ways() -> None:
    gang = attempt(learner(0, gpus=2), learner(1, gpus=2), distribution="torchrun")
    env = rendered(gang.learners[1], gang, gpus=(2, 3))
    plain = {name: env[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")}
    assert plain == {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "20001", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0",
    }  # fmt: skip
    assert {name: value for name, value in env.items() if name.startswith("PET_")} == {
        "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "20001",
    }  # fmt: skip
    assert env["GLOO_SOCKET_IFNAME"] == "lo"


def test_jax_finds_its_coordinator() -> None:
    gang = attempt(learner(0), learner(1), distribution="jax")
    env = rendered(gang.learners[1], gang)
    assert {name: value for name, value in env.items() if name.startswith("JAX_")} == {
        "JAX_COORDINATOR_ADDRESS": "127.0.0.1:20001", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1",
    }  # fmt: skip


def test_what_weft_sets_no_user_may_set() -> None:
    defaults = {
        "PATH", "LANG", "USER", "LOGNAME", "OMP_NUM_THREADS", "PYTHONPATH", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
    }  # fmt: skip
    for distribution in ("none", "torchrun", "jax"):
        one = learner()
        ours = set(rendered(one, attempt(one, distribution=distribution))) - defaults
        assert {name for name in ours - RESERVED_ENV if not name.startswith(RESERVED_PREFIXES)} == set()


def test_a_helper_gets_the_operator_s_settings_but_no_password_of_a_store() -> None:
    given = {
        "WEFT_DATA_PATHS": "/data", "HTTPS_PROXY": "http://proxy", "SECRET": "x", "PATH": "/bin",
        "WEFT_JOB_STORE": "mongodb://weft:hunter2@db/", "WEFT_BROKER_URL": "amqp://weft:hunter2@mq",
        "WEFT_S3_ACCESS_KEY": "weft", "WEFT_S3_SECRET_KEY": "hunter2", "WEFT_S3_SESSION_TOKEN": "hunter2",
        "WEFT_S3_CREDENTIALS_FILE": "/s3", "WEFT_OBJECT_STORE": "s3://bucket",
    }  # fmt: skip
    made = helper_environment(given)
    assert (made["WEFT_DATA_PATHS"], made["HTTPS_PROXY"], made["PATH"]) == ("/data", "http://proxy", "/bin")
    kept_back = {
        "SECRET",
        "WEFT_JOB_STORE",
        "WEFT_BROKER_URL",
        *(name for name in given if name.startswith("WEFT_S3_")),
    }
    assert not {name for name in given if name not in made} ^ kept_back
    assert "hunter2" not in str(made)
