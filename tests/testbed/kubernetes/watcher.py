"""An independent witness of an API server: records what each job's pods were at every change, in the server's order.

It uses nothing of the platform but the names of its labels, and reads from the server directly. One watch delivers all
changes of all pods in their order, so two attempts that live at the same moment cannot be missed between two samples.
A watch that the server has ended goes on from the last version; ``gaps`` counts what was lost instead.

A pod is *live* if it may run: its scheduling gate is lifted, it has not ended, and it exists, also while it is removed.
A pod *has run* once its learner's container has started.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.testbed.kubernetes.fault_proxy import TLS_END_S

_KINDS: Final = (
    "api/v1/pods",
    "api/v1/configmaps",
    "api/v1/secrets",
    "api/v1/services",
    "apis/networking.k8s.io/v1/networkpolicies",
    "apis/scheduling.k8s.io/v1alpha2/podgroups",
)
_JOB: Final = "weft.dev/job"
_ATTEMPT: Final = "weft.dev/attempt"
_LEARNER: Final = "weft.dev/learner"
_CONTAINER: Final = "learner"
_PAUSE_S: Final = 0.1
_LONGEST_LINE: Final = 2**24
"""Bytes of one event: a pod may be as large as a request to the API server."""
Attempt = tuple[str, int]


class Watcher:
    """Use it by ``watching``."""

    def __init__(self, kubeconfig: Path) -> None:
        settings = json.loads(kubeconfig.read_text())
        cluster = settings["clusters"][0]["cluster"]
        self._server = cluster["server"]
        self._tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        self._headers = {"Authorization": f"Bearer {settings['users'][0]['user']['token']}"}
        self.overlaps: list[str] = []
        """Moments at which two attempts of a job were live."""
        self.gaps = 0
        self.changes = 0
        self.activated: defaultdict[Attempt, set[str]] = defaultdict(set)
        """Learners whose gate was lifted at any time."""
        self.ran: defaultdict[Attempt, set[str]] = defaultdict(set)
        self._live: dict[str, tuple[Attempt, str]] = {}
        """By pod's uid."""
        self._version = 0
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._task: asyncio.Task[None] | None = None
        self._ready = threading.Event()

    def start(self) -> None:
        """Returns when it sees all changes."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        task = self._task
        assert task is not None
        self._loop.call_soon_threadsafe(task.cancel)
        self._thread.join()

    def live(self) -> dict[Attempt, set[str]]:
        """The learners of each attempt that are live now, according to the events of the watch so far."""
        with self._changed:
            result: dict[Attempt, set[str]] = {}
            for attempt, learner in self._live.values():
                result.setdefault(attempt, set()).add(learner)
            return result

    def catch_up(self) -> None:
        """Returns when all changes are recorded that the server had carried out before the call."""
        version = asyncio.run_coroutine_threadsafe(self._now(), self._loop).result()
        with self._changed:
            assert self._changed.wait_for(lambda: self._version >= version, 120), "the watch does not catch up"

    def left(self, job: str = "") -> list[str]:
        """Objects of this job, or of any, that the server has now, by a list of its own."""
        return asyncio.run_coroutine_threadsafe(self._left(job), self._loop).result()

    def wait_clean(self, within_s: float, job: str = "") -> float:
        """Returns the seconds until ``left`` returns nothing. AssertionError with the rest after ``within_s``."""
        began = time.monotonic()
        while left := self.left(job):
            waited_s = time.monotonic() - began
            assert waited_s <= within_s, f"left after {waited_s:.0f} s: {', '.join(left)}"
            time.sleep(_PAUSE_S)
        return time.monotonic() - began

    # --- the watch --------------------------------------------------------------------

    def _run(self) -> None:
        self._loop.run_until_complete(self._watch_always())
        self._loop.run_until_complete(asyncio.sleep(TLS_END_S))
        self._loop.close()

    async def _watch_always(self) -> None:
        self._task = asyncio.current_task()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        connector = aiohttp.TCPConnector(ssl=self._tls)
        async with aiohttp.ClientSession(
            headers=self._headers, timeout=timeout, connector=connector, read_bufsize=_LONGEST_LINE
        ) as client:
            self._client = client
            version = ""
            with suppress(asyncio.CancelledError):  # ``stop``, also while it pauses
                while True:
                    try:
                        version = version or await self._list()
                        self._ready.set()
                        version = await self._watch(version)
                    except (aiohttp.ClientError, OSError, ValueError):  # the server was ended by a test
                        await asyncio.sleep(_PAUSE_S)

    async def _list(self) -> str:
        page = await self._get("api/v1/pods")
        with self._changed:
            self._live.clear()
            for pod in page["items"]:
                self._record(pod, removed=False)
        return self._advance(page["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        """Returns the version to go on from; empty if changes were lost."""
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        async with self._client.get(f"{self._server}/api/v1/pods", params=query) as answer:
            if answer.status == 410:
                self.gaps += 1
                return ""
            answer.raise_for_status()
            try:
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        self.gaps += 1
                        return ""
                    if event["type"] != "BOOKMARK":
                        with self._changed:
                            self._record(event["object"], removed=event["type"] == "DELETED")
                    version = self._advance(event["object"]["metadata"]["resourceVersion"])
            except (aiohttp.ClientError, OSError, ValueError):
                await asyncio.sleep(_PAUSE_S)
        return version

    def _advance(self, version: str) -> str:
        with self._changed:
            self._version = max(self._version, int(version))
            self._changed.notify_all()
        return version

    def _record(self, pod: dict[str, Any], *, removed: bool) -> None:
        labels = pod["metadata"].get("labels") or {}
        if _JOB not in labels:
            return
        self.changes += 1
        attempt, learner = (labels[_JOB], int(labels[_ATTEMPT])), labels[_LEARNER]
        uid, status = pod["metadata"]["uid"], pod.get("status") or {}
        gated = bool(pod["spec"].get("schedulingGates"))
        if not gated:
            self.activated[attempt].add(learner)
        states = [entry["state"] for entry in status.get("containerStatuses") or () if entry["name"] == _CONTAINER]
        if any("running" in state or "terminated" in state for state in states):
            self.ran[attempt].add(learner)
        if removed or gated or status.get("phase") in {"Succeeded", "Failed"}:
            self._live.pop(uid, None)
            return
        self._live[uid] = attempt, learner
        others = {number for (job, number), _ in self._live.values() if job == attempt[0]} - {attempt[1]}
        if others:
            self.overlaps.append(f"{attempt[0]}: attempt {attempt[1]} beside {sorted(others)} at {status}")

    # --- requests ---------------------------------------------------------------------

    async def _get(self, path: str, **query: str) -> Any:
        async with self._client.get(f"{self._server}/{path}", params=query) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def _now(self) -> int:
        """The version of the newest change of any pod. Makes one, so that the watch comes to it."""
        name = f"weft-witness-{time.monotonic_ns()}"
        spec = {"schedulingGates": [{"name": "weft.dev/witness"}], "containers": [{"name": "none", "image": "none"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        path = f"{self._server}/api/v1/namespaces/default/pods"
        async with self._client.post(path, json=pod) as answer:
            answer.raise_for_status()
            version = int((await answer.json())["metadata"]["resourceVersion"])
        async with self._client.delete(f"{path}/{name}", params={"gracePeriodSeconds": "0"}) as answer:
            answer.raise_for_status()
        return version

    async def _left(self, job: str) -> list[str]:
        names: list[str] = []
        for path in _KINDS:
            page = await self._get(path, labelSelector=f"{_JOB}={job}" if job else _JOB)
            names += [f"{path.rpartition('/')[2]}/{item['metadata']['name']}" for item in page["items"]]
        return names


@contextmanager
def watching(kubeconfig: Path) -> Generator[Watcher]:
    """A watcher that sees all changes within the context."""
    watcher = Watcher(kubeconfig)
    watcher.start()
    try:
        yield watcher
    finally:
        watcher.stop()
