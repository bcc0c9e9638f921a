"""``python -m services.local.supervisor``: keeps the platform's processes running on one machine.

It starts etcd (empty: everything survives its loss) and the services, each in its own session. A service that ends is
started again on the same address; a service that hangs is killed first. The death of the supervisor ends no service:
the next supervisor adopts them by pid, start time and boot id. Learners are children of the node agent's shims, and the
supervisor never touches them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from services.core.adapters.etcd import launcher
from services.core.bootstrap.log import configure_logging
from services.core.domain.errors import NoSpace, Unavailable, WeftError
from services.core.runtime.address import TLS, Address
from services.core.runtime.durable_files import write_json, write_text
from services.core.runtime.garbage_collection import end_of_imports
from services.core.runtime.held_sockets import for_child, receive
from services.core.runtime.home import SOCKETS, Home
from services.core.runtime.liveness import wait_until_hung
from services.core.runtime.processes import (
    ProcessIdentity,
    alive,
    identify,
    read_live_process,
    send_signal,
    write_process_file,
)
from services.core.runtime.sockets import remove_unfinished
from services.local.backup.restore_marker import refuse_half_restored
from services.local.layout import (
    ETCD,
    FOR_USERS,
    PROGRAMS,
    SCRAPER,
    SUPERVISOR,
    Program,
    inner_addresses,
    listen_for_users,
    prepare,
    tls_variables,
    with_certificate,
)
from services.local.log_rotation import rotate_logs
from services.local.pods import LEARNERS, pods_address, serves_pods, variables_for
from services.local.settings import LocalSettings

_STEADY_S: Final = 5.0
"""A service that ran this long is restarted at once; one that ended sooner waits longer each time. Hangs are detected
only after it: a starting service may wait for its stores."""
_RETRY_S: Final = 0.5
"""Pause before a failed start is repeated."""
_FIRST_TRIES: Final = 3
"""Starts of etcd that fail before the start of the platform fails."""
_EARLY_HANG_S: Final = 20.0
"""A hang this soon after the start counts as early."""
_EARLY_HANGS: Final = 2
_EARLY_HANGS_MOST: Final = 7
"""After ``_EARLY_HANGS`` early hangs in a row the time limit doubles with each further one, at most to the 7th: a slow
machine must not be mistaken for a hung service for ever."""
_CERTIFICATES_CHECKED_S: Final = 12 * 3600.0
_NAMES: Final = tuple(program.name for program in (ETCD, *PROGRAMS))
log = structlog.get_logger()


@dataclass
class Running:
    """A program and its current process."""

    program: Program
    process: ProcessIdentity | None = None
    restarts: int = 0
    adopted: bool = False
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    last_exit: int | None = None
    early_hangs: int = 0
    """Processes in a row that were killed because they hung soon after their start."""


class Supervisor:
    def __init__(self, settings: LocalSettings, held: Mapping[str, socket.socket]) -> None:
        """``held``: the listening sockets of the api, by name of their address."""
        self._settings, self._held = settings, dict(held)
        self._home = with_certificate(settings.installation, SUPERVISOR, settings.tls_files)
        self._own_authority = settings.tls_files is None and uses_tls(self._home)
        self.stopping = asyncio.Event()
        self.running = [Running(program) for program in (ETCD, *PROGRAMS)]
        self._came_up = (self._home / "run" / "came-up").exists()
        """All programs have run here at the same time once. Until then a failed start ends the supervisor."""

    async def run(self) -> None:
        """Runs until SIGTERM or SIGINT, then stops all programs in order. Raises OSError if the first start fails."""
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, self.stopping.set)
        write_process_file(self._home / "run" / "supervisor.json", _self())
        tasks: list[asyncio.Task[None]] = []
        rotating = rotate_logs(
            self._home / "logs", most_bytes=self._settings.log_bytes, copies=self._settings.log_copies
        )
        loops = (self._record_came_up(), self._renew_certificates(), rotating)
        beside = [asyncio.create_task(loop) for loop in loops]
        try:
            # All start at the same time: each service waits for its own dependencies.
            tasks.extend(asyncio.create_task(self._supervise(running)) for running in self.running)
            stop = asyncio.create_task(self.stopping.wait())
            done, _ = await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stop}:
                await task  # raises the reason why a program cannot be started at all
        finally:
            self.stopping.set()
            for task in (*tasks, *beside):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stop_all()
            (self._home / "run" / "supervisor.json").unlink(missing_ok=True)
            (self._home / "run" / "state.json").unlink(missing_ok=True)

    async def _record_came_up(self) -> None:
        """Creates ``run/came-up`` once all programs have run for ``_STEADY_S`` without a restart."""
        steady_s, processes = 0.0, [running.process for running in self.running]
        while steady_s < _STEADY_S:
            await asyncio.sleep(_RETRY_S)
            current = [running.process for running in self.running]
            steady_s = steady_s + _RETRY_S if None not in current and current == processes else 0.0
            processes = current
        self._came_up = True
        with contextlib.suppress(OSError):
            (self._home / "run" / "came-up").touch()

    async def _renew_certificates(self) -> None:
        """Renews certificates in time, and restarts their services, one after the other, to show the new ones."""
        while self._own_authority:
            await asyncio.sleep(_CERTIFICATES_CHECKED_S)
            try:
                renewed = await asyncio.to_thread(make_certificates, self._home)
            except (OSError, WeftError) as error:
                log.warning("certificates.not_renewed", why=str(error))
                continue
            for running in self.running:
                # etcd reads its files at each handshake.
                if running.program.name in renewed and running.program is not ETCD and running.process is not None:
                    log.info("certificate.renewed", service=running.program.name)
                    send_signal(running.process, signal.SIGTERM)
                    await _wait_ended(running.process)

    async def _supervise(self, running: Running) -> None:
        """Adopts or starts the program, and restarts it whenever it ends, until the supervisor stops."""
        delay_s, failures = self._settings.restart_delay_s, 0
        running.process, running.adopted = read_live_process(self._process_file(running)), True
        while True:
            if running.process is None:
                try:
                    # In a thread: a program that hangs must not stop the supervision of the others.
                    etcd = await asyncio.to_thread(launcher.usable_etcd) if running.program is ETCD else None
                    self._start(running, etcd)
                except (OSError, WeftError) as error:
                    failures += 1
                    if self._is_final(running, error, failures):
                        raise
                    # A full disk or an etcd that does not start must not end what still runs: the start is repeated.
                    log.warning("service.start_failed", service=running.program.name, why=str(error))
                    await asyncio.sleep(_RETRY_S)
                    continue
            self._publish()
            started_at = asyncio.get_running_loop().time()
            if running.process is not None:
                watch = asyncio.create_task(self._kill_if_hung(running, running.process))
                try:
                    await _wait_ended(running.process)
                finally:
                    watch.cancel()
            running.process = None
            running.last_exit = running.child.wait() if running.child is not None else None
            if self.stopping.is_set():
                return
            running.restarts += 1
            if asyncio.get_running_loop().time() - started_at > _STEADY_S:
                delay_s = self._settings.restart_delay_s
            log.warning("service.ended", service=running.program.name, exit=running.last_exit, restart_in_s=delay_s)
            self._publish()
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, self._settings.restart_delay_max_s)

    def _is_final(self, running: Running, error: OSError | WeftError, failures: int) -> bool:
        """Whether a failed start ends the supervisor, which reports the error: only while there is nothing to end."""
        if not isinstance(error, Unavailable):
            return not self._came_up
        some_adopted = any(other.adopted and other.process is not None for other in self.running)
        return not running.restarts and not some_adopted and failures >= _FIRST_TRIES

    async def _kill_if_hung(self, running: Running, process: ProcessIdentity) -> None:
        """Kills a process that lives but does nothing: it holds the address and the lease of its successor."""
        limit_s = self._settings.silence_s * 2 ** max(0, running.early_hangs - _EARLY_HANGS)
        if not limit_s:
            return
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        await asyncio.sleep(_STEADY_S)
        await wait_until_hung(process, after_s=limit_s, every_thread=running.program is ETCD)
        early = loop.time() - started_at < limit_s + _EARLY_HANG_S
        running.early_hangs = min(running.early_hangs + 1, _EARLY_HANGS_MOST) if early else 1
        log.warning("service.killed", service=running.program.name, why=f"it has done nothing for {limit_s:g} s")
        send_signal(process, signal.SIGKILL)

    def _start(self, running: Running, etcd: launcher.Etcd | None) -> None:
        program = running.program
        log_file = self._home / "logs" / f"{program.name}.log"
        running.child = self._start_etcd(log_file, etcd) if program is ETCD else self._spawn(program, log_file)
        running.process, running.adopted = identify(running.child.pid), False
        try:
            if running.process is not None:
                write_process_file(self._process_file(running), running.process)
        except (OSError, NoSpace):
            # Without the file the next supervisor would start a second one.
            running.child.kill()
            running.child.wait()
            running.process = None
            raise
        log.info("service.started", service=program.name, pid=running.child.pid)

    def _spawn(self, program: Program, log_file: Path) -> subprocess.Popen[bytes]:
        variables: dict[str, str] = {}
        if self._own_authority:
            variables = tls_variables(self._home, program.name)
        variables |= variables_for(program.name, self._home, self._settings)
        descriptors: tuple[int, ...] = ()
        if program.name == "api":
            self._held = self._held or _listen(self._settings)
            inherited, descriptors = for_child(self._held)
            variables |= inherited
        with log_file.open("ab") as output:
            return subprocess.Popen(
                program.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "WEFT_HOME": str(self._home.root), **variables},
                pass_fds=descriptors,
            )

    def _start_etcd(self, log_file: Path, etcd: launcher.Etcd | None) -> subprocess.Popen[bytes]:
        home = with_certificate(self._home, ETCD.name, self._settings.tls_files)
        client, peer = (home.address(name) for name in ETCD.listens)
        return launcher.start_etcd(self._home / "etcd", client, peer, log_file, program=etcd)

    def _process_file(self, running: Running) -> Path:
        return self._home / "run" / f"{running.program.name}.json"

    def _publish(self) -> None:
        """Writes ``run/state.json``, which `weft status` reads."""
        services = [
            {
                "name": running.program.name,
                "pid": running.process.pid if running.process else None,
                "restarts": running.restarts,
                "adopted": running.adopted,
                "last_exit": running.last_exit,
            }
            for running in self.running
        ]
        try:
            write_json(self._home / "run" / "state.json", {"services": services}, durable=False)
        except (OSError, NoSpace) as error:
            if not self._came_up:
                raise
            log.warning("state.not_published", why=str(error))

    async def _stop_all(self) -> None:
        """Stops clients before their servers. No server waits for the broker's worker, which ends with the last one."""
        workers: list[tuple[Running, asyncio.Task[None]]] = []
        for rank in sorted({running.program.stop_rank for running in self.running}):
            at_once = [running for running in self.running if running.program.stop_rank == rank]
            stops = [(running, asyncio.create_task(self._stop(running))) for running in at_once]
            workers += [(running, stop) for running, stop in stops if not running.program.essential]
            await asyncio.gather(*(stop for running, stop in stops if running.program.essential))
        for running, _ in workers:
            if running.process is not None:  # its hints have no receiver any more
                send_signal(running.process, signal.SIGKILL)
        await asyncio.gather(*(stop for _, stop in workers))

    async def _stop(self, running: Running) -> None:
        """Stops a program. One that does not drain within ``drain_s`` is killed."""
        process = running.process
        if process is None or not send_signal(process, signal.SIGTERM):
            return
        try:
            async with asyncio.timeout(self._settings.drain_s):
                await _wait_ended(process)
        except TimeoutError:
            log.warning("service.killed", service=running.program.name, why="it did not stop in time")
            send_signal(process, signal.SIGKILL)
            await _wait_ended(process)
        if running.child is not None:
            running.child.wait()
        self._process_file(running).unlink(missing_ok=True)


def _self() -> ProcessIdentity:
    identity = identify(os.getpid())
    if identity is None:
        raise WeftError("/proc is not readable: Weft needs Linux with /proc mounted")
    return identity


async def _wait_ended(process: ProcessIdentity) -> None:
    """Returns when the process has ended, whether it is our child or was adopted."""
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


def _listen(settings: LocalSettings) -> dict[str, socket.socket]:
    """Listens at the addresses for users, at the previous ports if they are free, and records the addresses.

    Raises WeftError if a requested port is taken.
    """
    home = settings.installation
    held = listen_for_users(
        home,
        host=settings.host,
        port=settings.port,
        grpc_host=settings.api_grpc_host,
        grpc_port=settings.api_grpc_port,
    )
    addresses = home.addresses()
    for name, listener in held.items():
        host, port = listener.getsockname()[:2]
        addresses[name] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    write_text(home.addresses_file, json.dumps(addresses))
    return held


def _prepare_addresses(settings: LocalSettings) -> dict[str, socket.socket]:
    """Chooses the addresses, or keeps those of the processes that are adopted. Returns the api's listening sockets."""
    home = settings.installation
    alive = [name for name in _NAMES if read_live_process(home / "run" / f"{name}.json")]
    if not alive:
        remove_unfinished(home / SOCKETS)
        operations = settings.operations_transport or settings.transport
        inner = inner_addresses(home, settings.transport, operations)
        users = {name: address for name, address in _recorded(home).items() if name in FOR_USERS}
        pods = {LEARNERS: pods_address(settings)} if serves_pods(settings) else {}
        write_text(home.addresses_file, json.dumps(users | inner | pods))
    if serves_pods(settings) and LEARNERS not in home.addresses():
        stop = home.command("down")
        raise WeftError(f"services of this platform still run for another cluster; stop them with `{stop}` first")
    if uses_tls(home) and settings.tls_files is None:
        make_certificates(home)
    # An api that runs but hangs hands over nothing, and keeps its ports: the supervisor listens after its end.
    return receive(home / SOCKETS) if "api" in alive else _listen(settings)


def uses_tls(home: Home) -> bool:
    """Whether inner servers listen with TLS, by the recorded addresses."""
    return any(address.startswith(TLS) for address in _recorded(home).values())


def make_certificates(home: Home) -> list[str]:
    """Makes what is missing or old. Returns the services with a new certificate. Raises WeftError, NoSpace."""
    from services.core.adapters.certificates import issue  # noqa: PLC0415 - only where TLS is used

    names, hosts = [*_NAMES, SUPERVISOR, SCRAPER], {}
    if (for_pods := _recorded(home).get(LEARNERS)) is not None:
        names.append(LEARNERS)
        hosts[LEARNERS] = Address(for_pods).host_port[0]
    return issue(home / "tls", names, datetime.now(UTC), hosts=hosts)


def _recorded(home: Home) -> dict[str, str]:
    try:
        return home.addresses()
    except (Unavailable, ValueError):
        return {}


def main() -> int:
    """Runs the supervisor; returns the exit code of the process."""
    os.chdir("/")
    end_of_imports()
    configure_logging("supervisor", "info")  # the settings, which have the level, may be wrong
    where = "the settings"
    try:
        settings = LocalSettings()
        configure_logging("supervisor", settings.log_level)
        home = settings.installation
        where = str(home.root)
        prepare(home)
        lock = (home / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WeftError(f"another supervisor runs in {home.root}") from None
        refuse_half_restored(home)
        asyncio.run(Supervisor(settings, _prepare_addresses(settings)).run())
    except WeftError as error:
        log.error("supervisor.start_refused", why=str(error))  # noqa: TRY400 - no trace for people
        return 1
    except OSError as error:
        log.error("supervisor.start_refused", why=f"{error.filename or where}: {error.strerror}")  # noqa: TRY400 - as above
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
