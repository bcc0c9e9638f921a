"""One seed: jobs, what their owners want meanwhile, and the faults that befall the platform; then peace, and the end.

What happens is decided by the seed alone. A fault counts when it strikes: an answer that was to be lost and never came
does not. The story goes on until at least three did.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from services.core.domain.errors import NoSpace
from services.core.domain.status import TERMINAL, Desired, Status
from tests.simulation.checker import Breach, Declared
from tests.simulation.faults import PLACES, Faults
from tests.simulation.world import World
from tests.testbed.helpers_in_memory import Fate

STORY_S: Final = 16.0
PEACE_S: Final = 30.0
"""R8: within so long after the last fault every job has become what its owner wants."""
CLEAN_S: Final = 30.0
"""R5: within so long after that nothing is left."""
MOST_STORY_S: Final = 60.0
FAULTS_EACH: Final = 3
_TOLD: Final = 120


@dataclass
class Told:
    """What became of one seed."""

    seed: int
    digest: str
    faults: Counter[str]
    applied_keys: Counter[str]
    jobs: int
    breaches: list[Breach]
    last: list[str]
    settled_s: float
    """From the last fault until every job was at rest."""


@dataclass
class Trace:
    """Everything that was noted: its digest, and the last lines."""

    clock: Callable[[], float]
    last: deque[str] = field(default_factory=lambda: deque(maxlen=_TOLD))
    all: list[str] | None = None
    _digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))

    def note(self, *words: object) -> None:
        line = f"{self.clock():9.4f}  {' '.join(str(word) for word in words)}"
        self.last.append(line)
        self._digest.update(line.encode())
        if self.all is not None:
            self.all.append(line)

    @property
    def digest(self) -> str:
        return str(self._digest.hexdigest())


class Story:
    """Call ``tell`` once."""

    def __init__(self, seed: int, home: Path, *, whole: bool = False) -> None:
        """``whole``: every line is kept."""
        loop = asyncio.get_running_loop()
        random.seed(f"jitter {seed}")  # of clients that jitter by themselves: etcd's lease
        self.seed, self.chance = seed, random.Random(f"story {seed}")
        self.world = World(seed, home)
        self.trace = Trace(loop.time, all=[] if whole else None)
        self.world.network.told = self.trace.note
        self.world.checker.told = self.trace.note
        self.jobs: list[str] = []
        self.applied_keys: Counter[str] = Counter()
        self._loop = loop
        self._requests: list[asyncio.Task[Any]] = []
        self._faults = Faults(self.world, self.chance, self.trace.note, self.submit)

    @property
    def struck(self) -> Counter[str]:
        return self.world.network.struck

    async def tell(self) -> Told:
        for name in PLACES if self.chance.random() < 0.7 else PLACES[::2]:
            await self.world.launch(*name)
        # One kind is the seed's own, in turn: so each kind comes often, whatever the others' weights.
        kinds = list(self._faults.kinds())
        own = partial(self._faults.strike, kinds[self.seed % len(kinds)])
        acts: list[tuple[float, Callable[[], Awaitable[None] | None]]] = [
            (self.chance.uniform(0, 0.5 * STORY_S), self.submit) for _ in range(self.chance.randint(2, 4))
        ]
        acts += [(self.chance.uniform(1, STORY_S), self.wish) for _ in range(self.chance.randint(0, 4))]
        acts += [(self.chance.uniform(0.5, STORY_S - 4), own)]
        acts += [(self.chance.uniform(0.5, STORY_S), self._faults.any) for _ in range(self.chance.randint(3, 6))]
        acts.sort(key=lambda act: act[0])
        for at, act in acts:
            await asyncio.sleep(max(0.0, at - self._loop.time()))
            await self._do(act)
            if self.world.checker.breaches:
                break
        while sum(self.struck.values()) < FAULTS_EACH and self._loop.time() < MOST_STORY_S:
            await asyncio.sleep(1)
            await self._do(self._faults.any)
        settled = await self.settle()
        told = Told(
            self.seed, self.trace.digest, self.struck, self.applied_keys, len(self.jobs), self.world.checker.breaches,
            list(self.trace.last), settled,
        )  # fmt: skip
        await self.world.close()
        return told

    async def _do(self, act: Callable[[], Awaitable[None] | None]) -> None:
        result = act()
        if result is not None:
            await result

    # --- people ---------------------------------------------------------------------------

    def submit(self) -> None:
        self._requests.append(asyncio.create_task(self._submit(len(self._requests))))

    async def _submit(self, number: int) -> None:
        chance = random.Random(f"job {self.seed} {number}")
        roles: dict[str, dict[str, Any]] = {"worker": {"count": chance.choice([1, 1, 2, 2, 3])}}
        if chance.random() < 0.25:
            roles["ps"] = {"count": 1}
            if chance.random() < 0.5:
                roles["worker"]["decides"] = True
        if chance.random() < 0.1:
            roles["worker"]["on_failure"] = "ignore"
        count = sum(one["count"] for one in roles.values())
        cpus, gpus = chance.choice([1, 2, 4]), chance.choice([0, 0, 1, 2 if count < 3 else 1])
        retries = chance.choice([0, 1, 1, 2])
        spec = {
            "name": "digits", "command": "python train.py", "roles": roles, "grace": "1s", "store_timeout": "6s",
            "retries": {"max": retries, "backoff": "500ms"},
            "resources": {"cpus": cpus, "gpus": gpus, "memory": "1GB"},
        }  # fmt: skip
        names = [f"{role}-{index}" for role, one in roles.items() for index in range(one["count"])]
        decides = [role for role, one in roles.items() if one.get("decides")] or list(roles)
        refused = chance.random() < 0.08
        declared = Declared(
            learners=dict.fromkeys(names, (cpus, gpus)),
            deciding=[name for name in names if name.rpartition("-")[0] in decides],
            ignored=[name for name in names if "on_failure" in roles[name.rpartition("-")[0]]],
            retries=retries, grace_s=1, store_s=6, refused=refused,
        )  # fmt: skip
        job_id = await self.world.submit_job(spec, declared)
        for name in names:
            for attempt in range(1, 9):
                self.world.crew.fates[job_id, name, attempt] = _fate(chance)
        if refused:
            step = chance.choice(self.world.machines.steps())
            self.world.machines.refuse(step, NoSpace("the disk is full"), attempt=1, job=job_id)
        self.jobs.append(job_id)
        self.trace.note("submitted", job_id, names, f"{cpus} CPUs, {gpus} GPUs each")

    def wish(self) -> None:
        if self.jobs:
            job_id = self.chance.choice(self.jobs)
            wish = self.chance.choice(["halt", "halt", "run", "kill", "delete"])
            self._requests.append(asyncio.create_task(self._wish(job_id, wish)))

    async def _wish(self, job_id: str, wish: str) -> None:
        world = self.world
        taken = await (world.delete(job_id) if wish == "delete" else world.wish_for(job_id, Desired(wish)))
        self.applied_keys[wish] += taken
        self.trace.note("wish", wish, job_id, "taken" if taken else "refused")
        if wish == "halt" and taken and self.chance.random() < 0.5:
            await self._change_of_mind(job_id)

    async def _change_of_mind(self, job_id: str) -> None:
        """It shall run again, at once: asked for in the very moment in which it is seen to be HALTED."""
        while (job := await self.world.document(job_id)).status is not Status.HALTED:
            if job.status in TERMINAL:
                return
            await asyncio.sleep(0.02)
        for _ in range(20):
            if await self.world.wish_for(job_id, Desired.RUN):
                self.applied_keys["run"] += 1
                self.trace.note("wish run", job_id, "taken, after a halt")
                return
            await asyncio.sleep(0.2)

    # --- peace -----------------------------------------------------------------------------

    async def settle(self) -> float:
        """The faults stop. Seconds until all was as it should be."""
        await self._faults.end()
        self.trace.note("PEACE")
        began = self._loop.time()
        checker = self.world.checker
        answered, waiting = await asyncio.wait(self._requests, timeout=PEACE_S)
        for request in answered:
            request.result()
        for request in waiting:
            request.cancel()
            checker.unanswered(str(request.get_coro()))
        while not checker.breaches and (
            busy := [job for job in self.jobs if not (await self.world.document(job)).at_rest]
        ):
            if self._loop.time() > began + PEACE_S:
                for job_id in busy:
                    checker.late(await self.world.document(job_id))
                break
            await asyncio.sleep(0.1)
        rested = self._loop.time()
        while not checker.breaches and (left := await self.world.left()):
            if self._loop.time() > rested + CLEAN_S:
                checker.left(left)
                break
            await asyncio.sleep(0.5)
        if not checker.breaches:
            for job_id in self.jobs:
                checker.ended(await self.world.document(job_id))
        return rested - began


def _fate(chance: random.Random) -> Fate:
    return Fate(
        download_s=chance.uniform(0, 1), run_s=chance.uniform(0.1, 3), code=chance.choice([0] * 7 + [1]),
        store_s=chance.choice([0.1, 0.1, 1]), on_term=chance.choice([-15, 0, None]),
        lost=chance.random() < 0.02,
        fails=("EnvironmentFailed", "no such package") if chance.random() < 0.02 else None,
    )  # fmt: skip
