"""A learner's environment variables, from nothing (contracts.md, "Learner environment"): a pure function.

Nothing of the agent's own environment comes in. Later ones win: defaults, the user's, Weft's own (the spec refuses
users' settings of those). What depends on what the helper fetches (PATH, mostly) is added by the shim.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.core.domain.plan import AttemptPlan, LearnerPlan

BASE_PATH = "/usr/local/bin:/usr/bin:/bin"
LOOPBACK = "127.0.0.1"
FOLDERS = {
    "MODEL_DIR": "model-code",
    "DATA_DIR": "data",
    "RESULT_DIR": "results",
    "CHECKPOINT_DIR": "checkpoints",
    "LOG_DIR": "logs",
    "HOME": "home",
    "TMPDIR": "tmp",
}
"""Variable -> folder below JOB_STATE_DIR."""


def render(
    plan: AttemptPlan, learner: LearnerPlan, *, job_dir: str, sdk: str, gpus: tuple[int, ...], ports: Mapping[str, int]
) -> dict[str, str]:
    """Complete but for ``prepared.json``. ``job_dir`` is JOB_STATE_DIR; ``gpus`` are indices of this machine."""
    defaults = {
        "PATH": BASE_PATH,
        "LANG": "C.UTF-8",
        "USER": "weft",
        "LOGNAME": "weft",
        # Libraries that take all cores they see would fight with the other learners.
        "OMP_NUM_THREADS": str(max(1, int(learner.cpus))),
        **_network(plan),
    }
    user = dict(learner.env)
    python_path = ":".join(path for path in (sdk, user.pop("PYTHONPATH", "")) if path)
    ours = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": python_path,
        "JOB_STATE_DIR": job_dir,
        **{name: f"{job_dir}/{folder}" for name, folder in FOLDERS.items()},
        **_identity(plan, learner, gpus),
        **_distribution(plan, learner, gpus, ports),
        # As the driver numbers them; CUDA's own order is by speed.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in gpus),
    }
    return {**defaults, **user, **ours}


def _identity(plan: AttemptPlan, learner: LearnerPlan, gpus: tuple[int, ...]) -> dict[str, str]:
    world = str(len(plan.learners))
    return {
        "TRAINING_ID": plan.job,
        "LEARNER_ID": str(learner.rank + 1),
        "NUM_LEARNERS": world,
        "GPU_COUNT": str(len(gpus)),
        "WEFT_JOB_ID": plan.job,
        "WEFT_ATTEMPT": str(plan.attempt),
        "WEFT_ROLE": learner.role,
        "WEFT_RANK": str(learner.rank),
        "WEFT_WORLD_SIZE": world,
    }


def _network(plan: AttemptPlan) -> dict[str, str]:
    """All learners are on this machine: collectives neither need its name resolved nor leave it."""
    return {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if plan.distribution == "torchrun" else {}


def _distribution(
    plan: AttemptPlan, learner: LearnerPlan, gpus: tuple[int, ...], ports: Mapping[str, int]
) -> dict[str, str]:
    rank, world = str(learner.rank), str(len(plan.learners))
    if plan.distribution == "torchrun":
        port = str(ports["master"])
        return {
            # For `python train.py`, one process per learner.
            "MASTER_ADDR": LOOPBACK, "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": "0",
            # For `torchrun train.py`, one process per GPU.
            "PET_NNODES": world, "PET_NPROC_PER_NODE": str(max(1, len(gpus))), "PET_NODE_RANK": rank,
            "PET_MASTER_ADDR": LOOPBACK, "PET_MASTER_PORT": port,
        }  # fmt: skip
    if plan.distribution == "jax":
        return {
            "JAX_COORDINATOR_ADDRESS": f"{LOOPBACK}:{ports['master']}",
            "JAX_NUM_PROCESSES": world,
            "JAX_PROCESS_ID": rank,
        }
    return {}
