"""The life of a helper: from an inert learner's folder to results in the object store.

Level-based: a helper starts without any command. Its position is in the folder's files (``active``, ``go``,
``start.json``, ``exit.json``, ``stored``), in its spool, and in the answers of the metrics service. It may be killed
between any two instructions; the next helper reads the same and continues.

Imports matter here: the learner waits for everything that is loaded before it runs. gRPC alone is two thirds of it, so
fetching begins, in a thread, before gRPC is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.core.domain.codec import MALFORMED
from services.core.domain.errors import NoSpace
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.startup import Fetching, Span
from services.core.domain.status import Phase
from services.core.runtime.durable_files import write_reserved
from services.core.runtime.garbage_collection import end_of_imports
from services.core.runtime.learner_folder import (
    ACTIVE_FILE,
    GO_FILE,
    HELPER_FILE,
    HELPER_LOCK,
    PREPARED_FILE,
    RUN,
    SPOOL_FOLDER,
    STORED_FILE,
    Assignment,
    LearnerFolder,
)
from services.core.runtime.processes import identify
from services.helper.fetch.progress import FetchCancelled, FetchFailed
from services.helper.fetch.thread import FetchThread
from services.helper.learner_watch import LearnerWatch
from services.helper.log import log_event
from services.helper.objects import UrlSigner
from services.helper.settings import load_settings
from services.helper.shim import ShimWatch
from services.helper.spool import Spool
from services.helper.wakeup import Wakeup

if TYPE_CHECKING:
    from services.helper.checkpoints.snapshots import Digests
    from services.helper.metrics_client import IntakeClient
    from services.helper.reporter import Reporter
    from services.helper.ship.shipper import Shipper

QUICK_S: Final = 0.01
POLL_S: Final = 0.1
"""How often files are read: at first, and while nothing happens."""
MESSAGE_S: Final = 1.0
"""The message about fetching is sent this often at most: each is a write to etcd."""
KILLED_S: Final = 0.3
"""After a kill, sending the last lines is tried for so long."""
REFUSED_S: Final = 10.0
"""A metrics service that answers but takes nothing delays the end for so long: logs are stored as files as well."""
HELD: Final = 75
"""Exit code: another helper of this learner lives (EX_TEMPFAIL)."""


def main(root: Path) -> int:
    """Runs the helper of the learner's folder ``root``. Returns 0 once the learner is stored, or HELD."""
    folder = LearnerFolder(root)
    return _run(folder, lambda: ShimWatch(folder))


def main_in_pod(root: Path, learner: str, run: int) -> int:
    """Runs the helper of a pod's learner, in this run, below ``root``.

    Returns 0 once the learner's container has ended, or HELD.
    """
    from services.helper.pod import PodLearner  # noqa: PLC0415 - a single machine loads no module of pods
    from services.helper.pod_folder import PodFolder  # noqa: PLC0415 - as above

    folder = PodFolder(root, learner, run)
    folder.prepare()
    return _run(folder, lambda: PodLearner(folder, folder.trust))


def _run(folder: LearnerFolder, watch: Callable[[], LearnerWatch]) -> int:
    os.umask(0o022)
    if folder.lock(HELPER_LOCK) is None:
        return HELD
    me = identify(os.getpid())
    # The agent can do without it: a disk that the learner has filled must not keep its results from being stored.
    with contextlib.suppress(OSError, NoSpace):
        folder.write(HELPER_FILE, asdict(me) if me is not None else {})
    end_of_imports()
    asyncio.run(_live(folder, watch))
    return 0


async def _live(folder: LearnerFolder, watch: Callable[[], LearnerWatch]) -> None:
    learner = watch()
    if not folder.is_stored:
        await Helper(folder, learner).run()
    await learner.wait_ended()


class Helper:
    """One learner's helper, in one process, under ``helper.lock``."""

    def __init__(self, folder: LearnerFolder, learner: LearnerWatch) -> None:
        self._folder = folder
        self._learner = learner
        self._assignment: Assignment = folder.assignment()
        self._spool = Spool(folder.path(SPOOL_FOLDER))
        self._fetch: FetchThread | None = None
        self._shipper: Shipper | None = None
        self._signer: UrlSigner
        self._exit_seen_at = 0.0

    async def run(self) -> None:
        """Returns when the learner is stored, or its folder was removed. Raises RuntimeError if reporting fails."""
        self._signer = UrlSigner(in_pod=self._folder.has_image)
        if self._folder.has(ACTIVE_FILE):
            self._begin_fetching()
        reporter, intake = self._connect()
        running = asyncio.create_task(self._run_learner(reporter, intake))
        reporting = asyncio.create_task(reporter.run())
        tasks = (running, reporting, asyncio.create_task(self._learner.follow_control(intake, reporter)))
        try:
            await asyncio.wait({running, reporting}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                # Without reports this would wait for ever. The agent starts the next helper, which continues.
                raise RuntimeError("reporting has ended") from _error_of(reporting)
            await running
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await intake.close()

    async def _run_learner(self, reporter: Reporter, intake: IntakeClient) -> None:
        if await self._start_process(reporter):
            await self._follow_process(reporter, intake)
        self._write_stored(reporter)
        while not self._folder.is_removed and not await reporter.wait_acknowledged(POLL_S):
            pass

    def _write_stored(self, reporter: Reporter) -> None:
        """Writes ``stored``, once. The agent reports it, too, so no end waits for an unavailable metrics service."""
        if not self._folder.is_removed and not self._folder.is_stored:
            status = reporter.status
            document = {"phase": status.phase.value, "reason": status.reason, "message": status.message}
            try:
                self._folder.write(STORED_FILE, document)
            except NoSpace:  # the reserved space has room for all but the message, which the report has
                write_reserved(self._folder.path(STORED_FILE), {**document, "message": ""})

    def _connect(self) -> tuple[Reporter, IntakeClient]:
        # Imported only now: see the module's docstring.
        from services.helper.metrics_client import IntakeClient, Progress  # noqa: PLC0415
        from services.helper.reporter import Reporter  # noqa: PLC0415

        learner, plan = self._assignment.learner, self._assignment.plan
        status = self._spool.load_report(
            LearnerStatus(
                name=learner.name,
                role=learner.role,
                rank=learner.rank,
                attempt=plan.attempt,
                run=learner.run,
                seq=0,
                phase=Phase.WAITING,
            )
        )
        intake = IntakeClient(Path(self._assignment.addresses_file), learner.token, self._learner.tls)
        self._signer.use(intake)
        if "WEFT_FAILPOINTS" in os.environ:  # never in production
            from services.core.failpoints.ports import at_failpoint  # noqa: PLC0415 - as above

            intake = at_failpoint(intake, "intake", "helper")
        reporter = Reporter(
            intake, self._spool, status, lambda: Progress(*self._trained(), self._fetching(), self._bar())
        )
        reporter.enter(Phase.WAITING)
        return reporter, intake

    def _trained(self) -> tuple[float, int]:
        return self._shipper.progress if self._shipper is not None else (-1.0, -1)

    def _bar(self) -> str:
        return self._shipper.bar() if self._shipper is not None else ""

    def _fetching(self) -> Fetching | None:
        return self._fetch.fetching if self._fetch is not None else None

    # --- until the process may start ---------------------------------------------------------------------------------

    def _exit(self) -> Exit | None:
        return self._folder.exit(RUN)

    def _begin_fetching(self) -> None:
        if not any(map(self._folder.has, (GO_FILE, PREPARED_FILE))) and self._exit() is None:
            self._fetch = FetchThread(self._folder, self._assignment, self._signer)

    async def _start_process(self, reporter: Reporter) -> bool:
        """Prepares the learner and lets its process start.

        Returns True if the process was started or has ended, False if it can never start, which is then reported.
        """
        if reporter.status.reason:
            return False  # an earlier helper has reported it
        if self._exit() is not None:
            return True
        if not await self._wait_until(lambda: self._folder.has(ACTIVE_FILE)):
            return True
        if self._fetch is None:
            self._begin_fetching()
        if self._fetch is not None:
            reporter.enter(Phase.DOWNLOADING, startup=self._steps(reporter))
            try:
                await self._finish_fetching(self._fetch, reporter)
            except FetchCancelled:
                return True
            except FetchFailed as failure:
                steps = self._steps(reporter)
                reporter.enter(Phase.STORED, reason=failure.reason, message=failure.message, startup=steps)
                return False
        try:
            prepared = self._folder.read(PREPARED_FILE) or {}
        except MALFORMED as error:  # the learner's own errors will show what it lacks
            log_event("prepared.unreadable", why=str(error))
            prepared = {}
        reporter.set_fields(**{name: prepared.get(name, "") for name in ("env_digest", "data_digest")})
        if not self._folder.has(GO_FILE):
            if not await self._wait_until(lambda: self._learner.is_waiting):
                return True
            reporter.enter(Phase.READY)
            if not await self._wait_until(lambda: reporter.go.is_set, reporter.go):
                return True
            self._folder.write(GO_FILE, {})
        self._learner.notify()
        return True

    async def _finish_fetching(self, fetch: FetchThread, reporter: Reporter) -> None:
        """Returns when everything is fetched and ``prepared.json`` is written. Raises FetchFailed, FetchCancelled."""
        message_at = 0.0
        loop = asyncio.get_running_loop()
        while not await fetch.wait_done(POLL_S):
            if self._exit() is not None or self._folder.is_removed:
                fetch.cancel()
            if fetch.message != reporter.status.message and loop.time() - message_at >= MESSAGE_S:
                message_at = loop.time()
                reporter.set_fields(startup=self._steps(reporter))
                reporter.set_message(fetch.message)
        reporter.set_fields(startup=self._steps(reporter))
        self._folder.write(PREPARED_FILE, asdict(fetch.result()))

    def _steps(self, reporter: Reporter) -> Mapping[str, Span]:
        """The steps of the start-up as they are now."""
        return {**reporter.status.startup, **(self._fetch.steps if self._fetch is not None else {})}

    async def _wait_until(self, condition: Callable[[], bool], wakeup: Wakeup | None = None) -> bool:
        """Waits for the condition; ``wakeup`` makes it look at once.

        Returns False if the learner was ended first or its folder was removed.
        """
        pause_s = QUICK_S
        while not condition():
            if self._exit() is not None or self._folder.is_removed:
                return False
            await (wakeup.wait(pause_s) if wakeup is not None else asyncio.sleep(pause_s))
            pause_s = min(POLL_S, pause_s * 1.1)
        return True

    # --- while it runs, and after ------------------------------------------------------------------------------------

    async def _follow_process(self, reporter: Reporter, intake: IntakeClient) -> None:
        """Ships lines and metrics until the process has ended, then stores its files and reports the end."""
        from services.helper.checkpoints.thread import CheckpointThread  # noqa: PLC0415 - see the module's docstring
        from services.helper.ship.shipper import Shipper  # noqa: PLC0415 - as above

        checkpoints = CheckpointThread(
            self._folder, self._assignment, self._spool, self._signer, report=reporter.set_checkpoint
        )
        self._shipper = shipper = Shipper(
            self._folder,
            self._assignment,
            self._spool,
            intake,
            usage=self._learner.usage,
            on_point=reporter.set_first_point,
            heartbeats=reporter,
        )
        shipping = asyncio.create_task(shipper.run())
        try:
            with self._learner:
                process_exit = await self._wait_exit(reporter)
            if process_exit is None:
                return
            self._exit_seen_at = asyncio.get_running_loop().time()
            digests = await checkpoints.stop()
            shipper.finish()
            drain_s = load_settings().drain_s
            await self._wait_shipped(shipping, shipper, process_exit, away_limit_s=min(drain_s, REFUSED_S))
            if process_exit.stop_cause == "kill":
                reporter.enter(Phase.STORED, exit=process_exit)
                return
            reporter.enter(Phase.STORING, exit=process_exit)
            problems = [await self._store_outputs(reporter, digests)]
            await self._wait_shipped(shipping, shipper, process_exit, away_limit_s=drain_s)
            if not shipping.done():
                problems.append("the metrics service has not taken its last lines, which are in its stored logs")
            reporter.enter(Phase.STORED, message="; ".join(filter(None, problems)))
            self._write_stored(reporter)
            await self._wait_shipped(shipping, shipper, process_exit)  # until the folder is removed
        finally:
            await checkpoints.stop()
            shipping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await shipping

    async def _wait_exit(self, reporter: Reporter) -> Exit | None:
        """Waits until the learner's process has ended. Returns None where the folder was removed before."""
        while True:
            process_exit = self._learner.exit(RUN)
            started = None if Phase.PROCESSING.value in reporter.status.times else self._folder.started(RUN)
            if started is not None:
                reporter.enter(Phase.PROCESSING, at=started)
            if process_exit is not None:
                return process_exit
            if self._folder.is_removed:
                return None
            await self._learner.pause(quick=Phase.PROCESSING.value not in reporter.status.times)

    async def _wait_shipped(
        self, shipping: asyncio.Task[None], shipper: Shipper, process_exit: Exit, *, away_limit_s: float | None = None
    ) -> None:
        """Waits until every line is taken in, or waiting is of no use: after a kill, or if the service takes nothing.

        ``away_limit_s``: also ends the wait if the service has been away for so long since the end.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not shipping.done() and not self._folder.is_removed:
            if process_exit.stop_cause == "kill" and loop.time() - began > KILLED_S:
                return
            if shipper.refused_since is not None and loop.time() - shipper.refused_since > REFUSED_S:
                log_event("lines.given_up", why="the metrics service takes none")
                return
            if away_limit_s is not None and shipper.stuck_since is not None:
                away_s = min(loop.time() - shipper.stuck_since, loop.time() - self._exit_seen_at)
                if away_s > away_limit_s:
                    log_event("lines.postponed", why="the metrics service is away")
                    return
            await asyncio.wait({shipping}, timeout=POLL_S)
        if shipping.done() and not shipping.cancelled() and shipping.exception() is not None:
            # A failure of shipping keeps neither results nor raw logs from being stored.
            log_event("shipping.failed", why=repr(shipping.exception()))

    async def _store_outputs(self, reporter: Reporter, digests: Digests) -> str:
        """Stores the learner's files. Returns what could not be stored, for people; empty: everything was."""
        from services.helper.store import store_outputs  # noqa: PLC0415 - see the module's docstring

        try:
            return await store_outputs(
                self._folder,
                self._assignment,
                self._spool,
                signer=self._signer,
                digests=digests,
                report_waiting=reporter.set_message,
                report_checkpoint=reporter.set_checkpoint,
            )
        except Exception as error:  # noqa: BLE001 - the edge of storing: no file may keep a job from ending
            log_event("store.failed", why=traceback.format_exc())
            return f"storing its files failed: {error!r}"


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    """Of a task that has ended; None if it was cancelled."""
    return None if task.cancelled() else task.exception()
