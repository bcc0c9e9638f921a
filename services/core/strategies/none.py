"""``none``: learners that do not know of each other, or that find each other by their own means."""

from __future__ import annotations

from services.core.domain.plan import AttemptPlan, LearnerPlan, Variables


def common(gang: AttemptPlan) -> Variables:
    return {}


def own(gang: AttemptPlan, learner: LearnerPlan) -> Variables:
    return {}
