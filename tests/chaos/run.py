"""Runs a real platform under a steady load of jobs, injects the scheduled faults, then audits the result.

All random choices come from the seed; the schedule is printed first. Timing depends on the machine, so a replay of a
seed repeats the faults, not the exact instants.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from services.core.adapters.mongo import MongoJobStore
from services.core.adapters.sqlite.jobs import SqliteJobStore
from services.core.ports.job_store import JobStore
from tests.chaos.auditor import Verdict, judge_jobs, judge_processes, secret_names, until_clean
from tests.chaos.faults import Faults, Undo, small_volume
from tests.chaos.load import Load, wait_over
from tests.chaos.network import Servers, network, servers
from tests.chaos.process_table import Sampler
from tests.chaos.schedule import SECOND, Fault, schedule
from tests.testbed.clock_jumps import Clocks, faketime_library
from tests.testbed.platform import Platform
from tests.testbed.second import Second
from weft import Client

OVER_S: Final = 600.0
"""Limit in seconds for all jobs to end after the last fault. The run prints the time; promised is half a minute on an
idle machine."""
CLEAN_S: Final = 120.0
KEPT: Final = Path("build") / "chaos"


@dataclass
class Outcome:
    """Result of a run."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter[str])
    missed: Counter[str] = field(default_factory=Counter[str])
    verdict: Verdict = field(default_factory=Verdict)
    over_s: float = 0.0
    clean_s: float = 0.0
    retried_requests: int = 0
    judged: bool = False
    """True if the run reached the audit."""

    @property
    def lines(self) -> list[str]:
        """The result as lines of text."""
        counts = self.verdict.counts
        kinds = ", ".join(f"{what} {count}" for what, count in sorted(self.faults.items()))
        checked = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
        lines = [f"faults: {sum(self.faults.values())} ({kinds})"]
        if self.missed:
            lines.append(
                "faults without a running victim: " + ", ".join(f"{what} {n}" for what, n in self.missed.items())
            )
        lines.append(f"checked: {checked}")
        lines.append(f"repeated requests: {self.retried_requests}")
        lines.append(
            f"after the last fault: all jobs over in {self.over_s:.1f} s, nothing left behind in {self.clean_s:.1f} s"
        )
        return lines


def available(say: Callable[[str], None]) -> set[str]:
    """Returns the fault requirements that this machine meets; says which it does not meet."""
    has: set[str] = set()
    if os.geteuid() == 0:
        has.add("root")
    else:
        say("not root: no disk fills up (that needs a small volume to be mounted)")
    try:
        faketime_library(say)
        has.add("clocks")
    except RuntimeError as error:
        say(f"no clock jumps: {error}")
    return has


def run(seed: int, count: int, *, say: Callable[[str], None], progress: Callable[[str], None]) -> Outcome:
    """Runs the seed and audits it. KeyboardInterrupt leaves nothing running."""
    chosen = {"servers": _on_servers(seed), "hints": _with_hints(seed), "seconds": _with_second_services(seed)}
    has = available(say) | {name for name, here in chosen.items() if here}
    plan = schedule(seed, count, has)
    for fault in plan:
        say(str(fault))
    outcome = Outcome(seed)
    with ExitStack() as stack:
        ignore_signals = stack.enter_context(_ignoring_signals())
        root = stack.enter_context(_folder())
        clocks = Clocks(root / "clocks", faketime_library(say)) if "clocks" in has else None
        if "root" in has:
            stack.enter_context(small_volume(root / "home"))
        net = stack.enter_context(network(root, say))
        backends = stack.enter_context(servers(root / "servers", say)) if "servers" in has else None
        own = _settings(seed) | dict(clocks.environment if clocks else {})
        if "seconds" in has:  # as on another machine: over lines that can be cut
            own["WEFT_TRANSPORT"] = "tls"
        settings = own | dict(backends.settings(net.through) if backends else {})
        platform = Platform(root / "home", settings)
        stack.enter_context(kept_logs(platform, outcome))
        stack.callback(platform.down)
        platform.up()
        second_services: dict[str, Second] = {}
        reach = partial(net.through, SECOND)
        for service in ("lcm", "guardian") if "seconds" in has else ():
            environment = own | dict(backends.settings(lambda _, address: reach(address)) if backends else {})
            second_services[service] = Second(
                platform.home, service, root / f"second-{service}", environment, through=reach
            )
            stack.callback(second_services[service].stop)
            second_services[service].start()
        faults = Faults(platform, clocks=clocks, second_services=second_services, lines=net.lines)
        client = stack.enter_context(Client(platform.url, platform.key))
        secrets = secret_names(platform.home.root)
        stack.callback(ignore_signals)  # from here on the clean-up completes, however often Ctrl-C is pressed
        with Sampler(platform.home.root) as sampler, Load(client, seed) as load:
            # Faults begin once the platform is up. A platform that fails to start ends the run with its reason.
            came_up = platform.home / "run" / "came-up"
            await_load(lambda: load.all_stay and load.other_runs and came_up.exists(), load)
            faults.spared = frozenset(owned_job.job.id for owned_job in load.staying)
            _play(plan, faults, load, progress)
            load.close()
            platform.up()
            for owned_job in load.staying:
                for place in (platform.home / "node" / owned_job.job.id).glob("*/*/job"):
                    (place / "end").touch()
            outcome.over_s = wait_over(
                load, timeout_s=OVER_S, say=lambda: progress(f"{load.over}/{len(load.owned)} over")
            )
            outcome.clean_s, left = asyncio.run(_clean(platform, secrets, backends))
        verdict = outcome.verdict
        verdict.failures += [f"left behind: {what}" for what in left]
        judge_jobs(client, load.owned, faults.killed_learners, verdict)
        judge_processes(sampler, verdict)
        outcome.judged = True
        outcome.faults, outcome.missed, outcome.retried_requests = faults.counts, faults.missed, load.unanswered
    return outcome


def _with_second_services(seed: int) -> bool:
    """True if this seed runs a second lcm and a second guardian, which take over from stopped processes."""
    return seed % 2 == 0


def _on_servers(seed: int) -> bool:
    """True if this seed's stores are MongoDB's protocol, S3 and RabbitMQ, over lines that can be cut."""
    return seed % 3 == 1


def _with_hints(seed: int) -> bool:
    """True if this seed sends hints."""
    return seed % 5 != 0


def _settings(seed: int) -> dict[str, str]:
    """Settings by seed. With second services, the supervisor does not end stopped processes: they resume as zombies."""
    silence = "0" if _with_second_services(seed) else "2"
    return {
        "WEFT_NODE_CPUS": "8",
        "WEFT_PEER_GRACE_S": "1",
        "WEFT_HINTS": "send" if _with_hints(seed) else "drop",
        "WEFT_SILENCE_S": silence,
        "WEFT_NODE_HELPER_SILENCE_S": silence,
        # On a busy machine metrics may be away for longer than a learner's end waits by default.
        "WEFT_HELPER_DRAIN_S": "600",
    }


def _play(plan: Sequence[Fault], faults: Faults, load: Load, progress: Callable[[str], None]) -> None:
    """Injects every fault at its time, as far as the machine keeps up, and undoes lasting faults in any case.

    Each undo has its own thread: an undo that waits for the platform must not delay an undo that the platform needs.
    """
    began = time.monotonic()
    pending_undos: list[DelayedUndo] = []
    try:
        for done, fault in enumerate(plan, start=1):
            sleep_until(began + fault.at_s, load)
            progress(f"fault {done}/{len(plan)}: {fault.kind} {fault.victim}; jobs {load.over}/{len(load.owned)} over")
            undo = faults.begin(fault)
            if undo is not None:
                pending_undos.append(DelayedUndo(fault.for_s, undo))
        for pending in pending_undos:
            pending.thread.join()
    finally:
        for pending in pending_undos:
            pending.now()
    for pending in pending_undos:
        if pending.failure is not None:
            raise pending.failure


class DelayedUndo:
    """Undoes a fault once: after ``after_s`` seconds, or at `now`."""

    def __init__(self, after_s: float, undo: Undo) -> None:
        self.failure: BaseException | None = None
        self._undo, self._hurry = undo, threading.Event()
        self.thread = threading.Thread(target=self._run, args=(after_s,), name="undoing", daemon=True)
        self.thread.start()

    def now(self) -> None:
        self._hurry.set()
        self.thread.join()

    def _run(self, after_s: float) -> None:
        self._hurry.wait(after_s)
        try:
            self._undo()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self.failure = error


def sleep_until(moment: float, load: Load) -> None:
    """Returns at this time of the monotonic clock. Raises the load's failure."""
    if load.failure is not None:
        raise load.failure
    time.sleep(max(0.0, moment - time.monotonic()))


def await_load(condition: Callable[[], bool], load: Load) -> None:
    """Returns once the condition is true. Raises the load's failure, or TimeoutError."""
    deadline = time.monotonic() + OVER_S
    while not condition():
        if load.failure is not None:
            raise load.failure
        if time.monotonic() > deadline:
            raise TimeoutError("the load does not come up")
        time.sleep(0.05)


async def _clean(platform: Platform, secrets: frozenset[str], backends: Servers | None) -> tuple[float, list[str]]:
    home = platform.home
    if backends is not None:
        jobs: JobStore = await MongoJobStore.open(backends.job_store)
    else:
        jobs = await SqliteJobStore.open(home / "jobs.sqlite")
    try:
        return await until_clean(home.root, home.address("etcd"), jobs, secrets, timeout_s=CLEAN_S)
    finally:
        await jobs.close()


@contextmanager
def _ignoring_signals() -> Generator[Callable[[], None]]:
    """Yields a function that makes the process ignore SIGINT and SIGTERM until the block ends."""
    before = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)}

    def ignore_signals() -> None:
        for sign in before:
            signal.signal(sign, signal.SIG_IGN)

    try:
        yield ignore_signals
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


@contextmanager
def _folder() -> Generator[Path]:
    """A temporary folder that is deleted afterwards."""
    root = Path(tempfile.mkdtemp(prefix="weft-chaos-"))
    root.chmod(0o755)
    try:
        yield root
    finally:
        shutil.rmtree(root)


@contextmanager
def kept_logs(platform: Platform, outcome: Outcome) -> Generator[None]:
    """Copies the services' logs to build/chaos if the run failed."""
    try:
        yield
    finally:
        if not outcome.judged or outcome.verdict.failures:
            kept = KEPT / f"seed-{outcome.seed}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(platform.home / "logs", kept)
            for log in platform.home.root.parent.glob("second-*/log"):
                shutil.copy(log, kept / f"{log.parent.name}.log")
