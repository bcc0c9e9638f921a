"""What the command line asks of the platform on this machine: `weft up`, `down`, `status`, `doctor`, offline checks.

The light CLI finds ``PLATFORM`` by its entry point and gets plain dictionaries back. Nothing here talks to users:
progress goes to ``report``, trouble is raised as WeftError with what to do.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from services.core.adapters.folder.secrets import FolderSecretStore
from services.core.domain.errors import InvalidRequest, WeftError
from services.core.domain.status import RESTING
from services.core.failpoints.points import under_failpoints
from services.core.runtime.home import Home, default_home
from services.core.runtime.processes import ProcessIdentity, alive, identify, read_live_process, send_signal, wait_gone
from services.local.backup.commands import Backups
from services.local.backup.restore_marker import refuse_half_restored
from services.local.layout import PROGRAMS, is_free, prepare
from services.local.quarantine_report import told_quarantine

UP_TIMEOUT_S: Final = 60.0
HOPELESS: Final = 4
"""Ends of a service before its first readiness that make `weft up` give up."""
_POLL_S: Final = 0.03
_FAILPOINTS: Final = "failpoints are on: it may die on purpose"
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback is never behind a proxy
Report = Callable[[str], None]


def _home(home: str | None) -> Home:
    return Home(Path(home).absolute()) if home else Home(default_home())


def _supervisor(home: Home) -> ProcessIdentity | None:
    return read_live_process(home / "run" / "supervisor.json")


def _admin_key(home: Home) -> str:
    """Made by the api at its first start."""
    found = asyncio.run(FolderSecretStore(home / "secrets").get("admin-key"))
    if found is None:
        raise WeftError(f"the api has not made its admin key in {home.root}; see {home / 'logs' / 'api.log'}")
    return found.decode().strip()


def _answer(home: Home, addresses: Mapping[str, str]) -> dict[str, Any]:
    return {
        "url": f"http://{addresses['api']}",
        "key": _admin_key(home),
        "home": str(home.root),
    }


class Platform(Backups):
    """The one object behind the entry point ``weft.platform:local``."""

    def up(
        self, home: str | None = None, *, gpus: int | None = None, port: int | None = None, report: Report = print
    ) -> dict[str, Any]:
        """Starts the platform and waits until it serves. ``{url, key, home, started}``; started already: says so."""
        place = _home(home)
        prepare(place)
        refuse_half_restored(place)
        if _supervisor(place) is not None:
            report(f"Weft already runs in {place.root}")
            self._wait_ready(place, report)
            return {**_answer(place, place.addresses()), "started": False}
        if port and not is_free("127.0.0.1", port):
            raise WeftError(f"port {port} is taken; give another with `weft up --port N`, or leave --port out")
        environment = {**os.environ, "WEFT_HOME": str(place.root)}
        if gpus is not None:
            environment["WEFT_NODE_GPUS"] = str(gpus)
        if port:
            environment["WEFT_PORT"] = str(port)
        report(f"starting Weft in {place.root}")
        log = place / "logs" / "supervisor.log"
        begin = log.stat().st_size if log.exists() else 0
        process = _detached([sys.executable, "-m", "services.local.supervisor"], environment, log)
        try:
            self._wait_ready(place, report, process=process, log_from=begin)
        except (WeftError, KeyboardInterrupt):
            if _supervisor(place) not in {None, process}:  # two started at once: the other one has it
                self._wait_ready(place, report)
                return {**_answer(place, place.addresses()), "started": False}
            self._stop_services(place)  # and no learner: whoever ran before goes on, and waits for the next start
            raise
        return {**_answer(place, place.addresses()), "started": True}

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
            if _supervisor(home) is not None:
                self._refuse_hopeless(home, waiting)
                for name in sorted(waiting):
                    why[name] = self._not_ready(home, name)
                for name in sorted(name for name in waiting if not why[name]):
                    waiting.discard(name)
                    report(f"{name} is ready")
            time.sleep(_POLL_S)  # a person waits for this; the services cannot tell a process that is not one of them

    @staticmethod
    def _refuse_hopeless(home: Home, waiting: set[str]) -> None:
        """A service that has ended several times before it ever served will not get better by waiting."""
        try:
            services = json.loads((home / "run" / "state.json").read_text())["services"]
        except (OSError, ValueError):
            return
        for one in services:
            if one["name"] in waiting and one["restarts"] >= HOPELESS:
                log = home / "logs" / f"{one['name']}.log"
                raise WeftError(f"{one['name']} cannot run: {_last_reason(log, 0)}")

    @staticmethod
    def _not_ready(home: Home, service: str) -> str:
        """Why it does not serve yet; empty: it does."""
        try:
            with _direct.open(f"http://{home.address(service + '-ops')}/readyz", timeout=2):
                return ""
        except urllib.error.HTTPError as error:
            try:
                failing = json.loads(error.read() or b"{}").get("failing", {})
            except (OSError, http.client.HTTPException, ValueError):  # it died, or stood still, in its answer's midst
                return str(error)
            return "; ".join(f"{name}: {reason}" for name, reason in failing.items())
        except (OSError, WeftError) as error:
            return str(error)

    def down(self, home: str | None = None, *, purge: bool = False, report: Report = print) -> dict[str, Any]:
        """Stops every process, learners too; jobs that ran go on, from their checkpoints, after the next start.

        ``purge`` also removes the folder and with it every job. ``unfinished``: how many jobs go on after the next
        start; None where the api could not say.
        """
        place = _home(home)
        was_running = _supervisor(place)
        unfinished = _unfinished(place) if was_running is not None else None
        if was_running is not None:
            report("stopping the services")
        self._stop_services(place)
        if (place / "node").is_dir():
            ended = subprocess.run(
                [sys.executable, "-m", "services.node", "end-all"], env={**os.environ, "WEFT_HOME": str(place.root)},
                capture_output=True, text=True, check=False, cwd="/",
            )  # fmt: skip
            if ended.returncode:
                raise WeftError(f"some learners could not be ended: {ended.stderr.strip()[-500:]}")
        if purge and place.root.exists():
            if not (place / "VERSION").exists():
                raise InvalidRequest(
                    f"{place.root} is not a folder of Weft's (it has no VERSION file); nothing removed"
                )
            report(f"removing {place.root}")
            shutil.rmtree(place.root)
        return {
            "home": str(place.root),
            "was_running": was_running is not None,
            "purged": purge,
            "unfinished": unfinished,
        }

    @staticmethod
    def _stop_services(home: Home) -> None:
        supervisor = _supervisor(home)
        if supervisor is not None:
            send_signal(supervisor, signal.SIGTERM)
            if not wait_gone(supervisor, 60):
                raise WeftError(f"the supervisor (pid {supervisor.pid}) does not stop; see {home / 'logs'}")
        for name in ("etcd", *(program.name for program in PROGRAMS)):
            # Left over from a supervisor that was killed: nobody keeps them any more.
            left = read_live_process(home / "run" / f"{name}.json")
            if left is not None and send_signal(left, signal.SIGTERM) and not wait_gone(left, 10):
                send_signal(left, signal.SIGKILL)

    def status(self, home: str | None = None) -> dict[str, Any]:
        """``{running, home, url, grpc, isolation, services, quarantine}``; a service: ``{name, state, pid, restarts,
        address, why}``.

        ``isolation`` is how learners are kept apart: ``{name, why, enforced}``, empty where no agent has told yet.
        """
        place = _home(home)
        supervisor = _supervisor(place)
        try:
            state, addresses = json.loads((place / "run" / "state.json").read_text()), place.addresses()
        except (OSError, ValueError, WeftError):
            state, addresses = {"services": []}, {}
        services = []
        for one in state["services"]:
            lives = read_live_process(place / "run" / f"{one['name']}.json") is not None
            why = self._not_ready(place, one["name"]) if lives and f"{one['name']}-ops" in addresses else ""
            services.append(
                {
                    "name": one["name"],
                    "state": "ready" if lives and not why else "starting" if lives else "down",
                    "pid": one["pid"] if lives else None,
                    "restarts": one["restarts"],
                    "address": addresses.get(one["name"], ""),
                    "why": why or (_FAILPOINTS if lives and under_failpoints(one["pid"]) else ""),
                }
            )
        return {
            "running": supervisor is not None,
            "home": str(place.root),
            "url": f"http://{addresses['api']}" if supervisor is not None and "api" in addresses else "",
            "grpc": addresses.get("api-grpc", "") if supervisor is not None else "",
            "isolation": reported_isolation(place) if supervisor is not None else {},
            "quarantine": asyncio.run(told_quarantine(place)) if supervisor is not None else None,
            "services": services,
        }

    def doctor(self, home: str | None = None) -> list[dict[str, Any]]:
        """What is missing or unsafe on this machine, and the command that mends it."""
        from services.local.doctor import examine

        return examine(_home(home))

    def check_spec(self, document: object) -> dict[str, Any]:
        """Validates a job spec without any server: ``{spec, errors: [{pointer, message, hint}]}``."""
        from services.local.spec_check import check

        return check(document)


def _unfinished(home: Home) -> int | None:
    """How many jobs have not come to their end, as the api counts them."""
    try:
        asked = urllib.request.Request(
            f"http://{home.address('api')}/v1/cluster?tenant=*", headers={"Authorization": f"Bearer {_admin_key(home)}"}
        )
        with _direct.open(asked, timeout=2) as answer:
            jobs: dict[str, int] = json.load(answer)["jobs"]
    except (OSError, ValueError, KeyError, WeftError):
        return None  # an ornament of the answer: what cannot be counted is stopped all the same
    return sum(count for status, count in jobs.items() if status not in RESTING)


def reported_isolation(home: Home) -> dict[str, Any]:
    """What the node agent reported at its start: the isolation, why no stronger one, what the kernel enforces."""
    try:
        told = json.loads((home / "run" / "node-isolation.json").read_text())
        return {"name": str(told["isolation"]), "why": str(told["why"]), "enforced": list(told["enforced"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _detached(argv: list[str], environment: Mapping[str, str], log: Path) -> ProcessIdentity:
    """Starts a process that outlives this one: in a session of its own, its output in the log."""
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
    return identify(pid) or ProcessIdentity(pid, 0, "")  # ended already: the wait says why


def _last_reason(log: Path, start: int) -> str:
    """What the supervisor said last."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    for line in reversed(lines):
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if "why" in said:
            why = said["why"]
            return "; ".join(why) if isinstance(why, list) else str(why)
    return f"it ended at once: {lines[-1] if lines else 'it said nothing'}; see {log}"


PLATFORM: Final = Platform()
