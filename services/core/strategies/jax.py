"""``jax``: the coordinator of ``jax.distributed.initialize()`` is the learner of rank 0.

Source: https://docs.jax.dev/en/latest/_autosummary/jax.distributed.initialize.html
"""

from __future__ import annotations

from services.core.domain.plan import AttemptPlan, LearnerPlan, Variables
from services.core.strategies.parts import endpoint, first, text


def common(gang: AttemptPlan) -> Variables:
    return {
        "JAX_COORDINATOR_ADDRESS": endpoint(first(gang)),
        "JAX_NUM_PROCESSES": text(len(gang.learners)),
    }


def own(gang: AttemptPlan, learner: LearnerPlan) -> Variables:
    return {"JAX_PROCESS_ID": text(learner.rank)}
