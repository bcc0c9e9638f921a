"""Sees to it that each provisioned learner has a shim until it has ended, and a helper until all is stored.

Two tasks per learner, each a loop that looks at the files, does what they ask for and waits for a process to end. So
the start of an agent, a crash of a shim and the ordinary course are one and the same code, and whoever lives is
adopted: never a second one, because shim and helper each hold a lock file.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

import services
from services.core.domain.errors import Unavailable
from services.core.domain.learner import Exit
from services.core.failpoints import points as failpoints
from services.core.runtime.liveness import wait_until_hung
from services.core.runtime.processes import alive, identify
from services.node import shim
from services.node.instrumentation import Instrumentation
from services.node.learner import Learner
from services.node.processes import Belonging, Process, kill_all

_PASSED_ON: Final = ("WEFT_", "UV_", "PIP_", "SSL_CERT_", "XDG_")
"""Helpers build environments and fetch data: what names the operator's mirrors, proxies and caches goes to them."""
_KEPT_BACK: Final = frozenset(
    {"WEFT_JOB_STORE", "WEFT_BROKER_URL", "WEFT_S3_ACCESS_KEY", "WEFT_S3_SECRET_KEY", "WEFT_S3_SESSION_TOKEN",
     "WEFT_S3_CREDENTIALS_FILE"}
)  # fmt: skip
"""They may hold passwords of what no helper speaks to."""
_PASSED_ON_NAMES: Final = frozenset({"HOME", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "TMPDIR"})
_LOCK_WAIT_S: Final = 0.02
_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0
_LIVED_WELL_S: Final = 5.0
_START_S: Final = 10.0
_KILL_S: Final = 10.0
_LAST_S: Final = 0.5
log = structlog.get_logger()


def helper_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """From nothing but what a helper needs: the platform's code, and the operator's settings."""
    kept = {
        name: value
        for name, value in inherited.items()
        if (name.startswith(_PASSED_ON) and name not in _KEPT_BACK) or name.upper() in _PASSED_ON_NAMES
    }
    code = Path(next(iter(services.__path__))).parent
    path = inherited.get("PATH", os.defpath)
    return {**kept, "PATH": path, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(code)}


class LearnerSupervisor:
    """``on_change`` is told the job of whatever has ended, was lost or had to be started again."""

    def __init__(
        self, *, helper_command: list[str], helper_env: Mapping[str, str], helper_backoff_s: float,
        helper_silence_s: float, instrumentation: Instrumentation, on_change: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._helper_command = helper_command
        self._helper_env = helper_env
        self._helper_backoff_s = helper_backoff_s
        self._helper_silence_s = helper_silence_s
        self._instrumentation = instrumentation
        self._on_change = on_change
        self._tasks: dict[Path, list[asyncio.Task[None]]] = {}
        self._shims: dict[Path, Process] = {}

    def keep(self, learner: Learner) -> None:
        """From now on; again is harmless."""
        if learner.folder not in self._tasks:
            minds = (self._mind_shim, self._mind_helper)
            self._tasks[learner.folder] = [asyncio.create_task(self._guarded(learner, mind)) for mind in minds]

    async def ready(self, learner: Learner) -> None:
        """Returns once its shim has said who it is, or it has ended. Unavailable where that takes too long."""
        deadline = time.monotonic() + _START_S
        while not learner.ended:
            identity = learner.shim
            if identity is not None and alive(identity):
                return
            if time.monotonic() > deadline:
                raise Unavailable(f"the shim of {learner.name} of job {learner.job} does not start")
            await asyncio.sleep(0.003)

    def hint(self, learner: Learner) -> None:
        """Tells the shim to look at its files. Not before it has said who it is: only then can it take signals."""
        process, identity = self._shims.get(learner.folder), learner.shim
        if process is not None and identity is not None and identity.pid == process.pid:
            process.send(signal.SIGUSR1)

    def release(self, learner: Learner) -> list[asyncio.Task[None]]:
        """Nothing of it is started any more; what lives is left to the caller. The tasks (of the shim, of the helper)
        end with the processes.
        """
        return self._tasks.pop(learner.folder, [])

    async def close(self) -> None:
        """The agent ends; learners do not."""
        tasks = [task for pair in self._tasks.values() for task in pair]
        self._tasks.clear()
        await end_tasks(tasks, within_s=0)

    async def settle(self, learner: Learner) -> bool:
        """Writes the exit that no shim can write. Whether a shim may be started: nothing ran, and nobody said stop."""
        with learner.shim_lock() as free:
            if not free or learner.ended:
                return False
            process, mark = learner.process, learner.stop_mark
            cause = "" if mark is None else str(mark["cause"])
            now = time.time_ns() // 1_000_000
            if learner.begun:
                own = Belonging(
                    job_dirs=frozenset({str(learner.job_dir)}), identities=() if process is None else (process,),
                    groups=frozenset(learner.document.groups),
                )  # fmt: skip
                await kill_all(own.members, timeout_s=_KILL_S)
                learner.write_exit(Exit(time=now, stop_cause=cause, lost=True))
                self._instrumentation.lost.inc()
                log.warning("learner.lost", job=learner.job, learner=learner.name, pid=process.pid if process else None)
            elif mark is not None:
                sign = signal.SIGTERM if mark["grace_ms"] else signal.SIGKILL
                learner.write_exit(Exit(time=now, signal=int(sign), stop_cause=cause))
            else:
                return True
        self._on_change(learner.job)
        return False

    async def _guarded(self, learner: Learner, mind: Callable[[Learner], Awaitable[None]]) -> None:
        while True:
            try:
                return await mind(learner)
            except Exception:  # a loop edge: a full disk or a broken file of one learner must not end the care for it
                log.exception("learner.unminded", job=learner.job, learner=learner.name)
                await asyncio.sleep(_MAX_BACKOFF_S)

    async def _mind_shim(self, learner: Learner) -> None:
        wait = _BACKOFF_S
        while not learner.ended:
            process = Process.adopt(learner.shim)
            if process is None:
                if not await self.settle(learner):
                    await asyncio.sleep(_LOCK_WAIT_S)  # ended, or a shim that is about to say who it is
                    continue
                process = self._spawn_shim(learner)
            self._shims[learner.folder] = process
            with self._instrumentation.learners.track_inprogress():
                await self._until_end(process)
            del self._shims[learner.folder]
            if learner.folder not in self._tasks:
                return
            if not learner.ended:
                log.warning("shim.died", job=learner.job, learner=learner.name, code=process.code)
                if not learner.begun:  # else its learner is to be ended at once
                    await asyncio.sleep(wait)
                    wait = min(wait * 2, _MAX_BACKOFF_S)
        self._on_change(learner.job)

    async def _mind_helper(self, learner: Learner) -> None:
        wait = self._helper_backoff_s
        first = True
        while not learner.stored and learner.folder in self._tasks:
            began = time.monotonic()
            process = Process.adopt(learner.identity("helper.json"))
            if process is None:
                process = self._spawn_helper(learner)
                (self._instrumentation.helper_starts if first else self._instrumentation.helper_restarts).inc()
            first = False
            watch = asyncio.create_task(self._end_silent(learner, process))
            try:
                await self._until_end(process)
            finally:
                watch.cancel()
            if learner.folder not in self._tasks or learner.stored:
                break
            log.warning("helper.died", job=learner.job, learner=learner.name, code=process.code)
            if time.monotonic() - began > _LIVED_WELL_S:
                wait = self._helper_backoff_s
            await asyncio.sleep(wait)
            wait = min(wait * 2, _MAX_BACKOFF_S)
        self._on_change(learner.job)

    async def _end_silent(self, learner: Learner, process: Process) -> None:
        """A helper that lives and does nothing holds its lock: nothing of its learner would be told any more."""
        identity = identify(process.pid)
        if not self._helper_silence_s or identity is None:
            return
        await asyncio.sleep(_LIVED_WELL_S)
        await wait_until_hung(identity, after_s=self._helper_silence_s)
        log.warning("helper.silent", job=learner.job, learner=learner.name, pid=process.pid)
        process.send(signal.SIGKILL)

    async def _until_end(self, process: Process) -> None:
        try:
            await process.ended()
        finally:
            process.forget()

    def _spawn_shim(self, learner: Learner) -> Process:
        self._instrumentation.starts.inc()
        argv = [sys.executable, "-I", "-S", *_failpoints(learner), shim.__file__, str(learner.folder)]
        return Process.spawn(argv, env={"PATH": os.defpath, "LANG": "C.UTF-8"}, log=learner.folder / "shim.log")

    def _spawn_helper(self, learner: Learner) -> Process:
        argv = [*self._helper_command, str(learner.folder)]
        return Process.spawn(argv, env=self._helper_env, log=learner.folder / "helper.log")


def _failpoints(learner: Learner) -> list[str]:
    """What makes the shim one under failpoints, of which it knows nothing. Empty in production."""
    folder = os.environ.get(failpoints.VARIABLE)
    return [failpoints.__file__, folder, "shim", learner.document.home] if folder else []


async def end_tasks(tasks: list[asyncio.Task[None]], *, within_s: float = _LAST_S) -> None:
    """Lets them end, then makes them."""
    if tasks and within_s > 0:
        await asyncio.wait(tasks, timeout=within_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
