"""Keeps a shim running for each provisioned learner until it has ended, and a helper until everything is stored.

Two tasks per learner, each a loop: read the files, start the process if it is missing, wait until it ends. So the start
of an agent, a crash of a shim and the ordinary course are the same code. A living process is adopted; there is never a
second one, because shim and helper each hold a lock file.
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
from services.core.runtime.edges import log_unexpected
from services.core.runtime.learner_folder import HELPER_FILE
from services.core.runtime.liveness import wait_until_hung
from services.core.runtime.processes import alive, identify
from services.core.runtime.retry import Backoff
from services.node import cgroups, shim
from services.node.instrumentation import Instrumentation
from services.node.learner import Learner
from services.node.processes import Process, ProcessMatcher, kill_all

_HELPER_PREFIXES: Final = ("WEFT_", "UV_", "PIP_", "SSL_CERT_", "XDG_")
"""Helpers build environments and fetch data, so they get the names of the operator's mirrors, proxies and caches."""
_NOT_FOR_HELPERS: Final = frozenset(
    {
        "WEFT_JOB_STORE",
        "WEFT_BROKER_URL",
        "WEFT_S3_ACCESS_KEY",
        "WEFT_S3_SECRET_KEY",
        "WEFT_S3_SESSION_TOKEN",
        "WEFT_S3_CREDENTIALS_FILE",
    }
)
"""They may contain passwords of servers that no helper connects to."""
_HELPER_NAMES: Final = frozenset({"HOME", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "TMPDIR"})
_LOCK_WAIT_S: Final = 0.02
_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0
_HEALTHY_S: Final = 5.0
"""A helper that lived so long was healthy: the back-off starts again."""
_START_S: Final = 10.0
_START_POLL_S: Final = 0.003
_KILL_S: Final = 10.0
_LAST_S: Final = 0.5
log = structlog.get_logger()


def helper_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of helpers: the platform's code, and the operator's settings out of the agent's environment."""
    kept = {
        name: value
        for name, value in inherited.items()
        if (name.startswith(_HELPER_PREFIXES) and name not in _NOT_FOR_HELPERS) or name.upper() in _HELPER_NAMES
    }
    code = Path(next(iter(services.__path__))).parent
    path = inherited.get("PATH", os.defpath)
    return {**kept, "PATH": path, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(code)}


class LearnerSupervisor:
    """``on_change`` is called with the job's id when a learner has ended or was lost, and when its helper has ended.

    ``helper_silence_s``: a helper that has done nothing for so long is killed; 0: never.
    """

    def __init__(
        self,
        *,
        helper_command: list[str],
        helper_env: Mapping[str, str],
        helper_backoff_s: float,
        helper_silence_s: float,
        instrumentation: Instrumentation,
        on_change: Callable[[str], None],
    ) -> None:
        self._helper_command = helper_command
        self._helper_env = helper_env
        self._helper_backoff_s = helper_backoff_s
        self._helper_silence_s = helper_silence_s
        self._instrumentation = instrumentation
        self._on_change = on_change
        self._tasks: dict[Path, list[asyncio.Task[None]]] = {}
        self._shims: dict[Path, Process] = {}

    def supervise(self, learner: Learner) -> None:
        """Starts the two tasks of the learner; does nothing if they run."""
        if learner.folder not in self._tasks:
            loops = (self._supervise_shim, self._supervise_helper)
            self._tasks[learner.folder] = [asyncio.create_task(self._restarting(learner, loop)) for loop in loops]

    async def wait_for_shim(self, learner: Learner) -> None:
        """Returns once the shim has written ``shim.json``, or the learner has ended. Unavailable after 10 s."""
        deadline = time.monotonic() + _START_S
        while not learner.ended:
            identity = learner.shim
            if identity is not None and alive(identity):
                return
            if time.monotonic() > deadline:
                raise Unavailable(f"the shim of {learner.name} of job {learner.job} does not start")
            await asyncio.sleep(_START_POLL_S)

    def hint(self, learner: Learner) -> None:
        """Makes the shim read its files now. Before it has written ``shim.json`` it would die of the signal."""
        process, identity = self._shims.get(learner.folder), learner.shim
        if process is not None and identity is not None and identity.pid == process.pid:
            process.send(signal.SIGUSR1)

    def release(self, learner: Learner) -> list[asyncio.Task[None]]:
        """Starts nothing of the learner any more, and leaves its processes to the caller.

        Returns the tasks of the shim and of the helper, which end with the processes.
        """
        return self._tasks.pop(learner.folder, [])

    async def close(self) -> None:
        """Ends the tasks. The processes live on."""
        tasks = [task for pair in self._tasks.values() for task in pair]
        self._tasks.clear()
        await end_tasks(tasks, within_s=0)

    async def write_missing_exit(self, learner: Learner) -> bool:
        """Writes the exit of a learner that has no shim: it was lost with its shim, or stopped before it ran.

        True if there is nothing to write, because it neither ran nor was stopped: a shim may be started. False also
        while a shim lives.
        """
        with learner.shim_lock() as free:
            if not free or learner.ended:
                return False
            process, mark = learner.process, learner.stop_mark
            cause = "" if mark is None else mark.cause
            now = time.time_ns() // 1_000_000
            if learner.started:
                own = ProcessMatcher(
                    owners=frozenset({learner.document.uid}),
                    job_dirs=frozenset({str(learner.job_dir)}),
                    identities=() if process is None else (process,),
                    groups=frozenset(learner.document.groups),
                )
                await kill_all(own.members, timeout_s=_KILL_S)
                learner.write_exit(Exit(time=now, stop_cause=cause, lost=True))
                self._instrumentation.lost.inc()
                log.warning("learner.lost", job=learner.job, learner=learner.name, pid=process.pid if process else None)
            elif mark is not None:
                sign = signal.SIGTERM if mark.grace_ms else signal.SIGKILL
                learner.write_exit(Exit(time=now, signal=int(sign), stop_cause=cause))
            else:
                return True
        self._on_change(learner.job)
        return False

    async def _restarting(self, learner: Learner, loop: Callable[[Learner], Awaitable[None]]) -> None:
        while True:
            # A full disk or a damaged file must not end the supervision.
            with log_unexpected("supervision.failed", job=learner.job, learner=learner.name):
                return await loop(learner)
            await asyncio.sleep(_MAX_BACKOFF_S)

    async def _supervise_shim(self, learner: Learner) -> None:
        backoff = Backoff(first_s=_BACKOFF_S, most_s=_MAX_BACKOFF_S)
        while not learner.ended:
            process = Process.adopt(learner.shim)
            if process is None:
                if not await self.write_missing_exit(learner):
                    await asyncio.sleep(_LOCK_WAIT_S)  # it has ended, or a shim has not written shim.json yet
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
                if not learner.started:  # else what the shim has left running is ended at once
                    await backoff.wait()
        self._on_change(learner.job)

    async def _supervise_helper(self, learner: Learner) -> None:
        backoff = Backoff(first_s=self._helper_backoff_s, most_s=_MAX_BACKOFF_S)
        first = True
        while not learner.stored and learner.folder in self._tasks:
            began = time.monotonic()
            process = Process.adopt(learner.files.process(HELPER_FILE))
            if process is None:
                process = self._spawn_helper(learner)
                groups = [cgroups.helper_group(group) for group in learner.document.groups]
                await asyncio.to_thread(cgroups.enter, groups, process.pid)
                (self._instrumentation.helper_starts if first else self._instrumentation.helper_restarts).inc()
            first = False
            watch = asyncio.create_task(self._kill_if_silent(learner, process))
            try:
                await self._until_end(process)
            finally:
                watch.cancel()
            if learner.folder not in self._tasks or learner.stored:
                break
            log.warning("helper.died", job=learner.job, learner=learner.name, code=process.code)
            if time.monotonic() - began > _HEALTHY_S:
                backoff.reset()
            await backoff.wait()
        self._on_change(learner.job)

    async def _kill_if_silent(self, learner: Learner, process: Process) -> None:
        """Kills a helper that hangs: it holds its lock, so no other could report the learner."""
        identity = identify(process.pid)
        if not self._helper_silence_s or identity is None:
            return
        await asyncio.sleep(_HEALTHY_S)
        await wait_until_hung(identity, after_s=self._helper_silence_s)
        log.warning("helper.killed", job=learner.job, learner=learner.name, pid=process.pid)
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
    """Arguments that run the shim, whose code does not know of them, under failpoints. Empty in production."""
    folder = os.environ.get(failpoints.VARIABLE)
    return [failpoints.__file__, folder, "shim", learner.document.home] if folder else []


async def end_tasks(tasks: list[asyncio.Task[None]], *, within_s: float = _LAST_S) -> None:
    """Waits up to ``within_s`` for the tasks, then cancels them."""
    if tasks and within_s > 0:
        await asyncio.wait(tasks, timeout=within_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
