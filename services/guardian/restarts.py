"""Starts single learners again within a running attempt (docs/adr/0023-restart-of-one-learner.md).

The decision is durable first: the document gets the learner's next run, its count and its back-off in one replace. Then
the steps ``learners`` and ``activate`` of the attempt's plan are repeated, in which this learner has the higher run.
Every Guardian that finds a run in the document that the cluster has not made repeats them, so a crash loses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import structlog

from services.core.domain.errors import InvalidRequest, ResourceExhausted, Unavailable
from services.core.domain.job import Claim, Job, Verdict
from services.core.domain.learner import LearnerStatus
from services.core.domain.restart import late_rerun, next_restart, restarted
from services.core.domain.spec import JobSpec
from services.core.domain.status import Status
from services.core.ports.cluster import Observation
from services.core.use_cases.jobs import update
from services.guardian.instrumentation import Instrumentation
from services.guardian.observed_state import unmade_reruns
from services.guardian.ports import GuardianPorts
from services.guardian.render import render
from services.guardian.settings import GuardianSettings

_Log = structlog.typing.FilteringBoundLogger


class Restarts:
    """One per Guardian."""

    def __init__(
        self,
        claim: Claim,
        ports: GuardianPorts,
        settings: GuardianSettings,
        instrumentation: Instrumentation,
        bound: _Log,
    ) -> None:
        self._claim, self._ports, self._settings, self._log = claim, ports, settings, bound
        self._instrumentation = instrumentation
        self._made: dict[str, int] = {}
        """Learner -> the run that the cluster has made. If that is missing on the cluster, it was lost."""
        self._refused: dict[str, tuple[int, str]] = {}
        """Learner -> (run, why) that the cluster cannot make, however long it is tried."""

    def unmade(self, job: Job, observed: Observation) -> frozenset[str]:
        """The learners that are not on the cluster because their next run is not made yet."""
        unmade = unmade_reruns(job.attempt, observed)
        return frozenset(name for name, run in unmade.items() if self._made.get(name) != run)

    def is_due(self, job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus], observed: Observation) -> bool:
        """Returns True if ``decide`` or ``carry_out`` would change something now."""
        now = self._ports.clock.now_ms()
        return next_restart(job, spec, learners, now=now) is not None or bool(self._due(job, observed, now=now))

    async def decide(self, job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus]) -> bool:
        """Records the restart of the learner that failed first, if one is to be started again now."""
        now = self._ports.clock.now_ms()
        restart = next_restart(job, spec, learners, now=now)
        if restart is None:
            return False
        failed_run = job.attempt.run_of(restart.learner)

        def change(current: Job) -> Job:
            if current.attempt.number != job.attempt.number or current.attempt.run_of(restart.learner) != failed_run:
                return current
            return restarted(current, spec, restart, now=now)

        await update(self._ports.jobs, job.id, self._claim, change)
        self._instrumentation.restarts.labels("job" if restart.budgeted else "infrastructure").inc()
        self._log.info(
            "learner.restarted",
            attempt=job.attempt.number,
            learner=restart.learner,
            run=failed_run + 1,
            reason=restart.reason,
        )
        return True

    async def carry_out(self, job: Job, spec: JobSpec, observed: Observation, *, earlier: Collection[str]) -> bool:
        """Makes the runs that are due and not on the cluster. Returns whether it made one.

        Those that the cluster cannot make now are tried again later: the other learners go on meanwhile. ``earlier``:
        learners with an earlier run on the cluster. The first plan has it removed. While that takes long, e.g. because
        a pod may store for half an hour, a second plan makes the runs of the other learners.
        """
        due, unmade = self._due(job, observed, now=self._ports.clock.now_ms()), self.unmade(job, observed)
        for learners in filter(None, dict.fromkeys((due, due.difference(earlier)))):
            try:
                await self._make(job, spec, waiting=unmade - learners)
            except Unavailable as error:
                self._log.info("learner.restart_waits", learners=sorted(learners), why=str(error))
            except (InvalidRequest, ResourceExhausted) as error:
                self._log.warning("learner.restart_refused", learners=sorted(learners), why=str(error))
                self._refused |= {name: (job.attempt.run_of(name), str(error)) for name in learners}
                return False
            else:
                self._made |= {name: job.attempt.run_of(name) for name in learners}
                return True
        return False

    async def _make(self, job: Job, spec: JobSpec, *, waiting: Collection[str]) -> None:
        """Repeats the steps that make learners. Of those that wait the cluster neither removes nor makes a run."""
        plan = render(job, spec, term=self._claim.term, mint=self._ports.mint, sizes=self._ports.sizes)
        learners = tuple(
            replace(learner, run=learner.run - 1) if learner.name in waiting else learner for learner in plan.learners
        )
        for step in self._ports.cluster.steps()[1:]:
            await self._ports.cluster.do(step, replace(plan, learners=learners))

    def _due(self, job: Job, observed: Observation, *, now: int) -> frozenset[str]:
        """The learners whose next run is to be made now. ``now``: Unix ms."""
        unmade = self.unmade(job, observed)
        return frozenset(name for name in unmade if job.attempt.reruns[name].not_before <= now)

    def late(
        self, job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus], observed: Observation
    ) -> Verdict | None:
        """A verdict if a learner that the gang needs cannot be started again in time: then all are, elsewhere."""
        now = self._ports.clock.now_ms()
        refused = {name for name, (run, _) in self._refused.items() if run == job.attempt.run_of(name)}
        timeout_ms = self._settings.provision_timeout_s * 1000
        name = late_rerun(job, spec, learners, now=now, timeout_ms=timeout_ms, hopeless=refused)
        if name is None:
            return None
        reason, why = "LearnerLost", self._refused[name][1] if name in refused else ""
        process = next((process for process in observed.learners if process.name == name), None)
        if process is not None and process.blocked:
            reason, why = process.blocked, process.blocked_message
        return Verdict(
            to=Status.QUEUED,
            reason=reason,
            time=now,
            learner=name,
            message=f"learner {name} could not be started again in time{f': {why}' if why else ''}; trying again",
        )

    def next_due_ms(self, job: Job, observed: Observation) -> int | None:
        """When the next run is due, Unix ms; None: none waits."""
        return min((job.attempt.reruns[name].not_before for name in self.unmade(job, observed)), default=None)
