"""The platform on this machine, for the command line: `weft up`, `down`, `status`, `doctor`, offline spec checks.

The CLI finds ``PLATFORM`` by its entry point and receives plain dictionaries. Nothing here prints: progress goes to the
``report`` callback, and a failure is raised as WeftError whose message says what to do.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from services.core.domain.errors import InvalidRequest, Unavailable, WeftError
from services.core.domain.status import ADMITTED, RESTING, Status
from services.core.runtime.address import TlsFiles
from services.core.runtime.home import AGENT, GROUPS_FILE, Home, default_home
from services.core.runtime.learner_folder import SHIM_FILE
from services.core.runtime.processes import (
    ProcessIdentity,
    alive,
    identify,
    platform_environment,
    read_live_process,
    send_signal,
    wait_gone,
)
from services.local.api_reader import admin_key, key_or_empty
from services.local.backup.commands import Backups, read_settings, settings_of_running_platform
from services.local.backup.restore_marker import refuse_half_restored
from services.local.layout import PROGRAMS, SUPERVISOR, is_free, prepare, with_certificate
from services.local.pods import image, settings_of_cluster
from services.local.running import admission_held, count_jobs, holds_nothing, not_ready, status, supervisor_of
from services.local.unknown_settings import COMMAND_LINE, is_setting, unknown_settings

UP_TIMEOUT_S: Final = 180.0
"""Longest wait for a start. Services that fail end it at once: only a machine that is busy with other work needs it."""
START_FAILURES_MOST: Final = 4
"""`weft up` gives up when a service has ended this often before it was ready for the first time."""
_POLL_S: Final = 0.03
Report = Callable[[str], None]


def _home(home: str | None) -> Home:
    place = Home(Path(home).absolute()) if home else Home(default_home())
    return with_certificate(place, SUPERVISOR, TlsFiles.given())


def _needed_key(home: Home) -> str:
    """The key that the api creates at its first start. Raises WeftError if there is none yet."""
    key = admin_key(home)
    if not key:
        raise WeftError(f"the api has not made its admin key in {home.root}; see {home / 'logs' / 'api.log'}")
    return key


def _answer(home: Home, addresses: Mapping[str, str]) -> dict[str, Any]:
    return {
        "url": f"http://{addresses['api']}",
        "key": _needed_key(home),
        "home": str(home.root),
    }


class Platform(Backups):
    """The one object behind the entry point ``weft.platform:local``."""

    error: Final = WeftError
    """The root of the errors that the methods raise."""

    def up(
        self,
        home: str | None = None,
        *,
        gpus: int | None = None,
        port: int | None = None,
        cluster: Mapping[str, str] | None = None,
        report: Report = print,
    ) -> dict[str, Any]:
        """Starts the platform, and waits until it is ready.

        Returns ``{url, key, home, started, queued_again, ignored, unknown, probe}``.

        ``cluster``: where learners run, if not on this machine: ``{kind: kubernetes, kubeconfig, context, advertise,
        registry}``. ``started`` is False if it ran already. ``queued_again``: the ids of jobs that ``down`` had halted.
        ``ignored``: the settings that would need a restart of a platform that ran already. ``unknown``: see
        ``unknown_settings``. ``probe``: what a pod of the cluster found, ``[{name, problem, fix}]``; empty without
        Kubernetes. Raises WeftError if it does not become ready; what was started is stopped then.
        """
        place = _home(home)
        prepare(place)
        refuse_half_restored(place)
        if supervisor_of(place) is not None:
            report(f"Weft already runs in {place.root}")
            self._wait_ready(place, report)
            options = {"WEFT_NODE_GPUS": gpus, "WEFT_PORT": port or None, **settings_of_cluster(cluster or {})}
            ignored = changed_settings(place, options)
            return {**self._came_up(place, report, started=False), "ignored": ignored}
        if port and not is_free("127.0.0.1", port):
            another = place.command("up --port N")
            raise WeftError(f"port {port} is taken; give another with `{another}`, or leave --port out")
        environment = {**platform_environment(), "WEFT_HOME": str(place.root), "PYTHONSAFEPATH": "1"}
        if gpus is not None:
            environment["WEFT_NODE_GPUS"] = str(gpus)
        if port:
            environment["WEFT_PORT"] = str(port)
        environment |= settings_of_cluster(cluster or {})
        report(f"starting Weft in {place.root}")
        log = place / "logs" / "supervisor.log"
        begin = log.stat().st_size if log.exists() else 0
        process = _detached([sys.executable, "-P", "-m", "services.local.supervisor"], environment, log)
        try:
            self._wait_ready(place, report, process=process, log_from=begin)
        except (WeftError, KeyboardInterrupt):
            if supervisor_of(place) not in {None, process}:  # another `weft up` won the race for the lock
                self._wait_ready(place, report)
                return self._came_up(place, report, started=False)
            self._stop_services(place)  # learners that ran before keep running until the next start
            raise
        return self._came_up(place, report, started=True)

    @staticmethod
    def _came_up(home: Home, report: Report, *, started: bool) -> dict[str, Any]:
        """Queues the jobs again that ``down`` had halted. Returns the answer of ``up``."""
        import asyncio

        from services.local.job_drain import queue_again
        from services.local.used_stores import changed_stores, save_stores

        with settings_of_running_platform(home) as settings:
            for name, (last, now) in changed_stores(settings).items():
                report(f"warning: {name} is {now}, and was {last} until now; set it again to see what is stored there")
            save_stores(settings)
            again = asyncio.run(queue_again(settings, report))
            checks: list[dict[str, Any]] = []
            if settings.cluster == "kubernetes":
                from services.local.probe import probe

                checks = asyncio.run(probe(home, settings, report))
        if again:
            report(f"{_jobs(len(again))} that `weft down` had halted: queued again")
        answer = _answer(home, home.addresses())
        more = {"queued_again": list(again), "ignored": [], "unknown": unknown_settings(), "probe": checks}
        return {**answer, "started": started, **more}

    def _wait_ready(
        self, home: Home, report: Report, *, process: ProcessIdentity | None = None, log_from: int = 0
    ) -> None:
        deadline = time.monotonic() + UP_TIMEOUT_S
        waiting = {program.name for program in PROGRAMS if program.essential}
        why: dict[str, str] = {}
        while waiting:
            if process is not None and not alive(process):
                raise WeftError(_last_reason(home / "logs" / "supervisor.log", log_from))
            if time.monotonic() > deadline:
                slow = ", ".join(f"{name} ({why.get(name, 'does not answer')})" for name in sorted(waiting))
                raise WeftError(f"not ready after {UP_TIMEOUT_S:.0f} s: {slow}; see {home / 'logs'}")
            if supervisor_of(home) is not None:
                self._check_start_failures(home, waiting)
                key = key_or_empty(home)  # the api makes it while it starts
                for name in sorted(waiting):
                    why[name] = not_ready(home, name, key)
                for name in sorted(name for name in waiting if not why[name]):
                    waiting.discard(name)
                    report(f"{name} is ready")
            time.sleep(_POLL_S)  # the services have no channel to notify this process

    @staticmethod
    def _check_start_failures(home: Home, waiting: set[str]) -> None:
        """Raises WeftError for a service that has ended ``START_FAILURES_MOST`` times before it was ever ready."""
        try:
            services = json.loads((home / "run" / "state.json").read_text())["services"]
        except (OSError, ValueError):
            return
        for service in services:
            if service["name"] in waiting and service["restarts"] >= START_FAILURES_MOST:
                log = home / "logs" / f"{service['name']}.log"
                raise WeftError(f"{service['name']} cannot run: {_last_reason(log, 0)}")

    def down_losses(self, home: str | None = None, *, purge: bool = False, now: bool = False) -> list[str]:
        """Returns a line for each thing that ``down`` would interrupt or remove; none: nothing is lost."""
        place = _home(home)
        is_supervised = supervisor_of(place) is not None
        running = count_jobs(place, ADMITTED) if is_supervised else _jobs_left(place)
        losses: list[str] = []
        if running and (now or purge or not is_supervised):  # without services none is halted
            jobs = "1 job runs" if running == 1 else f"{running} jobs run"
            losses.append(f"{jobs}; what {'it has' if running == 1 else 'they have'} not stored yet is lost")
        elif running:
            jobs = "1 job runs and is" if running == 1 else f"{running} jobs run and are"
            again = f"`{place.command('up')}` queues {'it' if running == 1 else 'them'} again"
            losses.append(f"{jobs} halted, with checkpoints; {again}")
        elif running is None and now:
            losses.append(
                "the api does not answer, so it is unknown whether jobs run; what they have not stored yet is lost"
            )
        if purge and (place / "VERSION").exists():
            losses.append(f"{place.root}: every job, result, checkpoint and key")
        return losses

    def down(
        self,
        home: str | None = None,
        *,
        purge: bool = False,
        now: bool = False,
        keep_jobs: bool = False,
        report: Report = print,
    ) -> dict[str, Any]:
        """Stops every process. Running jobs are halted first, and the next ``up`` queues them again.

        ``now``: learners are killed instead, and continue from their stored checkpoints after the next start.
        ``keep_jobs``: learners run on; the next start takes them up. ``purge`` removes the folder, and every job with
        it. Returns ``{home, was_running, purged, unfinished, halted}``; ``purged``: there was a folder, and it is
        removed; ``unfinished`` is the number of jobs that
        continue after the next start, None if the api did not answer; ``halted`` has the ids of the halted jobs.
        """
        place = _home(home)
        was_running = supervisor_of(place)
        unfinished = count_jobs(place, set(Status) - RESTING) if was_running is not None else None
        halted: Sequence[str] = ()
        if was_running is not None and not (now or purge or keep_jobs):
            halted = self._halt_jobs(place, report)
        if was_running is not None:
            report("stopping the services")
        self._stop_services(place)
        if not keep_jobs and _learners_left(place):
            from services.local.learners import end_all

            end_all(place)
        purged = purge and place.root.exists()
        if purged:
            if not (place / "VERSION").exists():
                raise InvalidRequest(f"{place.root} is not a Weft folder (it has no VERSION file); nothing was removed")
            report(f"removing {place.root}")
            from services.local.learner_folders import purge as remove_installation

            remove_installation(place)
        return {
            "home": str(place.root),
            "was_running": was_running is not None,
            "purged": purged,
            "unfinished": unfinished,
            "halted": list(halted),
        }

    @staticmethod
    def _halt_jobs(home: Home, report: Report) -> Sequence[str]:
        """Halts the running jobs. Reports what could not be halted: the platform stops all the same."""
        try:
            with admission_held(home):
                if holds_nothing(home):
                    return ()
                import asyncio

                from services.local.job_drain import halt_jobs

                with settings_of_running_platform(home) as settings:
                    halted, left = asyncio.run(halt_jobs(settings, report))
        except WeftError as error:
            report(f"the jobs could not be halted, and are ended at once: {error.message}")
            return ()
        except KeyboardInterrupt:
            report(f"the platform still runs; `{home.command('up')}` queues the jobs again that are halted")
            raise
        if left:
            report(f"{_jobs(len(left))} did not end in time, and are ended at once: {', '.join(left[:5])}")
        return halted

    @staticmethod
    def _stop_services(home: Home) -> None:
        supervisor = supervisor_of(home)
        if supervisor is not None:
            send_signal(supervisor, signal.SIGTERM)
            if not wait_gone(supervisor, 60):
                raise WeftError(f"the supervisor (pid {supervisor.pid}) does not stop; see {home / 'logs'}")
        for name in ("etcd", *(program.name for program in PROGRAMS)):
            # Services of a supervisor that was killed: no other process will stop them.
            orphan = read_live_process(home / "run" / f"{name}.json")
            if orphan is not None and send_signal(orphan, signal.SIGTERM) and not wait_gone(orphan, 10):
                send_signal(orphan, signal.SIGKILL)

    def status(self, home: str | None = None) -> dict[str, Any]:
        """``{running, home, url, grpc, isolation, caches, services, quarantine}``: see ``running.status``."""
        return status(_home(home))

    def doctor(self, home: str | None = None) -> list[dict[str, Any]]:
        """Checks of this machine: ``[{check, ok, detail, fix}]``; ``fix`` is the command that repairs it."""
        from services.local.doctor import examine

        return examine(_home(home))

    def manifests(self, *, namespace: str, one_account: bool, registry: str) -> str:
        """The YAML that an operator applies to a Kubernetes cluster. ``registry``: of Weft's images; may be empty."""
        from services.core.bootstrap.kubernetes import manifests_text

        helper = image("helper", registry)
        return manifests_text(namespace=namespace, one_account=one_account, helper_image=helper, registry=registry)

    def conformance(
        self,
        home: str | None = None,
        *,
        skip: Sequence[str] = (),
        within_s: float = 600,
        step_down: bool = False,
        report: Report = print,
    ) -> list[dict[str, str]]:
        """Checks of an installation of containers or pods: ``[{check, verdict, detail, fix}]``.

        ``verdict``: pass, fail or "not applicable". ``within_s``: time limit of each of its jobs. ``step_down``:
        asks MongoDB's primary to step down. It runs where the lcm runs.
        """
        from dataclasses import asdict

        from services.core.runtime.settings import Settings
        from services.local.conformance import Subject, examine

        place = _home(home)
        if not place.addresses_file.exists():
            where = "docker compose exec lcm weft conformance"
            raise Unavailable(f"there is no installation in {place.root}; run it where the lcm runs: `{where}`")
        settings = Settings(home=place.root)
        url = f"http://{place.address('api')}".replace("//0.0.0.0:", "//127.0.0.1:")
        subject = Subject(settings, url, _needed_key(place), within_s, step_down=step_down)
        return [asdict(check) for check in examine(subject, skip=skip, report=report)]

    def check_spec(self, document: object) -> dict[str, Any]:
        """Validates a job spec without a server. Returns ``{spec, errors: [{pointer, message, hint}]}``."""
        from services.local.spec_check import check

        return check(document)


def _learners_left(home: Home) -> bool:
    """Whether there are folders of learners, or control groups; without, no process is started to look."""
    node = home / "node"
    if (node / AGENT / GROUPS_FILE).exists():
        return True
    return node.is_dir() and any(not entry.name.startswith(".") for entry in node.iterdir())


def _jobs_left(home: Home) -> int:
    """The number of jobs that run on after the services: after `weft down --keep-jobs`, or a kill of the supervisor."""
    shims = (home / "node").glob(f"*/*/*/{SHIM_FILE}")
    return len({shim.parents[2] for shim in shims if read_live_process(shim) is not None})


def changed_settings(home: Home, options: Mapping[str, object]) -> list[str]:
    """The settings, given by option or environment, that differ from those of the running platform: ``NAME=value``.

    ``options``: setting -> the value of its option; None: not given.
    """
    supervisor = supervisor_of(home)
    if supervisor is None:
        return []
    given = {name: value for name, value in os.environ.items() if _is_platform_setting(name)}
    given |= {name: str(value) for name, value in options.items() if value is not None}
    running = read_settings(supervisor)
    return sorted(f"{name}={value}" for name, value in given.items() if running.get(name, "") != value)


def _is_platform_setting(name: str) -> bool:
    return is_setting(name) and name not in COMMAND_LINE


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _detached(argv: list[str], environment: Mapping[str, str], log: Path) -> ProcessIdentity:
    """Starts a process in its own session, with its output appended to the log. It outlives this process."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        pid = os.posix_spawn(
            argv[0],
            argv,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            setsid=True,
        )
    finally:
        os.close(output)
    return identify(pid) or ProcessIdentity(pid, 0, "")  # ended already: its log says why


def _last_reason(log: Path, start: int) -> str:
    """The last ``why`` in a JSON log, from byte ``start`` on."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if "why" in entry:
            why = entry["why"]
            return "; ".join(why) if isinstance(why, list) else str(why)
    return f"it ended at once: {lines[-1] if lines else 'its log is empty'}; see {log}"


PLATFORM: Final = Platform()
