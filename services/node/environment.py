"""Fills the placeholders of a learner's environment for this machine: a pure function.

The Guardian has rendered the variables (``services.core.strategies``). The learners of a gang are on this machine, so
they reach each other over loopback. Nothing of the agent's own environment is used. Variables that depend on what the
helper fetches (mostly PATH) are added by the shim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.core.domain.plan import AttemptPlan, ClusterValues, Folder, LearnerPlan, fill
from services.core.runtime.learner_folder import JOB_FOLDERS

BASE_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
LOOPBACK: Final = "127.0.0.1"
_INTERFACE: Final = "lo"


def fill_environment(
    plan: AttemptPlan, learner: LearnerPlan, *, job_dir: str, sdk: str, gpus: tuple[int, ...], ports: Mapping[str, int]
) -> dict[str, str]:
    """The learner's environment without the variables of ``prepared.json``.

    ``job_dir`` is JOB_STATE_DIR, ``gpus`` are indices of this machine, ``ports`` are by learner's name.
    """
    folders = {folder: f"{job_dir}/{name}" for folder, name in JOB_FOLDERS.items()}
    values = ClusterValues(
        address_of=lambda _: LOOPBACK,
        port_of=ports.__getitem__,
        interface=_INTERFACE,
        folders={**folders, Folder.JOB_STATE: job_dir, Folder.SDK: sdk},
        gpu_count=len(gpus),
    )
    return {
        "PATH": BASE_PATH,
        **learner.env,
        **fill({**plan.variables, **learner.variables}, values),
        # In the order of the indices, which are the driver's. CUDA's default order is by speed.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in gpus),
    }
