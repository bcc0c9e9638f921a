"""One run of the simulation: jobs, requests of their owners, and faults; then the faults end and the jobs must settle.

The seed alone decides what happens. A fault counts when it takes effect: an armed fault without a call to apply to does
not. A run has at least ``MIN_FAULTS``.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from services.core.domain.errors import NoSpace
from services.core.domain.status import TERMINAL, Desired, Status
from tests.simulation.checker import Breach, Declared
from tests.simulation.faults import PLACES, FaultInjector
from tests.simulation.pod_faults import PodFaultInjector
from tests.simulation.pod_platform import PodPlatform
from tests.simulation.simulated_platform import SimulatedPlatform
from tests.testbed.helpers_in_memory import Fate

ACTIVE_S: Final = 16.0
"""Requests and faults come within so long."""
SETTLE_S: Final = 30.0
"""R8: within so long after the last fault every job is in the state that its owner wants."""
CLEAN_S: Final = 30.0
"""R5: within so long after that nothing of the jobs is left."""
MAX_ACTIVE_S: Final = 60.0
"""Further faults are injected until then, up to ``MIN_FAULTS``."""
MIN_FAULTS: Final = 3
_KEPT_LINES: Final = 120
LOCAL: Final = "local"
KUBERNETES: Final = "kubernetes"
_CLUSTERS: Final[Mapping[str, tuple[type[SimulatedPlatform], type[FaultInjector]]]] = {
    LOCAL: (SimulatedPlatform, FaultInjector),
    KUBERNETES: (PodPlatform, PodFaultInjector),
}
"""What learners run on -> the platform and its faults."""


@dataclass
class SeedResult:
    """The result of one seed."""

    seed: int
    digest: str
    """Digest of the trace."""
    faults: Counter[str]
    """Kind -> how many took effect."""
    requests: Counter[str]
    """run | halt | kill | delete -> how many the platform accepted."""
    jobs: int
    breaches: list[Breach]
    last: list[str]
    """The last lines of the trace."""
    settled_s: float
    """From the last fault until every job was at rest."""


@dataclass
class Trace:
    """The trace of a run: its digest, and the last lines or all."""

    clock: Callable[[], float]
    last: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    all: list[str] | None = None
    """None: only the last lines are kept."""
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


Action = Callable[[], Awaitable[None] | None]


class SeedRun:
    """Runs one seed: call ``run`` once."""

    def __init__(self, seed: int, home: Path, *, cluster: str = LOCAL, whole_trace: bool = False) -> None:
        """``cluster``: LOCAL | KUBERNETES."""
        loop = asyncio.get_running_loop()
        random.seed(f"jitter {seed}")  # the lease of etcd's client uses the global generator
        self.seed, self.chance = seed, random.Random(f"story {seed}")
        platform, injector = _CLUSTERS[cluster]
        self.platform = platform(seed, home)
        self.trace = Trace(loop.time, all=[] if whole_trace else None)
        self.platform.network.note = self.trace.note
        self.platform.checker.note = self.trace.note
        self.jobs: list[str] = []
        self.accepted: Counter[str] = Counter()
        self._loop = loop
        self._requests: list[asyncio.Task[Any]] = []
        self._faults = injector(self.platform, self.chance, self.trace.note, self.submit)

    @property
    def fault_counts(self) -> Counter[str]:
        return self.platform.network.fault_counts

    async def run(self) -> SeedResult:
        for name in PLACES if self.chance.random() < 0.7 else PLACES[::2]:
            await self.platform.launch(*name)
        # Each seed has one kind of fault for certain, in turn, so that every kind occurs often.
        kinds = list(self._faults.kinds())
        certain_fault = partial(self._faults.inject, kinds[self.seed % len(kinds)])
        actions: list[tuple[float, Action]] = [
            (self.chance.uniform(0, 0.5 * ACTIVE_S), self.submit) for _ in range(self.chance.randint(2, 4))
        ]
        actions += [(self.chance.uniform(1, ACTIVE_S), self.request_change) for _ in range(self.chance.randint(0, 4))]
        actions += [(self.chance.uniform(0.5, ACTIVE_S - 4), certain_fault)]
        fault_count = self.chance.randint(3, 6)
        actions += [(self.chance.uniform(0.5, ACTIVE_S), self._faults.inject_any) for _ in range(fault_count)]
        actions.sort(key=lambda timed: timed[0])
        for at, action in actions:
            await asyncio.sleep(max(0.0, at - self._loop.time()))
            await self._perform(action)
            if self.platform.checker.breaches:
                break
        while sum(self.fault_counts.values()) < MIN_FAULTS and self._loop.time() < MAX_ACTIVE_S:
            await asyncio.sleep(1)
            await self._perform(self._faults.inject_any)
        settled_s = await self.settle()
        result = SeedResult(
            seed=self.seed,
            digest=self.trace.digest,
            faults=self.fault_counts,
            requests=self.accepted,
            jobs=len(self.jobs),
            breaches=self.platform.checker.breaches,
            last=list(self.trace.last),
            settled_s=settled_s,
        )
        await self.platform.close()
        return result

    async def _perform(self, action: Action) -> None:
        result = action()
        if result is not None:
            await result

    # --- requests of owners ---------------------------------------------------------------

    def submit(self) -> None:
        """Submits a job in the background."""
        self._requests.append(asyncio.create_task(self._submit(len(self._requests))))

    async def _submit(self, number: int) -> None:
        chance = random.Random(f"job {self.seed} {number}")
        roles: dict[str, dict[str, Any]] = {"worker": {"count": chance.choice([1, 1, 2, 2, 3])}}
        if chance.random() < 0.25:
            roles["ps"] = {"count": 1}
            if chance.random() < 0.5:
                roles["worker"]["decides"] = True
        kind = chance.random()
        if kind < 0.1:
            roles["worker"]["on_failure"] = "ignore"
        elif kind < 0.3:
            roles["worker"]["on_failure"] = "restart"
        elif kind < 0.4 and roles["worker"]["count"] > 1:
            roles["worker"]["min"] = roles["worker"]["count"] - 1
        count = sum(role["count"] for role in roles.values())
        cpus, gpus = chance.choice([1, 2, 4]), chance.choice([0, 0, 1, 2 if count < 3 else 1])
        retries = chance.choice([0, 1, 1, 2])
        spec = {
            "name": "digits",
            "command": "python train.py",
            "roles": roles,
            "grace": "1s",
            "store_timeout": "6s",
            "retries": {"max": retries, "backoff": "500ms"},
            "resources": {"cpus": cpus, "gpus": gpus, "memory": "1GB"},
        }
        if number % 4 == 3:  # on Kubernetes with a Secret of its own
            spec |= {"image": "registry.example.org/train:1", "image_pull_secret": "registry"}
        names = [f"{name}-{index}" for name, role in roles.items() for index in range(role["count"])]
        decides = [name for name, role in roles.items() if role.get("decides")] or list(roles)
        refused = chance.random() < 0.08
        declared = Declared(
            learners=dict.fromkeys(names, (cpus, gpus)),
            deciding=[name for name in names if name.rpartition("-")[0] in decides],
            ignored=[name for name in names if roles[name.rpartition("-")[0]].get("on_failure") == "ignore"],
            restarted=[name for name in names if roles[name.rpartition("-")[0]].get("on_failure") == "restart"],
            least={name: role["min"] for name, role in roles.items() if "min" in role},
            retries=retries,
            grace_s=1,
            store_s=6,
            refused=refused,
        )
        job_id = await self.platform.submit_job(spec, declared)
        for name in names:
            for attempt in range(1, 9):
                self.platform.simulator.fates[job_id, name, attempt] = _fate(chance)
        if refused:
            step = chance.choice(self.platform.simulated_cluster.steps())
            self.platform.simulated_cluster.refuse(step, NoSpace("the disk is full"), attempt=1, job=job_id)
        self.jobs.append(job_id)
        self.trace.note("submitted", job_id, names, f"{cpus} CPUs, {gpus} GPUs each")

    def request_change(self) -> None:
        """Requests halt, run, kill or delete of a random job, in the background."""
        if self.jobs:
            job_id = self.chance.choice(self.jobs)
            request = self.chance.choice(["halt", "halt", "run", "kill", "delete"])
            self._requests.append(asyncio.create_task(self._request_change(job_id, request)))

    async def _request_change(self, job_id: str, request: str) -> None:
        if request == "delete":
            accepted = await self.platform.delete(job_id)
        else:
            accepted = await self.platform.request_desired(job_id, Desired(request))
        self.accepted[request] += accepted
        self.trace.note("request", request, job_id, "accepted" if accepted else "refused")
        if request == "halt" and accepted and self.chance.random() < 0.5:
            await self._resume_once_halted(job_id)

    async def _resume_once_halted(self, job_id: str) -> None:
        """Requests a resume as soon as the job is HALTED."""
        while (job := await self.platform.document(job_id)).status is not Status.HALTED:
            if job.status in TERMINAL:
                return
            await asyncio.sleep(0.02)
        for _ in range(20):
            if await self.platform.request_desired(job_id, Desired.RUN):
                self.accepted["run"] += 1
                self.trace.note("request run", job_id, "accepted, after a halt")
                return
            await asyncio.sleep(0.2)

    # --- the end ---------------------------------------------------------------------------

    async def settle(self) -> float:
        """Ends the faults and waits until all jobs are at rest and nothing is left. Returns the seconds to rest."""
        await self._faults.end()
        self.platform.hurry()
        self.trace.note("the faults end")
        began = self._loop.time()
        checker = self.platform.checker
        answered, waiting = await asyncio.wait(self._requests, timeout=SETTLE_S)
        for request in answered:
            request.result()
        for request in waiting:
            request.cancel()
            checker.unanswered(str(request.get_coro()))
        while not checker.breaches and (
            busy := [job for job in self.jobs if not (await self.platform.document(job)).at_rest]
        ):
            if self._loop.time() > began + SETTLE_S:
                for job_id in busy:
                    checker.not_at_rest(await self.platform.document(job_id))
                break
            await asyncio.sleep(0.1)
        rested = self._loop.time()
        while not checker.breaches and (left := await self.platform.leftovers()):
            if self._loop.time() > rested + CLEAN_S:
                checker.left_behind(left)
                break
            await asyncio.sleep(0.5)
        if not checker.breaches:
            for job_id in self.jobs:
                checker.ended(await self.platform.document(job_id))
        return rested - began


def _fate(chance: random.Random) -> Fate:
    return Fate(
        download_s=chance.uniform(0, 1),
        run_s=chance.uniform(0.1, 3),
        code=chance.choice([0] * 7 + [1]),
        store_s=chance.choice([0.1, 0.1, 1]),
        on_term=chance.choice([-15, 0, None]),
        lost=chance.random() < 0.02,
        fails=("EnvironmentFailed", "no such package") if chance.random() < 0.02 else None,
    )
