"""How each kind of fault is done to a real platform, and undone where it lasts.

Processes are found as an operator would find them, by the platform's own notes and the process table, and are ended by
their own pid. Who is not there when his fault comes (nobody has started him again yet) cannot be hit: that is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from services.core.adapters.rpc.hints import SERVICES as HEARERS
from services.core.adapters.rpc.hints import Nudges
from services.core.bootstrap.wiring import service_secret
from services.core.domain.errors import Unavailable, WeftError
from services.core.runtime.processes import ProcessIdentity, read_live_process, send_signal, wait_gone
from services.core.runtime.settings import Settings
from tests.chaos.schedule import SERVICES, Fault
from tests.chaos.table import Seen, look
from tests.testbed.clock_jumps import Clocks
from tests.testbed.platform import Platform
from tests.testbed.second import Second
from tests.testbed.toxiproxy import Line
from tests.waiting import HANG_S

STORES_BYTES: Final = 400 * 2**20
HOUR_S: Final = 3600
Undo = Callable[[], None]


class Faults:
    """``begin`` a fault; what it gives back ends it. ``spared``: jobs whose learners are not to be touched."""

    def __init__(
        self,
        platform: Platform,
        *,
        clocks: Clocks | None = None,
        seconds: Mapping[str, Second] | None = None,
        lines: Mapping[str, Sequence[Line]] | None = None,
    ) -> None:
        self.spared: frozenset[str] = frozenset()
        self.counts: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.struck: Counter[str] = Counter()
        """Job -> how many of its learners were killed (or lost their parent): its owner must expect new attempts."""
        self.down = False
        """The supervisor could not be started just now; `up` tries again."""
        self._platform, self._clocks, self._starting = platform, clocks, threading.Lock()
        self._seconds, self._lines = seconds or {}, lines or {}
        self._breaking: defaultdict[str, list[Fault]] = defaultdict(list)
        self._lining = threading.Lock()
        self._doing: Mapping[str, Callable[[Fault], Undo | None]] = {
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
            undo = self._doing[fault.kind](fault)
        except LookupError:
            self.missed[f"{fault.kind} {fault.victim}"] += 1
            return None
        self.counts[f"{fault.kind} {fault.victim}"] += 1
        return undo

    # --- kills ------------------------------------------------------------------------

    def _noted(self, service: str) -> ProcessIdentity:
        """LookupError where it does not run now."""
        found = read_live_process(self._platform.home / "run" / f"{service}.json")
        if found is None:
            raise LookupError(service)
        return found

    def _kill(self, fault: Fault) -> None:
        send_signal(self._noted(fault.victim), signal.SIGKILL)

    def _kill_one(self, fault: Fault) -> None:
        self._end(self._one_of(fault))

    def _kill_all(self, fault: Fault) -> None:
        """At one moment, as near as can be. The supervisor, too: it is started as the operator would do it."""
        hit = [found for name in ("supervisor", *SERVICES) if (found := self._running(name)) is not None]
        if fault.victim == "services and helpers":
            hit += [one.process for one in look(self._platform.home.root) if one.part == "helper"]
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
        return lambda: _go_on(process)

    def _running(self, service: str) -> ProcessIdentity | None:
        with contextlib.suppress(LookupError):
            return self._noted(service)
        return None

    def _supervisor_away(self, _: Fault) -> Undo:
        supervisor = self._noted("supervisor")
        send_signal(supervisor, signal.SIGKILL)
        wait_gone(supervisor, HANG_S)
        return self.up

    def up(self) -> None:
        """As an operator who tries again: a disk may be full now, or a peer stopped for a while."""
        with self._starting:
            self.down = False
            try:
                self._platform.up()
            except WeftError:
                self.down = True

    # --- silence ------------------------------------------------------------------------

    def _stop(self, fault: Fault) -> Undo:
        process = self._noted(fault.victim)
        send_signal(process, signal.SIGSTOP)
        return lambda: _go_on(process)

    def _stop_one(self, fault: Fault) -> Undo:
        process = self._one_of(fault).process
        send_signal(process, signal.SIGSTOP)
        return lambda: _go_on(process)

    # --- of one learner -------------------------------------------------------------------

    def _one_of(self, fault: Fault) -> Seen:
        part = fault.victim.removesuffix("s")
        there = [one for one in look(self._platform.home.root) if one.part == part]
        if part == "learner":
            there = [one for one in there if one.leads]
        if part != "helper":
            there = [one for one in there if one.place.job not in self.spared]
        if not there:
            raise LookupError(fault.victim)
        there.sort(key=lambda one: (one.place, one.process.pid))
        return there[int(fault.share * len(there))]

    def _end(self, one: Seen) -> None:
        if one.part != "helper":
            self.struck[one.place.job] += 1
        send_signal(one.process, signal.SIGKILL)

    # --- stores, clocks, hints ------------------------------------------------------------

    def _disk_full(self, _: Fault) -> Undo:
        """Whatever the services keep is on a volume that has no room left. Learners' folders are on another."""
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
        """Each job that has run here is hinted at again, by every topic that the service hears."""
        self._noted(fault.victim)
        asyncio.run(self._hint_again(fault.victim))

    async def _hint_again(self, service: str) -> None:
        settings = Settings(home=self._platform.home.root)
        nudges = Nudges(settings.installation.address, await service_secret(settings))
        try:
            for job in sorted({attempt.parent.name for attempt in (settings.installation / "node").glob("*/[0-9]*")}):
                for topic in sorted(topic for topic, hearer in HEARERS.items() if hearer == service):
                    await nudges.nudge(topic, job, "")
        except Unavailable:  # it is as if they had been lost on the way
            return
        finally:
            await nudges.close()

    # --- lines ----------------------------------------------------------------------------

    def _broken(self, fault: Fault) -> Undo:
        lines, faults = self._lines[fault.victim], self._breaking[fault.victim]
        with self._lining:
            faults.append(fault)
            if faults == [fault]:  # else they are broken already, and stay so for longer
                for line in lines:
                    if fault.kind == "silent":
                        line.silence()
                    else:
                        line.cut()

        def undo() -> None:
            with self._lining:
                faults.remove(fault)
                if not faults:
                    for line in lines:
                        line.cut()  # or connections of before would go on with bytes missing, as none does
                        line.mend()

        return undo


def _go_on(process: ProcessIdentity) -> None:
    send_signal(process, signal.SIGCONT)


@contextmanager
def small_volume(home: Path) -> Generator[None]:
    """A volume of its own for what the services keep, of limited size; learners' folders are not on it. Needs root."""
    home.mkdir(parents=True)
    learners = home.with_name("node")
    learners.mkdir()
    with _mounted(["-t", "tmpfs", "-o", f"size={STORES_BYTES},mode=755", "weft-chaos"], home):
        (home / "node").mkdir()
        with _mounted(["--bind", str(learners)], home / "node"):
            yield


@contextmanager
def _mounted(words: list[str], at: Path) -> Generator[None]:
    subprocess.run(["mount", *words, str(at)], check=True)
    try:
        yield
    finally:
        deadline = time.monotonic() + HANG_S
        while subprocess.run(["umount", str(at)], check=False, capture_output=True).returncode:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{at} is still in use")
            time.sleep(0.1)
