"""The end of an attempt, in the one order that loses nothing (architecture.md, "The end, in order").

    verdict (written before) -> stop -> STORING until stored -> terminal status -> teardown, gone -> etcd -> released

A crash anywhere leaves a document from which the next Guardian goes on: the verdict keeps a finished job from being
trained again, and ``released`` keeps what is still held from being given to another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from services.core.domain.errors import WeftError
from services.core.domain.job import Claim, Job, Verdict, advanced, moved, released
from services.core.domain.learner import LearnerStatus, step_times
from services.core.domain.spec import JobSpec, parse_spec
from services.core.domain.status import ADMITTED, Desired, Status
from services.core.ports.cluster import Observation
from services.core.use_cases.jobs import update
from services.guardian import observed_state
from services.guardian.instrumentation import Instrumentation
from services.guardian.ports import GuardianPorts
from services.guardian.settings import GuardianSettings

_AFTER_LOSS_MS: Final = 1_000
_AFTER_LOSS_MOST_MS: Final = 10_000
"""A lost machine is no fault of the job's: it is tried again soon, but not in a frenzy."""
_BACKOFF_MOST_MS: Final = 300_000
_DEFAULTS: Final = parse_spec({"name": "unreadable", "command": "unreadable"})
_Log = structlog.typing.FilteringBoundLogger


@dataclass(frozen=True, slots=True)
class Limits:
    """What a spec grants to learners that end, in milliseconds; the defaults where it cannot be read any more."""

    grace: int
    store_timeout: int
    backoff: int

    @classmethod
    def of(cls, spec: JobSpec | None) -> Limits:
        """Those of the spec."""
        given = spec or _DEFAULTS
        return cls(given.grace, given.store_timeout, given.retries.backoff)


class Ending:
    """One per Guardian; ``step`` is called until the job is released."""

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
        self._stopped: tuple[str, int] | None = None
        self._since: float | None = None
        """When we first stopped it, by the clock that never jumps: a wall clock put wrong must not cost results."""

    async def step(
        self, job: Job, verdict: Verdict, limits: Limits, known: Mapping[str, LearnerStatus], seen: Observation
    ) -> float:
        """Takes the job, whose verdict is written, as far as it can go now. Seconds until the next look."""
        if job.status in ADMITTED:
            verdict = await self._overruled(job, verdict)
            cause, grace_ms = self._how(verdict, limits)
            if await self.stop(job, cause=cause, grace_ms=grace_ms):
                return 0.0  # what was seen before the stop may have changed
            if verdict.to is not Status.KILLED:
                job = await self._storing(job, known)
                left_ms = limits.grace + limits.store_timeout - self._stopping_ms()
                if observed_state.unstored(job.attempt.number, known, seen) and left_ms > 0:
                    return min(self._settings.observe_s, left_ms / 1000)
            unkept = "" if verdict.to is Status.KILLED else observed_state.unkept(job.attempt.number, known, seen)
            job = await self._finish(job, limits, verdict, unkept)
        await self._release(job)
        return 0.0

    async def stop(self, job: Job, *, cause: str, grace_ms: int) -> bool:
        """Tells the learners to end: once for each cause, the cluster remembers it. Whether this was the first time."""
        if self._stopped == (cause, grace_ms):
            return False
        await self._ports.cluster.stop(
            job.id, attempt=job.attempt.number, term=self._claim.term, generation=job.generation, cause=cause,
            grace_ms=grace_ms,
        )  # fmt: skip
        self._stopped = (cause, grace_ms)
        return True

    def _stopping_ms(self) -> float:
        now = self._ports.clock.boottime()
        self._since = now if self._since is None else self._since
        return (now - self._since) * 1000

    async def _overruled(self, job: Job, verdict: Verdict) -> Verdict:
        """The verdict; a kill that came after it overrules every one but success."""
        if job.desired is not Desired.KILL or verdict.to in {Status.KILLED, Status.COMPLETED}:
            return verdict
        before = f" while it ended: {verdict.message}" if verdict.to is Status.FAILED else ""
        killed = replace(
            verdict, to=Status.KILLED, reason="Killed", message=f"killed by its owner{before}", budgeted=False
        )
        await self._update(job, lambda one: replace(one, verdict=killed, observed_generation=one.generation))
        return killed

    def _how(self, verdict: Verdict, limits: Limits) -> tuple[str, int]:
        """(cause, grace in ms) for the learners that still run when this verdict falls."""
        if verdict.to is Status.KILLED:
            return "kill", 0
        if verdict.to is Status.HALTED:
            return "halt", limits.grace
        if verdict.reason == "DeadlineExceeded":
            return "deadline", limits.grace
        return "peer", min(limits.grace, round(self._settings.peer_grace_s * 1000))

    async def _storing(self, job: Job, known: Mapping[str, LearnerStatus]) -> Job:
        """STORING, if there is anything to store: where no process ever ran the history must not say so."""
        times = step_times(known.values())
        if Status.PROCESSING not in times:
            return job
        now = self._ports.clock.now_ms()
        return await self._update(
            job, lambda one: advanced(one, Status.STORING, actor="guardian", now=now, times=times)
        )

    async def _finish(self, job: Job, limits: Limits, verdict: Verdict, unkept: str) -> Job:
        summary, now = await self._summary(job), self._ports.clock.now_ms()
        message = "; ".join(filter(None, (verdict.message, unkept)))

        def change(current: Job) -> Job:
            ended = moved(current, verdict.to, actor="guardian", now=now, reason=verdict.reason, message=message)
            ended = replace(ended, summary=summary)
            if verdict.to is Status.QUEUED:
                return _queued_again(ended, limits, verdict, now)
            return replace(ended, observed_generation=current.generation)

        ended = await self._update(job, change)
        self._instrumentation.ended(job, verdict)
        self._log.info("job.ended", to=verdict.to, reason=verdict.reason, attempt=job.attempt.number)
        return ended

    async def _summary(self, job: Job) -> Mapping[str, Any]:
        """The metrics service being away or slow must not keep hardware from being given back."""
        try:
            async with asyncio.timeout(self._settings.summary_timeout_s):
                return await self._ports.summaries.summary(job.id)
        except (WeftError, TimeoutError) as error:
            self._log.warning("job.no_summary", why=str(error) or "the metrics service takes too long")
            return job.summary

    async def _release(self, job: Job) -> None:
        await self._ports.cluster.teardown(job.id, attempt=job.attempt.number, term=self._claim.term)
        await self._ports.status.delete_prefix(f"/jobs/{job.id}/")
        now = self._ports.clock.now_ms()
        await self._update(job, lambda one: released(one, now=now) if one.holds else one)
        self._log.info("job.released", attempt=job.attempt.number)
        with structlog.contextvars.bound_contextvars(traceparent=job.trace):
            await self._ports.hints.send("released", job.id)

    async def _update(self, job: Job, change: Callable[[Job], Job]) -> Job:
        return await update(self._ports.jobs, job.id, self._claim, change)


def _queued_again(job: Job, limits: Limits, verdict: Verdict, now: int) -> Job:
    """Counted against the job's budget only where the job itself failed.

    Waits double: for its own failures and for roll-backs from what its owner chose, after a loss from a second.
    """
    counters, own, undone = job.counters, verdict.budgeted, not job.attempt.committed
    counters = replace(
        counters,
        retries=counters.retries + own,
        restarts=counters.restarts + (not own),
        rollbacks=counters.rollbacks + 1 if undone and not own else 0,
    )
    if own:
        wait, times, most = limits.backoff, counters.retries, _BACKOFF_MOST_MS
    elif undone:
        wait, times, most = max(limits.backoff, _AFTER_LOSS_MS), counters.rollbacks, _BACKOFF_MOST_MS
    else:
        wait, times, most = _AFTER_LOSS_MS, counters.restarts, _AFTER_LOSS_MOST_MS
    # A wait that its owner made longer than ours may ever become stays as long as that.
    wait = max(wait, min(wait * 2 ** min(times - 1, 20), most))
    return replace(job, counters=counters, not_before=now + wait)
