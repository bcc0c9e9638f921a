"""The Guardian of one job: an actor with one claim, one term and ``reconcile()``.

Level, not edge: each reconcile reads the document, looks at what is known of the learners, and takes the next step
towards what should be. It may be called any number of times, by anyone's hint, and killed between any two lines.

    admitted ─ provision (steps) ─ committed ─ running ─ verdict ─ stop ─ stored ─ terminal status ─ teardown ─ released

Going forward lives here; from the verdict on, ``ending``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from services.core.domain.errors import (
    InvalidRequest,
    InvalidSpec,
    NotFound,
    ResourceExhausted,
    StaleFence,
    Unavailable,
    WeftError,
    row,
)
from services.core.domain.job import Claim, Job, Verdict, advanced, moved
from services.core.domain.learner import LearnerStatus, job_status, judge, step_times
from services.core.domain.spec import JobSpec, parse_spec
from services.core.domain.status import Desired, Status
from services.core.jobs import copy_history, update
from services.core.ports.cluster import Observation
from services.guardian import facts
from services.guardian.ending import Ending
from services.guardian.ports import GuardianPorts
from services.guardian.render import digest, render
from services.guardian.settings import GuardianSettings
from services.guardian.view import LearnerView

log = structlog.get_logger()


class Guardian:
    """``run()`` returns when the job is released, or when another Guardian has taken it."""

    def __init__(self, job: Job, ports: GuardianPorts, settings: GuardianSettings, view: LearnerView) -> None:
        self.job_id = job.id
        self.claim: Claim = job.guardian
        self.generation = job.generation
        """Of the owner's wishes, as last read: the pool pokes us when the document shows another."""
        self._ports, self._settings, self._view = ports, settings, view
        self._poked = asyncio.Event()
        self._observed: Observation | None = None
        self._look = True
        self._steps_done = 0
        self._ending = Ending(job.id, self.claim, ports, settings)
        self._log = log.bind(job=job.id, term=self.claim.term, trace=job.trace)

    def poke(self, *, look: bool = False) -> None:
        """Something happened; ``look``: on the cluster."""
        self._look = self._look or look
        self._poked.set()

    async def run(self) -> None:
        """Reconciles until the job is released. StaleFence where the claim is another's."""
        delay, failures = 0.0, 0
        while True:
            try:
                async with asyncio.timeout(delay):
                    await self._poked.wait()
            except TimeoutError:
                self._look = True
            self._poked.clear()
            try:
                again = await self.reconcile()
            except StaleFence:
                raise
            except WeftError as error:
                failures += 1
                delay = min(0.1 * 2**failures, 5.0)
                self._log.warning("guardian.retries", why=str(error), delay_s=delay)
                continue
            failures = 0
            if again is None:
                return
            delay = again

    async def reconcile(self) -> float | None:
        """One step. Seconds until the next look without any hint; None: the job is released and forgotten."""
        job = await self._ports.jobs.get(self.job_id)
        if job is None:
            raise NotFound(f"job {self.job_id} is gone from the store")
        if (job.guardian.term, job.guardian.nonce) != (self.claim.term, self.claim.nonce) and job.holds:
            raise StaleFence(f"job {job.id} has another Guardian (term {job.guardian.term})")
        self.generation = job.generation
        if not job.holds:
            await self._ports.status.delete_prefix(f"/jobs/{job.id}/")
            self._view.forget(job.id)
            await copy_history(self._ports.jobs, job)
            return None
        if self._look:
            self._look = False
            self._observed = await self._ports.cluster.observe(job.id)
        try:
            spec = parse_spec(job.spec)
        except InvalidSpec as error:
            return await self._decide(job, _failed("Misconfigured", f"its spec cannot be read: {error}", self._now))
        known = facts.learners(spec, job.attempt.number, self._view.of(job.id, job.attempt.number), self._observed)
        if job.verdict is not None:
            return await self._ending.step(job, spec, known, self._observed)
        return await self._forward(job, spec, known)

    @property
    def _now(self) -> int:
        return self._ports.clock.now_ms()

    async def _forward(self, job: Job, spec: JobSpec, known: Mapping[str, LearnerStatus]) -> float | None:
        verdict = judge(job, spec, known, now=self._now)
        if verdict is None and job.desired is Desired.HALT:
            return await self._halt(job, spec)
        verdict = verdict or self._overdue(job, spec)
        if verdict is not None:
            return await self._decide(job, verdict)
        if not job.attempt.committed:
            verdict = await self._provision(job, spec)
            if verdict is not None:
                return await self._decide(job, verdict)
        await self._announce(job, spec)
        await self._advance(job, spec, known)
        return self._patience(job, spec)

    def _patience(self, job: Job, spec: JobSpec) -> float:
        """Until the next deadline, and never longer than a quiet job may go unobserved."""
        deadlines = [self._settings.observe_s]
        if spec.max_runtime is not None and job.attempt.started is not None:
            deadlines.append((job.attempt.started + spec.max_runtime - self._now) / 1000)
        return max(0.01, min(deadlines))

    def _overdue(self, job: Job, spec: JobSpec) -> Verdict | None:
        started, limit = job.attempt.started, spec.max_runtime
        if started is not None and limit is not None and self._now >= started + limit:
            return _failed("DeadlineExceeded", "it ran longer than its max_runtime; what it had was stored", self._now)
        waited_s = (self._now - (job.attempt.admitted or self._now)) / 1000
        if not job.attempt.committed and waited_s > self._settings.provision_timeout_s:
            return self._roll_back(
                job, "ProvisionTimeout", f"not all learners were provisioned within {waited_s:.0f} s"
            )
        return None

    def _roll_back(self, job: Job, reason: str, message: str) -> Verdict:
        """All or nothing: what was provisioned is undone and the job waits for another try, a bounded number of times."""
        again = job.counters.restarts + 1 < self._settings.provision_tries
        return Verdict(to=Status.QUEUED if again else Status.FAILED, reason=reason, message=message, time=self._now)

    async def _decide(self, job: Job, verdict: Verdict) -> float:
        """Writes the verdict, first cause wins: one that is there already stays."""

        def change(current: Job) -> Job:
            if current.verdict is not None or not current.holds:
                return current
            return replace(
                current, verdict=verdict, attempt=replace(current.attempt, direction="stop"),
                observed_generation=current.generation if verdict.to in {Status.KILLED, Status.HALTED}
                else current.observed_generation,
            )  # fmt: skip

        await update(self._ports.jobs, job.id, self.claim, change)
        self._log.info("job.verdict", to=verdict.to, reason=verdict.reason, learner=verdict.learner)
        return 0.0

    async def _halt(self, job: Job, spec: JobSpec) -> float:
        if job.status is not Status.HALTING:
            now = self._now

            def change(current: Job) -> Job:
                if current.status is Status.HALTING or current.verdict is not None:
                    return current
                halting = moved(current, Status.HALTING, actor="guardian", now=now, reason="Halted")
                return replace(halting, observed_generation=halting.generation)

            job = await update(self._ports.jobs, job.id, self.claim, change)
        self._observed = await self._ports.cluster.observe(job.id)
        if not any(one.attempt == job.attempt.number for one in self._observed.learners):
            message = "halted by its owner before it had started"
            return await self._decide(job, Verdict(to=Status.HALTED, reason="Halted", message=message, time=self._now))
        await self._ending.stop(job, cause="halt", grace_ms=spec.grace)
        return self._settings.observe_s

    async def _provision(self, job: Job, spec: JobSpec) -> Verdict | None:
        """Carries out the plan's steps; None while all goes well."""
        dispatcher = await self._ports.jobs.dispatcher()
        if self._steps_done == 0 and dispatcher.term != job.dispatcher_term:
            raise Unavailable("the admission is of an older dispatcher; the new one will stamp it anew")
        steps = self._ports.cluster.steps()
        if self._steps_done == len(steps):
            return None
        plan = render(job, spec, term=self.claim.term, secret=self._ports.secret, sizes=self._ports.sizes)
        await self._announce(job, spec, must=True)
        try:
            for place, step in enumerate(steps[self._steps_done :], start=self._steps_done):
                await self._note(job, place, step, "doing")
                await self._ports.cluster.do(step, plan)
                await self._note(job, place, step, "done")
                self._steps_done = place + 1
        except StaleFence:
            raise
        except (InvalidRequest, ResourceExhausted) as error:
            reason = "".join(word.capitalize() for word in row(error).code.split("-"))
            if isinstance(error, InvalidRequest):
                return _failed(reason, str(error), self._now)
            return self._roll_back(job, reason, str(error))
        await self._update(job, lambda one: replace(one, attempt=replace(one.attempt, plan_digest=digest(plan))))
        return None

    async def _note(self, job: Job, place: int, step: str, state: str) -> None:
        """Progress for people (`weft explain`); nothing is decided from it, so etcd being away does not stop us."""
        value = json.dumps(
            {"attempt": job.attempt.number, "step": step, "state": state, "time": self._now, "schema": 1}
        )
        try:
            await self._ports.status.put(f"/jobs/{job.id}/plan/{place:02d}", value)
        except Unavailable as error:
            self._log.info("plan.progress_not_noted", step=step, why=str(error))

    async def _announce(self, job: Job, spec: JobSpec, *, must: bool = False) -> None:
        """Says in etcd which attempt is current; again after etcd has forgotten it. Only ever raises the number."""
        key, value = f"/jobs/{job.id}/attempt", {"attempt": job.attempt.number, "learners": spec.learners}
        try:
            present = await self._ports.status.get(key)
            if present is not None and json.loads(present.value)["attempt"] >= job.attempt.number:
                return
            revision = present.mod_revision if present is not None else 0
            await self._ports.status.put_if(key, json.dumps(value), mod_revision=revision)
        except Unavailable:
            if must:
                raise

    async def _advance(self, job: Job, spec: JobSpec, known: Mapping[str, LearnerStatus]) -> None:
        """Notes commitment, start and status, in one replace and only where something changed."""
        to, times, now = job_status(known.values(), spec.learners), step_times(known.values()), self._now
        committed = facts.all_reported(spec, known)
        environment, data = facts.digests(known)

        def change(current: Job) -> Job:
            if current.verdict is not None or current.status is Status.HALTING:
                return current
            attempt = replace(
                current.attempt,
                committed=current.attempt.committed or committed,
                started=current.attempt.started or times.get(Status.PROCESSING),
                env_digest=current.attempt.env_digest or environment,
                data_digest=current.attempt.data_digest or data,
            )
            ahead = advanced(current, to, actor="guardian", now=now, times=times)
            if ahead.status is current.status and attempt == current.attempt:
                return current
            return replace(ahead, attempt=attempt)

        await self._update(job, change)

    async def _update(self, job: Job, change: Callable[[Job], Job]) -> Job:
        return await update(self._ports.jobs, job.id, self.claim, change)


def _failed(reason: str, message: str, now: int) -> Verdict:
    return Verdict(to=Status.FAILED, reason=reason, message=message, time=now)
