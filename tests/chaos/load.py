"""A steady load of jobs, each with an owner who knows what is to come of it. A pure function of the seed.

Learners are shells that say "step 1", "step 2" ... as JSON, each of them a line and a point, so that whatever is lost,
doubled or mixed up shows. The owner is patient: what was not answered is asked again, under the same idempotency key.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeVar

from weft import Client, Conflict, WeftError
from weft._job import Job

T = TypeVar("T")
Life = Literal["complete", "fail first", "fail", "halt", "kill", "stay"]
RESOURCES: Final = {"cpus": 0.5, "memory": "64MiB"}
LIVE: Final = 4
"""Jobs at a time, beside those that stay."""
STAYING: Final = 2
FAILS: Final = 9
"""Exit code of a learner that fails on purpose."""
_LOOK_S: Final = 0.25
_SAYS: Final = """
exec 2> /dev/null
trap 'exit 143' TERM
n=0
while [ $n -lt {steps} ]{unless}; do
  n=$((n + 1)); echo "{{\\"step\\": $n, \\"loss\\": 1.5}}"; sleep {pause}
done
"""
"""Silent on stderr: there the shell itself says 'Terminated', or not, of a `sleep` that the same signal ended."""
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
    """A job and what its owner wants of it."""

    number: int
    life: Life
    learners: int
    steps: int
    pause_s: float

    def spec(self) -> dict[str, Any]:
        unless = ' && [ ! -e "$JOB_STATE_DIR/end" ]' if self.life == "stay" else ""
        # One more learner's death is the platform's doing: only exits of our own may end a job.
        budget = {"max": 0} if self.life == "fail" else {"max": 1000, "backoff": "50ms"}
        command = _SAYS.format(steps=self.steps, unless=unless, pause=self.pause_s) + _ENDS[self.life]
        return {
            "name": f"chaos-{self.number}", "command": f'{command}\necho "said $n"', "learners": self.learners,
            "resources": RESOURCES, "retries": budget, "grace": "2s",
        }  # fmt: skip


def orders(seed: int) -> Iterator[Order]:
    """Without end. The first of them are gangs that stay until they are told to end."""
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
    """A job whose submit was acknowledged, and what its owner does about it."""

    order: Order
    job: Job
    halted: bool = False
    over: bool = False

    def look(self) -> None:
        """Looks once, and does what is due. An error leaves everything as it was."""
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
    """``with Load(...) as load``: owners, each in a thread of its own, submit one job after another until ``close``."""

    def __init__(self, client: Client, seed: int) -> None:
        self.owned: list[Owned] = []
        self.unanswered = 0
        """Requests that had to be made again, after the SDK's own patience had ended."""
        self.failure: BaseException | None = None
        self._client, self._seed = client, seed
        self._orders, self._taking = orders(seed), threading.Lock()
        self._closing, self._leaving = threading.Event(), threading.Event()
        owners = range(LIVE + STAYING)
        self._threads = [threading.Thread(target=self._run, name=f"owner-{n}", daemon=True) for n in owners]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._leaving.set()
        for thread in self._threads:
            thread.join()

    @property
    def staying(self) -> list[Owned]:
        return [one for one in self.owned if one.order.life == "stay"]

    @property
    def all_stay(self) -> bool:
        """Whether those that are to stay run."""
        return len(self.staying) == STAYING and all(one.job.status == "PROCESSING" for one in self.staying)

    @property
    def other_runs(self) -> bool:
        """Whether any of the others runs now."""
        return any(one.order.life != "stay" and one.job.status == "PROCESSING" for one in self.owned)

    @property
    def over(self) -> int:
        return sum(one.over for one in self.owned)

    @property
    def idle(self) -> bool:
        """Whether every owner has left: nothing is asked for any more."""
        return not any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """No more submits."""
        self._closing.set()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                with self._taking:
                    order = next(self._orders)
                one = self._submit(order)
                while one is not None and not one.over and not self._leaving.is_set():
                    self._patiently(one.look)
                    self._leaving.wait(_LOOK_S)
        except BaseException as error:  # noqa: BLE001 - told to the main thread, whoever it is from
            self.failure = error

    def _submit(self, order: Order) -> Owned | None:
        """Until it is acknowledged: also after ``close``, for nobody else knows whether it is there."""
        key = f"chaos-{self._seed}-{order.number}"
        while not self._leaving.is_set():
            job = self._patiently(lambda: self._client.jobs.submit(order.spec(), idempotency_key=key))
            if job is not None:
                one = Owned(order, job)
                self.owned.append(one)
                return one
            self._leaving.wait(_LOOK_S)  # a full disk answers at once
        return None

    def _patiently(self, ask: Callable[[], T]) -> T | None:
        """The answer, or None where there is none now: it is asked again at the next look."""
        try:
            return ask()
        except Conflict:
            return None  # too late: the next look says what has become of it
        except WeftError as error:
            if not error.retryable:
                raise
            with self._taking:
                self.unanswered += 1
            return None


def wait_over(load: Load, *, timeout_s: float, say: Callable[[], None] = lambda: None) -> float:
    """Seconds until every job is over. TimeoutError names those that are not."""
    began = time.monotonic()
    while not load.idle:
        if load.failure is not None:
            raise load.failure
        if time.monotonic() - began > timeout_s:
            left = ", ".join(f"{one.job!r} ({one.order.life})" for one in load.owned if not one.over)
            raise TimeoutError(f"not over {timeout_s:.0f} s after the last fault: {left}")
        say()
        time.sleep(0.1)
    return time.monotonic() - began
