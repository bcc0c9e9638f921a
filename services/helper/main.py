"""The life of a helper: from an inert learner's folder to results in the object store.

Level-based: it is told nothing. Where it stands is in the folder's files (``active``, ``go``, ``start.json``,
``exit.json``, ``stored``), in its spool, and in what the metrics service answers. So it may be killed between any two
instructions; the next one looks, and goes on from there.

Imports matter here: whatever is loaded before the learner runs is waited for by its owner. gRPC alone is two thirds of
it, so fetching begins, in a thread, before gRPC is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.status import Phase
from services.core.runtime.processes import identify
from services.helper.fetch.thread import Fetch
from services.helper.fetch.watched import Cancelled, Cannot
from services.helper.folder import Assignment, LearnerFolder
from services.helper.journal import note
from services.helper.objects import Urls
from services.helper.settings import read as read_settings
from services.helper.shim import ShimWatch
from services.helper.spool import Spool
from services.helper.wakeup import Wakeup

if TYPE_CHECKING:
    from services.helper.metrics_client import Intake
    from services.helper.reporter import Reporter
    from services.helper.ship.shipper import Shipper

RUN: Final = 1
"""A learner is started once per attempt; starting it again within one is not available yet."""
QUICK_S: Final = 0.01
LOOK_S: Final = 0.1
"""How often files are looked at: at first, and while nothing happens."""
SAY_S: Final = 1.0
"""What is being fetched is told this often at most: each time is a write to etcd."""
KILLED_S: Final = 0.3
"""After a kill the last lines are tried for so long; nobody waits for them."""
REFUSED_S: Final = 10.0
"""A metrics service that answers but takes nothing holds up the end for so long: logs are stored as files as well."""
HELD: Final = 75
"""Exit code: another helper of this learner lives (EX_TEMPFAIL)."""


def main(root: Path) -> int:
    """The exit code: 0 once the learner is stored, or HELD."""
    os.umask(0o022)
    folder = LearnerFolder(root)
    if folder.lock() is None:
        return HELD
    me = identify(os.getpid())
    # For the agent, who can do without: a disk that the learner has filled must not keep its results from being stored.
    with contextlib.suppress(OSError):
        folder.write("helper.json", asdict(me) if me is not None else {})
    if not folder.has("stored"):
        asyncio.run(Helper(folder).live())
    return 0


class Helper:
    """One learner's helper, in one process, under ``helper.lock``."""

    def __init__(self, folder: LearnerFolder) -> None:
        self._folder = folder
        self._assignment: Assignment = folder.assignment()
        self._spool = Spool(folder.root / "spool")
        self._fetch: Fetch | None = None
        self._shipper: Shipper | None = None
        self._urls: Urls
        self._end_seen = 0.0

    async def live(self) -> None:
        """Returns when the learner is stored, or when its folder was removed."""
        self._urls = Urls()
        if self._folder.has("active"):
            self._begin_fetching()
        reporter, intake = self._connect()
        telling = asyncio.create_task(reporter.run())
        try:
            if await self._started(reporter):
                await self._attend(reporter, intake)
            self._write_last_words(reporter)
            while not self._folder.is_removed and not await reporter.told(LOOK_S):
                pass
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling
            await intake.close()

    def _write_last_words(self, reporter: Reporter) -> None:
        """All is stored. The agent tells it on, so that no end waits for a metrics service that is away."""
        if not self._folder.is_removed and not self._folder.has("stored"):
            said = reporter.status
            self._folder.write("stored", {"phase": said.phase.value, "reason": said.reason, "message": said.message})

    def _connect(self) -> tuple[Reporter, Intake]:
        # Imported only now: see the module's docstring.
        from services.helper.metrics_client import Intake  # noqa: PLC0415
        from services.helper.reporter import Reporter  # noqa: PLC0415

        learner, plan = self._assignment.learner, self._assignment.plan
        status = self._spool.report(
            LearnerStatus(
                name=learner.name, role=learner.role, rank=learner.rank, attempt=plan.attempt, seq=0,
                phase=Phase.WAITING,
            )
        )  # fmt: skip
        intake = Intake(Path(self._assignment.addresses_file), learner.token)
        self._urls.asked_of(intake)
        if "WEFT_FAILPOINTS" in os.environ:  # never in production
            from services.core.failpoints.ports import at_failpoint  # noqa: PLC0415 - as above

            intake = at_failpoint(intake, "intake", "helper")
        reporter = Reporter(
            intake, self._spool, status, lambda: self._shipper.progress if self._shipper is not None else (-1.0, -1)
        )
        reporter.enter(Phase.WAITING)
        return reporter, intake

    # --- until the process may start ---------------------------------------------------------------------------------

    def _exit(self) -> Exit | None:
        return self._folder.exit(RUN)

    def _begin_fetching(self) -> None:
        if not any(map(self._folder.has, ("go", "prepared.json"))) and self._exit() is None:
            self._fetch = Fetch(self._folder, self._assignment, self._urls)

    async def _started(self, reporter: Reporter) -> bool:
        """True: the process has been let go, or has ended before it was. False: it never can, and that is reported."""
        if reporter.status.reason:
            return False  # so it was found by a helper before this one
        if self._exit() is not None:
            return True
        if not await self._look_for(lambda: self._folder.has("active")):
            return True
        if self._fetch is None:
            self._begin_fetching()
        if self._fetch is not None:
            reporter.enter(Phase.DOWNLOADING)
            try:
                await self._fetched(self._fetch, reporter)
            except Cancelled:
                return True
            except Cannot as cannot:
                reporter.enter(Phase.STORED, reason=cannot.reason, message=cannot.message)
                return False
        try:
            prepared = self._folder.read("prepared.json") or {}
        except ValueError as error:  # the learner will say what it lacks
            note("prepared.unreadable", why=str(error))
            prepared = {}
        reporter.note(**{name: prepared.get(name, "") for name in ("env_digest", "data_digest")})
        if not self._folder.has("go"):
            reporter.enter(Phase.READY)
            if not await self._look_for(lambda: reporter.go.rung, reporter.go):
                return True
            self._folder.write("go", {})
        ShimWatch(self._folder).wake()
        return True

    async def _fetched(self, fetch: Fetch, reporter: Reporter) -> None:
        """Everything is there and ``prepared.json`` says how to use it. Cannot, or Cancelled by a stop."""
        said = 0.0
        loop = asyncio.get_running_loop()
        while not await fetch.done(LOOK_S):
            if self._exit() is not None or self._folder.is_removed:
                fetch.cancel()
            if fetch.message != reporter.status.message and loop.time() - said >= SAY_S:
                said = loop.time()
                reporter.say(fetch.message)
        self._folder.write("prepared.json", asdict(fetch.result()))

    async def _look_for(self, sign: Callable[[], bool], wakeup: Wakeup | None = None) -> bool:
        """Waits for it (an alarm tells at once); False where the learner was ended before, or its folder is gone."""
        wait = QUICK_S
        while not sign():
            if self._exit() is not None or self._folder.is_removed:
                return False
            await (wakeup.wait(wait) if wakeup is not None else asyncio.sleep(wait))
            wait = min(LOOK_S, wait * 1.1)
        return True

    # --- while it runs, and after ------------------------------------------------------------------------------------

    async def _attend(self, reporter: Reporter, intake: Intake) -> None:
        from services.helper.ship.shipper import Shipper  # noqa: PLC0415 - see the module's docstring

        self._shipper = shipper = Shipper(self._folder, self._assignment, self._spool, intake, RUN)
        shipping = asyncio.create_task(shipper.run())
        try:
            with ShimWatch(self._folder) as shim:
                end = await self._ended(reporter, shim)
            if end is None:
                return
            self._end_seen = asyncio.get_running_loop().time()
            shipper.end()
            drain_s = read_settings().drain_s
            await self._shipped(shipping, shipper, end, stuck_s=min(drain_s, REFUSED_S))
            if end.stop_cause == "kill":
                reporter.enter(Phase.STORED, exit=end)
                return
            reporter.enter(Phase.STORING, exit=end)
            missing = [await self._stored(reporter.say)]
            await self._shipped(shipping, shipper, end, stuck_s=drain_s)
            if not shipping.done():
                missing.append("the metrics service has not taken its last lines, which are in its stored logs")
            reporter.enter(Phase.STORED, message="; ".join(filter(None, missing)))
            self._write_last_words(reporter)
            await self._shipped(shipping, shipper, end)  # for as long as nobody removes them
        finally:
            shipping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await shipping

    async def _ended(self, reporter: Reporter, shim: ShimWatch) -> Exit | None:
        """How the learner's process ended; None where the folder was removed before it did."""
        while True:
            end = self._exit() or shim.lost(RUN)
            started = None if Phase.PROCESSING.value in reporter.status.times else self._folder.started(RUN)
            if started is not None:
                reporter.enter(Phase.PROCESSING, at=started)
            if end is not None:
                return end
            if self._folder.is_removed:
                return None
            await shim.pause(quick=Phase.PROCESSING.value not in reporter.status.times)

    async def _shipped(
        self, shipping: asyncio.Task[None], shipper: Shipper, end: Exit, *, stuck_s: float | None = None
    ) -> None:
        """Every line is taken in; or nobody waits for them any more; or nobody takes them.

        ``stuck_s``: nor where the service has been away for so long since the end.
        """
        loop = asyncio.get_running_loop()
        since = loop.time()
        while not shipping.done() and not self._folder.is_removed:
            if end.stop_cause == "kill" and loop.time() - since > KILLED_S:
                return
            if shipper.refused_since is not None and loop.time() - shipper.refused_since > REFUSED_S:
                note("lines.left", why="the metrics service takes none")
                return
            if stuck_s is not None and shipper.stuck_since is not None:
                away_s = min(loop.time() - shipper.stuck_since, loop.time() - self._end_seen)
                if away_s > stuck_s:
                    note("lines.wait", why="the metrics service is away")
                    return
            await asyncio.wait({shipping}, timeout=LOOK_S)
        if shipping.done() and not shipping.cancelled() and shipping.exception() is not None:
            # Whatever went wrong there, results and raw logs are still to be stored.
            note("shipping.failed", why=repr(shipping.exception()))

    async def _stored(self, say: Callable[[str], None]) -> str:
        """Stores what the learner leaves; what could not be, in words."""
        from services.helper.store import store  # noqa: PLC0415 - see the module's docstring

        return await store(self._folder, self._assignment, self._spool, RUN, urls=self._urls, say=say)
