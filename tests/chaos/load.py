"""A steady load of jobs, each with an owner that knows the expected outcome. A pure function of the seed.

Learners are shells that print {"step": 1}, {"step": 2} ... as JSON. Each is a line and a point, so the auditor sees
loss, duplication and reordering. An owner repeats an unanswered request under the same idempotency key.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeVar

from weft import Client, Conflict, WeftError
from weft._job import Job

T = TypeVar("T")
Life = Literal["complete", "fail first", "fail", "halt", "kill", "stay"]
RESOURCES: Final = {"cpus": 0.5, "memory": "64MiB"}
LIVE: Final = 4
"""Concurrent jobs, without those that stay."""
STAYING: Final = 2
FAILS: Final = 9
"""Exit code of a learner that fails on purpose."""
_POLL_S: Final = 0.25
_PREAMBLE: Final = """
exec 2> /dev/null
trap 'exit 143' TERM
n=0
while [ $n -lt {steps} ]{unless}; do
  n=$((n + 1)); echo "{{\\"step\\": $n, \\"loss\\": 1.5}}"; sleep {pause}
done
"""
"""stderr is discarded: the shell prints 'Terminated' there at times, if the signal also ended its `sleep`."""
_ENDS: Final[dict[Life, str]] = {
    "complete": "",
    "halt": "",
    "stay": "",
    "fail first": f'[ "$WEFT_ATTEMPT" = 1 ] && exit {FAILS}',
    "fail": f"exit {FAILS}",
    "kill": "exec sleep 600",
}


_MOST: Final[list[Life]] = ["complete"] * 6


@dataclass(frozen=True, slots=True)
class Order:
    """A job and the life that its owner wants for it."""

    number: int
    life: Life
    learners: int
    steps: int
    pause_s: float

    def spec(self, resources: Mapping[str, Any] = RESOURCES) -> dict[str, Any]:
        unless = ' && [ ! -e "$JOB_STATE_DIR/end" ]' if self.life == "stay" else ""
        # Only a learner's own failure may end a job. Kills by faults are retried without limit.
        budget = {"max": 0} if self.life == "fail" else {"max": 1000, "backoff": "50ms"}
        command = _PREAMBLE.format(steps=self.steps, unless=unless, pause=self.pause_s) + _ENDS[self.life]
        return {
            "name": f"chaos-{self.number}",
            "command": f'{command}\necho "said $n"',
            "learners": self.learners,
            "resources": dict(resources),
            "retries": budget,
            "grace": "2s",
        }


def orders(seed: int) -> Iterator[Order]:
    """Yields orders without end. The first STAYING ones are gangs that run until the test ends them."""
    chance = random.Random(f"load {seed}")
    for number in range(1, STAYING + 1):
        yield Order(number, "stay", 2, 1_000_000, 0.1)
    lives: list[Life] = [*_MOST, "fail first", "fail", "halt", "halt", "kill", "kill"]
    number = STAYING
    while True:
        chance.shuffle(lives)
        for life in lives:
            number += 1
            yield Order(number, life, chance.choice([1, 1, 2]), chance.randint(10, 40), chance.choice([0.03, 0.1, 0.2]))


@dataclass(slots=True)
class Owned:
    """An acknowledged job and the actions of its owner."""

    order: Order
    job: Job
    halted: bool = False
    over: bool = False

    def poll(self) -> None:
        """Reads the job once and halts, resumes or kills it if that is due. An error changes nothing."""
        job, life = self.job.refresh(), self.order.life
        wanted = str(job.document["desired"])
        self.halted = self.halted or wanted == "halt"
        if life == "halt" and not self.halted and job.status == "PROCESSING":
            job.halt()
        elif life == "halt" and job.status == "HALTED" and job.at_rest:
            job.resume()
        elif life == "kill" and job.status == "PROCESSING" and wanted != "kill":
            job.kill()
        self.over = job.at_rest and job.status in {"COMPLETED", "FAILED", "KILLED"}


class Load:
    """Context manager: owners, each in its own thread, submit one job after another until ``close``."""

    def __init__(
        self, client: Client, seed: int, *, live: int = LIVE, resources: Mapping[str, Any] = RESOURCES
    ) -> None:
        """``live``: jobs at the same time, beside those that stay. ``resources``: of each learner."""
        self.owned: list[Owned] = []
        self.unanswered = 0
        """Requests that were repeated after the SDK's own retries had ended."""
        self.failure: BaseException | None = None
        self._client, self._seed, self._resources = client, seed, resources
        self._orders, self._lock = orders(seed), threading.Lock()
        self._closed, self._abandon = threading.Event(), threading.Event()
        owners = range(live + STAYING)
        self._threads = [threading.Thread(target=self._run, name=f"owner-{n}", daemon=True) for n in owners]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._abandon.set()
        for thread in self._threads:
            thread.join()

    @property
    def staying(self) -> list[Owned]:
        return [owned_job for owned_job in self.owned if owned_job.order.life == "stay"]

    @property
    def all_stay(self) -> bool:
        """True if all jobs that stay are running."""
        return len(self.staying) == STAYING and all(owned_job.job.status == "PROCESSING" for owned_job in self.staying)

    @property
    def other_runs(self) -> bool:
        """True if any other job is running."""
        return any(owned_job.order.life != "stay" and owned_job.job.status == "PROCESSING" for owned_job in self.owned)

    @property
    def over(self) -> int:
        return sum(owned_job.over for owned_job in self.owned)

    @property
    def idle(self) -> bool:
        """True if every owner has finished: no more requests follow."""
        return not any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Ends submission; running jobs are followed to their end."""
        self._closed.set()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                with self._lock:
                    order = next(self._orders)
                owned_job = self._submit(order)
                while owned_job is not None and not owned_job.over and not self._abandon.is_set():
                    self._request(owned_job.poll)
                    self._abandon.wait(_POLL_S)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self.failure = error

    def _submit(self, order: Order) -> Owned | None:
        """Submits until acknowledged, also after ``close``: an unanswered submit may exist already."""
        key = f"chaos-{self._seed}-{order.number}"
        while not self._abandon.is_set():
            job = self._request(lambda: self._client.jobs.submit(order.spec(self._resources), idempotency_key=key))
            if job is not None:
                owned_job = Owned(order, job)
                self.owned.append(owned_job)
                return owned_job
            self._abandon.wait(_POLL_S)  # a full disk answers at once
        return None

    def _request(self, call: Callable[[], T]) -> T | None:
        """Returns the answer, or None if it failed with a retryable error: the next poll repeats it."""
        try:
            return call()
        except Conflict:
            return None  # too late: the next poll reads the result
        except WeftError as error:
            if not error.retryable:
                raise
            with self._lock:
                self.unanswered += 1
            return None


def wait_over(load: Load, *, timeout_s: float, say: Callable[[], None] = lambda: None) -> float:
    """Returns the seconds until every job is over. Raises TimeoutError with the names of the others."""
    began = time.monotonic()
    while not load.idle:
        if load.failure is not None:
            raise load.failure
        if time.monotonic() - began > timeout_s:
            left = ", ".join(
                f"{owned_job.job!r} ({owned_job.order.life})" for owned_job in load.owned if not owned_job.over
            )
            raise TimeoutError(f"not over {timeout_s:.0f} s after the last fault: {left}")
        say()
        time.sleep(0.1)
    return time.monotonic() - began
