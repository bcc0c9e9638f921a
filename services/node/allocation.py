"""Which user, GPUs and ports an attempt gets, so that no two jobs of this machine meet: pure, all or nothing.

What is taken is read from the folders that exist, so nothing is lost or leaked by a crash. Users and ports are looked
for from a place that depends on the job's name: what one job has just left is not given to the next, and two
installations on one machine rarely try the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from services.core.domain.errors import ResourceExhausted
from services.core.domain.plan import AttemptPlan, LearnerPlan

NEEDS_PORT = frozenset({"torchrun", "jax"})
_WHOLE = 1 + 1e-9
"""GPU: three thirds are not more."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Numbers [first, first + count)."""

    first: int
    count: int

    def from_place(self, key: str) -> Iterable[int]:
        """All of them, beginning somewhere that depends on the key."""
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
    """Index -> how much of it."""
    ports: Collection[int] = ()


def pick_uid(job: str, taken: Taken, pool: Pool) -> int:
    """The job's own, which it keeps over its attempts."""
    for uid, owner in taken.uids.items():
        if owner == job:
            return uid
    for uid in pool.from_place(job):
        if uid not in taken.uids:
            return uid
    raise ResourceExhausted(f"all {pool.count} user ids for jobs are taken (WEFT_NODE_UID_COUNT)")


def pick_ports(plan: AttemptPlan, taken: Taken, pool: Pool, free: Callable[[int], bool]) -> dict[str, int]:
    """``master``: where the learners of the attempt meet, if they do. ``free`` says that nobody listens there."""
    if plan.distribution not in NEEDS_PORT:
        return {}
    for port in pool.from_place(f"{plan.job}/{plan.attempt}"):
        if port not in taken.ports and free(port):
            return {"master": port}
    raise ResourceExhausted(f"all {pool.count} ports for learners are taken (WEFT_NODE_PORT_COUNT)")


def pick_gpus(learners: Sequence[LearnerPlan], taken: Taken, count: int) -> dict[str, tuple[int, ...]]:
    """Learner's name -> indices. Whole GPUs are nobody else's; a fraction goes where least is left over.

    ResourceExhausted where one learner cannot have what it asks for: then none gets any.
    """
    used = {index: taken.gpus.get(index, 0.0) for index in range(count)}
    idle = sum(part == 0 for part in used.values())
    picked: dict[str, tuple[int, ...]] = {}
    for learner in sorted(learners, key=lambda one: -one.gpus):
        found = _of_one(learner, used)
        if found is None:
            asked = sum(one.gpus for one in learners)
            raise ResourceExhausted(
                f"{len(learners)} learners ask for {asked:g} GPUs together; {idle} of {count} are free on this machine"
            )
        picked[learner.name] = found
        for index in found:
            used[index] += min(1.0, learner.gpus)
    return picked


def _of_one(learner: LearnerPlan, used: Mapping[int, float]) -> tuple[int, ...] | None:
    if learner.gpus <= 0:
        return ()
    if learner.gpus >= 1:
        idle = [index for index, part in used.items() if part == 0]
        return None if len(idle) < learner.gpus else tuple(idle[: int(learner.gpus)])
    room = [index for index, part in used.items() if part + learner.gpus <= _WHOLE]
    if not room:
        return None
    return (max(room, key=lambda index: (used[index], -index)),)
