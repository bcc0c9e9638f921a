"""Renders the variables of an attempt's learners by the strategy of its distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Final, Protocol, cast

from services.core.domain.errors import InvalidRequest
from services.core.domain.plan import SCHEMA, AttemptPlan, LearnerPlan, Variables
from services.core.domain.spec import RUNNABLE_DISTRIBUTIONS, is_reserved_variable
from services.core.strategies import base
from services.core.strategies.parts import text


class Strategy(Protocol):
    """The module of a distribution: pure functions of the plan, whose ``learners`` are the gang.

    A variable with a name that the spec reserves always has the strategy's value. Any other is a default, which the
    user's ``env`` may override.
    """

    def common(self, gang: AttemptPlan) -> Variables:
        """The variables that are the same for all learners."""
        ...

    def own(self, gang: AttemptPlan, learner: LearnerPlan) -> Variables:
        """The variables of one learner."""
        ...


def _module(distribution: str) -> Strategy:
    """The module is named after the distribution: ``tf-ps`` -> ``tf_ps``."""
    return cast(Strategy, import_module(f"services.core.strategies.{distribution.replace('-', '_')}"))


STRATEGIES: Final[Mapping[str, Strategy]] = {name: _module(name) for name in RUNNABLE_DISTRIBUTIONS}
"""By the name of the distribution."""


def with_variables(plan: AttemptPlan) -> AttemptPlan:
    """The plan with the environment variables of all learners. InvalidRequest for a distribution without a strategy."""
    strategy = STRATEGIES.get(plan.distribution)
    if strategy is None:
        raise InvalidRequest(
            f"distribution '{plan.distribution}' is not available; there are: {', '.join(sorted(STRATEGIES))}"
        )
    common = {**base.common(plan), **strategy.common(plan)}
    learners = tuple(
        replace(learner, variables=_own_variables(strategy, plan, learner, common)) for learner in plan.learners
    )
    return replace(plan, learners=learners, variables=common, schema=SCHEMA)


def _own_variables(strategy: Strategy, plan: AttemptPlan, learner: LearnerPlan, common: Variables) -> Variables:
    """The learner's own variables. Defaults that the user has set get the user's text, as they win over ``env``."""
    own = {**base.own(learner), **strategy.own(plan, learner)}
    overridden = {
        name: text(value)
        for name, value in learner.env.items()
        if name in {*common, *own} and not is_reserved_variable(name)
    }
    return {**own, **overridden, "PYTHONPATH": base.python_path(learner)}
