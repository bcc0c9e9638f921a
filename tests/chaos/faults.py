"""Injects each kind of fault into a real platform, and undoes those that last.

Processes are found by the platform's own process files and the process table, and are ended by their pid. A fault whose
victim does not run at that moment (it has not been restarted yet) is counted as missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from services.core.adapters.rpc.hints import SERVICES as HEARERS
from services.core.adapters.rpc.hints import Nudges
from services.core.bootstrap.wiring import identity
from services.core.domain.errors import Unavailable, WeftError
from services.core.runtime.processes import ProcessIdentity, read_live_process, send_signal, wait_gone
from services.core.runtime.settings import Settings
from tests.chaos.process_table import LearnerProcess, learner_processes
from tests.chaos.schedule import SERVICES, Fault
from tests.testbed.clock_jumps import Clocks
from tests.testbed.mounts import mounted
from tests.testbed.platform import Platform
from tests.testbed.second import Second
from tests.testbed.toxiproxy import Line
from tests.waiting import HANG_S

STORES_BYTES: Final = 400 * 2**20
HOUR_S: Final = 3600
Undo = Callable[[], None]


class Faults:
    """``begin`` injects a fault and returns its undo. Learners of jobs in ``spared`` are never touched."""

    def __init__(
        self,
        platform: Platform,
        *,
        clocks: Clocks | None = None,
        second_services: Mapping[str, Second] | None = None,
        lines: Mapping[str, Sequence[Line]] | None = None,
    ) -> None:
        self.spared: frozenset[str] = frozenset()
        self.counts: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.killed_learners: Counter[str] = Counter()
        """Job id -> kills of its learners or their shims: that many further attempts are expected."""
        self.down = False
        """True if the supervisor could not be started; `begin` tries again."""
        self._platform, self._clocks, self._start_lock = platform, clocks, threading.Lock()
        self._seconds, self._lines = second_services or {}, lines or {}
        self._breaking: defaultdict[str, list[Fault]] = defaultdict(list)
        self._line_lock = threading.Lock()
        self._handlers: Mapping[str, Callable[[Fault], Undo | None]] = {
            "kill": self._kill,
            "kill one of": self._kill_one,
            "kill all of": self._kill_all,
            "kill second": self._kill_second,
            "stop second": self._stop_second,
            "supervisor away": self._supervisor_away,
            "stop": self._stop,
            "stop one of": self._stop_one,
            "disk full": self._disk_full,
            "clock forth": self._clock,
            "clock back": self._clock,
            "hints doubled": self._hints,
            "cut off": self._broken,
            "silent": self._broken,
        }

    def begin(self, fault: Fault) -> Undo | None:
        if self.down:
            self.up()
        try:
            undo = self._handlers[fault.kind](fault)
        except LookupError:
            self.missed[f"{fault.kind} {fault.victim}"] += 1
            return None
        self.counts[f"{fault.kind} {fault.victim}"] += 1
        return undo

    # --- kills ------------------------------------------------------------------------

    def _process_of(self, service: str) -> ProcessIdentity:
        """Returns the service's process. Raises LookupError if it does not run now."""
        process = read_live_process(self._platform.home / "run" / f"{service}.json")
        if process is None:
            raise LookupError(service)
        return process

    def _kill(self, fault: Fault) -> None:
        send_signal(self._process_of(fault.victim), signal.SIGKILL)

    def _kill_one(self, fault: Fault) -> None:
        self._end(self._one_of(fault))

    def _kill_all(self, fault: Fault) -> None:
        """Kills all services and the supervisor at nearly one moment, then starts them as an operator would."""
        hit = [process for name in ("supervisor", *SERVICES) if (process := self._running(name)) is not None]
        if fault.victim == "services and helpers":
            hit += [entry.process for entry in learner_processes(self._platform.home.root) if entry.part == "helper"]
        for process in hit:
            send_signal(process, signal.SIGKILL)
        for process in hit:
            wait_gone(process, HANG_S)
        self.up()

    def _second(self, service: str) -> ProcessIdentity:
        process = self._seconds[service].process
        if process is None:
            raise LookupError(service)
        return process

    def _kill_second(self, fault: Fault) -> Undo:
        process = self._second(fault.victim)
        send_signal(process, signal.SIGKILL)
        wait_gone(process, HANG_S)
        return self._seconds[fault.victim].start

    def _stop_second(self, fault: Fault) -> Undo:
        process = self._second(fault.victim)
        send_signal(process, signal.SIGSTOP)
        return lambda: _resume(process)

    def _running(self, service: str) -> ProcessIdentity | None:
        with contextlib.suppress(LookupError):
            return self._process_of(service)
        return None

    def _supervisor_away(self, _: Fault) -> Undo:
        supervisor = self._process_of("supervisor")
        send_signal(supervisor, signal.SIGKILL)
        wait_gone(supervisor, HANG_S)
        return self.up

    def up(self) -> None:
        """Runs `weft up`. A failure is kept in ``down``: the disk may be full, or a service stopped."""
        with self._start_lock:
            self.down = False
            try:
                self._platform.up()
            except WeftError:
                self.down = True

    # --- stopped processes ------------------------------------------------------------------------

    def _stop(self, fault: Fault) -> Undo:
        process = self._process_of(fault.victim)
        send_signal(process, signal.SIGSTOP)
        return lambda: _resume(process)

    def _stop_one(self, fault: Fault) -> Undo:
        process = self._one_of(fault).process
        send_signal(process, signal.SIGSTOP)
        return lambda: _resume(process)

    # --- one learner -------------------------------------------------------------------

    def _one_of(self, fault: Fault) -> LearnerProcess:
        part = fault.victim.removesuffix("s")
        there = [entry for entry in learner_processes(self._platform.home.root) if entry.part == part]
        if part == "learner":
            there = [entry for entry in there if entry.leads]
        if part != "helper":
            there = [entry for entry in there if entry.place.job not in self.spared]
        if not there:
            raise LookupError(fault.victim)
        there.sort(key=lambda entry: (entry.place, entry.process.pid))
        return there[int(fault.share * len(there))]

    def _end(self, entry: LearnerProcess) -> None:
        if entry.part != "helper":
            self.killed_learners[entry.place.job] += 1
        send_signal(entry.process, signal.SIGKILL)

    # --- stores, clocks, hints ------------------------------------------------------------

    def _disk_full(self, _: Fault) -> Undo:
        """Fills the volume of the services' stores. Learners' folders are on another volume."""
        filler = self._platform.home.root / f"filler-{self.counts.total()}"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                free = os.statvfs(self._platform.home.root)
                file.write(b"\0" * max(4096, min(2**20, free.f_bavail * free.f_frsize)))
                file.flush()
        return lambda: filler.unlink(missing_ok=True)

    def _clock(self, fault: Fault) -> Undo:
        assert self._clocks is not None
        clocks = self._clocks
        clocks.jump(fault.victim, HOUR_S if fault.kind == "clock forth" else -HOUR_S)
        return lambda: clocks.jump(fault.victim, 0)

    def _hints(self, fault: Fault) -> None:
        """Sends a hint again for each job that has run here, on every topic that the service receives."""
        self._process_of(fault.victim)
        asyncio.run(self._hint_again(fault.victim))

    async def _hint_again(self, service: str) -> None:
        settings = Settings(home=self._platform.home.root)
        nudges = Nudges(settings.installation.address, (await identity(settings, "worker")).credential)
        try:
            for job in sorted({attempt.parent.name for attempt in (settings.installation / "node").glob("*/[0-9]*")}):
                for topic in sorted(topic for topic, hearer in HEARERS.items() if hearer == service):
                    await nudges.nudge(topic, job, "")
        except Unavailable:  # the hints are lost, which is allowed
            return
        finally:
            await nudges.close()

    # --- lines ----------------------------------------------------------------------------

    def _broken(self, fault: Fault) -> Undo:
        lines, faults = self._lines[fault.victim], self._breaking[fault.victim]
        with self._line_lock:
            faults.append(fault)
            if faults == [fault]:  # else another fault has broken the lines already
                for line in lines:
                    if fault.kind == "silent":
                        line.silence()
                    else:
                        line.cut()

        def undo() -> None:
            with self._line_lock:
                faults.remove(fault)
                if not faults:
                    for line in lines:
                        line.cut()  # old connections must not continue with bytes missing: TCP never does that
                        line.mend()

        return undo


def _resume(process: ProcessIdentity) -> None:
    send_signal(process, signal.SIGCONT)


@contextmanager
def small_volume(home: Path) -> Generator[None]:
    """Mounts a volume of limited size for the services' stores; learners' folders are not on it. Needs root."""
    home.mkdir(parents=True)
    learners = home.with_name("node")
    learners.mkdir()
    with mounted(["-t", "tmpfs", "-o", f"size={STORES_BYTES},mode=755", "weft-chaos"], home):
        (home / "node").mkdir()
        with mounted(["--bind", str(learners)], home / "node"):
            yield
