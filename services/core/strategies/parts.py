"""Values of variables, as the strategies write them."""

from __future__ import annotations

from typing import Final

from services.core.domain.plan import AttemptPlan, Folder, LearnerPlan, Part, PartKind

Value = tuple[Part, ...]

INTERFACE: Final[Value] = (Part(PartKind.INTERFACE),)
GPU_COUNT: Final[Value] = (Part(PartKind.GPU_COUNT),)
PROCESS_COUNT: Final[Value] = (Part(PartKind.PROCESS_COUNT),)


def text(value: object) -> Value:
    """Literal text: ``str(value)``."""
    return (Part(PartKind.TEXT, str(value)),)


def folder(name: Folder) -> Value:
    """The absolute path of one of the learner's folders."""
    return (Part(PartKind.FOLDER, name.value),)


def address(learner: LearnerPlan) -> Value:
    """The host name or IP address at which the others reach this learner."""
    return (Part(PartKind.ADDRESS, learner.name),)


def port(learner: LearnerPlan) -> Value:
    """The port at which the others reach this learner. A learner has at most one."""
    return (Part(PartKind.PORT, learner.name),)


def endpoint(learner: LearnerPlan) -> Value:
    """``address:port`` of this learner."""
    return (*address(learner), *text(":"), *port(learner))


def first(gang: AttemptPlan) -> LearnerPlan:
    """The learner of rank 0, where a gang meets."""
    return min(gang.learners, key=lambda learner: learner.rank)
