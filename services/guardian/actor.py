"""The Guardian of one job: an actor with one claim, one term and ``reconcile()``.

Level-based, as a controller in Kubernetes: each reconcile reads the document, observes the learners, and takes the next
step towards the desired state. Events only say when; any number of them may be lost or repeated, and the process may
die between any two lines.

    admitted ─ provision (steps) ─ committed ─ running ─ verdict ─ stop ─ stored ─ terminal status ─ teardown ─ released

The steps up to the verdict are here and in ``provisioning``; those from the verdict on are in ``ending``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from services.core.domain.errors import InvalidSpec, StaleFence, Unavailable, WeftError
from services.core.domain.job import Claim, Job, Verdict, moved
from services.core.domain.learner import LearnerStatus, step_times
from services.core.domain.restart import as_running
from services.core.domain.spec import JobSpec, parse_spec
from services.core.domain.status import ADMITTED, Desired, Status
from services.core.domain.units import format_duration
from services.core.domain.verdict import decide_verdict
from services.core.ports.cluster import Observation
from services.core.runtime.retry import Backoff
from services.core.use_cases.jobs import copy_history, update
from services.guardian import observed_state
from services.guardian.ending import Ending, Limits
from services.guardian.instrumentation import Instrumentation
from services.guardian.learner_view import LearnerView
from services.guardian.ports import GuardianPorts
from services.guardian.provisioning import Provisioning, announce, check_current
from services.guardian.restarts import Restarts
from services.guardian.settings import GuardianSettings

_RETRY_S: Final = 0.2
_RETRY_MOST_S: Final = 5.0
_IGNORE_EVENTS_S: Final = 1.0
"""For so long after a failure events start no reconcile: its own writes cause events, too."""
_SMALL_GANG: Final = 100
_PACE_S: Final = 1e-4
"""For each learner of a larger gang: for so long after a reconcile events start no other one. A reconcile walks all
learners, and each learner's report is an event: one for each would cost the square of their number."""


@dataclass(frozen=True, slots=True)
class Result:
    """When to reconcile again if no event comes."""

    requeue_after_s: float | None = 0.0
    """Seconds; None: never, the job is released."""


_REQUEUE: Final = Result(0.0)
_DONE: Final = Result(None)


class Guardian:
    """``run()`` returns when the job is released; it raises StaleFence when another Guardian has claimed the job."""

    def __init__(
        self,
        job: Job,
        ports: GuardianPorts,
        settings: GuardianSettings,
        view: LearnerView,
        instrumentation: Instrumentation,
    ) -> None:
        self.job_id = job.id
        self.trace = job.trace
        self.claim: Claim = job.guardian
        self.generation = job.generation
        """Of the desired state, as last read. The pool requests a reconcile when the document has another one."""
        self._ports, self._settings, self._view = ports, settings, view
        self._requested = asyncio.Event()
        self._cluster_changed = True
        self._observation_due = False
        """No event came for the time after which a job is observed again."""
        self._is_fresh = False
        """This reconcile has read the cluster itself. Decisions are made on such an observation only."""
        self._observed: Observation = observed_state.EMPTY
        self._earlier: frozenset[str] = frozenset()
        """Learners that are to run again, and whose earlier run was still there when the cluster was observed."""
        self._contradicted: dict[str, LearnerStatus] = {}
        """The last report by learner that the cluster's record contradicted."""
        self._parsed: tuple[Mapping[str, Any], JobSpec | None] | None = None
        """The stored spec and what it was parsed to; None as the latter: it cannot be read."""
        self._pace_s = 0.0
        """See ``_PACE_S``; known after the first reconcile."""
        self._instrumentation = instrumentation
        self._log = structlog.get_logger().bind(job=job.id, term=self.claim.term, trace=job.trace)
        self._provisioning = Provisioning(self.claim, ports, settings, self._log)
        self._restarts = Restarts(self.claim, ports, settings, instrumentation, self._log)
        self._ending = Ending(self.claim, ports, settings, instrumentation, self._log)

    def request_reconcile(self, *, cluster_changed: bool = False) -> None:
        """Starts a reconcile now. ``cluster_changed``: it must observe the cluster again."""
        self._cluster_changed = self._cluster_changed or cluster_changed
        self._requested.set()

    async def run(self) -> None:
        """Reconciles until the job is released: on request, when a result is due, and with back-off after errors."""
        backoff = Backoff(first_s=_RETRY_S, most_s=_RETRY_MOST_S)
        requeue_after_s: float | None = 0.0
        failed = False
        while requeue_after_s is not None:
            await self._wait(requeue_after_s, ignore_events_s=_IGNORE_EVENTS_S if failed else self._pace_s)
            try:
                requeue_after_s, failed = (await self.reconcile()).requeue_after_s, False
                backoff.reset()
            except StaleFence:
                raise
            except WeftError as error:
                requeue_after_s, failed = backoff.next(), True
                self._cluster_changed = True
                self._log.warning("guardian.reconcile_failed", why=str(error), delay_s=requeue_after_s)

    async def _wait(self, seconds: float, *, ignore_events_s: float) -> None:
        """Returns after ``seconds``, or on a request that comes after ``ignore_events_s``."""
        if ignored_s := min(seconds, ignore_events_s):
            await self._ports.clock.sleep(ignored_s)
        try:
            async with asyncio.timeout(seconds - ignored_s):
                await self._requested.wait()
        except TimeoutError:
            self._observation_due = True
        self._requested.clear()

    async def reconcile(self) -> Result:
        """Takes one step towards the desired state.

        Raises StaleFence if another Guardian has claimed the job, and other WeftErrors to be called again later.
        """
        job = await self._ports.jobs.get(self.job_id)
        if job is None:
            self._log.warning("guardian.job_removed")
            return _DONE
        if not job.holds:
            await self._forget(job)
            return _DONE
        if (job.guardian.term, job.guardian.nonce) != (self.claim.term, self.claim.nonce):
            raise StaleFence(f"job {job.id} has another Guardian (term {job.guardian.term})")
        self.generation = job.generation
        spec = self._spec(job)
        ranks, attempt = observed_state.ranks(spec, job.attempt), job.attempt.number
        self._pace_s = len(ranks) * _PACE_S if len(ranks) > _SMALL_GANG else 0.0
        # Before the observation: ends are recorded, then reported.
        reported = observed_state.latest_reports(job.attempt, self._view.learners(job.id, attempt))
        await self._observe(job, reported)
        learners = observed_state.merge(ranks, attempt, reported, self._observed)
        if spec is not None and job.status in ADMITTED:
            await self._announce(job, spec)  # while stopping, too: helpers store only under a current attempt
        if job.verdict is not None:
            after_s = await self._ending.step(job, job.verdict, Limits.of(spec), learners, self._observed)
            return Result(after_s)
        if spec is None:
            return await self._write_verdict(job, self._unreadable_spec(job))
        return await self._advance(job, spec, learners)

    async def _observe(self, job: Job, reported: Mapping[str, LearnerStatus]) -> None:
        """Observes the cluster if it may have changed. Decisions on a halt, or after a verdict, need its state now.

        A periodic observation of a gang that was started as a whole may come from the adapter's cache. Reports of ends
        that the cluster has not recorded are counted: each once.
        """
        attempt = job.attempt.number
        self._is_fresh = (
            self._cluster_changed
            or (self._observation_due and not job.attempt.committed)
            or job.desired is Desired.HALT
            or job.verdict is not None
            or bool(observed_state.contradicted(attempt, reported, self._observed))
        )
        if self._is_fresh or self._observation_due:
            self._cluster_changed = self._observation_due = False  # first: it may change again meanwhile
            observed = await self._ports.cluster.observe(job.id, cached=not self._is_fresh)
            self._observed = observed_state.latest_runs(job.attempt, observed)
            self._earlier = observed_state.earlier_runs(job.attempt, observed)
        for learner in observed_state.contradicted(attempt, reported, self._observed):
            if self._contradicted.get(learner.name) != learner:
                self._contradicted[learner.name] = learner
                self._instrumentation.contradicted.inc()
                self._log.warning(
                    "report.contradicted",
                    attempt=attempt,
                    learner=learner.name,
                    phase=learner.phase,
                    reported=learner.exit.shell_code if learner.exit else None,
                    reason=learner.reason,
                )

    async def _forget(self, job: Job) -> None:
        """After the release: frees memory and copies the history now, not at the LCM's next sweep."""
        self._view.forget(job.id, through=job.attempt.number)
        await copy_history(self._ports.jobs, job)

    @property
    def _now(self) -> int:
        return self._ports.clock.now_ms()

    def _spec(self, job: Job) -> JobSpec | None:
        """The spec, or None if it cannot be read. Parsed once: it does not change."""
        if self._parsed is None or self._parsed[0] != job.spec:
            try:
                self._parsed = (job.spec, parse_spec(job.spec))
            except InvalidSpec as error:
                self._log.error("job.spec_refused", why=str(error))
                self._parsed = (job.spec, None)
        return self._parsed[1]

    def _unreadable_spec(self, job: Job) -> Verdict:
        if job.desired is Desired.KILL:
            return Verdict(to=Status.KILLED, reason="Killed", message=f"killed by {job.requester}", time=self._now)
        message = "its stored spec cannot be read any more; submit it anew"
        return Verdict(to=Status.FAILED, reason="Misconfigured", message=message, time=self._now)

    async def _advance(self, job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus]) -> Result:
        """One step of a job without a verdict: provision, record progress, halt, or write the verdict."""
        ranks, attempt = observed_state.ranks(spec, job.attempt), job.attempt.number
        activated = job.attempt.committed or observed_state.all_activated(ranks, attempt, learners, self._observed)
        if job.attempt.committed:
            unmade = self._restarts.unmade(job, self._observed)
            expected = {name: rank for name, rank in ranks.items() if name not in unmade}
            learners = observed_state.with_lost(expected, attempt, learners, self._observed, now=self._now)
        verdict = decide_verdict(job, spec, learners, now=self._now)
        if job.desired is Desired.HALT and (verdict is None or verdict.to is Status.HALTED):
            return await self._halt(job, spec, self._with_observed(spec, learners, activated=activated))
        if verdict is None:
            verdict = self._deadline_exceeded(job, spec, learners)
            verdict = verdict or self._restarts.late(job, spec, learners, self._observed)
        if verdict is None and not activated:
            verdict = self._provisioning.late(job, self._observed)
        if not self._is_fresh and (verdict or self._restarts.is_due(job, spec, learners, self._observed)):
            self._cluster_changed = True
            return _REQUEUE
        if verdict is None and not activated:
            verdict = await self._provisioning.provision(job, spec)
            if verdict is None:
                self._observed = observed_state.latest_runs(job.attempt, await self._ports.cluster.observe(job.id))
                activated = observed_state.all_activated(ranks, attempt, learners, self._observed)
                verdict = None if activated else self._provisioning.lost(job, self._observed)
        record = self._with_observed(spec, learners, activated=activated)
        if verdict is not None:
            return await self._write_verdict(job, verdict, record)
        await self._announce(job, spec)
        job = await self._update(job, record)
        if await self._restarts.decide(job, spec, learners) or await self._restarts.carry_out(
            job, spec, self._observed, earlier=self._earlier
        ):
            self._cluster_changed = True  # what was observed is of the run before
            return _REQUEUE
        return self._requeue_after(job, spec)

    def _with_observed(
        self, spec: JobSpec, learners: Mapping[str, LearnerStatus], *, activated: bool
    ) -> Callable[[Job], Job]:
        """A change that records the observed state; other changes of the same step go into the same replace."""
        now, observed = self._now, self._observed
        return lambda job: observed_state.with_observed(
            job,
            as_running(job, spec, learners),
            expected=spec.learners,
            activated=activated,
            now=now,
            observed=observed,
        )

    def _requeue_after(self, job: Job, spec: JobSpec) -> Result:
        """At the next deadline, and at the latest after ``observe_s``."""
        waits = [self._settings.observe_s]
        if spec.max_runtime is not None and job.attempt.started is not None:
            waits.append((job.attempt.started + spec.max_runtime - self._now) / 1000)
        if (due := self._restarts.next_due_ms(job, self._observed)) is not None and due > self._now:
            waits.append((due - self._now) / 1000)
        return Result(max(0.01, min(waits)))

    def _deadline_exceeded(self, job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus]) -> Verdict | None:
        started = job.attempt.started or step_times(learners.values()).get(Status.PROCESSING)
        if started is None:
            return self._start_timeout(job, spec, learners)
        if spec.max_runtime is None or self._now < started + spec.max_runtime:
            return None
        limit = format_duration(spec.max_runtime)
        message = f"it ran longer than its max_runtime of {limit}; what it had was stored"
        return Verdict(to=Status.FAILED, reason="DeadlineExceeded", message=message, time=self._now)

    def _start_timeout(self, job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus]) -> Verdict | None:
        waited_s = (self._now - (job.attempt.admitted or self._now)) / 1000
        if not job.attempt.committed or waited_s <= self._settings.start_timeout_s:
            return None
        ranks = observed_state.ranks(spec, job.attempt)
        phases = sorted({learners[name].phase.value if name in learners else "silent" for name in ranks})
        message = f"no process of it ran within {waited_s:.0f} s of its admission; its learners are {', '.join(phases)}"
        return Verdict(to=Status.FAILED, reason="StartTimeout", message=message, time=self._now)

    async def _write_verdict(
        self, job: Job, verdict: Verdict, record: Callable[[Job], Job] = lambda job: job
    ) -> Result:
        """Writes the verdict unless there is one: the first cause wins. ``record``: goes into the same replace."""

        def change(current: Job) -> Job:
            if current.verdict is not None or not current.holds:
                return current
            current = record(current)
            desired_reached = verdict.to in {Status.KILLED, Status.HALTED}
            return replace(
                current,
                verdict=verdict,
                attempt=replace(current.attempt, direction="stop"),
                observed_generation=current.generation if desired_reached else current.observed_generation,
            )

        await self._update(job, change)
        self._log.info("job.verdict_written", to=verdict.to, reason=verdict.reason, learner=verdict.learner)
        return _REQUEUE

    async def _halt(self, job: Job, spec: JobSpec, record: Callable[[Job], Job]) -> Result:
        """Stops the learners. Once all on the cluster have ended the verdict is HALTED; if all succeeded, COMPLETED."""
        if job.status is not Status.HALTING:
            now = self._now

            def change(current: Job) -> Job:
                if current.status is Status.HALTING or current.verdict is not None:
                    return current
                halting = moved(
                    record(current), Status.HALTING, actor=current.actor_of_desired, now=now, reason=current.halt_reason
                )
                return replace(halting, observed_generation=halting.generation)

            job = await self._update(job, change)
        if not observed_state.not_ended(job.attempt.number, self._observed):
            attempt = job.attempt.number
            ran = any(process.attempt == attempt and process.started is not None for process in self._observed.learners)
            message = f"halted by {job.requester}{'' if ran else ' before it had started'}"
            verdict = Verdict(to=Status.HALTED, reason=job.halt_reason, message=message, time=self._now)
            return await self._write_verdict(job, verdict, record)
        if await self._ending.stop(job, cause="halt", grace_ms=spec.grace):
            return _REQUEUE
        if observed_state.has_inert(job.attempt.number, self._observed):
            # A call that was sent before the stop has made it afterwards. Without a mark of its own it would never end.
            await self._ending.stop(job, cause="halt", grace_ms=spec.grace, again=True)
        return Result(self._settings.observe_s)

    async def _announce(self, job: Job, spec: JobSpec) -> None:
        """Announces the attempt again if etcd has lost it. Helpers can wait, so etcd being away blocks nothing here."""
        if self._view.announced(job.id) == job.attempt.number:
            return
        try:
            await announce(
                self._ports.status,
                job,
                spec.learners,
                check_current=lambda: check_current(self._ports.jobs, job, self.claim),
            )
        except Unavailable as error:
            self._log.info("attempt.not_announced", why=str(error))

    async def _update(self, job: Job, change: Callable[[Job], Job]) -> Job:
        return await update(self._ports.jobs, job.id, self.claim, change)
