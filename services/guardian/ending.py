"""The end of an attempt, in the one order that loses nothing (architecture.md, "The end, in order").

    verdict (written before) -> stop -> STORING until stored -> terminal status -> teardown, gone -> etcd -> released

A crash anywhere leaves a document from which the next Guardian goes on: the verdict keeps a finished job from being
trained again, and ``released`` keeps what is still held from being given to another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import structlog
from prometheus_client import Counter

from services.core.domain.errors import WeftError
from services.core.domain.job import Claim, Job, Verdict, advanced, moved, released
from services.core.domain.learner import LearnerStatus
from services.core.domain.spec import JobSpec
from services.core.domain.status import ADMITTED, Desired, Status
from services.core.jobs import update
from services.core.ports.cluster import Observation
from services.guardian import facts
from services.guardian.ports import GuardianPorts
from services.guardian.settings import GuardianSettings

_MAX_BACKOFF_MS: Final = 300_000
_ended = Counter("guardian_attempts_ended_total", "Attempts that ended", ["to", "reason"])
log = structlog.get_logger()


class Ending:
    """One per Guardian; ``step`` is called until the job is released."""

    def __init__(self, job_id: str, claim: Claim, ports: GuardianPorts, settings: GuardianSettings) -> None:
        self._claim, self._ports, self._settings = claim, ports, settings
        self._stopped: tuple[str, int] | None = None
        self._log = log.bind(job=job_id, term=claim.term)

    async def step(
        self, job: Job, spec: JobSpec, known: Mapping[str, LearnerStatus], observed: Observation | None
    ) -> float:
        """Takes the job as far as it can go now; seconds until the next look."""
        verdict = job.verdict
        if verdict is None:
            raise ValueError(f"job {job.id} has no verdict")
        if job.status in ADMITTED:
            if job.desired is Desired.KILL and verdict.to not in {Status.KILLED, Status.COMPLETED}:
                verdict = replace(verdict, to=Status.KILLED, reason="Killed", message="killed by its owner")
                job = await self._update(job, lambda one: replace(one, verdict=verdict))
            cause, grace_ms = self._how(verdict, spec)
            await self.stop(job, cause=cause, grace_ms=grace_ms)
            if verdict.to is not Status.KILLED:
                job = await self._storing(job)
                missing = facts.unstored(known, observed, job.attempt.number)
                if missing and self._ports.clock.now_ms() < verdict.time + spec.grace + spec.store_timeout:
                    return self._settings.observe_s
            job = await self._finish(job, spec, verdict)
        await self._release(job)
        return 0.0

    def _how(self, verdict: Verdict, spec: JobSpec) -> tuple[str, int]:
        """(cause, grace in ms) for the learners that still run when this verdict falls."""
        if verdict.to is Status.KILLED:
            return "kill", 0
        if verdict.to is Status.HALTED:
            return "halt", spec.grace
        if verdict.reason == "DeadlineExceeded":
            return "deadline", spec.grace
        return "peer", min(spec.grace, round(self._settings.peer_grace_s * 1000))

    async def stop(self, job: Job, *, cause: str, grace_ms: int) -> None:
        """Once for each cause: the cluster remembers it."""
        if self._stopped == (cause, grace_ms):
            return
        await self._ports.cluster.stop(
            job.id, attempt=job.attempt.number, term=self._claim.term, generation=job.generation, cause=cause,
            grace_ms=grace_ms,
        )  # fmt: skip
        self._stopped = (cause, grace_ms)

    async def _storing(self, job: Job) -> Job:
        now = self._ports.clock.now_ms()
        return await self._update(job, lambda one: advanced(one, Status.STORING, actor="guardian", now=now))

    async def _finish(self, job: Job, spec: JobSpec, verdict: Verdict) -> Job:
        summary, now = await self._summary(job), self._ports.clock.now_ms()

        def change(current: Job) -> Job:
            if current.status not in ADMITTED:
                return current
            ended = moved(
                current, verdict.to, actor="guardian", now=now, reason=verdict.reason, message=verdict.message
            )
            ended = replace(ended, summary=summary, observed_generation=current.generation)
            return _queued_again(ended, spec, verdict, now) if verdict.to is Status.QUEUED else ended

        job = await self._update(job, change)
        _ended.labels(to=str(verdict.to), reason=verdict.reason).inc()
        self._log.info("job.ended", to=verdict.to, reason=verdict.reason, attempt=job.attempt.number)
        return job

    async def _summary(self, job: Job) -> Mapping[str, Any]:
        """The metrics service being away must not keep hardware from being given back."""
        try:
            return await self._ports.summaries.summary(job.id)
        except WeftError as error:
            self._log.warning("job.no_summary", why=str(error))
            return job.summary

    async def _release(self, job: Job) -> None:
        await self._ports.cluster.teardown(job.id, attempt=job.attempt.number, term=self._claim.term)
        await self._ports.status.delete_prefix(f"/jobs/{job.id}/")
        now = self._ports.clock.now_ms()
        await self._update(job, lambda one: released(one, now=now) if one.holds else one)
        self._log.info("job.released", attempt=job.attempt.number)
        await self._ports.hints.send("released", job.id)

    async def _update(self, job: Job, change: Any) -> Job:
        return await update(self._ports.jobs, job.id, self._claim, change)


def _queued_again(job: Job, spec: JobSpec, verdict: Verdict, now: int) -> Job:
    """Counted against the job's budget only where the job itself failed, with a back-off that doubles."""
    own = verdict.budgeted
    counters = replace(job.counters, retries=job.counters.retries + own, restarts=job.counters.restarts + (not own))
    tries = counters.retries if own else counters.restarts
    wait = min(spec.retries.backoff * 2 ** min(tries - 1, 20), _MAX_BACKOFF_MS)
    return replace(job, counters=counters, not_before=now + wait)
