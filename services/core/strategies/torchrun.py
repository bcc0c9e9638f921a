"""``torchrun``: PyTorch's c10d rendezvous at rank 0.

The variables of ``torch.distributed.init_process_group("env://")`` are for ``python train.py``, one process per
learner. Those with PET_ are torchrun's options, for ``torchrun train.py``, one process per GPU.
Source: https://pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

from services.core.domain.plan import AttemptPlan, LearnerPlan, Variables
from services.core.strategies.parts import INTERFACE, PROCESS_COUNT, address, first, port, text


def common(gang: AttemptPlan) -> Variables:
    master, world_size = first(gang), text(len(gang.learners))
    return {
        "MASTER_ADDR": address(master),
        "MASTER_PORT": port(master),
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": text(0),
        "PET_NNODES": world_size,
        "PET_MASTER_ADDR": address(master),
        "PET_MASTER_PORT": port(master),
        # Without a name both libraries look for an interface: slow, and wrong on a host with several.
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "NCCL_SOCKET_IFNAME": INTERFACE,
    }


def own(gang: AttemptPlan, learner: LearnerPlan) -> Variables:
    rank = text(learner.rank)
    return {"RANK": rank, "PET_NODE_RANK": rank, "PET_NPROC_PER_NODE": PROCESS_COUNT}
