"""The user, the GPUs and the ports of an attempt, so that no two jobs of this machine share them: pure, all or nothing.

What is taken is read from the folders that exist, so a crash neither loses nor leaks anything. The search for users and
ports starts at a place that depends on the job's name: the next job does not get what the last one has just left, and
two installations on one machine rarely try the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from services.core.domain.errors import ResourceExhausted
from services.core.domain.plan import AttemptPlan, LearnerPlan, learners_with_ports

_WHOLE = 1 + 1e-9
"""GPU: the sum of three thirds may exceed 1 by rounding."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Numbers [first, first + count)."""

    first: int
    count: int

    def from_place(self, key: str) -> Iterable[int]:
        """All numbers, starting at one that depends on the key."""
        start = crc32(key.encode()) % self.count
        return (self.first + (start + step) % self.count for step in range(self.count))

    def __contains__(self, number: int) -> bool:
        return self.first <= number < self.first + self.count


@dataclass(frozen=True, slots=True)
class Taken:
    """What the learners of this machine hold."""

    uids: Mapping[int, str] = field(default_factory=dict)
    """uid -> job."""
    gpus: Mapping[int, float] = field(default_factory=dict)
    """Index -> held part of it."""
    ports: Collection[int] = ()


def pick_uid(job: str, taken: Taken, pool: Pool, may_use: Callable[[int], bool] = lambda _: True) -> int:
    """A job has the same uid in all its attempts. ResourceExhausted if all are taken, or may not be used."""
    for uid, owner in taken.uids.items():
        if owner == job:
            return uid
    for uid in pool.from_place(job):
        if uid not in taken.uids and may_use(uid):
            return uid
    raise ResourceExhausted(
        f"all {pool.count} user ids for jobs are taken, or have files and processes of another tenant left "
        "(WEFT_NODE_UID_COUNT)"
    )


def pick_ports(plan: AttemptPlan, taken: Taken, pool: Pool, is_free: Callable[[int], bool]) -> dict[str, int]:
    """Learner's name -> port, for the learners to which the plan's variables refer by port.

    ``is_free`` returns True if no process listens on the port. ResourceExhausted if there are too few ports.
    """
    ports: dict[str, int] = {}
    candidates = iter(pool.from_place(f"{plan.job}/{plan.attempt}"))
    for name in learners_with_ports(plan):
        port = next((number for number in candidates if number not in taken.ports and is_free(number)), None)
        if port is None:
            raise ResourceExhausted(f"all {pool.count} ports for learners are taken (WEFT_NODE_PORT_COUNT)")
        ports[name] = port
    return ports


def pick_gpus(learners: Sequence[LearnerPlan], taken: Taken, count: int) -> dict[str, tuple[int, ...]]:
    """Learner's name -> indices. Whole GPUs are not shared; a fraction goes to the GPU with the least left over.

    ResourceExhausted if one learner cannot have what it requests: then none gets any.
    """
    used = {index: taken.gpus.get(index, 0.0) for index in range(count)}
    idle = sum(part == 0 for part in used.values())
    picked: dict[str, tuple[int, ...]] = {}
    for learner in sorted(learners, key=lambda learner: -learner.gpus):
        indices = _gpus_for(learner, used)
        if indices is None:
            requested = sum(learner.gpus for learner in learners)
            raise ResourceExhausted(
                f"{len(learners)} learners request {requested:g} GPUs together; "
                f"{idle} of {count} are free on this machine"
            )
        picked[learner.name] = indices
        for index in indices:
            used[index] += min(1.0, learner.gpus)
    return picked


def _gpus_for(learner: LearnerPlan, used: Mapping[int, float]) -> tuple[int, ...] | None:
    if learner.gpus <= 0:
        return ()
    if learner.gpus >= 1:
        idle = [index for index, part in used.items() if part == 0]
        return None if len(idle) < learner.gpus else tuple(idle[: int(learner.gpus)])
    room = [index for index, part in used.items() if part + learner.gpus <= _WHOLE]
    if not room:
        return None
    return (max(room, key=lambda index: (used[index], -index)),)
