"""Ends an attempt, in the only order that loses nothing (architecture.md, "The end, in order").

    verdict (written before) -> stop -> STORING until stored -> terminal status -> teardown, gone -> etcd -> released

After a crash at any point the next Guardian continues from the document: the verdict prevents that a finished job is
trained again, and ``released`` prevents that hardware still in use is given to another job.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from services.core.domain.errors import WeftError
from services.core.domain.job import Claim, Job, Verdict, advanced, moved, released
from services.core.domain.learner import LearnerStatus, step_times
from services.core.domain.outages import Outage, is_outage
from services.core.domain.restart import AFTER_LOSS_MOST_MS, AFTER_LOSS_MS, BACKOFF_MOST_MS, back_off_ms
from services.core.domain.spec import JobSpec, parse_spec
from services.core.domain.status import ADMITTED, Desired, Status
from services.core.domain.status_keys import job_prefix
from services.core.domain.verdict import verdict_of_lost_node
from services.core.ports.cluster import Observation
from services.core.use_cases.jobs import update
from services.guardian import observed_state
from services.guardian.instrumentation import Instrumentation
from services.guardian.ports import GuardianPorts
from services.guardian.settings import GuardianSettings

_DEFAULTS: Final = parse_spec({"name": "unreadable", "command": "unreadable"})
_Log = structlog.typing.FilteringBoundLogger


@dataclass(frozen=True, slots=True)
class Limits:
    """What a spec says about the end, in milliseconds."""

    grace: int
    """Between SIGTERM and SIGKILL."""
    store_timeout: int
    """For storing results, after ``grace``."""
    backoff: int
    """Before the first retry."""

    @classmethod
    def of(cls, spec: JobSpec | None) -> Limits:
        """The spec's limits; the defaults if it cannot be read any more (None)."""
        source = spec or _DEFAULTS
        return cls(source.grace, source.store_timeout, source.retries.backoff)


class Ending:
    """One per Guardian. Call ``step`` until the job is released."""

    def __init__(
        self,
        claim: Claim,
        ports: GuardianPorts,
        settings: GuardianSettings,
        instrumentation: Instrumentation,
        bound: _Log,
    ) -> None:
        self._claim, self._ports, self._settings, self._instrumentation, self._log = (
            claim,
            ports,
            settings,
            instrumentation,
            bound,
        )
        self._outage_most_ms = round(settings.outage_backoff_s * 1000)
        self._stopped: tuple[str, int] | None = None
        """(cause, grace in ms) of the last stop."""
        self._siblings_have_grace: bool | None = None
        """Whether the cluster was ending a learner, with its grace, when the first stop was decided. None: before."""
        self._stopping_since_s: float | None = None
        """On the boot-time clock: a wall clock that jumps must not cost results."""
        self._killed_since_s: float | None = None
        """When a kill of a job that has succeeded was seen; on the same clock."""

    async def step(
        self,
        job: Job,
        verdict: Verdict,
        limits: Limits,
        learners: Mapping[str, LearnerStatus],
        observed: Observation,
    ) -> float:
        """Takes a job with a verdict as far as it can go now. Returns the seconds after which to call again."""
        if job.status in ADMITTED:
            verdict = await self._apply_kill(job, verdict)
            cause, grace_ms = self._stop_parameters(verdict, limits, observed)
            if await self.stop(job, cause=cause, grace_ms=grace_ms):
                return 0.0  # the observation is older than the stop
            missing = ""
            if verdict.to is not Status.KILLED:
                job = await self._to_storing(job, learners)
                left_ms = self._storing_left_ms(job, limits)
                if observed_state.not_stored(job.attempt.number, learners, observed) and left_ms > 0:
                    return min(self._settings.observe_s, left_ms / 1000)
                verdict = await self._apply_lost_node(job, verdict, learners)
                missing = observed_state.storage_failures(
                    job.attempt.number, learners, observed, killed=job.desired is Desired.KILL
                )
            job = await self._finish(job, limits, verdict, missing, learners)
        await self._release(job)
        return 0.0

    async def stop(self, job: Job, *, cause: str, grace_ms: int, again: bool = False) -> bool:
        """Stops the learners, once for each cause and grace unless ``again``. Returns whether this call did it."""
        if self._stopped == (cause, grace_ms) and not again:
            return False
        await self._ports.cluster.stop(
            job.id,
            attempt=job.attempt.number,
            term=self._claim.term,
            generation=job.generation,
            cause=cause,
            grace_ms=grace_ms,
        )
        self._stopped = (cause, grace_ms)
        return True

    def _stopping_ms(self) -> float:
        now = self._ports.clock.boottime()
        self._stopping_since_s = now if self._stopping_since_s is None else self._stopping_since_s
        return (now - self._stopping_since_s) * 1000

    def _storing_left_ms(self, job: Job, limits: Limits) -> float:
        """How long storing may still take: ``store_timeout`` after the grace; after a kill only the grace."""
        left_ms = limits.grace + limits.store_timeout - self._stopping_ms()
        if job.desired is not Desired.KILL:
            return left_ms
        now = self._ports.clock.boottime()
        self._killed_since_s = now if self._killed_since_s is None else self._killed_since_s
        return min(left_ms, limits.grace - (now - self._killed_since_s) * 1000)

    async def _apply_kill(self, job: Job, verdict: Verdict) -> Verdict:
        """The verdict that counts: a kill that came later replaces every verdict but COMPLETED."""
        if job.desired is not Desired.KILL or verdict.to in {Status.KILLED, Status.COMPLETED}:
            return verdict
        before = f" while it ended: {verdict.message}" if verdict.to is Status.FAILED else ""
        killed = replace(
            verdict, to=Status.KILLED, reason="Killed", message=f"killed by {job.requester}{before}", budgeted=False
        )
        await self._update(
            job, lambda current: replace(current, verdict=killed, observed_generation=current.generation)
        )
        return killed

    async def _apply_lost_node(self, job: Job, verdict: Verdict, learners: Mapping[str, LearnerStatus]) -> Verdict:
        """The verdict that counts: the loss of a learner's node, also if its siblings failed before it was known."""
        replaced = verdict_of_lost_node(job, verdict, learners, now=self._ports.clock.now_ms())
        if replaced is None:
            return verdict
        await self._update(job, lambda current: replace(current, verdict=replaced))
        self._log.info("job.verdict_replaced", to=replaced.to, reason=replaced.reason, learner=replaced.learner)
        return replaced

    def _stop_parameters(self, verdict: Verdict, limits: Limits, observed: Observation) -> tuple[str, int]:
        """(cause, grace in ms) for learners that still run after this verdict.

        One whose pod is evicted or deleted is saving its checkpoint, from which the next attempt goes on: it has its
        whole grace, and so have its peers.
        """
        if verdict.to is Status.KILLED:
            return "kill", 0
        if verdict.to is Status.HALTED:
            return "halt", limits.grace
        if verdict.reason == "DeadlineExceeded":
            return "deadline", limits.grace
        if self._siblings_have_grace is None:
            self._siblings_have_grace = any(process.is_ending for process in observed.learners)
        most_ms = limits.grace if self._siblings_have_grace else round(self._settings.peer_grace_s * 1000)
        return "peer", min(limits.grace, most_ms)

    async def _to_storing(self, job: Job, learners: Mapping[str, LearnerStatus]) -> Job:
        """Moves the job to STORING if a process of it ever ran: else there is nothing to store."""
        times = step_times(learners.values())
        if Status.PROCESSING not in times:
            return job
        now = self._ports.clock.now_ms()
        return await self._update(
            job, lambda current: advanced(current, Status.STORING, actor="guardian", now=now, times=times)
        )

    async def _finish(
        self, job: Job, limits: Limits, verdict: Verdict, missing: str, learners: Mapping[str, LearnerStatus]
    ) -> Job:
        """Writes the status that the verdict says. ``missing``: results that could not be stored, for people."""
        summary, now = await self._summary(job), self._ports.clock.now_ms()
        message = "; ".join(filter(None, (verdict.message, missing)))

        def change(current: Job) -> Job:
            actor = current.actor_of_desired if verdict.to in {Status.KILLED, Status.HALTED} else "guardian"
            ended = moved(current, verdict.to, actor=actor, now=now, reason=verdict.reason, message=message)
            checkpoint = observed_state.newest_checkpoint(current, learners, now=now)
            # A short training reports its first step together with its end.
            steps = observed_state.startup_steps(
                current.attempt, learners, expected=len(current.attempt.placement), now=now
            )
            attempt = replace(ended.attempt, startup=steps)
            ended = replace(ended, summary=summary, checkpoint=checkpoint, attempt=attempt)
            if verdict.to is Status.QUEUED:
                return _queued_again(ended, limits, verdict, now, outage_most_ms=self._outage_most_ms)
            return replace(ended, observed_generation=current.generation)

        ended = await self._update(job, change)
        self._instrumentation.ended(job, verdict)
        self._log.info("job.ended", to=verdict.to, reason=verdict.reason, attempt=job.attempt.number)
        return ended

    async def _summary(self, job: Job) -> Mapping[str, Any]:
        """The job's last metrics; the former summary if the metrics service is away or slow: hardware must not wait."""
        try:
            async with asyncio.timeout(self._settings.summary_timeout_s):
                return await self._ports.summaries.summary(job.id)
        except (WeftError, TimeoutError) as error:
            self._log.warning("job.summary_failed", why=str(error) or "the metrics service took too long")
            return job.summary

    async def _release(self, job: Job) -> None:
        """Removes everything of the attempt, then records that its hardware is free."""
        await self._ports.cluster.teardown(job.id, attempt=job.attempt.number, term=self._claim.term)
        await self._ports.status.delete_prefix(job_prefix(job.id))
        now = self._ports.clock.now_ms()
        await self._update(job, lambda current: released(current, now=now) if current.holds else current)
        self._log.info("job.released", attempt=job.attempt.number)
        with structlog.contextvars.bound_contextvars(traceparent=job.trace):
            await self._ports.hints.send("released", job.id)

    async def _update(self, job: Job, change: Callable[[Job], Job]) -> Job:
        return await update(self._ports.jobs, job.id, self._claim, change)


def _queued_again(job: Job, limits: Limits, verdict: Verdict, now: int, *, outage_most_ms: int) -> Job:
    """The job with its counters and back-off for the next attempt.

    Only a failure of the job itself counts against its retry budget. The back-off doubles: from ``retries.backoff``
    after its own failures and after roll-backs, from one second after the loss of a machine or an outage.
    """
    counters, own, undone = job.counters, verdict.budgeted, not job.attempt.committed
    outage = is_outage(verdict.reason)
    counters = replace(
        counters,
        retries=counters.retries + own,
        restarts=counters.restarts + (not own),
        rollbacks=counters.rollbacks + (not outage) if undone and not own else 0,
        outages=counters.outages + outage,
    )
    if own:
        first_ms, times, most_ms = limits.backoff, counters.retries, BACKOFF_MOST_MS
    elif outage:
        first_ms, times, most_ms = AFTER_LOSS_MS, counters.outages, outage_most_ms
    elif undone:
        first_ms, times, most_ms = max(limits.backoff, AFTER_LOSS_MS), counters.rollbacks, BACKOFF_MOST_MS
    else:
        first_ms, times, most_ms = AFTER_LOSS_MS, counters.restarts, AFTER_LOSS_MOST_MS
    pause_ms = back_off_ms(first_ms, times, most_ms)
    if verdict.reason == Outage.QUOTA_IN_USE:
        # Two gangs may have taken parts of one quota from each other: they must not meet again each time.
        pause_ms = round(pause_ms * (0.5 + 0.5 * zlib.crc32(job.id.encode()) / 2**32))
    return replace(job, counters=counters, not_before=now + pause_ms)
