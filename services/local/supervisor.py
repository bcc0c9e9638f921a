"""``python -m services.local.supervisor``: keeps the platform's processes running on one machine.

It starts etcd (empty: everything survives its loss) and the services, each in a session of its own, and starts
again whatever ends, on the same address; what lives but does nothing any more is ended first. Its own death ends
nobody: the next supervisor adopts by pid, start time and boot id.
Learners are not its business at all; they belong to the node agent's shims.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from services.core.adapters.etcd import launcher
from services.core.bootstrap.service import configure_logging
from services.core.domain.errors import NoSpace, WeftError
from services.core.runtime.liveness import wait_until_hung
from services.core.runtime.processes import (
    ProcessIdentity,
    alive,
    identify,
    read_live_process,
    send_signal,
    write_process_file,
)
from services.local.backup.restore_marker import refuse_half_restored
from services.local.layout import ETCD, PROGRAMS, Program, choose_addresses, prepare, write_json
from services.local.settings import LocalSettings

_STEADY_S: Final = 5.0
"""A service that ran so long starts again at once; one that dies sooner waits longer each time. Its silence is not
judged before: it may wait for what it tries out at its start."""
_AGAIN_S: Final = 0.5
"""Between two tries to start what could not be started."""
_QUICK_S: Final = 20.0
_SILENCES: Final = 2
_SILENCES_MOST: Final = 7
"""So many times a service is ended that was silent soon after its start; from then on the patience with it doubles."""
log = structlog.get_logger()


@dataclass
class Running:
    """One program and the process it runs in now."""

    program: Program
    process: ProcessIdentity | None = None
    restarts: int = 0
    adopted: bool = False
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    last_exit: int | None = None
    silences: int = 0
    """How many lives in a row were ended soon after their start, for silence."""


class Supervisor:
    def __init__(self, settings: LocalSettings) -> None:
        self._settings, self._home = settings, settings.installation
        self.stopping = asyncio.Event()
        self.running = [Running(program) for program in (ETCD, *PROGRAMS)]
        self._came_up = (self._home / "run" / "came-up").exists()
        """All of it has run here at one time: before that, whatever goes wrong is the end, with its reason."""

    async def run(self) -> None:
        """Until told to stop; then stops everything it keeps, in order."""
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, self.stopping.set)
        write_process_file(self._home / "run" / "supervisor.json", _self())
        keepers: list[asyncio.Task[None]] = []
        coming_up = asyncio.create_task(self._come_up())
        try:
            # All at once: each waits for what it needs.
            keepers.extend(asyncio.create_task(self._keep(one)) for one in self.running)
            stop = asyncio.create_task(self.stopping.wait())
            done, _ = await asyncio.wait({stop, *keepers}, return_when=asyncio.FIRST_COMPLETED)
            for keeper in done - {stop}:
                await keeper  # a program that cannot be started at all ends the platform, with its reason
        finally:
            self.stopping.set()
            for keeper in (*keepers, coming_up):
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            await self._stop_all()
            (self._home / "run" / "supervisor.json").unlink(missing_ok=True)
            (self._home / "run" / "state.json").unlink(missing_ok=True)

    async def _come_up(self) -> None:
        """Notes that all of it runs, once none of it is so young any more that it may be about to give up."""
        since, processes = 0.0, [one.process for one in self.running]
        while since < _STEADY_S:
            await asyncio.sleep(_AGAIN_S)
            now = [one.process for one in self.running]
            since = since + _AGAIN_S if None not in now and now == processes else 0.0
            processes = now
        self._came_up = True
        with contextlib.suppress(OSError):
            (self._home / "run" / "came-up").touch()

    async def _keep(self, one: Running) -> None:
        delay = self._settings.restart_delay_s
        one.process, one.adopted = read_live_process(self._note(one)), True
        while True:
            if one.process is None:
                try:
                    self._start(one)
                except (OSError, NoSpace) as error:
                    if not self._came_up:
                        raise
                    # A disk that is full now is no reason to end what still runs; it is tried again.
                    log.warning("service.not_started", service=one.program.name, why=str(error))
                    await asyncio.sleep(_AGAIN_S)
                    continue
            self._publish()
            began = asyncio.get_running_loop().time()
            if one.process is not None:
                watch = asyncio.create_task(self._end_silent(one, one.process))
                try:
                    await _ended(one.process)
                finally:
                    watch.cancel()
            one.process = None
            one.last_exit = one.child.wait() if one.child is not None else None
            if self.stopping.is_set():
                return
            one.restarts += 1
            if asyncio.get_running_loop().time() - began > _STEADY_S:
                delay = self._settings.restart_delay_s
            log.warning("service.ended", service=one.program.name, exit=one.last_exit, again_in_s=delay)
            self._publish()
            await asyncio.sleep(delay)
            delay = min(delay * 2, self._settings.restart_delay_max_s)

    async def _end_silent(self, one: Running, process: ProcessIdentity) -> None:
        """One that lives and does nothing is as good as dead, and holds what its successor needs."""
        patience = self._settings.silence_s * 2 ** max(0, one.silences - _SILENCES)
        if not patience:
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(_STEADY_S)
        await wait_until_hung(process, after_s=patience, every_thread=one.program is ETCD)
        # Should it be a slow machine after all, it is given ever more time instead of being ended again and again.
        one.silences = min(one.silences + 1, _SILENCES_MOST) if loop.time() - began < patience + _QUICK_S else 1
        log.warning("service.killed", service=one.program.name, why=f"it has done nothing for {patience:g} s")
        send_signal(process, signal.SIGKILL)

    def _start(self, one: Running) -> None:
        program = one.program
        log_file = self._home / "logs" / f"{program.name}.log"
        one.child = self._start_etcd(log_file) if program is ETCD else self._spawn(program, log_file)
        one.process, one.adopted = identify(one.child.pid), False
        try:
            if one.process is not None:
                write_process_file(self._note(one), one.process)
        except (OSError, NoSpace):
            # Whoever comes after us would not know of it, and start another.
            one.child.kill()
            one.child.wait()
            one.process = None
            raise
        log.info("service.started", service=program.name, pid=one.child.pid)

    def _spawn(self, program: Program, log_file: Path) -> subprocess.Popen[bytes]:
        with log_file.open("ab") as output:
            return subprocess.Popen(
                program.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "WEFT_HOME": str(self._home.root)},
            )

    def _start_etcd(self, log_file: Path) -> subprocess.Popen[bytes]:
        client, peer = (int(self._home.address(name).rpartition(":")[2]) for name in ETCD.listens)
        return launcher.start_etcd(self._home / "etcd", client, peer, log_file)

    def _note(self, one: Running) -> Path:
        return self._home / "run" / f"{one.program.name}.json"

    def _publish(self) -> None:
        """For `weft status`."""
        services = [
            {
                "name": one.program.name,
                "pid": one.process.pid if one.process else None,
                "restarts": one.restarts,
                "adopted": one.adopted,
                "last_exit": one.last_exit,
            }
            for one in self.running
        ]
        try:
            write_json(self._home / "run" / "state.json", {"services": services})
        except OSError as error:
            if not self._came_up:
                raise
            log.warning("state.not_published", why=str(error))

    async def _stop_all(self) -> None:
        """Whoever asks stops before who is asked; one that does not drain in time is killed."""
        for one in reversed(self.running):
            process = one.process
            if process is None or not send_signal(process, signal.SIGTERM):
                continue
            try:
                async with asyncio.timeout(self._settings.drain_s):
                    await _ended(process)
            except TimeoutError:
                log.warning("service.killed", service=one.program.name, why="it did not stop in time")
                send_signal(process, signal.SIGKILL)
                await _ended(process)
            if one.child is not None:
                one.child.wait()
            self._note(one).unlink(missing_ok=True)


def _self() -> ProcessIdentity:
    me = identify(os.getpid())
    if me is None:
        raise WeftError("/proc is not readable: Weft needs Linux with /proc mounted")
    return me


async def _ended(process: ProcessIdentity) -> None:
    """Returns when the process is gone, child of ours or not."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if not alive(process):
            return
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(handle, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(handle)
    finally:
        os.close(handle)


def main() -> int:
    """The exit code."""
    os.chdir("/")
    settings = LocalSettings()
    configure_logging("supervisor", settings.log_level)
    home = settings.installation
    try:
        prepare(home)
        lock = (home / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WeftError(f"another supervisor runs in {home.root}") from None
        refuse_half_restored(home)
        if not any(read_live_process(home / "run" / f"{program.name}.json") for program in (ETCD, *PROGRAMS)):
            addresses = choose_addresses(
                home, host=settings.host, port=settings.port,
                grpc_host=settings.api_grpc_host, grpc_port=settings.api_grpc_port,
            )  # fmt: skip
            write_json(home.addresses_file, addresses)
        asyncio.run(Supervisor(settings).run())
    except WeftError as error:
        log.error("supervisor.cannot_run", why=str(error))  # noqa: TRY400 - no trace for people
        return 1
    except OSError as error:
        log.error("supervisor.cannot_run", why=f"{error.filename or home.root}: {error.strerror}")  # noqa: TRY400 - as above
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
