"""What runs on this machine, and in what state: for `weft status`, and for the commands that start and stop.

It is on the way of `weft status`, so it imports neither asyncio nor a settings library.
"""

from __future__ import annotations

import http
import json
import os
import threading
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from services.core.domain.codec import MALFORMED
from services.core.domain.errors import WeftError
from services.core.domain.status import ADMITTED, Status
from services.core.failpoints.points import under_failpoints
from services.core.runtime.home import STOPPING, Home
from services.core.runtime.isolation_report import read_isolation
from services.core.runtime.operations_client import read_operations
from services.core.runtime.processes import ProcessIdentity, identify, read_live_process, write_process_file
from services.local.api_reader import key_or_empty, read_api
from services.local.quarantine_report import reported_quarantine
from weft.http_exchange import HttpError, bearer

T = TypeVar("T")
_ANSWER_S: Final = 2.0
"""A service that does not answer within it is shown so."""
_COUNT_S: Final = 10.0
"""`weft down` asks before it interrupts jobs, so it waits for an api that is slow, or is being started again."""
_FAILPOINTS: Final = "failpoints are on: it may die on purpose"


def supervisor_of(home: Home) -> ProcessIdentity | None:
    """The process of the supervisor; None if it does not run."""
    return read_live_process(home / "run" / "supervisor.json")


def not_ready(home: Home, service: str, key: str) -> str:
    """Why the service is not ready; empty if it is. ``key``: an administrator's."""
    try:
        answer = read_operations(home.address(f"{service}-ops"), "/readyz", timeout_s=_ANSWER_S, headers=bearer(key))
        failing = json.loads(answer.body).get("failing", {service: "not ready"})
    except ConnectionRefusedError:  # nothing listens at its socket yet
        return "does not answer"
    except (OSError, HttpError, ValueError, WeftError) as error:  # or it died in its answer
        return str(error) or type(error).__name__
    if answer.status == http.HTTPStatus.OK:
        return ""
    return "; ".join(f"{name}: {reason}" for name, reason in failing.items())


def status(place: Home) -> dict[str, Any]:
    """``{running, home, url, grpc, isolation, caches, services, quarantine}``.

    A service is ``{name, state, pid, restarts, address, why}``.

    ``isolation`` is ``{name, why, enforced}``; empty until the node agent has reported it.
    """
    running = supervisor_of(place)
    try:
        state, addresses = json.loads((place / "run" / "state.json").read_text()), place.addresses()
    except (OSError, ValueError, WeftError):
        state, addresses = {"services": []}, {}
    quarantine = _beside(lambda: reported_quarantine(place) if running is not None else None)
    services = []
    key = key_or_empty(place) if state["services"] else ""
    names = [service["name"] for service in state["services"]]
    living = [name for name in names if read_live_process(place / "run" / f"{name}.json") is not None]
    answers = {name: _beside(partial(not_ready, place, name, key)) for name in living if f"{name}-ops" in addresses}
    for service in state["services"]:
        name = service["name"]
        lives = name in living
        why = answers[name]() if name in answers else ""
        services.append(
            {
                "name": name,
                "state": "ready" if lives and not why else "starting" if lives else "down",
                "pid": service["pid"] if lives else None,
                "restarts": service["restarts"],
                "address": addresses.get(name, ""),
                "why": why or (_FAILPOINTS if lives and under_failpoints(service["pid"]) else ""),
            }
        )
    return {
        "running": running is not None,
        "home": str(place.root),
        "url": f"http://{addresses['api']}" if running is not None and "api" in addresses else "",
        "grpc": addresses.get("api-grpc", "") if running is not None else "",
        "isolation": reported_isolation(place) if running is not None else {},
        "caches": reported_caches(place) if running is not None else {},
        "quarantine": quarantine(),
        "services": services,
    }


def _beside(read: Callable[[], T]) -> Callable[[], T]:
    """Calls ``read``, which raises nothing, in a thread. Returns a function that waits for its result."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(read()))
    thread.start()

    def result() -> T:
        thread.join()
        return results[0]

    return result


def count_jobs(home: Home, statuses: Collection[Status]) -> int | None:
    """The number of jobs in these statuses, as the api counts them; None if it does not answer."""
    try:
        jobs: dict[str, int] = read_api(home, "/v1/cluster?tenant=*", timeout_s=_COUNT_S)["jobs"]
    except (KeyError, WeftError):
        return None  # for display only: the platform is stopped without it
    return sum(count for status, count in jobs.items() if status in statuses)


@contextmanager
def admission_held(home: Home) -> Generator[None]:
    """While this process is in it, no job is admitted."""
    process = identify(os.getpid())
    assert process is not None  # noqa: S101 - it runs
    write_process_file(home / STOPPING, process)
    try:
        yield
    finally:
        (home / STOPPING).unlink(missing_ok=True)


def holds_nothing(home: Home) -> bool:
    """Whether no job holds hardware, as the api says; False if it does not answer."""
    try:
        cluster = read_api(home, "/v1/cluster?tenant=*", timeout_s=_ANSWER_S)
        return not any(cluster["used"].values()) and not any(map(cluster["jobs"].get, ADMITTED))
    except (KeyError, WeftError):
        return False


def reported_isolation(home: Home) -> dict[str, Any]:
    """What the node agent reported at its start: the isolation, why no stronger one, what the kernel enforces."""
    report = read_isolation(home)
    return {} if report is None else {"name": report.name, "why": report.why, "enforced": list(report.enforced)}


def reported_caches(home: Home) -> dict[str, Any]:
    """What the node agent measured last: ``{bytes: {kind: bytes}, max_bytes}``; empty before that."""
    try:
        report = json.loads((home / "run" / "node-caches.json").read_text())
        sizes = {str(kind): int(size) for kind, size in report["bytes"].items()}
        return {"bytes": sizes, "max_bytes": int(report["max_bytes"])}
    except (OSError, *MALFORMED):
        return {}
